"""Decoded trace events as Arrow tables, one per kind of event: what the timeline reader stages.

    events -> gather: lists of values per kind and column -> tables: Arrow

Events are taken apart while they are still in the processor's cache, so a few hundred kilobytes of
the file at a time; their values wait until there are enough of them to pay for Arrow's calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ...model import ReadLog
from .trace_events import (
    NO_ARGS,
    Event,
    HostArgs,
    Int64,
    LabelArgs,
    Scalar,
    SliceArgs,
    StackArgs,
    decode_args,
    decode_series,
    durations_ns,
    instants_ns,
)

# Categories that the framework gives its slices, and the kind of host row each is.
HOST_KINDS = {
    "cpu_op": "operator",
    "user_annotation": "operator",
    "python_function": "python",
    "enqueue": "enqueue",
    "dequeue": "dequeue",
    "GC": "gc",
    "gc": "gc",
}
# Slices of the process "Overlap Analysis", the profiler's own sums: nothing here is made of them.
OVERLAP_NAMES = frozenset({"Computing", "Communication", "Communication(Not Overlapped)", "Free"})
_LABELS = frozenset({"process_name", "process_labels", "thread_name"})
_FLOWS = ("HostToDevice", "async_npu", "MsTx")
_ACCELERATOR = "acc_id"  # an argument of counters that is a label, not a series
_LAST_NS = (1 << 62) - 1
_STEP = r"^ProfilerStep#\d+$"

# Columns of each kind of slice besides its place: attributes of its args.
_SLICES: dict[str, tuple[str, ...]] = {
    "operator": (
        "sequence_number", "forward_thread_id", "input_shapes", "input_dtypes", "module", "flops",
        "call_stack",
    ),
    "python": (), "gc": (), "enqueue": ("connection_id",), "dequeue": ("connection_id",),
    "api": ("level", "connection_id"),
    "device": ("task_type", "task_id", "context_id", "model_id", "connection_id"),
    "plane": (
        "plane_task_type", "plane_stream_id", "plane_task_id", "src_group_rank", "dst_group_rank",
        "transport", "link", "size_bytes", "plane_data_type", "notify_id",
    ),
    "other": (
        "data_type", "algorithm", "element_count", "relay", "retry", "group_size",
        "connection_id", "domain", "event_type",
    ),
}  # fmt: skip
_PLACE = ("pid", "tid", "start_ns", "dur_ns", "name")
_COLUMNS: dict[str, tuple[str, ...]] = {
    **{kind: (*_PLACE, *attributes) for kind, attributes in _SLICES.items()},
    "flow": ("category", "side", "id", "pid", "tid", "at_ns"),
    "label": ("label", "pid", "tid", "text"),
    "counter": ("pid", "name", "timestamp_ns", "series", "value"),
}

# Values of events that wait to become columns: kind -> one list per column of `_COLUMNS`.
Values = dict[str, list[list[Any]]]


def _arrow_types(kind: type[Struct]) -> dict[str, pa.DataType]:
    number = {Int64 | None: pa.int64(), float | None: pa.float64()}
    hints = get_type_hints(kind, include_extras=True)
    return {name: number.get(hint, pa.string()) for name, hint in hints.items()}


_SCALARS = {
    name
    for kind in (HostArgs, SliceArgs)
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if hint == Scalar
} | {"id"}
_TYPES: dict[str, pa.DataType] = {
    **_arrow_types(StackArgs), **_arrow_types(SliceArgs),
    **dict.fromkeys(("pid", "tid", "start_ns", "dur_ns", "at_ns", "timestamp_ns"), pa.int64()),
    **dict.fromkeys(("name", "category", "side", "id", "label", "series", "kind"), pa.string()),
    "value": pa.float64(),
}  # fmt: skip
_HOST = ("kind", *_PLACE, *_SLICES["operator"], "connection_id")
# What `tables` makes.
SCHEMAS: dict[str, pa.Schema] = {
    kind: pa.schema([(name, _TYPES.get(name, pa.string())) for name in columns])
    for kind, columns in (
        ("host", _HOST), ("step", _PLACE),
        *((kind, _COLUMNS[kind]) for kind in ("api", "device", "plane", "other", "flow", "label")),
    )
} | {
    "counter": pa.schema(
        [("pid", pa.int64()), ("name", pa.string()), ("series", pa.string()),
         ("timestamp_ns", pa.int64()), ("value", pa.float64())]
    )
}  # fmt: skip


def no_values() -> Values:
    """Nothing gathered yet."""
    return {kind: [[] for _ in columns] for kind, columns in _COLUMNS.items()}


def waiting(values: Values) -> int:
    """Events that wait."""
    return sum(len(columns[0]) for columns in values.values())


def gather(
    events: Sequence[Event], values: Values, log: ReadLog, *, counters: bool, stacks: bool
) -> None:
    """Add the values of a piece's events to those that wait; the events may go afterwards.

    Events of the framework are told apart by their category, the device's by the keys of their
    args.
    """
    kinds: dict[str, list[Event]] = defaultdict(list)
    puts: dict[str | None, Callable[[Event], None]]
    puts = {category: kinds[kind].append for category, kind in HOST_KINDS.items()}
    puts |= dict.fromkeys(_FLOWS, kinds["flow"].append)
    put, others = puts.get, kinds["else"].append
    for event in events:
        put(event.cat, others)(event)
    phases: dict[str, list[Event]] = {"X": [], "M": [], "C": []}
    puts = {phase: found.append for phase, found in phases.items()}
    put = puts.get
    for event in kinds.pop("else"):
        put(event.ph, _drop)(event)
    for kind in dict.fromkeys(HOST_KINDS.values()):
        rows = [event for event in kinds[kind] if event.ph == "X"]
        attributes = _SLICES[kind]
        if not stacks:
            attributes = tuple(name for name in attributes if name != "call_stack")
        told = decode_args(rows, StackArgs if stacks else HostArgs, log) if attributes else ()
        _put_slices(values[kind], rows, told, attributes)
    _gather_others(phases["X"], values, log)
    flows = [event for event in kinds["flow"] if event.ph in "sf"]
    _put(values["flow"], flows, ("cat", "ph", "id", "pid", "tid", "ts"))
    labels = [event for event in phases["M"] if event.name in _LABELS]
    _put(values["label"], labels, ("name", "pid", "tid"))
    for args in decode_args(labels, LabelArgs, log):
        values["label"][3].append(args.name if args.name is not None else args.labels)
    if counters and phases["C"]:
        _gather_counters(phases["C"], values["counter"], log)


def _drop(event: Event) -> None:
    pass


def _gather_others(events: Sequence[Event], values: Values, log: ReadLog) -> None:
    """Slices of CANN, of the device, of communication, and of processes yet to be known."""
    events = [e for e in events if e.args is not NO_ARGS or e.name not in OVERLAP_NAMES]
    found: dict[str, tuple[list[Event], list[SliceArgs]]]
    found = {kind: ([], []) for kind in ("device", "plane", "api", "other")}
    device, plane, api, other = found.values()
    for event, args in zip(events, decode_args(events, SliceArgs, log), strict=True):
        rows, told = (
            device if args.task_type is not None
            else plane if args.plane_task_type is not None
            else api if args.level is not None
            else other
        )  # fmt: skip
        rows.append(event)
        told.append(args)
    for kind, (rows, told) in found.items():
        _put_slices(values[kind], rows, told, _SLICES[kind])


def _put_slices(
    columns: list[list[Any]],
    events: Sequence[Event],
    args: Sequence[Struct],
    attributes: Sequence[str],
) -> None:
    pids, tids, starts, durations, names, *rest = columns
    pids += [event.pid for event in events]
    tids += [event.tid for event in events]
    starts += [event.ts for event in events]
    durations += [event.dur for event in events]
    names += [event.name for event in events]
    _put(rest, args, attributes)


def _put(columns: list[list[Any]], rows: Sequence[Struct], attributes: Sequence[str]) -> None:
    for column, attribute in zip(columns, attributes, strict=False):
        column.extend(map(attrgetter(attribute), rows))


def _gather_counters(events: Sequence[Event], columns: list[list[Any]], log: ReadLog) -> None:
    """One row per counter, series and instant. Accelerators that share a counter are its series."""
    told = decode_series(events, log)
    accelerators = [series.pop(_ACCELERATOR, None) for series in told]
    if not all(len(series) == 1 for series in told):
        places = [place for place, series in enumerate(told) for _ in series]
        events = [events[place] for place in places]
        accelerators = [accelerators[place] for place in places]
    pids, names, instants, series_names, values = columns
    pids += [event.pid for event in events]
    names += [event.name for event in events]
    instants += [event.ts for event in events]
    series_names += map(_series_name, chain.from_iterable(told), accelerators)
    values += chain.from_iterable([series.values() for series in told])


@lru_cache(maxsize=4096)
def _series_name(name: str, accelerator: float | None) -> str:
    if accelerator is None:
        return name
    label = f"acc {accelerator:.0f}"
    return label if name == "value" else f"{name} {label}"


def tables(values: Values, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
    """What was gathered as tables of `SCHEMAS`, several of one kind; nothing waits afterwards.

    Rows without a place or a duration are counted in `log` and left out.
    """
    for kind, lists in values.items():
        if not lists[0]:
            continue
        columns = zip(_COLUMNS[kind], lists, strict=True)
        table = pa.table({name: _column(name, column) for name, column in columns if column})
        for column in lists:
            column.clear()
        if kind in _SLICES:
            yield from _slices(kind, _placed(table, log))
        elif kind == "flow":
            kept = table.drop_null()
            _count_lost(log, table.num_rows - kept.num_rows, "flows without id or place")
            yield kind, kept
        elif kind == "counter":
            kept = table.filter(pc.and_(pc.is_valid(table[2]), pc.is_valid(table[4])))
            _count_lost(log, table.num_rows - kept.num_rows, "counters without time or value")
            yield kind, kept.select(SCHEMAS[kind].names)
        else:
            yield kind, table


def _slices(kind: str, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Slices of a kind without the profiler's steps among them, and these."""
    if pc.any(pc.starts_with(table["name"], "ProfilerStep#")).as_py():
        is_step = pc.match_substring_regex(table["name"], _STEP)
        yield "step", table.filter(is_step).select(_PLACE)
        table = table.filter(pc.invert(is_step))
    if kind in SCHEMAS:
        yield kind, table
        return
    known = set(table.column_names)
    rows = table.num_rows
    yield "host", pa.table(
        [
            pa.repeat(kind, rows) if name == "kind"
            else table[name] if name in known
            else pa.nulls(rows, _TYPES.get(name, pa.string()))
            for name in _HOST
        ],
        schema=SCHEMAS["host"],
    )  # fmt: skip


def _column(name: str, values: list[Any]) -> pa.Array:
    if name in ("start_ns", "at_ns", "timestamp_ns"):
        return _near(instants_ns(values))
    if name == "dur_ns":
        return _near(durations_ns(values))
    if name in _SCALARS:
        return _texts(values)
    return pa.array(values, _TYPES.get(name, pa.string()))


def _near(times: pa.Array) -> pa.Array:
    """Times with those beyond 146 years as NULL: they are damage, and two of them may not fit 64
    bits together."""
    lowest, highest = (edge.as_py() or 0 for edge in pc.min_max(times).values())
    if -_LAST_NS <= lowest and highest <= _LAST_NS:
        return times
    near = pc.and_(pc.greater_equal(times, -_LAST_NS), pc.less_equal(times, _LAST_NS))
    return pc.if_else(near, times, None)


def _texts(values: list[Any]) -> pa.Array:
    """Scalars as text."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        pass
    try:
        return pa.array(values, pa.int64()).cast(pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid, OverflowError):
        return pa.array([None if v is None else str(v) for v in values], pa.string())


def _placed(table: pa.Table, log: ReadLog) -> pa.Table:
    """Slices with their place, name and duration."""
    placed = pc.greater_equal(table["dur_ns"], 0)
    places = [table[name] for name in _PLACE]
    if not any(column.null_count for column in places) and pc.all(placed).as_py():
        return table
    for column in places:
        placed = pc.and_(pc.fill_null(placed, False), pc.is_valid(column))
    kept = table.filter(placed)
    _count_lost(
        log,
        table.num_rows - kept.num_rows,
        "slices without process, thread, name, time or duration",
    )
    return kept


def _count_lost(log: ReadLog, count: int, what: str) -> None:
    if count:
        log.rows_lost += count
        log.warn(f"trace: {what} left out")
