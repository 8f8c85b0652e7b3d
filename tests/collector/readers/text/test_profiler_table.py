"""The profiler's own step table, reproduced from the raw timeline by the profiler's own rule.

It sums float64 microseconds in file order, so equal digits prove that rows, order and text are
read as they are.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

SETS = [
    (name, rank)
    for name in ("alexnet_ddp_text_level0", "alexnet_ddp_text_level1")
    for rank in ("rank0_ascend_pt", "rank1_ascend_pt")
]


@dataclass(frozen=True)
class Row:
    name: str
    start_us: float
    dur_us: float


def timeline_rows(path: Path) -> list[Row]:
    """Rows of which the text export sums its step table, in file order."""
    events = json.loads(path.read_bytes())
    (overlap,) = [
        e["pid"] for e in events
        if e["name"] == "process_name" and e["args"] == {"name": "Overlap Analysis"}
    ]  # fmt: skip
    return [
        Row(e["name"], float(e["ts"]), float(e["dur"]))
        for e in events
        if e["ph"] == "X"
        and (e["pid"] == overlap or e["name"].startswith(("hcom_receive", "ProfilerStep#")))
    ]


def own_table(rows: list[Row], step: Row) -> dict[str, float]:
    """The text export's rule: rows that start inside the step, summed in file order."""
    end_us = step.start_us + step.dur_us
    inside = [
        row
        for row in rows
        if step.start_us <= row.start_us < end_us and not row.name.startswith("ProfilerStep#")
    ]
    sums = {
        "Computing": 0.0,
        "Communication": 0.0,
        "Communication(Not Overlapped)": 0.0,
        "Free": 0.0,
    }
    bubble_us = 0.0
    for row in inside:
        if row.name.startswith("hcom_receive"):
            bubble_us += row.dur_us
        else:
            sums[row.name] += row.dur_us
    first_us = min(row.start_us for row in inside)
    last_us = max(row.start_us + row.dur_us for row in inside)
    busy = [row.start_us for row in inside if row.name in ("Computing", "Communication")]
    return {
        **sums,
        "Overlapped": sums["Communication"] - sums["Communication(Not Overlapped)"],
        "Bubble": bubble_us,
        "Stage": last_us - first_us - bubble_us,
        "Preparing": min(busy) - step.start_us,
    }


@pytest.mark.parametrize(("dataset", "rank"), SETS)
def test_reproduces_the_profilers_table(real_data: Path, dataset: str, rank: str) -> None:
    folder = real_data / dataset / rank / "ASCEND_PROFILER_OUTPUT"
    with (folder / "step_trace_time.csv").open(newline="") as file:
        (printed,) = csv.DictReader(file)
    rows = timeline_rows(folder / "trace_view.json")
    (step,) = [row for row in rows if row.name == f"ProfilerStep#{printed['Step']}"]
    own = own_table(rows, step)
    for column in (
        "Computing",
        "Communication(Not Overlapped)",
        "Overlapped",
        "Communication",
        "Free",
    ):
        assert repr(own[column]) == printed[column], column
    assert own["Bubble"] == float(printed["Bubble"])
    for column in ("Stage", "Preparing"):
        assert own[column] == pytest.approx(float(printed[column]), abs=0.4), column
