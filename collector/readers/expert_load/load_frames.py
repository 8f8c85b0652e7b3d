"""What every source of expert loads is read into: two frames, facts, and notes on what is missing.

hook files, dumps, ... ─ read ─ load       step, phase, layer, expert, ep_rank, tokens
                                counts     step, phase, layer, counted_by, micro_batch, tokens[]
                                placement  layer, device, slot, expert
                                facts      how it was counted
                                notes      what is not there, what was decided
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from .load_files import ExpertFacts
from .routed_detail import no_counts

LOAD_SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64, "phase": pl.String, "layer": pl.Int32, "expert": pl.Int32,
    "ep_rank": pl.Int32, "tokens": pl.Int64,
}  # fmt: skip
PLACEMENT_SCHEMA: dict[str, type[pl.DataType]] = {
    "layer": pl.Int32, "device": pl.Int32, "slot": pl.Int32, "expert": pl.Int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Rows of `expert_load`, `expert_placement` and `expert_counts` (see schema.sql), in order."""

    load: pl.DataFrame
    placement: pl.DataFrame
    facts: ExpertFacts
    notes: tuple[str, ...] = field(default=())
    counts: pl.DataFrame = field(default_factory=no_counts)


def as_load(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of `expert_load` in their types, others left out."""
    return rows.select(pl.col(name).cast(kind) for name, kind in LOAD_SCHEMA.items())


def no_placement() -> pl.DataFrame:
    """Nobody says where experts are."""
    return pl.DataFrame(schema=PLACEMENT_SCHEMA)


def few_numbers(numbers: list[int]) -> str:
    """`3, 4, 5, ... (17 in all)`: a few numbers for a note."""
    names = ", ".join(map(str, numbers[:5]))
    return names if len(numbers) <= 5 else f"{names}, ... ({len(numbers)} in all)"
