"""Models out of the `config.json` of Hugging Face's transformers.

Only architectures whose layers are known to be those we count are read: a hybrid one with the same
keys would give a wrong count without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from npuscope.errors import UsageError

from .architecture import Experts, Grouped, Latent, Model
from .sizes import first_of, needed, optional, whole

# model_type, lower case, by what its layers are. Those of `_STATED` always state the head size and
# the key-value heads; of the others the first is hidden size / heads, the second all heads.
_DENSE = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3", "panguembedded"})
_MIXED = frozenset({"mixtral", "qwen3_moe", "pangupromoe"})
_LATENT = frozenset({
    "deepseek_v2", "deepseek_v3", "kimi_k2", "pangu_ultra_moe", "openpangu_moe",
    "openpangu_ultra_moe",
})  # fmt: skip
_STATED = frozenset({"qwen3", "qwen3_moe"})
_REMEDY = "add it to the file, as the model's own config.json has it"

_LAYERS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocabulary_size": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head"),
}
_KV_HEADS = ("num_key_value_heads",)
_FFN = ("intermediate_size", "n_inner")
_EXPERTS = {
    "routed": ("n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
}
_RANKS = {
    "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "qk_nope_head_dim": ("qk_nope_head_dim", "attention_qk_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
    "v_head_dim": ("v_head_dim", "attention_v_dim"),
}
_Q_RANK = ("q_lora_rank", "attention_q_lora_dim")


def model_of_config(config: Mapping[str, object], where: str, name: str) -> Model:
    """The model of a `config.json`. Raises UsageError with all keys that are missing."""
    kind = str(config.get("model_type", "")).lower().replace("-", "_")
    if kind not in _DENSE | _MIXED | _LATENT:
        raise UsageError(
            f"{where}: model_type {config.get('model_type')!r} is none of"
            f" {', '.join(sorted(_DENSE | _MIXED | _LATENT))}: describe the model in TOML, with the"
            " fields docs/mfu.md lists"
        )
    if config.get("use_sliding_window"):
        raise UsageError(f"{where}: use_sliding_window: attention within a window is not counted")
    wanted: dict[str, tuple[str, ...]] = dict(_LAYERS)
    if kind in _LATENT:
        wanted |= _RANKS
        # null is an answer: queries without a low rank
        if first_of(config, _Q_RANK) is not None or not any(key in config for key in _Q_RANK):
            wanted["q_lora_rank"] = _Q_RANK
    if kind in _STATED:
        wanted |= {"head_dim": ("head_dim",), "kv_heads": _KV_HEADS}
    has_experts = kind in _MIXED or (
        kind in _LATENT and first_of(config, _EXPERTS["routed"]) is not None
    )
    if has_experts:
        wanted |= _EXPERTS
        wanted["expert_ffn_size"] = (
            ("intermediate_size",) if kind == "mixtral" else ("moe_intermediate_size",)
        )
    has_dense = kind in _LATENT or not (has_experts or kind == "gpt2")
    if kind != "mixtral" and (has_dense or first_of(config, _FFN) is not None):
        wanted["ffn_size"] = _FFN
    sizes = needed(config, wanted, where, _REMEDY)
    experts = _experts(config, sizes, kind, where) if has_experts else None
    ffn_size = sizes.get("ffn_size")
    if kind == "gpt2" and ffn_size is None:
        ffn_size = 4 * sizes["hidden_size"]
    return Model(
        name=name,
        layers=sizes["layers"],
        hidden_size=sizes["hidden_size"],
        vocabulary_size=sizes["vocabulary_size"],
        attention=_attention(config, sizes, kind, where),
        ffn_size=ffn_size,
        gated=kind != "gpt2",  # the others have a gate whatever `hidden_act` is
        experts=experts,
        mtp_depth=optional(config, ("num_nextn_predict_layers", "num_mtp_layers"), 0, where),
        tied_embeddings=bool(config.get("tie_word_embeddings", kind == "gpt2")),
    )


def _attention(
    config: Mapping[str, object], sizes: Mapping[str, int], kind: str, where: str
) -> Grouped | Latent:
    heads = sizes["heads"]
    if kind in _LATENT:
        return Latent(
            heads,
            **{key: sizes[key] for key in _RANKS},
            q_lora_rank=sizes.get("q_lora_rank"),
        )
    head_dim = optional(config, ("head_dim",), 0, where)
    if not head_dim:
        head_dim, rest = divmod(sizes["hidden_size"], heads)
        if rest:
            raise UsageError(f"{where}: missing head_dim, and the heads do not divide hidden_size")
    return Grouped(heads, optional(config, _KV_HEADS, heads, where) or heads, head_dim)


def _experts(
    config: Mapping[str, object], sizes: Mapping[str, int], kind: str, where: str
) -> Experts:
    ffn_size = sizes["expert_ffn_size"]
    shared = optional(config, ("n_shared_experts", "num_shared_experts"), 0, where)
    shared_size = optional(config, ("shared_expert_intermediate_size",), 0, where)
    if shared_size and not shared:
        shared, rest = divmod(shared_size, ffn_size)
        if rest:
            shared = 1
        else:
            shared_size = 0
    leading = optional(config, ("first_k_dense_replace", "num_dense_layers"), 0, where)
    return Experts(
        routed=sizes["routed"],
        top_k=sizes["top_k"],
        ffn_size=ffn_size,
        shared=shared,
        shared_ffn_size=shared_size or None,
        leading_dense_layers=leading,
        layer_frequency=_frequency(config, sizes["layers"], leading, where),
    )


def _frequency(
    config: Mapping[str, object], layers: int, leading: int, where: str
) -> int | tuple[int, ...]:
    """Which layers have experts. Qwen counts them from 1, and may name dense ones one by one."""
    step = optional(config, ("decoder_sparse_step",), 1, where)
    named = config.get("mlp_only_layers") or ()
    if step == 1 and not named:
        return optional(config, ("moe_layer_freq",), 1, where)
    if step < 1 or not isinstance(named, list) or None in map(whole, named):
        raise UsageError(f"{where}: decoder_sparse_step or mlp_only_layers make no sense")
    return tuple(
        int(layer >= leading and (layer + 1) % step == 0 and layer not in named)
        for layer in range(layers)
    )
