"""Every metric npuscope computes: one list, from the heads of the files below `sql/`.

What all outlets loop over: tables, pages, exporter, documentation and `npuscope.metrics()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .metric import Column, Metric, head_of, sql_files, sql_text

__all__ = ["Column", "Metric", "in_order", "metric", "metrics", "metrics_markdown", "write_docs"]


@cache
def metrics() -> tuple[Metric, ...]:
    """All of them, by topic and name."""
    heads = (head_of(sql_text(name), name.removesuffix(".sql"), place)
             for name, place in sql_files().items())  # fmt: skip
    return tuple(head for head in heads if head is not None)


def metric(name: str) -> Metric:
    """The metric of that name; KeyError where there is none."""
    return {known.name: known for known in metrics()}[name]


def in_order(chosen: Iterable[Metric] | None = None) -> list[Metric]:
    """Those chosen (None: all), each after those of them that it reads of."""
    by_view = {known.view or known.name: known for known in chosen or metrics()}
    done: dict[str, Metric] = {}

    def put(name: str) -> None:
        known = by_view.pop(name, None)
        if known is not None:
            for read in known.inputs:
                put(read)
            done[name] = known

    for name in [*by_view]:
        put(name)
    return [*done.values()]


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
    for known in in_order():
        kept = "rank" if known.rows_from else "capture" if known.over else ""
        lines += [
            "",
            f"## {known.name}",
            "",
            f"{known.meaning} *{known.question}*",
            "",
            known.rules,
            "",
            f"In SQL: `{known.view}`, from {', '.join(f'`{name}`' for name in known.inputs)}"
            f" ([{known.file.rpartition('/')[2]}](../analysis/{known.file}))"
            + (f"; kept with each {kept} in the store." if kept else "."),
            *_shown(known),
            "",
            "| column | type | unit | meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
            for column in known.columns
        ]
    return "\n".join(lines) + "\n"


def _shown(known: Metric) -> list[str]:
    outlets = [f"`npuscope {one}`" for one in known.commands]
    outlets += [f"table `{one}` of pages" for one in known.tables]
    return ["", f"Shown by {', '.join(outlets)}."] if outlets else []


def write_docs(path: Path) -> None:
    """Write the catalog page to `path`."""
    path.write_text(metrics_markdown(), encoding="utf-8")
