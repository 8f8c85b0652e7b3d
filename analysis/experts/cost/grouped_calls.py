"""The grouped matmuls of a rank's step, in launch order: which layer's tokens each computes.

One micro-batch of a gated expert layer, h the hidden size and f that of the experts, M its tokens:

    forward    (M x h)(h x 2f)   (M x f)(f x h)            layers 0, 1, ..., L-1
    backward   (M x h)(h x f)    (M x 2f)(2f x h)          layers L-1, ..., 1, 0

The first call of a step is forward, so the forward calls of the first matrix are those of its
sizes, and the gradients of its input those of its sizes exchanged: one for each layer and
micro-batch, however often the forward was recomputed. Whatever L is, every micro-batch goes back in
the reverse of the order in which it came: where one number of layers has that, it is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np
import numpy.typing as npt

from npuscope.analysis.flops.kernels.shapes import Tensor, tensors

Numbers = npt.NDArray[np.int64]
# As many different counts rule out that their repetition is chance.
_DISTINCT_AT_LEAST = 3


@dataclass(frozen=True, slots=True)
class Call:
    """Rows (tokens), inner size and columns of a grouped matmul that is no weights' gradient."""

    tokens: int
    inner: int
    columns: int


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Tokens that a rank's experts computed in a step, every layer and micro-batch once.

    `passes`: how often the forward is there for each of its backwards; None where that is no whole
    number. `seen`: whether backwards tell, repeated counts, or neither. `layer_counts`: how many
    layers the rank may have; `returned`: tokens of the backward calls in their order.
    """

    tokens: int
    passes: int | None
    seen: Literal["backward", "repetition", "forward"]
    layer_counts: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()

    def by_layer(self, layers: int) -> tuple[int, ...] | None:
        """Tokens of each of the rank's so many layers, in the order in which they are first seen;
        None where it cannot have so many."""
        if layers not in self.layer_counts:
            return None
        backward = np.asarray(self.returned, np.int64).reshape(-1, layers)
        return tuple(int(tokens) for tokens in backward[:, ::-1].sum(axis=0))


def call_of(input_shapes: str | None, output_shapes: str | None) -> Call | None:
    """What the shapes of a grouped matmul say; None where they do not, and for the gradients of
    weights, whose result has a matrix for each expert.

    Its tokens are the rows of its first tensors: one, or one for each expert.
    """
    try:
        given, made = tensors(input_shapes), tensors(output_shapes)
    except ValueError:
        return None
    results = [one for one in made if one is not None]
    if any(len(one.shape) != 2 for one in results):
        return None
    entered = [one for one in given if one is not None]
    is_weight = [len(one.shape) > 2 for one in entered]
    if True in is_weight:
        leading = entered[: is_weight.index(True)]
    else:
        leading = entered[: len(results)]
    if not leading or len(entered) == len(leading) or any(len(one.shape) != 2 for one in leading):
        return None
    if len(leading) != max(1, len(results)):
        return None
    inner = leading[0].shape[1]
    # By the weights: an activation that is fused into the kernel halves the result.
    columns = _other(entered[len(leading)], inner) or (results[0].shape[1] if results else None)
    if columns is None:
        return None
    return Call(sum(one.shape[0] for one in leading), inner, columns)


def step_load(tokens: Sequence[int], sizes: Sequence[tuple[int, int]]) -> StepLoad | None:
    """The load of a step from its calls in launch order: their tokens, and (inner, columns).

    None where forward and backward cannot be told apart.
    """
    counts = np.asarray(tokens, np.int64)
    kinds = np.asarray(sizes, np.int64).reshape(-1, 2)
    if not len(counts):
        return None
    inner, columns = kinds[0]
    is_forward = (kinds == kinds[0]).all(axis=1)
    second = kinds[1:][~is_forward[1:]][:1]
    returning = np.asarray((columns, inner))
    is_backward = (kinds == returning).all(axis=1)
    forward, backward = counts[is_forward], counts[is_backward]
    is_told_apart = inner != columns and len(second) > 0 and bool((second[0] != returning).any())
    if is_told_apart and len(backward):
        passes, rest = divmod(len(forward), len(backward))
        is_whole = rest == 0 and int(forward.sum()) == passes * int(backward.sum())
        return StepLoad(
            int(backward.sum()),
            passes if is_whole else None,
            "backward",
            _layer_counts(forward, backward),
            tuple(int(tokens) for tokens in backward),
        )
    repeated = repetition(forward)
    if is_told_apart and repeated in (None, 1):
        return StepLoad(int(forward.sum()), 1, "forward")
    if repeated is None:
        return None
    return StepLoad(int(forward.sum()) // repeated, repeated, "repetition")


def repetition(counts: Numbers) -> int | None:
    """How often each count is there: the greatest number that divides all their occurrences. None
    where there are too few different ones to tell."""
    _, times = np.unique(counts, return_counts=True)
    if len(times) < _DISTINCT_AT_LEAST:
        return None
    return gcd(*(int(n) for n in times))


def _layer_counts(forward: Numbers, backward: Numbers) -> tuple[int, ...]:
    return tuple(
        count
        for count in range(1, len(backward) + 1)
        if len(backward) % count == 0 and _goes_back(forward, backward, count)
    )


def _goes_back(forward: Numbers, backward: Numbers, layers: int) -> bool:
    """Whether micro-batches of so many layers go back as they came: all of them, or the first,
    where the forward calls in between are repeated ones."""
    reverse = backward.reshape(-1, layers)[:, ::-1]
    if len(forward) == len(backward):
        return bool((forward.reshape(-1, layers) == reverse).all())
    return len(forward) > len(backward) and bool((forward[:layers] == reverse[0]).all())


def _other(weights: Tensor, inner: int) -> int | None:
    """The size of a weight matrix that is not its inner one, transposed or not."""
    rows, columns = weights.shape[-2:] if len(weights.shape) in (2, 3) else (0, 0)
    if inner not in (rows, columns):
        return None
    return columns if rows == inner else rows
