"""One metric: what it asks, from which tables, and what its columns mean.

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

_COLUMN = re.compile(r"--   (\w+) +(\w+(?:\[\])?) +(\S.*)")
_UNITS = (
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
    ("_mhz", "MHz"),
    ("_ppm", "ppm"),
    ("_bytes_per_s", "bytes/s"),
    ("count", "number"),
    ("score", "-log10 p"),
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
    are empty, so is the answer. `derived` tells that it is computed over all ranks of a capture and
    kept beside them (see `ranks.rank_views`); its file is then the last of several steps.
    """

    name: str
    view: str
    title: str
    meaning: str
    sql_file: str
    inputs: tuple[str, ...]
    summary: bool
    derived: bool
    rows_from: tuple[str, ...]
    question: str
    rules: str
    columns: tuple[Column, ...]

    @property
    def sql(self) -> str:
        """The query, one select without a semicolon."""
        return self.sql_with()

    def sql_with(self, *, kinds: str = "kinds.sql") -> str:
        """The query with the tables of that file where it asks what groups are for (`_kinds`)."""
        query = sql_text(self.sql_file)
        parts = (
            ("_lengths", "lengths.sql"),
            ("_kinds", kinds),
            ("_covered_bins", "covered_bins.sql"),
        )
        for line, file in parts:
            tables = "_" + sql_text(file).partition("\n_")[2].rstrip()
            query = query.replace(f"\n{line}\n", f"\n{tables}\n")
        if not (self.summary and any(column.name == "step" for column in self.columns)):
            return query
        return sql_text("kept_steps.sql").replace("\n_query\n", f"\n{query.rstrip()}\n")


@cache
def sql_text(file: str) -> str:
    """Text of a file below `sql/`, whose names are unique."""
    return resources.files(__package__).joinpath(sql_place(file)).read_text(encoding="utf-8")


def sql_place(file: str) -> str:
    """Where a file of that name lies in this room: `sql/steps/steps.sql`."""
    return _sql_places()[file]


@cache
def _sql_places() -> dict[str, str]:
    topics = resources.files(__package__).joinpath("sql").iterdir()
    return {
        file.name: f"sql/{topic.name}/{file.name}"
        for topic in topics
        if topic.is_dir()
        for file in topic.iterdir()
    }


def _unit(column: str) -> str:
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")


def described(
    name: str,
    view: str,
    title: str,
    meaning: str,
    *,
    inputs: tuple[str, ...],
    summary: bool = False,
    derived: bool = False,
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
        derived=derived,
        rows_from=rows_from,
        question=question.strip(),
        rules=" ".join(rule.strip() for rule in rules if rule.strip()),
        columns=columns,
    )
