"""`npuscope health`: logs and stores, against another log."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from npuscope.collector.training import sequence_length_recorder
from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.conftest import REPOSITORY, WrittenJob

LINE = (
    "iteration {0}/ 500 | elapsed time per iteration (ms): {1} | lm loss: {2} | grad norm: {3} |\n"
)


def log(path: Path, spiked: set[int]) -> Path:
    path.write_text(
        "".join(
            LINE.format(step, 5000 + step % 7, 9.1, (50 if step in spiked else 1) + step % 5 / 50)
            for step in range(1, 401)
        )
    )
    return path


@pytest.mark.parametrize("option", ["--top-k", "--tokens-per-step"])
def test_a_log_alone_tells_no_refused_tokens(run: Run, tmp_path: Path, option: str) -> None:
    outcome = run("health", log(tmp_path / "a.log", set()), option, "2")
    assert outcome.code == 2 and f"{option}: a log does not tell" in outcome.err


def test_a_log_against_another(run: Run, tmp_path: Path) -> None:
    ours, theirs = log(tmp_path / "a.log", {99}), log(tmp_path / "b.log", set(range(60, 390, 10)))
    told = run("health", ours, "--against", theirs, "--json")
    assert (told.code, told.json()["metric"], len(told.rows)) == (0, "health", 400)
    (event,) = told.json()["events"]
    assert (event["kind"], event["metric"], event["step"]) == ("spike", "grad_norm", 99)
    assert told.json()["summary"]["grad_norm_spikes_count"] == 1
    assert "97.0 % fewer spikes" in told.json()["notes"][0]
    shown = run("health", ours, "--against", theirs)
    assert "spike" in shown.out
    assert "97.0 % fewer spikes" in shown.err and "beside" not in shown.err
    (tmp_path / "a.log.1").write_bytes(gzip.compress(ours.read_bytes()))
    assert "a.log.1 beside a.log may hold what was logged before" in run("health", ours).err
    refused = run("health", tmp_path / "a.log.1")
    assert refused.code == 3 and "a compressed file: unpack it" in refused.err


def test_steps_of_long_trainings_are_whole_and_unknown_ones_a_dash(
    run: Run, tmp_path: Path
) -> None:
    told = "".join(
        LINE.format(step, (5 if step < 40_100 else 6) * 1000 + step * 7919 % 41, 9.1, 1)
        for step in range(12_000, 56_000)
    )
    (tmp_path / "long.log").write_text(told)
    shown = run("health", tmp_path / "long.log")
    (change,) = [line.split() for line in shown.out.splitlines() if line.startswith("change")]
    assert change[2:5] == ["40100", "55999", "15,900"]
    lines = "{'loss': 1.25, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 20
    (tmp_path / "unnumbered.log").write_text(lines)
    shown = run("health", tmp_path / "unnumbered.log")
    assert shown.code == 0 and "None" not in shown.out


def test_what_has_no_log_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("nothing\n")
    told = run("health", tmp_path / "empty.log")
    assert (told.code, "no logged step" in told.err) == (3, True)
    assert run("health", tmp_path / "gone.log").code == 3


VERL = (
    "step:{0} - timing_s/gen:{1} - timing_s/update_actor:30.0 - timing_s/step:100.0 - actor/lr:1e-6"
    " - timing_s/agent_loop/generate_sequences/mean:40.0 - perf/total_num_tokens:{2}"
    " - timing_s/agent_loop/generate_sequences/max:np.float64(60.0) - perf/throughput:{3}\n"
)


def test_reinforcement_learning_by_phase_and_over_supernodes(run: Run, tmp_path: Path) -> None:
    def log(name: str, tokens: float) -> Path:
        (tmp_path / name).write_text(
            "".join(VERL.format(step, 65.0, tokens, tokens / 100 / 16) for step in (1, 2, 3))
        )
        return tmp_path / name

    one, four = log("one.log", 3.5e6), log("four.log", 12.7e6)
    told = run("health", one, "--scaling", f"4={four}", "--rollout-cards", "12", "--json")
    phases = {row["phase"]: row["device_share"] for row in told.json()["phases"]}
    assert phases == pytest.approx({"generation": 0.4875, "update_actor": 0.075, "other": 0.05})
    assert [row["linear_share"] for row in told.json()["scaling"]] == [1.0, 127 / 140]
    assert {row["case"] for row in told.json()["bounds"]} == {"now", "fused", "stale"}
    shown = run("health", one, "--scaling", f"4={four}").out
    assert "90.7 %" in shown and "Bounds" in shown
    assert run("health", one, "--scaling", "four.log").code == 2
    assert run("health", one, "--rollout-cards", "16").code == 2


def test_speculation_of_a_serving_engine(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text("sglang:spec_accept_length 2.5\nsglang:gen_throughput 1000\n")
    told = run("health", path, "--draft-cost", "0.25", "--json")
    assert told.json()["metric"] == "health_speculation"
    assert told.rows[0]["worth_tokens_per_s"] == 500
    assert "2.50" in run("health", path).out


def test_unequal_sequences_of_a_profiled_job(run: Run, tmp_path: Path, sample_store: Path) -> None:
    for rank in range(8):
        with sequence_length_recorder(tmp_path, rank=rank, start_step=11) as recorder:
            for step in range(11, 15):
                recorder.record([512 * (1 + rank % 3), 256 * (step - 9)])
                recorder.step()
    told = run("health", sample_store, "--lengths", tmp_path, "--json")
    assert [row["step"] for row in told.rows] == [11, 12, 13, 14]  # the profile knows 12 and 13
    assert [row["ranks_count"] for row in told.rows] == [8] * 4
    assert "of 16 steps of ranks" in told.json()["notes"][0]
    assert "Sequences" in run("health", sample_store, "--lengths", tmp_path).out
    assert run("health", sample_store, "--lengths", sample_store).code == 3


@pytest.mark.slow
def test_dropped_tokens_by_the_log_and_a_hook(
    run: Run, written_job: WrittenJob, tmp_path: Path
) -> None:
    """Step 100 gives experts all of 2 x 8 tokens x top-k 2, step 101 all but 4."""
    counts = tmp_path / "tokens_per_expert"
    counts.mkdir()
    for rank in range(8):
        (counts / f"rank{rank}.jsonl").write_text(
            '{"iter": 100, "layer": 3, "tpe": [3, 1], "n_micro": 1}\n'
            f'{{"iter": 101, "layer": 3, "tpe": [3, {rank % 2}], "n_micro": 1}}\n'
        )
    logged = log(tmp_path / "a.log", set())
    logged.write_text(
        "  global_batch_size .......... 2\n  seq_length .......... 8\n" + logged.read_text()
    )
    store = tmp_path / "store"
    told = run("ingest", REPOSITORY / "sample_traces" / "moe_8_ranks", "--store", store,
               "--expert-load", counts, "--train-log", logged)  # fmt: skip
    assert told.code == 0, told.err
    told = run("health", store, "--top-k", "2", "--json")
    assert [(one["step"], one["dropped_ratio"]) for one in told.json()["dropped"]] == [
        (100, 0.0), (101, 0.125),
    ]  # fmt: skip
    assert "Tokens that experts refused" in run("health", store, "--top-k", "2").out
    # What is left is answered, and that something is left out is told.
    torn = written_job(small(), "text")
    assert run("ingest", torn, "--store", store, "--run", "torn").code == 0
    next((store / "run=torn").rglob("kernels*.parquet")).write_bytes(b"PAR1")
    partly = run("health", store, "--top-k", "2", "--json")
    assert partly.code == 4 and partly.json()["dropped"] == told.json()["dropped"]
