"""Chrome-trace events decoded by type, as Arrow tables of integers and text.

An event is decoded in two steps: its frame at once, its `args` (text until then) together with
those of its kind. Digits of `ts` and `dur` never pass through a double: at today's epoch it keeps
0.25 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from types import GenericAlias
from typing import Annotated, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct, field

from ..model import ReadLog

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Args = TypeVar("Args", bound=Struct)
_NOTHING = Raw(b"")
_NO_ARGS = Raw(b"{}")


class Event(Struct, gc=False):
    """The frame of an event of any phase."""

    ph: str
    name: str | None = None
    pid: Int64 | None = None
    tid: Int64 | None = None
    ts: Raw = _NOTHING
    dur: Raw = _NOTHING
    cat: str | None = None
    id: Raw = _NOTHING
    args: Raw = _NO_ARGS


class HostArgs(Struct, gc=False):
    """Of framework slices."""

    sequence_number: Int64 | None = field(name="Sequence number", default=None)
    forward_thread_id: Int64 | None = field(name="Fwd thread id", default=None)
    input_shapes: str | None = field(name="Input Dims", default=None)
    input_dtypes: str | None = field(name="Input type", default=None)
    call_stack: str | None = field(name="Call stack", default=None)
    module: str | None = field(name="Module Hierarchy", default=None)
    flops: float | None = None
    connection_id: Raw = field(name="correlation_id", default=_NOTHING)


class SliceArgs(Struct, gc=False):
    """Of CANN, device and communication slices, and of marks: their keys tell the kind."""

    connection_id: Raw = _NOTHING
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
    relay: Raw = _NOTHING
    retry: Raw = _NOTHING
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
    notify_id: Raw = _NOTHING
    # a mark
    domain: str | None = None
    event_type: str | None = None


class LabelArgs(Struct, gc=False):
    """Of metadata."""

    name: str | None = None
    labels: str | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_RAWS = msgspec.json.Decoder(list[Raw])
_SERIES = msgspec.json.Decoder(list[dict[str, float | None]])
_WHOLE = msgspec.json.Decoder(list[int])
_FLOATS = msgspec.json.Decoder(list[float])


def decode_events(text: bytes, log: ReadLog) -> list[Event]:
    """Events of a JSON array; ValueError where the array is not whole.

    Elements that are no events are counted in `log` and left out.
    """
    try:
        return _EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        raws = _RAWS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("no whole array") from error
    events = [event for raw in raws if (event := _event(bytes(raw), log)) is not None]
    if len(events) < len(raws):
        log.rows_lost += len(raws) - len(events)
        log.warn("trace: elements that are no trace events (missing or foreign fields) left out")
    return events


def _event(text: bytes, log: ReadLog) -> Event | None:
    try:
        try:
            return _EVENT.decode(text)
        except UnicodeDecodeError:
            return _EVENT.decode(_mended(text, log))
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_args(events: Sequence[Event], kind: type[Args], log: ReadLog) -> list[Args]:
    """`args` of each event. Numbers may be text; what does not fit its key leaves args empty."""
    decoder: msgspec.json.Decoder[list[Args]]
    decoder = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False)
    text = b",".join([event.args for event in events])
    try:
        return decoder.decode(b"[" + text + b"]")
    except UnicodeDecodeError:
        text = _mended(text, log)
    except (msgspec.DecodeError, RecursionError):
        pass
    one = msgspec.json.Decoder(kind, strict=False)
    return [_args(_mended(bytes(event.args), None), one, kind, log) for event in events]


def _args(text: bytes, decoder: msgspec.json.Decoder[Args], kind: type[Args], log: ReadLog) -> Args:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        log.warn("trace: args of some events are not of the documented types and were left out")
        return kind()


def _mended(text: bytes, log: ReadLog | None) -> bytes:
    """The text with bytes that are no UTF-8 replaced."""
    if log is not None:
        log.warn("trace: bytes that are no UTF-8 replaced")
    return text.decode("utf-8", "replace").encode()


def decode_series(events: Sequence[Event], log: ReadLog) -> list[dict[str, float | None]]:
    """The `args` of counters: series -> value; empty where they are no numbers."""
    try:
        return _SERIES.decode(b"[" + b",".join([event.args for event in events]) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    one = msgspec.json.Decoder(dict[str, float | None], strict=False)
    found: list[dict[str, float | None]] = []
    for event in events:
        try:
            found.append(one.decode(_mended(bytes(event.args), None)))
        except (msgspec.DecodeError, RecursionError):
            log.rows_lost += 1
            log.warn("trace: counters whose values are no numbers left out")
            found.append({})
    return found


def texts(raws: Sequence[Raw]) -> pa.Array:
    """JSON scalars as text without quotes; NULL for a missing one."""
    lines = b"\n".join(raws)
    if len(lines) < len(raws):  # nothing but separators
        return pa.nulls(len(raws), pa.string())
    column = _split(lines, raws)
    missing = pc.or_(pc.equal(column, ""), pc.equal(column, "null"))
    return pc.if_else(missing, None, column)


def _split(lines: bytes, raws: Sequence[Raw]) -> pa.Array:
    """Values that were joined into lines, without quotes. (Splitting here beats a loop by far.)"""
    text = lines.replace(b'"', b"").decode("utf-8", "replace")
    column = pc.split_pattern(pa.array([text]), "\n").flatten()
    if len(column) != len(raws):  # none at all, or a foreign value that spans lines
        values = [bytes(raw).decode("utf-8", "replace").strip('"') for raw in raws]
        column = pa.array(values, pa.string())
    return column


_MICROSECONDS = pa.decimal128(38, 18)
_NANOSECONDS = pa.decimal128(30, 3)
_THOUSAND = pa.scalar(Decimal(1000), pa.decimal128(4, 0))
_EXACT_NS = 1e11  # a double keeps 1e-5 ns up to here


def nanoseconds(raws: Sequence[Raw]) -> pa.Array:
    """Decimal microseconds, as JSON strings or numbers, as integer ns; NULL where it is none.

    Digits below one ns are rounded half to even.
    """
    lines = b",".join(raws)
    quick = _instants(lines, len(raws))
    if quick is None:
        quick = _durations(lines)
    if quick is not None:
        return quick
    lines = lines.replace(b",", b"\n")
    column = _split(lines, raws)
    try:
        return _mixed(column, _split(lines.replace(b".", b""), raws))
    except pa.ArrowInvalid:
        return pa.array([_ns(text) for text in column.to_pylist()], pa.int64())


def _instants(lines: bytes, count: int) -> pa.Array | None:
    """Values that all look like "1736412474730135.222": without quotes and point they are ns."""
    width = lines.find(b",") + 1
    if not width or (len(lines) + 1) != width * count:
        return None
    shape = ((0, b'"'), (width - 2, b'"'), (width - 6, b"."), (width - 1, b","))
    for place, char in shape:
        found = lines[place::width]
        if found.count(char) != len(found):
            return None
    try:
        return pa.array(_WHOLE.decode(b"[" + lines.translate(None, b'".') + b"]"), pa.int64())
    except (msgspec.DecodeError, OverflowError):
        return None


def _durations(lines: bytes) -> pa.Array | None:
    """Short numbers by way of doubles, save those that these could round the wrong way."""
    try:
        values = pa.array(_FLOATS.decode(b"[" + lines + b"]"), pa.float64())
    except msgspec.DecodeError:
        return None
    scaled = pc.multiply(values, 1000.0)
    fraction = pc.subtract(scaled, pc.floor(scaled))
    unsure = pc.less(pc.abs(pc.subtract(fraction, 0.5)), 1e-3)
    unsure = pc.or_(unsure, pc.greater(pc.abs(scaled), _EXACT_NS))
    whole = pc.round(pc.if_else(unsure, 0.0, scaled)).cast(pa.int64())
    if not pc.any(unsure).as_py():
        return whole
    digits = pc.split_pattern(pa.array([lines.decode()]), ",").flatten()
    try:
        return pc.replace_with_mask(whole, unsure, _exact(digits.filter(unsure)))
    except pa.ArrowInvalid:
        return None


def _mixed(column: pa.Array, digits: pa.Array) -> pa.Array:
    """Values with three decimals by their `digits`, the others by decimal arithmetic."""
    point = pc.equal(pc.utf8_slice_codeunits(column, -4, -3), ".")
    plain = pc.and_(point, pc.equal(pc.count_substring(column, "."), 1))
    whole = pc.if_else(plain, digits, None).cast(pa.int64())
    other = pc.invert(plain)
    return pc.replace_with_mask(whole, other, _exact(column.filter(other)))


def _exact(column: pa.Array) -> pa.Array:
    rounded = pc.round(column.cast(_MICROSECONDS), 3, "half_to_even").cast(_NANOSECONDS)
    return pc.multiply(rounded, _THOUSAND).cast(pa.int64())


def _ns(text: str | None) -> int | None:
    """One value, whatever its form: blanks, exponents, many digits, nonsense."""
    with localcontext() as context:
        context.prec = 60
        try:
            value = Decimal((text or "").strip())
            if not value.is_finite() or value.adjusted() > 15:
                return None
            value_ns = int(value.scaleb(3).to_integral_value(ROUND_HALF_EVEN))
            return value_ns if abs(value_ns) < 2**63 else None
        except InvalidOperation:
            return None
