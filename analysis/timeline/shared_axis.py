"""Where ranks stand on the axis of time that all of them share.

Instants are shown on the reference host's clock where all ranks together tell how far each clock
is ahead (the metric `clocks`); where nothing tells, as each rank recorded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.collector.literals import sql_literal
from npuscope.messages import Message

from ..views import frame, has_view, open_views
from ..wording import ranks_named, us

_CLOCKS = """
    select unnest(ranks) as rank, offset_ns, coalesce(drift_ppm, 0) / 1e6 as drift, reference_ns,
        error_ns, basis
    from clocks where run = ? and capture = ?"""
_EXTENTS = """
    select rank, min(level) as finest, max(level) as coarsest,
        min(start_ns) as first_ns, max(end_ns) as last_ns,
        bool_or(computing_ns is not null) as knows_compute,
        bool_or(communication_ns is not null) as knows_ops,
        bool_or(free_ns is not null) as knows_all
    from timeline_bins where {place} group by rank order by rank"""
_STEPS = """
    select step, min(start_ns) as start_ns, max(end_ns) as end_ns
    from (
        select s.step, s.start_ns - coalesce(c.ahead_ns, 0) as start_ns,
            s.end_ns - coalesce(c.ahead_ns, 0) as end_ns
        from step_summary as s left join {ahead} as c on c.rank = s.rank
        where s.run = ? and s.capture = ? and s.step is not null
    )
    where start_ns is not null
    group by step order by start_ns, step"""


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is of a capture over time.

    ranks: a row per rank with bins: `rank`, levels `finest` to `coarsest`, `first_ns` and `last_ns`
    (first start and last end of its kernels and operations, as recorded), `ahead_ns`, how far its
    clock is ahead of the one that is shown, and whether computing (`knows_compute`), communication
    (`knows_ops`) and what needs both (`knows_all`) are known. place: the condition on run and
    capture in SQL. notes: how ranks stand to each other.
    """

    run: str
    capture: str
    place: str
    ranks: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """From the first start of any rank to the last end; None where there is none."""
        if self.ranks.is_empty():
            return None
        ahead = self.ranks["ahead_ns"]
        first, last = self.ranks["first_ns"] - ahead, self.ranks["last_ns"] - ahead
        return int(first.to_list()[first.arg_min() or 0]), int(last.to_list()[last.arg_max() or 0])

    @property
    def zero_ns(self) -> int:
        """The capture's first moment on the shown clock; 0 where there is none."""
        return self.window_ns[0] if self.window_ns else 0

    def zero_of_ns(self, rank: int) -> int:
        """The same moment on a rank's own clock."""
        return self.zero_ns + int(dict(self.ranks["rank", "ahead_ns"].rows()).get(rank, 0))

    def of(self, ranks: Sequence[int] | None) -> pl.DataFrame:
        """Rows of some ranks, or of all."""
        return self.ranks if ranks is None else self.ranks.filter(pl.col("rank").is_in(list(ranks)))


def extent(con: duckdb.DuckDBPyConnection, *, run: str, capture: str) -> Extent:
    """From where to where each rank of a capture has bins, and on which clock.

    Looks at all bins once: to be kept for as long as the store does not change.
    """
    open_views(con, ("timeline_bins",))
    place = _place(con, run, capture)
    ranks = frame(con, _EXTENTS.format(place=place))
    extent_ns = _clocks(con, run, capture)
    if extent_ns is None:
        ahead = ranks.with_columns(ahead_ns=pl.lit(0, pl.Int64))
        return Extent(run, capture, place, ahead, _clock_notes(con, run, capture))
    pairs = ranks.join(extent_ns, on="rank", how="left")
    middle_ns = (pl.col("first_ns") + pl.col("last_ns")) // 2
    # As in arrivals.sql, at the middle of the rank's time.
    apart_ns = (middle_ns - pl.col("reference_ns") - pl.col("offset_ns")).cast(pl.Float64)
    drifted_ns = pl.col("drift") * apart_ns / (1 + pl.col("drift"))
    ahead_ns = pl.col("offset_ns") + drifted_ns.round().cast(pl.Int64)
    rows = pairs.with_columns(ahead_ns=ahead_ns.fill_null(0)).select(*ranks.columns, "ahead_ns")
    return Extent(run, capture, place, rows, _alignment_notes(pairs))


def _place(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> str:
    """Comparing names of millions of bins takes as long as all else: not where there is one."""
    if len(con.execute("select distinct run, capture from ranks limit 2").fetchall()) == 1:
        return "true"
    return f"run = {sql_literal(run)} and capture = {sql_literal(capture)}"


def _clocks(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> pl.DataFrame | None:
    """A row per rank with its clock; None where ranks were not compared."""
    if not has_view(con, "clocks"):
        return None
    clocks = frame(con, _CLOCKS, [run, capture])
    return clocks if clocks.height else None


def _clock_notes(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> tuple[str, ...]:
    rows = con.execute(
        "select distinct clock from ranks where run = ? and capture = ?", [run, capture]
    ).fetchall()
    if {clock for (clock,) in rows} <= {"epoch"}:
        return ("Clocks are shown as recorded: timestamps of different hosts may be offset.",)
    return ("Not all ranks record wall-clock timestamps: their relative position has no meaning.",)


def _alignment_notes(rows: pl.DataFrame) -> tuple[str, ...]:
    lost = rows.filter(pl.col("offset_ns").is_null())["rank"].to_list()
    moved = rows.filter(pl.col("offset_ns").fill_null(0) != 0)
    notes: list[str] = []
    if moved.height:
        errors = moved["error_ns"].drop_nulls()
        note = "Clocks are aligned to the reference host's."
        if len(errors):
            note = "Clocks are aligned to the reference host's, to {bound} us."
        notes.append(Message(note, bound=us(errors.sort()[-1] if len(errors) else None)))
    if lost:
        notes.append(
            Message(
                "The clock of {ranks} cannot be aligned with the others: shown as recorded.",
                ranks=ranks_named(lost),
            )
        )
    return tuple(notes)


def step_borders(
    con: duckdb.DuckDBPyConnection, *, run: str, capture: str, at: Extent | None = None
) -> pl.DataFrame:
    """`step`, `start_ns`, `end_ns`: from the first start to the last end over the ranks, on the
    clock of `at` (None: as recorded)."""
    open_views(con, ("steps",))
    moved = at.ranks.filter(pl.col("ahead_ns") != 0) if at is not None else pl.DataFrame()
    return frame(con, _STEPS.format(ahead=ahead_table(moved)), [run, capture])


def ahead_table(ranks: pl.DataFrame) -> str:
    """Rows (rank, ahead_ns) as a table in SQL; without rows where `ranks` is empty."""
    if ranks.is_empty():
        return "(select 0 as rank, 0 as ahead_ns where false)"
    names = ", ".join(f"({rank}, {ahead})" for rank, ahead in ranks["rank", "ahead_ns"].rows())
    return f"(select * from (values {names}) as listed(rank, ahead_ns))"
