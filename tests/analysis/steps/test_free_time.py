"""`free` is the step's own: another step's work may run then, and every outlet says so."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis.catalog import metric
from npuscope.analysis.wording import FREE_MEANS
from npuscope.dashboard.exporter.gauges import GAUGES
from npuscope.dashboard.locale.language import language_of
from npuscope.dashboard.terminal.parts_table import WORDS
from npuscope.dashboard.terminal.tables import steps_table
from tests.analysis.findings_page import findings_markdown

chinese = language_of("zh")

REPOSITORY = Path(__file__).parents[3]
STEP = {
    "run": "r", "capture": "c", "rank": 0, "step": 1, "basis": "events", "stage_ns": 9,
    "computing_ns": 4, "communication_ns": 3, "exposed_communication_ns": 2, "masking_ratio": 0.5,
    "free_ns": 3, "bubble_ns": 0, "preparing_ns": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("README.md", "neither a kernel nor an operation of this step"),
        ("README.zh-CN.md", "这个 step 既没有计算算子也没有通信算子"),
        ("docs/mfu.md", "another step's may run"),
        ("docs/steps-and-the-profiler.md", "Another step's may run"),
        ("docs/findings.md", "another step's may run"),
        ("docs/metrics.md", "another step's may run"),
        ("docs/monitoring.md", "another step's may run"),
    ],
)
def test_documents(file: str, said: str) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert said in text
    assert "free: nothing runs" not in text and "什么都没跑" not in text


def test_outlets() -> None:
    [column] = [one for one in metric("steps").columns if one.name == "free_ns"]
    table = steps_table(pl.DataFrame([STEP])).legend or ""
    gauges = {one.name: one.meaning for one in GAUGES}
    parts, by_rank = gauges["npuscope_step_part_seconds"], gauges["npuscope_rank_free_seconds"]

    listed = findings_markdown()
    for said in (column.meaning, table, parts, by_rank, listed, FREE_MEANS):
        assert "another step's may run" in said
    assert "idle" not in WORDS["free"] and chinese(WORDS["free"]) != WORDS["free"]
    assert chinese(FREE_MEANS) != FREE_MEANS
