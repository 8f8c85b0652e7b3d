"""What a plan is asked for, and what its tokens cost: as told, else as the capture tells."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from npuscope.messages import Message

from .plan_moves import HORIZON
from .step_time import Cost


@dataclass(frozen=True, slots=True)
class Wish:
    """What a plan is asked for; see `plan_moves.plan`. Bytes per s of a device's link; token_bytes:
    of one token and expert in a step, there and back; None for both: as the capture tells."""

    devices: int
    nodes: int = 1
    slots: int | None = None
    groups: int = 1
    expert_bytes: int | None = None
    memory_bytes: int | None = None
    token_bytes: int | None = None
    link_bytes_per_s: float | None = None
    horizon: int = HORIZON
    max_replicas: int | None = None
    max_moved: int | None = None


def token_cost(
    costs: pl.DataFrame | None,
    links: pl.DataFrame | None,
    run: str,
    capture: str,
    wish: Wish,
) -> tuple[Cost | None, list[str]]:
    """The cost of tokens in one capture and notes on where it comes from; None: not known.

    costs are of `cost.token_cost`, links of `exchanges.links`; None for a dump.
    """
    mine = pl.col("run") == run, pl.col("capture") == capture
    rows = [] if costs is None else costs.filter(*mine).to_dicts()
    row = rows[0] if rows else {}
    if row.get("ns_per_token") is None:
        return None, []
    notes: list[str] = []
    link = wish.link_bytes_per_s
    rates = [] if links is None else links.filter(*mine).to_dicts()
    if link is None and rates:
        across = wish.nodes > 1
        rate, words = rates[0]["bytes_per_s"], f"{rates[0]['bytes_per_s'] / 1e9:,.1f}"
        count = rates[0]["operations_count"]
        if across == rates[0]["is_far"]:
            link = float(rate)
            notes.append(
                Message(
                    "link bandwidth of a device: {rate} GB/s, measured in {count} expert-parallel"
                    " all-to-alls of {capture}; override with --link",
                    rate=words,
                    count=count,
                    capture=capture,
                )
            )
        else:
            where, scope = ("inside hosts", "between them")
            if not across:
                where, scope = ("between hosts", "inside one")
            notes.append(
                Message(
                    "{rate} GB/s were measured {where}, in {count} expert-parallel all-to-alls of"
                    " {capture}, the plan's link is {wanted}: override with --link",
                    rate=words,
                    where=Message(where),
                    count=count,
                    capture=capture,
                    wanted=Message(scope),
                )
            )
    size = wish.token_bytes
    if size is None:
        measured = row.get("token_bytes")
        size = 0 if measured is None else measured
        if measured is not None and link is not None:
            notes.append(
                Message(
                    "bytes per token over all all-to-alls of a step: {count}, measured; override "
                    "with --token-bytes",
                    count=f"{measured:,.0f}",
                )
            )
    return Cost(
        float(row["ns_per_token"]),
        fixed_ns=max(0.0, row.get("fixed_ns") or 0.0),
        token_bytes=float(size),
        near_bytes_per_s=link if wish.nodes == 1 else None,
        far_bytes_per_s=link if wish.nodes > 1 else None,
        device_floor_ns=row.get("floor_ns") or 0.0,
    ), notes
