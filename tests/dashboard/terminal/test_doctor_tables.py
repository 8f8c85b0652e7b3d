"""What `doctor` draws: short for many equal ranks, with whoever deviates named, nothing cut."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from npuscope.analysis.doctor.doctor import CaptureReport, examine
from npuscope.analysis.scope import Scope
from npuscope.collector.discover.search import Problem
from npuscope.collector.discover.unread_files import UnreadFile
from npuscope.collector.ingest.read_rank import RankOutcome
from npuscope.dashboard.terminal.doctor.doctor_rows import (
    Disk,
    config_of,
    doctor_notes,
    doctor_rows,
)
from npuscope.dashboard.terminal.doctor.doctor_tables import doctor
from tests.analysis.tables import connect, fill, kernel, op

RANKS = 256


def draw(reports: Sequence[CaptureReport], disk: Disk, width: int = 100) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, color_system=None)
    for part in doctor(reports, disk):
        console.print(part)
    return written.getvalue()


@pytest.fixture(scope="module")
def reports() -> list[CaptureReport]:
    """256 of 260 ranks, of which 17 lacks kernels, 30 and 31 a step, 99 is of another level."""
    con = connect()
    fill(con, "ranks", [
        {"rank": rank, "world_size": 260, "framework": "pytorch", "clock": "epoch",
         "profiler_level": "Level0" if rank == 99 else "Level1", "source_format": "db",
         "window_start_ns": 0, "window_end_ns": 1000}
        for rank in range(RANKS)
    ])  # fmt: skip
    fill(con, "kernels", [
        kernel(100 * step, 50, step, rank=rank, type="MatMulV3", core="AI_CORE")
        for rank in range(RANKS) if rank != 17
        for step in (1, 2) if not (rank in (30, 31) and step == 2)
    ])  # fmt: skip
    fill(con, "comm_ops", [
        op(60 * step, 30, step, rank=rank)
        for rank in range(RANKS) for step in (1, 2) if not (rank in (30, 31) and step == 2)
    ])  # fmt: skip
    return examine(con)


def test_equal_ranks_are_one_line_and_others_are_named(reports: list[CaptureReport]) -> None:
    text = draw(reports, Disk(beside=()))
    assert "256 of 260 ranks; missing: 256-259" in text
    assert "rank 17: no, no compute kernel was recorded" in text
    assert "ranks 30-31 lack step 2" in text
    assert "different levels (Level0, Level1)" in text
    steps = text[text.index("\nSteps") : text.index("\nTables")]
    assert "0-16, 18-29, 32-255" in steps
    assert len([line for line in steps.splitlines() if line.strip()]) == 3 + 3
    assert len(text.splitlines()) < 200


def test_one_rank_that_was_chosen_is_not_all_of_them() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank, "world_size": 4} for rank in range(3)])
    assert "\nrank 2 of 4; missing: 3\n" in draw(examine(con, scope=Scope(rank=2)), Disk())


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_table_is_wider_than_the_terminal(reports: list[CaptureReport], width: int) -> None:
    text = draw(reports, Disk(beside=()), width)
    start = text.index("To record what is missing")
    code = text[start : text.index("What was recorded")]
    rest = text.replace(code, "")
    assert max(len(line) for line in rest.splitlines()) <= width
    assert "…" not in rest


def test_the_call_can_be_copied(reports: list[CaptureReport]) -> None:
    code = config_of(reports[0].ranks)
    assert code is not None
    lines = draw(reports, Disk(beside=()), 80).splitlines()
    assert all(f"  {line}" in lines for line in code.splitlines())


def test_troubles_come_first_and_what_is_beside_last(reports: list[CaptureReport]) -> None:
    disk = Disk(
        failures=[RankOutcome("job", "c", 256, "/p/h256_ascend_pt", error="the DB is cut")],
        problems=[Problem("/p/raw", "raw data only: run analyse() first")],
        beside=[UnreadFile("*.txt", "no file of a profiler", 3, 1500, "/p/a/notes.txt")],
    )
    text = draw(reports, disk)
    assert text.index("raw data only") < text.index("256 of 260 ranks") < text.index("a/notes.txt")
    assert "rank 256 could not be read" in text
    assert "1.5 kB" in text
    notes = doctor_notes(reports, disk)
    assert "ranks 256-259 of 260 missing" in notes
    assert "/p/raw: raw data only: run analyse() first" in notes
    assert any("3 x *.txt (/p/a/notes.txt): not read" in note for note in notes)
    last = doctor_rows(reports, disk)[-1]
    assert (last["rank"], last["status"], last["reason"]) == (256, "not_read", "the DB is cut")


def test_a_store_tells_that_nobody_looked_beside_it(reports: list[CaptureReport]) -> None:
    assert "other files are listed only where" in draw(reports, Disk())
    assert "other files are listed only where" not in draw(reports, Disk(beside=()))


def test_other_frameworks_get_no_call_of_torch_npu() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "framework": "mindspore"}])
    found = examine(con)
    assert config_of(found[0].ranks) is None
    assert "options of mindspore differ" in draw(found, Disk())
    assert doctor_rows(found, Disk())[0]["profiler_config"] is None


def test_an_overhead_is_drawn_where_it_is_known() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "world_size": 1}])
    fill(con, "kernels", [kernel(0, 10, 5)])
    fill(con, "train_log", [
        {"step": step, "elapsed_s": 1.25 if step == 5 else 1.0} for step in range(11)
    ])  # fmt: skip
    found = examine(con)
    text = draw(found, Disk())
    assert "+25.0%: the median of 1 profiled steps is 1.250 s" in " ".join(text.split())
    (row,) = doctor_rows(found, Disk())
    assert (row["profiler_overhead_ratio"], row["profiler_overhead_reason"]) == (0.25, None)
