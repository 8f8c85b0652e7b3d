"""`experts plan` and `experts backtest` on hook files and dumps: figures, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from npuscope.analysis.experts.cost.cost_answer import cost_rows
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.experts.plan.placement import replicas
from npuscope.commands.plan.experts_plan import backtest_command, plan_command
from npuscope.errors import TraceNotFound, UsageError
from npuscope.profile import Source, compare_ranks, open_tables
from npuscope.sample_traces.generate import write_job
from npuscope.sample_traces.job import Job
from tests.analysis.experts.expert_matrices import read_back
from tests.collector.readers.expert_load.expert_dumps import line, write_dump, write_hook

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command("plan")(plan_command)
app.command("backtest")(backtest_command)


def ask(*words: str | int | Path) -> Any:
    """The JSON that a command answers with."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of 16 experts in four layers, eight steps, as a hook writes them."""
    job = Job(name="hook", layers=4, pp=2, dp=8, ep=4, experts=16, steps=8)
    folder = tmp_path_factory.mktemp("hook")
    write_hook(job, folder / "tokens_per_expert")
    return folder


def test_plan_of_hook_files(hook: Path, tmp_path: Path) -> None:
    out, order = tmp_path / "deployment.json", tmp_path / "order.json"
    answer = ask(
        "plan", hook, "--devices", "4", "--slots", "5", "--expert-bytes", "90MB", "-o", out,
        "--permutation", order,
    )  # fmt: skip
    *layers, total = answer["rows"]
    assert [row["layer"] for row in layers] == [0, 1, 2, 3] and total["layer"] is None
    assert all(row["max_over_mean_after"] < row["max_over_mean_before"] for row in layers)
    assert total["moved_experts_count"] == sum(row["moved_experts_count"] for row in layers)
    assert total["migration_bytes"] == total["moved_experts_count"] * 90 * (1 << 20)
    assert total["predicted_gain_ns"] is None and total["trigger"] is None
    assert any(note.startswith("forecast by") for note in answer["notes"])
    placement, named = read_back(out)
    assert placement.shape == (4, 4, 5) and named == [0, 1, 2, 3]
    assert (replicas(placement, 16) > 0).all()
    told = json.loads(order.read_text())["layers"][1]["physical_to_logical"]
    assert told == placement[1].ravel().tolist()


def test_backtest_of_hook_files(hook: Path) -> None:
    answer = ask("backtest", hook, "--horizon", "3")
    rows = answer["rows"]
    assert {row["method"] for row in rows} == {"last", "mean", "ema", "trend"}
    errors = [row["error_ratio"] for row in rows]
    assert errors == sorted(errors) and rows[0]["is_best"]
    assert all(row["low_ratio"] < row["median_ratio"] < row["high_ratio"] for row in rows)
    assert {row["tested_steps"] for row in rows} == {3}
    assert not any("step is recorded" in note for note in answer["notes"])


def test_steps_that_are_told_now_and_then(tmp_path: Path) -> None:
    (tmp_path / "tokens_per_expert").mkdir()
    lines = [line(10 * step, 0, [step, 5, 9 - step, 4]) for step in range(8)]
    (tmp_path / "tokens_per_expert" / "rank0.jsonl").write_text("".join(lines))
    answer = ask("backtest", tmp_path, "--horizon", 3)
    assert any("only every 10th step is recorded" in note for note in answer["notes"])


def test_what_cannot_be_planned_is_refused(hook: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--devices"):
        ask("plan", hook)
    with pytest.raises(UsageError, match=r"4 devices x 3 slots = 12 .* 16 experts"):
        ask("plan", hook, "--devices", "4", "--slots", "3")
    with pytest.raises(UsageError, match=r"4 layers x 5 slots x .* do not fit"):
        ask(
            "plan", hook, "--devices", "4", "--slots", "5", "--expert-bytes", "1GB",
            "--device-memory", "16GB",
        )  # fmt: skip
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceNotFound):
        ask("plan", tmp_path / "empty", "--devices", "4", "--store", tmp_path / "store")


def test_a_dump_is_one_step(tmp_path: Path) -> None:
    names = {f"decode_{rank}": [[10 + rank * 7, 40 - rank * 9]] * 3 for rank in range(4)}
    folder = write_dump(tmp_path / "dump", names, num_moe_layers=3, num_of_experts=8)
    answer = ask("plan", folder, "--devices", "4", "--slots", "3")
    assert len(answer["rows"]) == 4
    assert any("1 steps are too few" in note for note in answer["notes"])
    assert not any("no placement" in note for note in answer["notes"])
    for devices in (2, 8):  # fewer and more than there are now: begun afresh, and said
        answer = ask("plan", folder, "--devices", devices)
        assert answer["rows"][-1]["max_over_mean_after"] >= 1
        assert any("no placement for this number of devices" in note for note in answer["notes"])
    with pytest.raises(UsageError, match="three steps"):
        ask("backtest", folder)


@pytest.mark.slow
def test_a_profile_prices_its_plan(tmp_path: Path) -> None:
    """With kernels beside the load, gains are times: what the fullest devices are too full by; with
    all-to-alls also what those take, over the link that they show."""
    job = Job(name="priced", layers=2, pp=1, dp=4, ep=4, experts=8, steps=6, seed=3)
    write_job(job, tmp_path / "profile", forms=("text",))
    write_hook(job, tmp_path / "profile" / "tokens_per_expert")
    words = ("plan", tmp_path / "profile", "--store", tmp_path / "store", "--devices", "4",
             "--slots", "3", "--expert-bytes", "90MB", "--horizon", "100")  # fmt: skip
    answer = ask(*words, "--link", "20GB", "--token-bytes", "0")
    measured = ask(*words)
    *layers, total = answer["rows"]
    with open_tables(Source(tmp_path / "store", None, None, None, None, False)) as data:
        tables = expert_rows(data.con)
        compare_ranks(data)
        costs, _ = cost_rows(data.con, tables)
    grouped = pl.col("grouped_excess_ns")
    both = grouped + pl.col("exchange_excess_ns")  # a plan prices no activations
    for cost, rows in ((grouped, layers), (both, measured["rows"][:-1])):
        excess_ns = dict(costs.group_by("layer").agg(cost.mean()).iter_rows())
        for row in rows:
            now, then = row["max_over_mean_before"] - 1, row["max_over_mean_after"] - 1
            expected = excess_ns[row["layer"]] * (now - then) / now
            assert row["predicted_gain_ns"] == pytest.approx(expected, rel=0.03)
    # Four devices of one host: three links of 20 GB/s each.
    assert any(note.startswith("link bandwidth of a device: 5") for note in measured["notes"])
    assert not any(note.startswith("link bandwidth of a device") for note in answer["notes"])
    assert measured["rows"][-1]["migration_ns"] < total["migration_ns"]
    assert total["gain_low_ns"] < total["predicted_gain_ns"] < total["gain_high_ns"]
    assert total["trigger"] is (total["break_even_steps"] < 100)
    assert any("move now: pays off after" in note for note in answer["notes"])


def test_tables_for_people(hook: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(hook), "--devices", "4"])
    assert done.exit_code == 0 and "Plan for experts" in done.stdout and "all" in done.stdout
    done = CliRunner().invoke(app, ["backtest", str(hook), "--horizon", "3"])
    assert done.exit_code == 0 and "Forecasts of expert load" in done.stdout
