"""FLOPs of fused attention from the shapes of its tensors.

Forward: scores = Q K^T and result = scores V, two products over every pair of a query and a key:
2 B N Sq Sk (Dqk + Dv). N Dqk is the width of the query, N Dv that of the result; so heads need not
be known, nor whether keys are shared by several of them (GQA) or have another width than values
(MLA). Backward: five products of that kind, the scores being computed again: 2.5 times the forward.

Which dimension is the sequence is told by the softmax's statistics, which the forward returns and
the backward reads: (B, N, S, 8), or (T, N, 8) where sequences of many lengths lie one behind the
other. The lengths themselves are values, not shapes: such kernels are unresolved, unless there is
one sequence only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .matrices import Unresolved
from .shapes import Tensor

_STATISTIC = 8  # each maximum and sum is stored 8 times
_WIDEST_HEAD = 768  # of fused attention; what is wider is all heads of a token


@dataclass(frozen=True, slots=True)
class Scores:
    """FLOPs over all pairs, and over those with the key not behind the query (None: not told).

    `tokens` are the queries of all sequences, `sequence_length` those of one.
    """

    full: int
    causal: int | None
    tokens: int
    sequence_length: int


def forward(given: Sequence[Tensor | None], made: Sequence[Tensor | None]) -> Scores:
    """FlashAttentionScore: query, key, value in; statistics and result out. Raises Unresolved."""
    query, key, value = _first_three(given)
    return _scores(query, key, value, _statistic(made), _lengths(given))


def backward(given: Sequence[Tensor | None], made: Sequence[Tensor | None]) -> Scores:
    """FlashAttentionScoreGrad: it reads the statistics of its forward. Raises Unresolved."""
    query, key, value = _first_three(given)
    scores = _scores(query, key, value, _statistic(given), _lengths(given))
    causal = None if scores.causal is None else scores.causal * 5 // 2
    return replace(scores, full=scores.full * 5 // 2, causal=causal)


def _first_three(given: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
    if len(given) < 3 or given[0] is None or given[1] is None or given[2] is None:
        raise Unresolved("shapes are missing")
    return given[0], given[1], given[2]


def _statistic(among: Sequence[Tensor | None]) -> tuple[int, ...] | None:
    """Shape of the softmax's maxima: they and the sums have one shape and follow each other."""
    for one, other in pairwise(among):
        if one is not None and other is not None and one.shape == other.shape:
            if one.shape[-1] == _STATISTIC and len(one.shape) in (3, 4):
                return one.shape
    return None


def _lengths(given: Sequence[Tensor | None]) -> list[Tensor]:
    """Lists of sequence lengths: the integer vectors."""
    return [
        one for one in given[3:]
        if one is not None and one.dtype == "int64" and len(one.shape) == 1
    ]  # fmt: skip


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
    lengths: list[Tensor],
) -> Scores:
    found = {
        _counted(sizes)
        for sizes in _layouts(query.shape, key.shape, value.shape, statistic, lengths)
    }
    if not found:
        raise Unresolved("the shapes are not those of attention")
    if len(found) > 1:
        raise Unresolved("the sequence dimension is not recorded")
    return found.pop()


def _counted(s: _Sizes) -> Scores:
    full = 2 * s.batch * s.queries * s.keys * (s.key_width + s.value_width)
    causal = full // 2 if s.queries == s.keys else None
    return Scores(full, causal, s.batch * s.queries, s.queries)


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
        raise Unresolved("lengths of the sequences are not recorded", tokens=q[0])
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
        raise Unresolved("whether the shape is of one head or of all heads is not recorded")
    heads = statistic[1] if statistic is not None else 1
    if 0 in (heads, k[2], q[2]) or q[2] % heads or k[2] % (q[2] // heads) or q[2] % k[2]:
        return None
    width = sizes.value_width * (q[2] // k[2])
    return replace(sizes, heads=heads, value_width=width) if width % heads == 0 else None
