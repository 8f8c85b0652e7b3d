"""Decoded events as Arrow tables, one per kind of event: what timelines of every producer share.

    events -> gather: lists of values per kind and column -> tables: Arrow

Events are taken apart while they are still in the processor's cache, so a few hundred kilobytes of
the file at a time; their values wait until there are enough of them to pay for Arrow's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from npuscope.messages import Message

from ...model import ReadLog
from .events import Event, Int64, decode_series, number
from .kept_kinds import WantedKinds

PLACE = ("pid", "tid", "start_ns", "dur_ns", "name")
COUNTER = ("pid", "name", "timestamp_ns", "series", "value")
_ACCELERATOR = "acc_id"  # an argument of counters that is a label, not a series

# Types of columns that no args give.
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("pid", "tid", "start_ns", "dur_ns", "at_ns", "timestamp_ns"), pa.int64()),
    "value": pa.float64(),
}
_NUMBERS = {Int64 | None: pa.int64(), float | None: pa.float64()}

# Values of events that wait to become columns: kind -> one list per column.
Values = dict[str, list[list[Any]]]


class Form(Protocol):
    """A producer's timelines: how events become values, and these the tables of `schemas`.

    `columns`: those of each kind of values; `schemas`: those of each kind of table.
    """

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def schemas(self) -> Mapping[str, pa.Schema]: ...
    def gather(self, events: Sequence[Event], values: Values, log: ReadLog) -> None:
        """Add the values of a piece's events to those that wait; the events may go afterwards."""

    def kinds(self) -> WantedKinds: ...
    def column(self, name: str, values: list[Any]) -> pa.Array: ...
    def rows(self, kind: str, table: pa.Table, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
        """Tables of `schemas` from one of a kind's values."""


def hints_of(*kinds: type[Struct]) -> dict[str, Any]:
    """How the attributes of args are typed, by name."""
    return {
        name: hint
        for kind in kinds
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def arrow_types(hints: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Types of columns that are numbers, by name; others are text."""
    return _TYPES | {name: _NUMBERS[hint] for name, hint in hints.items() if hint in _NUMBERS}


def schema_of(names: Iterable[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns' schema."""
    return pa.schema([(name, types.get(name, pa.string())) for name in names])


def no_values(form: Form) -> Values:
    """Nothing gathered yet."""
    return {kind: [[] for _ in names] for kind, names in form.columns.items()}


def waiting_rows(values: Values) -> int:
    """Events that wait."""
    return sum(len(columns[0]) for columns in values.values())


def tables(form: Form, values: Values, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
    """What was gathered as tables, several of one kind; nothing waits afterwards.

    Rows without a place or a duration are counted in `log` and left out.
    """
    for kind, lists in values.items():
        if not lists[0]:
            continue
        columns = zip(form.columns[kind], lists, strict=True)
        table = pa.table({name: form.column(name, column) for name, column in columns if column})
        for column in lists:
            column.clear()
        if kind == "counter":
            rows_with_values = table.filter(pc.and_(pc.is_valid(table[2]), pc.is_valid(table[4])))
            count_lost(
                log,
                table.num_rows - rows_with_values.num_rows,
                Message("counters without time or value"),
            )
            yield kind, rows_with_values
        else:
            yield from form.rows(kind, table, log)


def put_slices(
    columns: list[list[Any]],
    events: Sequence[Event],
    args: Sequence[Struct] = (),
    attributes: Sequence[str] = (),
) -> None:
    """Add slices: their place, and attributes of their args."""
    pids, tids, starts, durations, names, *rest = columns
    pids += [event.pid for event in events]
    tids += [event.tid for event in events]
    starts += [event.ts for event in events]
    durations += [event.dur for event in events]
    names += [event.name for event in events]
    put(rest, args, attributes)


def put(columns: list[list[Any]], rows: Sequence[Struct], attributes: Sequence[str]) -> None:
    """Add attributes of rows to as many columns."""
    for column, attribute in zip(columns, attributes, strict=False):
        column.extend(map(attrgetter(attribute), rows))


def gather_counters(events: Sequence[Event], columns: list[list[Any]], log: ReadLog) -> None:
    """One row per counter, series and instant. Accelerators that share a counter are its series."""
    decoded = decode_series(events, log)
    accelerators = [series.pop(_ACCELERATOR, None) for series in decoded]
    if not all(len(series) == 1 for series in decoded):
        places = [place for place, series in enumerate(decoded) for _ in series]
        events = [events[place] for place in places]
        accelerators = [accelerators[place] for place in places]
    pids, names, instants, series_names, values = columns
    pids += [event.pid for event in events]
    names += [event.name for event in events]
    instants += [event.ts for event in events]
    series_names += map(series_name, chain.from_iterable(decoded), accelerators)
    values += chain.from_iterable([series.values() for series in decoded])


@lru_cache(maxsize=4096)
def series_name(name: str, accelerator: float | None) -> str:
    """A counter's series, with the accelerator where several share the counter."""
    if accelerator is None:
        return name
    label = f"acc {accelerator:.0f}"
    return label if name == "value" else f"{name} {label}"


def numbers(values: Sequence[int | str | None]) -> pa.Array:
    """Processes and threads."""
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.array([number(value) for value in values], pa.int64())


def scalars(values: Sequence[Any]) -> pa.Array:
    """Numbers or texts as text."""
    for kind in (pa.string(), pa.int64()):
        try:
            return pa.array(values, kind).cast(pa.string())
        except (pa.ArrowTypeError, pa.ArrowInvalid, OverflowError):
            pass
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def on_strings(column: pa.ChunkedArray, test: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """What a test of strings says of each row; of a dictionary's strings it is asked once each."""
    rows = column.combine_chunks()
    if not pa.types.is_dictionary(rows.type):
        return test(rows)
    return test(rows.dictionary).take(rows.indices)


def is_step(table: pa.Table) -> pa.Array:
    """Which rows are steps of torch's profiler."""
    names = r"^ProfilerStep#\d+$"
    return on_strings(table["name"], lambda texts: pc.match_substring_regex(texts, names))


def with_texts(table: pa.Table, changes: Mapping[str, Callable[[pa.Array], pa.Array]]) -> pa.Table:
    """The table with texts of some columns changed, each that repeats once: SQL would do it row by
    row."""
    for place, name in enumerate(table.column_names):
        if name in changes and table[name].null_count < table.num_rows:
            rows = table[name].combine_chunks()
            if not pa.types.is_dictionary(rows.type):
                rows = pc.dictionary_encode(rows)
            changed = pa.DictionaryArray.from_arrays(rows.indices, changes[name](rows.dictionary))
            table = table.set_column(place, name, changed)
    return table


def without(characters: str) -> Callable[[pa.Array], pa.Array]:
    """Takes a set of characters, as a regular expression has them, out of texts."""
    return partial(pc.replace_substring_regex, pattern=f"[{characters}]", replacement="")


def drop_unplaced(table: pa.Table, needed: Iterable[str], what: str, log: ReadLog) -> pa.Table:
    """Slices with a duration and what else they need; `what` says so of those that have not."""
    is_placed = pc.fill_null(pc.greater_equal(table["dur_ns"], 0), False)
    for name in needed:
        if table[name].null_count:
            is_placed = pc.and_(is_placed, pc.is_valid(table[name]))
    if pc.all(is_placed).as_py():
        return table
    rows_with_places = table.filter(is_placed)
    count_lost(
        log,
        table.num_rows - rows_with_places.num_rows,
        Message("slices without {what}", what=Message(what)),
    )
    return rows_with_places


def fit_schema(table: pa.Table, schema: pa.Schema, column: str, value: str) -> pa.Table:
    """The table with every column of `schema`, and one that says what its rows are."""
    columns = set(table.column_names)
    return pa.table(
        [
            pa.repeat(value, table.num_rows) if name == column
            else table[name] if name in columns
            else pa.nulls(table.num_rows, schema.field(name).type)
            for name in schema.names
        ],
        names=schema.names,
    )  # fmt: skip


def count_lost(log: ReadLog, count: int, what: str) -> None:
    """Count rows that were left out."""
    if count:
        log.rows_lost += count
        log.warn("trace: {what} left out", what=what)
