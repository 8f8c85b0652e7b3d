"""Device operations of all ranks of a capture as arrays, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.store import store
from npuscope.errors import TraceNotFound
from npuscope.messages import Message

from ..memo import latest
from ..metric import sql_text
from .points import Flags, Indices, Integers

UNKNOWN = np.iinfo(np.int64).min  # a time that was not recorded
RECORD, WAIT, OTHER = 1, 2, 3  # tasks: of events between streams, and the rest
_ROLES = {None: 0, "record": RECORD, "wait": WAIT, "other": OTHER}
_EARLIEST_NS = -100_000  # an end before another member's start: clocks are not so far off
WITHIN = ("tp", "ep", "cp", "tp_cp", "tp_ep", "mp", "mp_ep", "pp")  # meet in every micro-batch
EXCHANGES = ("ep", "tp_ep", "mp_ep")  # of tokens with experts
_AT_ONCE = 500_000  # operations that the engine joins and sorts: of a thousand ranks it needs GB
_PARTS = """
    select min(rank) as first, max(rank) as last from (
        select rank, (sum(count) over (order by rank) - count) // $most as part
        from (
            select rank, count(*) as count from (
                select rank, run, capture from kernels
                union all select rank, run, capture from comm_ops
                union all select rank, run, capture from device_tasks
            ) where run = $run and capture = $capture group by rank
        )
    ) group by part order by part"""
_SYNCS = """
    select rank, start_ns, start_ns + dur_ns as end_ns from host_ops
    where kind = 'api' and name ilike 'aclrtSynchronize%' and dur_ns > 0
        and run = $run and capture = $capture order by rank, start_ns"""


@dataclass(frozen=True, slots=True)
class Operations:
    """Sorted by rank and start; times in ns since `zero_ns`, of a rank on the reference clock.

    `rank`, `step`, `stream`, `type` and `kind` are positions in lists of theirs; -1: none. Streams
    of different ranks are different. What ranks do together has one `instance`; kernels have -1.
    `launch` is UNKNOWN where none was recorded; of a task that is neither kernel nor communication
    `role` tells what it is, and its step is -1. An operation is `exogenous` where members were not
    captured, or it is not sure which operations of others are the same.
    """

    rank: Indices
    step: Indices
    start: Integers
    dur: Integers
    launch: Integers
    stream: Indices
    type: Indices
    kind: Indices
    instance: Indices
    exogenous: Flags
    is_stream_recorded: Flags
    role: NDArray[np.int8]
    ranks: list[int]
    steps: list[int | None]
    types: list[str]
    kinds: list[str]
    zero_ns: int = 0
    syncs: dict[int, Integers] = field(
        default_factory=dict
    )  # starts and ends by position of the rank
    names: pl.DataFrame = field(default_factory=pl.DataFrame)  # name, core, shapes, ...

    @property
    def is_communication(self) -> Flags:
        result: Flags = self.instance >= 0
        return result

    @property
    def is_kernel(self) -> Flags:
        result: Flags = (self.instance < 0) & (self.role == 0)
        return result

    @property
    def lane(self) -> Integers:
        """Rank and step as one number; what is in no step comes before the steps of its rank."""
        result: Integers = self.rank.astype(np.int64) * (len(self.steps) + 1) + self.step + 1
        return result

    @property
    def is_followed(self) -> Flags:
        """Of steps: whether the one with the next number was captured, too. What was not captured
        between two steps is no part of either."""
        follows = [one is not None and other == one + 1 for one, other in pairwise(self.steps)]
        return np.array([*follows, False])

    @property
    def has_launches(self) -> bool:
        return bool((self.launch != UNKNOWN).any())


@latest
def read_operations(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> Operations:
    """Of a capture whose ranks were compared. Raises TraceNotFound where there are none."""
    parameters = {"run": run, "capture": capture}
    query = sql_text("device_operations.sql")
    parts = rank_parts(con, run, capture)
    frames = [store.frame(con.sql(query, params=parameters | part)) for part in parts]
    rows = pl.concat(frames) if frames else pl.DataFrame()
    if rows.is_empty():
        raise TraceNotFound(
            Message(
                "{capture}: no kernels or operations with times: nothing to replay",
                capture=capture,
            )
        )
    zero_ns = int(rows.select(pl.col("start_ns").min()).item() or 0)
    launch = rows["launch_ns"].fill_null(UNKNOWN + zero_ns).to_numpy() - zero_ns
    is_communication = rows["is_communication"].to_numpy()
    recorded = rows["stream_id"].is_not_null().to_numpy()
    lane = pl.coalesce(pl.col("stream_id").cast(pl.String), "group_hash", pl.lit("?"))
    alone = (
        pl.when(pl.col("instance").is_not_null())
        .then(pl.col("instance"))
        .otherwise(-1 - pl.int_range(pl.len()))
    )
    codes = rows.select(
        stream=pl.struct("rank", lane).rank("dense") - 1,
        instance=pl.when("is_communication").then(alone),
    )
    instance = codes["instance"].rank("dense").fill_null(0).to_numpy().astype(np.int32) - 1
    # A member of whom only HCCL's times are known has no operations that could change.
    members = np.bincount(instance + 1)[instance + 1]
    rank_count = rows["rank_count"].fill_null(0).to_numpy()
    is_whole = rows["is_complete"].to_numpy() & (rank_count == members)
    exogenous = is_communication & ~is_whole & (rows["group_size"].fill_null(2).to_numpy() > 1)
    ends = (rows["start_ns"] + rows["dur_ns"]).to_numpy() - zero_ns
    instance = _apart(instance, rows["start_ns"].to_numpy() - zero_ns, ends, exogenous)
    rank, ranks = _codes(rows["rank"])
    step, steps = _codes(rows["step"])
    kinds = rows.select(pl.when("is_communication").then(pl.col("kind").fill_null("unknown")))
    type_, types = _codes(rows["type"].fill_null("?"))
    kind, kind_names = _codes(kinds.to_series())
    if not steps:
        step, steps = np.zeros(len(rank), np.int32), [None]
    role = rows["role"].replace_strict(_ROLES, return_dtype=pl.Int8).to_numpy()
    step[role > 0] = -1
    syncs = {}
    for (one,), part in (
        store.frame(con.sql(_SYNCS, params=parameters)).partition_by("rank", as_dict=True).items()
    ):
        own = rows.filter(rank=one)
        if own.height:
            shift = own["recorded_ns"] - own["start_ns"]
            times = part.select("start_ns", "end_ns").to_numpy().T
            ahead = np.interp(times, own["recorded_ns"].to_numpy(), shift.to_numpy())
            syncs[ranks.index(one)] = times - np.round(ahead).astype(np.int64) - zero_ns
    return Operations(
        rank, step, rows["start_ns"].to_numpy() - zero_ns, rows["dur_ns"].to_numpy().copy(),
        launch, codes["stream"].to_numpy().astype(np.int32), type_, kind, instance,
        exogenous, recorded, role,
        ranks, steps, types, kind_names, zero_ns, syncs,
        rows.select("name", "core", "shapes", "op_id", "size_bytes", "connection_id"),
    )  # fmt: skip


@latest
def rank_parts(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> list[dict[str, int]]:
    """The ranks of a capture that run operations, so many at a time as can be joined in memory:
    `first` and `last` of each part."""
    parameters = {"run": run, "capture": capture, "most": _AT_ONCE}
    return store.frame(con.sql(_PARTS, params=parameters)).to_dicts()


def programs(ops: Operations) -> list[Integers]:
    """Ranks that run the same kernels in the same order: of each such program the kernels as
    positions [ranks, kernels]."""
    order = np.flatnonzero(ops.is_kernel)
    order = order[np.lexsort((ops.start[order], ops.stream[order], ops.rank[order]))]
    firsts = np.searchsorted(ops.rank[order], np.arange(len(ops.ranks) + 1))
    alike: dict[tuple[bytes, bytes], list[Integers]] = {}
    for low, high in pairwise(firsts.tolist()):
        its = order[low:high]
        alike.setdefault((ops.type[its].tobytes(), ops.step[its].tobytes()), []).append(its)
    return [np.stack(one) for one in alike.values()]


def _apart(instance: Indices, start: Integers, end: Integers, exogenous: Flags) -> Indices:
    """Instances, but what ends long before another member starts is not that one's."""
    is_comm = instance >= 0
    if not is_comm.any():
        return instance
    met = np.full(int(instance.max(initial=-1)) + 1, UNKNOWN)
    np.maximum.at(met, instance[is_comm], start[is_comm])
    wrong = np.zeros(len(met), bool)
    wrong[instance[is_comm & (end - met[instance] < _EARLIEST_NS)]] = True
    alone = is_comm & wrong[instance]
    exogenous |= alone
    numbers = np.where(alone, len(met) + np.cumsum(alone), instance)
    _, dense = np.unique(numbers[is_comm], return_inverse=True)
    numbers[is_comm] = dense
    return numbers.astype(np.int32)


def _codes(values: pl.Series) -> tuple[NDArray[np.int32], list[Any]]:
    """Positions in the sorted list of distinct values; -1 where there is none."""
    names = values.drop_nulls().unique().sort()
    codes = values.rank("dense").fill_null(0).to_numpy().astype(np.int32) - 1
    return codes, names.to_list()


def replicas(ops: Operations) -> Indices:
    """Of each rank the first of those that it meets in every micro-batch, at once or by others."""
    within = [at for at, name in enumerate(ops.kinds) if name in WITHIN]
    at = np.flatnonzero(ops.is_communication & np.isin(ops.kind, within))
    rank, instance = ops.rank[at], ops.instance[at]
    result = np.arange(len(ops.ranks), dtype=np.int32)
    while True:
        least = np.full(int(instance.max(initial=-1)) + 1, len(result), np.int32)
        np.minimum.at(least, instance, result[rank])
        new = result.copy()
        np.minimum.at(new, rank, least[instance])
        if (new == result).all():
            return result
        result = new
