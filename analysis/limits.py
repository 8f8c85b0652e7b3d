"""What a capture cannot tell, and what to record next time so that it can."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from .wording import ranks_named


@dataclass(frozen=True, slots=True)
class Limit:
    """A question some ranks cannot answer: `test` holds for a rank that can. Where `table` was not
    selected when a rank was read, nothing is known of what its profile can answer. None of
    `gpu_remedy`: no trace of a GPU answers it."""

    table: str
    test: str
    missing: str
    remedy: str
    gpu_remedy: str | None = None


_GPU_ACTIVITIES = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
# The most telling first.
_LIMITS = (
    Limit(
        "kernels",
        "select distinct run, capture, rank from kernels",
        "no kernels: nothing is known of single operators",
        "export kernel_details.csv or the profiler's DB: run analyse() on the whole folder",
        _GPU_ACTIVITIES,
    ),
    Limit(
        "kernels",
        "select distinct run, capture, rank from kernels where type is not null"
        " union (select run, capture, rank from ranks"
        " except select run, capture, rank from kernels)",
        "no operator types, shapes or cores: no FLOPs, no grouping by type",
        "profiler_level=ProfilerLevel.Level1",
    ),
    Limit(
        "comm_times",
        "select distinct run, capture, rank from comm_times"
        " union select run, capture, rank from comm_tasks where task_type is not null",
        "transfer and wait are not told apart inside communication",
        "profiler_level=ProfilerLevel.Level1",
    ),
    Limit(
        "host_ops",
        "select distinct run, capture, rank from host_ops",
        "no host side: what the host did while the device was free is unknown",
        "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]; keep trace_view.json or the DB",
        _GPU_ACTIVITIES,
    ),
    Limit(
        "steps",
        "select distinct run, capture, rank from steps where window_start_ns is not null",
        "no recorded step range: preparing time is unknown",
        "call prof.step() once per training step, with a schedule",
        "call prof.step() once per training step, with a schedule",
    ),
    Limit(
        "groups",
        "select distinct run, capture, rank from groups where parallel_kind <> 'unknown'",
        "which parallel group an operation belongs to is unknown",
        "a torch_npu of 2025-02 or later writes parallel_group_info by itself",
        "torch.distributed.new_group(..., group_desc=NAME), as Megatron and DeviceMesh do",
    ),
    Limit(
        "memory",
        "select distinct run, capture, rank from memory",
        "no memory curve",
        "profile_memory=True",
        "profile_memory=True",
    ),
)


def limits(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> list[str]:
    """Sentences on what the captures of `con` (or one of them) cannot tell, with the remedy."""
    found: list[str] = []
    for limit in _LIMITS:
        for of_gpus, remedy in (("is distinct from", limit.remedy), ("=", limit.gpu_remedy)):
            rows = con.execute(
                f"""
                select rank from (select distinct run, capture, rank from ranks
                    where coalesce(run = ?, true) and coalesce(capture = ?, true)
                        and framework {of_gpus} 'kineto')
                anti join ({limit.test}) using (run, capture, rank)
                anti join (
                    select run, capture, rank from ranks where list_contains(left_out_tables, ?)
                ) using (run, capture, rank)
                order by rank
                """,
                [run, capture, limit.table],
            ).fetchall()
            if rows and remedy:
                named = ranks_named(rank for (rank,) in rows)
                found.append(f"{named}: {limit.missing}. To know it: {remedy}")
    return found
