"""step_trace_time.csv: three header generations, digits kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.readers.text import step_trace
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged

OLD = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)"
)
GOLDEN_COLUMNS = {
    "computing_ns": "Computing",
    "communication_not_overlapped_ns": "Communication(Not Overlapped)",
    "overlapped_ns": "Overlapped",
    "communication_ns": "Communication",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "communication_not_overlapped_and_exclude_receive_ns": (
        "Communication(Not Overlapped and Exclude Receive)"
    ),
    "preparing_ns": "Preparing",
}


@pytest.mark.parametrize(
    ("dataset", "folder", "rank", "step"),
    [
        ("alexnet_ddp_text_level0", "rank0_ascend_pt", "0", "50"),
        ("alexnet_ddp_text_level1", "rank1_ascend_pt", "1", "50"),
        ("qwen3_pp2_dp2_text_level2", "rank_0_ascend_pt", "0", "13"),
        ("qwen3_pp2_dp2_text_level2", "rank_1_ascend_pt", "1", "13"),
    ],
)
def test_real_tables_keep_their_digits(
    stage: Staged,
    real_data: Path,
    goldens: dict[str, Any],
    dataset: str,
    folder: str,
    rank: str,
    step: str,
) -> None:
    stage.read(step_trace, real_data / dataset / folder)
    tool = goldens[dataset][rank]["steps"][step]["tool"]
    columns = ", ".join(["step", *GOLDEN_COLUMNS])
    found = stage.rows(f"select {columns} from profiler_steps")
    expected = [float(tool[c]) * 1000 for c in GOLDEN_COLUMNS.values()]
    assert [row[0] for row in found] == [int(step)]
    assert list(found[0][1:]) == pytest.approx(expected, rel=1e-15)


def test_header_generations(stage: Staged) -> None:
    numbers = "1.5,2,3,4,5,6,7,-8.25"
    for name, header, row in (
        ("a", OLD, f"10,{numbers}"),
        ("b", f"{OLD},Preparing", f",{numbers},-9.5"),
        ("c", f"Device_id,{OLD},Preparing", f"4,11,{numbers},9"),
    ):
        path = stage.folder / f"{name}.csv"
        path.write_text(f"\ufeff{header}\r\n{row}\r\n", encoding="utf-8")
        stage.read(step_trace, {"step_trace": path})
    found = stage.con.execute("""
        select device_id, step, computing_ns, bubble_ns, preparing_ns,
            communication_not_overlapped_and_exclude_receive_ns from profiler_steps""")
    assert found.fetchall() == [
        (None, 10, 1500.0, 7000.0, None, -8250.0),
        (None, None, 1500.0, 7000.0, -9500.0, -8250.0),
        (4, 11, 1500.0, 7000.0, 9000.0, -8250.0),
    ]  # fmt: skip


def test_a_cut_row_is_lost_not_wrong(stage: Staged) -> None:
    path = stage.folder / "step_trace_time.csv"
    path.write_text(f'{OLD}\n1,"1,000.5",1,1,1,1,1,1,1\n2,2,2,2', encoding="utf-8")
    log = stage.read(step_trace, {"step_trace": path})
    assert stage.rows("select step, computing_ns from profiler_steps") == [(1, None)]
    assert log.rows_lost == 1
    assert any("1 values in Computing are no numbers" in told for told in log.warnings)


def test_a_foreign_file_is_refused(stage: Staged) -> None:
    path = stage.folder / "step_trace_time.csv"
    path.write_text("Iteration ID,FP Start(us)\n1,2\n", encoding="utf-8")
    with pytest.raises(TraceFormatError, match="no column Computing"):
        stage.read(step_trace, {"step_trace": path})
