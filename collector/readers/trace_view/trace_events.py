"""Chrome-trace events decoded by type, and their times as whole nanoseconds.

An event is decoded in two steps: its frame at once, its `args` (text until then) together with
those of its kind. Digits of `ts` never pass through a double: at today's epoch it keeps 0.25 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from types import GenericAlias
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct, field

from ...model import ReadLog

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Scalar = str | int | float | bool | None
Args = TypeVar("Args", bound=Struct)
_NOTHING = Raw(b"")
NO_ARGS = Raw(b"{}")


class HasArgs(Protocol):
    """An event of any producer."""

    @property
    def args(self) -> Raw: ...


class Event(Struct, gc=False):
    """The frame of an event of any phase; `ts` and `dur` in microseconds.

    `args` is a view into the text that was decoded, which it keeps in memory.
    """

    ph: str
    name: str | None = None
    pid: Int64 | None = None
    tid: Int64 | None = None
    ts: str | None = None
    dur: float | None = None
    cat: str | None = None
    id: Scalar = None
    args: Raw = NO_ARGS


class _AnyEvent(Struct, gc=False):
    """An event whose times and id may be of any type."""

    ph: str
    name: str | None = None
    pid: Int64 | None = None
    tid: Int64 | None = None
    ts: Raw = _NOTHING
    dur: Raw = _NOTHING
    cat: str | None = None
    id: Raw = _NOTHING
    args: Raw = NO_ARGS


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


class LabelArgs(Struct, gc=False):
    """Of metadata."""

    name: str | None = None
    labels: str | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_ANY_EVENTS = msgspec.json.Decoder(list[_AnyEvent])
_ANY_EVENT = msgspec.json.Decoder(_AnyEvent)
_RAWS = msgspec.json.Decoder(list[Raw])
_SCALAR = msgspec.json.Decoder(Scalar)
_SERIES = msgspec.json.Decoder(list[dict[str, float | None]])
_WHOLE = msgspec.json.Decoder(list[int])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_events(text: bytes, log: ReadLog) -> list[Event]:
    """Events of a JSON array; ValueError where the array is not whole or holds none.

    Elements that are no events are counted in `log` and left out.
    """
    try:
        return _EVENTS.decode(text)
    except _BROKEN:
        pass
    try:  # times as numbers
        return [_plain(event) for event in _ANY_EVENTS.decode(text)]
    except _BROKEN:
        pass
    try:
        raws = _RAWS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("no whole array") from error
    events = [event for raw in raws if (event := _event(bytes(raw), log)) is not None]
    if raws and not events:  # objects of a list within an event that was torn
        raise ValueError("no trace event")
    if len(events) < len(raws):
        log.rows_lost += len(raws) - len(events)
        log.warn("trace: elements that are not trace events (missing or unknown fields) left out")
    return events


def _event(text: bytes, log: ReadLog) -> Event | None:
    for decode in (_EVENT.decode, lambda text: _plain(_ANY_EVENT.decode(text))):
        try:
            try:
                return decode(text)
            except UnicodeDecodeError:
                return decode(mended(text, log))
        except (msgspec.DecodeError, RecursionError):
            pass
    return None


def _plain(event: _AnyEvent) -> Event:
    """The event with its time as the text it is, unknown where it is none."""
    duration = _text(event.dur)
    try:
        dur = None if duration is None else float(duration)
    except ValueError:
        dur = None
    try:
        known = _SCALAR.decode(event.id) if event.id else None
    except _BROKEN:
        known = None
    return Event(
        event.ph, event.name, event.pid, event.tid, _text(event.ts), dur, event.cat, known,
        event.args,
    )  # fmt: skip


def _text(raw: Raw) -> str | None:
    """A JSON scalar as text without quotes; None for a missing one."""
    text = bytes(raw).decode("utf-8", "replace").strip('"')
    return None if text in ("", "null") else text


def decode_args(events: Sequence[HasArgs], kind: type[Args], log: ReadLog) -> list[Args]:
    """`args` of each event. Numbers may be text; what does not fit its key leaves args empty."""
    decoder: msgspec.json.Decoder[list[Args]]
    decoder = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False)
    text = b",".join([event.args for event in events])
    try:
        return decoder.decode(b"[" + text + b"]")
    except UnicodeDecodeError:
        text = mended(text, log)
    except (msgspec.DecodeError, RecursionError):
        pass
    one = msgspec.json.Decoder(kind, strict=False)
    return [_args(mended(bytes(event.args), None), one, kind, log) for event in events]


def _args(text: bytes, decoder: msgspec.json.Decoder[Args], kind: type[Args], log: ReadLog) -> Args:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        log.warn("trace: args of some events are not of the documented types and were left out")
        return kind()


def mended(text: bytes, log: ReadLog | None) -> bytes:
    """The text with bytes that are no UTF-8 replaced."""
    if log is not None:
        log.warn("trace: bytes that are not UTF-8 replaced")
    return text.decode("utf-8", "replace").encode()


def decode_series(events: Sequence[HasArgs], log: ReadLog) -> list[dict[str, float | None]]:
    """The `args` of counters: series -> value; empty where they are no numbers."""
    try:
        return _SERIES.decode(b"[" + b",".join([event.args for event in events]) + b"]")
    except _BROKEN:
        pass
    one = msgspec.json.Decoder(dict[str, float | None], strict=False)
    found: list[dict[str, float | None]] = []
    for event in events:
        try:
            found.append(one.decode(mended(bytes(event.args), None)))
        except (msgspec.DecodeError, RecursionError):
            log.rows_lost += 1
            log.warn("trace: counters with non-numeric values left out")
            found.append({})
    return found


_MICROSECONDS = pa.decimal128(38, 18)
_NANOSECONDS = pa.decimal128(30, 3)
_EXACT_NS = 1e11  # a double keeps 1e-5 ns up to here
_NEAR_TIE_NS = 1e-3


def instants_ns(texts: Sequence[str | None]) -> pa.Array:
    """Decimal microseconds as integer ns; NULL where it is none.

    Digits below one ns are rounded half to even.
    """
    quick = _alike(texts)
    if quick is not None:
        return quick
    column = pa.array(texts, pa.string())
    try:
        return _mixed(column)
    except pa.ArrowInvalid:
        return pa.array([_ns(text) for text in texts], pa.int64())


def _alike(texts: Sequence[Any]) -> pa.Array | None:
    """Texts that all look like 1736412474730135.222: without the point they are ns."""
    try:
        lines = ",".join(texts)
    except TypeError:  # one is missing
        return None
    count, width = len(texts), lines.find(",") + 1
    if width < 6 or len(lines) + 1 != width * count:
        return None
    points, commas = lines[width - 5 :: width], lines[width - 1 :: width]
    if not (points.count(".") == lines.count(".") == count):
        return None
    if not (commas.count(",") == lines.count(",") == count - 1):
        return None
    try:
        return pa.array(_WHOLE.decode("[" + lines.replace(".", "") + "]"), pa.int64())
    except (msgspec.DecodeError, OverflowError):
        return None


def _mixed(column: pa.Array) -> pa.Array:
    """Values with three decimals by their digits, the others by decimal arithmetic."""
    point = pc.equal(pc.utf8_slice_codeunits(column, -4, -3), ".")
    plain = pc.and_(point, pc.equal(pc.count_substring(column, "."), 1))
    digits = pc.replace_substring(column, ".", "")
    whole = pc.if_else(plain, digits, None).cast(pa.int64())
    other = pc.invert(plain)
    return pc.replace_with_mask(whole, other, _exact(column.filter(other)))


def _exact(column: pa.Array) -> pa.Array:
    rounded = pc.round(column.cast(_MICROSECONDS), 3, "half_to_even").cast(_NANOSECONDS)
    thousand = pa.scalar(Decimal(1000), pa.decimal128(4, 0))
    return pc.multiply(rounded, thousand).cast(pa.int64())


def durations_ns(values: Sequence[float | None]) -> pa.Array:
    """Microseconds as integer ns, rounded half to even; NULL where there is none.

    A double stands for the shortest decimal that reads as it: the digits of the file, up to 15 of
    them. Products by 1000 that come near a tie are therefore rounded by these digits.
    """
    scaled = pc.multiply(pa.array(values, pa.float64()), 1000.0)
    fraction = pc.subtract(scaled, pc.floor(scaled))
    sure = pc.greater_equal(pc.abs(pc.subtract(fraction, 0.5)), _NEAR_TIE_NS)
    sure = pc.and_(sure, pc.less_equal(pc.abs(scaled), _EXACT_NS))
    whole = pc.round(pc.if_else(sure, scaled, None)).cast(pa.int64())
    unsure = pc.fill_null(pc.invert(sure), False)
    places = pc.indices_nonzero(unsure).to_pylist()
    if not places:
        return whole
    exact = pa.array([_ns(repr(values[place])) for place in places], pa.int64())
    return pc.replace_with_mask(whole, unsure, exact)


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
