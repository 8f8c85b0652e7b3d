"""A pipeline as it ran, for the executor: how long its passes took, and what lay between them.

    start of a pass = latest of (end of the one before it on its device + gap,
                                 end of the pass it needs on another device + lag of the link)

A column is one pipeline in one step: the n-th captured rank of each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from .execution import ORDER, Precedence, Times, precedence
from .schedules import Schedule

_KINDS = ("F", "B", "W", "BW")
_SENDS_FIRST = "1f1b"
_LEAST_COLUMNS = 0.5  # of the pipelines and steps that have all passes of the order


@dataclass(frozen=True, slots=True)
class MeasuredPasses:
    """Entries of the order that ran x columns; times in ns from the first start of a column.

    alone_ns: how long passes take that nothing runs beside, by kind: places on the route x
    micro-batches x columns. pair_ratio: a pair beside each other over both alone, a mean; None:
    none ran. gaps_ns: usual ones by device and column, of entries that receive nothing.
    receive_gaps_ns, queued_gaps_ns (of entries that receive behind what the one before them sends),
    lags_ns and alone_lags_ns (behind passes that nothing runs beside: of two, one may have sent
    before both ended) by link of the order and column, NaN where nothing tells. earlier_ns: ends of
    what the devices of entries had begun before these, in the step before for first ones; -inf:
    unknown. hosts: of devices; None: unknown.
    """

    graph: Precedence
    steps: tuple[int | None, ...]
    ranks: tuple[tuple[int, ...], ...]
    starts_ns: Times
    ends_ns: Times
    alone_ns: dict[str, Times]
    pair_ratio: float | None
    gaps_ns: Times
    receive_gaps_ns: Times
    queued_gaps_ns: Times
    lags_ns: Times
    alone_lags_ns: Times
    earlier_ns: Times
    hosts: tuple[str, ...] | None = None

    @property
    def devices(self) -> int:
        return len(self.graph.schedule.orders)

    @property
    def places(self) -> int:
        """Parts of the model that a micro-batch passes."""
        return len(self.graph.schedule.routes[0])

    @property
    def micro_batches(self) -> int:
        return int(self.alone_ns["F"].shape[1])

    def entry_gaps(self, graph: Precedence, unknown: float = 0.5) -> Times:
        """The gaps before the entries of an order, by column; `unknown` as of `link_lags`."""
        gaps_ns = self.gaps_ns[[device for device, _ in graph.entries]]
        is_transfer = graph.link >= 0
        target, link = graph.target[is_transfer], graph.link[is_transfer]
        gaps_ns[target] = -np.inf
        # What was always waited for takes as much of its link's lag as others usually do; behind
        # another, both do.
        lags = self.link_lags(graph, unknown)
        lags_ns = np.where(np.isnan(self.receive_gaps_ns), np.nan, self._own_lags(graph))
        usual = self._usual(graph, self.receive_gaps_ns, unknown, lags)
        usual_lags = self._usual(graph, lags_ns, unknown, lags)
        share = np.clip(usual / np.maximum(usual_lags, 1.0), 0.0, 1.0)
        free = self._of_links(graph, self.receive_gaps_ns, usual + share * (lags - usual_lags))
        both = self._usual(graph, self.queued_gaps_ns, unknown, 2 * free)
        behind = self._of_links(graph, self.queued_gaps_ns, both)
        gaps = np.where(queued_entries(graph)[target, None], behind[link], free[link])
        np.maximum.at(gaps_ns, target, gaps)
        return gaps_ns

    def link_lags(self, graph: Precedence, unknown: float = 0.5) -> Times:
        """The lags of the links of an order, by column; `unknown`: of those that were not measured
        which quantile of the others, within a host or between hosts."""
        lags_ns = self._own_lags(graph)
        nothing = np.zeros((len(graph.links), lags_ns.shape[1]))
        return self._of_links(graph, lags_ns, self._usual(graph, lags_ns, unknown, nothing))

    def _own_lags(self, graph: Precedence) -> Times:
        has_pairs = any(len(entry) > 1 for _, entry in graph.entries)
        return self.lags_ns if has_pairs else self.alone_lags_ns

    def _valid(self, times_ns: Times) -> dict[tuple[int, int], Times]:
        pairs = zip(self.graph.links, times_ns, strict=True)
        return {link: ns for link, ns in pairs if not np.isnan(ns).any()}

    def _of_links(self, graph: Precedence, times_ns: Times, else_ns: Times) -> Times:
        """Gaps or lags of the links of an order, `else_ns` of those that were not measured."""
        by_link = self._valid(times_ns)
        its = [by_link.get(link, ns) for link, ns in zip(graph.links, else_ns, strict=True)]
        return np.array(its).reshape(else_ns.shape)

    def _usual(self, graph: Precedence, times_ns: Times, quantile: float, else_ns: Times) -> Times:
        """By link of an order what gaps or lags are within a host, or between hosts; `else_ns`
        where none were measured. Of two the shorter: links break, and do not mend."""

        def crosses(link: tuple[int, int]) -> bool:
            return self.hosts is not None and self.hosts[link[0]] != self.hosts[link[1]]

        by_link = self._valid(times_ns)
        if not by_link:
            return else_ns
        usual = {}
        for is_far in (False, True):
            alike = [ns for link, ns in by_link.items() if crosses(link) == is_far]
            usual[is_far] = np.quantile(alike or [*by_link.values()], quantile, 0, method="lower")
        return np.array([usual[crosses(link)] for link in graph.links]).reshape(else_ns.shape)

    def lengths(
        self,
        graph: Precedence,
        durations_ns: Times,
        unknown: float = 0.5,
        late_ns: Times | None = None,
    ) -> tuple[Times, Times]:
        """Starts of entries by column, and from the first start of a column to its last end;
        `unknown` as of `link_lags`; `late_ns` that entries begin later (None: nothing)."""
        starts = graph.starts(
            durations_ns, self.entry_gaps(graph, unknown), self.link_lags(graph, unknown), late_ns
        )
        return starts, (starts + durations_ns).max(axis=0) - starts.min(axis=0)

    def late_ns(self) -> Times:
        """How much later entries began than their pipeline let them, as their device was not done
        with the step before."""
        graph, lags_ns = self.graph, self.link_lags(self.graph)
        source, ready = (np.full(self.starts_ns.shape, -np.inf) for _ in range(2))
        is_transfer, is_next = graph.link >= 0, graph.link == ORDER
        target, ends = graph.target[is_transfer], self.ends_ns[graph.source[is_transfer]]
        np.maximum.at(source, target, ends)
        np.maximum.at(ready, target, ends + lags_ns[graph.link[is_transfer]])
        is_late = (self.earlier_ns > source) & np.isfinite(source)
        is_late[graph.target[is_next]] = False
        return np.where(is_late, np.maximum(self.starts_ns - ready, 0.0), 0.0)

    def by_step(self, lengths_ns: Times) -> Times:
        """The longest pipeline of each step, steps in order."""
        order = list(dict.fromkeys(self.steps))
        latest = np.full(len(order), -np.inf)
        np.maximum.at(latest, [order.index(step) for step in self.steps], lengths_ns)
        return latest


def measure_passes(
    passes: pl.DataFrame,
    order: Schedule,
    host_of: Mapping[int, str] | None = None,
    replica_of: Mapping[int, int] | None = None,
) -> MeasuredPasses:
    """Passes (a frame as `passes.passes` makes it, of one capture) in the order that was
    recognised; `host_of` and `replica_of` ranks. Raises CannotAnswer where passes of too many steps
    are not all there."""
    graph = precedence(order)
    columns, ranks = _columns(passes, len(order.orders))
    passes_of_order = _passes_of(graph)
    keys = ["stage", "chunk", "micro_batch", "kind"]
    rows = columns.join(passes_of_order, on=keys, how="inner").unique(["column", *keys])
    whole = rows.group_by("column").len().filter(pl.col("len") == passes_of_order.height)["column"]
    every = columns["column"].n_unique()
    if len(whole) < _LEAST_COLUMNS * every or not len(whole):
        raise CannotAnswer(
            Message(
                "the passes of {whole} of {every} pipelines and steps are all there as {name} has"
                " them: record all stages, several steps, and the operators of the host"
                " (`npuscope pipeline PATH` says what was recognised)",
                whole=len(whole), every=every, name=order.name,
            )
        )  # fmt: skip
    columns_kept = whole.sort().to_list()
    rows = rows.filter(pl.col("column").is_in(columns_kept)).with_columns(
        column=pl.col("column").replace_strict(
            columns_kept, range(len(columns_kept)), return_dtype=pl.Int64
        )
    )
    rows = _together(rows, replica_of or {})
    shape = (len(graph.entries), len(columns_kept))
    starts, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
    before = np.full(shape, -np.inf)
    zero = int(rows.select(pl.col("start_ns").min()).item())
    at = (rows["entry"].to_numpy(), rows["column"].to_numpy())
    np.minimum.at(starts, at, (rows["start_ns"] - zero).to_numpy().astype(np.float64))
    np.maximum.at(ends, at, (rows["end_ns"] - zero).to_numpy().astype(np.float64))
    earlier = (rows["before_ns"] - zero).cast(pl.Float64).fill_null(-np.inf)
    np.maximum.at(before, at, earlier.to_numpy())
    first = starts.min(axis=0)
    starts, ends, before = starts - first, ends - first, before - first
    names = columns.unique("column").sort("column").filter(pl.col("column").is_in(columns_kept))
    steps = tuple(names["step"].to_list())
    its = tuple(ranks[one] for one in names["nth"].to_list())
    alone, pair_ratio = _alone(rows, order, graph, ends - starts)
    replicas = [tuple((replica_of or {}).get(rank, -1) for rank in one) for one in its]
    numbers = {one: at for at, one in enumerate(dict.fromkeys(replicas))}
    between = _between(graph, starts, ends, before, np.array([numbers[one] for one in replicas]))
    hosts = None
    if host_of is not None and all(rank in host_of for rank in its[0]):
        hosts = tuple(host_of[rank] for rank in its[0])
    return MeasuredPasses(
        graph, steps, its, starts, ends, alone, pair_ratio, *between, before, hosts
    )


def _columns(passes: pl.DataFrame, devices: int) -> tuple[pl.DataFrame, dict[int, tuple[int, ...]]]:
    """Passes with `nth` (rank of its stage) and `column`; and the ranks of the n-th of each."""
    ranks = passes.select("stage", "rank").drop_nulls().unique().sort("stage", "rank")
    ranks = ranks.with_columns(nth=pl.col("rank").cum_count().over("stage").cast(pl.Int64) - 1)
    visited = set(ranks["stage"].to_list())
    missing = [stage for stage in range(devices) if stage not in visited]
    if missing:
        raise CannotAnswer(
            Message(
                "no pass of stage {stages} was recognised: record a rank of every pipeline stage",
                stages=", ".join(map(str, missing[:8])),
            )
        )
    count = min(ranks.group_by("stage").len()["len"].to_list())
    ranks = ranks.filter(pl.col("nth") < count)
    together = {
        nth: tuple(ranks.filter(nth=nth).sort("stage")["rank"].to_list()) for nth in range(count)
    }
    rows = passes.join(ranks, on=["stage", "rank"], how="inner")
    column = pl.struct("step", "nth").rank("dense").cast(pl.Int64) - 1
    return rows.with_columns(column=column), together


def _together(rows: pl.DataFrame, replica_of: Mapping[int, int]) -> pl.DataFrame:
    """Passes from when all ranks of a replica that run them are there, to when all are done: what
    one waits for another within the first exchange of a pass hangs on what came before it."""
    passes = rows.with_columns(
        replica=pl.col("rank").replace_strict(replica_of, default=pl.col("rank"))
    )
    its = ["step", "replica", "stage", "chunk", "micro_batch", "kind"]
    return passes.with_columns(pl.col("start_ns", "end_ns").max().over(its))


def _passes_of(graph: Precedence) -> pl.DataFrame:
    """The passes of an order: entry, route, place, stage, chunk, micro_batch, kind, is_beside."""
    position = graph.schedule.positions()
    rows = [
        (at, *position[device, one.chunk], device, one.chunk, one.micro_batch, one.kind,
         len(entry) > 1)
        for at, (device, entry) in enumerate(graph.entries)
        for one in entry
    ]  # fmt: skip
    schema = {
        "entry": pl.Int64, "route": pl.Int64, "place": pl.Int64, "stage": pl.Int32,
        "chunk": pl.Int32, "micro_batch": pl.Int32, "kind": pl.String, "is_beside": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _alone(
    rows: pl.DataFrame, order: Schedule, graph: Precedence, lengths_ns: Times
) -> tuple[dict[str, Times], float | None]:
    """Times of passes that nothing runs beside, by kind; and what pairs take of both alone. Where
    a pass always runs beside another, its computing times what the others take of theirs."""
    routes = len(order.routes)
    places, columns = len(order.routes[0]), lengths_ns.shape[1]
    of_route = int(rows.select(pl.col("micro_batch").max()).item()) + 1
    alone: dict[str, Times] = {}
    ratio: dict[str, float] = {}
    spent = pl.col("end_ns") - pl.col("start_ns")
    for kind in _KINDS:
        its = rows.filter(kind=kind)
        if its.is_empty():
            continue
        times = np.full((places, routes * of_route, columns), np.nan)
        free = its.filter(~pl.col("is_beside"))
        sums = free.select(spent.sum(), pl.col("compute_ns").sum()).row(0)
        ratio[kind] = sums[0] / sums[1] if sums[1] else 1.0
        for part, values in ((free, spent), (its.filter("is_beside"),
                                             pl.col("compute_ns") * ratio[kind])):  # fmt: skip
            at = (part["place"].to_numpy(),
                  (part["micro_batch"] * routes + part["route"]).to_numpy(),
                  part["column"].to_numpy())  # fmt: skip
            times[at] = part.select(values.cast(pl.Float64)).to_series().to_numpy()
        alone[kind] = times
    if "BW" not in alone and "B" in alone:
        alone["BW"] = alone["B"] + alone.get("W", np.zeros_like(alone["B"]))
    elif "B" in alone:  # where some backwards are whole and others in halves, their sum is alike
        alone["BW"] = np.where(np.isnan(alone["BW"]), alone["B"] + alone["W"], alone["BW"])
    pairs = rows.filter("is_beside")
    if pairs.is_empty():
        return alone, None
    both = sum(
        float(np.nansum(alone[kind][at["place"].to_numpy(),
                                    (at["micro_batch"] * routes + at["route"]).to_numpy(),
                                    at["column"].to_numpy()]))
        for kind in _KINDS
        for at in [pairs.filter(kind=kind)]
        if at.height
    )  # fmt: skip
    entries = [at for at, (_, entry) in enumerate(graph.entries) if len(entry) > 1]
    return alone, float(lengths_ns[entries].sum()) / both if both else None


def queued_entries(graph: Precedence) -> NDArray[np.bool_]:
    """Which entries receive behind what the one before them sends the same way. 1F1B fills and
    drains the pipeline so, with one transfer after another; where passes of several chunks take
    turns, tensors go several ways at a time."""
    is_queued = np.zeros(len(graph.entries), bool)
    if graph.schedule.name != _SENDS_FIRST:
        return is_queued
    is_transfer = graph.link >= 0
    sends = set(graph.source[is_transfer].tolist())
    for at in graph.target[is_transfer].tolist():
        (device, own), (other, before) = graph.entries[at], graph.entries[at - 1]
        is_queued[at] = (
            at - 1 in sends and device == other and own[0].kind == before[0].kind
        )  # fmt: skip
    return is_queued


def _between(
    graph: Precedence, starts: Times, ends: Times, earlier: Times, replica: NDArray[np.int64]
) -> tuple[Times, Times, Times, Times, Times]:
    """By column usual gaps by device of entries that receive nothing; usual gaps, those of queued
    entries, lags, and those behind passes alone by link: usual ones of the column's replica
    (numbers, by column), whose links others do not have.

    An entry whose transfer's source ended after the entry before it waited for that: this tells
    the lag of the link; the others tell gaps. A device that had not been free for as long as it
    then waited may have sent or received something else first, and tells no lag where others do.
    Before the first entry of a device lies what it did `earlier`: an evaluation may be behind on
    later devices when a step begins on the first one. Such a pause is no gap of this order.
    """
    before = earlier.copy()
    is_next = graph.link == ORDER
    follows = np.zeros((len(starts), 1), bool)
    follows[graph.target[is_next]] = True
    before[graph.target[is_next]] = ends[graph.source[is_next]]
    source = np.full(starts.shape, -np.inf)
    link = np.full(starts.shape, -1)
    is_alone = np.zeros(starts.shape, bool)
    for edge in np.flatnonzero(graph.link >= 0).tolist():
        at, end = graph.target[edge], ends[graph.source[edge]]
        link[at] = np.where(end > source[at], graph.link[edge], link[at])
        is_alone[at] = np.where(
            end > source[at], len(graph.entries[graph.source[edge]][1]) == 1, is_alone[at]
        )
        source[at] = np.maximum(source[at], end)
    receives = link >= 0
    waited = receives & (source > before)
    paused = ~waited & follows
    links = len(graph.links)
    waits = np.where(waited, starts - source, np.nan)
    was_free = waited.copy()
    was_free[waited] = (source[waited] - before[waited]) >= waits[waited]
    usual, free, alone = (
        _medians(waits, link, links, replica, its)
        for its in (waited, was_free, was_free & is_alone)
    )
    lags = np.where(np.isnan(free), usual, free)
    alone = np.where(np.isnan(alone), lags, alone)
    pauses = np.where(paused, starts - before, np.nan)
    is_behind = queued_entries(graph)[:, None]
    received, behind = (
        _medians(pauses, link, links, replica, its)
        for its in (paused & receives & ~is_behind, paused & receives & is_behind)
    )
    devices = np.broadcast_to(
        np.array([device for device, _ in graph.entries])[:, None], starts.shape
    )
    is_own = paused & ~receives
    gaps = _medians(pauses, devices, len(graph.schedule.orders), replica, is_own)
    numbers = gaps[~np.isnan(gaps)]
    gaps = np.where(np.isnan(gaps), numbers.mean() if len(numbers) else 0.0, gaps)
    return gaps, received, behind, lags, alone


def _medians(
    values: Times,
    numbers: NDArray[np.int64],
    count: int,
    replica: NDArray[np.int64],
    its: NDArray[np.bool_],
) -> Times:
    """By number below `count` and column the median of those of `its` values (entries x columns)
    that are of the column's replica, or where it has none, of all; NaN where there are none."""
    replicas = int(replica.max()) + 1
    own = _median_of((numbers * replicas + replica)[its], values[its], count * replicas)
    every = _median_of(numbers[its], values[its], count)[:, None]
    own = own.reshape(count, replicas)
    return np.where(np.isnan(own), every, own)[:, replica]


def _median_of(numbers: NDArray[np.int64], values: Times, count: int) -> Times:
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(1, count))
    parts = np.split(values[order], bounds) if count else []
    return np.array([float(np.median(one)) if len(one) else np.nan for one in parts])
