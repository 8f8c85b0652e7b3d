"""Every metric npuscope computes: one list, from the heads of the files below `sql/`.

What all outlets loop over: tables, pages, exporter, documentation and `npuscope.metrics()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from .metric import Column, Metric, head_of, sql_files, sql_text

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = [
    "Column",
    "Metric",
    "column_names",
    "drawn_in",
    "metric",
    "metrics",
    "metrics_markdown",
    "shown_in",
    "sql_metrics",
    "write_docs",
]


# The head of what Python computes, and the function below it.
_FUNCTION = re.compile(r"^# metric: (\w+)\n((?:#.*\n)+)(?=(?:(?!def ).*\n)*?def (\w+))", re.M)


@cache
def metrics() -> tuple[Metric, ...]:
    """All of them, by topic and name: SQL, then what functions compute."""
    return (*sql_metrics(), *_python_metrics())


@cache
def sql_metrics() -> tuple[Metric, ...]:
    """Those that are files below `sql/`."""
    heads = (head_of(sql_text(name), name.removesuffix(".sql"), place)
             for name, place in sql_files().items())  # fmt: skip
    return tuple(head for head in heads if head is not None)


def metric(name: str) -> Metric:
    """The metric of that name; KeyError where there is none."""
    head = {metric.name: metric for metric in sql_metrics()}.get(name)
    return head or {metric.name: metric for metric in _python_metrics()}[name]


def column_names(name: str) -> tuple[str, ...]:
    """Names of the columns of the metric of that name, in order."""
    return tuple(column.name for column in metric(name).columns)


@cache
def _python_metrics() -> tuple[Metric, ...]:
    room = resources.files(__package__)
    heads: list[Metric | None] = []
    for place in sorted(_modules(room, "")):
        text = room.joinpath(place).read_text(encoding="utf-8")
        module = place.removesuffix(".py").replace("/", ".")
        for name, head, function in _FUNCTION.findall(text):
            head = re.sub("^#", "--", head, flags=re.M)
            heads.append(head_of(head, name, place, function=f"{module}.{function}"))
    return tuple(head for head in heads if head is not None)


def _modules(folder: Traversable, place: str) -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir() and one.name not in ("sql", "__pycache__"):
            yield from _modules(one, f"{place}{one.name}/")
        elif one.name.endswith(".py"):
            yield place + one.name


def shown_in(table: str) -> Metric | None:
    """The metric that a table of that name shows on a page."""
    return next((metric for metric in metrics() if table in metric.tables), None)


def drawn_in(figure: str) -> tuple[Metric, ...]:
    """The metrics that a figure or tile of that name is drawn from."""
    return tuple(metric for metric in metrics() if figure in metric.figures)


def _in_order() -> list[Metric]:
    """All metrics, each after those that it reads of."""
    by_view = {metric.view or metric.name: metric for metric in metrics()}
    done: dict[str, Metric] = {}

    def put(name: str) -> None:
        entry = by_view.pop(name, None)
        if entry is not None:
            for read in entry.inputs:
                put(read)
            done[name] = entry

    for name in [*by_view]:
        put(name)
    return [*done.values()]


def metrics_markdown() -> str:
    """The catalog as a Markdown page."""
    lines = [
        "# Metrics",
        "",
        "Written from the heads of `analysis/sql/*/*.sql` and of functions by"
        " `npuscope.analysis.catalog.write_docs`: change those.",
        "",
        "Times are integer nanoseconds, intervals half open, and what is unknown is NULL. Where our"
        " figures of a step differ from the profiler's own table,"
        " [steps-and-the-profiler.md](steps-and-the-profiler.md) says why.",
    ]
    for metric in _in_order():
        scope = "rank" if metric.rows_from else "capture" if metric.over else ""
        lines += [
            "",
            f"## {metric.name}",
            "",
            f"{metric.meaning} *{metric.question}*",
            "",
            metric.rules,
            "",
            f"{_source(metric)} ([{metric.file.rpartition('/')[2]}](../analysis/{metric.file}))"
            + (f"; kept with each {scope} in the store." if scope else "."),
            *_outlets(metric),
            "",
            "| column | type | unit | meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
            for column in metric.columns
        ]
    return "\n".join(lines) + "\n"


def _source(metric: Metric) -> str:
    inputs = ", ".join(f"`{name}`" for name in metric.inputs)
    if metric.function:
        return f"In Python: `npuscope.analysis.{metric.function}`"
    return f"In SQL: `{metric.view}`, from {inputs}"


def _outlets(metric: Metric) -> list[str]:
    outlets = [f"`npuscope {one}`" for one in metric.commands]
    outlets += [f"table `{one}` of pages" for one in metric.tables]
    outlets += [f"figure `{one}`" for one in metric.figures]
    outlets += [f"gauge `{one.name}`" for one in metric.gauges]
    return ["", f"Shown by {', '.join(outlets)}."] if outlets else []


def write_docs(path: Path) -> None:
    """Write the catalog page to `path`."""
    path.write_text(metrics_markdown(), encoding="utf-8")
