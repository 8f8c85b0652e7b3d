"""Everything planted in generated jobs comes back exactly: from frames, from text, from DB."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector import schema, store
from npuscope.collector.ingest import ingest
from npuscope.sample_traces.generate import Job, canonical_frames, small, write_job

JOBS = {
    "two ranks": small(),
    "moe on eight ranks": Job(name="moe", layers=2, slow_rank=3, ranks_per_host=4, seed=7),
    "well hidden": Job(name="hidden", layers=2, dp=2, pp=1, ep=2, overlap=0.9, seed=11),
    "one step": small(steps=1, seed=5),
}
FORMS = ("frames", "text", "db", "both")
ADDED_UP = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns",
    "free_ns", "bubble_ns", "profiler_bubble_ns",
)  # fmt: skip


def from_frames(job: Job) -> duckdb.DuckDBPyConnection:
    """The canonical frames as tables, without any file."""
    con = duckdb.connect()
    for table in schema.tables().values():
        con.execute(schema.create_sql(table, keys=True))
    for name, frame in canonical_frames(job).items():
        if "pmu" in frame.columns:  # polars has no maps
            frame = frame.drop("pmu")
        con.register("_frame", frame.to_arrow())
        con.execute(f"insert into {name} by name select * from _frame")
        con.unregister("_frame")
    return con


@pytest.fixture(scope="module", params=list(JOBS))
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, duckdb.DuckDBPyConnection]]:
    """Truth of a job, and the job read from each form."""
    job = JOBS[request.param]
    folder = tmp_path_factory.mktemp("planted")
    opened = {"frames": from_frames(job)}
    for name, forms in (("text", ("text",)), ("db", ("db",)), ("both", ("db", "text"))):
        write_job(job, folder / name, forms=forms)  # type: ignore[arg-type]
        result = ingest(folder / name, folder / f"{name}-store", summarise=summarise)
        assert result.is_complete
        assert not [warning for outcome in result.published for warning in outcome.warnings]
        opened[name] = store.open(folder / f"{name}-store")
    for con in opened.values():
        request.addfinalizer(con.close)
    return json.loads((folder / "text" / "truth.json").read_text()), opened


Planted = tuple[dict[str, Any], dict[str, duckdb.DuckDBPyConnection]]


@pytest.mark.parametrize("form", FORMS)
def test_steps(planted: Planted, form: str) -> None:
    truth, opened = planted

    rows = query.steps(opened[form]).to_dicts()

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


@pytest.mark.parametrize("form", FORMS)
def test_steps_add_up_to_the_whole(planted: Planted, form: str) -> None:
    truth, opened = planted
    frame = query.steps(opened[form])

    for rank, facts in truth["ranks"].items():
        rows = frame.filter(frame["rank"] == int(rank))
        for name in ADDED_UP:
            assert rows[name].sum() == facts["whole"][name], (rank, name)


@pytest.mark.parametrize("form", FORMS)
def test_kernels_by_type(planted: Planted, form: str) -> None:
    truth, opened = planted
    for rank, facts in truth["ranks"].items():
        for step, figures in facts["steps"].items():
            frame = query.kernels(opened[form], by="type", rank=int(rank), step=int(step))
            found = {
                row["type"]: (row["count"], row["total_ns"], row["max_ns"])
                for row in frame.to_dicts()
            }
            assert found == {
                kind: (known["count"], known["total_ns"], known["max_ns"])
                for kind, known in figures["kernels"].items()
            }


@pytest.mark.parametrize("form", FORMS)
def test_communication_by_parallel_kind(planted: Planted, form: str) -> None:
    truth, opened = planted
    for rank, facts in truth["ranks"].items():
        for step, figures in facts["steps"].items():
            frame = query.comm(opened[form], rank=int(rank), step=int(step))
            found: dict[str, list[int]] = {}
            for row in frame.to_dicts():
                sums = found.setdefault(row["parallel_kind"], [0, 0])
                sums[0] += row["count"]
                sums[1] += row["size_bytes"]
            assert found == {
                kind: [known["operations"], known["size_bytes"]]
                for kind, known in figures["communication"].items()
            }
