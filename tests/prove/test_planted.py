"""Everything planted in generated jobs comes back exactly: from frames, from text, from DB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import duckdb
import polars as pl
import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector import schema
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job, canonical_frames, small, write_job
from npuscope.sample_traces.truth import truth
from tests.analysis.tables import connect, put

JOBS = {
    "two ranks": small(),
    "moe on eight ranks": Job(name="moe", layers=2, slow_rank=3, ranks_per_host=4, seed=7),
    "well hidden": Job(name="hidden", layers=2, dp=2, pp=1, ep=2, overlap=0.9, seed=11),
    "one step": small(steps=1, seed=5),
    "sixty-four ranks": Job(
        name="wide", layers=2, tp=2, pp=2, dp=16, ep=4, steps=3, comm_tasks=False, memory=False,
        seed=9,
    ),
}  # fmt: skip
FORMS: dict[str, tuple[Literal["text", "db"], ...]] = {
    "frames": (), "text": ("text",), "db": ("db",), "both": ("db", "text"),
}  # fmt: skip
ADDED_UP = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns",
    "free_ns", "bubble_ns", "profiler_bubble_ns",
)  # fmt: skip
PLANTED_OF_A_KIND = (
    "operations", "communication_ns", "masked_ns", "masking_ratio", "size_bytes",
)  # fmt: skip


def from_frames(job: Job) -> duckdb.DuckDBPyConnection:
    """The canonical frames as tables, without any file."""
    con = connect()
    # Of a large job only what its figures need: hosts' calls are most of its rows.
    small_ones = ("ranks", "groups", "steps", "kernels", "comm_ops")
    needed = small_ones if job.world_size > 8 else tuple(schema.tables())
    put(con, canonical_frames(job, tables=needed))
    return con


Planted = tuple[dict[str, Any], duckdb.DuckDBPyConnection]


# Forms of one job agree elsewhere too: each of them for the smallest job, the longer ones apart.
QUICK = {
    ("frames", "two ranks"),
    ("text", "two ranks"),
    ("db", "two ranks"),
    ("frames", "one step"),
}
CASES = [
    pytest.param(
        (job, form),
        id=f"{job}-{form}",
        marks=[] if (form, job) in QUICK else [pytest.mark.slow],
    )
    for job in JOBS
    for form in FORMS
    if form == "frames" or job != "sixty-four ranks"
    # Where both forms lie side by side one is chosen for all jobs alike.
    if form != "both" or job in ("two ranks", "moe on eight ranks")
]


@pytest.fixture(scope="module", params=CASES)
def job_truth(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planted]:
    """Truth of a job, and the job read from one form."""
    name, form = request.param
    job, folder = JOBS[name], tmp_path_factory.mktemp("planted")
    if FORMS[form]:
        write_job(job, folder / "job", forms=FORMS[form])
        result = ingest(folder / "job", folder / "store", summarise=summarise, jobs=1)
        assert result.is_complete
        assert not [warning for outcome in result.publications for warning in outcome.warnings]
        con = store.open(folder / "store")
    else:
        con = from_frames(job)
        (folder / "job").mkdir()
        (folder / "job" / "truth.json").write_text(json.dumps(truth(job, captures(job))))
    yield json.loads((folder / "job" / "truth.json").read_text()), con
    con.close()


def _by_place(frame: pl.DataFrame) -> dict[tuple[Any, ...], pl.DataFrame]:
    """Rows of each rank and step."""
    return frame.partition_by("rank", "step", as_dict=True)


def test_steps(job_truth: Planted) -> None:
    truth, con = job_truth

    rows = query.steps(con).to_dicts()

    expected = [
        (int(rank), int(step), figures)
        for rank, facts in sorted(truth["ranks"].items(), key=lambda item: int(item[0]))
        for step, figures in facts["steps"].items()
    ]
    assert [(row["rank"], row["step"]) for row in rows] == [(r, s) for r, s, _ in expected]
    for row, (_, _, figures) in zip(rows, expected, strict=True):
        ours = {name: row[name] for name in figures if name in row and name != "masking_ratio"}
        assert ours == {name: figures[name] for name in ours}
        assert len(ours) == 13
        assert row["masking_ratio"] == pytest.approx(figures["masking_ratio"], abs=1e-12)


def test_steps_add_up_to_the_whole(job_truth: Planted) -> None:
    truth, con = job_truth
    frame = query.steps(con)

    for rank, facts in truth["ranks"].items():
        rows = frame.filter(frame["rank"] == int(rank))
        for name in ADDED_UP:
            assert rows[name].sum() == facts["whole"][name], (rank, name)


def test_kernels_by_type(job_truth: Planted) -> None:
    truth, con = job_truth
    frames = _by_place(query.kernels(con, by="type"))
    for rank, facts in truth["ranks"].items():
        for step, figures in facts["steps"].items():
            frame = frames[int(rank), int(step)]
            found = {
                row["type"]: (row["count"], row["total_ns"], row["max_ns"])
                for row in frame.to_dicts()
            }
            assert found == {
                kind: (known["count"], known["total_ns"], known["max_ns"])
                for kind, known in figures["kernels"].items()
            }


def test_communication_by_parallel_kind(job_truth: Planted) -> None:
    truth, con = job_truth
    keys: tuple[query.CommKey, ...] = ("kind", "type", "op")
    frames = {by: _by_place(query.comm(con, by=by)) for by in keys}
    for rank, facts in truth["ranks"].items():
        for step, figures in facts["steps"].items():
            place = int(rank), int(step)
            found = frames["kind"][place]
            names = ("op_count", "union_ns", "masked_ns", "masking_ratio", "size_bytes")
            assert {
                row["kind"]: tuple(row[name] for name in names) for row in found.to_dicts()
            } == {
                kind: tuple(known[name] for name in PLANTED_OF_A_KIND)
                for kind, known in figures["communication"].items()
            }
            for by in keys:
                frame = frames[by][place]
                assert frame["op_count"].sum() == found["op_count"].sum()
                exposed_ns = figures["exposed_communication_ns"]
                assert frame["exposed_attributed_ns"].sum() == exposed_ns
