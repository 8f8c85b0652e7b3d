"""Who is slow, by msprof-analyze's recipe and by ours, on the same planted jobs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.sample_traces.generate import Job, write_job
from tests.cli.command import rows_of
from tests.prove.peers.msprof_analyze import Peer, install, rows, run_recipes

pytestmark = pytest.mark.slow

SLOW: dict[str, Any] = {"slow_factor": 1.3, "slow_rank_lowers_clock": False}
EIGHT: dict[str, Any] = {"layers": 2, "pp": 1, "dp": 8}
# What is planted; the ranks that the recipe names (None: it says there is none); our verdicts.
CASES: dict[str, tuple[dict[str, Any], set[int] | None, set[tuple[int, str]]]] = {
    "one group of eight": (
        {**EIGHT, "ep": 1, "experts": 0, "slow_rank": 3, **SLOW}, {3}, {(3, "compute")},
    ),
    "all-to-all of eight": (
        {**EIGHT, "ep": 8, "overloaded": 3}, {3}, {(3, "alltoall_bytes")},
    ),
    "groups of two": (
        {"layers": 2, "pp": 1, "dp": 2, "ep": 2, "slow_rank": 1, **SLOW}, None, {(1, "compute")},
    ),
    "groups of three": (
        {"layers": 2, "pp": 1, "dp": 3, "ep": 3, "experts": 6, "slow_rank": 1, **SLOW},
        None, {(1, "compute")},
    ),
    "all-to-all of two": (
        {**EIGHT, "dp": 4, "ep": 2, "overloaded": 3}, None, {(3, "alltoall_bytes")},
    ),
    "groups of two among four": (
        {**EIGHT, "ep": 2, "slow_rank": 3, **SLOW}, {2, 3}, {(3, "compute")},
    ),
    "transfers between stages": (
        {"layers": 4, "pp": 4, "dp": 2, "ep": 1, "experts": 0, "slow_rank": 3, **SLOW},
        None, {(3, "compute")},
    ),
    "a slow link": (
        {**EIGHT, "ep": 8, "slow_link": (3, 5)}, None, {(3, "link"), (5, "link")},
    ),
    "nothing": ({**EIGHT, "ep": 2, "noise": 0.03}, None, set()),
}  # fmt: skip


@pytest.fixture(scope="module")
def peer() -> Peer:
    found = install()
    if found.why_not:
        reason = f"msprof-analyze could not be install: {found.why_not}"
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    return found


@dataclass(frozen=True, slots=True)
class Result:
    """A case's job, and the database that the recipe makes of it, or what it says."""

    job: Path
    made: Path | str


@pytest.fixture(scope="module")
def results(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("slow_ranks")
    jobs = {case: folder / case for case in CASES}
    for case, (planted, _, _) in CASES.items():
        job = Job(name="slow", steps=4, expert_skew=0.0, memory=False, seed=3, **planted)
        write_job(job, jobs[case], forms=("db",))
    made = run_recipes(peer, folder / "out", {case: ("slow_rank", jobs[case]) for case in CASES})
    return {case: Result(jobs[case], made[case]) for case in CASES}


def _theirs(made: Path | str) -> set[int] | None:
    if isinstance(made, str):
        assert "No slow rank found" in made
        return None
    return {rank for (rank,) in rows(made, "select rankId from SlowRank")}


def _ours(job: Path, target: Path) -> set[tuple[int, str]]:
    assert ingest(job, target, summarise=summarise, jobs=1).is_complete
    return {(row["rank"], row["verdict"]) for row in rows_of("ranks", target) if row["verdict"]}


@pytest.mark.parametrize("case", CASES)
def test_both_on_a_planted_job(case: str, results: dict[str, Result], tmp_path: Path) -> None:
    _, theirs, ours = CASES[case]
    assert _ours(results[case].job, tmp_path / "store") == ours
    assert _theirs(results[case].made) == theirs
