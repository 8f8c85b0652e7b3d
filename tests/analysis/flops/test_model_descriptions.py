"""Models read from configurations, arguments, logs and fields of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.flops.model.architecture import (
    Experts,
    GroupedQueries,
    Latent,
    Model,
    parameters,
)
from npuscope.analysis.flops.model.describe import model_of, presets
from npuscope.errors import UsageError

DEEPSEEK = model_of("deepseek-v3")

DEEPSEEK_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
PANGU_CONFIG: dict[str, Any] = {
    "model_type": "pangu_ultra_moe",
    "attention_kv_lora_dim": 512,
    "attention_q_lora_dim": 1536,
    "attention_qk_dim": 128,
    "attention_qk_rope_dim": 64,
    "attention_v_dim": 128,
    "hidden_size": 7680,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_dense_layers": 3,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_mtp_layers": 1,
    "num_routed_experts": 256,
    "num_shared_experts": 1,
    "vocab_size": 153600,
}
QWEN3_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_MIXTURE_CONFIG: dict[str, Any] = {
    **QWEN3_CONFIG,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
MIXTRAL_CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "vocab_size": 32000,
}
LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
PRO_CONFIG: dict[str, Any] = {
    "model_type": "PanguProMoE",
    "hidden_size": 5120,
    "moe_intermediate_size": 1344,
    "num_attention_heads": 40,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "shared_expert_intermediate_size": 5376,
    "vocab_size": 153376,
}


def config(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def with_name(model: Model, name: str) -> Model:
    return replace(model, name=name)


@pytest.mark.parametrize(
    ("values", "preset"),
    [
        (DEEPSEEK_CONFIG, "deepseek-v3"),
        (PANGU_CONFIG, "pangu-ultra-moe-718b"),
        (QWEN3_CONFIG, "qwen3-0.6b"),
        (MIXTRAL_CONFIG, "mixtral-8x7b"),
        (LLAMA_CONFIG, "llama3-8b"),
        (PRO_CONFIG, "pangu-pro-moe"),
    ],
)
def test_configurations_are_their_presets(
    tmp_path: Path, values: dict[str, Any], preset: str
) -> None:
    described = model_of(config(tmp_path, values))
    assert with_name(described, preset) == model_of(preset)
    assert model_of(tmp_path) == described  # by its folder, as models are kept
    assert described.name == tmp_path.name


def test_layers_that_qwen_keeps_dense(tmp_path: Path) -> None:
    plain = model_of(config(tmp_path, QWEN3_MIXTURE_CONFIG))
    assert parameters(plain) == parameters(model_of("qwen3-30b-a3b"))
    assert plain.ffn_size == 6144
    changed = {**QWEN3_MIXTURE_CONFIG, "mlp_only_layers": [0, 3], "decoder_sparse_step": 2}
    experts = model_of(config(tmp_path, changed)).experts
    assert experts is not None and isinstance(experts.layer_frequency, tuple)
    assert experts.layer_frequency[:8] == (0, 1, 0, 0, 0, 1, 0, 1)
    with pytest.raises(UsageError, match="mlp_only_layers"):
        model_of(config(tmp_path, {**changed, "mlp_only_layers": ["last"]}))


def test_keys_that_may_be_left_out(tmp_path: Path) -> None:
    values = {key: value for key, value in LLAMA_CONFIG.items() if key != "num_key_value_heads"}
    assert model_of(config(tmp_path, values)).attention == GroupedQueries(32, 32, 128)
    values = {**DEEPSEEK_CONFIG, "q_lora_rank": None, "n_shared_experts": None}
    described = model_of(config(tmp_path, values))
    assert isinstance(described.attention, Latent) and described.attention.q_lora_rank is None
    assert described.experts is not None and described.experts.shared == 0
    old = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}
    gpt2 = model_of(config(tmp_path, old))
    assert (gpt2.ffn_size, gpt2.gated, gpt2.tied_embeddings) == (3072, False, True)


def test_all_missing_keys_are_named(tmp_path: Path) -> None:
    values = {
        key: value
        for key, value in DEEPSEEK_CONFIG.items()
        if key not in ("kv_lora_rank", "vocab_size", "q_lora_rank", "moe_intermediate_size")
    }
    path = config(tmp_path, {**values, "hidden_size": "large"})
    with pytest.raises(UsageError) as told:
        model_of(path)
    for said in (
        str(path), "vocab_size", "kv_lora_rank or attention_kv_lora_dim", "q_lora_rank",
        "moe_intermediate_size", "hidden_size is 'large'", "add it to the file",
    ):  # fmt: skip
        assert said in str(told.value)
    assert "v_head_dim" not in str(told.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"model_type": None}, "model_type None"),
        ({"use_sliding_window": True}, "window"),
        ({"head_dim": None}, "missing head_dim"),  # 64 by the hidden size would be wrong
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**12}, "config.json: .* layers are beyond"),
        ({"num_key_value_heads": 3}, "config.json: .*kv_heads does not divide heads"),
        ({"num_nextn_predict_layers": "one"}, "num_nextn_predict_layers is 'one'"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        model_of(config(tmp_path, {**QWEN3_CONFIG, **changes}))


# ---- fields of our own, presets ----

OWN = """
layers = 4
hidden_size = 64
vocabulary_size = 100
ffn_size = 256
gated = false
noop_layers = [3]

[attention]
heads = 8
kv_heads = 2
head_dim = 8

[experts]
routed = 8
top_k = 2
ffn_size = 32
layer_frequency = [0, 1, 1, 0]
"""
OWN_MODEL = Model(
    "mine", 4, 64, 100, GroupedQueries(8, 2, 8), 256, False,
    Experts(8, 2, 32, layer_frequency=(0, 1, 1, 0)), noop_layers=(3,),
)  # fmt: skip


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    assert model_of(path) == OWN_MODEL
    path.write_text("layers = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        model_of(path)


def own(**changes: Any) -> dict[str, Any]:
    return {
        "layers": 4, "hidden_size": 64, "vocabulary_size": 100, "ffn_size": 256, "gated": False,
        "noop_layers": [3], "attention": {"heads": 8, "kv_heads": 2, "head_dim": 8},
        "experts": {"routed": 8, "top_k": 2, "ffn_size": 32, "layer_frequency": [0, 1, 1, 0]},
        **changes,
    }  # fmt: skip


def test_the_same_fields_as_json(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own()))
    assert model_of(path) == OWN_MODEL
    path.write_text(json.dumps(own(name="ours")))
    assert model_of(path).name == "ours"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention": {"heads": 8}}, "missing attention.kv_heads, attention.head_dim"),
        ({"attention": {"heads": 8, "kv_lora_rank": 4}}, "missing attention.qk_nope_head_dim"),
        ({"layers": None, "hidden_size": None}, "missing layers, hidden_size"),
        ({"activation": "relu"}, "unknown activation"),
        ({"gated": "yes"}, "gated is 'yes'"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": [4]}, r"layers is \[4\]"),
        ({"layers": "4"}, "layers is '4'"),
        ({"noop_layers": [-1]}, r"noop_layers is \[-1\]"),
        ({"noop_layers": 3}, "noop_layers is 3"),
        ({"experts": 8}, "experts is no table"),
        ({"experts": {"routed": 8, "top_k": 9, "ffn_size": 1}}, "top_k is more"),
        ({"noop_layers": [4]}, "outside 0..3"),
    ],
)
def test_fields_that_do_not_do(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own(**changes)))
    with pytest.raises(UsageError, match=said):
        model_of(path)


def test_presets_by_name(tmp_path: Path) -> None:
    assert model_of("Qwen3_8B") is presets()["qwen3-8b"]
    assert model_of("llama3-405b") is presets()["llama3.1-405b"]
    assert model_of("llama3.1-8b") is presets()["llama3-8b"]
    with pytest.raises(UsageError, match=r"did you mean .*deepseek-v3"):
        model_of("deepseek-v4")
    with pytest.raises(UsageError, match=r"no config\.json in this folder"):
        model_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a model description"),
        (b"hello\n", "not a model description"),
        (b"ls --all 3\n", "not a model description"),
        (b"\xff\xfe\x00", "not a model description"),
        (b"{", "not valid JSON"),
        (b'{"a": 1}', "model_type None"),
    ],
)
def test_files_that_describe_nothing(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        model_of(path)
