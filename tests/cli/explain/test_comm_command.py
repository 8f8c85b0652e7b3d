"""`npuscope comm` on the sample job."""

from __future__ import annotations

import json
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


@pytest.mark.slow
def test_a_job_without_communication_says_so(run: Run, job: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    write_job(small(dp=1, ep=1, crossing=False), alone, forms=("text",))
    code, out, errors = run("comm", alone)
    assert code == 0
    assert "no communication was recorded here" in errors
    assert "no rows" in out
    shutil.rmtree(alone)
