"""Decoded Kineto events as Arrow tables, one per kind of event: what its reader stages.

Categories tell the kinds. Those of no use here (flows, whose ends the correlation tells as well;
overheads; what synchronises streams) are passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct, field

from ...model import ReadLog
from ..chrome_trace.columns import (
    COUNTER,
    PLACE,
    Values,
    arrow_types,
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
)
from ..chrome_trace.events import (
    NOTHING,
    Event,
    Int64,
    LabelArgs,
    Scalar,
    decode_args,
    durations_ns,
    instants_ns,
)
from ..chrome_trace.kept_kinds import KeptEvents, WantedKinds


class OperatorArgs(Struct, gc=False):
    """Of framework slices."""

    external_id: Int64 | None = field(name="External id", default=None)
    sequence_number: Int64 | None = field(name="Sequence number", default=None)
    forward_thread_id: Int64 | None = field(name="Fwd thread id", default=None)
    input_shapes: Raw = field(name="Input Dims", default=NOTHING)
    input_dtypes: Raw = field(name="Input type", default=NOTHING)
    module: str | None = field(name="Module Hierarchy", default=None)
    flops: float | None = None


class StackArgs(OperatorArgs, gc=False):
    """Of framework slices, with their call stacks."""

    call_stack: str | None = field(name="Call stack", default=None)


class CallArgs(Struct, gc=False):
    """Of calls of the GPU's runtime and driver."""

    correlation: Scalar = None
    external_id: Int64 | None = field(name="External id", default=None)
    older_external_id: Int64 | None = field(name="external id", default=None)  # torch < 1.13


class TaskArgs(Struct, gc=False):
    """Of what ran on the device; the lower half tells a collective."""

    device_id: Int64 | None = field(name="device", default=None)
    stream_id: Int64 | None = field(name="stream", default=None)
    correlation: Scalar = None
    external_id: Int64 | None = field(name="External id", default=None)
    older_external_id: Int64 | None = field(name="external id", default=None)
    collective: str | None = field(name="Collective name", default=None)
    in_count: Int64 | None = field(name="In msg nelems", default=None)
    out_count: Int64 | None = field(name="Out msg nelems", default=None)
    group_size: Int64 | None = field(name="Group size", default=None)
    data_type: str | None = field(name="dtype", default=None)
    group_name: Scalar = field(name="Process Group Name", default=None)
    group_label: Scalar = field(name="Process Group Description", default=None)
    group_ranks: Raw = field(name="Process Group Ranks", default=NOTHING)


class MemoryArgs(Struct, gc=False):
    """Of an allocation: the allocator's totals after it. Type 0 of devices is the host."""

    device_type: Int64 | None = field(name="Device Type", default=None)
    device_id: Int64 | None = field(name="Device Id", default=None)
    allocated_bytes: Int64 | None = field(name="Total Allocated", default=None)
    reserved_bytes: Int64 | None = field(name="Total Reserved", default=None)


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
    "cpu_instant_event": "instant",  # older traces give them no category
}  # fmt: skip
_HOST = {"operator": "operator", "annotation": "operator", "python": "python"}
_DEVICE = frozenset({"kernel", "copy", "fill"})

_OPERATOR = (
    "external_id", "sequence_number", "forward_thread_id", "input_shapes", "input_dtypes",
    "module", "flops", "call_stack",
)  # fmt: skip
_CALL = ("correlation", "external_id", "older_external_id")
_TASK = (
    "device_id", "stream_id", "correlation", "external_id", "older_external_id", "collective",
    "in_count", "out_count", "group_size", "data_type", "group_name", "group_label", "group_ranks",
)  # fmt: skip
_MEMORY = ("device_type", "device_id", "allocated_bytes", "reserved_bytes")
# Columns of each kind of values; those behind the place are attributes of its args.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "operator": (*PLACE, *_OPERATOR),
    "annotation": (*PLACE, *_OPERATOR),
    "python": PLACE,
    "api": (*PLACE, *_CALL),
    **dict.fromkeys(("kernel", "copy", "fill"), (*PLACE, *_TASK)),
    "step": PLACE,
    "range": PLACE,
    "memory": ("timestamp_ns", *_MEMORY),
    "counter": COUNTER,
    "label": ("pid", "text"),
}
_HINTS = hints_of(StackArgs, CallArgs, TaskArgs, MemoryArgs)
_JSON = frozenset(name for name, hint in _HINTS.items() if hint is Raw)
_SCALARS = frozenset(name for name, hint in _HINTS.items() if hint == Scalar)
_TYPES = arrow_types(_HINTS)
_SCHEMAS: dict[str, pa.Schema] = {
    "host": schema_of(("kind", *_COLUMNS["operator"]), _TYPES),
    "device": schema_of(("category", *_COLUMNS["kernel"]), _TYPES),
    **{kind: schema_of(_COLUMNS[kind], _TYPES)
       for kind in ("api", "step", "range", "memory", "counter", "label")},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KinetoForm:
    """How events of one file become rows: their instants count from `base_ns`."""

    base_ns: int = 0
    counters: bool = True
    stacks: bool = False

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return _COLUMNS

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return _SCHEMAS

    def gather(self, events: Sequence[Event], values: Values, log: ReadLog) -> None:
        by_kind: dict[str, list[Event]] = defaultdict(list)
        puts: dict[str | None, Callable[[Event], None]]
        puts = {category: by_kind[kind].append for category, kind in KINDS.items()}
        puts[None] = by_kind["else"].append
        passed: list[Event] = []
        take, pass_over = puts.get, passed.append
        for event in events:
            take(event.cat, pass_over)(event)
        self._gather_host(by_kind, values, log)
        for kind in _DEVICE:
            rows = by_kind[kind]
            put_slices(values[kind], rows, decode_args(rows, TaskArgs, log), _TASK)
        put_slices(values["range"], by_kind["range"])
        instants = (*by_kind["instant"], *(e for e in by_kind["else"] if e.ph == "i"))
        totals = [e for e in instants if e.name == "[memory]"]
        put(values["memory"][:1], totals, ("ts",))
        put(values["memory"][1:], decode_args(totals, MemoryArgs, log), _MEMORY)
        labels = [e for e in by_kind["else"] if e.ph == "M" and e.name == "process_labels"]
        put(values["label"][:1], labels, ("pid",))
        put(values["label"][1:], decode_args(labels, LabelArgs, log), ("labels",))
        if self.counters:
            counters = [e for e in (*by_kind["else"], *passed) if e.ph == "C"]
            gather_counters(counters, values["counter"], log)

    def _gather_host(self, events: Mapping[str, list[Event]], values: Values, log: ReadLog) -> None:
        shape = StackArgs if self.stacks else OperatorArgs
        columns = _OPERATOR if self.stacks else _OPERATOR[:-1]
        for kind in ("operator", "annotation"):
            rows = [e for e in events[kind] if e.ph == "X"]
            put_slices(values[kind], rows, decode_args(rows, shape, log), columns)
        put_slices(values["python"], [e for e in events["python"] if e.ph == "X"])
        calls = [e for e in events["api"] if e.ph == "X"]
        args = decode_args(calls, CallArgs, log)
        put_slices(values["api"], calls, args, _CALL)

    def kinds(self) -> WantedKinds:
        """The same, for a compiled pass."""
        place = ("pid", "tid")
        operator = KeptEvents(
            [c for c in _COLUMNS["operator"] if self.stacks or c != "call_stack"],
            StackArgs if self.stacks else OperatorArgs, or_null=place,
        )  # fmt: skip
        kinds = {
            "operator": operator,
            "annotation": operator,
            "python": KeptEvents(PLACE, or_null=place),
            "api": KeptEvents(_COLUMNS["api"], CallArgs, or_null=place),
            **dict.fromkeys(_DEVICE, KeptEvents(_COLUMNS["kernel"], TaskArgs, or_null=place)),
            "range": KeptEvents(PLACE, or_null=place),
            "memory": KeptEvents(_COLUMNS["memory"], MemoryArgs, only=("[memory]",)),
            "label": KeptEvents(("pid", "labels"), LabelArgs, ("process_labels",), or_null=place),
            "counter": KeptEvents(COUNTER, or_null=("pid", "name")),
        }
        counters = {"C": "counter"} if self.counters else {}
        of: dict[str | None, Mapping[str, str]] = {
            category: {"X": kind} if kind in (*_HOST, "api")
            else {"i": "memory", "*": ""} if kind == "instant"
            else {"X": kind, "*": ""}
            for category, kind in KINDS.items()
        }  # fmt: skip
        of |= {None: {"M": "label", "i": "memory", **counters}, "": counters}
        return WantedKinds(kinds, of, self.base_ns)

    def column(self, name: str, values: list[Any]) -> pa.Array:
        if name in ("start_ns", "timestamp_ns"):
            return instants_ns(values, self.base_ns)
        if name == "dur_ns":
            return durations_ns(values)
        if name in _JSON:
            return _texts(values)
        if name in _SCALARS:
            return scalars(values)
        if name in ("pid", "tid"):
            return numbers(values)
        return pa.array(values, _TYPES.get(name, pa.string()))

    def rows(self, kind: str, table: pa.Table, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
        if kind == "range":
            table = table.filter(is_step(table))
        if "start_ns" in table.column_names:
            table = drop_unplaced(table, ("start_ns", "name"), "name, time or duration", log)
        if kind in ("annotation", "operator"):  # torch < 1.11 has steps among operators
            steps = is_step(table)
            yield "step", table.filter(steps).select(PLACE)
            table = table.filter(pc.invert(steps))
        if kind in _HOST:
            yield "host", fit_schema(table, _SCHEMAS["host"], "kind", _HOST[kind])
        elif kind in _DEVICE:
            yield "device", fit_schema(table, _SCHEMAS["device"], "category", kind)
        elif kind == "memory":
            is_device = pc.if_else(
                pc.is_valid(table["device_type"]),
                pc.not_equal(table["device_type"], 0),
                pc.greater_equal(pc.fill_null(table["device_id"], 0), 0),
            )
            yield kind, table.filter(is_device)  # the host's totals are no device memory
        elif kind == "label":
            yield kind, table.rename_columns(["pid", "text"])
        else:
            yield kind, table


def _texts(values: Sequence[Raw]) -> pa.Array:
    """JSON as it is written; NULL for what is missing."""
    try:
        texts: Sequence[str | None] = b"\x1e".join(values).decode().split("\x1e")
    except UnicodeDecodeError:
        texts = ()
    if len(texts) != len(values):
        texts = [bytes(value).decode("utf-8", "replace") for value in values]
    return pa.array([text or None for text in texts], pa.string())
