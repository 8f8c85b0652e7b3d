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
    key = _ALIASES.get(key, key)
    return key if key in PARALLEL_KINDS else "unknown"
