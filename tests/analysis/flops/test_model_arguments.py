"""Models read from launch scripts and logs of Megatron-LM and MindSpeed-LLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.flops.model.architecture import (
    Experts,
    GroupedQueries,
    Model,
    parameters,
)
from npuscope.analysis.flops.model.describe import model_of
from npuscope.errors import UsageError

EIGHT_HEADS = GroupedQueries(8, 8, 8)

DEEPSEEK = model_of("deepseek-v3")


SCRIPT = """#!/bin/bash
NUM_LAYERS=64
export HIDDEN="7168"
# --hidden-size 1
MLA_ARGS="
    --multi-latent-attention \\
    --q-lora-rank 1536 \\
    --kv-lora-rank 512 --v-head-dim 128 \\
    --qk-head-dim 128 --qk-pos-emb-head-dim 64
"
MOE_ARGS="--num-experts 256 --moe-router-topk 8 --n-shared-experts 1 --first-k-dense-replace 3 \\
    --moe-ffn-hidden-size=2048 --moe-layer-freq 1"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py --num-layers ${NUM_LAYERS} --noop-layers 61,62,63 \\
    --hidden-size $HIDDEN --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu $MLA_ARGS \\
    --untie-embeddings-and-output-weights --padded-vocab-size 129280 --mtp-num-layers 1 \\
    --seq-length 4096 $MOE_ARGS | tee log.txt
"""


def pad(name: str) -> Model:
    return replace(DEEPSEEK, name=name, layers=64, noop_layers=(61, 62, 63))


def test_a_launch_script(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(SCRIPT)
    assert model_of(path) == pad("pretrain")


def log_text(values: dict[str, Any], prefix: str = "") -> str:
    lines = [f"{prefix}------------------------ arguments ------------------------"]
    lines += [
        f"{prefix}  {name} {'.' * max(48 - len(name), 2)} {value}" for name, value in values.items()
    ]
    return "\n".join([*lines, f"{prefix}-------------------- end of arguments ----------------"])


LOGGED: dict[str, Any] = {
    "ffn_hidden_size": 18432,
    "first_k_dense_replace": None,
    "group_query_attention": False,
    "hidden_size": 7168,
    "hybrid_attention_ratio": 0.0,
    "hybrid_override_pattern": None,
    "is_hybrid_model": False,
    "kv_channels": 56,
    "kv_lora_rank": 512,
    "moe_ffn_hidden_size": 2048,
    "moe_layer_freq": [0] * 3 + [1] * 61,
    "moe_router_topk": 8,
    "moe_shared_expert_intermediate_size": 2048,
    "mtp_num_layers": 1,
    "multi_latent_attention": True,
    "noop_layers": {61, 62, 63},
    "num_attention_heads": 128,
    "num_experts": 256,
    "num_layers": 64,
    "num_query_groups": 1,
    "padded_vocab_size": 129280,
    "q_lora_rank": 1536,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
    "v_head_dim": 128,
    "window_size": None,
}


@pytest.mark.parametrize("prefix", ["", "[default0]:", "2025-06-01 10:00:00 [rank 0] "])
def test_a_training_log(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "train.log"
    echoed = "+ torchrun pretrain_gpt.py --num-layers 1 --hidden-size 1\nusing world size ... 8\n"
    after = (
        "\n  hidden_size .......... 1\n iteration 1/ 2000 | elapsed time per iteration (ms): 7\n"
    )
    path.write_text(echoed + log_text(LOGGED, prefix) + after)
    described = model_of(path)
    experts = described.experts
    assert experts is not None and experts.layer_frequency == (0,) * 3 + (1,) * 61
    assert replace(
        described, experts=replace(experts, layer_frequency=1, leading_dense_layers=3)
    ) == pad("train")
    assert parameters(described) == parameters(DEEPSEEK)


def test_a_vocabulary_that_is_told_after_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    values = {key: value for key, value in LOGGED.items() if key != "padded_vocab_size"}
    path.write_text(log_text(values))
    with pytest.raises(UsageError, match="missing padded_vocab_size or vocab_size"):
        model_of(path)
    said = "\n > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"
    path.write_text(log_text({**values, "vocab_size": None}) + said)
    assert model_of(path).vocabulary_size == 50304


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Model("options", 4, 64, 100, EIGHT_HEADS, 256, False, tied_embeddings=True)),
        ("--swiglu", Model("options", 4, 64, 100, EIGHT_HEADS, 128, tied_embeddings=True)),
        (
            "--group-query-attention --num-query-groups 2 --kv-channels 32",
            Model(
                "options", 4, 64, 100, GroupedQueries(8, 2, 32), 256, False, tied_embeddings=True
            ),
        ),
        (
            "--num_experts 8 --moe-router-topk 2 --moe-layer-freq '([0]*1 + [1]*3)'"
            " --n-shared-experts 2 --moe-shared-expert-intermediate-size 64",
            Model(
                "options", 4, 64, 100, EIGHT_HEADS, 256, False,
                Experts(8, 2, 256, 2, 32, layer_frequency=(0, 1, 1, 1)), tied_embeddings=True,
            ),
        ),
    ],
)  # fmt: skip
def test_defaults_of_a_list_of_options(tmp_path: Path, text: str, expected: Model) -> None:
    path = tmp_path / "options.txt"
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --vocab-size 100\n"
    path.write_text(sizes + text)
    assert model_of(path) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--group-query-attention", "missing num_query_groups"),
        ("--multi-latent-attention --v-head-dim 8", "missing kv_lora_rank, qk_head_dim or"),
        ("--num-experts 8 --moe-router-topk 2 --moe-layer-freq -1", "moe_layer_freq"),
        ("--num-experts 8 --moe-router-topk 2 --moe-layer-freq [0]*99999999", "moe_layer_freq"),
        ("--num-experts 8 --moe-router-topk 2 --moe-layer-freq open('x')", "moe_layer_freq"),
        ("--hybrid-override-pattern M-M*", "layers of several kinds"),
        ("--noop-layers last", "noop_layers 'last'"),
        ("--kv-channels $WIDTH", "kv_channels is '\\$WIDTH'"),
    ],
)
def test_arguments_that_do_not_do(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "options.txt"
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --vocab-size 100\n"
    path.write_text(sizes + text)
    with pytest.raises(UsageError, match=said):
        model_of(path)
