"""From a phase-level trace to a graph with durations: who waits for whom in a training step.

The order of phases is that of the first DP rank in the first step; every step and DP rank has the
same. docs/whatif.md has the rules. Where a trace breaks one, an error says which and where.

Durations of what ends together are transfers, told from ends and starts in the trace's own
floating-point type, as the published analysis does it; replays add them up in double precision.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.readers.phase_trace.phase_trace import PhaseTrace, place_of
from npuscope.errors import TraceFormatError

from .graph import Circular, Graph, Group, Times, graph

FORWARD, BACKWARD = "forward-compute", "backward-compute"
SENDS, RECEIVES = ("forward-send", "backward-send"), ("forward-recv", "backward-recv")
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
SEPARATE = "separate-grads-all-reduce"
_TAIL = ("gc", "layernorm-grads-all-reduce", EMBEDDING)
COMMUNICATION = frozenset({*SENDS, *RECEIVES, GATHER, SCATTER, *_TAIL[1:], SEPARATE, CLIP})
PHASES = COMMUNICATION | {FORWARD, BACKWARD, "gc", "optimizer"}
_LATE_CLOCK_S = -0.01  # a transfer that ends so long before its start is none
_JITTER_S = 50e-6
_LONGEST_S = 1e8  # of a step: three years
_NODES_AT_MOST = 1_000_000
_PLACE = ("stage", "optype")
_NTH = pl.int_range(pl.len()).over("step", "dp_rank", *_PLACE).alias("nth")


@dataclass(frozen=True, slots=True)
class PhaseJob:
    """A job as a graph: each node's stage and optype; seconds by node, step and DP rank of each
    operation as it was, and by node as it would be if no worker differed from another."""

    graph: Graph
    stages: NDArray[np.int64]
    optypes: NDArray[np.str_]
    steps: tuple[int, ...]
    dp_ranks: tuple[int, ...]
    own_s: Times
    ideal_s: Times
    measured_s: Times  # by step
    ranks: dict[int, tuple[int, int]]  # DP rank and stage by global rank, where it is told
    left_out: tuple[str, ...]  # optypes that replay has no rule for

    @property
    def stages_count(self) -> int:
        """Pipeline stages, from 0 on."""
        return int(self.stages[-1]) + 1


@dataclass(frozen=True, slots=True)
class _Step:
    """The first step on the first DP rank: nodes by stage and optype, in the order of their starts;
    of each node its start, the chunk of its stage's model (-1: not told) and that chunk's
    position in the whole model."""

    trace: PhaseTrace
    nodes: dict[tuple[int, str], list[int]]
    starts: Times
    chunks: NDArray[np.int64]
    positions: NDArray[np.int64]
    stages: int

    def of(self, stage: int, *optypes: str) -> list[int]:
        """Nodes of a stage by their starts."""
        nodes = [node for one in optypes for node in self.nodes.get((stage, one), ())]
        return sorted(nodes, key=lambda node: self.starts[node])

    def refuse(self, stage: int, reason: str) -> NoReturn:
        """Raises TraceFormatError."""
        raise TraceFormatError(self.trace.path, f"stage {stage}", reason)


def phase_job(trace: PhaseTrace) -> PhaseJob:
    """The job that a trace is of. Raises TraceFormatError."""
    is_known = pl.col("optype").is_in(list(PHASES))
    left_out = trace.rows.filter(~is_known)["optype"].unique().sort().to_list()
    measured = (
        trace.rows.with_columns(end=pl.col("start_ts") + pl.col("duration"))
        .group_by("step")
        .agg((pl.col("end").max() - pl.col("start_ts").min()).alias("length"))
        .sort("step")["length"]
    )
    lengths = measured.to_numpy()
    shortest, longest = float(lengths.min()), float(lengths.max())
    if not 0 < shortest <= longest < _LONGEST_S:
        reason = f"a step takes {shortest if shortest <= 0 else longest:g} s: seconds are needed"
        raise TraceFormatError(trace.path, "duration", reason)
    rows = trace.rows.filter(is_known).sort(*_PLACE, "step", "dp_rank", "start_ts", "duration")
    counts = _counts(trace, rows)
    idle = _idle(rows)
    if idle.height:
        rows = rows.with_columns(_NTH).join(
            idle, on=idle.columns, how="anti", maintain_order="left"
        )
        counts = _counts(trace, rows)
    steps = tuple(trace.rows["step"].unique().sort())
    peers = tuple(trace.rows["dp_rank"].unique().sort())
    starts, durations = (_by_node(rows[name], counts, len(steps), len(peers))
                         for name in ("start_ts", "duration"))  # fmt: skip
    stages = np.repeat(counts["stage"].to_numpy(), counts["count"].to_numpy())
    optypes = np.repeat(counts["optype"].to_numpy(), counts["count"].to_numpy()).astype(str)
    first = _first_step(trace, rows, counts, len(steps) * len(peers), starts)
    waits_for, groups = _rules(first)
    try:
        job_graph = graph(len(stages), waits_for, groups)
    except Circular as error:
        at = error.nodes[0]
        reason = f"{len(error.nodes)} phases wait for each other, among them {optypes[at]}"
        first.refuse(int(stages[at]), f"{reason}: sends and receives do not come in the same order")
    own = _own(starts, durations, groups)
    return PhaseJob(
        job_graph, stages, optypes, steps, peers,
        np.concatenate([part.astype(np.float64) for part in own]),
        _ideal(counts, own), measured.to_numpy().astype(np.float64), _ranks(trace.rows),
        tuple(left_out),
    )  # fmt: skip


def _ranks(rows: pl.DataFrame) -> dict[int, tuple[int, int]]:
    if "rank" not in rows.columns:
        return {}
    workers = rows.select("rank", "dp_rank", "stage").unique().sort("rank")
    return {rank: (peer, stage) for rank, peer, stage in workers.iter_rows()}


def _counts(trace: PhaseTrace, rows: pl.DataFrame) -> pl.DataFrame:
    """Phases of a step by stage and optype, the same on all. Raises TraceFormatError."""
    if rows.is_empty():
        reason = f"none of them is one of replay: {', '.join(sorted(PHASES))}"
        raise TraceFormatError(trace.path, "optype", reason)
    stages = rows["stage"].unique().sort().to_list()
    if stages != [*range(len(stages))]:
        gone = next(one for one in range(len(stages)) if one not in stages)
        reason = f"there is none of stage {gone}: all stages from 0 to the last are needed"
        raise TraceFormatError(trace.path, "stage", reason)
    keys = ["step", "dp_rank", *_PLACE]
    # Sorted by all of these, equal rows are neighbours.
    is_again = [pl.col(one) == pl.col(one).shift(1) for one in (*keys, "start_ts", "duration")]
    twice = rows.filter(pl.all_horizontal(is_again) & (pl.col("duration") > 0))
    if twice.height:
        raise TraceFormatError(trace.path, place_of(twice.row(0, named=True)), "a row stands twice")
    counts = rows.group_by(keys).agg(pl.len().cast(pl.Int64).alias("count"))
    step, peer = trace.rows.select("step", "dp_rank").min().row(0)
    expected = counts.filter(step=step, dp_rank=peer).select(*_PLACE, "count")
    places = counts.select(_PLACE).unique()
    each = [trace.rows.select(one).unique() for one in ("step", "dp_rank")]
    if each[0].height * each[1].height * places.height > 4 * rows.height + 100_000:
        reason = (
            f"{each[0].height} steps of {each[1].height} DP ranks cannot all have the same phases"
        )
        raise TraceFormatError(trace.path, "rows", f"{rows.height} are too few: {reason}")
    if expected["count"].sum() > _NODES_AT_MOST:
        reason = f"more than {_NODES_AT_MOST:,} phases of one DP rank: too many to replay"
        raise TraceFormatError(trace.path, f"step {step}", reason)
    workers = each[0].join(each[1], how="cross")
    both = (
        workers.join(places, how="cross")
        .join(counts, on=keys, how="left")
        .join(expected, on=_PLACE, how="left", suffix="_expected")
        .with_columns(pl.col("count", "count_expected").fill_null(0))
    )
    wrong = both.filter(pl.col("count") != pl.col("count_expected")).sort(keys)
    if wrong.height:
        row = wrong.row(0, named=True)
        raise TraceFormatError(
            trace.path,
            place_of(row),
            f"{row['count']} phases, and {row['count_expected']} in step {step} of DP rank {peer}:"
            " all steps and DP ranks must have the same phases; leave out what was cut short",
        )
    return expected.sort(_PLACE)


def _idle(rows: pl.DataFrame) -> pl.DataFrame:
    """Sends before there is anything to send and receives after the last compute began, in the
    first step: stage, optype and number of what is left out."""
    first = rows.filter(step=rows["step"].min(), dp_rank=rows["dp_rank"].min())
    first = first.with_columns(_NTH, end=pl.col("start_ts") + pl.col("duration"))
    computes = first.filter(pl.col("optype").is_in([FORWARD, BACKWARD]))
    bounds = computes.group_by("stage").agg(
        first_end=pl.col("end").min(), last_start=pl.col("start_ts").max()
    )
    is_early = pl.col("optype").is_in(SENDS) & (pl.col("end") < pl.col("first_end") - _JITTER_S)
    is_late = pl.col("optype").is_in(RECEIVES) & (pl.col("start_ts") > pl.col("last_start"))
    return first.join(bounds, on="stage").filter(is_early | is_late).select(*_PLACE, "nth")


def _by_node(values: pl.Series, counts: pl.DataFrame, steps: int, peers: int) -> list[Times]:
    """Values of sorted rows by stage and optype: arrays of node, step and DP rank."""
    array = values.to_numpy()
    ends = np.cumsum(counts["count"].to_numpy()) * steps * peers
    parts = zip(np.split(array, ends[:-1]), counts["count"], strict=True)
    return [part.reshape(steps, peers, count).transpose(2, 0, 1) for part, count in parts]


def _first_step(
    trace: PhaseTrace,
    rows: pl.DataFrame,
    counts: pl.DataFrame,
    workers: int,
    starts: list[Times],
) -> _Step:
    stages = counts["stage"].n_unique()
    nodes: dict[tuple[int, str], list[int]] = {}
    chunks: list[NDArray[np.int64]] = []
    positions: list[NDArray[np.int64]] = []
    row = 0
    for stage, optype, count in counts.iter_rows():
        first = sum(len(one) for one in chunks)
        nodes[stage, optype] = [*range(first, first + count)]
        codes = rows[row : row + count].select(pl.col("mc", "gmc").fill_null(-1))
        chunks.append(codes["mc"].to_numpy())
        by_chunk = np.maximum(chunks[-1], 0) * stages + stage
        positions.append(np.where(codes["gmc"] < 0, by_chunk, codes["gmc"]))
        row += count * workers
    begins = [part[:, 0, 0].astype(np.float64) for part in starts]
    return _Step(
        trace, nodes, np.concatenate(begins), np.concatenate(chunks),
        np.concatenate(positions), stages,
    )  # fmt: skip


def _rules(step: _Step) -> tuple[dict[int, list[int]], list[Group]]:
    """What each node waits for, and what starts together."""
    waits_for: dict[int, list[int]] = defaultdict(list)
    for stage in range(step.stages):
        computes = step.of(stage, FORWARD, BACKWARD)
        if not computes:
            step.refuse(stage, "it has neither forward-compute nor backward-compute")
        _chain(waits_for, computes)
        _chain(waits_for, step.of(stage, GATHER, SCATTER))
        for optype in (*SENDS, *RECEIVES):
            _chain(waits_for, step.of(stage, optype))
        _pass_on(step, stage, waits_for)
        forwards = step.of(stage, FORWARD)
        for gather_node in step.of(stage, GATHER):
            own = [node for node in forwards if step.chunks[node] == step.chunks[gather_node]]
            for node in (own or forwards)[:1]:  # waits for the last: they are a chain
                waits_for[node].append(gather_node)
        _finish(step, stage, computes[-1], waits_for)
    over_dp = [node for stage in range(step.stages) for node in step.of(stage, GATHER, SCATTER)]
    return waits_for, [
        *_pairs(step),
        *(Group((node,), True) for node in over_dp),
        *(Group(nodes) for nodes in _together(step, EMBEDDING)),
        *(Group(nodes, True) for nodes in _together(step, CLIP)),
    ]


def _chain(waits_for: dict[int, list[int]], nodes: list[int]) -> None:
    for before, node in itertools.pairwise(nodes):
        waits_for[node].append(before)


def _pass_on(step: _Step, stage: int, waits_for: dict[int, list[int]]) -> None:
    """A send waits for what it sends; a receive waits for the compute before, and gates its own."""
    computes = step.of(stage, FORWARD, BACKWARD)
    backwards = {*step.of(stage, BACKWARD)}
    warm_up = [*itertools.takewhile(lambda node: node not in backwards, computes)]
    last_position = max(step.positions)
    for compute, send, receive, sends_not, receives_not in (
        (FORWARD, SENDS[0], RECEIVES[0], last_position, 0),
        (BACKWARD, SENDS[1], RECEIVES[1], 0, last_position),
    ):
        own = step.of(stage, compute)
        at = {node: place for place, node in enumerate(own)}
        for optype, end_of_model in ((send, sends_not), (receive, receives_not)):
            is_send = optype == send
            used = step.of(stage, optype)
            inner = [node for node in own if step.positions[node] != end_of_model]
            passing = own if len(used) == len(own) else inner
            if used and len(used) != len(passing):
                step.refuse(
                    stage,
                    f"{len(used)} {optype} for {len(own)} {compute}, of which {len(inner)} have"
                    " another stage to exchange with",
                )
            for node, computed in zip(used, passing, strict=False):
                if is_send:
                    waits_for[node].append(computed)
                    continue
                waits_for[node] += own[: at[computed]][-1:]
                waits_for[computed].append(node)
            if compute == BACKWARD and used:
                waits_for[used[0]] += warm_up[-2:-1]


def _finish(step: _Step, stage: int, last: int, waits_for: dict[int, list[int]]) -> None:
    """From the last compute to the optimizer, one after the other."""
    tail = [node for optype in _TAIL for node in step.of(stage, optype)]
    scatters, separate = step.of(stage, SCATTER), step.of(stage, SEPARATE)
    for node in separate:
        later = (at for at, one in enumerate(tail) if step.starts[one] > step.starts[node])
        tail.insert(next(later, len(tail)), node)
    if not separate:
        tail += scatters
    elif scatters:  # they need not wait for what stands between
        waits_for[scatters[0]] += step.of(stage, BACKWARD)[-1:]
    after = [*step.of(stage, CLIP), *step.of(stage, "optimizer")]
    _chain(waits_for, [last, *tail, *after])
    if scatters and after:
        waits_for[after[0]].append(scatters[-1])


def _pairs(step: _Step) -> list[Group]:
    """Each send with the receive of the same number on the stage that it goes to."""
    pairs = []
    for send, receive, way in zip(SENDS, RECEIVES, (1, -1), strict=True):
        for stage in range(step.stages):
            other = (stage + way) % step.stages
            sent, receipt = step.of(stage, send), step.of(other, receive)
            if len(sent) != len(receipt):
                reason = f"{len(sent)} {send} for {len(receipt)} {receive} on stage {other}"
                step.refuse(stage, reason)
            pairs += [Group(pair) for pair in zip(sent, receipt, strict=True)]
    return pairs


def _together(step: _Step, optype: str) -> list[tuple[int, ...]]:
    """What all stages that have it do together."""
    by_stage = {stage: step.of(stage, optype) for stage in range(step.stages)}
    having = {stage: nodes for stage, nodes in by_stage.items() if nodes}
    counts = {len(nodes) for nodes in having.values()}
    if len(counts) > 1:
        words = ", ".join(f"{len(nodes)} on stage {stage}" for stage, nodes in having.items())
        raise TraceFormatError(step.trace.path, optype, f"stages do not have as many: {words}")
    return [*zip(*having.values(), strict=True)]


def _own(starts: list[Times], durations: list[Times], groups: list[Group]) -> list[Times]:
    """Durations by optype of each stage: of what ends together, each one's transfer."""
    begins, lasting = np.concatenate(starts), np.concatenate(durations)
    for group in groups:
        nodes = [*group.nodes]
        latest = begins[nodes].max(axis=0)
        if group.is_over_peers:
            latest = latest.max(axis=-1, keepdims=True)
        transfer = begins[nodes] + lasting[nodes] - latest
        lasting[nodes] = np.where(transfer <= _LATE_CLOCK_S, 0, transfer)
    return np.split(lasting, np.cumsum([len(part) for part in starts])[:-1])


def _ideal(counts: pl.DataFrame, own: list[Times]) -> Times:
    """One value per optype over steps, stages and DP ranks: for each node that of its optype."""
    names = counts["optype"].to_list()
    values = {}
    for optype in dict.fromkeys(names):
        of_it = [part.ravel() for name, part in zip(names, own, strict=True) if name == optype]
        every = np.concatenate(of_it)
        # The median in the trace's own type, as published; a mean of that type would lose digits.
        values[optype] = (
            np.median(every) if optype in COMMUNICATION else every.mean(dtype=np.float64)
        )
    return np.repeat([float(values[name]) for name in names], counts["count"].to_numpy())
