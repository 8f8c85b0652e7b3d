"""One ingest shared by processes that do not talk: each reads its share of the ranks.

Any launcher starts them (`mpirun`, a Slurm array, a Kubernetes Job). They look at the same path and
share a store; every one finds the same ranks and deals them out alike.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from npuscope.errors import UsageError

from ..model import RankSource


@dataclass(frozen=True, slots=True)
class Shard:
    """Share `index` of `count`, counted from 0 as launchers count their processes."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """`3/16` is the fourth of sixteen shares. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,9})/(\d{1,9})\s*", text)
    if not match:
        raise UsageError(f"--shard {text}: give I/N, such as 0/4")
    shard = Shard(int(match[1]), int(match[2]))
    if shard.index >= shard.count:
        raise UsageError(
            f"--shard {text}: shards count from 0: 0/{shard.count} to "
            f"{shard.count - 1}/{shard.count}"
            if shard.count
            else f"--shard {text}: at least one shard"
        )
    return shard


def share_of(
    shard: Shard, sources: Sequence[tuple[str, RankSource]]
) -> list[tuple[str, RankSource]]:
    """The (capture, source) pairs that are this shard's, in the order they came.

    Each rank, largest first, goes to the share with the fewest bytes so far.
    """
    order = sorted(
        range(len(sources)),
        key=lambda n: (-sources[n][1].size_bytes, sources[n][0], sources[n][1].rank),
    )
    shares = [(0, 0, index) for index in range(min(shard.count, len(sources)))]
    mine: list[int] = []
    for n in order:
        size_bytes, ranks, index = shares[0]
        heapq.heapreplace(shares, (size_bytes + sources[n][1].size_bytes, ranks + 1, index))
        if index == shard.index:
            mine.append(n)
    return [sources[n] for n in sorted(mine)]
