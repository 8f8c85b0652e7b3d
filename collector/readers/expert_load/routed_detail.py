"""What each rank routed, micro-batch by micro-batch, as far as there is room for it.

every micro-batch of every rank     rows of `expert_counts`, up to COUNTS_AT_MOST counts
beyond that                         a rank's micro-batches are added up
and beyond that too                 nothing but the sums in `expert_load`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

# 128 MiB: experts of all layers, steps, ranks and micro-batches.
COUNTS_AT_MOST = 1 << 24
COUNTS_SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(), "phase": pl.String(), "layer": pl.Int32(), "counted_by": pl.Int32(),
    "micro_batch": pl.Int32(), "tokens": pl.List(pl.Int64()),
}  # fmt: skip

Counts = npt.NDArray[np.int64]
# Whether it is of a multi-token-prediction block, then its number.
Key = tuple[bool, int]


@dataclass(slots=True)
class Detail:
    """Counts [micro-batches, experts] by rank, block and step, the last that was told of each.

    `is_by_micro_batch` and `is_kept` say what was given up for want of room.
    """

    cells: dict[tuple[int, Key, int], Counts] = field(default_factory=dict)
    # Where one list told all micro-batches together.
    together: set[tuple[int, Key, int]] = field(default_factory=set)
    counts: int = 0
    is_by_micro_batch: bool = True
    is_kept: bool = True

    def add(self, rank: int, key: Key, step: int, counts: Counts, *, is_together: bool) -> None:
        """Keep what a line told, instead of what an earlier one did."""
        if not self.is_kept:
            return
        place = (rank, key, step)
        self.counts -= self.cells[place].size if place in self.cells else 0
        self.together.discard(place)
        if is_together:
            self.together.add(place)
        if not self.is_by_micro_batch:
            counts = counts.sum(axis=0, keepdims=True)
        self.cells[place] = counts
        self.counts += counts.size
        if self.counts > COUNTS_AT_MOST and self.is_by_micro_batch:
            self.is_by_micro_batch = False
            for at, one in self.cells.items():
                self.cells[at] = one.sum(axis=0, keepdims=True)
            self.counts = sum(one.size for one in self.cells.values())
        if self.counts > COUNTS_AT_MOST:
            self.is_kept, self.counts = False, 0
            self.cells.clear()
            self.together.clear()

    def notes(self) -> Iterator[str]:
        """What was given up."""
        if not self.is_kept:
            yield (
                f"more than {COUNTS_AT_MOST} counts by rank: only their sums are kept, so figures"
                " by micro-batch and group are unavailable"
            )
        elif not self.is_by_micro_batch:
            yield (
                f"more than {COUNTS_AT_MOST} counts by micro-batch: only counts by rank are kept,"
                " so figures by micro-batch are unavailable"
            )


def counts_frame(
    detail: Detail, layers: Mapping[Key, int], whole: Mapping[Key, frozenset[int]]
) -> pl.DataFrame:
    """Rows of `expert_counts`, in order; `whole` are the steps that all ranks of a block told."""
    places = sorted(
        (step, layers[key], rank, key) for rank, key, step in detail.cells if step in whole[key]
    )
    if not places:
        return no_counts()
    parts = [detail.cells[rank, key, step] for step, _, rank, key in places]
    repeats = [len(part) for part in parts]
    is_apart = [
        detail.is_by_micro_batch and (rank, key, step) not in detail.together
        for step, _, rank, key in places
    ]
    lengths = np.repeat([part.shape[1] for part in parts], repeats)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.concatenate([part.reshape(-1) for part in parts])
    import pyarrow as pa  # here, as answers from a store need the schema only

    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))
    columns = {
        "step": np.repeat([place[0] for place in places], repeats),
        "layer": np.repeat([place[1] for place in places], repeats),
        "counted_by": np.repeat([place[2] for place in places], repeats),
        "micro_batch": np.concatenate([np.arange(count) for count in repeats]),
        "is_apart": np.repeat(is_apart, repeats),
    }
    return (
        pl.DataFrame(columns)
        .with_columns(
            pl.lit("train").alias("phase"),
            pl.when("is_apart").then("micro_batch").alias("micro_batch"),
            pl.Series("tokens", lists),
        )
        .select(pl.col(name).cast(kind) for name, kind in COUNTS_SCHEMA.items())
    )


def no_counts() -> pl.DataFrame:
    """Nobody tells what single ranks routed."""
    return pl.DataFrame(schema=COUNTS_SCHEMA)
