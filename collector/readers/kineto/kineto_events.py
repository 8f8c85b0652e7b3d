"""Kineto's trace events decoded by type, and their times as whole nanoseconds.

What differs from the timelines of Ascend (trace_events): times are numbers, processes and threads
may be names, and the keys of `args` are PyTorch's own. Digits of `ts` never pass through a double.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct, field

from ...model import ReadLog
from ..trace_view import trace_events
from ..trace_view.trace_events import NO_ARGS, Int64, Scalar, mended

_NOTHING = Raw(b"")
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class KinetoEvent(Struct, gc=False):
    """The frame of an event of any phase; `ts` and `dur` in microseconds, `ts` as it is written.

    `ts` and `args` are views into the text that was decoded, which they keep in memory.
    """

    ph: str
    cat: str | None = None
    name: str | None = None
    pid: Int64 | str | None = None
    tid: Int64 | str | None = None
    ts: Raw = _NOTHING
    dur: float | None = None
    args: Raw = NO_ARGS


class _AnyEvent(Struct, gc=False):
    """An event whose fields may be of any type."""

    ph: str
    cat: Raw = _NOTHING
    name: Raw = _NOTHING
    pid: Raw = _NOTHING
    tid: Raw = _NOTHING
    ts: Raw = _NOTHING
    dur: Raw = _NOTHING
    args: Raw = NO_ARGS


class OperatorArgs(Struct, gc=False):
    """Of framework slices."""

    external_id: Int64 | None = field(name="External id", default=None)
    sequence_number: Int64 | None = field(name="Sequence number", default=None)
    forward_thread_id: Int64 | None = field(name="Fwd thread id", default=None)
    input_shapes: Raw = field(name="Input Dims", default=_NOTHING)
    input_dtypes: Raw = field(name="Input type", default=_NOTHING)
    module: str | None = field(name="Module Hierarchy", default=None)
    flops: float | None = None


class StackArgs(OperatorArgs, gc=False):
    """Of framework slices, with their call stacks."""

    call_stack: str | None = field(name="Call stack", default=None)


class CallArgs(Struct, gc=False):
    """Of calls of the GPU's runtime and driver."""

    correlation: Scalar = None
    external_id: Int64 | None = field(name="External id", default=None)


class TaskArgs(Struct, gc=False):
    """Of what ran on the device; the lower half tells a collective."""

    device_id: Int64 | None = field(name="device", default=None)
    stream_id: Int64 | None = field(name="stream", default=None)
    correlation: Scalar = None
    external_id: Int64 | None = field(name="External id", default=None)
    collective: str | None = field(name="Collective name", default=None)
    in_count: Int64 | None = field(name="In msg nelems", default=None)
    out_count: Int64 | None = field(name="Out msg nelems", default=None)
    group_size: Int64 | None = field(name="Group size", default=None)
    data_type: str | None = field(name="dtype", default=None)
    group_name: Scalar = field(name="Process Group Name", default=None)
    group_label: Scalar = field(name="Process Group Description", default=None)
    group_ranks: Raw = field(name="Process Group Ranks", default=_NOTHING)


class MemoryArgs(Struct, gc=False):
    """Of an allocation: the allocator's totals after it. Type 0 of devices is the host."""

    device_type: Int64 | None = field(name="Device Type", default=None)
    device_id: Int64 | None = field(name="Device Id", default=None)
    allocated_bytes: Int64 | None = field(name="Total Allocated", default=None)
    reserved_bytes: Int64 | None = field(name="Total Reserved", default=None)


_EVENTS = msgspec.json.Decoder(list[KinetoEvent])
_EVENT = msgspec.json.Decoder(KinetoEvent)
_ANY_EVENT = msgspec.json.Decoder(_AnyEvent)
_RAWS = msgspec.json.Decoder(list[Raw])
_INTS = msgspec.json.Decoder(list[int])
# A ratio by an unknown number of multiprocessors is written as no JSON can have it.
_NO_NUMBER = re.compile(rb"(?<=[:,\[])\s*[-+]?(?:inf(?:inity)?|nan)\s*(?=[,}\]])", re.I)


def decode_events(text: bytes, log: ReadLog) -> list[KinetoEvent]:
    """Events of a JSON array; ValueError where the array is not whole or holds none.

    Elements that are no events are counted in `log` and left out.
    """
    try:
        return _EVENTS.decode(text)
    except _BROKEN:
        pass
    try:
        raws = _RAWS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        numbers = _NO_NUMBER.sub(b"null", text)
        if numbers == text:
            raise ValueError("no whole array") from error
        return decode_events(numbers, log)
    events = [event for raw in raws if (event := _event(bytes(raw), log)) is not None]
    if raws and not events:  # objects of a list within an event that was torn
        raise ValueError("no trace event")
    if len(events) < len(raws):
        log.rows_lost += len(raws) - len(events)
        log.warn("trace: elements that are not trace events (missing or unknown fields) left out")
    return events


def _event(text: bytes, log: ReadLog) -> KinetoEvent | None:
    for decode in (_EVENT.decode, lambda text: _plain(_ANY_EVENT.decode(text))):
        try:
            try:
                return decode(text)
            except UnicodeDecodeError:
                return decode(mended(text, log))
        except (msgspec.DecodeError, RecursionError):
            pass
    return None


def _plain(event: _AnyEvent) -> KinetoEvent:
    """The event with what is of a foreign type unknown."""
    cat, name, pid, tid, dur = (
        _text(raw) for raw in (event.cat, event.name, event.pid, event.tid, event.dur)
    )
    try:
        known = None if dur is None else float(dur)
    except ValueError:
        known = None
    return KinetoEvent(event.ph, cat, name, pid, tid, event.ts, known, event.args)


def _text(raw: Raw) -> str | None:
    """A JSON scalar as text without quotes; None for a missing one."""
    text = bytes(raw).decode("utf-8", "replace").strip().strip('"')
    return None if text in ("", "null") else text


def instants_ns(values: Sequence[Raw], base_ns: int) -> pa.Array:
    """Numbers of microseconds, or such numbers as text, since `base_ns` as integer ns.

    Digits below one ns are rounded half to even; NULL where there is no number.
    """
    whole = _alike(values)
    if whole is None:
        texts = [_text(value) for value in values]
        whole = trace_events.instants_ns(texts)
    try:
        return pc.add_checked(whole, base_ns)
    except pa.ArrowInvalid:  # nonsense: later than the year 2262
        far = pc.greater(pc.abs(whole), 2**62)
        return pc.add(pc.if_else(far, None, whole), base_ns)


def _alike(values: Sequence[Raw]) -> pa.Array | None:
    """Numbers that all have three decimals, 4415025468133.667: without the point they are ns."""
    lines = b",".join(values)
    if lines.translate(None, b"0123456789.,"):
        return None
    places = np.frombuffer(lines, np.uint8)
    points = np.flatnonzero(places == 46)
    ends = np.append(np.flatnonzero(places == 44), len(places))
    if len(points) != len(values) or len(ends) != len(values) or not (ends - points == 4).all():
        return None
    try:
        return pa.array(_INTS.decode(b"[" + lines.replace(b".", b"") + b"]"), pa.int64())
    except (msgspec.DecodeError, OverflowError):  # 0.500, or too many digits
        return None


def texts(values: Sequence[Raw]) -> pa.Array:
    """JSON as it is written; NULL for what is missing."""
    try:
        found: Sequence[str | None] = b"\x1e".join(values).decode().split("\x1e")
    except UnicodeDecodeError:
        found = ()
    if len(found) != len(values):
        found = [bytes(value).decode("utf-8", "replace") for value in values]
    return pa.array([text or None for text in found], pa.string())
