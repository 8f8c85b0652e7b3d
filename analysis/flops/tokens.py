"""Tokens that a job trains on in one step, from the repetition of its layers.

In each micro-batch every layer runs the gradient of its attention once, whatever is recomputed, so

    micro-batches = gradients on a rank / layers of its pipeline stage
    tokens        = micro-batches x tokens of one x data-parallel ranks

Where every stage has a rank with kernels, the layers of all together are the model's, however they
are shared out (MTP blocks among them). Otherwise stages are taken for equal: the model's layers /
stages, MTP blocks on the last one. What does not come out whole, or differs between ranks, is not
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message, join

from ..views import frame
from .model.architecture import Model, layer_counts

STEP = ("run", "capture", "step")
_FORWARD, _GRADIENT = "flashattentionscore", "flashattentionscoregrad"
# Sizes by metadata; where that has none, by the groups that were in use.
_SIZES = """
with _groups as (
    select run, capture, parallel_kind as kind, max(len(global_ranks)) as size
    from groups group by all
),
_of_groups as (
    select run, capture, max(size) filter (where kind = 'world') as world,
        max(size) filter (where kind = 'tp') as tp, max(size) filter (where kind = 'pp') as pp,
        max(size) filter (where kind = 'cp') as cp, max(size) filter (where kind = 'dp') as dp,
        max(size) filter (where kind = 'dp_cp') as dp_cp
    from _groups group by all
)
select run, capture, coalesce(max(r.world_size), any_value(g.world)) as world,
    coalesce(max(r.tp_size), any_value(g.tp)) as tp,
    coalesce(max(r.pp_size), any_value(g.pp)) as pp,
    coalesce(max(r.cp_size), any_value(g.cp)) as cp,
    coalesce(max(r.dp_size), any_value(g.dp)) as dp, any_value(g.dp_cp) as dp_cp
from ranks as r left join _of_groups as g using (run, capture)
group by all
"""
_STAGES = """
select run, capture, rank, coalesce(max(r.pp_rank), max(g.group_rank)) as stage
from ranks as r
left join (from groups where parallel_kind = 'pp') as g using (run, capture, rank)
group by all
"""
_ROWS = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "tokens_per_step": pl.Int64,
    "tokens_basis": pl.String,
}  # fmt: skip


class _NoTokens(Exception):
    """Why the tokens of a step are not known."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Attention of one rank in one step: `tokens` of a gradient's queries, by size."""

    stage: int | None
    gradients: int
    forwards: int
    tokens: frozenset[int | None]


def tokens_of_steps(
    con: duckdb.DuckDBPyConnection, model: Model, counted: pl.DataFrame
) -> tuple[pl.DataFrame, list[str]]:
    """(run, capture, step, tokens_per_step, tokens_basis) of the steps where that is certain, and
    notes: which number was chosen and why, and why others are not known.

    `counted`: kernels of all ranks, from `counted_kernels`.
    """
    sizes = {(row["run"], row["capture"]): row for row in frame(con, _SIZES).to_dicts()}
    rows: list[tuple[Any, ...]] = []
    reasons: list[str] = []
    for (run, capture, step), ranks in _counts(con, counted).items():
        try:
            token_count = _tokens(model, _sizes(sizes[run, capture]), ranks)
        except _NoTokens as why:
            sentence = "tokens per step: {why}; give --tokens-per-step N"
            reasons.append(Message(sentence, why=why.args[0]))
        else:
            rows.append((run, capture, step, *token_count))
    notes: list[str] = [
        Message("tokens per step: {tokens}, {basis}", tokens=tokens, basis=basis)
        for *_, tokens, basis in rows
    ]
    if not rows and not reasons:
        reasons = [
            "tokens per step: no backward of fused attention was recorded; give --tokens-per-step N"
        ]
    return pl.DataFrame(rows, _ROWS, orient="row"), list(dict.fromkeys([*notes, *reasons]))


def _counts(
    con: duckdb.DuckDBPyConnection, counted: pl.DataFrame
) -> dict[tuple[str, str, int | None], list[_Counts]]:
    """What each rank with kernels did in the steps in which gradients of attention ran."""
    kind = pl.col("type").str.to_lowercase()
    is_gradient = kind.str.starts_with(_GRADIENT)
    is_forward = kind.str.starts_with(_FORWARD) & ~is_gradient
    summed = (
        counted.filter(kind.is_not_null())
        .group_by(*STEP, "rank")
        .agg(
            pl.col("count").filter(is_gradient).sum().alias("gradients"),
            pl.col("count").filter(is_forward).sum().alias("forwards"),
            pl.col("tokens").filter(is_gradient).unique().alias("sizes"),
            pl.col("tokens").filter(is_forward).unique().alias("forward_sizes"),
        )
        .filter((pl.col("gradients") > 0).any().over(STEP))
        .join(frame(con, _STAGES), on=("run", "capture", "rank"), how="left")
        .sort(*STEP, "rank", nulls_last=True)
    )
    by_step: dict[tuple[str, str, int | None], list[_Counts]] = {}
    for row in summed.to_dicts():
        # Where gradients do not tell heads from sequences, the forward pass does.
        row_sizes = row["forward_sizes"] if row["sizes"] == [None] else row["sizes"]
        sizes = frozenset(row_sizes or [None]) if row["gradients"] else frozenset()
        counts = _Counts(row["stage"], row["gradients"], row["forwards"], sizes)
        by_step.setdefault((row["run"], row["capture"], row["step"]), []).append(counts)
    return by_step


def pipeline_stages(con: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], int | None]:
    """Pipeline stages of each capture's job; None: not told."""
    rows = frame(con, _SIZES).to_dicts()
    return {(row["run"], row["capture"]): _told_sizes(row)["pp"] for row in rows}


def _told_sizes(row: dict[str, Any]) -> dict[str, int | None]:
    """Parallel sizes as far as they are told, or follow from the number of ranks."""
    sizes: dict[str, int | None] = {kind: row[kind] for kind in ("tp", "pp", "cp", "dp")}
    if sizes["dp"] is None and row["dp_cp"] and sizes["cp"]:
        sizes["dp"] = row["dp_cp"] // sizes["cp"]
    missing = [kind for kind, size in sizes.items() if size is None]
    product, world = prod(size or 1 for size in sizes.values()), row["world"]
    if product == world:
        sizes |= dict.fromkeys(missing, 1)
    elif missing == ["dp"] and world is not None and world % product == 0:
        sizes["dp"] = world // product
    return sizes


def _sizes(row: dict[str, Any]) -> tuple[int, int]:
    """Pipeline stages and data-parallel ranks of a job. Raises _Unknown."""
    sizes, world = _told_sizes(row), row["world"]
    pp, dp, cp = sizes["pp"], sizes["dp"], sizes["cp"]
    if cp is not None and cp > 1:
        raise _NoTokens(
            Message("context parallelism over {count} ranks splits a sequence", count=cp)
        )
    if pp is None or dp is None or cp is None:
        raise _NoTokens(Message("parallel sizes are unknown"))
    if world is not None and sizes["tp"] is not None and sizes["tp"] * pp * dp != world:
        words = " x ".join(f"{kind} {size}" for kind, size in sizes.items())
        raise _NoTokens(
            Message(
                "parallel sizes contradict each other ({words} are not {world} ranks)",
                words=words,
                world=world,
            )
        )
    return pp, dp


def _tokens(model: Model, sizes: tuple[int, int], ranks: Sequence[_Counts]) -> tuple[int, str]:
    """Tokens of a step and why. Raises _Unknown."""
    stages, replicas = sizes
    sequences = frozenset[int | None]().union(*(rank.tokens for rank in ranks))
    if None in sequences:
        raise _NoTokens(Message("query shapes are unknown for some attention kernels"))
    if len(sequences) > 1:
        raise _NoTokens(Message("attention works on micro-batches of several sizes"))
    if any(0 < rank.forwards < rank.gradients for rank in ranks):
        raise _NoTokens(
            Message("attention has more backward than forward kernels: the step is incomplete")
        )
    of_stage: dict[int | None, set[int]] = {}
    for rank in ranks:
        of_stage.setdefault(rank.stage if stages > 1 else 0, set()).add(rank.gradients)
    for stage, counts in of_stage.items():
        if len(counts) > 1:
            sentence = "ranks ran {counts} gradients of attention"
            if stage is not None:
                sentence = "ranks of pipeline stage {stage} ran {counts} gradients of attention"
            names = join(map(str, sorted(counts)), " and ")
            raise _NoTokens(Message(sentence, stage=stage, counts=names))
    micro_batches, words = _micro_batches(
        model, stages, {stage: min(counts) for stage, counts in of_stage.items()}
    )
    (size,) = sequences
    assert size is not None
    tokens = micro_batches * size * replicas
    forwards = sum(rank.forwards for rank in ranks)
    batches = "{count} micro-batch" if micro_batches == 1 else "{count} micro-batches"
    several = "{count} data-parallel rank" if replicas == 1 else "{count} data-parallel ranks"
    basis = Message(
        "{batches} x {size} tokens x {replicas}: {words}",
        batches=Message(batches, count=micro_batches),
        size=size,
        replicas=Message(several, count=replicas),
        words=words,
    )
    if forwards:
        often = forwards / sum(rank.gradients for rank in ranks)
        repeated = "{basis}, run forward {often} x as often"
        basis = Message(repeated, basis=basis, often=f"{often:.3g}")
    return tokens, basis


def _micro_batches(model: Model, stages: int, gradients: dict[int | None, int]) -> tuple[int, str]:
    """Micro-batches of a step, and of what they are counted. Raises _Unknown."""
    layers, blocks = sum(layer_counts(model)), model.mtp_depth
    of_layers, mtp = Message("{count} layers", count=layers), ""
    if blocks:
        mtp = Message("{count} MTP block" if blocks == 1 else "{count} MTP blocks", count=blocks)
        of_layers = Message("{one} and {other}", one=of_layers, other=mtp)
    if set(gradients) == set(range(stages)):
        total, of_all = sum(gradients.values()), layers + blocks
        where = Message("of all pipeline stages") if stages > 1 else Message("of a rank")
        uneven = (
            "{total} gradients of attention {where} are not those of equal micro-batches in"
            " {layers}"
        )
        if total % of_all:
            raise _NoTokens(Message(uneven, total=total, where=where, layers=of_layers))
        even = "{total} gradients of attention {where} in {layers}"
        return total // of_all, Message(even, total=total, where=where, layers=of_layers)
    if layers % stages or model.noop_layers:
        raise _NoTokens(
            Message(
                "only {count} of {stages} pipeline stages were recorded, and {layers} layers are"
                " not split evenly",
                count=len(gradients),
                stages=stages,
                layers=model.layers,
            )
        )
    if blocks and not set(gradients) <= set(range(stages)):
        raise _NoTokens(Message("the pipeline stage of the MTP blocks is unknown"))
    of_model: str = str(layers)
    if mtp:
        of_model = Message("{one} and {other}", one=of_model, other=mtp)
    reasons: dict[int, str] = {}
    for stage, count in gradients.items():
        own = layers // stages + (blocks if stage == stages - 1 else 0)
        held = Message("{count} layer" if own == 1 else "{count} layers", count=own)
        part = "{total} gradients of attention on a rank of a stage of {own}"
        words = Message(part, total=count, own=held)
        if count % own:
            uneven = "{words} are not those of equal micro-batches"
            raise _NoTokens(Message(uneven, words=words))
        reasons[count // own] = Message(
            "{words} (the model's {layers} in {stages} equal stages)",
            words=words,
            layers=of_model,
            stages=stages,
        )
    if len(reasons) > 1:
        names = join(map(str, sorted(reasons)), " and ")
        apart = "pipeline stages ran {counts} micro-batches, if layers are split evenly"
        raise _NoTokens(Message(apart, counts=names))
    return next(iter(reasons.items()))


def sequence_length_of(counted: pl.DataFrame) -> int | None:
    """Length of the sequences attention works on; None where shapes tell none or several."""
    lengths = counted["sequence_length"].drop_nulls().unique()
    return int(lengths[0]) if len(lengths) == 1 else None
