"""`npuscope mfu` as users and scripts meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.model.model import count
from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.conftest import WrittenJob

COLUMNS = [
    "run", "capture", "rank", "step", "step_ns", "matmul_flops", "attention_flops_causal",
    "attention_flops_full", "other_flops", "unresolved_kernel_ns", "peak_flops_per_s",
    "peak_source", "kernel_mfu_causal_ratio", "kernel_mfu_full_ratio", "matmul_mfu_ratio",
    "tokens_per_step", "tokens_basis", "model_flops", "model_mfu_ratio", "hfu_ratio",
    "conventions",
]  # fmt: skip


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def profile(written_job: WrittenJob) -> Path:
    return written_job(small(memory=False, comm_tasks=False), "text")


def test_rows(run: Run, profile: Path) -> None:
    code, out, _ = run("mfu", profile, "--json")
    told = json.loads(out)
    assert (code, told["metric"]) == (0, "mfu")
    assert [list(row) for row in told["rows"]] == [COLUMNS] * 4
    assert [(row["rank"], row["step"]) for row in told["rows"]] == [
        (0, 12), (0, 13), (1, 12), (1, 13)
    ]  # fmt: skip
    for row in told["rows"]:
        assert row["peak_flops_per_s"] == 20 * 1800e6 * 8192
        executed = row["matmul_flops"] + row["attention_flops_causal"]
        possible = row["step_ns"] * 1e-9 * row["peak_flops_per_s"]
        assert row["kernel_mfu_causal_ratio"] == pytest.approx(executed / possible)
        assert row["model_mfu_ratio"] is None


def test_a_model_and_a_peak(run: Run, profile: Path) -> None:
    options = ("--model", "qwen3-0.6b", "--tokens-per-step", 100, "--recompute", "full")
    _, out, _ = run("mfu", profile, *options, "--peak", "300T", "--rank", 1, "--step", 13, "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["rank"], row["step"], row["peak_source"]) == (1, 13, "--peak")
    ratio = row["model_flops"] / (row["step_ns"] * 1e-9 * 2 * 300e12)
    assert row["model_mfu_ratio"] == pytest.approx(ratio)
    assert row["hfu_ratio"] == pytest.approx(ratio * 4 / 3)
    assert "100 tokens per step" in row["conventions"]


def test_tables(run: Run, profile: Path) -> None:
    code, out, _ = run("mfu", profile)
    assert code == 0 and "kernel MFU causal" in out and "294.912" in out and "model MFU" not in out
    assert "cycles / core time" in " ".join(out.split())
    code, out, err = run("mfu", profile, "--model", "qwen3-0.6b")
    assert code == 0 and "--tokens-per-step N" in err
    code, out, _ = run("mfu", profile, "--by", "kernel", "--rank", 0, "--step", 12, "--top", 3)
    assert code == 0 and "MatMulV3" in out and out.count("bf16") == 3
    every, most = (run("mfu", profile, "--top", top, "--json").rows for top in (1000, 1))
    assert [row["step_ns"] for row in most] == [max(row["step_ns"] for row in every)]
    _, out, _ = run("mfu", profile, "--by", "kernel", "--peak", "hbm=1.6T", "--json")
    told = json.loads(out)
    assert told["metric"] == "mfu_kernels"
    assert {row["bound"] for row in told["rows"]} <= {"compute", "memory"}


def test_job_and_stages(run: Run, profile: Path) -> None:
    _, out, _ = run(
        "mfu", profile, "--by", "job", "--model", "qwen3-0.6b", "--tokens-per-step", 100
    )
    assert "tokens/s" in out and "model MFU" in out
    _, out, _ = run("mfu", profile, "--by", "stage", "--json")
    told = json.loads(out)
    assert told["metric"] == "mfu_stage"
    assert [(row["step"], row["stage"], row["rank_count"]) for row in told["rows"]] == [
        (12, 0, 2), (13, 0, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--by", "colour"), "kernel"),
        (("--peak", "fast"), "--peak"),
        (("--attention", "half"), "causal"),
        (("--tokens-per-step", "10"), "--model"),
        (("--model", "qwen3-0.6b", "--tokens-per-step", "0"), "auto"),
        (("--model", "qwen3-0.6b", "--recompute", "some"), "selective"),
        (("--model", "no-such-model"), "no-such-model"),
    ],
)
def test_usage(run: Run, profile: Path, options: tuple[str, ...], word: str) -> None:
    code, out, err = run("mfu", profile, *options)
    assert (code, out) == (2, "") and word in err


@pytest.mark.slow
def test_the_waterfall_of_a_job_and_of_each_step(run: Run, profile: Path) -> None:
    code, out, errors = run("mfu", profile, "--waterfall", "--json")
    told = json.loads(out)
    assert (code, told["metric"]) == (0, "mfu_waterfall")
    sums: dict[tuple[int, int], float] = {}
    for row in told["rows"]:
        assert list(row) == ["run", "capture", "rank", "step", "term", "part", "ns", "mfu_points"]
        place = row["rank"], row["step"]
        sums[place] = sums.get(place, 0.0) + row["mfu_points"]
    assert set(sums) == {(0, 12), (0, 13), (1, 12), (1, 13)}
    assert all(abs(total - 1) < 1e-9 for total in sums.values())
    code, out, errors = run("mfu", profile, "--waterfall")
    assert code == 0 and "vector and other compute" in out and "└ MatMulV3" in out
    code, _, errors = run("mfu", profile, "--waterfall", "--by", "job")
    assert code == 2 and "leave --by out" in errors


def test_what_the_trainer_printed_is_reconciled(run: Run, profile: Path, tmp_path: Path) -> None:
    """The model's causal count is what was printed, the full one is not."""
    model = tmp_path / "model.json"
    model.write_text(json.dumps({
        "layers": 2, "hidden_size": 1024, "vocabulary_size": 32000, "ffn_size": 4096, "gated": True,
        "attention": {"heads": 8, "kv_heads": 8, "head_dim": 128},
    }))  # fmt: skip
    per_token = float(count(model_of(str(model)), sequence_length=2048).train_flops)
    ranks, elapsed_s = 2, 0.02
    tflops = 8192 * per_token / elapsed_s / ranks / 1e12
    log = tmp_path / "train.log"
    log.write_text("".join(
        f" iteration {step}/ 100 | consumed samples: {4 * step} | elapsed time per iteration (ms):"
        f" {elapsed_s * 1e3} | throughput per GPU (TFLOP/s/GPU): {tflops:.4f} |"
        " global batch size: 4 | lm loss: 9.1E+00 |\n"
        for step in (12, 13)
    ))  # fmt: skip
    arguments = (profile, "--model", model, "--sequence-length", 2048, "--tokens-per-step", 8192)
    code, out, _ = run("mfu", *arguments, "--log", log, "--by", "log", "--json")
    found = {
        (row["convention"], row["reconciles"])
        for row in json.loads(out)["rows"]
        if row["figure"] == "tflops_per_s"
    }
    assert code == 0 and ("causal", True) in found and ("full", False) in found
    code, _, errors = run("mfu", profile, "--log", log)
    assert code == 2 and "--model" in errors
