"""Scaled captures for benchmarks are what they claim: further steps, all different, all equal."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from tests.conftest import REPOSITORY

RANKS = 2
FORMS = {"text": ("text", "--mb", "11", "--stacks"), "db": ("db", "--mb", "2")}
FIGURES = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns", "free_ns",
    "bubble_ns", "profiler_bubble_ns", "stage_ns", "preparing_ns",
)  # fmt: skip
INSTANTS = ("start_ns", "end_ns", "window_start_ns", "window_end_ns")


def build(form: str, out: Path) -> dict[str, Any]:
    """Runs the generator; what it recorded of the capture."""
    command = [sys.executable, "-m", "bench.inputs.captures", *FORMS[form]]
    command += ["--ranks", str(RANKS), "--jobs", "1"]
    # Commands that ran in this process keep their children out of their own folders.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*command[:4], str(out), *command[4:]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    recorded: dict[str, Any] = json.loads((out / "capture.json").read_text())
    return recorded


def digests(folder: Path) -> dict[str, str]:
    """Content of every file of a capture, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module", params=sorted(FORMS))
def capture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, Any]]:
    """Form, folder and record of a small scaled capture."""
    folder = tmp_path_factory.mktemp("scaled") / request.param
    recorded = build(request.param, folder)
    assert recorded["built"]["repetitions"] >= 2
    return request.param, folder, recorded


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes_and_are_reused(
    capture: tuple[str, Path, dict[str, Any]], tmp_path: Path
) -> None:
    form, folder, _ = capture
    again = tmp_path / "again"
    build(form, again)
    assert digests(again) == digests(folder)
    before = {path: path.stat().st_mtime_ns for path in again.rglob("*")}
    build(form, again)
    assert {path: path.stat().st_mtime_ns for path in again.rglob("*")} == before


@pytest.mark.slow
def test_steps_repeat_as_planted(capture: tuple[str, Path, dict[str, Any]], tmp_path: Path) -> None:
    _, folder, recorded = capture
    result = ingest(folder, tmp_path / "store", jobs=1, summarise=summarise)
    assert result.is_complete and len(result.publications) == RANKS
    for known in manifests(tmp_path / "store"):
        assert (known.warnings, known.failed_files) == ([], {})
        assert (known.rows_lost, known.bytes_lost) == (0, 0)
    planted, repetitions = recorded["planted"], recorded["built"]["repetitions"]
    with closing(store.open(tmp_path / "store")) as con:
        rows = query.steps(con).to_dicts()
        found = {(row["rank"], row["step"]): row for row in rows}
        expected = {
            (int(rank), int(step) + repetition * len(truth["steps"])): (repetition, figures)
            for rank, truth in planted["ranks"].items()
            for step, figures in truth["steps"].items()
            for repetition in range(repetitions)
        }
        assert sorted(found) == sorted(expected)
        for key, (repetition, figures) in expected.items():
            for name in FIGURES:
                assert found[key][name] == figures[name], (key, name)
            for name in INSTANTS:
                shifted = figures[name] + repetition * planted["period_ns"]
                assert found[key][name] == shifted, (key, name)
        ((kernels, distinct),) = con.execute(
            "select count(*), count(distinct (rank, stream_id, task_id, context_id, start_ns))"
            " from kernels"
        ).fetchall()
        assert kernels == distinct
        ((kernels, launched),) = con.execute(
            "select count(*), count(l.connection_id) from kernels k left join"
            " (select distinct rank, connection_id from launches) l using (rank, connection_id)"
            " where k.is_compute"
        ).fetchall()
        assert kernels == launched > 0


@pytest.mark.slow
def test_every_flow_has_its_two_ends(tmp_path: Path) -> None:
    recorded = build("text", tmp_path / "text")
    total = 0
    for path in (tmp_path / "text").rglob("trace_view.json"):
        events = json.loads(path.read_text())
        total += len(events)
        sides: dict[tuple[object, ...], str] = {}
        for event in events:
            if event["ph"] in "sf":
                key = (event["cat"], event["id"])
                sides[key] = sides.get(key, "") + event["ph"]
        # A collective on vector cores is a kernel and an operation of one launch.
        assert set(Counter(sides.values())) <= {"sf", "sff", "fs"}
        steps = [e["name"] for e in events if e["name"].startswith("ProfilerStep#")]
        first, count = 12, recorded["built"]["repetitions"] * 2
        assert steps == [f"ProfilerStep#{first + number}" for number in range(count)]
        phases = Counter(event["ph"] for event in events)
        assert 0.3 < phases["C"] / len(events) < 0.4
        stacks = [len(e["args"]["Call stack"]) for e in events if "Call stack" in e.get("args", {})]
        assert len(stacks) / phases["X"] == pytest.approx(0.1, abs=0.01)
        assert sum(stacks) / len(stacks) == pytest.approx(1200, rel=0.1)
    assert total == recorded["built"]["events"]


def test_identifiers_of_a_database_stay_unique(tmp_path: Path) -> None:
    recorded = build("db", tmp_path / "db")
    tasks = 0
    for path in (tmp_path / "db").rglob("ascend_pytorch_profiler_*.db"):
        with closing(sqlite3.connect(path)) as con:
            for table, key in (
                ("TASK", "globalTaskId"), ("CANN_API", "connectionId"), ("CONNECTION_IDS", "id"),
                ("COMMUNICATION_OP", "opName"), ("STEP_TIME", "id"), ("STRING_IDS", "id"),
            ):  # fmt: skip
                query_ = f"select count(*), count(distinct {key}) from {table}"
                count, distinct = con.execute(query_).fetchone()
                assert count == distinct > 0, table
                tasks += count if table == "TASK" else 0
            unnamed = con.execute(
                "select count(*) from COMMUNICATION_OP o left join STRING_IDS s on s.id = o.opName"
                " where s.value is null or s.value not like 'hcom%'"
            ).fetchone()
            assert unnamed == (0,)
            assert con.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert tasks == recorded["built"]["tasks"]
