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
    -- function: flops.mfu.mfu, where one has to be asked for rows, in place of a view
    -- command: comm --by kind, comm --by type
    -- table: tables of pages that show it
    -- figure: figures and tiles of pages, and figures of the report, that are drawn from it
    -- gauge: npuscope_part_seconds{part} = a_ns, b_ns: What the exporter says of it.
    --
    --   column_ns  bigint  what it means

A line that begins further in goes on with the one before. A file without a title is a part or a
step of others. Where Python computes a metric, the same head stands above the function, after a
line `# metric: NAME`, with a line `# by: run, capture` for columns that mean the same everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import duckdb

from npuscope.collector.quiet_duckdb import open_duckdb

_COLUMN = re.compile(r"--   (\w+) +(\w+(?:\[\])?) +(\S.*)")
_FACT = re.compile(
    r"-- (title|meaning|view|rows from|over all ranks of|function|by|command|table|figure|gauge):"
    r" (\S.*)"
)
_MORE = re.compile(r"\n--     +(?=\S)")
_GAUGE = re.compile(r"(npuscope_\w+)(?:\{([\w, ]+)\})? = (.+?): (\S.*)")
_PLACES = {
    "run": ("varchar", "run of the training job"),
    "capture": ("varchar", "ranks profiled at the same time"),
    "rank": ("integer", "global rank"),
    "step": ("bigint", "producer's step number; NULL: there are none"),
    "stage": ("integer", "pipeline stage; NULL where not recorded"),
    "phase": (
        "varchar",
        "what experts worked for, as recorded: train, prefill, ...; NULL: nothing",
    ),
    "layer": ("bigint", "layer of the model"),
}
# In a parsed query: what it reads, and the names of its common table expressions.
_READ = re.compile(r'"type":"BASE_TABLE"[^{}]*?"table_name":"(\w+)"')
_ALIAS = re.compile(r'"key":"(\w+)"')
_RATIOS = (
    "_over_mean", "_over_mean_before", "_over_mean_after", "_max_vio", "_cv", "_gini",
    "_balance_loss", "_rank_correlation", "_mfu_points", "_value", "_imbalance",
    "_slowdown", "_share",
)  # fmt: skip
_UNITS = (
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
    ("_mhz", "MHz"),
    ("_ppm", "ppm"),
    ("_bytes_per_s", "bytes/s"),
    ("count", "number"),
    ("score", "-log10 p"),
    ("elapsed_s", "s"),
    ("useful_s", "s"),
    ("wall_s", "s"),
    ("_per_1000_steps", "number"),
    ("even_steps", "number"),
    ("_activations", "micro-batches"),
    ("_ns_per_token", "ns/token"),
    ("_flops_per_token", "FLOPs/token"),
    ("_tokens", "tokens"),
    ("_tokens_per_s", "tokens/s"),
    ("tokens_per_second", "tokens/s"),
    ("tokens_per_second_per_card", "tokens/s"),
    ("period_steps", "number"),
    ("accepted_length", "tokens"),
    ("_tokens_per_s_per_rank", "tokens/s"),
    ("_flops_per_byte", "FLOPs/byte"),
    ("_flops", "FLOPs"),
    ("_flops_per_s", "FLOP/s"),
    *((name, "ratio") for name in _RATIOS),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a metric; `unit` is empty for names, ids and lists."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Gauge:
    """What the exporter shows of a metric: a series per `run` and values of `labels`.

    `values` are expressions over the metric's columns, in seconds where the gauge is and the column
    is in ns. Of several, the label that is no column names them (`computing_ns`: computing).
    """

    name: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A question and where its answer stands.

    `name` is what outlets call it; `file` is where it is written, below `analysis`. `view` is the
    name of its rows in SQL, empty where the `function` of that name has to be asked for them. Where
    `rows_from` has tables, the answer is kept beside each rank, because it needs no other (a
    summary): where all of them are empty, so is the answer. Where `over` has names, it is computed
    from these over all ranks of a capture and kept beside them (`ranks.derive`); its file is then
    the last of several steps. `commands`, `tables`, `figures` and `gauges` show it: commands,
    tables of pages, figures (of which one may be drawn from several metrics), the exporter.
    """

    name: str
    view: str
    function: str
    title: str
    meaning: str
    file: str
    rows_from: tuple[str, ...]
    over: tuple[str, ...]
    commands: tuple[str, ...]
    tables: tuple[str, ...]
    figures: tuple[str, ...]
    gauges: tuple[Gauge, ...]
    question: str
    rules: str
    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Canonical tables and views of other metrics that it reads, as the engine finds them."""
        return self.over or (() if self.function else read_by(_parser(), self.sql))

    @property
    def sql(self) -> str:
        """The query, one select without a semicolon."""
        return self.sql_with()

    def sql_with(self, *, kinds: str = "kinds.sql") -> str:
        """The query with the tables of that file where it asks what groups are for (`_kinds`)."""
        query = part_sql(self.file.rpartition("/")[2], kinds=kinds)
        if not (self.rows_from and any(column.name == "step" for column in self.columns)):
            return query
        return sql_text("kept_steps.sql").replace("\n_query\n", f"\n{query.rstrip()}\n")


def part_sql(file: str, *, kinds: str = "kinds.sql") -> str:
    """Text of a file below `sql/` with the tables of other files where it asks for them."""
    query = sql_text(file)
    parts = (
        ("_gaps", "gaps.sql"),
        ("_host_causes", "host_causes.sql"),
        ("_lengths", "lengths.sql"),
        ("_later", "later.sql"),
        ("_kinds", kinds),
        ("_covered_bins", "covered_bins.sql"),
        ("_repeats", "repeats.sql"),
        ("_trains", "trains.sql"),
    )
    for line, part in parts:
        tables = "_" + sql_text(part).partition("\n_")[2].rstrip()
        query = query.replace(f"\n{line}\n", f"\n{tables}\n")
    return query


@cache
def sql_text(file: str) -> str:
    """Text of a file below `sql/`, whose names are unique."""
    return resources.files(__package__).joinpath(sql_files()[file]).read_text(encoding="utf-8")


@cache
def sql_files() -> dict[str, str]:
    """Where each file below `sql/` lies in this room: `sql/steps/steps.sql`, by its name."""
    topics = resources.files(__package__).joinpath("sql").iterdir()
    files = {
        file.name: f"sql/{topic.name}/{file.name}"
        for topic in topics
        if topic.is_dir()
        for file in topic.iterdir()
    }
    return dict(sorted(files.items(), key=lambda one: one[1]))


_READ_BY: dict[str, tuple[str, ...]] = {}
_READ_BY_AT_MOST = 1024


def read_by(con: duckdb.DuckDBPyConnection, query: str) -> tuple[str, ...]:
    """Tables and views that a query reads, but for those it makes itself (`with`); any `con`."""
    if (tables_of := _READ_BY.get(query)) is not None:
        return tables_of  # every store that is opened asks this of the same metrics
    # The engine's get_table_names binds what it parses, which it cannot do without the tables.
    ((tree,),) = con.execute("select json_serialize_sql(?)", [query]).fetchall()
    own = {*_ALIAS.findall(tree)}
    read = tuple(name for name in dict.fromkeys(_READ.findall(tree)) if name not in own)
    if len(_READ_BY) >= _READ_BY_AT_MOST:  # some were people's own
        _READ_BY.clear()
    _READ_BY[query] = read
    return read


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return open_duckdb(config={"threads": 1})


def head_of(text: str, name: str, file: str, *, function: str = "") -> Metric | None:
    """The metric that the head of a file describes; None where it has no title."""
    lines = _MORE.sub(" ", text.partition("\nwith\n")[0]).splitlines()
    prose_of: dict[str, list[str]] = {}
    prose, columns = "", []
    for line in lines:
        if fact := _FACT.fullmatch(line):
            prose_of.setdefault(fact[1], []).append(fact[2])
        elif fact := _COLUMN.fullmatch(line):
            columns.append(Column(fact[1], fact[2], _unit(fact[1]), fact[3].strip()))
        else:
            prose += " " + (line.lstrip("- ").strip() or "\n")
    if "title" not in prose_of:
        return None

    def words_of(key: str) -> tuple[str, ...]:
        return tuple(prose_of[key][0].split(", ")) if key in prose_of else ()

    places = [Column(one, _PLACES[one][0], "", _PLACES[one][1]) for one in words_of("by")]
    question, *rules = prose.split("\n")
    function_name = prose_of.get("function", [function])[0]
    return Metric(
        name=name,
        view="" if function_name else prose_of.get("view", [name])[0],
        function=function_name,
        title=prose_of["title"][0],
        meaning=prose_of["meaning"][0],
        file=file,
        rows_from=words_of("rows from"),
        over=words_of("over all ranks of"),
        commands=words_of("command"),
        tables=words_of("table"),
        figures=words_of("figure"),
        gauges=tuple(_gauge(one) for one in prose_of.get("gauge", ())),
        question=question.strip(),
        rules=" ".join(rule.strip() for rule in rules if rule.strip()),
        columns=(*places, *columns),
    )


def _gauge(text: str) -> Gauge:
    match = _GAUGE.fullmatch(text)
    if match is None:
        raise ValueError(f"no gauge: {text}")
    name, labels, values, meaning = match.groups()
    named = tuple(labels.replace(" ", "").split(",")) if labels else ()
    several = re.fullmatch(r"\w+(, \w+)+", values)
    return Gauge(name, named, tuple(values.split(", ")) if several else (values,), meaning)


@cache
def _unit(column: str) -> str:
    ends = (unit for ending, unit in _UNITS if f"_{column}".endswith(ending))
    return next(ends, "")
