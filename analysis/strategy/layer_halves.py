"""Attention and feed-forward network of each layer: what they take in a forward pass, and what they
keep for its backward.

kernels of a layer | norm ... attention ... product, sum | norm ... products |
blocks of memory     by the operator that allocates them, kept where they outlive the pass
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.store import store
from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ..pipeline.model_parts import Look, layers_of
from ..replay.operations import Operations

ATTENTION, FFN, LAYER = "attention", "ffn", "layer"
_NORM, _ATTENTION = re.compile(r"(?i)norm"), re.compile(r"(?i)attention|flash")
_CALLS = """
    select rank, connection_id, any_value(operator_start_ns) as called_ns
    from launches
    where target = 'kernel' and connection_id is not null and operator_start_ns is not null
        and run = ? and capture = ?
    group by all"""
_BLOCKS = """
    select allocated_at_ns, coalesce(released_at_ns, 9223372036854775807) as released_at_ns,
        size_bytes
    from operator_memory
    where size_bytes > 0 and allocated_at_ns is not null and run = ? and capture = ? and rank = ?
    order by allocated_at_ns"""


@dataclass(frozen=True, slots=True)
class Half:
    """One half of the layers of a place, mean of the passes that were looked at.

    forward_ns: from its first kernel to the first of what follows, mean of layers. backward_ns: a
    layer's backward. kept_bytes: by layer what outlives the forward pass of a micro-batch; of it
    stays_bytes is what the next half begins with. pass_ns: length of these passes.
    """

    place: int
    name: str
    forward_ns: float
    backward_ns: float
    kept_bytes: tuple[float, ...]
    stays_bytes: tuple[float, ...]
    pass_ns: float

    @property
    def layers(self) -> int:
        return len(self.kept_bytes)

    @property
    def key(self) -> tuple[int, str, int]:
        """The place, the half of its layers and how many they are."""
        return self.place, self.name, self.layers

    def away_bytes(self, layers: int) -> float:
        """What the first layers would not keep."""
        return sum(self.kept_bytes[:layers]) - sum(self.stays_bytes[:layers])


def called_ns(con: duckdb.DuckDBPyConnection, run: str, capture: str, ops: Operations,
              ) -> NDArray[np.int64]:  # fmt: skip
    """When the operator of each operation's kernel began, on its rank's clock; -1: unknown."""
    calls = store.frame(con.sql(_CALLS, params=[run, capture]))
    ranks = pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank]
    launches = pl.DataFrame({"rank": ranks, "connection_id": ops.names["connection_id"]})
    rows = launches.join(
        calls.with_columns(pl.col("rank").cast(pl.Int32)), on=["rank", "connection_id"],
        how="left", maintain_order="left",
    )  # fmt: skip
    times_ns: NDArray[np.int64] = rows["called_ns"].fill_null(-1).to_numpy()
    return times_ns


def layer_halves(
    con: duckdb.DuckDBPyConnection,
    run: str,
    capture: str,
    ops: Operations,
    looks: Sequence[Look],
    places: int,
) -> list[Half]:
    """Halves of the layers of each place, whole layers where nothing tells the halves apart. Raises
    CannotAnswer where no layers or no blocks of memory are told."""
    forward = layers_of(ops, looks, "F", places)
    backward = layers_of(ops, looks, "BW", places)
    if forward is None or not all(any(are_layers) for _, are_layers, _ in forward):
        raise CannotAnswer(Message("the layers of the model were not told apart in the passes"))
    calls = called_ns(con, run, capture, ops)
    cuts = _cut(ops, forward)
    times_here, bytes_kept = [], []
    for bounds, are_layers, alike in forward:
        starts = _starts(bounds, are_layers, cuts)
        times, sizes = [], []
        for one in alike:
            times.append(_times(ops, one, starts, len(cuts)))
            held = _kept_bytes(con, run, capture, one, ops, calls, starts)
            sizes.append(held.reshape(-1, len(cuts), 2))
        times_here.append(np.stack(times))
        bytes_kept.append(np.stack(sizes))
    usual = np.nanmean(np.concatenate([one.reshape(-1, len(cuts)) for one in times_here]), axis=0)
    names = (LAYER,) if len(cuts) == 1 else (ATTENTION, FFN)
    halves = []
    for place in range(places):
        alike = forward[place][2]
        pass_ns = float(np.mean([one.end - one.start for one in alike]))
        layers = times_here[place].shape[1]
        for at, name in enumerate(names):
            own = times_here[place][:, :, at]
            forward_ns = float(usual[at] if np.isnan(own).all() else np.nanmean(own))
            held = bytes_kept[place][:, :, at].mean(axis=0).T.tolist()
            halves.append(Half(place, name, forward_ns, _backward_ns(backward, place, layers),
                              tuple(held[0]), tuple(held[1]), pass_ns))  # fmt: skip
    return halves


def _cut(ops: Operations, layers: Sequence[tuple[list[int], list[bool], list[Look]]]) -> list[int]:
    """Where halves begin among the kernels of a layer: the second at the first norm behind the
    attention; the layer as a whole where there is none."""
    for bounds, are_layers, alike in layers:
        for at, is_layer in enumerate(are_layers):
            if is_layer:
                ends = [*bounds[1:], len(alike[0].kernels)]
                kernels = alike[0].kernels[bounds[at] : ends[at]]
                types = [ops.types[one] for one in ops.type[kernels]]
                last = max((n for n, one in enumerate(types) if _ATTENTION.search(one)), default=-1)
                norms = [n for n, one in enumerate(types) if n > last >= 0 and _NORM.search(one)]
                return [0, norms[0]] if norms else [0]
    return [0]


def _starts(bounds: Sequence[int], are_layers: Sequence[bool], cuts: Sequence[int]) -> list[
    tuple[int, int | None]
]:  # fmt: skip
    """Of each half of each layer: its first kernel, and the first of what follows (None: the pass
    ends)."""
    edges: list[tuple[int, int | None]] = []
    for at, is_layer in enumerate(are_layers):
        if is_layer:
            after = bounds[at + 1] if at + 1 < len(bounds) else None
            firsts = [bounds[at] + cut for cut in cuts]
            edges += zip(firsts, [*firsts[1:], after], strict=True)
    return edges


def _times(
    ops: Operations, one: Look, edges: Sequence[tuple[int, int | None]], halves: int
) -> NDArray[np.float64]:
    """Layers x halves; NaN of what ends with the pass, as what it exchanges last is not seen."""
    start = ops.start[one.kernels]
    times = [np.nan if end is None else float(start[end] - start[begin]) for begin, end in edges]
    if len(times) <= halves:
        times = [float((one.end if end is None else start[end]) - start[begin])
                 for begin, end in edges]  # fmt: skip
    return np.array(times).reshape(-1, halves)


def _kept_bytes(
    con: duckdb.DuckDBPyConnection,
    run: str,
    capture: str,
    one: Look,
    ops: Operations,
    calls: NDArray[np.int64],
    edges: Sequence[tuple[int, int | None]],
) -> NDArray[np.float64]:
    """Halves x (bytes that outlive the pass, the last of them)."""
    own = calls[one.kernels]
    rows = store.frame(con.sql(_BLOCKS, params=[run, capture, one.rank]))
    if rows.is_empty():
        raise CannotAnswer(
            Message(
                "rank {rank} has no memory by operator: record it with profile_memory=True, and the"
                " CPU beside the NPU (activities)",
                rank=one.rank,
            )
        )  # fmt: skip
    if (own < 0).any():
        raise CannotAnswer(
            Message(
                "rank {rank}: the operators of its kernels were not recorded, so blocks of memory"
                " have no layer: record the CPU beside the NPU (activities)",
                rank=one.rank,
            )
        )  # fmt: skip
    every = np.sort(calls[(ops.rank == ops.ranks.index(one.rank)) & (calls >= 0)])
    behind = int(np.searchsorted(every, own.max(), "right"))
    end = int(every[behind]) if behind < len(every) else np.iinfo(np.int64).max
    allocated, released, size = (rows[name].to_numpy() for name in rows.columns)
    sizes = []
    for first, after in edges:
        until = end if after is None else own[after]
        low, high = np.searchsorted(allocated, (own[first], until))
        mine = size[low:high][released[low:high] > end]
        sizes.append((float(mine.sum()), float(mine[-1]) if len(mine) else 0.0))
    return np.array(sizes)


def _backward_ns(
    cuts: Sequence[tuple[list[int], list[bool], list[Look]]] | None, place: int, layers: int
) -> float:
    """What a layer's backward takes at a place, as a share of its passes; 0: not told."""
    if cuts is None:
        return 0.0
    return float(np.mean([one.end - one.start for one in cuts[place][2]])) / layers
