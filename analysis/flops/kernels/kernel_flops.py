"""FLOPs of a kernel from its type and the shapes of its tensors.

`RULES` says which types multiply matrices and how their FLOPs are counted; a new type is one line.
Types that stand there without a rule, and shapes that a rule does not understand, are unresolved:
their time is told, their FLOPs are not guessed. All other types count as no FLOPs: their work on
vector cores is small, and no peak of the cube cores can be held against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from . import attention, convolutions, matrices
from .matrices import Product, Unresolved
from .shapes import Cell, Tensor, tensors

Family = Literal["matmul", "attention", "convolution"]
Given = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class KernelFlops:
    """FLOPs of one kernel with these tensors.

    `full` counts all pairs of attention, `causal` those with the key not behind the query; they
    differ in attention only, and `causal` is None where the shapes do not tell it. Both are None
    where `reason` says why nothing is known. `dtype` is the first matrix's, in which the cube
    multiplies; `moved_bytes` all inputs and outputs once (None: a type is unknown);
    `tokens` and `sequence_length` of attention, all queries and those of one sequence;
    `is_rounded` that sizes were rounded up by the layout.
    """

    family: Family
    full: int | None = None
    causal: int | None = None
    dtype: str | None = None
    moved_bytes: int | None = None
    tokens: int | None = None
    sequence_length: int | None = None
    is_rounded: bool = False
    reason: str | None = None


def _two(
    rule: Callable[[Tensor, Tensor, Tensor], Product],
) -> Callable[[Given, Given], Product]:
    """A rule on the first two inputs and the first output."""

    def applied(given: Given, made: Given) -> Product:
        if len(given) < 2 or given[0] is None or given[1] is None or not made or made[0] is None:
            raise Unresolved("shapes are missing")
        return rule(given[0], given[1], made[0])

    return applied


def _one_product(
    rule: Callable[[Given, Given], Product],
) -> Callable[[Given, Given], Product]:
    """A rule for kernels that can have a second product with inputs and an output of its own."""

    def applied(given: Given, made: Given) -> Product:
        if len(given) > 5 and given[4] is not None and given[5] is not None:
            raise Unresolved("a second product runs in the same kernel")
        return rule(given, made)

    return applied


Rule = Callable[[Given, Given], "Product | attention.Scores"]
_PRODUCT, _QUANTISED = _two(matrices.multiplied), _two(matrices.quantised)
_GATHERED, _SCATTERED = _two(matrices.gathered), _two(matrices.scattered)

# Beginning of a type (in lower case, as a regular expression) to what it does. The first that fits.
RULES: tuple[tuple[str, Family, Rule | None], ...] = (
    ("alltoallvgroupedmatmul", "matmul", _one_product(_GATHERED)),
    ("groupedmatmulalltoallv", "matmul", _one_product(_SCATTERED)),
    ("groupedmatmul(allreduce|finalize)", "matmul", None),
    ("(quant)?groupedmatmul", "matmul", matrices.grouped),
    ("alltoallallgatherbatchmatmul", "matmul", _GATHERED),
    ("batchmatmulreducescatteralltoall", "matmul", _SCATTERED),
    ("allgather(quant)?(batch)?(matmul|mm)", "matmul", _GATHERED),
    ("(quant)?(matmul|mm)reducescatter", "matmul", _SCATTERED),
    ("(inplace)?(quant|weightquant)?matmulallreduce", "matmul", _QUANTISED),
    ("alltoall(v)?(quant)?(batch)?matmul", "matmul", None),
    ("(batch)?matmulalltoall", "matmul", None),
    ("transpose(quant)?batchmatmul", "matmul", _two(matrices.permuted)),
    ("(weight)?quant(batch)?matmul", "matmul", _QUANTISED),
    ("(fused|sparse)quantmatmul", "matmul", None),
    ("(batch)?matmul", "matmul", _PRODUCT),
    ("gemm(v\\d)?$", "matmul", _PRODUCT),
    ("fusedmatmul", "matmul", _PRODUCT),
    ("(sparse|compress)\\w*matmul", "matmul", None),
    ("mlaprolog", "matmul", None),
    ("flashattentionscoregrad", "attention", attention.backward),
    ("flashattentionscore", "attention", attention.forward),
    ("(unpad|sparse)?flashattention", "attention", None),
    ("(promptflash|increflash|fusedinfer|paged|selfattention|multilatent)", "attention", None),
    ("(nsa\\w*attention|sparseflash|lightningindexer|multiheadattention)", "attention", None),
    ("conv\\dd(v\\d)?backprop(input|_input)", "convolution", convolutions.of_input),
    ("conv\\dd(v\\d)?backprop(filter|_filter)", "convolution", convolutions.of_filter),
    ("conv\\dd(v\\d)?$", "convolution", convolutions.forward),
    ("(depthwise|deformable|extend|quant)?conv(olution|transpose|\\dd)", "convolution", None),
    ("\\w*matmul", "matmul", None),
    ("\\w*attention(score)?(grad)?(v\\d)?$", "attention", None),
)
_FIRST = tuple((re.compile(beginning), family, rule) for beginning, family, rule in RULES)


def flops_of(
    type_: Cell,
    input_shapes: Cell = None,
    input_dtypes: Cell = None,
    input_formats: Cell = None,
    output_shapes: Cell = None,
    output_dtypes: Cell = None,
    output_formats: Cell = None,
) -> KernelFlops | None:
    """FLOPs of one kernel, from the cells of its row; None where its type multiplies nothing."""
    found = _rule(type_)
    if found is None:
        return None
    family, rule = found
    if rule is None:
        return KernelFlops(family, reason="there is no rule for this type")
    try:
        given = tensors(input_shapes, input_dtypes, input_formats)
        made = tensors(output_shapes, output_dtypes, output_formats)
        if not given or not made:
            raise Unresolved("shapes were not recorded")
        counted = rule(given, made)
    except Unresolved as error:
        return KernelFlops(family, tokens=error.tokens, reason=str(error))
    except ValueError as error:
        return KernelFlops(family, reason=str(error))
    first = next((one.dtype for one in given if one is not None and len(one.shape) > 1), None)
    moved = [one.size_bytes for one in (*given, *made) if one is not None]
    whole = None if None in moved else sum(size or 0 for size in moved)
    if isinstance(counted, Product):
        flops, is_rounded = counted.flops, counted.is_rounded
        return KernelFlops(family, flops, flops, first, whole, is_rounded=is_rounded)
    return KernelFlops(
        family, counted.full, counted.causal, first, whole,
        counted.tokens, counted.sequence_length,
    )  # fmt: skip


def _rule(type_: Cell) -> tuple[Family, Rule | None] | None:
    if type_ is None:
        return None
    name = type_.strip().lower()
    return next(((family, rule) for known, family, rule in _FIRST if known.match(name)), None)
