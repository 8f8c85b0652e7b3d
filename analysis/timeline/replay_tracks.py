"""What a replay tells over time: the critical path over all ranks, steps with changes, slack.

Each is computed when it is asked for: a replay looks at all operations of all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ..replay.capture_what_if import whatif_steps
from ..replay.captures import CaptureJob, capture_job
from ..replay.changes import parse_change
from ..replay.critical_path import critical_path_pieces
from ..replay.slack import slacks
from ..scope import Scope
from .rank_events import Labels, RankEvents, in_rows
from .shared_axis import Extent
from .tiles import DrawnRank, drawn_rank

# A replay of more takes minutes and gigabytes: not beside pages.
MOST_OPERATIONS = 3_000_000
# By position the class of what is on the path.
PARTS = (
    "computing", "communication", "exogenous", "task", "host", "launch", "overhead", "gap",
)  # fmt: skip
_COUNTS = """
    select (select count(*) from kernels where {place})
        + (select count(*) from comm_ops where {place})"""
_NAMES = """
    select name, cast(connection_id as varchar) from {table}
    where {place} and rank = ? and start_ns = ? and dur_ns = ? limit 1"""
_TABLES = {"stream": "kernels", "group": "comm_ops"}


@dataclass(frozen=True, slots=True)
class ReplayTracks:
    """The critical path as a track, and the slack of each operation: rank, name, connection,
    start_ns on the reference clock, dur_ns, slack_ns (NULL: nothing waits for it)."""

    path: DrawnRank
    slack: pl.DataFrame

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        return self.path.nbytes + int(self.slack.estimated_size())


def replay_capture(con: duckdb.DuckDBPyConnection, at: Extent) -> ReplayTracks:
    """What the replay of a capture tells. `con` has all ranks compared.

    Raises CannotAnswer where there is too much to replay beside pages, TraceNotFound where there is
    nothing.
    """
    job = _job(con, at)
    ops, slack = job.ops, slacks(job)
    rows = pl.DataFrame({
        "rank": pl.Series(ops.ranks, dtype=pl.Int32).gather(ops.rank),
        "name": ops.names["name"], "connection": ops.names["connection_id"].cast(pl.String),
        "start_ns": ops.start + ops.zero_ns, "dur_ns": ops.dur,
        "slack_ns": pl.Series(np.where(slack > 2**60, -1, slack)),
    }).with_columns(pl.col("slack_ns").replace(-1, None))  # fmt: skip
    return ReplayTracks(drawn_rank(_path(job, at)), rows)


def _job(con: duckdb.DuckDBPyConnection, at: Extent) -> CaptureJob:
    ((count,),) = con.execute(_COUNTS.format(place=at.place)).fetchall()
    if count > MOST_OPERATIONS:
        raise CannotAnswer(
            Message(
                "{count} operations are too many to replay beside a page: npuscope critical-path",
                count=f"{count:,}",
            )
        )
    return capture_job(con, Scope(at.run, at.capture))


def _path(job: CaptureJob, at: Extent) -> RankEvents:
    """Pieces of the critical path as events of one track; what takes time back is not drawn."""
    pieces = critical_path_pieces(job).filter(pl.col("dur_ns") > 0)
    parts = {part: position for position, part in enumerate(PARTS)}
    return in_rows(
        pieces.select(
            pl.lit("path").alias("kind"), pl.lit("").alias("key"),
            pl.format("{} · {}", "rank", pl.coalesce("type", "part")).alias("name"),
            pl.col("part").replace_strict(parts, return_dtype=pl.UInt8).alias("class"),
            pl.col("start_ns") - at.zero_ns, "dur_ns",
        ),
        {("path", ""): ("critical path", None, ())}, ("path",), is_nested=False,
    )  # fmt: skip


def whatif_track(con: duckdb.DuckDBPyConnection, at: Extent, words: Sequence[str]) -> DrawnRank:
    """Steps as measured, each where it was, and as predicted with changes, one after the other from
    where the first one began. Raises as `npuscope whatif` does, and CannotAnswer."""
    job = _job(con, at)
    steps = whatif_steps(con, job, [parse_change(word) for word in words])[:-1]
    span = job.measured
    begins = np.where(span.is_there, span.starts, np.iinfo(np.int64).min).max(axis=1)
    begins = begins + job.ops.zero_ns - at.zero_ns
    predicted = steps["predicted_step_ns"].to_numpy()
    later = begins[0] + np.cumsum(predicted) - predicted
    names = steps["step"].cast(pl.String).fill_null("-")
    sides = [
        pl.DataFrame({
            "kind": ["whatif"] * steps.height, "key": [key] * steps.height, "name": names,
            "class": pl.Series([class_] * steps.height, dtype=pl.UInt8),
            "start_ns": pl.Series(starts, dtype=pl.Int64), "dur_ns": steps[column],
        })
        for key, class_, starts, column in (
            ("0", 0, begins, "measured_step_ns"), ("1", 1, later, "predicted_step_ns")
        )
    ]  # fmt: skip
    labels: Labels = {
        ("whatif", "0"): ("measured", None, ()),
        ("whatif", "1"): ("predicted", None, ()),
    }
    return drawn_rank(in_rows(pl.concat(sides), labels, ("whatif",), is_nested=False))


def slack_of(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    tracks: ReplayTracks,
    rank: int,
    kind: str,
    start_ns: int,
    dur_ns: int,
) -> int | None:
    """The slack of the operation of a `kind` of track that starts and lasts so, `start_ns` as
    `event_details` has it. Raises CannotAnswer where a replay knows none."""
    shown_ns, own_ns = start_ns + at.zero_ns, start_ns + at.zero_of_ns(rank)
    query = _NAMES.format(table=_TABLES[kind], place=at.place)
    named = con.execute(query, [rank, own_ns, dur_ns]).fetchall()
    alike = tracks.slack.filter(pl.col("rank") == rank, pl.col("dur_ns") == dur_ns)
    if not named:
        raise CannotAnswer(Message("no such operation was recorded"))
    for column, value in zip(("name", "connection"), named[0], strict=True):
        if value is not None:
            alike = alike.filter(pl.col(column) == value)
    if alike.is_empty():
        raise CannotAnswer(Message("the replay leaves this operation out"))
    nearest = alike.sort((pl.col("start_ns") - shown_ns).abs())
    slack: int | None = nearest["slack_ns"][0]
    if slack is None:
        raise CannotAnswer(Message("nothing in the capture waits for this operation"))
    return slack
