"""`npuscope search` and `npuscope memory-plan`, printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.conftest import WrittenJob

_AROUND = "gbs=64,seq=4096,cp=1,mbs=1,recompute=full"
_ONLY = "gbs=512,seq=8192,tp=4+8,pp=4+8,vpp=1,cp=1,mbs=1"


def test_the_best_strategies(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "strategies.parquet"
    told = run("search", "llama3-70b", "--cluster", "8x8", "--only", _ONLY, "-o", out, "--json")
    assert (told.code, told.json()["metric"]) == (0, "search")
    assert {row["tp"] for row in told.rows} == {4, 8}
    written = pl.read_parquet(out)
    assert written.to_dicts()[: len(told.rows)] == told.rows


def test_a_plan(run: Run) -> None:
    words = ("memory-plan", "llama3-70b", "--cluster", "8x8", "--strategy")
    told = run(*words, "tp=4,pp=8,mbs=1,gbs=512,seq=8192", "--budget", 40, "--json")
    assert (told.code, told.json()["metric"]) == (0, "memory_plan")
    assert {row["stage"] for row in told.rows} == set(range(8))
    assert all(row["peak_bytes"] <= 40 * 2**30 for row in told.rows if row["layers"])
    refused = run(*words, "tp=4,pp=8,gbs=512,seq=8192,recompute=full")
    assert (refused.code, "recompute=none" in refused.err) == (2, True)


def test_a_plan_of_a_capture(run: Run, sample_store: Path) -> None:
    told = run("memory-plan", sample_store, "--budget", 6.3, "--no-swap", "--json")
    assert (told.code, told.json()["metric"]) == (0, "measured_memory_plan")
    assert {row["stage"] for row in told.rows} == {0, 1}
    assert all(row["peak_bytes"] < row["measured_peak_bytes"] for row in told.rows if row["layers"])
    refused = run("memory-plan", sample_store, "--cluster", "8x8")
    assert (refused.code, "--cluster is of a MODEL" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("only", "said"), [("tp=8", "give one gbs and one seq"), ("gbs=7,seq=9", "no strategy")]
)
def test_what_it_refuses(run: Run, only: str, said: str) -> None:
    told = run("search", "llama3-70b", "--cluster", "8x8", "--only", only)
    assert (told.code, said in told.err) == (2, True)


_SCRIPT = """
NNODES=2
ARGS="--use-mcore-models --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 \\
  --sequence-parallel --num-layers 16 --hidden-size 4096 --ffn-hidden-size 11008 \\
  --num-attention-heads 32 --swiglu --untie-embeddings-and-output-weights --use-flash-attn \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 \\
  --use-distributed-optimizer --use-ascend-mc2"
"""


def test_a_search_from_a_launch_script(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(_SCRIPT)
    told = run("search", "--from", script, "--only", "mbs=1,cp=1,recompute=none", "--json").json()
    running, best = told["running"], told["rows"][0]
    assert (running["tp"], running["pp"], running["fits"]) == (8, 2, True)
    predicted = run("predict", script, "--json").json()["figures"]["step_s"]["predicted"]
    assert running["step_ns"] == pytest.approx(predicted * 1e9, abs=1)
    assert running["saved_ratio"] == pytest.approx(1 - best["step_ns"] / running["step_ns"])
    assert running["place"] > 1
    cut = "tp=8,pp=2,vpp=1,cp=1,mbs=1,recompute=none"
    own, plain = (
        run("search", "--from", script, "--only", cut + more, "--json").json()["rows"][0]["step_ns"]
        for more in ("", ",mc2=0")
    )
    assert plain > own == running["step_ns"]  # a switch that is given is not the script's


def test_a_search_from_captures(run: Run, sample_store: Path) -> None:
    words = ("search", "qwen3-30b-a3b", "--from", sample_store, "--only", _AROUND)
    told = run(*words, "--json").json()
    assert [told["running"][name] for name in ("tp", "pp", "ep")] == [1, 2, 2]
    assert told["running"]["place"] is None  # a model that fits nowhere on 8 NPUs
    assert {row["dp"] * row["tp"] * row["pp"] for row in told["rows"]} == {8}
    refused = run("search", "--from", sample_store, "--only", "gbs=64,seq=4096")
    assert (refused.code, "give a MODEL" in refused.err) == (2, True)


@pytest.mark.slow
def test_captures_that_are_left_out_are_told_with_4(
    run: Run, sample_store: Path, written_job: WrittenJob, tmp_path: Path
) -> None:
    store = shutil.copytree(sample_store, tmp_path / "store")
    assert run("ingest", written_job(small(), "text"), "--store", store, "--run", "a").code == 0
    next((store / "run=a").rglob("kernels*.parquet")).write_bytes(b"PAR1")
    for more in ((), ("--json",)):
        told = run("search", "qwen3-30b-a3b", "--from", store, "--only", _AROUND, *more)
        assert (told.code, told.err.count("left out: run a")) == (4, 1)
