"""The ranks of a capture that stand for all others, told from what a light reading knows.

One of each pipeline stage, because stages do different work; the slowest, because everybody waits
for it; and the median, to compare it with. Slow is who takes long over its own part of a step, its
computing and its idle time: time spent in communication is mostly time spent waiting for others.

    stage 0   rank 0  [ own 80 ][ waits 20 ]         the median of a stage stands for it:
              rank 1  [ own 78 ][ waits 22 ]         rank 0 of stage 0, rank 3 of stage 1;
    stage 1   rank 2  [ own 70 ][  waits 30 ]        the slowest of all is rank 4
              rank 3  [ own 75 ][ waits 25 ]
              rank 4  [ own 100            ]
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import schema
from ..store import store
from ..store.manifest import manifests


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank with its pipeline stage and its own time of a step in ns, None where unknown."""

    rank: int
    stage: int
    own_ns: float | None


@dataclass(frozen=True, slots=True)
class Representative:
    """A rank to be read in full, and why."""

    rank: int
    reason: str


def representatives(
    path: Path, run: str, capture: str, ranks: Container[int]
) -> tuple[Representative, ...]:
    """Of some published `ranks` of a capture those that stand for them, in order."""
    manifests_here = [m for m in manifests(path, run=run, capture=capture) if m.rank in ranks]
    with store.over(path, manifests_here) as con:
        rows = con.execute(schema.sql("ingest/representatives.sql")).fetchall()
    return choose([Candidate(*row) for row in rows])


def choose(candidates: Sequence[Candidate]) -> tuple[Representative, ...]:
    """One of each stage, the slowest and the median of all; a rank once, with its first reason.

    Of equals the lowest rank. Where no times are known, the lowest rank of each stage.
    """
    timed = [candidate for candidate in candidates if candidate.own_ns is not None]
    reasons: dict[int, str] = {}
    if timed:
        slowest = min(timed, key=lambda c: (-(c.own_ns or 0), c.rank))
        reasons[slowest.rank] = "slowest"
        reasons.setdefault(_median(timed).rank, "median")
    for stage in sorted({candidate.stage for candidate in candidates}):
        members = [candidate for candidate in candidates if candidate.stage == stage]
        reasons.setdefault(_median(members).rank, f"stage {stage}")
    return tuple(Representative(rank, reasons[rank]) for rank in sorted(reasons))


def _median(candidates: Sequence[Candidate]) -> Candidate:
    """The lower median by own time; those without one only where nobody has one."""
    timed = [candidate for candidate in candidates if candidate.own_ns is not None]
    ordered = sorted(timed or candidates[:1], key=lambda c: (c.own_ns or 0, c.rank))
    return ordered[(len(ordered) - 1) // 2]
