"""`npuscope whatif` as users start it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.analysis.catalog import metric
from npuscope.sample_traces.generate import small, write_job
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
    share = run("whatif", trace, "--json").rows[0]["last_stage_share"]
    assert ("above 100 %" in plain.out) == (share > 1)
    half = run("whatif", trace, "rank:all=0.5")
    assert "x 2.0000" in half.out and "What makes" not in half.out


@pytest.mark.parametrize(
    ("change", "told"), [("comm:pp", "the value"), ("comm:ep=1", "pp, dp"), ("half", "change one")]
)
def test_a_wrong_change_is_a_wrong_use(run: Run, trace: Path, change: str, told: str) -> None:
    refused = run("whatif", trace, change)
    assert (refused.code, refused.out) == (2, "") and told in refused.err


@pytest.mark.slow
def test_a_profile_is_replayed_and_asked(run: Run, sample_store: Path) -> None:
    told = run("whatif", sample_store, "rank:all=median", "comm:ep=0.5", "--json").json()
    assert told["metric"] == "whatif_steps"
    *steps, mean = told["rows"]
    assert [row["step"] for row in (*steps, mean)] == [12, 13, None]
    assert list(mean) == [column.name for column in metric("whatif_steps").columns]
    for row in told["rows"]:
        assert row["predicted_low_ns"] < row["predicted_step_ns"] < row["predicted_high_ns"]
        assert row["predicted_high_ns"] < row["replayed_step_ns"]
        assert row["replayed_step_ns"] == pytest.approx(row["measured_step_ns"], rel=0.005)
    for name in ("measured_step_ns", "predicted_step_ns"):
        assert mean[name] == pytest.approx(sum(row[name] for row in steps) / 2, abs=1)
    trust = run("replay", sample_store, "--json").json()["notes"]
    assert told["notes"][: len(trust)] == trust and "without recorded gaps" in trust[0]
    slack = run("critical-path", sample_store, "--slack", "--top", "5", "--json").json()
    assert slack["metric"] == "operation_slack" and len(slack["rows"]) == 10
    assert {row["slack_ns"] for row in slack["rows"]} == {0}
    assert "longer by" in run("critical-path", sample_store, "--slack").out
    second = run("critical-path", sample_store, "--runner-up", "--json").json()
    assert second["metric"] == "runner_up_path" and {row["step"] for row in second["rows"]} == {
        12,
        13,
    }
    assert "path is shorter" in run("critical-path", sample_store, "--runner-up").out
    assert run("critical-path", sample_store, "--runner-up", "--slack").code == 2
    table = run("whatif", sample_store, "rank:all=median")
    assert table.code == 0 and "mean" in table.out and trust[0] in table.err
    assert "without gaps" in run("replay", sample_store).out


@pytest.mark.slow
def test_what_a_profile_does_not_tell_is_refused_in_a_sentence(
    run: Run, sample_store: Path, real_stores: Callable[[str], Path]
) -> None:
    qwen = real_stores("qwen3_pp2_dp2_text_level2")
    for path, words, code, told in (
        (qwen, ("host=0.5",), 3, "no launches were recorded"),
        (qwen, ("kernel:MatMul*=0.5", "host:free"), 3, "no launches were recorded"),
        (qwen, ("comm:all=0.5",), 3, "record all ranks"),
        (qwen, ("experts:balanced",), 3, "all-to-alls"),
        (qwen, ("fuse:MatMul*",), 3, "no launches were recorded"),
        (sample_store, (), 2, "say what changes"),
        (sample_store, ("comm:cp=0.5",), 2, "no such comm"),
    ):
        refused = run("whatif", path, *words)
        assert (refused.code, refused.out) == (code, "") and told in refused.err
        assert len(refused.err.strip().splitlines()) == 1


@pytest.mark.slow
def test_what_is_missing_is_told_as_by_all_commands(run: Run, tmp_path: Path) -> None:
    job = small(dp=3, ep=1, steps=4, evaluate_every=4, memory=False)
    write_job(job, tmp_path / "job", forms=("db",))
    shutil.rmtree(sorted((tmp_path / "job").glob("*_ascend_pt"))[2])
    told = run("steps", tmp_path / "job", "--json").json()["notes"]
    assert any("missing" in note for note in told) and len(told) > 1
    for words in (
        ("replay",), ("critical-path",), ("critical-path", "--slack"),
        ("critical-path", "--runner-up"), ("whatif", "host=0.5"),
    ):  # fmt: skip
        verb, *more = words
        assert run(verb, tmp_path / "job", *more, "--json").json()["notes"][-len(told) :] == told


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet_ddp_db_level1", "alexnet_ddp_text_level1"])
def test_real_profiles_are_found_back(
    run: Run, real_stores: Callable[[str], Path], name: str
) -> None:
    told = run("replay", real_stores(name), "--json").json()
    for row in told["rows"]:
        assert abs(row["error_ratio"]) < 0.01 and abs(row["without_gaps_error_ratio"]) < 0.02
        assert row["exogenous_ratio"] > 0.5  # two of eight ranks were recorded
    host = run("whatif", real_stores(name), "host=0.5", "--json").rows[-1]
    assert host["predicted_high_ns"] > host["measured_step_ns"]  # the other six may not follow


def test_what_is_no_phase_level_trace_is_refused(
    run: Run, trace: Path, small_store: Path, tmp_path: Path
) -> None:
    (tmp_path / "trace_view.json").write_text("[]")
    (tmp_path / "cut.parquet").write_bytes(trace.read_bytes()[:999])
    segment = next(small_store.rglob("kernels*.parquet"))
    for path, told in (
        (tmp_path / "absent", "no such"),
        (tmp_path / "cut.parquet", "cannot be read"),
        (segment, "it lacks"),
    ):
        for more in (("comm:pp=0.5",), ("comm:pp=0.5", "--json")):
            refused = run("whatif", path, *more)
            assert (refused.code, refused.out) == (3, "") and told in refused.err, path
            assert len(refused.err.strip().splitlines()) == 1


def test_other_commands_name_the_one_that_reads_it(run: Run, trace: Path) -> None:
    refused = run("steps", trace)
    assert refused.code == 3 and "`npuscope whatif`" in refused.err
