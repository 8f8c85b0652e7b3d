"""Decoded trace events as Arrow tables, one per kind of event: what the timeline reader stages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct

from ..model import ReadLog
from .trace_events import (
    Event,
    HostArgs,
    Int64,
    LabelArgs,
    SliceArgs,
    decode_args,
    decode_series,
    nanoseconds,
    texts,
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
_HOST_KINDS = tuple(dict.fromkeys(HOST_KINDS.values()))
_LABELS = frozenset({"process_name", "process_labels", "thread_name"})
_FLOWS = frozenset({"HostToDevice", "async_npu", "MsTx"})
_ACCELERATOR = "acc_id"  # an argument of counters that is a label, not a series
_STEP = re.compile(r"ProfilerStep#\d+")

# Columns of each staged kind besides pid, tid, start_ns, dur_ns, name: attributes of its args.
_API = ("level", "connection_id")
_DEVICE = ("task_type", "task_id", "context_id", "model_id", "connection_id")
_PLANE = (
    "plane_task_type", "plane_stream_id", "plane_task_id", "src_group_rank", "dst_group_rank",
    "transport", "link", "size_bytes", "plane_data_type", "notify_id",
)  # fmt: skip
_OTHER = (
    "data_type", "algorithm", "element_count", "relay", "retry", "group_size", "connection_id",
    "domain", "event_type",
)  # fmt: skip
_OPERATOR = (
    "sequence_number", "forward_thread_id", "input_shapes", "input_dtypes", "call_stack", "module",
    "flops",
)  # fmt: skip
_QUEUE = ("connection_id",)
_SLICE_COLUMNS: dict[str, tuple[str, ...]] = {
    "device": _DEVICE, "plane": _PLANE, "api": _API, "other": _OTHER,
    "operator": _OPERATOR, "enqueue": _QUEUE, "dequeue": _QUEUE, "python": (), "gc": (), "step": (),
}  # fmt: skip


def _arrow_types(kind: type[Struct]) -> dict[str, pa.DataType]:
    number = {Int64 | None: pa.int64(), float | None: pa.float64()}
    hints = get_type_hints(kind, include_extras=True)
    return {name: number.get(hint, pa.string()) for name, hint in hints.items()}


_TYPES = _arrow_types(HostArgs) | _arrow_types(SliceArgs)
_NO_HOST = pa.table({name: pa.array([], _TYPES[name]) for name in (*_OPERATOR, *_QUEUE)})


def columns(events: Iterable[Event], log: ReadLog, *, counters: bool) -> dict[str, pa.Table]:
    """Tables by kind: host, step, api, device, plane, other, flow, label, counter.

    Slices without a place or a duration are counted in `log` and left out; kinds without events
    too.
    """
    phases: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        phases[event.ph].append(event)
    found = _slice_tables(phases["X"], log)
    flows = [e for side in "sf" for e in phases[side] if e.cat in _FLOWS]
    found["flow"] = _flow_table(flows, log)
    labels = [e for e in phases["M"] if e.name in _LABELS]
    found["label"] = _label_table(labels, log)
    if counters:
        found["counter"] = _counter_table(phases["C"], log)
    return {kind: table for kind, table in found.items() if table.num_rows}


def _slice_tables(events: Sequence[Event], log: ReadLog) -> dict[str, pa.Table]:
    """Slices by kind: those of the framework by category, the others by the keys of their args.

    Places are read for all kinds at once, in the order of kinds, and then sliced: many small
    columns cost more than one long one.
    """
    rows: dict[str, list[Event]] = {kind: [] for kind in ("step", *_HOST_KINDS)}
    args: dict[str, list[Struct]] = {}
    others: list[Event] = []
    for event in events:
        kind = HOST_KINDS.get(event.cat) if event.cat else None
        if event.name and event.name.startswith("ProfilerStep#") and _STEP.fullmatch(event.name):
            rows["step"].append(event)
        elif kind is None:
            others.append(event)
        else:
            rows[kind].append(event)
    for kind in _HOST_KINDS:
        args[kind] = decode_args(rows[kind], HostArgs, log) if _SLICE_COLUMNS[kind] else []
    for kind in ("device", "plane", "api", "other"):
        rows[kind], args[kind] = [], []
    for event, told in zip(others, decode_args(others, SliceArgs, log), strict=True):
        kind = _slice_kind(told)
        rows[kind].append(event)
        args[kind].append(told)
    frame, placed = _frame([event for kind in rows for event in rows[kind]])
    found, begin, lost = {}, 0, 0
    for kind in rows:
        table = frame.slice(begin, len(rows[kind]))
        for name in _SLICE_COLUMNS[kind] if rows[kind] else ():
            table = table.append_column(name, _column(name, args[kind]))
        if placed is not None:
            table = table.filter(placed.slice(begin, len(rows[kind])))
        begin += len(rows[kind])
        lost += len(rows[kind]) - table.num_rows
        found[kind] = table
    _count_lost(log, lost, "slices without process, thread, name, time or duration")
    hosts = [
        found[kind].append_column("kind", pa.repeat(kind, found.pop(kind).num_rows))
        for kind in _HOST_KINDS
    ]
    found["host"] = pa.concat_tables([_NO_HOST, *hosts], promote_options="default")
    return found


def _slice_kind(args: SliceArgs) -> str:
    if args.task_type is not None:
        return "device"
    if args.plane_task_type is not None:
        return "plane"
    return "api" if args.level is not None else "other"


def _frame(events: Sequence[Event]) -> tuple[pa.Table, pa.Array | None]:
    """Places and names of slices, and which of them are complete (None: all)."""
    table = pa.table(
        {
            "pid": pa.array([e.pid for e in events], pa.int64()),
            "tid": pa.array([e.tid for e in events], pa.int64()),
            "start_ns": nanoseconds([e.ts for e in events]),
            "dur_ns": nanoseconds([e.dur for e in events]),
            "name": pa.array([e.name for e in events], pa.string()),
        }
    )
    placed = pc.greater_equal(table["dur_ns"], 0)
    if not any(column.null_count for column in table.columns) and pc.all(placed).as_py():
        return table, None
    for column in table.columns:
        placed = pc.and_(pc.fill_null(placed, False), pc.is_valid(column))
    return table, placed


def _count_lost(log: ReadLog, count: int, what: str) -> None:
    if count:
        log.rows_lost += count
        log.warn(f"trace: {what} left out")


def _column(name: str, args: Sequence[Struct]) -> pa.Array:
    """One attribute of the args: text of JSON scalars, numbers, strings."""
    values = list(map(attrgetter(name), args))
    return texts(values) if isinstance(values[0], Raw) else pa.array(values, _TYPES[name])


def _flow_table(events: Sequence[Event], log: ReadLog) -> pa.Table:
    """Ends of arrows: `side` s where one starts, f where one ends."""
    table = pa.table(
        {
            "category": pa.array([e.cat for e in events], pa.string()),
            "side": pa.array([e.ph for e in events], pa.string()),
            "id": texts([e.id for e in events]),
            "pid": pa.array([e.pid for e in events], pa.int64()),
            "tid": pa.array([e.tid for e in events], pa.int64()),
            "at_ns": nanoseconds([e.ts for e in events]),
        }
    )
    kept = table.drop_null()
    _count_lost(log, table.num_rows - kept.num_rows, "flows without id or place")
    return kept


def _label_table(events: Sequence[Event], log: ReadLog) -> pa.Table:
    """Names of processes and threads."""
    labels = decode_args(events, LabelArgs, log)
    return pa.table(
        {
            "label": pa.array([e.name for e in events], pa.string()),
            "pid": pa.array([e.pid for e in events], pa.int64()),
            "tid": pa.array([e.tid for e in events], pa.int64()),
            "value": pa.array([a.name if a.name is not None else a.labels for a in labels],
                              pa.string()),
        }
    )  # fmt: skip


def _counter_table(events: Sequence[Event], log: ReadLog) -> pa.Table:
    """One row per counter, series and instant. Accelerators that share a counter are its series."""
    table = pa.table(
        {
            "pid": pa.array([e.pid for e in events], pa.int64()),
            "name": pa.array([e.name for e in events], pa.string()),
            "timestamp_ns": nanoseconds([e.ts for e in events]),
        }
    )
    decoded = decode_series(events, log)
    accelerators = pa.array([series.pop(_ACCELERATOR, None) for series in decoded], pa.float64())
    if set(map(len, decoded)) != {1}:
        places = pa.array([i for i, series in enumerate(decoded) for _ in series], pa.int64())
        table, accelerators = table.take(places), accelerators.take(places)
    series = pa.array(list(chain.from_iterable(decoded)), pa.string())
    if accelerators.null_count < len(accelerators):
        acc = pc.binary_join_element_wise("acc", pc.round(accelerators).cast(pa.string()), " ")
        other = pc.binary_join_element_wise(series, acc, " ")
        series = pc.coalesce(pc.if_else(pc.equal(series, "value"), acc, other), series)
    values = list(chain.from_iterable(map(dict.values, decoded)))
    table = table.append_column("series", series)
    table = table.append_column("value", pa.array(values, pa.float64()))
    kept = table.filter(pc.and_(table["timestamp_ns"].is_valid(), table["value"].is_valid()))
    _count_lost(log, table.num_rows - kept.num_rows, "counters without time or value")
    return kept
