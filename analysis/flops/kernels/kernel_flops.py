"""FLOPs of a kernel from its type and the shapes of its tensors.

`RULES` says which types multiply matrices and how their FLOPs are counted; a new type is one line.
Types that stand there without a rule, and shapes that a rule does not understand, are unresolved:
their time is told, their FLOPs are not guessed. All other types count as no FLOPs: their work on
vector cores is small, and no peak of the cube cores can be held against it.

FLOPs of convolutions: every element of the forward's result takes Cin x window products.

The gradients multiply as often: that of the input by the filter, that of the filter by the input.
So all three are 2 x |result of the forward| x elements of the filter for one output channel.

NC1HWC0 and FRACTAL_Z round channels up to blocks. Where there is one block only, most of it may be
filling (an image's 3 channels in a block of 8 or 16), so that nothing is said.

FLOPs of fused attention from the shapes of its tensors.

Forward: scores = Q K^T and result = scores V, two products over every pair of a query and a key:
2 B N Sq Sk (Dqk + Dv). N Dqk is the width of the query, N Dv that of the result; so heads need not
be known, nor whether keys are shared by several of them (GQA) or have another width than values
(MLA). Rotated parts of query and key that are tensors of their own add to their width.
Backward: five products of that kind, the scores being computed again: 2.5 times the forward.

Which dimension is the sequence is told by the softmax's statistics, which the forward returns and
the backward reads: (B, N, S, 8), or (T, N, 8) where sequences of many lengths lie one behind the
other. The lengths themselves are values, not shapes: such kernels are unresolved, unless there is
one sequence only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Literal

from . import matrices
from .matrices import Product, UnclearShapes
from .shapes import Cell, Tensor, tensors

Family = Literal["matmul", "attention", "convolution"]
Operands = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class KernelFlops:
    """FLOPs of one kernel with these tensors.

    `full` counts all pairs of attention, `causal` those with the key not behind the query where a
    mask can leave out others; they differ in attention only, and `causal` is None where the shapes
    do not tell it. Both are None where `reason` says why nothing is known. `dtype` is the first
    matrix's, in which the cube multiplies; `moved_bytes` all inputs and outputs once (None: a type
    is unknown); `tokens` and `sequence_length` of attention, all queries and those of one sequence;
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
) -> Callable[[Operands, Operands], Product]:
    """A rule on the first two inputs and the first output."""

    def apply(inputs: Operands, outputs: Operands) -> Product:
        if (
            len(inputs) < 2
            or inputs[0] is None
            or inputs[1] is None
            or not outputs
            or outputs[0] is None
        ):
            raise UnclearShapes("shapes are missing")
        return rule(inputs[0], inputs[1], outputs[0])

    return apply


def _one_product(
    rule: Callable[[Operands, Operands], Product],
) -> Callable[[Operands, Operands], Product]:
    """A rule for kernels that can have a second product with inputs and an output of its own."""

    def apply(inputs: Operands, outputs: Operands) -> Product:
        if len(inputs) > 5 and inputs[4] is not None and inputs[5] is not None:
            raise UnclearShapes("a second product runs in the same kernel")
        return rule(inputs, outputs)

    return apply


Rule = Callable[[Operands, Operands], "Product | _Scores"]
_PRODUCT, _QUANTISED = _two(matrices.plain_product), _two(matrices.quantised_product)
_GATHERED, _SCATTERED = _two(matrices.gathered_product), _two(matrices.scattered_product)

# Beginning of a type (in lower case, as a regular expression) to what it does. The first that fits.
_BLOCK_FORMATS = ("NC1HWC0", "NDC1HWC0")
_OUTPUT_FIRST = ("NCHW", "NCDHW", "NHWC", "NDHWC", "ND", None)
_OUTPUT_LAST = ("HWCN", "DHWCN")
_CUBE = 16  # output channels of a filter are rounded up to it


def _convolution_forward(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> Product:
    """Conv2D, Conv3D: input, filter, mostly a bias. Raises UnclearShapes."""
    x, w, y = _wide(inputs, 2) + _wide(outputs, 1)
    return _convolution(x, w, y)


def _convolution_of_input(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> Product:
    """Gradient of the input, from filter and gradient of the result. Raises UnclearShapes."""
    w, y, x = _wide(inputs, 2) + _wide(outputs, 1)
    return _convolution(x, w, y)


def _convolution_of_filter(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> Product:
    """Gradient of the filter, from input and gradient of the result. Raises UnclearShapes."""
    x, y, w = _wide(inputs, 2) + _wide(outputs, 1)
    return _convolution(x, w, y)


def _wide(tensors: Sequence[Tensor | None], count: int) -> list[Tensor]:
    """The first ones that are no biases or lists of sizes. Raises UnclearShapes for too few."""
    wide = [one for one in tensors if one is not None and len(one.shape) >= 4][:count]
    if len(wide) < count:
        raise UnclearShapes("shapes are missing")
    return wide


def _convolution(x: Tensor, w: Tensor, y: Tensor) -> Product:
    if (w.layout or "").startswith("FRACTAL_Z"):
        return _blocked_convolution(x, w, y)
    channels = (
        w.shape[0] if w.layout in _OUTPUT_FIRST
        else w.shape[-1] if w.layout in _OUTPUT_LAST else 0
    )  # fmt: skip
    if channels == 0 or x.layout in _BLOCK_FORMATS or y.layout in _BLOCK_FORMATS:
        raise UnclearShapes("the filter's layout is not known")
    if channels not in (y.shape[1], y.shape[-1]):
        raise UnclearShapes("the shapes are not those of a convolution")
    return Product(2 * y.element_count * (w.element_count // channels))


def _blocked_convolution(x: Tensor, w: Tensor, y: Tensor) -> Product:
    """Filter as (C1 x window, N1, N0, C0), others as (N, [D,] C1, H, W, C0)."""
    if x.layout not in _BLOCK_FORMATS or y.layout not in _BLOCK_FORMATS or len(w.shape) != 4:
        raise UnclearShapes("the filter's layout is not known")
    into, out = x.shape[-4], y.shape[-4]
    window_blocks, blocks, block, element = w.shape
    area = out * y.shape[-1]
    if min(into, out) <= 1:
        raise UnclearShapes("channels are known only as at most one block")
    if (
        window_blocks % into or element != x.shape[-1] or prod((blocks, block)) - area >= _CUBE
        or blocks * block < area
    ):  # fmt: skip
        raise UnclearShapes("the shapes are not those of a convolution in one group")
    return Product(2 * y.element_count * window_blocks * element, is_rounded=True)


_TRUTH = ("bool", "uint8")
_SMALL_MASKS = ((2048, 2048), (3072, 2048))  # masks of causal and band, and of prefix
_STATISTIC = 8  # each maximum and sum is stored 8 times
_WIDEST_HEAD = 768  # of fused attention; what is wider is all heads of a token


@dataclass(frozen=True, slots=True)
class _Scores:
    """FLOPs over all pairs, and over those with the key not behind the query (None: not told).

    `tokens` are the queries of all sequences, `sequence_length` those of one.
    """

    full: int
    causal: int | None
    tokens: int
    sequence_length: int


def _attention_forward(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> _Scores:
    """FlashAttentionScore: query, key, value in; statistics, result out. Raises UnclearShapes."""
    query, key, value = _first_three(inputs)
    return _scores(query, key, value, _statistic(outputs), inputs[3:])


def _attention_backward(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
) -> _Scores:
    """FlashAttentionScoreGrad: it reads the statistics of its forward. Raises UnclearShapes."""
    query, key, value = _first_three(inputs)
    scores = _scores(query, key, value, _statistic(inputs), inputs[3:])
    causal = None if scores.causal is None else scores.causal * 5 // 2
    return replace(scores, full=scores.full * 5 // 2, causal=causal)


def _first_three(inputs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
    if len(inputs) < 3 or inputs[0] is None or inputs[1] is None or inputs[2] is None:
        raise UnclearShapes("shapes are missing")
    query, key, value = inputs[0], inputs[1], inputs[2]
    rotated = next(_rotated_parts(query, key, inputs[3:]), None)
    if rotated is None:
        return query, key, value
    return _wider(query, rotated[0]), _wider(key, rotated[1]), value


def _rotated_parts(query: Tensor, key: Tensor, among: Operands) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of all queries and keys that follow each other, as wide as these go together (MLA);
    the softmax's statistics do so, too. A result and its gradient never stand side by side."""
    for one, other in pairwise(among):
        if one is None or other is None or one.shape[-1] == _STATISTIC:
            continue
        if (one.shape[:-1], other.shape[:-1]) == (query.shape[:-1], key.shape[:-1]):
            if one.shape[-1] * key.shape[-1] == other.shape[-1] * query.shape[-1]:
                yield one, other


def _wider(tensor: Tensor, part: Tensor) -> Tensor:
    return replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + part.shape[-1]))


def _statistic(among: Sequence[Tensor | None]) -> tuple[int, ...] | None:
    """Shape of the softmax's maxima: they and the sums have one shape and follow each other."""
    for one, other in pairwise(among):
        if one is not None and other is not None and one.shape == other.shape:
            if one.shape[-1] == _STATISTIC and len(one.shape) in (3, 4):
                return one.shape
    return None


def _lengths(others: Operands) -> list[Tensor]:
    """Lists of sequence lengths: the integer vectors."""
    return [
        one for one in others if one is not None and one.dtype == "int64" and len(one.shape) == 1
    ]


def _is_masked(others: Operands, queries: int, keys: int) -> bool:
    """Whether one can be a mask: of truth values, of every query and key, or compressed."""
    return any(
        one is not None
        and len(one.shape) > 1
        and (one.dtype in _TRUTH or one.shape[-2:] in ((queries, keys), *_SMALL_MASKS))
        for one in others
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    batch: int
    heads: int | None
    queries: int
    keys: int
    key_width: int  # of all heads of a query
    value_width: int


def _scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    statistic: tuple[int, ...] | None,
    others: Operands,
) -> _Scores:
    layouts = _layouts(query.shape, key.shape, value.shape, statistic, _lengths(others))
    counts = {_score_counts(sizes, others) for sizes in layouts}
    if not counts:
        raise UnclearShapes("the shapes are not those of attention")
    if len(counts) > 1:
        raise UnclearShapes("the sequence dimension is not recorded")
    return counts.pop()


def _score_counts(s: _Sizes, others: Operands) -> _Scores:
    full = 2 * s.batch * s.queries * s.keys * (s.key_width + s.value_width)
    causal = full // 2 if s.queries == s.keys else None
    if not _is_masked(others, s.queries, s.keys):
        causal = full
    return _Scores(full, causal, s.batch * s.queries, s.queries)


def _layouts(
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    statistic: tuple[int, ...] | None,
    lengths: list[Tensor],
) -> Iterator[_Sizes]:
    """What the tensors can be, of all layouts."""
    if not len(q) == len(k) == len(v):
        return
    if len(q) == 3 and statistic is not None and len(statistic) == 3:
        if q[:2] == statistic[:2]:
            yield _one_sequence(q, k, v, lengths)
        return
    candidates = _three(q, k, v) if len(q) == 3 else _four(q, k, v) if len(q) == 4 else ()
    for sizes in candidates:
        if statistic is None or _agrees(sizes, statistic):
            whole = _widths(sizes, q, k, statistic)
            if whole is not None:
                yield whole


def _one_sequence(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], lengths: list[Tensor]
) -> _Sizes:
    """TND: rows of all sequences, one behind the other."""
    if not lengths or any(length.shape != (1,) for length in lengths):
        raise UnclearShapes("lengths of the sequences are not recorded", tokens=q[0])
    return _Sizes(1, q[1], q[0], k[0], q[1] * q[2], q[1] * v[2])


def _three(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Iterator[_Sizes]:
    """BSH and SBH; of one position over one position there is no attention."""
    for batch, sequence in ((0, 1), (1, 0)):
        if q[batch] == k[batch] == v[batch] and k[sequence] == v[sequence]:
            if (q[sequence], k[sequence]) != (1, 1):
                yield _Sizes(q[batch], None, q[sequence], k[sequence], q[2], v[2])


def _four(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Iterator[_Sizes]:
    """BNSD and BSND."""
    for heads, sequence in ((1, 2), (2, 1)):
        if q[0] == k[0] == v[0] and k[1:3] == v[1:3] and k[heads] and q[heads] % k[heads] == 0:
            if q[3] == k[3]:
                n = q[heads]
                yield _Sizes(q[0], n, q[sequence], k[sequence], n * q[3], n * v[3])


def _agrees(sizes: _Sizes, statistic: tuple[int, ...]) -> bool:
    if len(statistic) != 4:
        return False
    batch, heads, queries, _ = statistic
    return sizes.batch == batch and sizes.queries == queries and sizes.heads in (None, heads)


def _widths(
    sizes: _Sizes, q: tuple[int, ...], k: tuple[int, ...], statistic: tuple[int, ...] | None
) -> _Sizes | None:
    """With the width of the result: the value's, as often as a key serves several queries."""
    if sizes.heads is not None:
        return sizes
    if statistic is None and q[2] <= _WIDEST_HEAD:
        raise UnclearShapes("whether the shape is of one head or of all heads is not recorded")
    heads = statistic[1] if statistic is not None else 1
    if 0 in (heads, k[2], q[2]) or q[2] % heads or k[2] % (q[2] // heads) or q[2] % k[2]:
        return None
    width = sizes.value_width * (q[2] // k[2])
    return replace(sizes, heads=heads, value_width=width) if width % heads == 0 else None


RULES: tuple[tuple[str, Family, Rule | None], ...] = (
    ("alltoallvgroupedmatmul", "matmul", _one_product(_GATHERED)),
    ("groupedmatmulalltoallv", "matmul", _one_product(_SCATTERED)),
    ("groupedmatmul(allreduce|finalize)", "matmul", None),
    ("(quant)?groupedmatmul", "matmul", matrices.grouped_product),
    ("alltoallallgatherbatchmatmul", "matmul", _GATHERED),
    ("batchmatmulreducescatteralltoall", "matmul", _SCATTERED),
    ("allgather(quant)?(batch)?(matmul|mm)", "matmul", _GATHERED),
    ("(quant)?(matmul|mm)reducescatter", "matmul", _SCATTERED),
    ("(inplace)?(quant|weightquant)?matmulallreduce", "matmul", _QUANTISED),
    ("alltoall(v)?(quant)?(batch)?matmul", "matmul", None),
    ("(batch)?matmulalltoall", "matmul", None),
    ("transpose(quant)?batchmatmul", "matmul", _two(matrices.permuted_product)),
    ("(weight)?quant(batch)?matmul", "matmul", _QUANTISED),
    ("(fused|sparse)quantmatmul", "matmul", None),
    ("(batch)?matmul", "matmul", _PRODUCT),
    ("gemm(v\\d)?$", "matmul", _PRODUCT),
    ("fusedmatmul", "matmul", _PRODUCT),
    ("(sparse|compress)\\w*matmul", "matmul", None),
    ("mlaprolog", "matmul", None),
    ("flashattentionscoregrad", "attention", _attention_backward),
    ("flashattentionscore", "attention", _attention_forward),
    ("(unpad|sparse)?flashattention", "attention", None),
    ("(promptflash|increflash|fusedinfer|paged|selfattention|multilatent)", "attention", None),
    ("(nsa\\w*attention|sparseflash|lightningindexer|multiheadattention)", "attention", None),
    ("conv\\dd(v\\d)?backprop(input|_input)", "convolution", _convolution_of_input),
    ("conv\\dd(v\\d)?backprop(filter|_filter)", "convolution", _convolution_of_filter),
    ("conv\\dd(v\\d)?$", "convolution", _convolution_forward),
    ("(depthwise|deformable|extend|quant)?conv(olution|transpose|\\dd)", "convolution", None),
    ("\\w*matmul", "matmul", None),
    ("\\w*attention(score)?(grad)?(v\\d)?$", "attention", None),
)
_FIRST = tuple((re.compile(beginning), family, rule) for beginning, family, rule in RULES)


@lru_cache(maxsize=1 << 14)  # another capture of a job has the same shapes
def flops_of(
    type_: Cell,
    input_shapes: Cell = None,
    input_dtypes: Cell = None,
    input_formats: Cell = None,
    output_shapes: Cell = None,
    output_dtypes: Cell = None,
    output_formats: Cell = None,
) -> KernelFlops | None:
    """FLOPs of one kernel, from the cells of its row; None where its type multiplies nothing.

    Cells are as the profiler writes them: `"16,2048;2048,6144"`, `FLOAT16;FLOAT16`. Where they do
    not tell, the result has a reason in place of FLOPs.
    """
    count = _rule(type_)
    if count is None:
        return None
    family, rule = count
    if rule is None:
        return KernelFlops(family, reason="there is no rule for this type")
    try:
        inputs = tensors(input_shapes, input_dtypes, input_formats)
        outputs = tensors(output_shapes, output_dtypes, output_formats)
        if not inputs or not outputs:
            raise UnclearShapes("shapes were not recorded")
        counted = rule(inputs, outputs)
    except UnclearShapes as error:
        return KernelFlops(family, tokens=error.tokens, reason=str(error))
    except ValueError as error:
        return KernelFlops(family, reason=str(error))
    first = next((one.dtype for one in inputs if one is not None and len(one.shape) > 1), None)
    moved = [one.size_bytes for one in (*inputs, *outputs) if one is not None]
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
    return next(((family, rule) for pattern, family, rule in _FIRST if pattern.match(name)), None)
