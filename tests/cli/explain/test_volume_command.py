"""`npuscope comm --by link` and other questions about volume, as users and scripts meet them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from npuscope.analysis.catalog import metric
from tests.analysis.communication.test_volume import JOB
from tests.cli.command import Run
from tests.conftest import REPOSITORY, WrittenJob

METRICS = {
    "link": "link_traffic", "matrix": "rank_matrix", "bandwidth": "bandwidth",
    "contention": "contention",
}  # fmt: skip


@pytest.fixture(scope="module")
def job(stored_job: WrittenJob) -> Path:
    return stored_job(JOB, "db")


@pytest.mark.slow
@pytest.mark.parametrize("by", METRICS)
def test_rows_are_those_of_the_catalog(run: Run, job: Path, by: str) -> None:
    code, out, _ = run("comm", job, "--by", by, "--json", "--step", "13", "--top", "2")
    answer = json.loads(out)
    known = metric(METRICS[by])
    assert (code, answer["metric"]) == (0, known.name)
    assert {tuple(row) for row in answer["rows"]} == {tuple(c.name for c in known.columns)}
    assert {row["step"] for row in answer["rows"]} == {13}
    assert len(answer["rows"]) == (2 if by == "matrix" else 2 * 4)


def test_columns_of_links_stay(run: Run, job: Path) -> None:
    promised = "rank step kind op_type link size_bytes time_ns bandwidth_bytes_per_s".split()
    [row, *_] = json.loads(run("comm", job, "--by", "link", "--json")[1])["rows"]
    assert [name for name in row if name in promised] == promised


@pytest.mark.parametrize("by", METRICS)
def test_tables_fit(run: Run, job: Path, by: str) -> None:
    code, out, _ = run("comm", job, "--by", by)
    assert code == 0 and "…" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_schemes_need_to_know_the_routing(run: Run, job: Path) -> None:
    code, out, _ = run("comm", job, "--by", "hierarchy", "--experts", "8", "--top-k", "2", "--json")
    [row] = json.loads(out)["rows"]
    assert (code, row["host_count"], row["rank_count"]) == (0, 2, 4)
    assert row["all_gather_bytes"] > row["host_deduplicated_bytes"] > 0
    for given in ((), ("--experts", "8")):
        code, _, err = run("comm", job, "--by", "hierarchy", *given)
        assert code == 2 and "--experts 256 --top-k 8" in err
    code, _, err = run("comm", job, "--by", "nothing")
    assert code == 2 and "hierarchy" in err


@pytest.mark.parametrize(
    "file, by",
    [
        ("communication_matrix", "matrix"),
        pytest.param("communication", "link", marks=pytest.mark.slow),
    ],
)
def test_a_lone_file_of_traffic_answers_without_steps(
    run_apart: Run, tmp_path: Path, file: str, by: str
) -> None:
    one = min((REPOSITORY / "sample_traces").rglob(f"{file}.json"))
    lone = shutil.copy(one, tmp_path / "figures.json")

    code, out, _ = run_apart("comm", lone, "--by", by, "--json")
    assert code == 0
    assert sum(row["size_bytes"] for row in json.loads(out)["rows"]) > 0
    code, _, err = run_apart("comm", lone, "--by", by, "--step", "9999")
    assert code == 2 and "step" in err
