"""Decoded Kineto events as Arrow tables, one per kind of event: what its reader stages.

Categories tell the kinds. Those of no use here (flows, whose ends the correlation tells as well;
overheads; what synchronises streams) are passed over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ...model import ReadLog
from ..trace_view.trace_events import LabelArgs, decode_args, decode_series, durations_ns
from .kineto_events import (
    CallArgs,
    KinetoEvent,
    MemoryArgs,
    OperatorArgs,
    StackArgs,
    TaskArgs,
    decode_events,
    instants_ns,
    texts,
)

# Categories, those before 2022 too, and the kind of row each is.
KINDS: dict[str, str] = {
    "cpu_op": "operator", "Operator": "operator", "user_annotation": "annotation",
    "python_function": "python",
    "cuda_runtime": "api", "cuda_driver": "api", "xpu_runtime": "api", "xpu_driver": "api",
    "mtia_runtime": "api",
    "privateuse1_runtime": "api", "privateuse1_driver": "api", "Runtime": "api",
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "copy", "Memcpy": "copy", "gpu_memset": "fill", "Memset": "fill",
    "gpu_user_annotation": "range",
    "cpu_instant_event": "instant",
}  # fmt: skip
_HOST = {"operator": "operator", "annotation": "operator", "python": "python"}
_DEVICE = frozenset({"kernel", "copy", "fill"})
_STEP = re.compile(r"ProfilerStep#\d+")

_PLACE = ("pid", "tid", "start_ns", "dur_ns", "name")
_OPERATOR = (
    "external_id", "sequence_number", "forward_thread_id", "input_shapes", "input_dtypes",
    "module", "flops", "call_stack",
)  # fmt: skip
_TASK = (
    "device_id", "stream_id", "correlation", "external_id", "collective", "in_count", "out_count",
    "group_size", "data_type", "group_name", "group_label", "group_ranks",
)  # fmt: skip
_MEMORY = ("device_type", "device_id", "allocated_bytes", "reserved_bytes")
# Columns of each kind of values; those behind the place are attributes of its args.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "operator": (*_PLACE, *_OPERATOR),
    "annotation": (*_PLACE, *_OPERATOR),
    "python": _PLACE,
    "api": (*_PLACE, "correlation", "external_id"),
    **dict.fromkeys(("kernel", "copy", "fill"), (*_PLACE, *_TASK)),
    "step": _PLACE,
    "range": _PLACE,
    "memory": ("timestamp_ns", *_MEMORY),
    "counter": ("pid", "name", "timestamp_ns", "series", "value"),
    "label": ("pid", "text"),
}
_TEXT = frozenset({
    "name", "series", "text", "module", "call_stack", "collective", "data_type", "kind", "category",
})  # fmt: skip
_JSON = frozenset({"input_shapes", "input_dtypes", "group_ranks"})
_SCALARS = frozenset({"correlation", "group_name", "group_label"})
_DOUBLES = frozenset({"flops", "value"})


def _schema(*names: str) -> pa.Schema:
    strings = _TEXT | _JSON | _SCALARS
    return pa.schema([
        (name, pa.string() if name in strings else pa.float64() if name in _DOUBLES else pa.int64())
        for name in names
    ])  # fmt: skip


# What `tables` makes.
SCHEMAS: dict[str, pa.Schema] = {
    "host": _schema("kind", *_COLUMNS["operator"]),
    "device": _schema("category", *_COLUMNS["kernel"]),
    **{kind: _schema(*_COLUMNS[kind])
       for kind in ("api", "step", "range", "memory", "counter", "label")},
}  # fmt: skip

# Values of events that wait to become columns: kind -> one list per column of `_COLUMNS`.
Values = dict[str, list[list[Any]]]


@dataclass(frozen=True, slots=True)
class KinetoForm:
    """How events of one file become rows: their instants count from `base_ns`."""

    base_ns: int = 0
    counters: bool = True
    stacks: bool = False

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return SCHEMAS

    def decode(self, text: bytes, log: ReadLog) -> list[KinetoEvent]:
        return decode_events(text, log)

    def no_values(self) -> Values:
        return {kind: [[] for _ in columns] for kind, columns in _COLUMNS.items()}

    def gather(self, events: Sequence[KinetoEvent], values: Values, log: ReadLog) -> None:
        """Add the values of a piece's events to those that wait."""
        found: dict[str, list[KinetoEvent]] = defaultdict(list)
        puts: dict[str | None, Callable[[KinetoEvent], None]]
        puts = {category: found[kind].append for category, kind in KINDS.items()}
        puts[None] = found["else"].append
        passed: list[KinetoEvent] = []
        put, pass_over = puts.get, passed.append
        for event in events:
            put(event.cat, pass_over)(event)
        self._gather_host(found, values, log)
        for kind in _DEVICE:
            rows = found[kind]
            _put_slices(values[kind], rows, decode_args(rows, TaskArgs, log), _TASK)
        steps = [e for e in found["range"] if e.name and _STEP.fullmatch(e.name)]
        _put_slices(values["range"], steps, (), ())
        _gather_memory(found["instant"], values["memory"], log)
        labels = [e for e in found["else"] if e.ph == "M" and e.name == "process_labels"]
        named = [told.labels for told in decode_args(labels, LabelArgs, log)]
        _put(values["label"], [[_number(e.pid) for e in labels], named])
        if self.counters:
            counters = [e for e in (*found["else"], *passed) if e.ph == "C"]
            _gather_counters(counters, values["counter"], log)

    def _gather_host(
        self, found: Mapping[str, list[KinetoEvent]], values: Values, log: ReadLog
    ) -> None:
        annotations = [e for e in found["annotation"] if e.ph == "X"]
        steps = [e for e in annotations if e.name and _STEP.fullmatch(e.name)]
        if steps:
            _put_slices(values["step"], steps, (), ())
            annotations = [e for e in annotations if not (e.name and _STEP.fullmatch(e.name))]
        told = StackArgs if self.stacks else OperatorArgs
        wanted = _OPERATOR if self.stacks else _OPERATOR[:-1]
        for kind, rows in (("operator", found["operator"]), ("annotation", annotations)):
            rows = [e for e in rows if e.ph == "X"]
            _put_slices(values[kind], rows, decode_args(rows, told, log), wanted)
        _put_slices(values["python"], [e for e in found["python"] if e.ph == "X"], (), ())
        calls = [e for e in found["api"] if e.ph == "X"]
        args = decode_args(calls, CallArgs, log)
        _put_slices(values["api"], calls, args, ("correlation", "external_id"))

    def tables(self, values: Values, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
        """What was gathered as tables of `SCHEMAS`, several of one kind; nothing waits afterwards.

        Rows without an instant or a duration are counted in `log` and left out.
        """
        for kind, lists in values.items():
            if not lists[0]:
                continue
            columns = zip(_COLUMNS[kind], lists, strict=True)
            table = pa.table(
                {name: self._column(name, column) for name, column in columns if column}
            )
            for column in lists:
                column.clear()
            if kind in _HOST:
                yield "host", _shaped(_placed(table, log), "host", "kind", _HOST[kind])
            elif kind in _DEVICE:
                yield "device", _shaped(_placed(table, log), "device", "category", kind)
            elif "start_ns" in table.column_names:
                yield kind, _placed(table, log)
            elif kind == "counter":
                kept = table.filter(pc.and_(pc.is_valid(table[2]), pc.is_valid(table[4])))
                _count_lost(log, table.num_rows - kept.num_rows, "counters without time or value")
                yield kind, kept
            else:
                yield kind, table

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        if name in ("start_ns", "timestamp_ns"):
            return instants_ns(values, self.base_ns)
        if name == "dur_ns":
            return durations_ns(values)
        if name in _JSON:
            return texts(values)
        if name in _SCALARS:
            return _scalars(values)
        if name in ("pid", "tid"):
            return _numbers(values)
        return pa.array(values, _kind_of_column(name))


def _kind_of_column(name: str) -> pa.DataType:
    return pa.string() if name in _TEXT else pa.float64() if name in _DOUBLES else pa.int64()


def _put_slices(
    columns: list[list[Any]],
    events: Sequence[KinetoEvent],
    args: Sequence[Struct],
    attributes: Sequence[str],
) -> None:
    pids, tids, starts, durations, names, *rest = columns
    pids += [event.pid for event in events]
    tids += [event.tid for event in events]
    starts += [event.ts for event in events]
    durations += [event.dur for event in events]
    names += [event.name for event in events]
    for column, attribute in zip(rest, attributes, strict=False):
        column.extend(map(attrgetter(attribute), args))


def _put(columns: list[list[Any]], values: Sequence[Iterable[Any]]) -> None:
    for column, more in zip(columns, values, strict=True):
        column.extend(more)


def _gather_memory(events: Sequence[KinetoEvent], columns: list[list[Any]], log: ReadLog) -> None:
    """Totals of the devices' allocators; the host's are no device memory."""
    events = [event for event in events if event.name == "[memory]"]
    told = decode_args(events, MemoryArgs, log)
    is_device = [
        bool(one.device_type) if one.device_type is not None else (one.device_id or 0) >= 0
        for one in told
    ]
    kept = list(compress(told, is_device))
    instants = [event.ts for event in compress(events, is_device)]
    _put(columns, [instants, *(map(attrgetter(name), kept) for name in _MEMORY)])


def _gather_counters(events: Sequence[KinetoEvent], columns: list[list[Any]], log: ReadLog) -> None:
    """One row per counter, series and instant."""
    for event, told in zip(events, decode_series(events, log), strict=True):
        for series, value in told.items():
            _put(columns, [[_number(event.pid)], [event.name], [event.ts], [series], [value]])


def _shaped(table: pa.Table, kind: str, column: str, value: str) -> pa.Table:
    """The table with every column of its kind, and one that says what its rows are."""
    schema, known = SCHEMAS[kind], set(table.column_names)
    return pa.table(
        [
            pa.repeat(value, table.num_rows) if name == column
            else table[name] if name in known
            else pa.nulls(table.num_rows, schema.field(name).type)
            for name in schema.names
        ],
        schema=schema,
    )  # fmt: skip


def _number(value: int | str | None) -> int | None:
    """A process, thread or stream; old files write `stream 7`."""
    if isinstance(value, str):
        told = re.fullmatch(r"(?:[A-Za-z]+ )?(\d{1,18})", value, re.A)
        return int(told[1]) if told else None
    return value


def _numbers(values: Sequence[int | str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.array([_number(value) for value in values], pa.int64())


def _scalars(values: Sequence[Any]) -> pa.Array:
    """Numbers or texts as text."""
    for kind in (pa.int64(), pa.string()):
        try:
            return pa.array(values, kind).cast(pa.string())
        except (pa.ArrowTypeError, pa.ArrowInvalid, OverflowError):
            pass
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def _placed(table: pa.Table, log: ReadLog) -> pa.Table:
    """Slices with a name, a start and a duration."""
    placed = pc.fill_null(pc.greater_equal(table["dur_ns"], 0), False)
    for name in ("start_ns", "name"):
        placed = pc.and_(placed, pc.is_valid(table[name]))
    if pc.all(placed).as_py():
        return table
    kept = table.filter(placed)
    _count_lost(log, table.num_rows - kept.num_rows, "slices without name, time or duration")
    return kept


def _count_lost(log: ReadLog, count: int, what: str) -> None:
    if count:
        log.rows_lost += count
        log.warn(f"trace: {what} left out")
