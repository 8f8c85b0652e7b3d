"""What a group is for, judged by what its members do: only where no metadata tells.

all-to-all                               -> ep   experts exchange tokens
only send, receive, batchSendRecv        -> pp   stages pass activations
large reductions late in the step        -> dp   gradients
many reductions spread over the step     -> tp   inside layers
"""

from __future__ import annotations

from typing import Any

_LARGE_BYTES = 1e6
_SMALL_BYTES = 4e6
# A layer has four of them; two layers are the least that can be told from gradient buckets.
_FREQUENT = 8


def inferred_kind(mix: dict[str, Any]) -> tuple[str, str]:
    """Kind and its evidence from a row of `sql/group_mix.sql`; `unknown` where it is unclear."""
    total = mix["total_count"]
    if mix["all_to_all_count"]:
        return "ep", f"{mix['all_to_all_count']} of {total} operations are all-to-all"
    if mix["pair_count"] == total:
        return "pp", f"all {total} operations send or receive"
    reduces = mix["all_reduce_count"] + mix["shard_count"]
    early, middle, late = (mix[f"{name}_place"] for name in ("early", "middle", "late"))
    if reduces < total:
        return "unknown", "a mix of operations that fits no kind"
    if early is None:
        return "unknown", f"{total} reductions, and no recorded step to locate them in"
    size_bytes, per_step = mix["size_bytes"], mix["count_per_step"]
    where = f"{per_step:.0f} reductions per step, half of them at {early:.0%} to {late:.0%} of it"
    if size_bytes is not None:
        where += f", {size_bytes / 1e6:.1f} MB in the middle"
    # Gradients are never all-reduced before the backward pass; shards of parameters may well be
    # gathered there, so that only their size tells.
    is_spread = early < 0.4 and late > 0.5 and per_step >= _FREQUENT
    is_small = size_bytes is not None and size_bytes < _SMALL_BYTES and per_step >= 2 * _FREQUENT
    if is_spread and (mix["shard_count"] == 0 or is_small):
        return "tp", where
    is_large = size_bytes is not None and size_bytes >= _LARGE_BYTES
    if is_large and early >= 0.4 and middle >= 0.6:
        return "dp", where
    return "unknown", where
