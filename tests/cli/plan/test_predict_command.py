"""`npuscope predict`: a job's time and memory, printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Run

_CLUSTER = ("llama3-70b", "--cluster", "8x8", "--strategy")
_SCRIPT = """
NNODES=2
TP=8
ARGS="--use-mcore-models --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2 \\
  --sequence-parallel --num-layers 48 --hidden-size 8192 --ffn-hidden-size 22016 \\
  --num-attention-heads 64 --swiglu --untie-embeddings-and-output-weights --use-flash-attn \\
  --seq-length 4096 --micro-batch-size 2 --global-batch-size 64 --vocab-size 32000 --bf16 \\
  --no-such-argument 3"
"""


def test_a_prediction_with_its_memory(run: Run) -> None:
    told = run("predict", *_CLUSTER, "tp=8,pp=8,mbs=1,gbs=512,seq=8192", "--json")
    answer = told.json()
    assert (told.code, answer["metric"], len(answer["stages"])) == (0, "predict", 8)
    step = answer["figures"]["step_s"]
    assert step["low"] < step["predicted"] < step["high"]
    assert sum(row["ns"] for row in told.rows) == pytest.approx(step["predicted"] * 1e9, abs=2)


def test_what_does_not_fit_is_said(run: Run) -> None:
    told = run("predict", *_CLUSTER, "tp=1,pp=8,mbs=1,gbs=512,seq=8192")
    assert told.code == 0
    assert "does not fit" in told.err


def test_a_launch_script(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(_SCRIPT)
    told = run("predict", script, "--json")
    assert (told.code, len(told.json()["stages"])) == (0, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*_CLUSTER, "tp=7,pp=8"), "does not divide 64 NPUs"),
        ((*_CLUSTER, "tp=8,pp=8,mbs=1,gbs=512"), "seq is missing"),
        ((*_CLUSTER, "tpp=8"), "did you mean tp"),
        ((*_CLUSTER, "tp=8,pp=8,gbs=512,seq=8192", "--chip", "H100"), "not a known chip"),
        (("llama3-70b",), "--strategy"),
    ],
)
def test_what_it_refuses(run: Run, words: tuple[str, ...], said: str) -> None:
    told = run("predict", *words)
    assert (told.code, said in told.err) == (2, True)


def test_a_file_of_runs(run: Run, tmp_path: Path) -> None:
    runs, out = tmp_path / "runs.json", tmp_path / "predictions.json"
    runs.write_text(json.dumps([{"id": "a", "model": {"layers": 2}}]))
    assert run("predict", "--runs", runs, "-o", out).code == 0
    assert set(json.loads(out.read_text())["a"]) == {"ms", "mb", "mb_alloc", "tokens_per_s_per_npu"}
    for text, said in (
        ("{", "not valid JSON"),
        ('[{"id": "a"}, {"model": {"layers": 2}}]', "run 2 of 2 has no id"),
        ('[{"id": "x"}]', "run x has no model"),
        ('[{"id": null}]', "run 1 of 1 has no id"),
        ('[{"id": 1}, {"id": "2"}, {"id": "1"}]', "run 3 of 3 has the id 1 of another"),
    ):
        runs.write_text(text)
        told = run("predict", "--runs", runs)
        assert (told.code, said in told.err) == (3 if text == "{" else 2, True)
    runs.unlink()
    gone = run("predict", "--runs", runs)
    assert (gone.code, "no such file" in gone.err) == (3, True)


def test_constants_of_captures(run: Run, sample_store: Path) -> None:
    words = (*_CLUSTER, "tp=8,pp=8,mbs=1,gbs=512,seq=8192", "--json")
    usual, own = run("predict", *words), run("predict", *words, "--calibrate", sample_store)
    measured = [row for row in own.json()["calibration"] if row["value"] is not None]
    assert "matmul_efficiency" in {row["constant"] for row in measured}
    assert all(row["measured_count"] >= 3 for row in measured)
    assert own.json()["figures"] != usual.json()["figures"]
    assert usual.json()["calibration"] is None
