"""`npuscope whatif` as users start it."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.catalog import metric
from tests.analysis.replay.phase_traces import Plan, write_trace
from tests.cli.command import Run


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = Plan(pp=3, seed=2, factor=lambda op: 1.5 if op.stage == 2 else 1.0)
    return write_trace(plan, tmp_path_factory.mktemp("phases") / "trace.parquet")


def test_json_is_one_row_of_the_metric(run: Run, trace: Path) -> None:
    told = run("whatif", trace, "--json").json()
    (row,) = told["rows"]
    assert told["metric"] == "whatif" and len(told["notes"]) == 2
    assert list(row) == [column.name for column in metric("whatif").columns]
    assert row["predicted_ns"] is None and row["slowdown"] > 1
    assert row["worst_workers"][0][1] == 2 and row["last_stage_share"] > 0.5
    assert [one["step"] for one in row["steps"]] == [3, 13]
    changed = run("whatif", trace, "stage:2=0.5", "comm:pp=0", "--json").rows[0]
    assert changed["predicted_ns"] < changed["replayed_ns"] == row["replayed_ns"]
    assert {**changed, "predicted_ns": None, "steps": row["steps"]} == row


def test_tables_say_what_is_gained_and_where_it_is_lost(run: Run, trace: Path) -> None:
    plain, ideal = run("whatif", trace), run("whatif", trace, "ideal")
    assert plain.code == ideal.code == 0
    assert "What makes the step longer" in plain.out and "with the changes" not in plain.out
    assert "What makes the step longer" in ideal.out and "with the changes" in ideal.out
    rows = [line.split() for line in plain.out.partition("each alone")[2].splitlines()]
    assert ["stage", "2"] in [line[:2] for line in rows[3:5]]
    assert "launch delays are left out" in plain.err
    half = run("whatif", trace, "rank:all=0.5")
    assert "x 2.0000" in half.out and "What makes" not in half.out


@pytest.mark.parametrize(
    ("change", "told"), [("comm:pp", "the value"), ("comm:ep=1", "pp, dp"), ("half", "change one")]
)
def test_a_wrong_change_is_a_wrong_use(run: Run, trace: Path, change: str, told: str) -> None:
    refused = run("whatif", trace, change)
    assert (refused.code, refused.out) == (2, "") and told in refused.err


def test_what_is_no_phase_level_trace_is_refused(
    run: Run, trace: Path, small_store: Path, tmp_path: Path
) -> None:
    (tmp_path / "trace_view.json").write_text("[]")
    (tmp_path / "cut.parquet").write_bytes(trace.read_bytes()[:999])
    segment = next(small_store.rglob("kernels*.parquet"))
    for path, told in (
        (small_store, "replay of profiler traces is not there yet"),
        (tmp_path, "replay of profiler traces is not there yet"),
        (tmp_path / "trace_view.json", "replay of profiler traces is not there yet"),
        (tmp_path / "absent", "no such file"),
        (tmp_path / "cut.parquet", "cannot be read"),
        (segment, "it lacks"),
    ):
        for more in ((), ("comm:pp=0.5", "--json")):
            refused = run("whatif", path, *more)
            assert (refused.code, refused.out) == (3, "") and told in refused.err, path
            assert len(refused.err.strip().splitlines()) == 1


def test_other_commands_name_the_one_that_reads_it(run: Run, trace: Path) -> None:
    refused = run("steps", trace)
    assert refused.code == 3 and "`npuscope whatif`" in refused.err
