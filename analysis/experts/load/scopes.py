"""Loads of a part of a step: of one micro-batch, or of the ranks of one group.

    global        all tokens of a step                              rows of `expert_load`
    dp_group      those of the ranks of one data-parallel group     ─┐
    ep_group      those of the ranks of one expert-parallel group    ├ rows of `expert_counts`
    micro_batch   those of one rank in one micro-batch              ─┘

A router whose balance loss is taken over a part pays for what is uneven in it, though it may be
even over the whole. Figures of parts are those of `metrics`: each part stands in for a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import duckdb
import polars as pl

from npuscope.messages import Message

from ...scope import ALL, JOB, Scope
from ...views import frame
from .imbalance import PLACE, expert_loads
from .load import MEMBERS, ExpertTables

PartName = Literal["micro_batch", "ep_group", "dp_group", "global"]
# Parallel kinds of each scope's groups, the likelier first.
_KINDS = {"ep_group": ("ep", "tp_ep"), "dp_group": ("dp", "dp_cp", "tp_dp", "tp_dp_cp")}
_SIZES = {"ep_group": "ep_size", "dp_group": "dp_size"}
_NAMES = {
    "ep_group": Message("expert-parallel group"),
    "dp_group": Message("data-parallel group"),
}
_CAPTURE = ("run", "capture")


@dataclass(frozen=True, slots=True)
class Part:
    """Loads like those of `imbalance.expert_loads`, `step` being the number of a part; `units`:
    run, capture, part, step, scope_index (the lowest rank of a group, or the rank that counted),
    micro_batch (NULL: all)."""

    loads: pl.DataFrame
    units: pl.DataFrame


def with_counts(
    tables: ExpertTables, con: duckdb.DuckDBPyConnection, scope: Scope = ALL
) -> ExpertTables:
    """The tables with what single ranks counted, and who is in which group."""
    clause, values = scope.all_ranks.where()
    counts = frame(con, f"select * from expert_counts {clause}", values)
    first = pl.col("rank").min().over(_CAPTURE)  # a second holder told the same
    clause, values = scope.where(JOB)
    kinds = [kind for group in _KINDS.values() for kind in group]
    groups = frame(
        con,
        "select distinct run, capture, parallel_kind, global_ranks from groups"
        f" {clause} {'and' if clause else 'where'} global_ranks is not null"
        f" and parallel_kind in ({', '.join(map(repr, kinds))}) order by all",
        values,
    )
    sizes = frame(
        con,
        "select run, capture, max(dp_size) as dp_size, max(ep_size) as ep_size from ranks"
        f" {clause} group by run, capture order by all",
        values,
    )
    counts_of_rank = counts.filter(pl.col("rank") == first).drop("rank")
    return replace(tables, counts=counts_of_rank, members=_members(groups, sizes, counts_of_rank))


def parts(tables: ExpertTables, scope: PartName) -> Iterator[Part]:
    """Parts of one step after the other; none where nobody tells them. Not for scope global."""
    counts = tables.counts
    if scope == "micro_batch":
        counts_of_parts = counts.filter(pl.col("micro_batch").is_not_null()).with_columns(
            scope_index=pl.col("counted_by").cast(pl.Int64)
        )
    else:
        counts_of_parts = _of_groups(tables, scope).drop("size", "is_whole")
    for one in counts_of_parts.partition_by(*_CAPTURE, "step"):
        yield _part(one)
    if scope == "ep_group":
        is_told = counts.select(_CAPTURE).unique()
        held = _of_holders(tables).join(is_told, on=_CAPTURE, how="anti")
        if not held.is_empty():
            yield _part(held)


def scope_notes(tables: ExpertTables, scope: PartName) -> list[str]:
    """Why there are no figures at a scope, or which parts are missing."""
    if scope == "global":
        return []
    if scope == "micro_batch":
        alone = tables.counts["micro_batch"].null_count() if tables.counts.height else 0
        if tables.counts.is_empty() or alone == tables.counts.height:
            return [
                "counts by micro-batch are not recorded: the training hook records them when"
                " given a list for each micro-batch"
            ]
        return (
            [Message("{count} counts sum several micro-batches: left out", count=alone)]
            if alone
            else []
        )
    if tables.counts.is_empty():
        if scope == "ep_group" and not _of_holders(tables).is_empty():
            return []
        return ["counts by rank are not recorded: files of the training hook have them"]
    members_of_groups = _of_groups(tables, scope, only_whole=False)
    if members_of_groups.is_empty():
        return [Message("the ranks of each {group} are not recorded", group=_NAMES[scope])]
    groups = members_of_groups.group_by(*_CAPTURE, "scope_index").agg(pl.col("is_whole").all())
    short = groups.filter(~pl.col("is_whole")).height
    notes: list[str] = []
    if short:
        notes.append(
            Message(
                "{count} of {all} {group}s are left out: not all of their ranks counted",
                count=short,
                all=groups.height,
                group=_NAMES[scope],
            )
        )
    missing = tables.counts.select(*_CAPTURE, "counted_by").unique().height
    missing -= members_of_groups.select(*_CAPTURE, "counted_by").unique().height
    if missing:
        notes.append(
            Message(
                "the {group} of {count} ranks that counted is unknown: left out",
                group=_NAMES[scope],
                count=missing,
            )
        )
    return notes


def _part(rows: pl.DataFrame) -> Part:
    """Number the parts in rows of run, capture, step, phase, layer, scope_index, micro_batch,
    tokens (of all experts; else expert too); those of one number are added up."""
    unit = [*_CAPTURE, "step", "scope_index", "micro_batch"]
    units = rows.select(unit).unique().sort(unit, nulls_last=True)
    units = units.with_row_index("part").with_columns(pl.col("part").cast(pl.Int64))
    place: list[str | pl.Expr] = [*_CAPTURE, pl.col("part").alias("step"), "phase", "layer"]
    loads = rows.join(units, on=unit, nulls_equal=True)
    if "expert" in rows.columns:
        loads = loads.select(*place, "expert", "tokens")
    else:
        experts = pl.int_ranges(0, pl.col("tokens").list.len(), dtype=pl.Int32)
        loads = loads.select(*place, "tokens", expert=experts).explode("expert", "tokens")
    if rows.height > rows.select(*unit, "phase", "layer").n_unique():
        loads = loads.group_by(*PLACE, "expert").agg(pl.col("tokens").sum())
    return Part(loads.select(*PLACE, "expert", "tokens"), units)


def _of_groups(tables: ExpertTables, scope: PartName, *, only_whole: bool = True) -> pl.DataFrame:
    """Counts with the scope_index of their group, `micro_batch` NULL, and whether all of its ranks
    counted the layer."""
    members = tables.members.filter(pl.col("scope") == scope).drop("scope")
    counts = tables.counts.join(members, on=[*_CAPTURE, "counted_by"]).with_columns(
        micro_batch=pl.lit(None, pl.Int32)
    )
    place = [*PLACE, "scope_index"]
    counts = counts.with_columns(
        is_whole=pl.col("counted_by").n_unique().over(place) == pl.col("size")
    )
    return counts.filter("is_whole") if only_whole else counts


def _of_holders(tables: ExpertTables) -> pl.DataFrame:
    """Where ranks told what their own experts got: rows by the expert-parallel group, of layers all
    of whose rows have one."""
    rank = [*_CAPTURE, "rank"]
    group = pl.col("rank").min().over(*_CAPTURE, "ep_group").cast(pl.Int64)
    ranks = tables.ranks.select(*rank, "ep_group", scope_index=group)
    rows = tables.load.filter(pl.col("ep_rank").is_not_null() & pl.col("tokens").is_not_null())
    rows_with_places = rows.join(ranks, on=rank, how="left")
    clear = rows_with_places.filter(
        pl.col("ep_group").is_not_null().all().over(*PLACE), pl.col("expert").is_not_null()
    )
    return clear.with_columns(micro_batch=pl.lit(None, pl.Int32))


def _members(groups: pl.DataFrame, sizes: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Who is in which group: MEMBERS. Of several groups of a rank, that of the size the ranks
    tell, then of the likelier kind; where that size is 1, each rank that counted is its own."""
    members: list[pl.DataFrame] = []
    counting = counts.select(*_CAPTURE, "counted_by").unique()
    for scope, kinds in _KINDS.items():
        order = {kind: at for at, kind in enumerate(kinds)}
        size = pl.col("global_ranks").list.len().cast(pl.Int64)
        of_kind = (
            groups.filter(pl.col("parallel_kind").is_in(kinds))
            .join(sizes.select(*_CAPTURE, wanted=_SIZES[scope]), on=_CAPTURE, how="left")
            .with_columns(
                scope_index=pl.col("global_ranks").list.min().cast(pl.Int64),
                size=size,
                is_other=(size != pl.col("wanted")).fill_null(True),
                likely=pl.col("parallel_kind").replace_strict(order, return_dtype=pl.Int64),
            )
            .explode("global_ranks")
            .rename({"global_ranks": "counted_by"})
            .sort("is_other", "likely", "scope_index", "size")
            .unique([*_CAPTURE, "counted_by"], keep="first", maintain_order=True)
        )
        alone = counting.join(
            sizes.filter(pl.col(_SIZES[scope]) == 1).select(_CAPTURE), on=_CAPTURE
        ).with_columns(scope_index=pl.col("counted_by").cast(pl.Int64), size=pl.lit(1))
        alone = alone.join(of_kind, on=[*_CAPTURE, "counted_by"], how="anti")
        members += [
            one.select(
                pl.lit(scope).alias(name) if name == "scope" else pl.col(name).cast(kind)
                for name, kind in MEMBERS.items()
            )
            for one in (of_kind, alone)
        ]
    return pl.concat(members)


def loads_at(tables: ExpertTables, scope: PartName) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Loads and their units, of scope global too: there a part is the step itself."""
    if scope != "global":
        for part in parts(tables, scope):
            yield part.loads, part.units
        return
    loads = expert_loads(tables.load)
    units = loads.select(*_CAPTURE, "step").unique()
    yield (
        loads,
        units.with_columns(
            part=pl.col("step"),
            scope_index=pl.lit(None, pl.Int64),
            micro_batch=pl.lit(None, pl.Int32),
        ),
    )
