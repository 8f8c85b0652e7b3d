"""Chrome-trace events decoded by type, and their times as whole nanoseconds.

An event is decoded in two steps: its frame at once, its `args` (text until then) together with
those of its kind. Digits of `ts` never pass through a double: at today's epoch it keeps 0.25 us.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from types import GenericAlias
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct

from ...model import ReadLog
from .json_events import Broken

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Scalar = str | int | float | bool | None
Args = TypeVar("Args", bound=Struct)
NOTHING = Raw(b"")
NO_ARGS = Raw(b"{}")


class Event(Struct, gc=False):
    """The frame of an event of any phase; `ts` and `dur` in microseconds, `ts` as it is written.

    `ts` and `args` are views into the text that was decoded, which they keep in memory.
    """

    ph: str
    cat: str | None = None
    name: str | None = None
    pid: Int64 | str | None = None
    tid: Int64 | str | None = None
    ts: Raw = NOTHING
    dur: float | None = None
    id: Scalar = None
    args: Raw = NO_ARGS


class _AnyEvent(Struct, gc=False):
    """An event whose fields may be of any type."""

    ph: str
    cat: Raw = NOTHING
    name: Raw = NOTHING
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    id: Raw = NOTHING
    args: Raw = NO_ARGS


class LabelArgs(Struct, gc=False):
    """Of metadata."""

    name: str | None = None
    labels: str | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_ANY_EVENTS = msgspec.json.Decoder(list[_AnyEvent])
_ANY_EVENT = msgspec.json.Decoder(_AnyEvent)
_RAWS = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_SCALAR = msgspec.json.Decoder(Scalar)
_SERIES = msgspec.json.Decoder(list[dict[str, float | None]])
_STRINGS = msgspec.json.Decoder(list[str])
_INTS = msgspec.json.Decoder(list[int])
# Bytes that are no UTF-8 raise UnicodeDecodeError until msgspec 0.22, DecodeError from 0.23 on.
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# A ratio by an unknown number of multiprocessors is written as no JSON can have it.
_NO_NUMBER = re.compile(rb"(?<=[:,\[])\s*[-+]?(?:inf(?:inity)?|nan)\s*(?=[,}\]])", re.I)
_WORD = re.compile(rb"inf|nan", re.I)
_PLACE = re.compile(r"\(byte (\d+)\)")


def decode_events(text: bytes, log: ReadLog) -> list[Event]:
    """Events of a JSON array; ValueError where the array is not whole or holds none, Broken where
    it is torn before its last bracket.

    Elements that are no events are counted in `log` and left out.
    """
    try:
        return _EVENTS.decode(text)
    except _DECODE_ERRORS:
        pass
    try:  # durations as text
        return [_plain(event) for event in _ANY_EVENTS.decode(text)]
    except _DECODE_ERRORS:
        pass
    try:
        raws = _RAWS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        numbers = _NO_NUMBER.sub(b"null", text) if _stops_at_no_number(text, error) else text
        if numbers == text:
            raise _why_not(text, error) from error
        return decode_events(numbers, log)
    events = [event for raw in raws if (event := _event(bytes(raw), log)) is not None]
    if raws and not events:  # objects of a list within an event that was torn
        raise ValueError("no trace event")
    if len(events) < len(raws):
        log.rows_lost += len(raws) - len(events)
        log.warn("trace: elements that are not trace events (missing or unknown fields) left out")
    return events


def _stops_at_no_number(text: bytes, error: Exception) -> bool:
    """Whether decoding may have stopped where a number is written as no JSON can have it: looking
    for such in all of a text that is torn elsewhere costs more than reading it."""
    if "truncated" in str(error):  # all before the end was well
        return False
    place = _PLACE.search(str(error))
    return place is None or _WORD.search(text, int(place[1]) - 2, int(place[1]) + 4) is not None


def _why_not(text: bytes, error: Exception) -> ValueError:
    # The last bracket may have been added where an event goes on: what stands before it is wrong.
    place = _PLACE.search(str(error))
    is_torn = place is not None and int(place[1]) < len(text) - 1
    return Broken("a torn array") if is_torn else ValueError("no whole array")


def _event(text: bytes, log: ReadLog) -> Event | None:
    for decode in (_EVENT.decode, lambda text: _plain(_ANY_EVENT.decode(text))):
        with suppress(*_DECODE_ERRORS):
            return decode(text)
        if not is_utf8(text):
            with suppress(*_DECODE_ERRORS):
                return decode(replace_bad_bytes(text, log))
    return None


def _plain(event: _AnyEvent) -> Event:
    """The event with what is of a foreign type unknown."""
    cat, name, pid, tid, duration, id_ = (
        _text(raw) for raw in (event.cat, event.name, event.pid, event.tid, event.dur, event.id)
    )
    try:
        dur = None if duration is None else float(duration)
    except ValueError:
        dur = None
    return Event(event.ph, cat, name, pid, tid, event.ts, dur, id_, event.args)


def _text(raw: Raw | bytes) -> str | None:
    """A JSON scalar as text; None for what is none. Raises UnicodeDecodeError."""
    try:
        value = _SCALAR.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        bytes(raw).decode()  # what raises tells that bytes have to be replaced
        return None
    if isinstance(value, str):
        return value or None
    return None if value is None else bytes(raw).decode().strip()


def number(value: int | str | None) -> int | None:
    """A process, thread or stream; old files write `stream 7`."""
    if isinstance(value, str):
        match = re.fullmatch(r"(?:[A-Za-z]+ )?(\d{1,18})", value, re.A)
        return int(match[1]) if match else None
    return value


def decode_args(events: Sequence[Event], kind: type[Args], log: ReadLog) -> list[Args]:
    """`args` of each event. Numbers may be text; what does not fit its key is unknown."""
    decoder: msgspec.json.Decoder[list[Args]]
    decoder = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False)
    text = b",".join([event.args for event in events])
    try:
        return decoder.decode(b"[" + text + b"]")
    except _DECODE_ERRORS:
        if not is_utf8(text):
            replace_bad_bytes(text, log)
    one = msgspec.json.Decoder(kind, strict=False)
    return [_args(replace_bad_bytes(bytes(event.args), None), one, kind, log) for event in events]


def _args(text: bytes, decoder: msgspec.json.Decoder[Args], kind: type[Args], log: ReadLog) -> Args:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        log.warn("trace: args of some events are not of the documented types and were left out")
        return _args_of_type(text, decoder, kind)


def _args_of_type(text: bytes, decoder: msgspec.json.Decoder[Args], kind: type[Args]) -> Args:
    """Those of the args that are of their key's type."""
    result = kind()
    try:
        values = _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return result
    for field in msgspec.structs.fields(kind):
        if (value := values.get(field.encode_name)) is not None:
            with suppress(msgspec.DecodeError):
                alone = decoder.decode(b'{"%s":%s}' % (field.encode_name.encode(), value))
                setattr(result, field.name, getattr(alone, field.name))
    return result


def is_utf8(text: bytes) -> bool:
    """Whether all of it is."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def replace_bad_bytes(text: bytes, log: ReadLog | None) -> bytes:
    """The text with bytes that are no UTF-8 replaced."""
    if log is not None:
        log.warn("trace: bytes that are not UTF-8 replaced")
    return text.decode("utf-8", "replace").encode()


def decode_series(events: Sequence[Event], log: ReadLog) -> list[dict[str, float | None]]:
    """The `args` of counters: series -> value; empty where they are no numbers."""
    try:
        return _SERIES.decode(b"[" + b",".join([event.args for event in events]) + b"]")
    except _DECODE_ERRORS:
        pass
    one = msgspec.json.Decoder(dict[str, float | None], strict=False)
    series: list[dict[str, float | None]] = []
    for event in events:
        try:
            series.append(one.decode(replace_bad_bytes(bytes(event.args), None)))
        except (msgspec.DecodeError, RecursionError):
            log.rows_lost += 1
            log.warn("trace: counters with non-numeric values left out")
            series.append({})
    return series


_MICROSECONDS = pa.decimal128(38, 18)
_NANOSECONDS = pa.decimal128(30, 3)
_LAST_NS = 2**63 - 1
_EXACT_NS = 1e11  # a double keeps 1e-5 ns up to here
_NEAR_TIE_NS = 1e-3


def instants_ns(values: Sequence[Raw], base_ns: int = 0) -> pa.Array:
    """Numbers of microseconds, or such numbers as text, since `base_ns` as integer ns.

    Digits below one ns are rounded half to even; NULL where there is no number, or none that 64
    bits hold.
    """
    whole = _alike(values)
    if whole is None:
        texts: Sequence[str | None] = ()
        with suppress(*_DECODE_ERRORS):
            texts = _STRINGS.decode(b"[" + b",".join(values) + b"]")
        if len(texts) != len(values):  # numbers, and times that are missing
            texts = [_text(replace_bad_bytes(bytes(value), None)) for value in values]
        try:
            whole = _mixed_instants(pa.array(texts, pa.string()))
        except pa.ArrowInvalid:
            whole = pa.array([_ns(text) for text in texts], pa.int64())
    if not base_ns:
        return whole
    try:
        return pc.add_checked(whole, base_ns)
    except pa.ArrowInvalid:  # nonsense: later than the year 2262
        is_late = pc.greater(whole, min(_LAST_NS, _LAST_NS - base_ns))
        is_early = pc.less(whole, max(~_LAST_NS, ~_LAST_NS - base_ns))
        return pc.add(pc.if_else(pc.or_(is_late, is_early), None, whole), base_ns)


def _alike(values: Sequence[Raw]) -> pa.Array | None:
    """Times that all have three decimals, 1736412474730135.222: without the point they are ns."""
    lines = b",".join(values)
    if lines.translate(None, b'0123456789.,"'):
        return None
    lines = lines.replace(b'"', b"")
    places = np.frombuffer(lines, np.uint8)
    points = np.flatnonzero(places == 46)
    ends = np.append(np.flatnonzero(places == 44), len(places))
    if len(points) != len(values) or len(ends) != len(values) or not (ends - points == 4).all():
        return None
    try:
        return pa.array(_INTS.decode(b"[" + lines.replace(b".", b"") + b"]"), pa.int64())
    except (msgspec.DecodeError, OverflowError):  # 0.500, or too many digits
        return None


def _mixed_instants(column: pa.Array) -> pa.Array:
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
