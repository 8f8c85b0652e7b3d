"""Which ranks and steps of a job a capture has, and how much of each profiling session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import duckdb

Key = tuple[str, str, int]

_MEMBERS = """
    select run, capture, list(distinct member) from (
        select run, capture, unnest(global_ranks) as member
        from (select distinct run, capture, global_ranks from groups)
    ) group by run, capture"""
# What a step spans: its range on the host where it was recorded, and its events.
_SPANS = """
    select run, capture, rank, step, min(start_ns), max(end_ns)
    from (
        select run, capture, rank, step,
            coalesce(window_start_ns, device_start_ns) as start_ns,
            coalesce(window_end_ns, device_end_ns) as end_ns
        from steps
        union all
        select run, capture, rank, step, start_ns, end_ns from step_summary
    ) group by run, capture, rank, step"""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a rank: their numbers, those that only other ranks have, and the share of the
    session they span (None: unknown)."""

    steps: tuple[int, ...]
    missing: tuple[int, ...]
    covered_ratio: float | None


def group_members(con: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], frozenset[int]]:
    """Ranks that groups of a capture name, by run and capture."""
    rows = con.execute(_MEMBERS).fetchall()
    return {(run, capture): frozenset(members) for run, capture, members in rows}


def missing_ranks(
    present: Iterable[int], world_size: int | None, members: Iterable[int]
) -> tuple[int, ...] | None:
    """Ranks of the job that are not here; None where neither world size nor groups tell."""
    expected = {*range(world_size or 0), *members}
    return tuple(sorted(expected - set(present))) if expected else None


def step_coverage(
    con: duckdb.DuckDBPyConnection, windows: Mapping[Key, tuple[int | None, int | None]]
) -> dict[Key, Steps]:
    """Steps of every rank; `windows` are the sessions of the ranks that count."""
    spans: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    steps: dict[Key, set[int]] = {key: set() for key in windows}
    whole: dict[tuple[str, str], set[int]] = defaultdict(set)
    for run, capture, rank, step, start_ns, end_ns in con.execute(_SPANS).fetchall():
        key = (run, capture, rank)
        if key not in windows:
            continue
        if step is not None:
            steps[key].add(step)
            whole[run, capture].add(step)
        if start_ns is not None and end_ns is not None:
            spans[key].append((start_ns, end_ns))
    return {
        key: Steps(
            tuple(sorted(found)),
            tuple(sorted(whole[key[:2]] - found)),
            _covered_ratio(spans[key], *windows[key]),
        )
        for key, found in steps.items()
    }


def _covered_ratio(
    spans: Iterable[tuple[int, int]], start_ns: int | None, end_ns: int | None
) -> float | None:
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    covered_ns, reached_ns = 0, start_ns
    known = False
    for first_ns, last_ns in sorted(spans):
        known = True
        covered_ns += max(0, min(last_ns, end_ns) - max(first_ns, reached_ns))
        reached_ns = max(reached_ns, last_ns)
    return covered_ns / (end_ns - start_ns) if known else None
