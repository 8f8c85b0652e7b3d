"""Our steps beside those that msprof-analyze computed from the same profiles.

Both are shown: docs/steps-and-the-profiler.md says where they differ by rule. Nothing is averaged,
and nothing of ours is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from npuscope.collector.readers.cluster.cluster_steps import ClusterSteps
from npuscope.collector.store.manifest import Manifest

from ..views import open_views

# Our column, and the producer's.
MEASURES = {
    "computing": ("computing_ns", "computing_ns"),
    "communication": ("communication_ns", "communication_ns"),
    "exposed communication": ("exposed_communication_ns", "communication_not_overlapped_ns"),
    "overlapped": ("overlapped_ns", "overlapped_ns"),
    "free": ("free_ns", "free_ns"),
    "stage": ("stage_ns", "stage_ns"),
    "bubble": ("profiler_bubble_ns", "bubble_ns"),
}
# Text tables add up rounded rows, and instants in quarters of a microsecond.
_AGREE_RATIO, _AGREE_NS = 0.001, 1_000


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One measure over all steps that both have; the worst of them where some differ."""

    folder: str
    measure: str
    compared_count: int
    agreeing_count: int
    rank: int
    step: int | None
    ours_ns: int
    theirs_ns: float


def compared_steps(
    con: duckdb.DuckDBPyConnection,
    read: Iterable[Manifest],
    results: Iterable[ClusterSteps],
    *,
    run: str | None = None,
) -> list[StepComparison]:
    """A comparison per folder of results and measure; none of steps that are not from events.

    Where a rank was recorded several times, the latest recording counts, as for msprof-analyze.
    """
    open_views(con, ("steps",))
    columns = ", ".join(dict.fromkeys(ours for ours, _ in MEASURES.values()))
    query = f"""
        select capture, rank, step, {columns} from step_summary
        where basis = 'events' and coalesce(run = ?, true)
        order by capture"""
    cursor = con.execute(query, [run])
    names = [column[0] for column in cursor.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    roots = {(m.capture, m.rank): m.source_root for m in read if run in (None, m.run)}
    comparisons: list[StepComparison] = []
    for result in results:
        ours = {
            (row["rank"], row["step"]): row
            for row in rows
            if result.is_about(roots.get((row["capture"], row["rank"]), ""))
        }
        comparisons += _of_result(result, ours)
    return comparisons


def _of_result(
    result: ClusterSteps, ours: Mapping[tuple[int, int | None], Mapping[str, Any]]
) -> Iterable[StepComparison]:
    for measure, (own, producers) in MEASURES.items():
        pairs = [
            (key, ours[key][own], row[producers])
            for row in result.rows
            if (key := (row["rank"], row["step"])) in ours
            and ours[key][own] is not None
            and row[producers] is not None
        ]
        if pairs:
            key, own_ns, producers_ns = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
            yield StepComparison(
                result.folder, measure, len(pairs), sum(_agree(*pair[1:]) for pair in pairs),
                *key, own_ns, producers_ns,
            )  # fmt: skip


def _agree(ours_ns: int, theirs_ns: float) -> bool:
    return abs(ours_ns - theirs_ns) <= _AGREE_NS + _AGREE_RATIO * abs(ours_ns)
