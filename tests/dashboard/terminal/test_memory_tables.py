"""Memory in the terminal: figures in MiB, unknown as a dash, curves that lose no peak."""

from __future__ import annotations

import io
from collections.abc import Sequence

import duckdb
import polars as pl
import pytest
from rich.console import Console, RenderableType

from npuscope.analysis import query
from npuscope.analysis.query import MemoryKey
from npuscope.analysis.wording import mebibytes
from npuscope.dashboard.terminal.memory.memory_overview import (
    MemoryChart,
    fullest_charts,
    growth_lines,
    overview,
)
from npuscope.dashboard.terminal.memory.memory_tables import change, holders_table, table_of
from tests.analysis.memory.memory_twins import Block, Record
from tests.analysis.tables import connect, fill

MIB = 1 << 20
MS = 1_000_000


def draw(what: RenderableType, width: int = 160) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(what)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def tables(
    records: Sequence[Record], blocks: Sequence[Block] = (), steps: int = 0
) -> duckdb.DuckDBPyConnection:
    con = connect()
    fill(con, "memory", [record.row for record in records])
    fill(con, "operator_memory", [block.row for block in blocks])
    fill(con, "steps", [
        {"rank": rank, "step": n, "window_start_ns": n * 10 * MS,
         "window_end_ns": (n + 1) * 10 * MS}
        for n in range(steps) for rank in {record.rank for record in records}
    ])  # fmt: skip
    return con


def curve(levels: Sequence[tuple[int | None, int | None]]) -> pl.DataFrame:
    """(allocated, reserved) of each ms."""
    con = tables([Record(n * MS, a, r) for n, (a, r) in enumerate(levels)])
    return query.memory_curve(con, bins=len(levels))


def test_sizes() -> None:
    assert [mebibytes(x) for x in (None, 0, 1, MIB, 10372 * MIB)] == ["-", "0.0", "<0.1", "1.0",
                                                                "10,372.0"]  # fmt: skip
    assert [change(x) for x in (None, 0, 3 * MIB, -2 * MIB, 512)] == ["-", "0.0", "+3.0", "-2.0",
                                                                      "+<0.1"]  # fmt: skip


def test_a_chart_shows_every_peak_at_any_width() -> None:
    spike = [(10 * MIB, 100 * MIB)] * 500
    spike[333] = (100 * MIB, 100 * MIB)
    for width in (20, 57, 130):
        lines = draw(MemoryChart("Rank 0", curve(spike), 0), width)
        assert sum("█" in line for line in lines[1:9]) == 8, width
        assert lines[1].count("█") in (1, 2)
        assert max(map(len, lines)) <= width
        assert lines[1].startswith("100.0 |") and lines[9].startswith("    0 +")


def test_a_chart_of_a_high_level_says_where_its_axis_begins() -> None:
    lines = draw(MemoryChart("", curve([(80 * MIB, 96 * MIB), (92 * MIB, 96 * MIB)]), 0), 40)

    assert lines[1].startswith("96.0 |")
    assert lines[9].startswith("78.0 +")
    assert lines[5].startswith("87.0 |")


def test_a_curve_without_allocations_is_drawn_by_its_reservations() -> None:
    lines = draw(MemoryChart("", curve([(None, 8 * MIB), (None, 4 * MIB)]), 0), 30)

    assert "█" in lines[1] and "░" not in "".join(lines)
    assert lines[-1] == "█ reserved (MiB)"


@pytest.mark.parametrize("levels", [[(0, 0)], [(5, 5)], [(None, 3)], [(None, None)], []])
def test_charts_of_next_to_nothing(levels: list[tuple[int | None, int | None]]) -> None:
    frame = curve(levels) if levels else query.memory_curve(connect())
    lines = draw(MemoryChart("title", frame, 0), 30)
    assert len(lines) == (12 if levels else 0)


def test_steps_stand_at_their_starts() -> None:
    con = tables([Record(n * MS, 5 * MIB, 9 * MIB) for n in range(41)], steps=4)

    lines = draw(fullest_charts(con, query.memory_facts(con), top=1), 51)

    margin = lines[1].index("|") + 1
    marks = next(line for line in lines if "|3" in line)
    width = len(lines[1]) - margin
    assert [marks.index(f"|{n}") - margin for n in range(4)] == [
        n * 10 * MS * width // (240 * 166_667) for n in range(4)
    ]
    assert any(line.strip().startswith("0.0 ms") for line in lines)


def test_holders_name_what_is_left_out_and_what_is_unexplained() -> None:
    blocks = [Block(f"op{n}", (20 - n) * MIB, n, None if n else 50 * MS) for n in range(15)]
    blocks.append(Block(None, -MIB, None, 30 * MS))
    con = tables([Record(20 * MS, 300 * MIB)], blocks)

    lines = draw(holders_table(query.memory_holders(con), top=3))

    (header,) = [line for line in lines if "held by" in line]
    body = lines[lines.index(header) + 2 : -1]
    assert [line.split()[1] for line in body[:3]] == ["op0", "op1", "op2"]
    assert "(13 more)" in body[3] and " 139.0 " in body[3]
    assert "(no recorded block)" in body[4] and " 104.0 " in body[4]
    assert body[0].endswith("30.0") and body[1].endswith("not in capture")


def test_the_overview_of_several_ranks() -> None:
    con = tables(
        [Record(n * 10 * MS + 5 * MS, (100 * rank + 3 * n + 10) * MIB, 900 * MIB, rank=rank)
         for rank in (1, 2) for n in range(6)],
        [Block("aten::mm", 5 * MIB, 1, None, rank=2)],
        steps=6,
    )  # fmt: skip

    text = "\n".join(draw(overview(con, query.memory_facts(con), top=10)))

    assert text.index("Ranks, the fullest first") < text.index("Memory across ranks")
    assert "Rank 2 by component" in text and "Rank 2, PTA\n" in text
    assert "aten::mm" in text
    assert "rank 1, PTA: grows steadily, +3.0 MiB per step over steps 0-5, 125.0 MiB" in text

    fill(con, "memory", [{"capture": "later", "component": "PTA", "source": "record",
                          "timestamp_ns": 1, "reserved_bytes": MIB}])  # fmt: skip
    text = "\n".join(draw(overview(con, query.memory_facts(con), top=10)))
    assert "Rank 2 of job c by component" in text and "rank 1 of job c, PTA: grows" in text


@pytest.mark.slow
def test_growth_in_words() -> None:
    few = tables([Record(5 * MS, 9)], steps=3)
    assert list(growth_lines(query.memory_facts(few))) == [
        "Growth: a trend needs five steps, recorded: 3"
    ]
    flat = tables([Record(5 * MS, 9)], steps=7)
    assert list(growth_lines(query.memory_facts(flat))) == ["Growth: none that is steady"]
    none = tables([Record(5 * MS, 9)])
    assert list(growth_lines(query.memory_facts(none))) == [
        "Growth: no steps were recorded with memory"
    ]
    assert draw(overview(connect(), query.memory_facts(connect()), top=3)) == [
        "no memory was recorded"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["component", "holder", "block", "step", "growth", "spread"])
@pytest.mark.parametrize("width", [60, 160])
def test_no_table_cuts_a_figure(key: MemoryKey, width: int) -> None:
    con = tables(
        [Record(5 * MS, 1234 * MIB, 5678 * MIB, rank=rank, device_id=device)
         for rank in (0, 1) for device in (0, 1)],
        [Block("aten::matmul", 1111 * MIB, 1, None)],
        steps=2,
    )  # fmt: skip

    text = "\n".join(draw(table_of(key, query.memory_by(con, key)[1], top=5), width))

    wanted = {"component": "5,678.0", "holder": "1,111.0", "block": "1,111.0",
              "spread": "5,678.0"}  # fmt: skip
    assert wanted.get(key, "1,234.0") in text
    assert "…" not in text
    empty = table_of(key, query.memory_by(connect(), key)[1], top=5)
    assert draw(empty, width)[0].endswith(": no rows")
