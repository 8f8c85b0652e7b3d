"""Every metric npuscope computes.

Whatever a metric reads of another stands after it.
"""

from __future__ import annotations

from pathlib import Path

from .communication.catalog_communication import COMMUNICATION
from .flops.catalog_flops import FLOPS
from .metric import Column, Metric, described, sql_place, sql_text

__all__ = ["METRICS", "Column", "Metric", "metric", "metrics_markdown", "sql_text", "write_docs"]

METRICS: tuple[Metric, ...] = (
    described(
        "steps",
        "step_summary",
        "Steps",
        "Computing, communication, overlap and free time of each step on each rank.",
        inputs=(
            "kernels",
            "comm_ops",
            "comm_tasks",
            "comm_times",
            "steps",
            "launches",
            "groups",
            "profiler_steps",
            "ranks",
        ),
        summary=True,
        rows_from=("kernels", "comm_ops", "profiler_steps"),
    ),
    described(
        "step_lengths",
        "step_lengths",
        "Step length",
        "Length of each step on its rank: the denominator of MFU.",
        inputs=("step_summary",),
    ),
    described(
        "job_steps",
        "job_steps",
        "Steps of the job",
        "Time of each step of the whole job, and which steps are warm-up.",
        inputs=("step_summary",),
    ),
    described(
        "mean_steps",
        "mean_steps",
        "Mean steps",
        "A mean step of the capture, of each rank and stage, and of each step over its ranks.",
        inputs=("step_summary", "job_steps", "step_lengths", "ranks"),
    ),
    described(
        "kernels",
        "kernel_summary",
        "Kernels",
        "Compute kernels by type, name, core or shape, with their share of computing.",
        inputs=("kernels", "ranks"),
        summary=True,
        rows_from=("kernels",),
    ),
    described(
        "mean_kernels",
        "mean_kernels",
        "Kernels of a mean step",
        "Compute kernels of a rank's mean step by type, name, core or shape.",
        inputs=("kernel_summary", "step_summary", "job_steps"),
    ),
    described(
        "timeline_bins",
        "timeline_bins",
        "Timeline",
        "Computing, communication, overlap and idle time of each rank in bins, fine to coarse.",
        inputs=("kernels", "comm_ops", "comm_tasks", "comm_times", "ranks"),
        summary=True,
        rows_from=("kernels", "comm_ops"),
    ),
    *FLOPS,
    *COMMUNICATION,
    described(
        "capture_facts",
        "capture_facts",
        "Captures",
        "What was recorded: ranks, steps, software, chip, profiler level.",
        inputs=("ranks", "rank_hosts", "step_summary"),
        summary=False,
    ),
    described(
        "outside_steps",
        "outside_steps",
        "Outside steps",
        "Kernels and operations that belong to no step of a rank that has steps.",
        inputs=("kernels", "comm_ops", "steps", "ranks"),
        summary=True,
        rows_from=("kernels", "comm_ops"),
    ),
    described(
        "contents",
        "rank_contents",
        "Contents",
        "How much was recorded of what, on each rank.",
        inputs=(
            "ranks",
            "kernels",
            "comm_ops",
            "comm_tasks",
            "comm_times",
            "comm_links",
            "comm_matrix",
            "groups",
            "steps",
            "profiler_steps",
            "host_ops",
            "launches",
            "memory",
            "operator_memory",
            "counters",
            "marks",
            "expert_load",
            "expert_counts",
            "expert_placement",
            "train_log",
        ),
        summary=True,
        rows_from=("ranks",),
    ),
    described(
        "spread",
        "step_spread",
        "Spread across ranks",
        "Each part of a step over the ranks: least, median, most, and which rank has the most.",
        inputs=("step_summary",),
        summary=False,
    ),
    described(
        "memory",
        "memory_summary",
        "Memory",
        "Peaks of device memory by component, and its fragmentation.",
        inputs=("memory",),
        summary=True,
        rows_from=("memory",),
    ),
    described(
        "memory_holders",
        "memory_holders",
        "Who holds the memory",
        "Operators that hold memory at the allocation peak, and the part no operator explains.",
        inputs=("memory", "operator_memory"),
        summary=True,
        rows_from=("operator_memory",),
    ),
    described(
        "memory_blocks",
        "memory_blocks",
        "Blocks at the peak",
        "Single blocks held at the allocation peak, with their lifetimes.",
        inputs=("memory_holders", "operator_memory"),
        summary=False,
    ),
    described(
        "memory_steps",
        "memory_steps",
        "Memory by step",
        "Memory at the end of each step, and the most inside it, by component.",
        inputs=("memory", "steps", "kernels", "comm_ops", "ranks"),
        summary=True,
        rows_from=("memory",),
    ),
    described(
        "memory_growth",
        "memory_growth",
        "Growth of memory",
        "How much memory grows per step, and whether steadily.",
        inputs=("memory_steps",),
        summary=False,
    ),
    described(
        "memory_spread",
        "memory_spread",
        "Memory across ranks",
        "Peaks and fragmentation over the ranks: least, median, most, and which rank has the most.",
        inputs=("memory_summary",),
        summary=False,
    ),
)


def metric(name: str) -> Metric:
    """The metric of that name; KeyError where there is none."""
    return {known.name: known for known in METRICS}[name]


_KEPT = {
    (True, False): "; kept with each rank in the store.",
    (False, True): "; kept with each capture in the store.",
    (False, False): ".",
}


def metrics_markdown() -> str:
    """The catalog as a Markdown page."""
    lines = [
        "# Metrics",
        "",
        "Written from the heads of `analysis/sql/*/*.sql` by"
        " `npuscope.analysis.catalog.write_docs`: change those.",
        "",
        "Times are integer nanoseconds, intervals half open, and what is unknown is NULL. Where our"
        " figures of a step differ from the profiler's own table,"
        " [steps-and-the-profiler.md](steps-and-the-profiler.md) says why.",
    ]
    for known in METRICS:
        lines += [
            "",
            f"## {known.name}",
            "",
            f"{known.meaning} *{known.question}*",
            "",
            known.rules,
            "",
            f"In SQL: `{known.view}`, from {', '.join(f'`{name}`' for name in known.inputs)}"
            f" ([{known.sql_file}](../analysis/{sql_place(known.sql_file)}))"
            + _KEPT[known.summary, known.derived],
            "",
            "| column | type | unit | meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
            for column in known.columns
        ]
    return "\n".join(lines) + "\n"


def write_docs(path: Path) -> None:
    """Write the catalog page to `path`."""
    path.write_text(metrics_markdown(), encoding="utf-8")
