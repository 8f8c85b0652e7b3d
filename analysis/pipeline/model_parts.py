"""What the passes of a pipeline are made of: layers, and what is before and after them; products
for gradients of weights.

Kernels of one rank of each stage are looked at, a usual one, on the stream of most computing, of a
few passes that nothing runs beside. A layer is the run of kernel types that repeats; where none
does, the shortest pass of a stage is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..replay.operations import WITHIN, Operations, replicas
from ..replay.points import Integers
from .orders.other_orders import Part
from .orders.pairs import Spans

_PASSES = 4  # of a place and kind that are looked at
_MOST_KERNELS = 4_000  # of a pass
_NEARLY = 0.9  # of the longest repeated part, from which on the shortest layer is taken
_PRODUCTS = ("matmul", "gemm", "linear", "::mm", "::bmm", "addmm", "_mm_")


@dataclass(frozen=True, slots=True)
class Look:
    """One pass of a place: positions of its kernels on the main stream, from when all ranks of its
    replica are there to its end; `spans` of all of these: place of the rank, start and end, its own
    first."""

    place: int
    kind: str
    rank: int
    kernels: Integers
    start: int
    end: int
    spans: Spans


def looks(ops: Operations, passes: pl.DataFrame, route: Sequence[tuple[int, int]]) -> list[Look]:
    """A few passes of each place and kind, those of a forward and its backward together."""
    looks_here: list[Look] = []
    kernels = np.flatnonzero(~ops.is_communication)
    together = dict(zip(ops.ranks, replicas(ops).tolist(), strict=True))
    number = pl.col("micro_batch")
    for place, (stage, chunk) in enumerate(route):
        every = passes.filter(stage=stage, chunk=chunk)
        if every.is_empty():
            continue
        rank = _usual_rank(every)
        own = passes.filter(rank=rank).sort("start_ns").with_columns(
            # The other one of a pair is often of another chunk.
            is_beside=(pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1)).fill_null(
                value=False
            )
            | (pl.col("end_ns") > pl.col("start_ns").shift(-1)).fill_null(value=False),
        )  # fmt: skip
        own = own.filter(
            ~pl.col("is_beside"), number.is_not_null(), chunk=chunk
        ).filter(pl.col("step").eq_missing(own["step"][0]))  # fmt: skip
        # Where most passes are pairs, some kinds are alone only as a step begins or ends.
        is_middle = number.is_between(
            every["micro_batch"].min(), every["micro_batch"].max(), closed="none"
        )
        middle = own.sort(is_middle, number, descending=[True, False])
        middle = middle.group_by("kind", maintain_order=True).head(_PASSES)
        at = kernels[ops.rank[kernels] == ops.ranks.index(rank)]
        at = at[ops.stream[at] == _main_stream(ops, at)]
        for row in middle.iter_rows(named=True):
            start, end = row["start_ns"] - ops.zero_ns, row["end_ns"] - ops.zero_ns
            low, high = np.searchsorted(ops.start[at], (start, end))
            if 0 < high - low <= _MOST_KERNELS:
                alike = every.filter(
                    pl.col("step").eq_missing(row["step"]), micro_batch=row["micro_batch"],
                    kind=row["kind"],
                ).select("rank", "start_ns", "end_ns")  # fmt: skip
                spans = [
                    (ops.ranks.index(its), begin - ops.zero_ns, until - ops.zero_ns)
                    for its, begin, until in alike.iter_rows()
                    if together[its] == together[rank]
                ]
                spans.sort(key=lambda one: ops.ranks[one[0]] != rank)
                # As of passes' times: what one waits for another hangs on what came before it.
                met = max(begin for _, begin, _ in spans)
                start = met if met < end else start
                looks_here.append(
                    Look(place, row["kind"], rank, at[low:high], start, end, tuple(spans))
                )
    return looks_here


def _usual_rank(passes: pl.DataFrame) -> int:
    """Of ranks that run the same passes the one that computes as long as most do."""
    spent = passes.group_by("rank").agg(pl.col("compute_ns").sum()).sort("compute_ns", "rank")
    return int(spent["rank"][(spent.height - 1) // 2])


def spans_of(looks: Sequence[Look], places: int) -> list[dict[str, list[Spans]]]:
    """Spans of passes by place and kind."""
    spans: list[dict[str, list[Spans]]] = [{} for _ in range(places)]
    for one in looks:
        spans[one.place].setdefault(one.kind, []).append(one.spans)
    return spans


def _main_stream(ops: Operations, kernels: Integers) -> int:
    spent = np.bincount(ops.stream[kernels], weights=ops.dur[kernels])
    return int(spent.argmax())


def parts(ops: Operations, looks: Sequence[Look], places: int) -> tuple[Part, ...] | None:
    """The model in parts that are not cut; None where layers of forward and backward passes are not
    told apart."""
    forward = _cuts(ops, looks, "F", places)
    # Those for inputs alone are where some backward is whole alike.
    backward = _cuts(ops, looks, "BW", places) or _cuts(ops, looks, "B", places)
    if forward is None or backward is None:
        return None
    parts_here: list[Part] = []
    for place in range(places):
        (f_shares, f_layers), (b_shares, b_layers) = forward[place], backward[place]
        if sum(f_layers) != sum(b_layers) or not sum(f_layers):
            return None
        # A backward begins with the last layer: what is behind a part in it is before it here.
        lengths, pauses = [one[::-1] for one in b_shares]
        b_shares = (lengths, [*pauses[1:], pauses[0]])
        parts_here += _join_parts(place, (f_shares, f_layers), (b_shares, b_layers[::-1]))
    return tuple(parts_here)


Shares = tuple[list[float], list[float]]  # of a pass: its parts, and what is behind each


def _join_parts(
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
    joints = []
    for at, (one, other) in enumerate(zip(f_others, b_others, strict=True)):
        if one[0] or other[0]:
            joints.append(Part(place, one[0], other[0], False, one[1], other[1]))
        if at < len(f_layers):
            (share, pause), (other_share, other_pause) = f_layers[at], b_layers[at]
            joints.append(Part(place, share, other_share, True, pause, other_pause))
    return joints


def _cuts(
    ops: Operations, looks: Sequence[Look], kind: str, places: int
) -> list[tuple[Shares, list[bool]]] | None:
    """Of each place: shares of its pass and which of its parts are layers, in order of time."""
    layers = layers_of(ops, looks, kind, places)
    if layers is None:
        return None
    cuts = []
    for place in range(places):
        bounds, are_layers, alike = layers[place]
        lengths, pauses = np.mean([_shares(ops, one, bounds) for one in alike], axis=0).tolist()
        cuts.append(((lengths, pauses), are_layers))
    return cuts


def layers_of(
    ops: Operations, looks: Sequence[Look], kind: str, places: int
) -> list[tuple[list[int], list[bool], list[Look]]] | None:
    """Of each place: where parts begin among the kernels of its passes of a kind, which of them are
    layers, and the passes with as many kernels. None where a place has no such pass."""
    firsts: dict[int, Look] = {}
    for one in looks:
        if one.kind == kind:
            firsts.setdefault(one.place, one)
    if len(firsts) < places:
        return None
    words = {place: ops.type[one.kernels].astype(np.int32) for place, one in firsts.items()}
    layer = _layer(words)
    return [
        (
            *_parts_in(words[place], layer),
            [
                one
                for one in looks
                if one.kind == kind and one.place == place and len(one.kernels) == len(words[place])
            ],
        )
        for place in range(places)
    ]


def _parts_in(word: NDArray[np.int32], layer: bytes) -> tuple[list[int], list[bool]]:
    """Where parts begin and which are layers: those of others, or where it has none, as one stage
    alone may run forwards again, what repeats in it."""
    places = _occurrences(word, layer)
    own = None if any(places[1]) else repetition(word)
    return places if own is None else _occurrences(word, word[own[0] : own[0] + own[1]].tobytes())


def _layer(words: Mapping[int, NDArray[np.int32]]) -> bytes:
    """The types of kernels of a layer."""
    repetitions = [(one, repetition(one)) for one in words.values()]
    cut = [(one, at) for one, at in repetitions if at is not None]
    if not cut:
        return min(words.values(), key=len).tobytes()
    # Where the least stands around the layers it is the surest where one begins.
    word, (first, length, _) = min(cut, key=lambda one: len(one[0]) - one[1][1] * one[1][2])
    return word[first : first + length].tobytes()


def repetition(word: NDArray[np.int32]) -> tuple[int, int, int] | None:
    """The part of a word that repeats: where it begins, its length, and how often; of parts that
    are nearly the longest that of the most repetitions."""
    repeats: list[tuple[int, int, int, int]] = []
    for length in range(2, len(word) // 2 + 1):
        same = np.concatenate([[0], word[length:] == word[:-length], [0]]).astype(np.int8)
        edges = np.flatnonzero(np.diff(same))
        runs = edges[1::2] - edges[::2]
        if len(runs):
            at = int(runs.argmax())
            count = (int(runs[at]) + length) // length
            if count > 1:
                repeats.append((count * length, int(edges[2 * at]), length, count))
    if not repeats:
        return None
    most = max(one[0] for one in repeats)
    if most < len(word) / 3:  # a few kernels that repeat are no layers
        return None
    _, first, length, count = min(
        (one for one in repeats if one[0] >= _NEARLY * most), key=lambda one: one[2]
    )
    return first, length, count


def _occurrences(word: NDArray[np.int32], layer: bytes) -> tuple[list[int], list[bool]]:
    """Where parts begin, and which of them are layers."""
    text, each = word.tobytes(), len(layer)
    bounds, are_layers, at = [0], list[bool](), 0
    while (index := text.find(layer, at)) >= 0:
        if index % 4:
            at = index + 1
            continue
        if index // 4 > bounds[-1]:
            bounds.append(index // 4)
            are_layers.append(False)
        at = index + each
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
    starts = np.maximum(starts, one.start)
    last = one.kernels[[*(at - 1 for at in bounds[1:]), -1]]
    ends = np.maximum(ops.start[last] + ops.dur[last], one.start)
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


def weight_shares(ops: Operations, looks: Sequence[Look], places: int) -> tuple[float, ...] | None:
    """By place the share of a backward that its products for gradients of weights take: those with
    the tokens in both inputs; where shapes do not tell, what products take longer than those of the
    forward. None where no products are told."""
    is_product = np.array([any(word in name.lower() for word in _PRODUCTS) for name in ops.types])
    shapes = ops.names["shapes"] if "shapes" in ops.names.columns else None
    shares = []
    for place in range(places):
        forward, backward = (
            [one for one in looks if (one.place, one.kind) == (place, kind)] for kind in ("F", "BW")
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
        shares.append(min(weights / sum(one.end - one.start for _, one in pairs), 0.95))
    return tuple(shares)


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
