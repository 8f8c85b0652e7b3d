"""Findings about device memory: what lies unused, what grows."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message

from ..wording import mebibytes, percent, ranks_named
from .finding import Finding
from .material import Material
from .weigh import stated

_FRAGMENTED_RATIO = 0.1  # of what is reserved when most is allocated
_FRAGMENTED_BYTES = 1 << 30


def memory_fragmentation(seen: Material) -> Iterator[Finding]:
    """Memory that the framework reserved and could not use when it needed most."""
    rows = seen.memory.components.filter(
        (pl.col("fragmentation_ratio") >= _FRAGMENTED_RATIO)
        & (pl.col("fragmentation_bytes") >= _FRAGMENTED_BYTES)
        & (pl.col("source") == "record")
    ).sort("fragmentation_bytes", descending=True, maintain_order=True)
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    yield stated(
        seen,
        "memory_fragmentation",
        Message(
            "{rank}: {size} MiB ({share} of what {component} reserved) were not allocated when"
            " most memory was in use.",
            rank=ranks_named([first["rank"]]),
            size=mebibytes(first["fragmentation_bytes"]),
            share=percent(first["fragmentation_ratio"]),
            component=first["component"],
        ),
        None,
        "hint",
        "Memory reserved but not allocated by the allocator at the peak. It costs no time until"
        " memory runs out; then the allocator empties its cache, which takes milliseconds each"
        " time.",
        f'PYTORCH_{"CUDA" if seen.is_gpu else "NPU"}_ALLOC_CONF="expandable_segments:True",'
        " fewer different tensor sizes.",
        rows.select(
            "rank", "component", "peak_bytes", "peak_allocated_bytes", "fragmentation_bytes",
            "fragmentation_ratio",
        ),
        "npuscope memory PATH",
    )  # fmt: skip


def memory_growth(seen: Material) -> Iterator[Finding]:
    """Memory that grows from step to step."""
    rows = seen.memory.growing
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    yield stated(
        seen,
        "memory_growth",
        Message(
            "{rank}: {component} grows by {size} MiB in every step recorded ({count} of them).",
            rank=ranks_named([first["rank"]]),
            component=first["component"],
            size=mebibytes(first["growth_per_step_bytes"]),
            count=first["step_count"],
        ),
        None,
        "hint",
        "Memory in use at the end of each step rose in every step, by about the same amount."
        " With few steps this can also be warm-up.",
        "Look for tensors that are never released: losses accumulated with their graph, growing"
        " lists, caches keyed by shape.",
        rows.select(
            "rank", "component", "growth_per_step_bytes", "growth_bytes", "step_count", "last_bytes"
        ),
        "npuscope memory PATH --by step",
    )
