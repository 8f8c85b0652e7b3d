"""Decoded trace events as Arrow tables, one per kind of event: what the timeline reader stages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
_HOST = (
    "sequence_number", "forward_thread_id", "input_shapes", "input_dtypes", "call_stack", "module",
    "flops", "connection_id",
)  # fmt: skip


def _arrow_types(kind: type[Struct]) -> dict[str, pa.DataType]:
    number = {Int64 | None: pa.int64(), float | None: pa.float64()}
    hints = get_type_hints(kind, include_extras=True)
    return {name: number.get(hint, pa.string()) for name, hint in hints.items()}


_TYPES = _arrow_types(HostArgs) | _arrow_types(SliceArgs)
_NO_HOST = pa.table({name: pa.array([], _TYPES[name]) for name in _HOST})


def columns(events: Iterable[Event], log: ReadLog, *, counters: bool) -> dict[str, pa.Table]:
    """Tables by kind: host, step, api, device, plane, other, flow, label, counter.

    Slices without a place or a duration are counted in `log` and left out; kinds without events
    too.
    """
    phases: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        phases[event.ph].append(event)
    host: dict[str, list[Event]] = defaultdict(list)
    slices: list[Event] = []
    for event in phases["X"]:
        kind = HOST_KINDS.get(event.cat) if event.cat else None
        if event.name and event.name.startswith("ProfilerStep#") and _STEP.fullmatch(event.name):
            host["step"].append(event)
        elif kind is None:
            slices.append(event)
        else:
            host[kind].append(event)
    found = _slice_tables(slices, log)
    found["step"] = _frames(host.pop("step", []), log)
    found["host"] = pa.concat_tables(
        [_NO_HOST, *(_host_table(kind, rows, log) for kind, rows in host.items())],
        promote_options="default",
    )
    found["flow"] = _flow_table([e for side in "sf" for e in phases[side] if e.cat in _FLOWS], log)
    found["label"] = _label_table(
        [e for e in phases["M"] if e.name in ("process_name", "process_labels", "thread_name")], log
    )
    if counters:
        found["counter"] = _counter_table(phases["C"], log)
    return {kind: table for kind, table in found.items() if table.num_rows}


def _frames(
    events: Sequence[Event], log: ReadLog, args: Sequence[Struct] = (), names: Sequence[str] = ()
) -> pa.Table:
    """Place and name of slices, and the named columns of their args."""
    table = pa.table(
        {
            "pid": pa.array([e.pid for e in events], pa.int64()),
            "tid": pa.array([e.tid for e in events], pa.int64()),
            "start_ns": nanoseconds([e.ts for e in events]),
            "dur_ns": nanoseconds([e.dur for e in events]),
            "name": pa.array([e.name for e in events], pa.string()),
            **{name: _column(name, args) for name in names},
        }
    )
    placed = pc.greater_equal(table["dur_ns"], 0)
    for name in ("pid", "tid", "start_ns", "name"):
        placed = pc.and_(placed, pc.is_valid(table[name]))
    return _kept(table, placed, log, "slices without process, thread, name, time or duration")


def _kept(table: pa.Table, mask: pa.Array, log: ReadLog, what: str) -> pa.Table:
    kept = table.filter(mask)
    if kept.num_rows < table.num_rows:
        log.rows_lost += table.num_rows - kept.num_rows
        log.warn(f"trace: {what} left out")
    return kept


def _column(name: str, args: Sequence[Struct]) -> pa.Array:
    """One attribute of the args: text of JSON scalars, numbers, strings."""
    values = [getattr(a, name) for a in args]
    return (
        texts(values) if values and isinstance(values[0], Raw) else pa.array(values, _TYPES[name])
    )


def _host_table(kind: str, events: Sequence[Event], log: ReadLog) -> pa.Table:
    if kind in ("python", "gc"):
        table = _frames(events, log)
    else:
        table = _frames(events, log, decode_args(events, HostArgs, log), _HOST)
    return table.append_column("kind", pa.repeat(kind, table.num_rows))


def _slice_tables(events: Sequence[Event], log: ReadLog) -> dict[str, pa.Table]:
    """Slices of CANN, the device and communication, told apart by the keys of their args."""
    kinds: dict[str, tuple[list[Event], list[SliceArgs]]] = {
        kind: ([], []) for kind in ("device", "plane", "api", "other")
    }
    for event, args in zip(events, decode_args(events, SliceArgs, log), strict=True):
        if args.task_type is not None:
            rows = kinds["device"]
        elif args.plane_task_type is not None:
            rows = kinds["plane"]
        elif args.level is not None:
            rows = kinds["api"]
        else:
            rows = kinds["other"]
        rows[0].append(event)
        rows[1].append(args)
    wanted = {"device": _DEVICE, "plane": _PLANE, "api": _API, "other": _OTHER}
    return {kind: _frames(*rows[:1], log, rows[1], wanted[kind]) for kind, rows in kinds.items()}


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
    placed = pc.is_valid(table["id"])
    for name in ("pid", "tid", "at_ns"):
        placed = pc.and_(placed, pc.is_valid(table[name]))
    return _kept(table, placed, log, "flows without id or place")


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
    table = table.append_column("accelerator", accelerators)
    if set(map(len, decoded)) != {1}:
        places = [i for i, series in enumerate(decoded) for _ in series]
        table = table.take(pa.array(places, pa.int64()))
    keys = pa.array([key for series in decoded for key in series], pa.string())
    acc = pc.binary_join_element_wise("acc", pc.round(table["accelerator"]).cast(pa.string()), " ")
    label = pc.if_else(pc.equal(keys, "value"), acc, pc.binary_join_element_wise(keys, acc, " "))
    table = table.drop_columns("accelerator").append_column("series", pc.coalesce(label, keys))
    values = pa.array([v for series in decoded for v in series.values()], pa.float64())
    table = table.append_column("value", values)
    told = pc.and_(pc.is_valid(table["timestamp_ns"]), pc.is_valid(table["value"]))
    return _kept(table, told, log, "counters without time or value")
