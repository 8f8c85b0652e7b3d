"""timeline_bins against a twin that looks at every stretch between two borders."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.catalog import metric
from npuscope.collector.store.store import frame
from tests.analysis.tables import Event, answer, clear, connect, fill, insert, op

EPOCH_NS = 1_736_405_443_862_052_130  # where a double no longer tells nanoseconds apart
FIGURES = (
    "active_ns", "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns",
    "free_ns", "event_count",
)  # fmt: skip
MS = 1_000_000
CON = connect()


def some_events(most_start_ns: int, most_dur_ns: int) -> st.SearchStrategy[list[Event]]:
    return st.lists(
        st.builds(
            Event,
            rank=st.integers(0, 1),
            step=st.sampled_from([None, 7]),
            kind=st.sampled_from(["compute", "compute", "allReduce"]),
            # Often at a border of bins, or one beside it.
            start_ns=st.integers(0, most_start_ns) | st.integers(0, 9).map(lambda n: n * MS),
            dur_ns=st.integers(-2, most_dur_ns) | st.integers(0, 3).map(lambda n: n * MS),
        ),
        min_size=1,
        max_size=25,
    )


def bins(found: Iterable[Event], shift_ns: int = 0) -> pl.DataFrame:
    clear(CON)
    insert(CON, found, shift_ns=shift_ns)
    rows = frame(CON.sql(metric("timeline_bins").sql))
    return rows.with_columns(active_ns=pl.col("end_ns") - pl.col("start_ns"))


def twin(events: list[Event], start_ns: int, end_ns: int) -> dict[str, int | None]:
    """Figures of one rank's events in a bin, from the stretches between all borders in it."""
    real = [event for event in events if event.dur_ns > 0]
    ends = {event.start_ns + event.dur_ns for event in real}
    first, last = min(event.start_ns for event in real), max(ends)
    inside = {t for t in {event.start_ns for event in real} | ends if start_ns < t < end_ns}
    borders = sorted({start_ns, end_ns} | inside)
    length = dict.fromkeys(FIGURES, 0)
    for here, there in pairwise(borders):
        running = [e for e in real if e.start_ns <= here and e.start_ns + e.dur_ns >= there]
        computes = any(event.kind == "compute" for event in running)
        talks = any(event.kind != "compute" for event in running)
        is_active = first <= here and there <= last
        for name, counts in zip(
            FIGURES,
            (
                is_active, computes, talks, computes and talks, talks and not computes,
                is_active and not running,
            ),
            strict=False,
        ):  # fmt: skip
            length[name] += counts * (there - here)
    length["event_count"] = sum(start_ns < end <= end_ns for end in map(_end, real))
    if any(event.kind == "compute" for event in real):
        return dict(length)
    unknown = ("computing_ns", "overlapped_ns", "exposed_communication_ns", "free_ns")
    return {name: None if name in unknown else value for name, value in length.items()}


def _end(event: Event) -> int:
    return event.start_ns + event.dur_ns


@pytest.mark.slow
@pytest.mark.parametrize("shift_ns", [EPOCH_NS, -3 * MS - 1])
@given(some_events(9 * MS, 3 * MS))
@settings(max_examples=20)
def test_bins_equal_what_lies_between_borders(shift_ns: int, found: list[Event]) -> None:
    rows = bins(found, shift_ns).to_dicts()
    moved = [Event(e.rank, e.step, e.kind, e.start_ns + shift_ns, e.dur_ns) for e in found]
    for row in rows:
        start_ns, end_ns = row["bin_start_ns"], row["bin_start_ns"] + row["bin_width_ns"]
        assert start_ns % MS == 0 and row["bin_width_ns"] == MS and row["level"] == 0
        mine = [event for event in moved if event.rank == row["rank"]]
        assert {name: row[name] for name in FIGURES} == twin(mine, start_ns, end_ns)
    covered = {
        (event.rank, start // MS)
        for event in moved
        if event.dur_ns > 0
        for start in {*range(event.start_ns, _end(event), MS), _end(event) - 1}
    }
    assert {(row["rank"], row["bin_start_ns"] // MS) for row in rows} == covered


@pytest.mark.slow
@given(some_events(40_000 * MS, 9_000 * MS))
@settings(max_examples=15)
def test_every_level_is_the_whole(found: list[Event]) -> None:
    rows = bins(found, EPOCH_NS)
    for rank in rows["rank"].unique():
        mine = rows.filter(pl.col("rank") == rank)
        moved = [
            Event(rank, e.step, e.kind, e.start_ns + EPOCH_NS, e.dur_ns)
            for e in found
            if e.rank == rank
        ]
        spans = [(e.start_ns, _end(e)) for e in moved if e.dur_ns > 0]
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        whole = twin(moved, first, last)
        whole["event_count"] = len(spans)
        by_level = {row["level"]: row for row in added_up(mine).to_dicts()}
        finest, coarsest = min(by_level), max(by_level)
        assert (last - first) / (MS * 4**coarsest) <= 512
        assert (last - first) / (MS * 4**finest) <= 32_768
        assert finest == 0 or (last - first) / (MS * 4 ** (finest - 1)) > 32_768
        assert list(by_level) == list(range(finest, coarsest + 1))
        for level, of_level in by_level.items():
            for name in FIGURES:
                if name in ("active_ns", "free_ns"):  # bins without a row are free in whole
                    continue
                assert of_level[name] == whole[name], (level, name)


def added_up(rows: pl.DataFrame) -> pl.DataFrame:
    """Sums of the bins of each level, in the order of rows; unknown where one is."""
    figures = pl.col(FIGURES)
    return rows.group_by("level", maintain_order=True).agg(
        pl.when(figures.null_count() == 0).then(figures.sum())
    )


def test_what_is_unknown_is_null() -> None:
    clear(CON)
    insert(CON, [Event(0, 1, "allReduce", 5 * MS, 10)])
    (row,) = answer(CON, "timeline_bins")
    assert (row["communication_ns"], row["end_ns"] - row["start_ns"]) == (10, 10)
    assert row["computing_ns"] is row["exposed_communication_ns"] is row["free_ns"] is None
    clear(CON)
    insert(CON, [Event(0, 1, "compute", 5 * MS, 10)])
    con = CON
    fill(con, "ranks", [{"left_out_tables": ["comm_ops"]}])
    (row,) = answer(con, "timeline_bins")
    con.execute("delete from ranks")
    assert row["computing_ns"] == 10
    assert row["communication_ns"] is row["overlapped_ns"] is row["free_ns"] is None


def test_a_rank_of_hours_stays_small() -> None:
    hours_ns = 5 * 3_600 * 1_000 * MS
    clear(CON)
    fill(CON, "comm_ops", [op(EPOCH_NS, 1), op(EPOCH_NS, hours_ns)])
    rows = answer(CON, "timeline_bins")
    assert len(rows) < 50_000
    assert {row["level"] for row in rows} == {5, 6, 7, 8}
    for level in (5, 6, 7, 8):
        assert sum(row["communication_ns"] for row in rows if row["level"] == level) == hours_ns
