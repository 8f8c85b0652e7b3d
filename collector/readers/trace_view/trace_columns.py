"""Events of Ascend's timelines as columns: what the timeline reader stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from npuscope.messages import Message

from ...model import ReadLog
from ..chrome_trace.columns import (
    COUNTER,
    PLACE,
    Values,
    arrow_types,
    count_lost,
    drop_unplaced,
    fit_schema,
    gather_counters,
    hints_of,
    is_step,
    numbers,
    put,
    put_slices,
    scalars,
    schema_of,
    with_texts,
    without,
)
from ..chrome_trace.events import (
    NO_ARGS,
    Event,
    Int64,
    LabelArgs,
    Scalar,
    decode_args,
    durations_ns,
    instants_ns,
)
from ..chrome_trace.kept_kinds import KeptEvents, WantedKinds


class HostArgs(Struct, gc=False):
    """Of framework slices."""

    sequence_number: Int64 | None = field(name="Sequence number", default=None)
    forward_thread_id: Int64 | None = field(name="Fwd thread id", default=None)
    input_shapes: str | None = field(name="Input Dims", default=None)
    input_dtypes: str | None = field(name="Input type", default=None)
    module: str | None = field(name="Module Hierarchy", default=None)
    flops: float | None = None
    connection_id: Scalar = field(name="correlation_id", default=None)


class StackArgs(HostArgs, gc=False):
    """Of framework slices, with their call stacks, which are most of some files."""

    call_stack: str | None = field(name="Call stack", default=None)


class SliceArgs(Struct, gc=False):
    """Of CANN, device and communication slices, and of marks: their keys tell the kind."""

    connection_id: Scalar = None
    level: str | None = None
    # a task on the device
    task_type: str | None = field(name="Task Type", default=None)
    task_id: Int64 | None = field(name="Task Id", default=None)
    context_id: Int64 | None = field(name="Subtask Id", default=None)
    model_id: Int64 | None = field(name="Model Id", default=None)
    # a communication operation
    data_type: str | None = None
    algorithm: str | None = field(name="alg_type", default=None)
    element_count: Int64 | None = field(name="count", default=None)
    relay: Scalar = None
    retry: Scalar = None
    group_size: Int64 | None = field(name="rank_size", default=None)
    # a task of one
    plane_task_type: str | None = field(name="task type", default=None)
    plane_stream_id: Int64 | None = field(name="stream id", default=None)
    plane_task_id: Int64 | None = field(name="task id", default=None)
    src_group_rank: Int64 | None = field(name="src rank", default=None)
    dst_group_rank: Int64 | None = field(name="dst rank", default=None)
    transport: str | None = field(name="transport type", default=None)
    link: str | None = field(name="link type", default=None)
    size_bytes: Int64 | None = field(name="size(Byte)", default=None)
    plane_data_type: str | None = field(name="data type", default=None)
    notify_id: Scalar = None
    # a mark
    domain: str | None = None
    event_type: str | None = None


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
_LAST_NS = (1 << 62) - 1

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
_COLUMNS: dict[str, tuple[str, ...]] = {
    **{kind: (*PLACE, *attributes) for kind, attributes in _SLICES.items()},
    "flow": ("category", "side", "id", "pid", "tid", "at_ns"),
    "label": ("label", "pid", "tid", "text"),
    "counter": COUNTER,
    "begun": ("pid",),
}


_HINTS = hints_of(StackArgs, SliceArgs)
# How the framework's texts become those of other sources.
_TEXTS = {
    "input_shapes": without(r" \t\r\n\[\]"),
    "input_dtypes": without(r"\r\n"),
    "call_stack": lambda stacks: pc.replace_substring(without(r"\r")(stacks), ";\n", "\n"),
}
_SCALARS = {name for name, hint in _HINTS.items() if hint == Scalar} | {"id"}
_TYPES = arrow_types(_HINTS)
_HOST = ("kind", *PLACE, *_SLICES["operator"], "connection_id")
_SCHEMAS: dict[str, pa.Schema] = {
    kind: schema_of(columns, _TYPES)
    for kind, columns in (
        ("host", _HOST), ("step", PLACE),
        *((kind, _COLUMNS[kind])
          for kind in ("api", "device", "plane", "other", "flow", "label", "counter")),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceForm:
    """How events become rows, and which are staged besides those that all need."""

    counters: bool = True
    stacks: bool = False

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return _COLUMNS

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return _SCHEMAS

    def gather(self, events: Sequence[Event], values: Values, log: ReadLog) -> None:
        """Events of the framework are told apart by their category, the device's by the keys of
        their args."""
        kinds: dict[str, list[Event]] = defaultdict(list)
        puts: dict[str | None, Callable[[Event], None]]
        puts = {category: kinds[kind].append for category, kind in HOST_KINDS.items()}
        puts |= dict.fromkeys(_FLOWS, kinds["flow"].append)
        take, others = puts.get, kinds["else"].append
        for event in events:
            take(event.cat, others)(event)
        phases: dict[str, list[Event]] = {"X": [], "M": [], "C": [], "B": []}
        puts = {phase: by_kind.append for phase, by_kind in phases.items()}
        take = puts.get
        for event in kinds.pop("else"):
            take(event.ph, _drop)(event)
        for kind in dict.fromkeys(HOST_KINDS.values()):
            rows = [event for event in kinds[kind] if event.ph == "X"]
            if len(rows) < len(kinds[kind]):
                phases["B"] += (event for event in kinds[kind] if event.ph == "B")
            attributes = _SLICES[kind]
            if not self.stacks:
                attributes = tuple(name for name in attributes if name != "call_stack")
            form = StackArgs if self.stacks else HostArgs
            args = decode_args(rows, form, log) if attributes else ()
            put_slices(values[kind], rows, args, attributes)
        put(values["begun"], phases["B"], ("pid",))
        _gather_others(phases["X"], values, log)
        flows = [event for event in kinds["flow"] if event.ph in "sf"]
        put(values["flow"], flows, ("cat", "ph", "id", "pid", "tid", "ts"))
        labels = [event for event in phases["M"] if event.name in _LABELS]
        put(values["label"], labels, ("name", "pid", "tid"))
        for label in decode_args(labels, LabelArgs, log):
            values["label"][3].append(label.name if label.name is not None else label.labels)
        if self.counters and phases["C"]:
            gather_counters(phases["C"], values["counter"], log)

    def kinds(self) -> WantedKinds:
        """The same, for a compiled pass."""
        operator = [c for c in _COLUMNS["operator"] if self.stacks or c != "call_stack"]
        choices = (("task_type", "device"), ("plane_task_type", "plane"), ("level", "api"))
        kinds = {
            "operator": KeptEvents(operator, StackArgs if self.stacks else HostArgs),
            **{kind: KeptEvents(_COLUMNS[kind]) for kind in ("python", "gc")},
            **{kind: KeptEvents(_COLUMNS[kind], HostArgs) for kind in ("enqueue", "dequeue")},
            **{kind: KeptEvents(_COLUMNS[kind], SliceArgs) for kind in ("device", "plane", "api")},
            "other": KeptEvents(_COLUMNS["other"], SliceArgs, bare=OVERLAP_NAMES, choices=choices),
            "flow": KeptEvents(_COLUMNS["flow"]),
            "label": KeptEvents(
                ("label", "pid", "tid", "name", "labels"), LabelArgs, _LABELS,
                or_null=("pid", "tid"),
            ),
            "counter": KeptEvents(COUNTER, or_null=("pid", "name")),
            "begun": KeptEvents(("pid",), or_null=("pid",)),
        }  # fmt: skip
        others = {"X": "other", "M": "label", "B": "begun"} | (
            {"C": "counter"} if self.counters else {}
        )
        of: dict[str | None, Mapping[str, str]] = {None: others, "": others}
        of |= {category: {"X": kind, "B": "begun"} for category, kind in HOST_KINDS.items()}
        of |= {category: {"s": "flow", "f": "flow"} for category in _FLOWS}
        return WantedKinds(kinds, of)

    def column(self, name: str, values: list[Any]) -> pa.Array:
        if name in ("start_ns", "at_ns", "timestamp_ns"):
            return _near(instants_ns(values))
        if name == "dur_ns":
            return _near(durations_ns(values))
        if name in _SCALARS:
            return scalars(values)
        if name in ("pid", "tid"):
            return numbers(values)
        return pa.array(values, _TYPES.get(name, pa.string()))

    def rows(self, kind: str, table: pa.Table, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
        if kind in _SLICES:
            what = "process, thread, name, time or duration"
            yield from _slices(kind, drop_unplaced(table, PLACE, what, log))
        elif kind == "flow":
            rows_with_values = table.drop_null()
            count_lost(
                log,
                table.num_rows - rows_with_values.num_rows,
                Message("flows without id or place"),
            )
            yield kind, rows_with_values
        elif kind == "begun":  # no producer's, but of converted files
            what = Message("slices that begin and end in two events (phases B and E)")
            count_lost(log, table.num_rows, what)
        elif "labels" in table.column_names:
            texts = [table[name].cast(pa.string()) for name in ("name", "labels")]
            yield kind, table.select(range(3)).append_column("text", pc.coalesce(*texts))
        else:
            yield kind, table


def _drop(event: Event) -> None:
    pass


def _gather_others(events: Sequence[Event], values: Values, log: ReadLog) -> None:
    """Slices of CANN, of the device, of communication, and of processes yet to be known."""
    events = [e for e in events if e.args is not NO_ARGS or e.name not in OVERLAP_NAMES]
    by_kind: dict[str, tuple[list[Event], list[SliceArgs]]]
    by_kind = {kind: ([], []) for kind in ("device", "plane", "api", "other")}
    device, plane, api, other = by_kind.values()
    for event, args in zip(events, decode_args(events, SliceArgs, log), strict=True):
        rows, columns_of = (
            device if args.task_type is not None
            else plane if args.plane_task_type is not None
            else api if args.level is not None
            else other
        )  # fmt: skip
        rows.append(event)
        columns_of.append(args)
    for kind, (rows, columns_of) in by_kind.items():
        put_slices(values[kind], rows, columns_of, _SLICES[kind])


def _slices(kind: str, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Slices of a kind without the profiler's steps among them, and these."""
    steps = is_step(table)
    if pc.any(steps).as_py():
        yield "step", table.filter(steps).select(PLACE)
        table = table.filter(pc.invert(steps))
    if kind in _SCHEMAS:
        yield kind, table
    else:
        table = with_texts(table, _TEXTS)
        yield "host", fit_schema(table, _SCHEMAS["host"], "kind", kind)


def _near(times: pa.Array) -> pa.Array:
    """Times with those beyond 146 years as NULL: they are damage, and two of them may not fit 64
    bits together."""
    lowest, highest = (edge.as_py() or 0 for edge in pc.min_max(times).values())
    if -_LAST_NS <= lowest and highest <= _LAST_NS:
        return times
    near = pc.and_(pc.greater_equal(times, -_LAST_NS), pc.less_equal(times, _LAST_NS))
    return pc.if_else(near, times, None)
