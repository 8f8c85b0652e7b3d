"""Communication groups: HCCL's hash of a communicator's name, and parallel kinds of labels."""

from __future__ import annotations

PARALLEL_KINDS = (
    "tp", "pp", "dp", "ep", "cp", "dp_cp", "tp_cp", "tp_dp", "tp_dp_cp", "tp_ep", "dp_ep",
    "mp", "mp_ep", "embd", "world", "unknown",
)  # fmt: skip

_ALIASES = {
    "default_group": "world",
    "world_group": "world",
    "hccl_world_group": "world",
    "exp": "ep",
    "expert": "ep",
    "tp_exp": "tp_ep",
    "ep_tp": "tp_ep",
    "mp_exp": "mp_ep",
    "dp_modulo_exp": "dp_ep",
    "dp_modulo_ep": "dp_ep",
    "edp": "dp_ep",
    "cp_dp": "dp_cp",
    "cp_tp": "tp_cp",
    "dp_tp": "tp_dp",
    "dp_ep_modulo": "dp_ep",
    "position_embd": "embd",
    "embedding": "embd",
    # Megatron's and DeviceMesh's names of PyTorch's process groups, without what surrounds them.
    "default_pg": "world",
    "default": "world",
    "tensor_model": "tp",
    "tensor": "tp",
    "pipeline_model": "pp",
    "pipeline": "pp",
    "data": "dp",
    "data_with_cp": "dp_cp",
    "dp_shard": "dp",
    "dp_replicate": "dp",
    "fsdp": "dp",
    "dp_shard_cp": "dp_cp",
    "context": "cp",
    "hierarchical_context": "cp",
    "model": "mp",
    "expert_model": "ep",
    "expert_data": "dp_ep",
    "expert_tensor_and_model": "tp_ep",
    "tensor_and_expert": "tp_ep",
    "tensor_and_data": "tp_dp",
    "tensor_and_data_with_cp": "tp_dp_cp",
    "tensor_and_context": "tp_cp",
    "position_embedding": "embd",
}


def group_hash(name: str) -> str:
    """HCCL's 64-bit hash of a communicator's name, as decimal text.

    Two polynomials over the characters modulo 2^32, base 29 in the high half, base 131 in the
    low half: `group_name_0` -> 5862276093215481612.
    """
    high = low = 0
    for char in name:
        high = (high * 29 + ord(char)) & 0xFFFFFFFF
        low = (low * 131 + ord(char)) & 0xFFFFFFFF
    return str(high << 32 | low)


def parallel_kind(label: str | None) -> str:
    """The closed-list kind of a framework's group label; `unknown` where the label says nothing."""
    key = (label or "").strip().lower().replace("-", "_")
    if key not in _ALIASES:  # TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP, mesh_dp_shard
        key = key.removeprefix("mesh_").replace("_parallel_group", "").removesuffix("_group")
    key = _ALIASES.get(key, key)
    return key if key in PARALLEL_KINDS else "unknown"
