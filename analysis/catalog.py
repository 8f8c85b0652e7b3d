"""Every metric npuscope computes: what it asks, from which tables, and what its columns mean.

A metric is one file in `sql/`. The comment at its head is where its question, its rules and its
columns are written down; this module reads it, so that tables, JSON, exporter and documentation
cannot disagree.

    -- The question?
    --
    -- Rules, in one paragraph.
    --
    --   column_ns  bigint  what it means
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

_COLUMN = re.compile(r"--   (\w+) +(\w+(?:\[\])?) +(\S.*)")
_UNITS = (
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
    ("count", "number"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a metric; `unit` is empty for names, ids and lists."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A question and where its answer stands.

    `name` is what outlets call it, `view` the name of its rows in SQL, `sql_file` the file in
    `sql/`; `inputs` are canonical tables or views of other metrics. `summary` tells that the answer
    is kept beside each rank in the store, because it needs no other rank; where all of `rows_from`
    are empty, so is the answer.
    """

    name: str
    view: str
    title: str
    meaning: str
    sql_file: str
    inputs: tuple[str, ...]
    summary: bool
    rows_from: tuple[str, ...]
    question: str
    rules: str
    columns: tuple[Column, ...]

    @property
    def sql(self) -> str:
        """The query, one select without a semicolon."""
        query = sql_text(self.sql_file)
        for part in ("lengths", "kinds"):
            query = query.replace(f"\n_{part}\n", f"\n{shared_part(part)}\n")
        if not (self.summary and any(column.name == "step" for column in self.columns)):
            return query
        return sql_text("kept_steps.sql").replace("\n_query\n", f"\n{query.rstrip()}\n")


@cache
def sql_text(file: str) -> str:
    """Text of a file in `sql/`."""
    return resources.files(__package__).joinpath("sql", file).read_text(encoding="utf-8")


def shared_part(name: str) -> str:
    """The tables of `sql/<name>.sql`, which stand in queries where these have a line `_<name>`."""
    return "_" + sql_text(f"{name}.sql").partition("\n_")[2].rstrip()


def _unit(column: str) -> str:
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")


def _metric(
    name: str,
    view: str,
    title: str,
    meaning: str,
    *,
    inputs: tuple[str, ...],
    summary: bool,
    rows_from: tuple[str, ...] = (),
) -> Metric:
    """A metric with what the head of its SQL file says."""
    file = f"{name}.sql"
    head = sql_text(file).partition("\nwith\n")[0].splitlines()
    columns = tuple(
        Column(found[1], found[2], _unit(found[1]), found[3].strip())
        for line in head
        if (found := _COLUMN.fullmatch(line))
    )
    prose = [line.lstrip("- ").strip() for line in head if not _COLUMN.fullmatch(line)]
    question, *rules = " ".join(line or "\n" for line in prose).split("\n")
    return Metric(
        name=name,
        view=view,
        title=title,
        meaning=meaning,
        sql_file=file,
        inputs=inputs,
        summary=summary,
        rows_from=rows_from,
        question=question.strip(),
        rules=" ".join(rule.strip() for rule in rules if rule.strip()),
        columns=columns,
    )


METRICS: tuple[Metric, ...] = (
    _metric(
        "steps",
        "step_summary",
        "Steps",
        "Computing, communication, overlap and idle time of each step on each rank.",
        inputs=(
            "kernels",
            "comm_ops",
            "comm_tasks",
            "comm_times",
            "steps",
            "profiler_steps",
            "ranks",
        ),
        summary=True,
        rows_from=("kernels", "comm_ops", "profiler_steps"),
    ),
    _metric(
        "kernels",
        "kernel_summary",
        "Kernels",
        "Compute kernels by type, name, core or shape, with their share of computing.",
        inputs=("kernels", "ranks"),
        summary=True,
        rows_from=("kernels",),
    ),
    _metric(
        "comm",
        "comm_summary",
        "Communication",
        "Communication by parallel kind, type and operation, and how much of it compute hides.",
        inputs=("comm_ops", "comm_times", "kernels", "groups", "ranks"),
        summary=True,
        rows_from=("comm_ops", "comm_times"),
    ),
    _metric(
        "outside_steps",
        "outside_steps",
        "Outside steps",
        "Kernels and operations that belong to no step of a rank that has steps.",
        inputs=("kernels", "comm_ops", "steps", "ranks"),
        summary=True,
        rows_from=("kernels", "comm_ops"),
    ),
    _metric(
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
            "expert_placement",
            "train_log",
        ),
        summary=True,
        rows_from=("ranks",),
    ),
    _metric(
        "spread",
        "step_spread",
        "Spread across ranks",
        "Each part of a step over the ranks: least, median, most, and which rank has the most.",
        inputs=("step_summary",),
        summary=False,
    ),
    _metric(
        "capture_facts",
        "capture_facts",
        "Captures",
        "What was recorded: ranks, steps, software, chip, profiler level.",
        inputs=("ranks", "step_summary"),
        summary=False,
    ),
    _metric(
        "memory",
        "memory_summary",
        "Memory",
        "Peaks of device memory by component, and what of it was reserved in vain.",
        inputs=("memory",),
        summary=True,
        rows_from=("memory",),
    ),
    _metric(
        "memory_holders",
        "memory_holders",
        "Who holds the memory",
        "Operators whose blocks are held when most memory is in use, and what none explains.",
        inputs=("memory", "operator_memory"),
        summary=True,
        rows_from=("operator_memory",),
    ),
    _metric(
        "memory_blocks",
        "memory_blocks",
        "Blocks at the peak",
        "Single blocks that are held when most memory is in use, with their lives.",
        inputs=("memory_holders", "operator_memory"),
        summary=False,
    ),
    _metric(
        "memory_steps",
        "memory_steps",
        "Memory by step",
        "Memory at the end of each step, and the most inside it, by component.",
        inputs=("memory", "steps", "kernels", "comm_ops", "ranks"),
        summary=True,
        rows_from=("memory",),
    ),
    _metric(
        "memory_growth",
        "memory_growth",
        "Growth of memory",
        "How much memory grows per step, and whether steadily.",
        inputs=("memory_steps",),
        summary=False,
    ),
    _metric(
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


def metrics_markdown() -> str:
    """The catalog as a Markdown page."""
    lines = [
        "# Metrics",
        "",
        "Written from the heads of `analysis/sql/*.sql` by `npuscope.analysis.catalog.write_docs`:"
        " change those.",
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
            f" ([{known.sql_file}](../analysis/sql/{known.sql_file}))"
            + ("; kept with each rank in the store." if known.summary else "."),
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
