"""`npuscope model`: counts, presets and reconciled figures on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Run

COLUMNS = [
    "model", "sequence_length", "attention", "mtp", "router", "recompute", "forward_flops",
    "matmul_flops", "attention_flops", "backward_flops", "train_flops", "recomputed_flops",
    "hardware_flops", "megatron_flops", "megatron_before_2025_03_flops", "parameters",
    "active_parameters", "embedding_parameters", "mtp_parameters", "mtp_active_parameters",
    "conventions", "terms",
]  # fmt: skip
TERM = [
    "part", "term", "kind", "formula", "layer_count", "layer_flops", "forward_flops",
    "train_flops", "share_ratio",
]  # fmt: skip


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")


def rows(out: str, metric: str) -> list[dict[str, Any]]:
    told = json.loads(out)
    assert list(told) == ["schema_version", "metric", "rows", "notes"]
    assert told["metric"] == metric
    found: list[dict[str, Any]] = told["rows"]
    return found


def test_a_count_as_json(run: Run) -> None:
    code, out, _ = run("model", "deepseek-v3", "--attention", "full", "--mtp", 0, "--json")
    (row,) = rows(out, "model")
    assert (code, list(row)) == (0, COLUMNS)
    assert [list(term) for term in row["terms"]] == [TERM] * len(row["terms"])
    assert row["train_flops"] == 280_513_609_728
    assert sum(term["train_flops"] for term in row["terms"]) == row["train_flops"]
    assert sum(term["share_ratio"] for term in row["terms"]) == pytest.approx(1)
    for term in row["terms"]:
        assert term["forward_flops"] == term["layer_flops"] * term["layer_count"]
    assert row["megatron_before_2025_03_flops"] - row["train_flops"] == 6 * 61 * (1536 + 512)
    _, out, _ = run("model", "deepseek-v3", "--mtp", 0, "--recompute", "full", "--router", "--json")
    (row,) = rows(out, "model")
    assert row["hardware_flops"] * 3 == row["train_flops"] * 4
    assert f"{row['train_flops'] / 1e9:.2f}" == "250.45"


def test_a_count_as_tables(run: Run) -> None:
    code, out, err = run(
        "model", "pangu-ultra-moe-718b", "--sequence-length", 8192, "--attention", "full"
    )
    assert (code, err) == (0, "")
    for said in (
        "MTP blocks projection of two", "2 s a (d_n + d_r + d_v)", "719.09 B", "39.19 B",
        "attention full: all scores", "training, what MFU counts", "LM head counted 2 times",
    ):  # fmt: skip
        assert said in " ".join(out.split()), said
    _, _, err = run("model", "qwen3-0.6b")
    assert "sequence length not given: 4096" in err


def test_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("--num-layers 2 --hidden-size 64 --num-attention-heads 8 --vocab-size 100")
    _, out, _ = run("model", path, "--sequence-length", 8, "--json")
    (row,) = rows(out, "model")
    attention, core, ffn, head = 2 * 4 * 64 * 64, 8 * 64 * 2, 2 * 2 * 64 * 256, 2 * 64 * 100
    assert row["forward_flops"] == 2 * (attention + core + ffn) + head
    path.write_text("--num-layers 2 --num-attention-heads 8")
    code, _, err = run("model", path)
    assert code == 2 and "missing hidden_size, padded_vocab_size or vocab_size" in err
    assert str(path) in err


def test_presets_are_listed(run: Run) -> None:
    _, out, _ = run("model", "--json")
    found = {row["preset"]: row for row in rows(out, "models")}
    assert {
        "deepseek-v3", "pangu-ultra-moe-718b", "pangu-ultra-135b", "pangu-pro-moe", "qwen3-0.6b",
        "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama3-8b",
        "llama3-70b", "llama3.1-405b", "mixtral-8x7b",
    } <= found.keys()  # fmt: skip
    assert found["mixtral-8x7b"]["parameters"] == 46_702_526_464
    _, out, _ = run(
        "model",
    )
    assert "mixtral-8x7b              32         4096     46.70 B   12.75 B" in out


def test_reconcile(run: Run) -> None:
    code, out, err = run("model", "pangu-ultra-moe-718b", "--reconcile")
    lines = out.splitlines()
    assert code == 0 and "counted as MFU" in lines[0]
    assert lines[3].startswith("0.56 %  yes         8 N, full recompute, N = 39 B")
    assert "s = 8192, full, 1 MTP, router" in lines[4] and "29.93 % / 18.76 %" in lines[4]
    assert "Peaks that no MFU reconciles with" in out
    assert "5 of 126 conventions" in err
    _, out, _ = run("model", "deepseek-v3", "--reconcile", "--json")
    found = rows(out, "model_reconcile")
    assert len(found) == 2 * (2 * 2 * 2 * 3 + 2) * 2
    best = [row for row in found if row["error_ratio"] < 1e-3]
    assert [f"{row['predicted_mfu_ratio'][0]:.2%}" for row in best] == ["43.73%", "38.94%"]
    _, out, _ = run("model", "pangu-ultra-135b", "--reconcile")
    assert "30.43 %    30.45 %" in out and "6.80 %" in out
    _, out, _ = run("model", "pangu-ultra-135b", "--reconcile", "--json")
    assert [row["virtual_chunks"] for row in rows(out, "model_bubbles")] == [1, 6]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deepseek-v3", "--attention", "half"], "is not one of 'causal', 'full'"),
        (["deepseek-v3", "--recompute", "half"], "is not one of 'none', 'selective', 'full'"),
        (["deepseek-v3", "--reconcile", "--mtp", 1], "all conventions"),
        (["qwen3-8b", "--reconcile"], "no MFU is published"),
        (["--router"], "no model given"),
        (["deepseek"], "did you mean deepseek-v3?"),
    ],
)
def test_usage(run: Run, arguments: list[object], said: str) -> None:
    code, out, err = run("model", *arguments)
    assert (code, out) == (2, "") and said in err
