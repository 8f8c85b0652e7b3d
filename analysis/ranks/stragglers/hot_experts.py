"""Which layers and experts give a rank more tokens than its peers: evidence of a verdict.

expert load, placement    experts of the rank's device, the three with most tokens
the trace alone           its layers with most tokens beside the other devices of the group
neither                   what to collect
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message

from ...experts.load.device_load import contiguous_placement
from ...experts.load.from_trace import trace_load
from ...experts.load.imbalance import PLACE, expert_loads
from ...experts.load.load import ExpertTables, expert_rows
from ...scope import Scope

TOP = 3
COLLECT = (
    "which experts: not recorded; collect tokens_per_expert with the training hook and ingest it"
    " with --expert-load DIR"
)
STAGES = (
    "which experts: counts cover all ranks, and the layers of this rank's pipeline stage are not"
    " recorded"
)
_MOST_RANKS = 64  # of a capture, to number layers by the trace of all of them
_RANK = ("run", "capture", "rank")
_STEP = ("run", "capture", "step", "phase")
_SHARE = 100.0


def hot_lines(
    con: duckdb.DuckDBPyConnection, ranks: Sequence[int], *, run: str, capture: str
) -> dict[int, list[dict[str, Any]]]:
    """Lines of evidence of each rank: what (layer and expert; layer alone by the trace), value
    (tokens of a step), peers (mean expert of the layer, or mean device of the group), unit.

    `con` has the canonical tables. Where single experts are not told the last line says so; its
    value is None.
    """
    tables = expert_rows(con, Scope(run, capture))
    held = {rank: _experts_of_device(tables, rank, None) for rank in ranks}
    unplaced = [rank for rank in ranks if held[rank].is_empty()]
    tokens = _tokens_by_trace(con, tables, unplaced, run=run, capture=capture) if unplaced else None
    if tokens is not None:
        held |= {
            rank: _experts_of_device(tables, rank, _stage_layers(tables, tokens, rank))
            for rank in unplaced
        }
    is_counted = tables.load["expert"].is_not_null().any()
    unknown = {"what": STAGES if is_counted else COLLECT, "value": None, "peers": None,
               "unit": "tokens"}  # fmt: skip
    lines: dict[int, list[dict[str, Any]]] = {}
    for rank in ranks:
        rows = held[rank]
        if rows.is_empty() and tokens is not None:
            rows = _layers(tokens, rank)
        lines[rank] = [_line(row) for row in rows.head(TOP).to_dicts()]
        lines[rank] += [unknown] * held[rank].is_empty()
    return lines


def _line(row: dict[str, Any]) -> dict[str, Any]:
    what = "all layers: tokens per step, {share} % of the rank's"
    if row["expert"] is not None:
        what = "layer {layer}, expert {expert}: tokens per step, {share} % of the rank's"
    elif row["layer"] is not None:
        what = "layer {layer}: tokens per step, {share} % of the rank's"
    place = {"layer": row["layer"], "expert": row["expert"]}
    share = row["tokens"] / row["all_tokens"] * _SHARE
    return {
        **place,
        "what": Message(what, **place, share=f"{share:.0f}"),
        "value": float(row["tokens"]),
        "peers": None if row["peers"] is None else float(row["peers"]),
        "unit": "tokens",
    }


def _experts_of_device(tables: ExpertTables, rank: int, layers: list[int] | None) -> pl.DataFrame:
    """Experts on the rank's device, most tokens first: layer, expert, tokens (mean of its steps),
    peers, all_tokens (of the device in all its layers); empty where that is not told.

    layers: those of the rank's pipeline stage, for counts that do not tell it."""
    mine = tables.ranks.filter(pl.col("rank") == rank)
    load = tables.load.filter(pl.col("expert").is_not_null(), pl.col("tokens").is_not_null())
    if mine.is_empty() or load.is_empty() or mine["device"][0] is None:
        return pl.DataFrame()
    device, group, size = mine.select("device", "ep_group", "ep_size").row(0)
    of_group = tables.ranks.filter(pl.col("ep_group") == group)
    # Counts of single ranks: the holder is told, and the group by who tells them.
    parts = load.filter(pl.col("ep_rank").is_not_null()).join(
        of_group.select(_RANK), on=_RANK, how="semi"
    )
    if not parts.is_empty():
        tokens = parts.filter(pl.col("ep_rank") == device).group_by(*PLACE, "expert")
        held = tokens.agg(pl.col("tokens").sum().cast(pl.Float64))
        every = parts.group_by(*PLACE, "expert").agg(pl.col("tokens").sum())
    else:
        # Counts of all ranks tell no stage: which layers are this rank's is not known then.
        if layers is None and (tables.ranks["pp_size"].max() or 1) != 1:
            return pl.DataFrame()
        every = expert_loads(load).with_columns(pl.col("expert").cast(pl.Int64))
        places = tables.placement
        if places.is_empty():
            if size is None:
                return pl.DataFrame()
            places = contiguous_placement(every, size)
        on = ("run", "capture", "layer", "expert")
        if layers is not None:
            every = every.filter(pl.col("layer").is_in(layers))
        slots = places.select(*on, "device", "slot").unique()
        slots = slots.with_columns(pl.col("expert").cast(pl.Int64))
        copies = slots.with_columns(copies=pl.len().over(on)).filter(pl.col("device") == device)
        # Groups of devices add up in such counts: they share evenly.
        stages = tables.ranks["pp_rank"].n_unique() if layers is not None else 1
        groups = max(1, tables.ranks["ep_group"].n_unique() // stages)
        held = every.join(copies, on=on).select(
            *PLACE, "expert", tokens=pl.col("tokens") / pl.col("copies") / groups
        )
        every = every.with_columns(pl.col("tokens") / groups)
    peers = every.group_by(PLACE).agg(peers=pl.col("tokens").mean())
    return _rank_rows(held.join(peers, on=PLACE, nulls_equal=True))


def _tokens_by_trace(
    con: duckdb.DuckDBPyConnection,
    tables: ExpertTables,
    ranks: Sequence[int],
    *,
    run: str,
    capture: str,
) -> pl.DataFrame:
    """Tokens of ranks by the trace, with ep_group: of all, or of some alone where all are many."""
    is_few = tables.ranks.height <= _MOST_RANKS
    scopes = [{}] if is_few else [{"rank": rank} for rank in ranks]
    loads = [trace_load(con, Scope(run, capture, **one)).rows for one in scopes]
    groups = tables.ranks.select(*_RANK, "ep_group")
    return pl.concat(loads).join(groups, on=_RANK, how="left")


def _stage_layers(tables: ExpertTables, tokens: pl.DataFrame, rank: int) -> list[int] | None:
    """Layers of the load that the rank has: the trace's, matched in their order, where all of them
    are seen in both; else None."""
    counted = tables.load["layer"].drop_nulls().unique().sort().to_list()
    traced = tokens["layer"].drop_nulls().unique().sort().to_list()
    mine = tokens.filter(pl.col("rank") == rank)["layer"].unique().to_list()
    if not mine or None in mine or traced != list(range(len(counted))):
        return None
    return [counted[one] for one in mine]


def _layers(loads: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The rank's layers by the trace, most tokens too many first: as `_experts_of_device`, but
    expert NULL."""
    groups = loads.filter(pl.col("rank") == rank)["ep_group"].to_list()
    if not groups:
        return pl.DataFrame()
    place = ("run", "capture", "step", "layer")
    whole = loads.filter(pl.col("ep_group") == groups[0]) if groups[0] else loads.clear()
    peers = whole.group_by(place).agg(peers=pl.when(pl.len() > 1).then(pl.col("tokens").mean()))
    mine = loads.filter(pl.col("rank") == rank).join(peers, on=place, how="left", nulls_equal=True)
    rows = mine.select(
        *place[:3], pl.lit("train").alias("phase"), "layer", pl.lit(None, pl.Int32).alias("expert"),
        pl.col("tokens").cast(pl.Float64), "peers",
    )  # fmt: skip
    return _rank_rows(rows, by=pl.col("tokens") - pl.col("peers").fill_null(0))


def _rank_rows(rows: pl.DataFrame, by: pl.Expr | None = None) -> pl.DataFrame:
    """Means of steps by layer and expert, most tokens first."""
    steps = rows.select(_STEP).n_unique()
    return (
        rows.group_by("layer", "expert")
        .agg(pl.col("tokens").sum() / max(steps, 1), pl.col("peers").mean())
        .with_columns(all_tokens=pl.col("tokens").sum())
        .filter(pl.col("tokens") > 0)
        .sort(pl.col("tokens") if by is None else by, "layer", "expert",
              descending=[True, False, False])
    )  # fmt: skip
