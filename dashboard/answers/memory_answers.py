"""Memory for the page: what fills it, in a sentence."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.memory.memory import MemoryFacts
from npuscope.analysis.wording import percent
from npuscope.messages import Message, join

from ..units import fitting_unit


def what_fills(facts: MemoryFacts) -> str:
    """The fullest rank, its peak, what of it no block explains, and the operator that holds most of
    it: of rows of `MemoryFacts.main`, of which there is one."""
    row = facts.main.row(0, named=True)
    peak_bytes = row["peak_bytes"] if row["peak_bytes"] is not None else row["peak_allocated_bytes"]
    unit = fitting_unit(peak_bytes, "memory")

    def size(size_bytes: int) -> str:
        return f"{size_bytes / unit.divisor:,.2f} {unit.name}"

    sentence = Message(
        "Rank {rank} is the fullest: {peak} at its peak.", rank=row["rank"], peak=size(peak_bytes)
    )
    place = ("run", "capture", "rank", "device_id")
    held = (
        facts.holders.filter(pl.col(name).eq_missing(row[name]) for name in place)
        .filter(pl.col("held_bytes") > 0)
        .sort("held_bytes", descending=True, maintain_order=True)
    )
    sentences: list[str] = [sentence]
    for one in (
        held.filter(pl.col("holder") == "unexplained"),
        held.filter(pl.col("holder") == "operator", pl.col("name").is_not_null()),
    ):
        for most in one.head(1).to_dicts():
            template = (
                "Largest operator at the peak: {name}, {held} ({share} of what is allocated)."
            )
            if most["name"] is None:
                template = (
                    "No recorded block explains {held} of it ({share} of what is allocated):"
                    " parameters and what else is older than the capture."
                )
            sentences.append(
                Message(template, name=most["name"], held=size(most["held_bytes"]),
                        share=percent(most["share_ratio"]))
            )  # fmt: skip
    return join(sentences, " ")
