"""What a capture cannot tell, and what to record next time so that it can."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from npuscope.messages import Message

from ..scope import ALL, JOB, Scope
from ..wording import ranks_named


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
    proof: tuple[str, str] | None = None


_GPU_ACTIVITIES = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
# The most telling first.
_LIMITS = (
    Limit(
        "kernels",
        "select distinct run, capture, rank from kernels",
        "no kernels: single operators cannot be analysed",
        "export kernel_details.csv or the profiler's DB: run analyse() on the whole folder",
        _GPU_ACTIVITIES,
        ("kernel_summary", "true"),
    ),
    Limit(
        "kernels",
        "select distinct run, capture, rank from kernels where type is not null"
        " union (select run, capture, rank from ranks"
        " except select run, capture, rank from kernels)",
        "no operator types, shapes or cores: no FLOPs, no grouping by type",
        "profiler_level=ProfilerLevel.Level1",
        proof=("kernel_summary", "by_key = 'type' and key is not null"),
    ),
    Limit(
        "comm_times",
        "select distinct run, capture, rank from comm_times"
        " union select run, capture, rank from comm_tasks where task_type is not null",
        "transfer and waiting inside communication cannot be separated",
        "profiler_level=ProfilerLevel.Level1",
    ),
    Limit(
        "host_ops",
        "select distinct run, capture, rank from host_ops",
        "no host activity recorded: what the host did while the device was idle is unknown",
        "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]; keep trace_view.json or the DB",
        _GPU_ACTIVITIES,
    ),
    Limit(
        "steps",
        "select distinct run, capture, rank from steps where window_start_ns is not null",
        "no recorded step range: preparing time is the profiler's own figure, if any",
        "call prof.step() once per training step, with a schedule",
        "call prof.step() once per training step, with a schedule",
    ),
    Limit(
        "groups",
        "select distinct run, capture, rank from groups where parallel_kind <> 'unknown'",
        "the purpose of communication groups is not recorded: inferred from what they do",
        "a torch_npu of 2025-02 or later writes parallel_group_info by itself",
        "torch.distributed.new_group(..., group_desc=NAME), as Megatron and DeviceMesh do",
    ),
    Limit(
        "memory",
        "select distinct run, capture, rank from memory",
        "no memory curve",
        "profile_memory=True",
        "profile_memory=True",
        ("memory_summary", "sample_count > 0"),
    ),
)


Rank = tuple[str, str, int]


def limits(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """Sentences on what the captures of `con` (or one of them) cannot tell, with the remedy."""
    clause, values = scope.where(JOB)
    asked = f"""
        select distinct run, capture, rank, coalesce(framework = 'kineto', false),
            coalesce(left_out_tables, [])
        from ranks {clause}"""
    ranks = {tuple(row[:3]): row[3:] for row in con.execute(asked, values).fetchall()}
    kept = "select view_name from duckdb_views() where database_name = current_database()"
    summaries = {name for (name,) in con.execute(kept).fetchall()}
    found: list[str] = []
    for limit in _LIMITS:
        unable = {key for key, (_, left_out) in ranks.items() if limit.table not in left_out}
        summary, proof = limit.proof or ("", "")
        if unable and summary in summaries:
            unable -= _of(con, f"select distinct run, capture, rank from {summary} where {proof}")
        if unable:
            listed = ", ".join(str(rank) for rank in sorted({rank for _, _, rank in unable}))
            unable -= _of(con, f"select * from ({limit.test}) where rank in ({listed})")
        for of_gpus, remedy in ((False, limit.remedy), (True, limit.gpu_remedy)):
            rows = sorted(key[2] for key in unable if ranks[key][0] is of_gpus)
            if rows and remedy:
                found.append(
                    Message(
                        "{ranks}: {missing}. To know it: {remedy}",
                        ranks=ranks_named(rows),
                        missing=limit.missing,
                        remedy=remedy,
                    )
                )
    return found


def _of(con: duckdb.DuckDBPyConnection, query: str) -> set[Rank]:
    return {(run, capture, rank) for run, capture, rank in con.execute(query).fetchall()}
