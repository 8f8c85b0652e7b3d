"""memory and its kin: planted peaks, holders and curves; what is unknown stays NULL."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.catalog import metric
from npuscope.analysis.scope import Scope
from npuscope.analysis.timeline.series import rank_series
from npuscope.analysis.timeline.shared_axis import extent
from npuscope.errors import UsageError
from tests.analysis.memory.memory_twins import Block, Record, tables, window
from tests.analysis.tables import connect, fill


def one(rows: Any) -> dict[str, Any]:
    (row,) = rows.to_dicts()
    return dict(row)


def holders(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    names = ("holder", "name", "held_bytes", "block_count", "since_ns", "released_ns")
    return [tuple(row[name] for name in names) for row in query.memory_holders(con).to_dicts()]


def test_a_peak_is_its_first_instant_and_what_lay_unused_then() -> None:
    con = tables([
        Record(10, 40, 100, 45), Record(20, 70, 100, 75), Record(30, 70, 120, 70),
        Record(40, 10, 120, 10), Record(50, 20, 90, None),
    ])  # fmt: skip

    row = one(query.memory(con))

    assert (row["peak_bytes"], row["peak_ns"]) == (120, 30)
    assert (row["peak_allocated_bytes"], row["peak_allocated_ns"]) == (70, 20)
    assert row["peak_active_bytes"] == 75
    assert (row["fragmentation_bytes"], row["fragmentation_ratio"]) == (30, 0.3)
    assert (row["sample_count"], row["first_ns"], row["last_ns"]) == (5, 10, 50)


def test_what_is_unknown_is_null_and_not_0() -> None:
    con = tables([
        Record(10, None, 5, component="APP"),
        Record(10, 5, None, component="GE"),
        Record(20, 4, 9, component="GE"),
        Record(10, component="PTA"),
        Record(10, 0, 0, component="WORKSPACE"),
    ])  # fmt: skip

    rows = {row["component"]: row for row in query.memory(con).to_dicts()}

    names = ("peak_bytes", "peak_ns", "peak_allocated_bytes", "peak_allocated_ns",
             "fragmentation_bytes", "fragmentation_ratio")  # fmt: skip
    assert {key: [row[name] for name in names] for key, row in rows.items()} == {
        "APP": [5, 10, None, None, None, None],
        "GE": [9, 20, 5, 10, None, None],  # reserved is unknown when most was allocated
        "PTA": [None, None, None, None, None, None],
        "WORKSPACE": [0, 10, 0, 10, 0, None],
    }


def test_devices_sources_and_ranks_have_curves_of_their_own() -> None:
    con = tables([
        Record(1, 1, 1, device_id=0), Record(2, 5, 5, device_id=1), Record(3, 3, 3, rank=7),
        Record(4, None, 9, source="module"),
    ])  # fmt: skip
    idle, gaps = float("nan"), {"name": "Freq", "series": "MHz", "rank": 7}
    fill(con, "counters", [{**gaps, "timestamp_ns": t, "value": value}
                           for t, value in ((1, 1.0), (2, idle), (3, 2.0))])  # fmt: skip

    found = query.memory(con)

    places = found.select("rank", "source", "device_id", "peak_bytes").rows()
    assert places == [(0, "record", 0, 1), (0, "record", 1, 5), (0, "module", 0, 9),
                      (7, "record", 0, 3)]  # fmt: skip
    assert query.memory(con, top=1).select("rank", "device_id").rows() == [(0, 0), (7, 0)]
    assert query.memory(con, Scope(rank=7)).height == 1
    curves = rank_series(con, extent(con, run="job", capture="c"), 0)
    assert [(one.name, one.value.tolist()) for one in curves] == [
        ("module PTA of device 0", [9]), ("record PTA of device 0", [1]),
        ("record PTA of device 1", [5]),
    ]  # fmt: skip
    one_device = rank_series(con, extent(con, run="job", capture="c"), 7)
    assert [(one.name, one.most) for one in one_device] == [("record PTA", 3), ("Freq", 2)]
    fill(con, "memory", [Record(t, None, 0, source="module", rank=8).row for t in (1, 2)])
    assert rank_series(con, extent(con, run="job", capture="c"), 8) == ()


def test_streams_share_the_totals_of_their_device() -> None:
    con = connect()
    fill(con, "memory", [
        {**Record(t, size, 100).row, "stream_ptr": stream}
        for t, size, stream in ((1, 10, "a"), (2, 30, "b"), (3, 25, "a"))
    ])  # fmt: skip

    assert one(query.memory(con))["peak_allocated_bytes"] == 30


def test_the_largest_figures_do_not_overflow() -> None:
    most = 2**63 - 1
    con = tables(
        [Record(most - 9, most, most), Record(most - 8, most, most)],
        [Block("a", most, 1, None)],
        [window(1, 0, most)],
    )

    row = one(query.memory(con))

    assert (row["peak_bytes"], row["peak_ns"]) == (most, most - 9)
    assert (row["peak_allocated_bytes"], row["fragmentation_bytes"]) == (most, 0)
    assert holders(con)[1] == ("operator", "a", most, 1, 1, None)
    assert query.memory_steps(con)["end_bytes"].to_list() == [most]
    assert query.memory_curve(con, bins=3)["allocated_max_bytes"].to_list() == [most, most]


BLOCKS = [
    Block("mm", 30, 5, None),  # never freed
    Block("mm", 10, 8, 40),
    Block("add", 20, 20, 30),  # born at the very moment
    Block("early", 50, 1, 20),  # freed at the very moment
    Block("late", 50, 21, 30),
    Block(None, -7, None, 35),  # older than the capture, freed in it
    Block(None, -9, None, 20),  # ... before the peak
    Block("unknown", None, 3, None),
]


def test_holders_at_the_peak() -> None:
    con = tables([Record(10, 60), Record(20, 100), Record(30, 100)], BLOCKS)

    assert holders(con) == [
        ("unexplained", None, 33, None, None, None),
        ("operator", "mm", 40, 2, 5, None),
        ("operator", "add", 20, 1, 20, 30),
        ("earlier", None, 7, 1, None, 35),
    ]
    rows = {row["name"]: row for row in query.memory_holders(con).to_dicts() if row["name"]}
    assert (rows["mm"]["largest_block_bytes"], rows["mm"]["unreleased_count"]) == (30, 1)
    assert (rows["mm"]["share_ratio"], rows["mm"]["peak_ns"]) == (0.4, 20)
    assert query.memory_holders(con, top=2)["held_bytes"].to_list() == [33, 40]


def test_single_blocks_at_the_peak() -> None:
    con = tables([Record(20, 100)], BLOCKS)

    rows = query.memory_blocks(con).select("name", "size_bytes", "allocated_at_ns").rows()

    assert rows == [("mm", 30, 5), ("add", 20, 20), ("mm", 10, 8), (None, 7, None)]
    assert query.memory_blocks(con, top=1)["size_bytes"].to_list() == [30]


def test_the_curve_that_rose_highest_tells_the_moment() -> None:
    records = [
        Record(10, 50, component="PTA"), Record(10, 80, component="PTA+GE"),
        Record(20, 60, component="PTA"), Record(20, 70, component="PTA+GE"),
        Record(30, 99, source="module"),
    ]  # fmt: skip
    con = tables(records, [Block("a", 5, 1, 15), Block("b", 5, 12, None)])

    row = query.memory_holders(con).to_dicts()[1]

    assert (row["component"], row["peak_ns"], row["name"]) == ("PTA+GE", 10, "a")
    equal = tables([Record(9, 5, component=name) for name in ("PTA+GE", "PTA")], BLOCKS)
    assert query.memory_holders(equal)["component"].unique().to_list() == ["PTA+GE"]


def test_blocks_that_say_more_than_the_curve_leave_a_negative_rest() -> None:
    con = tables([Record(20, 50)], [Block("a", 80, 1, None)])

    assert [row[2] for row in holders(con)] == [-30, 80]


def test_devices_hold_their_own_blocks() -> None:
    con = tables(
        [Record(10, 50, device_id=0), Record(30, 60, device_id=1)],
        [Block("a", 5, 1, 20, device_id=0), Block("b", 6, 1, None, device_id=1)],
    )

    rows = query.memory_holders(con).select("device_id", "name", "held_bytes").rows()

    assert rows == [(0, None, 45), (0, "a", 5), (1, None, 54), (1, "b", 6)]


def test_without_blocks_or_without_a_curve_nobody_is_said_to_hold_anything() -> None:
    assert holders(tables([Record(10, 50)])) == []
    assert holders(tables([], BLOCKS)) == []
    assert holders(tables([Record(10, None, 50, component="APP")], BLOCKS)) == []


def test_spread_names_the_rank_with_the_most() -> None:
    con = tables([
        Record(1, 5, 10, rank=0), Record(1, 9, 30, rank=1), Record(1, None, 20, rank=2),
        Record(1, 1, 40, rank=2, device_id=1),
        Record(1, 0, 0, rank=0, component="GE"),
    ])  # fmt: skip

    rows = query.memory_spread(con).drop("run", "capture", "spread_ratio", "source").rows()

    assert rows == [
        ("PTA", "peak", 3, 10, 30.0, 40, 2),
        ("PTA", "peak_allocated", 3, 1, 5.0, 9, 1),
        ("PTA", "fragmentation", 3, 5, 21.0, 39, 2),
    ]


def test_a_curve_keeps_its_extremes_in_few_points() -> None:
    records = [Record(t, 100 if t == 777 else 1 if t == 778 else 50, 200) for t in range(1000)]
    con = tables(records)

    found = query.memory_curve(con, bins=10)

    assert found.height == 10
    assert found["allocated_max_bytes"].to_list() == [50] * 7 + [100] + [50] * 2
    assert found["allocated_min_bytes"].to_list() == [50] * 7 + [1] + [50] * 2
    assert found["start_ns"].to_list() == list(range(0, 1000, 100))
    assert query.memory_curve(con, Scope(rank=5)).is_empty()
    with pytest.raises(UsageError, match="at least one"):
        query.memory_curve(con, bins=0)


def test_a_level_stays_where_nothing_is_recorded() -> None:
    con = tables([Record(0, None, 7, component="APP"), Record(40, 3), Record(99, 8)])

    found = query.memory_curve(con, bins=5, component="PTA")
    rows = found.select("bin", "allocated_min_bytes", "allocated_max_bytes", "sample_count").rows()

    # Alone, PTA spans from 40 to 99.
    assert rows == [(0, 3, 3, 1), (1, 3, 3, 0), (2, 3, 3, 0), (3, 3, 3, 0), (4, 3, 8, 1)]
    both = query.memory_curve(con, bins=5)
    assert both.filter(both["component"] == "PTA")["bin"].to_list() == [2, 3, 4]
    assert both["reserved_max_bytes"].to_list()[:5] == [7] * 5


def test_the_facts_of_all_ranks() -> None:
    con = tables([
        Record(1, 5, 10, component="PTA"), Record(1, 6, 11, component="PTA+GE"),
        Record(1, None, 99, component="APP"),
        Record(1, 7, 11, rank=1), Record(1, None, 50, rank=2, component="APP"),
        Record(1, None, 90, rank=2, source="module"),
    ])  # fmt: skip

    facts = query.memory_facts(con)

    # The framework's own curve where there is one, else the highest.
    assert facts.main.select("rank", "component", "peak_bytes").rows() == [
        (2, "PTA", 90), (1, "PTA", 11), (0, "PTA+GE", 11),
    ]  # fmt: skip
    assert facts.steady.is_empty() and facts.growth.is_empty()
    assert query.memory_facts(connect()).main.is_empty()


def test_answers_by_key_have_the_columns_of_their_metric() -> None:
    con = tables([Record(1, 5, 10)], [Block("a", 5, 1, None)], [window(1, 0, 10)])
    for key in ("component", "holder", "block", "step", "growth", "spread"):
        name, frame = query.memory_by(con, key)
        assert frame.columns == [column.name for column in metric(name).columns]
        assert frame.height
        assert query.memory_by(connect(), key)[1].schema == frame.schema
    assert query.memory_by(con, "curve", bins=3)[0] == "memory_curve"
    unknown: Any = "rank"
    with pytest.raises(UsageError, match="component, holder, block, step, growth, curve, spread"):
        query.memory_by(connect(), unknown)


def test_notes_say_what_is_missing_and_how_to_get_it() -> None:
    con = tables([Record(1, 5, 10), Record(1, 5, 10, rank=1)], [Block("a", 5, 1, None)])
    fill(con, "ranks", [
        {"rank": 2}, {"rank": 3}, {"rank": 4, "left_out_tables": ["memory", "kernels"]},
    ])  # fmt: skip

    assert query.memory_notes(con) == [
        "rank 4: memory was not selected. To know it: `npuscope ingest PATH --ranks 4`",
        "ranks 2-3: no memory was recorded. To know it: profile_memory=True",
        "rank 1: memory blocks were not recorded, so the holders of memory are unknown.",
    ]
    assert query.memory_notes(con, Scope(rank=0)) == []


def test_ranks_that_are_not_there() -> None:
    con = connect()
    assert query.no_such_rank(con) == "no rank here"
    fill(con, "ranks", [{"rank": 0}, {"rank": 1, "capture": "d"}])
    assert query.no_such_rank(con) is None
    assert query.no_such_rank(con, Scope(capture="d", rank=1)) is None
    assert query.no_such_rank(con, Scope(rank=3)) == "no rank 3 here: there is 0-1"
    assert query.no_such_rank(con, Scope(capture="x")) == "no capture x here: there is c, d"
    told = query.no_such_rank(con, Scope(capture="c", rank=1))
    assert told == "no data matches capture c, rank 1"
