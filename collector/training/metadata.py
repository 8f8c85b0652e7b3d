"""What a capture says of its job, as entries of profiler_metadata.json.

    job_name            the run
    npuscope            schema version, run, rank, first and last profiled step
    distributed_args    parallel sizes by MindSpeed's names
    parallel_group_info communicators, where the caller knows them better than the profiler
    model_config        the model's sizes, as configurations name them: what its FLOPs follow from

torch_npu refuses a value of more than 4096 characters, and 50 KB in all; we stay below 20 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

VALUE_CHARS = 4096
TOTAL_CHARS = 20 * 1024

# MindSpeed's names of what `distributed_args` holds, and shorter ones that are understood.
_SIZES = {
    "tensor_model_parallel_size": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline_model_parallel_size": ("pipeline_parallel_size", "pp_size", "pp"),
    "data_parallel_size": ("dp_size", "dp"),
    "context_parallel_size": ("cp_size", "cp"),
    "expert_model_parallel_size": ("expert_parallel_size", "ep_size", "ep"),
    "virtual_pipeline_model_parallel_size": ("vpp_size", "vpp"),
    "sequence_parallel": (),
    "world_size": (),
}

# Sizes by the names of Hugging Face's configurations and of Megatron's arguments.
_MODEL = frozenset(
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads"
    " num_key_value_heads head_dim vocab_size tie_word_embeddings q_lora_rank kv_lora_rank"
    " qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size n_routed_experts"
    " n_shared_experts num_experts num_local_experts num_experts_per_tok first_k_dense_replace"
    " moe_layer_freq decoder_sparse_step mlp_only_layers num_nextn_predict_layers"
    " shared_expert_intermediate_size sliding_window use_sliding_window"
    " num_layers ffn_hidden_size kv_channels group_query_attention num_query_groups"
    " multi_latent_attention multi_head_latent_attention qk_head_dim qk_pos_emb_head_dim"
    " moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size mtp_num_layers"
    " padded_vocab_size swiglu untie_embeddings_and_output_weights noop_layers"
    " seq_length max_sequence_length micro_batch_size global_batch_size recompute_granularity"
    " recompute_method recompute_num_layers bf16 fp16 fp8 dtype torch_dtype".split()
)


def entries(
    *,
    run: str | None,
    rank: int,
    first_step: int,
    last_step: int,
    parallel: object = None,
    groups: Mapping[str, object] | None = None,
    model: object = None,
) -> tuple[dict[str, str], list[str]]:
    """JSON text by key, and the keys that were too long to be kept.

    `parallel` and `model` are mappings, configurations with `to_dict`, or objects with such
    attributes (Megatron's arguments serve as both). `groups` is {communicator: {"group_name",
    "group_rank", "global_ranks"}}.
    """
    sizes = {**parallel_sizes(parallel), "rank": rank} if parallel is not None else {}
    window = {
        "schema_version": 1, "run": run, "rank": rank, "first_step": first_step,
        "last_step": last_step,
    }  # fmt: skip
    wanted: tuple[tuple[str, object], ...] = (
        ("npuscope", window),
        ("job_name", run),
        ("distributed_args", sizes),
        ("model_config", model_sizes(model)),
        ("parallel_group_info", dict(groups or {})),
    )
    kept: dict[str, str] = {}
    too_long: list[str] = []
    total = 0
    for key, value in wanted:
        if not value:
            continue
        text = json.dumps(value)
        if len(text) > VALUE_CHARS or total + len(key) + len(text) > TOTAL_CHARS:
            too_long.append(key)
            continue
        total += len(key) + len(text)
        kept[key] = text
    return kept, too_long


def parallel_sizes(parallel: object) -> dict[str, int | bool]:
    """Parallel sizes by MindSpeed's names."""
    told = _fields(parallel)
    found: dict[str, int | bool] = {}
    for name, others in _SIZES.items():
        value = next((told[key] for key in (name, *others) if told.get(key) is not None), None)
        if isinstance(value, int):
            found[name] = value
    return found


def model_sizes(model: object) -> dict[str, object]:
    """Those fields of a model's configuration that its FLOPs follow from."""
    told = _fields(model)
    if isinstance(inner := told.get("text_config"), Mapping):
        told = {**told, **inner}
    found: dict[str, object] = {}
    for name in sorted(_MODEL & told.keys()):
        value = told[name]
        if isinstance(value, (bool, int, float)) or _is_short_list(value):
            found[name] = value
        elif value is not None and not isinstance(value, (list, tuple, Mapping)):
            found[name] = str(value)[:64]
    return found


def _is_short_list(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) <= 128
        and all(isinstance(one, int) for one in value)
    )


def _fields(described: Any) -> Mapping[str, object]:
    if described is None:
        return {}
    if isinstance(described, Mapping):
        return described
    to_dict = getattr(described, "to_dict", None)
    told = to_dict() if callable(to_dict) else vars(described)
    return told if isinstance(told, Mapping) else {}
