"""What the passes of a pipeline are made of: layers, and what is before and after them; products
for gradients of weights; computing and communication one after the other.

Kernels of one rank of each stage are looked at, on the stream of most computing, of a few passes
that nothing runs beside. A layer is the run of kernel types that repeats; where none does, the
shortest pass of a stage is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..replay.operations import WITHIN, Operations
from ..replay.points import Integers
from .orders.other_orders import Part

_PASSES = 4  # of a place and kind that are looked at
_MOST_KERNELS = 4_000  # of a pass
_NEARLY = 0.9  # of the longest repeated part, from which on the shortest layer is taken
_MOST_STRETCHES = 160
_PRODUCTS = ("matmul", "gemm", "linear", "::mm", "::bmm", "addmm", "_mm_")

Stretches = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Look:
    """One pass of a place: positions of its kernels on the main stream, from when to when."""

    place: int
    kind: str
    rank: int
    kernels: Integers
    start: int
    end: int


def looks(ops: Operations, passes: pl.DataFrame, route: Sequence[tuple[int, int]]) -> list[Look]:
    """A few passes of each place and kind, those of a forward and its backward together."""
    found: list[Look] = []
    kernels = np.flatnonzero(~ops.is_communication)
    for place, (stage, chunk) in enumerate(route):
        own = passes.filter(stage=stage, chunk=chunk)
        if own.is_empty():
            continue
        rank = int(own["rank"][0])
        own = own.filter(rank=rank).with_columns(
            is_beside=(pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1)).fill_null(
                value=False
            )
        )
        numbers = own["micro_batch"].drop_nulls().unique().sort().to_list()
        middle = numbers[1:-1] or numbers
        chosen = own.filter(pl.col("micro_batch").is_in(middle[:_PASSES]), ~pl.col("is_beside"))
        at = kernels[ops.rank[kernels] == ops.ranks.index(rank)]
        at = at[ops.stream[at] == _main_stream(ops, at)]
        step = own["step"][0]
        for row in chosen.filter(pl.col("step").eq_missing(step)).iter_rows(named=True):
            start, end = row["start_ns"] - ops.zero_ns, row["end_ns"] - ops.zero_ns
            low, high = np.searchsorted(ops.start[at], (start, end))
            if 0 < high - low <= _MOST_KERNELS:
                found.append(Look(place, row["kind"], rank, at[low:high], start, end))
    return found


def _main_stream(ops: Operations, kernels: Integers) -> int:
    spent = np.bincount(ops.stream[kernels], weights=ops.dur[kernels])
    return int(spent.argmax())


def parts(ops: Operations, seen: Sequence[Look], places: int) -> tuple[Part, ...] | None:
    """The model in parts that are not cut; None where layers of forward and backward passes are not
    told apart."""
    forward = _cuts(ops, seen, "F", places)
    # Those for inputs alone are where some backward is whole alike.
    backward = _cuts(ops, seen, "BW", places) or _cuts(ops, seen, "B", places)
    if forward is None or backward is None:
        return None
    found: list[Part] = []
    for place in range(places):
        (f_shares, f_layers), (b_shares, b_layers) = forward[place], backward[place]
        if sum(f_layers) != sum(b_layers) or not sum(f_layers):
            return None
        # A backward begins with the last layer: what is behind a part in it is before it here.
        lengths, pauses = [one[::-1] for one in b_shares]
        b_shares = (lengths, [*pauses[1:], pauses[0]])
        found += _joined(place, (f_shares, f_layers), (b_shares, b_layers[::-1]))
    return tuple(found)


Shares = tuple[list[float], list[float]]  # of a pass: its parts, and what is behind each


def _joined(
    place: int, forward: tuple[Shares, list[bool]], backward: tuple[Shares, list[bool]]
) -> list[Part]:
    """Layers of both ways, what is before, between and after them."""
    sums: list[tuple[list[tuple[float, float]], list[tuple[float, float]]]] = []
    for shares, are_layers in (forward, backward):
        layers: list[tuple[float, float]] = []
        others = [(0.0, 0.0)]
        for share, pause, is_layer in zip(*shares, are_layers, strict=True):
            if is_layer:
                layers.append((share, pause))
                others.append((0.0, 0.0))
            else:
                others[-1] = (share, pause)
        sums.append((layers, others))
    (f_layers, f_others), (b_layers, b_others) = sums
    found = []
    for at, (one, other) in enumerate(zip(f_others, b_others, strict=True)):
        if one[0] or other[0]:
            found.append(Part(place, one[0], other[0], False, one[1], other[1]))
        if at < len(f_layers):
            (share, pause), (other_share, other_pause) = f_layers[at], b_layers[at]
            found.append(Part(place, share, other_share, True, pause, other_pause))
    return found


def _cuts(
    ops: Operations, seen: Sequence[Look], kind: str, places: int
) -> list[tuple[Shares, list[bool]]] | None:
    """Of each place: shares of its pass and which of its parts are layers, in order of time."""
    told = layers_of(ops, seen, kind, places)
    if told is None:
        return None
    found = []
    for place in range(places):
        bounds, are_layers, alike = told[place]
        lengths, pauses = np.mean([_shares(ops, one, bounds) for one in alike], axis=0).tolist()
        found.append(((lengths, pauses), are_layers))
    return found


def layers_of(
    ops: Operations, seen: Sequence[Look], kind: str, places: int
) -> list[tuple[list[int], list[bool], list[Look]]] | None:
    """Of each place: where parts begin among the kernels of its passes of a kind, which of them are
    layers, and the passes with as many kernels. None where a place has no such pass."""
    firsts: dict[int, Look] = {}
    for one in seen:
        if one.kind == kind:
            firsts.setdefault(one.place, one)
    if len(firsts) < places:
        return None
    words = {place: ops.type[one.kernels].astype(np.int32) for place, one in firsts.items()}
    layer = _layer(words)
    return [
        (
            *_occurrences(words[place], layer),
            [
                one
                for one in seen
                if one.kind == kind and one.place == place and len(one.kernels) == len(words[place])
            ],
        )
        for place in range(places)
    ]


def _layer(words: Mapping[int, NDArray[np.int32]]) -> bytes:
    """The types of kernels of a layer."""
    told = [(one, repeated(one)) for one in words.values()]
    cut = [(one, at) for one, at in told if at is not None]
    if not cut:
        return min(words.values(), key=len).tobytes()
    # Where the least stands around the layers it is the surest where one begins.
    word, (first, length, _) = min(cut, key=lambda one: len(one[0]) - one[1][1] * one[1][2])
    return word[first : first + length].tobytes()


def repeated(word: NDArray[np.int32]) -> tuple[int, int, int] | None:
    """The part of a word that repeats: where it begins, its length, and how often; of parts that
    are nearly the longest that of the most repetitions."""
    found: list[tuple[int, int, int, int]] = []
    for length in range(2, len(word) // 2 + 1):
        same = np.concatenate([[0], word[length:] == word[:-length], [0]]).astype(np.int8)
        edges = np.flatnonzero(np.diff(same))
        runs = edges[1::2] - edges[::2]
        if len(runs):
            at = int(runs.argmax())
            count = (int(runs[at]) + length) // length
            if count > 1:
                found.append((count * length, int(edges[2 * at]), length, count))
    if not found:
        return None
    most = max(one[0] for one in found)
    if most < len(word) / 3:  # a few kernels that repeat are no layers
        return None
    _, first, length, count = min(
        (one for one in found if one[0] >= _NEARLY * most), key=lambda one: one[2]
    )
    return first, length, count


def _occurrences(word: NDArray[np.int32], layer: bytes) -> tuple[list[int], list[bool]]:
    """Where parts begin, and which of them are layers."""
    text, each = word.tobytes(), len(layer)
    bounds, are_layers, at = [0], list[bool](), 0
    while (found := text.find(layer, at)) >= 0:
        if found % 4:
            at = found + 1
            continue
        if found // 4 > bounds[-1]:
            bounds.append(found // 4)
            are_layers.append(False)
        at = found + each
        bounds.append(at // 4)
        are_layers.append(True)
    if bounds[-1] < len(word):
        bounds.append(len(word))
        are_layers.append(False)
    return bounds[:-1], are_layers


def _shares(ops: Operations, one: Look, bounds: Sequence[int]) -> NDArray[np.float64]:
    """Shares of a pass: of its parts, each from its first kernel to its last one, and of what is
    behind each until the next begins (the last one: until what it sends to ranks that share its
    micro-batches is there), as a layer ends with a sum over them that the next one waits for."""
    starts = ops.start[one.kernels[list(bounds)]]
    starts[0] = one.start
    last = one.kernels[[*(at - 1 for at in bounds[1:]), -1]]
    ends = ops.start[last] + ops.dur[last]
    ends[-1] = one.end
    after = np.append(starts[1:], one.end + _tail_ns(ops, one))
    return np.stack([ends - starts, after - ends]) / (one.end - one.start)


def _tail_ns(ops: Operations, one: Look) -> int:
    """How long communication within a micro-batch goes on that begins behind the last kernel of a
    pass: before another kernel of that stream has ended, which is of another pass."""
    low, high = np.searchsorted(ops.rank, (rank := ops.ranks.index(one.rank), rank + 1))
    own = np.arange(low, high)
    own = own[ops.start[own] >= one.end]
    next_ = own[~ops.is_communication[own] & (ops.stream[own] == ops.stream[one.kernels[-1]])][:1]
    until = ops.start[next_[0]] + ops.dur[next_[0]] if len(next_) else np.iinfo(np.int64).max
    kinds = [at for at, name in enumerate(ops.kinds) if name in WITHIN and name != "pp"]
    own = own[(ops.start[own] < until) & np.isin(ops.kind[own], kinds) & ops.is_communication[own]]
    return int((ops.start[own] + ops.dur[own]).max()) - one.end if len(own) else 0


def weight_shares(ops: Operations, seen: Sequence[Look], places: int) -> tuple[float, ...] | None:
    """By place the share of a backward that its products for gradients of weights take: those with
    the tokens in both inputs; where shapes do not tell, what products take longer than those of the
    forward. None where no products are told."""
    is_product = np.array([any(word in name.lower() for word in _PRODUCTS) for name in ops.types])
    shapes = ops.names["shapes"] if "shapes" in ops.names.columns else None
    found = []
    for place in range(places):
        forward, backward = (
            [one for one in seen if (one.place, one.kind) == (place, kind)] for kind in ("F", "BW")
        )
        pairs = list(zip(forward, backward, strict=False))
        if not pairs:
            return None
        weights = 0.0
        if shapes is not None:
            products, gradients = (
                [one.kernels[is_product[ops.type[one.kernels]]] for one in its]
                for its in zip(*pairs, strict=True)
            )
            tokens = {dims[0][0] for at in products for dims in _dims(shapes, at) if dims}
            weights = sum(
                float(ops.dur[at][[_has(dims, tokens) for dims in _dims(shapes, at)]].sum())
                for at in gradients
                if len(at)
            )
            if any(_has(dims, tokens) for at in products for dims in _dims(shapes, at)):
                weights = 0.0  # some width is as many as the tokens
        weights = weights or sum(_longer(ops, is_product, *pair) for pair in pairs)
        if not weights:
            return None
        found.append(min(weights / sum(one.end - one.start for _, one in pairs), 0.95))
    return tuple(found)


def _longer(ops: Operations, is_product: NDArray[np.bool_], forward: Look, backward: Look) -> float:
    """What products of a backward take longer than those of its forward, by the sizes they have.

    The one for the gradient of an input, and that for a gradient of weights, have the sizes and the
    FLOPs of the forward's. Forwards that run again are told by types whose gradients are others.
    """
    shapes = ops.names["shapes"] if "shapes" in ops.names.columns else None
    seeds = [at for at, name in enumerate(ops.types) if f"{name}Grad" in ops.types]
    counts = [np.bincount(ops.type[one.kernels], minlength=len(ops.types))[seeds]
              for one in (forward, backward)]  # fmt: skip
    ran = counts[0] > 0
    again = float((counts[1][ran] / counts[0][ran]).min()) if ran.any() else 0.0
    times: dict[frozenset[str], list[float]] = {}
    for way, one in enumerate((forward, backward)):
        at = one.kernels[is_product[ops.type[one.kernels]]]
        every = [[]] * len(at) if shapes is None else _dims(shapes, at)
        for dims, ns in zip(every, ops.dur[at].tolist(), strict=True):
            sizes = frozenset(size for its in dims for size in its[-2:])
            times.setdefault(sizes, [0.0, 0.0])[way] += ns
    return sum(min(max(back - (1 + again) * ns, 0.0), ns) for ns, back in times.values())


def _dims(shapes: pl.Series, at: Integers) -> list[list[list[str]]]:
    return [[dims.split(",") for dims in (one or "").split(";")[:2]] for one in shapes[at]]


def _has(dims: list[list[str]], tokens: set[str]) -> bool:
    return len(dims) > 1 and bool(tokens & set(dims[1]))


def pair_ratio(ops: Operations, seen: Sequence[Look], places: int) -> float | None:
    """A forward and a backward beside each other over both alone, mean over places: computing of
    one hides communication of the other as well as can be, which shares nothing else. None where
    passes have no communication of their own. A backward in halves is one behind the other."""
    ratios = []
    for place in range(places):
        forwards, backwards, inputs, weights = [
            [_stretches(ops, one) for one in seen if (one.place, one.kind) == (place, kind)]
            for kind in ("F", "BW", "B", "W")
        ]
        for first, then in zip(inputs, weights, strict=False):
            backwards.append(np.concatenate([first[:-1], [first[-1] + then[0]], then[1:]]))
        for forward, backward in zip(forwards, backwards, strict=False):
            alone = int(forward.sum() + backward.sum())
            if alone:
                ratios.append(beside_each_other(forward, backward) / alone)
    if not ratios or min(ratios) >= 1:
        return None
    return float(np.mean(ratios))


def _stretches(ops: Operations, one: Look) -> Stretches:
    """Computing and communication of a pass in turns, computing first; what is neither counts as
    what it follows."""
    rank = ops.ranks.index(one.rank)
    low, high = np.searchsorted(ops.rank, (rank, rank + 1))
    own = np.arange(low, high)
    pp = [at for at, name in enumerate(ops.kinds) if name == "pp"]
    ends = ops.start[own] + ops.dur[own]
    own = own[(ops.start[own] < one.end) & (ends > one.start)]
    own = own[~(ops.is_communication[own] & np.isin(ops.kind[own], pp))]
    starts = np.maximum(ops.start[own], one.start)
    ends = np.minimum(ops.start[own] + ops.dur[own], one.end)
    is_comm = ops.is_communication[own]
    at = np.concatenate([starts, ends])
    order = np.argsort(at, kind="stable")
    change = np.concatenate([np.ones(len(own), np.int64), np.full(len(own), -1)])
    running = [np.cumsum(np.where(np.tile(chosen, 2), change, 0)[order])
               for chosen in (is_comm, ~is_comm)]  # fmt: skip
    is_exposed = (running[0] > 0) & (running[1] == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_exposed, [0]]).astype(np.int8)))
    times = np.append(at[order], one.end)[edges].reshape(-1, 2)
    return _in_turns([(begin, end) for begin, end in times.tolist() if end > begin], one)


def _in_turns(exposed: Sequence[tuple[int, int]], one: Look) -> Stretches:
    """Lengths: computing, communication, computing, ...; of too many the shortest communication
    counts as computing."""
    longest = sorted(exposed, key=lambda one: one[0] - one[1])[: _MOST_STRETCHES // 2]
    found, at = list[int](), one.start
    for begin, until in sorted(longest):
        found += [begin - at, until - begin]
        at = until
    return np.array([*found, one.end - at], np.int64)


def beside_each_other(first: Stretches, second: Stretches) -> int:
    """The shortest time in which both get done, each in its own order, where computing waits for
    computing and communication for communication. Stretches in turns, computing first.

    Two jobs on two machines: the shortest way through a plane of their progress past rectangles
    where both want one machine (Akers, Operations Research 4, 1956).
    """
    x_at: list[int] = np.concatenate([[0], np.cumsum(first)]).tolist()
    y_at: list[int] = np.concatenate([[0], np.cumsum(second)]).tolist()

    @cache
    def left(x: int, y: int) -> int:
        """What it takes from where stretch `x` of the first and `y` of the second begin."""
        wall = _wall(first, second, x, y)
        if wall is None:
            return max(x_at[-1] - x_at[x], y_at[-1] - y_at[y])
        i, j = wall
        over = max(x_at[i] - x_at[x], y_at[j + 1] - y_at[y]) + left(i, j + 1)
        under = max(x_at[i + 1] - x_at[x], y_at[j] - y_at[y]) + left(i + 1, j)
        return min(over, under)

    return left(0, 0)


def _wall(first: Stretches, second: Stretches, i: int, j: int) -> tuple[int, int] | None:
    """The first stretches of both that want the same machine, where both go on from the starts of
    these."""
    x = y = 0  # done of the stretches i and j
    while i < len(first) and j < len(second):
        if x >= first[i]:
            i, x = i + 1, 0
        elif y >= second[j]:
            j, y = j + 1, 0
        elif i % 2 == j % 2:
            return i, j
        else:
            go = min(first[i] - x, second[j] - y)
            x, y = x + go, y + go
    return None
