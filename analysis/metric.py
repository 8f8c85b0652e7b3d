"""One metric: what it asks, from which tables, what its columns mean, and who shows it.

A metric is one file in `sql/`. The comment at its head is where all of that is written down, once;
this module reads it, so that tables, JSON, exporter and documentation cannot disagree.

    -- The question?
    --
    -- Rules, in one paragraph.
    --
    -- title: What outlets call it
    -- meaning: One sentence.
    -- view: name of its rows in SQL, where it is not the file's
    -- rows from: tables; it needs no other rank and is kept beside each in the store
    -- over all ranks of: tables and views; it is kept beside each capture
    -- command: comm --by kind, comm --by type
    -- table: tables of pages that show it
    --
    --   column_ns  bigint  what it means

A file without a title is a part or a step of others. Where Python computes a metric, the same head
stands beside the function (`computed`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import duckdb

_COLUMN = re.compile(r"(?:--)?   (\w+) +(\w+(?:\[\])?) +(\S.*)")
_FACT = re.compile(
    r"(?:-- )?(title|meaning|view|rows from|over all ranks of|command|table): (\S.*)"
)
# In a parsed query: what it reads, and the names of its common table expressions.
_READ = re.compile(r'"type":"BASE_TABLE"[^{}]*?"table_name":"(\w+)"')
_MADE = re.compile(r'"key":"(\w+)"')
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

    `name` is what outlets call it; `file` is where it is written, below `analysis`. `view` is the
    name of its rows in SQL, empty where a function has to be asked for them. Where `rows_from` has
    tables, the answer is kept beside each rank, because it needs no other (a summary): where all of
    them are empty, so is the answer. Where `over` has names, it is computed from these over all
    ranks of a capture and kept beside them (`ranks.derive`); its file is then the last of several
    steps. `commands` and `tables` show it: commands, and tables of pages.
    """

    name: str
    view: str
    title: str
    meaning: str
    file: str
    rows_from: tuple[str, ...]
    over: tuple[str, ...]
    commands: tuple[str, ...]
    tables: tuple[str, ...]
    question: str
    rules: str
    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Canonical tables and views of other metrics that it reads, as the engine finds them."""
        return self.over or (read_by(self.sql) if self.file.endswith(".sql") else ())

    @property
    def sql(self) -> str:
        """The query, one select without a semicolon."""
        return self.sql_with()

    def sql_with(self, *, kinds: str = "kinds.sql") -> str:
        """The query with the tables of that file where it asks what groups are for (`_kinds`)."""
        query = sql_text(self.file.rpartition("/")[2])
        parts = (
            ("_lengths", "lengths.sql"),
            ("_kinds", kinds),
            ("_covered_bins", "covered_bins.sql"),
        )
        for line, file in parts:
            tables = "_" + sql_text(file).partition("\n_")[2].rstrip()
            query = query.replace(f"\n{line}\n", f"\n{tables}\n")
        if not (self.rows_from and any(column.name == "step" for column in self.columns)):
            return query
        return sql_text("kept_steps.sql").replace("\n_query\n", f"\n{query.rstrip()}\n")


@cache
def sql_text(file: str) -> str:
    """Text of a file below `sql/`, whose names are unique."""
    return resources.files(__package__).joinpath(sql_files()[file]).read_text(encoding="utf-8")


@cache
def sql_files() -> dict[str, str]:
    """Where each file below `sql/` lies in this room: `sql/steps/steps.sql`, by its name."""
    topics = resources.files(__package__).joinpath("sql").iterdir()
    found = {
        file.name: f"sql/{topic.name}/{file.name}"
        for topic in topics
        if topic.is_dir()
        for file in topic.iterdir()
    }
    return dict(sorted(found.items(), key=lambda one: one[1]))


@cache
def read_by(query: str) -> tuple[str, ...]:
    """Tables and views that a query reads, but for those it makes itself (`with`)."""
    # The engine's get_table_names binds what it parses, which it cannot do without the tables.
    ((tree,),) = _parser().execute("select json_serialize_sql(?)", [query]).fetchall()
    own = {*_MADE.findall(tree)}
    return tuple(name for name in dict.fromkeys(_READ.findall(tree)) if name not in own)


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def head_of(text: str, name: str, file: str) -> Metric | None:
    """The metric that the head of a file describes; None where it has no title."""
    lines = text.partition("\nwith\n")[0].splitlines()
    told = {found[1]: found[2] for line in lines if (found := _FACT.fullmatch(line))}
    if "title" not in told:
        return None
    columns = tuple(
        Column(found[1], found[2], _unit(found[1]), found[3].strip())
        for line in lines
        if (found := _COLUMN.fullmatch(line))
    )
    prose = [line for line in lines if not (_COLUMN.fullmatch(line) or _FACT.fullmatch(line))]
    question, *rules = " ".join(line.lstrip("- ").strip() or "\n" for line in prose).split("\n")

    def listed(key: str) -> tuple[str, ...]:
        return tuple(told[key].split(", ")) if key in told else ()

    return Metric(
        name=name,
        view="" if "function" in told else told.get("view", name),
        title=told["title"],
        meaning=told["meaning"],
        file=file,
        rows_from=listed("rows from"),
        over=listed("over all ranks of"),
        commands=listed("command"),
        tables=listed("table"),
        question=question.strip(),
        rules=" ".join(rule.strip() for rule in rules if rule.strip()),
        columns=columns,
    )


def _unit(column: str) -> str:
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")
