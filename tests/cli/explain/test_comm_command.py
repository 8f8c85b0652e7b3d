"""`npuscope comm` on the sample job."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run
from tests.conftest import WrittenJob

FIGURES = (
    "op_count total_ns union_ns masked_ns masking_ratio exposed_ns exposed_attributed_ns"
    " transit_ns wait_ns size_bytes"
).split()
PLACE = ["run", "capture", "rank", "step"]


@pytest.fixture(scope="module")
def job(written_job: WrittenJob) -> Path:
    return written_job(small(), "text")


@pytest.mark.parametrize(
    ("by", "names"),
    [("kind", ["kind"]), ("type", ["op_type"]), ("op", ["kind", "op_type", "group_hash"])],
)
def test_rows(run: Run, job: Path, by: str, names: list[str]) -> None:
    code, out, _ = run("comm", job, "--by", by, "--json")
    told = json.loads(out)
    assert (code, told["metric"]) == (0, "comm")
    rows = told["rows"]
    assert {tuple(row) for row in rows} == {(*PLACE, *names, *FIGURES, "share_ratio")}
    order = [(row["rank"], row["step"], -row["total_ns"]) for row in rows]
    assert order == sorted(order) and len({place[:2] for place in order}) == 4


def test_by_kind_is_the_default_and_choices_narrow_it(run: Run, job: Path) -> None:
    assert run("comm", job, "--json")[1] == run("comm", job, "--by", "kind", "--json")[1]
    _, out, _ = run("comm", job, "--by", "op", "--rank", 1, "--step", 13, "--top", 2, "--json")
    rows = json.loads(out)["rows"]
    assert [(row["rank"], row["step"]) for row in rows] == [(1, 13)] * 2


def test_tables(run: Run, job: Path) -> None:
    _, out, _ = run("comm", job)
    means, _, single = out.partition("Communication of each rank and step by kind (ms)")
    assert "mean of 2 ranks, 2 steps" in means
    assert "worst rank" in means
    assert "transfer, wait: HCCL's own" in " ".join(single.split())
    _, alone, _ = run("comm", job, "--rank", 0, "--step", 12)
    assert "mean of" not in alone
    assert max(map(len, (out + alone).splitlines())) <= 100
    _, stretch, _ = run("comm", job, "--by", "stretch")
    assert "net gain" in stretch


def test_what_was_not_recorded_is_named_with_what_records_it(
    run: Run, job: Path, tmp_path: Path
) -> None:
    shutil.copytree(job, tmp_path / "job")
    for file in (tmp_path / "job").rglob("communication*.json"):
        file.unlink()
    # As of Level0, where nothing tells what HCCL's tasks moved.
    for file in (tmp_path / "job").rglob("trace_view.json"):
        file.write_text(re.sub(r'"(size\(Byte\)|task type)"', '"_"', file.read_text()))
    for file in (tmp_path / "job").rglob("profiler_info*.json"):
        file.write_text(file.read_text().replace("Level1", "Level0"))
    for by, lack in (("link", "no traffic of links"), ("matrix", "no link matrix")):
        told = run("comm", tmp_path / "job", "--by", by, "--json").json()
        assert told["rows"] == [] and told["notes"][-1] == (
            f"ranks 0-1: {lack}. To know it: profiler_level=ProfilerLevel.Level1"
        )
    assert run("comm", tmp_path / "job", "--rank", 1, "--json").rows
    assert "To know it" not in run("comm", tmp_path / "job").err


@pytest.mark.slow
def test_a_job_without_communication_says_so(run: Run, job: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    write_job(small(dp=1, ep=1, crossing=False), alone, forms=("text",))
    code, out, errors = run("comm", alone)
    assert code == 0
    assert "no communication was recorded here" in errors
    assert "no rows" in out
    shutil.rmtree(alone)
