"""The passes of a capture's pipeline as they ran, recognised without instrumentation.

device operations on one clock --> directions of kernels --> cuts on each rank --> order that fits

    stage 0   F0 F1 F2 ........ B0 F3 B1 ...
    stage 1      F0 F1 .... B0 F2 B1 ...
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from ..means import of_training
from ..memo import latest
from ..ranks.stages import rank_stages
from ..replay.beside import cover_of
from ..replay.operations import UNKNOWN, Operations, rank_parts, read_operations
from ..replay.points import Integers
from .cuts import cut
from .directions import operators, with_directions
from .recognition import NamedSchedule, name_schedule, word

TRANSFERS = ("send", "receive", "recv", "batchsendrecv")
_LAUNCHES = 0.95  # of a rank's kernels and transfers, from which on the program's order is known
_BESIDE = 0.3  # of the shorter of two passes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A capture's pipeline: its passes (`passes`), and the schedule by its name and sizes.

    stages: of the whole job, of which `present` were captured. basis: what tells directions.
    work: of kernels and communication in the order of their program: at (position in `ops`), lane,
    direction (F, B, W), piece (which of the lane's passes of that direction; NULL: none); of all
    steps. passes, lanes: of the steps that means of training are over.
    """

    run: str
    capture: str
    passes: pl.DataFrame
    schedule: NamedSchedule
    stages: int
    present: tuple[int, ...]
    basis: str
    ops: Operations
    work: pl.DataFrame
    lanes: pl.DataFrame


@latest
def pipeline(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, *, known: Operations | None = None
) -> Pipeline:
    """The passes with the schedule that they make.

    `con` has all ranks of the capture compared (`ranks.rank_views.open_across`). `known`: its
    operations, where they were read. Of the passes there is one row for each that is recognised, by
    rank, step and start; none where none is:

        run, capture     varchar  of the capture
        step             bigint   the producer's; NULL: it has none
        rank             integer  global rank
        stage            integer  pipeline stage (device of the pipeline, 0 the first)
        chunk            integer  which of the stage's chunks of the model, 0 the first on the way
                                  forward (as `schedules.Pass.chunk`); NULL: not sure
        micro_batch      integer  from 0 in each step, as `schedules.Pass.micro_batch`; NULL: not
                                  sure
        kind             varchar  F, B (gradient of inputs alone), W (of weights alone), BW (both in
                                  one), as `schedules.Kind`
        start_ns         bigint   start of its first kernel on the compute stream, on the clock of
                                  the reference host
        end_ns           bigint   end of its last one
        before_ns        bigint   end of the kernels that its rank began before it, of whichever
                                  step; NULL: none
        compute_ns       bigint   of that, some compute kernel of the rank ran (of passes beside
                                  each other: kernels of their own)
        exposed_comm_ns  bigint   of that, communication without any compute kernel, transfers of
                                  the pipeline not counted
        confidence       varchar  high, medium, low: as sure as directions, cuts and numbers are

    Two passes of a rank overlap only where they ran beside each other. Raises TraceNotFound where
    the capture has no kernels.
    """
    ops = known or read_operations(con, run, capture)
    stage_of = rank_stages(con, run, capture)
    lanes = _lanes(ops, stage_of)
    kernels = _kernels(con, run, capture, ops)
    transfers = _transfers(ops)
    kernels, transfers = _in_order(kernels, transfers)
    kernels = with_directions(kernels)
    main_kernels = cut(kernels, transfers, lanes)
    lanes = of_training(con, lanes.with_columns(run=pl.lit(run), capture=pl.lit(capture)))
    lanes = lanes.drop("run", "capture").sort("lane")
    pieces = _pieces(main_kernels)
    bases = {*kernels["basis"].unique().to_list()}
    basis = next(one for one in ("marks", "operators", "names") if one in bases or one == "names")
    stages = job_stages(con, run, capture)
    rows, named = _with_numbers(pieces, lanes, stages, is_sure=basis != "names")
    timed = _times(ops, rows, named).with_columns(run=pl.lit(run), capture=pl.lit(capture))
    table = timed.select(_TYPES.names()).cast(_TYPES)
    stages_of_table = tuple(sorted(set(table["stage"].drop_nulls().to_list())))
    work = _work(ops, kernels, main_kernels)
    return Pipeline(run, capture, table, named, stages, stages_of_table, basis, ops, work, lanes)


_TYPES = pl.Schema({
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "rank": pl.Int32, "stage": pl.Int32,
    "chunk": pl.Int32, "micro_batch": pl.Int32, "kind": pl.String, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "before_ns": pl.Int64, "compute_ns": pl.Int64, "exposed_comm_ns": pl.Int64,
    "confidence": pl.String,
})  # fmt: skip


def job_stages(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> int:
    """How many stages the job has: as many as recorded, and as its captured ranks are on."""
    query = "select coalesce(max(pp_size), 1) from ranks where run = ? and capture = ?"
    ((size,),) = con.execute(query, [run, capture]).fetchall()
    return max([int(size), *(stage + 1 for stage in rank_stages(con, run, capture).values())])


def _lanes(ops: Operations, stage_of: dict[int, int]) -> pl.DataFrame:
    """A lane is a rank in a step: lane, rank, step, stage (0 where there is one stage alone)."""
    steps = len(ops.steps)
    places = [(at * (steps + 1) + step + 1, rank, ops.steps[step] if step >= 0 else None,
               stage_of.get(rank, None if stage_of else 0))
              for at, rank in enumerate(ops.ranks) for step in range(-1, steps)]  # fmt: skip
    schema = {"lane": pl.Int64, "rank": pl.Int32, "step": pl.Int64, "stage": pl.Int32}
    return pl.DataFrame(places, schema=schema, orient="row")


def _kernels(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, ops: Operations
) -> pl.DataFrame:
    types = pl.Series(ops.types, dtype=pl.String)
    frame = pl.DataFrame({
        "at": np.arange(len(ops.rank)), "lane": ops.lane,
        "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank],
        "start": ops.start, "dur": ops.dur, "launch": ops.launch, "stream": ops.stream,
        "type": types[ops.type],
    }).with_columns(ops.names.select("name", "core", "shapes", "connection_id"))  # fmt: skip
    frame = frame.filter(pl.Series(~ops.is_communication & (ops.step >= _first(ops))))
    key = ["rank", "connection_id"]
    return pl.concat(
        frame.filter(pl.col("rank").is_between(part["first"], part["last"]))
        .join(operators(con, run, capture, part), on=key, how="left")
        .drop("connection_id")
        for part in rank_parts(con, run, capture)
    )


def _first(ops: Operations) -> int:
    """The least step that counts: what lies outside of steps only where there are none."""
    return -1 if ops.steps == [None] else 0


def _transfers(ops: Operations) -> pl.DataFrame:
    at = transfers_of(ops)
    kinds = pl.Series([ops.types[one].lower() for one in ops.type[at]], dtype=pl.String)
    return pl.DataFrame({
        "lane": ops.lane[at], "start": ops.start[at], "end": ops.start[at] + ops.dur[at],
        "launch": ops.launch[at], "type": kinds,
    })  # fmt: skip


def transfers_of(ops: Operations) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Positions of transfers between stages."""
    types = [at for at, name in enumerate(ops.types) if name.lower() in TRANSFERS]
    kinds = [at for at, name in enumerate(ops.kinds) if name == "pp"]
    return np.flatnonzero(
        ops.is_communication & np.isin(ops.type, types) & np.isin(ops.kind, kinds)
    )


def _in_order(kernels: pl.DataFrame, transfers: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both with `order`: when the program launched them, where that is known for a lane; else
    starts of kernels and sends and ends of receives."""
    both = pl.concat([kernels.select("lane", "launch"), transfers.select("lane", "launch")])
    lanes_with_launches = both.group_by("lane").agg(
        is_launched=(pl.col("launch") != UNKNOWN).mean() >= _LAUNCHES
    )
    launched = pl.col("is_launched") & (pl.col("launch") != UNKNOWN)
    kernels = kernels.join(lanes_with_launches, on="lane", how="left").with_columns(
        order=pl.when(launched).then("launch").otherwise("start")
    )
    transfers = transfers.join(lanes_with_launches, on="lane", how="left")
    sends = transfers.filter(
        pl.col("is_launched") | pl.col("type").is_in(["send", "batchsendrecv"])
    )
    receives = transfers.filter(~pl.col("is_launched") & (pl.col("type") != "send"))
    marks = pl.concat([
        sends.select("lane", order=pl.when(launched).then("launch").otherwise("start")),
        receives.select("lane", order=pl.col("end")),
    ])  # fmt: skip
    return kernels, marks


def _work(ops: Operations, kernels: pl.DataFrame, main_kernels: pl.DataFrame) -> pl.DataFrame:
    """As `Pipeline.work`: an operation is of the pass whose kernel the program launched before it
    (where that is not known: whose kernel began before it)."""
    own = kernels.join(main_kernels.select("at", "piece"), on="at", how="left").sort("lane", "row")
    own = own.with_columns(pl.col("piece").forward_fill().over("lane", "direction"))
    is_launched = own.group_by("lane").agg(pl.col("is_launched").first())
    comm = np.flatnonzero(ops.is_communication)
    others = pl.DataFrame({"at": comm, "lane": ops.lane[comm], "start": ops.start[comm],
                           "launch": ops.launch[comm]}).join(is_launched, on="lane")  # fmt: skip
    is_known = pl.col("is_launched") & (pl.col("launch") != UNKNOWN)
    others = others.with_columns(order=pl.when(is_known).then("launch").otherwise("start"))
    names = ["at", "lane", "order", "direction", "piece"]
    rows = others.sort("order").join_asof(
        own.select("lane", "order", "direction", "piece").sort("order"),
        on="order", by="lane", strategy="backward", check_sortedness=False,
    )  # fmt: skip
    both = pl.concat([own.select(names), rows.select(names)])
    return both.sort("lane", "order", maintain_order=True).drop("order")


def _pieces(kernels: pl.DataFrame) -> pl.DataFrame:
    """A row for each: lane, direction, piece, start, end, busy (of its kernels), kernels, weights
    (products for weights in it), embeddings, and the sequence numbers of its operators."""
    end = pl.col("start") + pl.col("dur")
    return kernels.group_by("lane", "direction", "piece", maintain_order=True).agg(
        start=pl.col("start").min(), end=end.max(), busy=pl.col("dur").sum(),
        weights=pl.col("is_weight").sum(), sequences=pl.col("sequence").drop_nulls().unique(),
    ).sort("lane", "start")  # fmt: skip


def _with_numbers(
    pieces: pl.DataFrame, lanes: pl.DataFrame, stages: int, *, is_sure: bool
) -> tuple[pl.DataFrame, NamedSchedule]:
    """Pieces with kind, chunk, micro_batch, confidence, rank, step and stage; and the schedule."""
    has_weights = pl.col("direction").eq("W").any().over("lane")
    kind = (
        pl.when(pl.col("direction") != "B")
        .then("direction")
        .when(has_weights & (pl.col("weights") == 0))
        .then(pl.lit("B"))
        .otherwise(pl.lit("BW"))
    )
    rows = _with_pairs(pieces.with_columns(kind=kind).join(lanes, on="lane"))
    words: dict[int, dict[str, int]] = {}
    own: dict[int, str] = {}
    for (lane, stage), part in rows.group_by(["lane", "stage"], maintain_order=True):
        letters = word(list(zip(part["kind"].to_list(), part["is_beside"].to_list(), strict=True)))
        own[lane] = letters
        if stage is not None:
            words.setdefault(stage, {}).setdefault(letters, 0)
            words[stage][letters] += 1
    usual = {
        stage: max(counts, key=lambda one: (counts[one], one)) for stage, counts in words.items()
    }
    named = name_schedule(usual, stages, is_sure=is_sure)
    numbers = []
    for (lane, stage), part in rows.group_by(["lane", "stage"], maintain_order=True):
        numbers += _numbers(own[lane], stage, named, part["kind"].to_list())
    schema = {"chunk": pl.Int32, "micro_batch": pl.Int32, "is_in_order": pl.Boolean}
    return (
        pl.concat([rows, pl.DataFrame(numbers, schema=schema, orient="row")], how="horizontal"),
        named,
    )


def _with_pairs(passes: pl.DataFrame) -> pl.DataFrame:
    """With `is_beside`; of two beside each other the forward first."""
    forward = passes.filter(kind="F").select("lane", "start", "end", at=pl.col("piece"))
    others = passes.filter(pl.col("kind") == "BW").select(
        "lane", pl.col("start").alias("other_start"), pl.col("end").alias("other_end"),
        other=pl.col("piece"),
    )  # fmt: skip
    # The backward that began last before a forward's end is the one it may run beside.
    near = forward.sort("end").join_asof(
        others.sort("other_start"), left_on="end", right_on="other_start", by="lane",
        check_sortedness=False,
    )  # fmt: skip
    both = pl.min_horizontal("end", "other_end") - pl.max_horizontal("start", "other_start")
    shorter = pl.min_horizontal(
        pl.col("end") - pl.col("start"), pl.col("other_end") - pl.col("other_start")
    )
    near = near.filter((both > _BESIDE * shorter) & pl.col("other").is_not_null())
    forwards = near.select("lane", kind=pl.lit("F"), piece="at", is_beside=pl.lit(value=True),
                           together=pl.min_horizontal("start", "other_start"))  # fmt: skip
    backwards = near.select("lane", kind=pl.lit("BW"), piece="other", is_beside=pl.lit(value=True),
                            together=pl.min_horizontal("start", "other_start"))  # fmt: skip
    passes = passes.join(
        pl.concat([forwards, backwards]).unique(["lane", "kind", "piece"], maintain_order=True),
        on=["lane", "kind", "piece"], how="left",
    )  # fmt: skip
    return (
        passes.with_columns(
            pl.col("is_beside").fill_null(value=False),
            pl.col("together").fill_null(pl.col("start")),
        )
        .sort("lane", "together", pl.col("kind") != "F", "start", maintain_order=True)
        .drop("together")
    )


def _numbers(
    letters: str, stage: int | None, named: NamedSchedule, kinds: list[str]
) -> list[tuple[int | None, int | None, bool]]:
    """Of a lane's passes: chunk, micro-batch, and whether they are as in the schedule's order."""
    if named.order is not None and stage is not None and stage < len(named.order.orders):
        expected = [one for entry in named.order.orders[stage] for one in entry]
        if word([(one.kind, len(entry) > 1) for entry in named.order.orders[stage]
                 for one in entry]) == letters:  # fmt: skip
            return [(one.chunk, one.micro_batch, True) for one in expected]
    is_simple = named.chunks in (1, None)
    counts: dict[str, int] = {}
    numbers: list[tuple[int | None, int | None, bool]] = []
    for kind in kinds:
        at = counts[kind[0]] = counts.get(kind[0], -1) + 1
        numbers.append((0, at, False) if is_simple else (None, None, False))
    return numbers


def _times(ops: Operations, passes: pl.DataFrame, named: NamedSchedule) -> pl.DataFrame:
    """With times on the clock, what was busy in them, and how sure a pass is."""
    steps = len(ops.steps) + 1
    rank = (passes["lane"].to_numpy() // steps).astype(np.int32)
    start, end = passes["start"].to_numpy(), passes["end"].to_numpy()
    kernels = ~ops.is_communication
    others = ops.is_communication.copy()
    others[transfers_of(ops)] = False

    def within(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pl.Series:
        union = cover_of(ops.rank[mask], ops.start[mask], (ops.start + ops.dur)[mask])
        return pl.Series(union.within(rank, start, end))

    computing, busy = within(kernels), within(kernels | others)
    sure = {"high": "high", "medium": "medium"}.get(named.confidence, "low")
    return passes.with_columns(
        start_ns=pl.col("start") + ops.zero_ns,
        end_ns=pl.col("end") + ops.zero_ns,
        before_ns=_ends_before(ops, rank.astype(np.int64), start) + ops.zero_ns,
        compute_ns=pl.when("is_beside").then("busy").otherwise(computing),
        exposed_comm_ns=busy - computing,
        confidence=pl.when("is_in_order").then(pl.lit(sure)).otherwise(pl.lit("low")),
    ).sort("rank", "step", "start_ns", maintain_order=True)


def _ends_before(ops: Operations, rank: Integers, start: Integers) -> pl.Series:
    """The latest end of the kernels that a rank had begun before a time; NULL where it had none."""
    at = np.flatnonzero(ops.is_kernel)  # by rank and start they are
    begin, end = ops.start[at], (ops.start + ops.dur)[at]
    zero = int(begin.min(initial=0))
    span = int(end.max(initial=0)) - zero + 1
    latest = np.maximum.accumulate(ops.rank[at] * np.int64(span) + end - zero)
    before = np.searchsorted(
        ops.rank[at] * np.int64(span) + begin - zero, rank * span + start - zero
    )
    ends = pl.Series(latest)[np.maximum(before - 1, 0)] - pl.Series(rank * span) + zero
    had_begun = pl.Series((before > 0) & (ops.rank[at[np.maximum(before - 1, 0)]] == rank))
    return pl.select(pl.when(had_begun).then(ends)).to_series()
