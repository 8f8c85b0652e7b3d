"""Tokens that were routed nowhere: tokens of the step x top-k, less those that experts got.

What was counted may differ for other reasons: recomputation that counts twice, a top-k that is
another, ranks that did not count. Then nothing is said to be dropped, see `check_sums`.

Whether counts of tokens can be right, and which layer of one source is which of another.

tokens of a layer = tokens of the step x top-k       twice as many: recomputed layers were
                                                     counted in the forward and once more
layers 0, 1, 2 of a trace or dump                    n-th expert layer
layers 4, 5, 6 of a hook                             n-th layer of the model: dense ones first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.collector.readers.expert_load.load_frames import few_numbers
from npuscope.messages import Message, join

from ...scope import Scope
from .from_trace import is_short_enough, trace_load
from .imbalance import PLACE, expert_loads
from .load import ExpertTables, expert_rows
from .load_notes import told_by

_TRAINING = pl.col("phase") == "train"
_SENDS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "tokens_per_step": pl.Int64, "top_k": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RouterTokens:
    """What routers of one capture sent: tokens of a step of the whole job, experts of each token;
    None where not told. `counting`: ranks that counted, `expected` that should have."""

    tokens_per_step: int | None = None
    top_k: int | None = None
    counting: int | None = None
    expected: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether ranks are known to be missing."""
        return None not in (self.counting, self.expected) and (self.counting or 0) < (
            self.expected or 0
        )


# By run and capture.
RoutedBy = Mapping[tuple[str, str], RouterTokens]


def with_dropped(layers: pl.DataFrame, routing: RoutedBy) -> pl.DataFrame:
    """Layers (PLACE, tokens) with dropped_tokens and dropped_ratio (of what was routed).

    NULL where what was routed is not told, ranks are missing, more was counted than routed, or as
    much as another top-k gives; 0 where counts agree within _WITHIN_RATIO but for less than none.
    """
    rows = [
        (*place, one.tokens_per_step, one.top_k)
        for place, one in routing.items()
        if not one.is_short
    ]
    tokens, each, top_k = (pl.col(name) for name in ("tokens", "tokens_per_step", "top_k"))
    sent = each * top_k
    mean = tokens / each
    is_other = (mean.round() != top_k) & ((mean / mean.round() - 1).abs() <= _WITHIN_RATIO)
    is_known = _TRAINING & (sent - tokens >= -_WITHIN_RATIO * sent) & (tokens > 0) & ~is_other
    return (
        layers.join(
            pl.DataFrame(rows, schema=_SENDS, orient="row"),
            on=["run", "capture"], how="left", maintain_order="left",
        )
        .with_columns(dropped_tokens=pl.when(is_known).then((sent - tokens).clip(lower_bound=0)))
        .with_columns(dropped_ratio=pl.col("dropped_tokens") / sent)
        .drop("tokens_per_step", "top_k")
    )  # fmt: skip


def kernel_notes(con: duckdb.DuckDBPyConnection, tables: ExpertTables) -> list[str]:
    """Whether counts agree with what grouped matmuls computed, of captures with all their ranks."""
    ranks = tables.ranks.group_by("run", "capture").agg(
        pl.len().alias("seen"), pl.col("world_size").max()
    )
    whole = ranks.filter(pl.col("seen") == pl.col("world_size")).select("run", "capture").rows()
    trained = expert_loads(tables.load).filter(_TRAINING)
    notes: dict[tuple[str, str], list[str]] = {}
    for (run, capture), mine in _captures(trained).items():
        notes[run, capture] = []
        if (run, capture) in whole and is_short_enough(con, run=run, capture=capture):
            loads = trace_load(con, Scope(run, capture)).rows
            notes[run, capture] = against_kernels(mine, loads)
    return told_by(notes)


def doubts(con: duckdb.DuckDBPyConnection, *, run: str, capture: str) -> list[str]:
    """What does not fit in a capture's counts, without anything that the user tells: layers that
    count twice what others do, or other tokens than the grouped matmuls of all ranks computed."""
    tables = expert_rows(con, Scope(run, capture))
    if tables.load.is_empty():
        return []
    notes = kernel_notes(con, tables)
    if not notes:
        trained = expert_loads(tables.load).filter(_TRAINING)
        notes = check_sums(trained.select(*PLACE, "expert", "tokens"))
    return [Message("expert load: {note}", note=note) for note in notes]


def sum_notes(loads: pl.DataFrame, routing: RoutedBy) -> list[str]:
    """What does not fit between counts and tokens x top-k, and why drops are not known.

    `loads` are of `imbalance.expert_loads`: training only.
    """
    notes: dict[tuple[str, str], list[str]] = {}
    for place, one in _captures(loads.filter(_TRAINING)).items():
        sent = routing.get(place, RouterTokens())
        misfits = check_sums(
            one.select(*PLACE, "expert", "tokens"),
            tokens_per_step=sent.tokens_per_step, top_k=sent.top_k,
        )  # fmt: skip
        notes[place] = [*misfits, *_unknown(sent)]
    return told_by(notes)


def _unknown(sent: RouterTokens) -> list[str]:
    """Why it is not known how many tokens were dropped."""
    missing = [
        name
        for name, value in (
            (Message("tokens of a step (--tokens-per-step N)"), sent.tokens_per_step),
            (Message("top-k (--top-k K)"), sent.top_k),
        )
        if not value
    ]
    if missing:
        return [Message("dropped tokens are unknown: missing {what}", what=join(missing))]
    if sent.is_short:
        return [
            Message(
                "dropped tokens are unknown: {counting} of {expected} ranks counted",
                counting=sent.counting,
                expected=sent.expected,
            )
        ]
    return []


def _captures(rows: pl.DataFrame) -> dict[tuple[str, str], pl.DataFrame]:
    return {
        (str(run), str(capture)): one
        for (run, capture), one in rows.group_by("run", "capture", maintain_order=True)
    }


# Counts that differ by less agree.
_WITHIN_RATIO = 0.005


def check_sums(
    rows: pl.DataFrame, *, tokens_per_step: int | None = None, top_k: int | None = None
) -> list[str]:
    """What does not fit between the tokens of each step and layer over all experts and tokens x
    top-k: layers that count everything twice, others.

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
        return []
    if not tokens_per_step or not top_k:
        return _among_layers(totals)
    layers = totals.group_by("layer").agg(
        (pl.col("tokens") / (tokens_per_step * top_k)).median().alias("ratio")
    )
    notes: list[str] = []
    twice = layers.filter((pl.col("ratio") / 2 - 1).abs() <= _WITHIN_RATIO)
    if twice.height:
        notes.append(
            _twice(
                twice,
                Message("tokens x top-k ({tokens} x {top_k})", tokens=tokens_per_step, top_k=top_k),
            )
        )
    others = layers.filter(
        (pl.col("ratio") - 1).abs() > _WITHIN_RATIO, (pl.col("ratio") / 2 - 1).abs() > _WITHIN_RATIO
    )
    if others.height:
        notes.append(_misfit(others, tokens_per_step, top_k))
    return notes


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
    is_twice = (pl.col("ratio") / 2 - 1).abs() <= _WITHIN_RATIO
    twice = layers.filter(is_twice)
    others = layers.filter(~is_twice, (pl.col("ratio") - 1).abs() > _WITHIN_RATIO)
    notes = [_twice(twice, Message("their kernels computed"))] if twice.height else []
    if others.height:
        ratio = float(others.select(pl.col("ratio").median()).item())
        notes.append(
            Message(
                "layers {layers} count {ratio} x the tokens computed by their grouped matmuls",
                layers=few_numbers(others["layer"].sort().to_list()),
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


def _among_layers(totals: pl.DataFrame) -> list[str]:
    least = totals.with_columns(
        (pl.col("tokens") / pl.col("tokens").min().over("step")).alias("ratio")
    )
    layers = least.group_by("layer").agg(pl.col("ratio").median())
    twice = layers.filter((pl.col("ratio") / 2 - 1).abs() <= _WITHIN_RATIO)
    once = layers.filter((pl.col("ratio") - 1).abs() <= _WITHIN_RATIO)
    if twice.is_empty() or twice.height + once.height < layers.height:
        return []
    return [_twice(twice, Message("the others"))]


def _twice(layers: pl.DataFrame, what: str) -> str:
    return Message(
        "layers {layers} count twice as many tokens as {what}: recomputation counted them "
        "again, or two ranks counted the same tokens",
        layers=few_numbers(layers["layer"].sort().to_list()),
        what=what,
    )


def _misfit(layers: pl.DataFrame, tokens_per_step: int, top_k: int) -> str:
    ratio = float(layers.select(pl.col("ratio").median()).item())
    numbers = few_numbers(layers["layer"].sort().to_list())
    mean = ratio * top_k
    if round(mean) >= 1 and abs(mean / round(mean) - 1) <= _WITHIN_RATIO:
        why = Message("as if top-k was {seen}, not {top_k}", seen=round(mean), top_k=top_k)
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
