"""Jobs out of launch scripts: spellings of variables, the cluster, what is no number."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.strategy.describe import (
    job_of_script,
    job_of_strategy,
    machine_of,
    script_notes,
)
from npuscope.analysis.strategy.predict import predict
from npuscope.errors import UsageError

OPTIONS = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    " --group-query-attention --num-query-groups 8 --seq-length 8192 --vocab-size 128256"
    " --micro-batch-size 1 --global-batch-size ${GBS:-512} --bf16 --swiglu"
    " --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP"
)


def script(tmp_path: Path, text: str, launch: str = "--nnodes 8 --nproc_per_node 8") -> Path:
    path = tmp_path / "pretrain.sh"
    path.write_text(f"{text}\ntorchrun {launch} pretrain_gpt.py {OPTIONS}\n")
    return path


@pytest.mark.parametrize(
    "text",
    [
        'TP="8"\nPP=4 # was PP=2',
        "TP=${TP:-8}\nPP=${PP-4}",
        "export TP=8 PP=4",
        "TP=8; PP='4'",
        "  TP=8\n  export PP=${1:-4}\n# TP=2",
    ],
)
def test_variables_are_filled_in(tmp_path: Path, text: str) -> None:
    job = job_of_script(script(tmp_path, text), machine_of("910B2"), None)
    assert (job.tp, job.pp, job.dp, job.global_batch) == (8, 4, 2, 512)
    assert job.machine.node_devices == 8


@pytest.mark.parametrize("text", ["TP=8\nPP=$1", "TP=8\nPP=$(nproc)", "TP=8\nPP=auto"])
def test_what_is_no_number_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pipeline_model_parallel_size is '(\$PP|auto)', not a"):
        job_of_script(script(tmp_path, text), machine_of("910B2"), None)


def test_the_scripts_own_nodes_come_before_the_launchers(tmp_path: Path) -> None:
    text = "TP=8\nPP=4\nNNODES=16\nNPUS_PER_NODE=8"
    job = job_of_script(script(tmp_path, text, "--nnodes $NNODES"), machine_of("910B2"), None)
    assert job.dp == 4
    job = job_of_script(script(tmp_path, text), machine_of("910B2"), (4, 8))
    assert job.dp == 1
    text = "TP=4\nPP='1 --world-size 12'"
    path = script(tmp_path, text)
    path.write_text(path.read_text().replace("$PP", "1 --world-size 12").replace("512", "513"))
    job = job_of_script(path, machine_of("910B2"), None)
    assert (job.dp, job.machine.node_devices) == (3, 4)


@pytest.mark.parametrize(
    "name", ["num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size"]
)
def test_chunks_of_a_stage_in_all_spellings(tmp_path: Path, name: str) -> None:
    path = script(tmp_path, f"TP=8\nPP='4 --{name} 5'")
    path.write_text(path.read_text().replace("$PP", f"4 --{name} 5"))
    assert job_of_script(path, machine_of("910B2"), None).vpp == 5


def test_what_is_not_priced_or_assumed_is_told(tmp_path: Path) -> None:
    path = script(tmp_path, "TP=8\nPP=4")
    assert script_notes(path, None) == []
    path.write_text(
        path.read_text().replace("$PP", "4 --optimizer-cpu-offload"
                                 " --decoder-last-pipeline-num-layers 17")
    )  # fmt: skip
    [note] = script_notes(path, None)
    assert "--optimizer-cpu-offload" in note and "--decoder-last-pipeline-num-layers" in note
    path = script(
        tmp_path, "TP=8\nPP=1\nNNODES=$(wc -l < hostfile)", "--nnodes $NNODES --nproc_per_node 8"
    )
    [note] = script_notes(path, None)
    assert "1 of 8 NPUs are assumed" in note and "--cluster" in note
    assert script_notes(path, (8, 8)) == []


def test_values_of_latent_attention_are_padded_unless_the_script_says_no(tmp_path: Path) -> None:
    latent = " --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128"
    latent += " --qk-pos-emb-head-dim 64 --v-head-dim 128 --use-flash-attn"
    text = "TP=8\nPP=4"
    plain = script(tmp_path, text).read_text()
    steps = {}
    for name, more in (("grouped", ""), ("padded", latent),
                       ("bare", f"{latent} --mla-fa-without-pad")):  # fmt: skip
        path = tmp_path / f"{name}.sh"
        path.write_text(plain.replace("--bf16", f"--bf16{more}"))
        job = job_of_script(path, machine_of("910B2"), None)
        assert job.software.bare_values == (name == "bare")
        steps[name] = predict(job).step_s.predicted
        told = "tp=8,pp=4,mbs=1,gbs=64,seq=4096,mla_fa_without_pad=" + str(int(name == "bare"))
        model = model_of(path)
        assert job_of_strategy(model, job.machine, (1, 32), told).software.bare_values == (
            name == "bare"
        )
    usual = job_of_strategy(model, job.machine, (1, 32), told.rpartition(",")[0])
    assert not usual.software.bare_values  # one rule, whatever tells the job
    assert steps["padded"] > steps["bare"] * 1.01
