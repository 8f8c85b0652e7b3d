"""Tiles of planted events: each counts once, short ones together, long ones in each they touch."""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pytest

from npuscope.analysis.timeline.rank_events import RankEvents, device_events, host_events
from npuscope.analysis.timeline.shared_axis import extent
from npuscope.analysis.timeline.tiles import (
    BUCKETS,
    drawn_rank,
    tile_ns,
    timeline_found,
    timeline_measured,
    timeline_tiles,
)
from tests.analysis.tables import connect, fill, kernel, op

LEVEL = 4


@pytest.fixture(scope="module")
def scene() -> tuple[RankEvents, list[tuple[int, int, str]]]:
    """Kernels of two streams, short and long, one of them over a border of tiles."""
    drawn = random.Random(7)
    events, at = [], 1_000_000
    for _ in range(400):
        dur = drawn.choice((3, 9, 15, 16, 400))
        events.append((at, dur, drawn.choice(("MatMulV3", "Cast"))))
        at += dur + drawn.randrange(20)
    events.append((at, 3 * BUCKETS << LEVEL, "FlashAttentionScore"))
    con = connect()
    rows = [
        kernel(a, d, type=t, stream_id=n % 2, name="aclnn") for n, (a, d, t) in enumerate(events)
    ]
    fill(con, "kernels", rows)
    fill(con, "comm_ops", [op(1_000_005, 50, op_type="allReduce", group_hash="77")])
    found = device_events(con, extent(con, run="job", capture="c"), 0)
    return found, [(a - 1_000_000, d, t) for a, d, t in events]


def rows_of(events: RankEvents, level: int, index: int) -> pl.DataFrame:
    table = pl.from_arrow(timeline_tiles({0: drawn_rank(events)}, level, index))
    assert isinstance(table, pl.DataFrame)
    return table.with_columns(pl.col("name").cast(pl.String))


def streams(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("track").is_in([1, 2]))


def test_every_event_counts_once(scene: tuple[RankEvents, list[tuple[int, int, str]]]) -> None:
    events, truth = scene
    for level in (0, LEVEL, 12):
        tiles = range((truth[-1][0] >> level) // BUCKETS + 1)
        starting = [
            streams(rows_of(events, level, n)).filter(pl.col("start_ns") >= tile_ns(level, n)[0])
            for n in tiles
        ]
        whole = pl.concat(starting)
        assert whole["dur_ns"].sum() == sum(dur for _, dur, _ in truth)
        assert whole["count"].sum() == len(truth)


def test_short_events_of_a_bucket_are_one_row(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, truth = scene
    rows = streams(rows_of(events, 6, 0))
    longs = [one for one in truth if one[1] >= 1 << 6]
    assert rows.filter(pl.col("dur_ns") >= 1 << 6, pl.col("count") == 1).height == len(longs)
    several = rows.filter(pl.col("count") > 1)
    assert several.height and (several["start_ns"] % (1 << 6) == 0).all()


def test_what_reaches_in_is_in_later_tiles(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, truth = scene
    start, dur, _ = truth[-1]
    last = ((start + dur) >> LEVEL) // BUCKETS
    rows = streams(rows_of(events, LEVEL, last))
    assert rows.select("start_ns", "dur_ns", "name").rows() == [(start, dur, "FlashAttentionScore")]
    assert rows_of(events, LEVEL, last + 1).is_empty()


def test_tracks_and_classes_have_names(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, _ = scene
    assert [one.label for one in events.tracks] == ["overlap", "stream 0", "stream 1", "group 77"]
    rows = streams(rows_of(events, 0, 0))
    assert set(rows.select("name", "class").unique().rows()) == {("MatMulV3", 0), ("Cast", 5)}


def test_the_overlap_is_what_a_grid_counts(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, truth = scene
    kernels = {ns for start, dur, _ in truth for ns in range(start, start + dur)}
    ops = set(range(5, 55))
    found = dict(rows_of(events, 40, 0).filter(track=0).select("class", "dur_ns").rows())
    assert found.get(0, 0) == len(kernels - ops)
    assert found.get(1, 0) == len(kernels & ops) and found.get(2, 0) == len(ops - kernels)


def test_a_stretch_is_measured_as_a_grid_counts(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, truth = scene
    from_ns, to_ns = 100, 3_000
    rows = timeline_measured({0: events}, from_ns, to_ns).filter(name="MatMulV3", kind="stream")
    mine = [
        set(range(max(start, from_ns), min(start + dur, to_ns)))
        for start, dur, type_ in truth
        if type_ == "MatMulV3" and start < to_ns and start + dur > from_ns
    ]
    assert rows.rows() == [
        (0, "stream", "MatMulV3", len(mine), sum(map(len, mine)), len(set().union(*mine)))
    ]


def test_events_are_found_in_order_of_time(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, truth = scene
    rows, count = timeline_found({0: events}, "matmul")
    expected = [start for start, _, type_ in truth if type_ == "MatMulV3"]
    assert rows["start_ns"].to_list() == expected and count == len(expected)


def test_calls_inside_calls_are_below_them() -> None:
    con = connect()
    calls = [("outer", 0, 100), ("first", 0, 40), ("inner", 10, 10), ("second", 40, 60)]
    fill(
        con,
        "host_ops",
        [
            {"run": "job", "capture": "c", "rank": 0, "kind": "operator", "name": name,
             "process_id": 1, "thread_id": 2, "start_ns": start, "dur_ns": dur}
            for name, start, dur in calls
        ]
        + [{"run": "job", "capture": "c", "rank": 0, "kind": "python", "name": "runpy.py(1): run",
            "process_id": 1, "thread_id": 2, "start_ns": 0, "dur_ns": 100}],
    )  # fmt: skip
    fill(con, "kernels", [kernel(0, 10)])
    events = host_events(con, extent(con, run="job", capture="c"), 0)
    rows = rows_of(events, 0, 0)
    assert dict(rows.select("name", "row").rows()) == {
        "outer": 0, "first": 1, "inner": 2, "second": 1
    }  # fmt: skip


def test_clocks_that_are_ahead_are_put_right() -> None:
    con = connect()
    fill(con, "kernels", [kernel(1_000, 10), kernel(5_000, 10, rank=1)])
    at = extent(con, run="job", capture="c")
    ahead = pl.Series([0, 3_900], dtype=pl.Int64)
    moved = replace(at, ranks=at.ranks.with_columns(ahead_ns=ahead))
    starts = [int(device_events(con, moved, rank).start[0]) for rank in (0, 1)]
    assert starts == [0, 100]


def test_a_tile_from_coarser_rows_is_the_tile_from_events(
    scene: tuple[RankEvents, list[tuple[int, int, str]]],
) -> None:
    events, _ = scene
    whole = drawn_rank(events)
    assert len(whole.rows) > 2
    for level in range(24):
        for index in (0, 1):
            from_rows, from_events = (
                timeline_tiles({0: one}, level, index)
                for one in (whole, replace(whole, rows=whole.rows[:1]))
            )
            assert from_rows == from_events, level
