"""Which rules a rank's figures follow: chosen when it was read, or by what it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

from npuscope.collector.store.manifest import Manifest

Key = tuple[str, str, int]

_BASES = """
    select run, capture, rank, list(distinct basis order by basis)
    from step_summary group by run, capture, rank"""
# The producer's table against ours, where both are there: all its steps together.
_PRODUCERS = """
    select run, capture, rank, sum(s.communication_ns), sum(p.communication_ns)
    from step_summary as s join profiler_steps as p using (run, capture, rank)
    join ranks as r using (run, capture, rank)
    where s.basis = 'events' and s.step is not distinct from p.step
        and coalesce(p.device_id = r.device_id, true)
        and s.communication_ns is not null and p.communication_ns is not null
    group by run, capture, rank"""
# The producer's table is rounded, row by row, and a text export keeps operations beside the step.
_AGREE_RATIO, _AGREE_NS = 0.001, 1_000
_STEPS_FROM = {
    "ascend_db": "STEP_TIME of the DB",
    "trace_view": "ProfilerStep marks of the timeline",
    "kineto": "ProfilerStep marks of the trace",
}
_OPERATIONS_FROM = {
    "ascend_db": "operations of the DB",
    "trace_view": "operations of the timeline",
}


def reading_rules(
    con: duckdb.DuckDBPyConnection,
    ranks: Mapping[Key, Mapping[str, Any]],
    counts: Mapping[Key, Mapping[str, int]],
    manifests: Mapping[Key, Manifest],
) -> dict[Key, dict[str, str]]:
    """Rules by name for every rank; what is not known, or does not apply, is not there.

    clock, rank, steps, basis, communication, producers_communication, master_plane; then the
    variants that readers met, by the names they gave them.
    """
    bases = {tuple(row[:3]): row[3] for row in con.execute(_BASES).fetchall()}
    producers = {tuple(row[:3]): row[3:] for row in con.execute(_PRODUCERS).fetchall()}
    return {
        key: _of_rank(facts, counts.get(key, {}), manifests.get(key), bases.get(key, []),
                      producers.get(key))
        for key, facts in ranks.items()
    }  # fmt: skip


def _of_rank(
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    manifest: Manifest | None,
    bases: list[str],
    producer: tuple[int, float] | None,
) -> dict[str, str]:
    met = manifest.rules if manifest else {}
    rules = {
        "clock": facts["clock"],
        "rank": manifest.rank_origin if manifest else None,
        "steps": _steps(counts, met),
        "basis": " and ".join(bases) or None,
        "communication": _communication(counts, met),
        "producers_communication": _producers(producer),
        "master_plane": _master_plane(counts),
    }
    own = {name: text for name, text in rules.items() if text}
    variants = {
        name: text.replace("\0", ", ")  # between several folders
        for name, text in met.items()
        if not name.startswith("from.") and name != "comm_ops"
    }
    return {**own, **variants}


def _steps(counts: Mapping[str, int], met: Mapping[str, str]) -> str | None:
    if counts.get("kernels.stepped") and met.get("from.kernels") == "kernel_details":
        return "Step Id of the kernel table"
    if counts.get("steps"):
        return _STEPS_FROM.get(met.get("from.steps", ""), "recorded ranges")
    if counts.get("kernels.stepped"):
        return "steps of the kernels"
    return "the profiler's own table" if counts.get("profiler_steps") else None


def _communication(counts: Mapping[str, int], met: Mapping[str, str]) -> str | None:
    if not counts.get("comm_ops"):
        return None
    return met.get("comm_ops") or _OPERATIONS_FROM.get(met.get("from.comm_ops", ""), "operations")


def _producers(sums: tuple[int, float] | None) -> str | None:
    """What the producer's own table takes for communication, told by its figures."""
    if sums is None:
        return None
    ours_ns, theirs_ns = sums
    if abs(ours_ns - theirs_ns) <= _AGREE_NS + _AGREE_RATIO * ours_ns:
        return "operations, as here"
    if theirs_ns < ours_ns:
        return "shorter than its operations: tasks, as exports before 2024-10"
    return "longer than its operations"


def _master_plane(counts: Mapping[str, int]) -> str | None:
    if counts.get("comm_tasks.master"):
        return "isMaster of the tasks"
    if counts.get("comm_times"):
        return "as measured by HCCL; task records do not contain it"
    return "not told" if counts.get("comm_tasks.typed") else None
