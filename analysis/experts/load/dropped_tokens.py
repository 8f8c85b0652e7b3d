"""Tokens that were routed nowhere: tokens of the step x top-k, less those that experts got.

What was counted may differ for other reasons: recomputation that counts twice, a top-k that is
another, ranks that did not count. Then nothing is said to be dropped, see `agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.messages import Message, joined

from .agreement import WITHIN_RATIO, against_kernels, checked_sums
from .from_trace import is_short_enough, trace_load
from .imbalance import PLACE, expert_loads
from .load import ExpertTables, expert_rows
from .load_notes import told_by

_TRAINING = pl.col("phase") == "train"
_SENT: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "tokens_per_step": pl.Int64, "top_k": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routed:
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
RoutedBy = Mapping[tuple[str, str], Routed]


def with_dropped(layers: pl.DataFrame, routed: RoutedBy) -> pl.DataFrame:
    """Layers (PLACE, tokens) with dropped_tokens and dropped_ratio (of what was routed).

    NULL where what was routed is not told, ranks are missing, more was counted than routed, or as
    much as another top-k gives; 0 where counts agree within WITHIN_RATIO but for less than none.
    """
    told = [
        (*place, one.tokens_per_step, one.top_k)
        for place, one in routed.items()
        if not one.is_short
    ]
    tokens, each, top_k = (pl.col(name) for name in ("tokens", "tokens_per_step", "top_k"))
    sent = each * top_k
    seen = tokens / each
    is_other = (seen.round() != top_k) & ((seen / seen.round() - 1).abs() <= WITHIN_RATIO)
    is_known = _TRAINING & (sent - tokens >= -WITHIN_RATIO * sent) & (tokens > 0) & ~is_other
    return (
        layers.join(
            pl.DataFrame(told, schema=_SENT, orient="row"),
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
    told: dict[tuple[str, str], list[str]] = {}
    for (run, capture), mine in _captures(trained).items():
        told[run, capture] = []
        if (run, capture) in whole and is_short_enough(con, run=run, capture=capture):
            found = trace_load(con, run=run, capture=capture).rows
            told[run, capture] = against_kernels(mine, found)
    return told_by(told)


def doubts(con: duckdb.DuckDBPyConnection, *, run: str, capture: str) -> list[str]:
    """What does not fit in a capture's counts, without anything that the user tells: layers that
    count twice what others do, or other tokens than the grouped matmuls of all ranks computed."""
    tables = expert_rows(con, run=run, capture=capture)
    if tables.load.is_empty():
        return []
    told = kernel_notes(con, tables)
    if not told:
        trained = expert_loads(tables.load).filter(_TRAINING)
        told = list(checked_sums(trained.select(*PLACE, "expert", "tokens")).notes)
    return [Message("expert load: {note}", note=note) for note in told]


def sum_notes(loads: pl.DataFrame, routed: RoutedBy) -> list[str]:
    """What does not fit between counts and tokens x top-k, and why drops are not known.

    `loads` are of `metrics.expert_loads`: training only.
    """
    told: dict[tuple[str, str], list[str]] = {}
    for place, one in _captures(loads.filter(_TRAINING)).items():
        sent = routed.get(place, Routed())
        found = checked_sums(
            one.select(*PLACE, "expert", "tokens"),
            tokens_per_step=sent.tokens_per_step, top_k=sent.top_k,
        )  # fmt: skip
        told[place] = [*found.notes, *_unknown(sent)]
    return told_by(told)


def _unknown(sent: Routed) -> list[str]:
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
        return [Message("dropped tokens are unknown: missing {what}", what=joined(missing))]
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
