"""Whether counts of tokens can be right, and which layer of one source is which of another.

tokens of a layer = tokens of the step x top-k       twice as many: recomputed layers were
                                                     counted in the forward and once more
layers 0, 1, 2 of a trace or dump                    n-th expert layer
layers 4, 5, 6 of a hook                             n-th layer of the model: dense ones first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from npuscope.collector.readers.expert_load.load_frames import listed
from npuscope.messages import Message

# Counts that differ by less agree.
WITHIN_RATIO = 0.005


@dataclass(frozen=True, slots=True)
class SumCheck:
    """`ratio` of what a layer has in the median to tokens x top-k, NULL where these are unknown;
    `is_twice`: layers count everything twice; `notes` say so, or what else does not fit."""

    ratio: float | None
    is_twice: bool
    notes: tuple[str, ...] = ()


def checked_sums(
    rows: pl.DataFrame, *, tokens_per_step: int | None = None, top_k: int | None = None
) -> SumCheck:
    """Compare the tokens of each step and layer over all experts with tokens x top-k.

    `rows`: step, layer, tokens, each token once (one capture, all ranks, no rank twice);
    `tokens_per_step`: of the whole job. Where either is unknown layers are compared with each
    other, which shows only some that are counted twice.
    """
    totals = (
        rows.filter(pl.col("layer").is_not_null(), pl.col("tokens").is_not_null())
        .group_by("step", "layer")
        .agg(pl.col("tokens").sum().cast(pl.Float64))
        .filter(pl.col("tokens") > 0)
    )
    if totals.is_empty():
        return SumCheck(None, False)
    if not tokens_per_step or not top_k:
        return _among_layers(totals)
    layers = totals.group_by("layer").agg(
        (pl.col("tokens") / (tokens_per_step * top_k)).median().alias("ratio")
    )
    ratio = float(layers.select(pl.col("ratio").median()).item())
    notes: list[str] = []
    twice = layers.filter((pl.col("ratio") / 2 - 1).abs() <= WITHIN_RATIO)
    if twice.height:
        notes.append(
            _twice(
                twice,
                Message("tokens x top-k ({tokens} x {top_k})", tokens=tokens_per_step, top_k=top_k),
            )
        )
    others = layers.filter(
        (pl.col("ratio") - 1).abs() > WITHIN_RATIO, (pl.col("ratio") / 2 - 1).abs() > WITHIN_RATIO
    )
    if others.height:
        notes.append(_misfit(others, tokens_per_step, top_k))
    return SumCheck(ratio, twice.height > 0, tuple(notes))


def against_kernels(counted: pl.DataFrame, computed: pl.DataFrame) -> list[str]:
    """What does not fit between counts and the tokens that experts' kernels computed.

    Both: step, layer, tokens, of one capture and all its ranks; each layer is matched with that of
    the other source (`matched_layers`), over the steps of both.
    """
    key = ["step", "layer"]
    sums = [
        rows.drop_nulls(key).group_by(key).agg(pl.col("tokens").sum().cast(pl.Float64))
        for rows in (counted, computed)
    ]
    steps = sums[0].select("step").unique().join(sums[1].select("step").unique(), on="step")
    ours, theirs = (one.join(steps, on="step", how="semi") for one in sums)
    if steps.is_empty():
        return []
    matched = matched_layers(ours["layer"].to_list(), theirs["layer"].to_list())
    if matched is None:
        return [
            Message(
                "{counted} layers have token counts, but kernels show {seen} layers: not compared",
                counted=ours["layer"].n_unique(),
                seen=theirs["layer"].n_unique(),
            )
        ]
    named = pl.DataFrame({"layer": list(matched), "other": list(matched.values())}).cast(pl.Int32)
    layers = (
        ours.with_columns(pl.col("layer").cast(pl.Int32))
        .join(named, on="layer")
        .join(
            theirs.select("step", pl.col("layer").cast(pl.Int32).alias("other"), told="tokens"),
            on=["step", "other"],
        )
        .filter(pl.col("told") > 0)
        .group_by("layer")
        .agg((pl.col("tokens") / pl.col("told")).median().alias("ratio"))
    )
    is_twice = (pl.col("ratio") / 2 - 1).abs() <= WITHIN_RATIO
    twice = layers.filter(is_twice)
    others = layers.filter(~is_twice, (pl.col("ratio") - 1).abs() > WITHIN_RATIO)
    notes = [_twice(twice, Message("their kernels computed"))] if twice.height else []
    if others.height:
        ratio = float(others.select(pl.col("ratio").median()).item())
        notes.append(
            Message(
                "layers {layers} count {ratio} x the tokens computed by their grouped matmuls",
                layers=listed(others["layer"].sort().to_list()),
                ratio=f"{ratio:.3g}",
            )
        )
    return notes


def matched_layers(these: Sequence[int], those: Sequence[int]) -> dict[int, int] | None:
    """Layers of one source by those of the other, in their order; None where they are not as many.

    Sources that number alike match by number already: the same layers are matched to themselves.
    """
    ours, theirs = sorted(set(these)), sorted(set(those))
    return dict(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else None


def _among_layers(totals: pl.DataFrame) -> SumCheck:
    least = totals.with_columns(
        (pl.col("tokens") / pl.col("tokens").min().over("step")).alias("ratio")
    )
    layers = least.group_by("layer").agg(pl.col("ratio").median())
    twice = layers.filter((pl.col("ratio") / 2 - 1).abs() <= WITHIN_RATIO)
    once = layers.filter((pl.col("ratio") - 1).abs() <= WITHIN_RATIO)
    if twice.is_empty() or twice.height + once.height < layers.height:
        return SumCheck(None, False)
    return SumCheck(None, True, (_twice(twice, Message("the others")),))


def _twice(layers: pl.DataFrame, what: str) -> str:
    return Message(
        "layers {layers} count twice as many tokens as {what}: recomputation counted them "
        "again, or two ranks counted the same tokens",
        layers=listed(layers["layer"].sort().to_list()),
        what=what,
    )


def _misfit(layers: pl.DataFrame, tokens_per_step: int, top_k: int) -> str:
    ratio = float(layers.select(pl.col("ratio").median()).item())
    numbers = listed(layers["layer"].sort().to_list())
    seen = ratio * top_k
    if round(seen) >= 1 and abs(seen / round(seen) - 1) <= WITHIN_RATIO:
        why = Message("as if top-k was {seen}, not {top_k}", seen=round(seen), top_k=top_k)
    elif ratio < 1:
        why = Message(
            "{share} are missing: dropped, or from ranks without data here",
            share=f"{1 - ratio:.1%}",
        )
    else:
        why = Message("more than were routed")
    return Message(
        "layers {layers} count {ratio} x tokens x top-k ({tokens} x {top_k}): {why}",
        layers=numbers,
        ratio=f"{ratio:.3g}",
        tokens=tokens_per_step,
        top_k=top_k,
        why=why,
    )
