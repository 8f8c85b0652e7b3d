"""Slow ranks as terminal tables: who makes others wait, and the evidence of a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from npuscope.analysis.ranks.stragglers.blame import VERDICT_WORDS, by_rank
from npuscope.analysis.wording import UNKNOWN, ms, number, numbers, percent, plain, us
from npuscope.messages import Message, join

from .tables import Column, FittedTable, decimals, several

_FORMS: dict[str, Callable[[float], str]] = {
    "ns": lambda value: f"{ms(value)} ms",
    "bytes": lambda value: f"{value / 1e6:,.3f} MB",
    "bytes/s": lambda value: f"{value / 1e9:,.2f} GB/s",
    "MHz": lambda value: f"{value:,.0f} MHz",
    "ratio": lambda value: f"{value:.3f}",
}
_score = decimals("{:.1f}")


def hottest(evidence: str | None) -> str | None:
    """Layers and experts that evidence (JSON) names: `layer 3: expert 17, 4; layer 5: expert 9`;
    None where it names none."""
    named: dict[str, list[str]] = {}
    for line in json.loads(evidence or "[]"):
        if {"layer", "expert"} <= line.keys():
            place = "all layers" if line["layer"] is None else f"layer {line['layer']}"
            experts = named.setdefault(place, [])
            experts += [] if line["expert"] is None else [str(line["expert"])]
    layers = [
        f"{layer}: expert {', '.join(experts)}" if experts else layer
        for layer, experts in named.items()
    ]
    return "; ".join(layers) or None


def ranks_table(
    frame: pl.DataFrame, *, top: int | None = None, waits: pl.DataFrame | None = None
) -> FittedTable:
    """Ranks by the waiting they cause, suspects first; `frame` as `rank_blame` gives it.

    `waits` has each rank's own waiting (`parts.exposed_parts` by rank).
    """
    together = by_rank(frame)
    ranks = together if top is None else together.head(top)
    columns = [
        *several(together),
        Column("rank", "rank", plain),
        Column("caused wait ms", "caused_wait_ns", ms),
        Column("share", "share_ratio", percent, 5),
        *(
            []
            if waits is None
            else [
                Column("waits ms", "peer_wait_ns", ms),
                Column("in the pipeline ms", "pipeline_wait_ns", ms, 3),
                Column("for ranks not captured ms", "absent_wait_ns", ms, 3),
                Column("unknown ms", "unknown_communication_ns", ms, 4),
            ]
        ),
        Column("last to arrive", "last_arrivals_count", number, 2),
        Column("score", "score", _score, 1),
        Column("verdict", "words", is_word=True),
    ]
    rows = [
        {
            **row,
            "words": VERDICT_WORDS.get(row["verdict"], row["verdict"]) or UNKNOWN,
            "hottest": hottest(row["evidence"]),
        }
        for row in (
            ranks if waits is None else ranks.join(waits, on=["run", "capture", "rank"], how="left")
        ).to_dicts()
    ]
    if any(row["hottest"] for row in rows):
        columns.append(Column("most tokens", "hottest", left_out=2))
    caption: list[str] = [
        Message(
            "caused wait: sum over all other ranks and the steps shown, without warm-up; score: "
            "-log10 p"
        )
    ]
    if waits is not None:
        caption.append(Message("waits: its own, exposed"))
    if ranks.height < together.height:
        caption.append(Message("{number} more ranks", number=together.height - ranks.height))
    return FittedTable(columns, rows, "Ranks that make others wait", join(caption, "; "))


def explained_table(frame: pl.DataFrame) -> FittedTable:
    """The evidence of one rank's verdict, a line per figure; `frame` holds that rank's rows."""
    row = by_rank(frame).row(0, named=True)
    words = VERDICT_WORDS.get(row["verdict"], "no suspect")
    lines: list[Mapping[str, Any]] = [
        {
            "what": "waiting it caused, sum over the steps shown, without warm-up",
            "value": row["caused_wait_ns"], "peers": None, "unit": "ns",
        },
        {
            "what": "operations at which it arrived last",
            "value": row["last_arrivals_count"], "peers": None, "unit": "operations",
        },
        *json.loads(row["evidence"]),
    ]  # fmt: skip
    rows = [
        {
            "what": line["what"],
            "value": rank_text(line),
            "peers": figure_text(line["peers"], line["unit"]),
        }
        for line in lines
    ]
    columns = [Column("what", "what"), Column("rank", "value", str), Column("peers", "peers", str)]
    return FittedTable(columns, rows, f"Rank {row['rank']}: {words} (score {_score(row['score'])})")


def rank_text(line: Mapping[str, Any]) -> str:
    """The rank's own figure of a line of evidence: `7 of 15` where it is a part of a count."""
    text = figure_text(line["value"], line["unit"])
    return Message("{count} of {all}", count=text, all=line["of"]) if "of" in line else text


def figure_text(value: float | None, unit: str) -> str:
    """A figure of the evidence in its unit, as people read it."""
    if value is None:
        return UNKNOWN
    form = _FORMS.get(unit)
    return form(value) if form else number(round(value))


def clocks_table(frame: pl.DataFrame) -> FittedTable:
    """A row per clock: how far it is ahead of the reference host's, and how sure that is."""
    rows = [
        {**row, "of": numbers(row["ranks"]), "host": row["host"] or "(unknown)"}
        for row in frame.to_dicts()
    ]
    columns = [
        *several(frame),
        Column("host", "host"),
        Column("ranks", "of"),
        Column("offset ms", "offset_ns", _signed_ms),
        Column("+- us", "error_ns", us),
        Column("drift ppm", "drift_ppm", decimals("{:+.3f}")),
        Column("residual us", "residual_ns", us, 1),
        Column("least ms", "lower_ns", _signed_ms, 5),
        Column("most ms", "upper_ns", _signed_ms, 4),
        Column("common operations", "instance_count", number, 3),
        Column("by", "basis", None, 2),
    ]
    caption = "offset: ahead of the reference; +-: 95 %; least, most: bounds by causality"
    return FittedTable(columns, rows, "Clocks", caption)


def _signed_ms(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e6:+,.6f}" if value else "0"
