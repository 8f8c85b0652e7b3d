"""Rows that a compiled pass took from a timeline's text, as Arrow tables of their kinds.

A piece is scanned, or handed over whole: what the pass is not sure of is read as every file is read
without it. Rows wait as whole numbers until there are enough of them; codes of strings are decoded
once for each string, not once for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from . import scan_codes as s
from .columns import series_name
from .events import is_utf8
from .kept_kinds import WantedKinds
from .scan_codes import NULL, PADDING, Array
from .scan_plan import hash_of, plan_arrays

_PIECE_BYTES = 1 << 20
_ROWS = (1 << 16) + 136  # no power of two: columns would share the same lines of the cache
_ENTRIES = 1 << 15
_STORE_BYTES = 4 << 20
_SLOW = 1 << 13
_NO_STRINGS = pa.array([], pa.string())
_LABEL = b"acc_id"  # the first entry of each dictionary: code 0 is no series


class Scan:
    """Rows of a plan's kinds that wait to become tables."""

    def __init__(self, kinds: WantedKinds, scan: Callable[[int], int]) -> None:
        self._scan = scan
        self._plan = plan_arrays(kinds, _ROWS)
        self._text = _room(_PIECE_BYTES)
        values = np.empty(sum(map(len, self._plan.columns)) * _ROWS, np.int64)
        slots = s.FIELDS + len(self._plan.plan.args.sizes)
        self._event = s.Event._make([
            *np.empty((3, slots), np.int64), *np.empty((3, s.SERIES), np.int64),
            np.zeros(slots + 1, np.int64), np.full(slots + 4, -1),
        ])  # fmt: skip
        self._rows = s.Rows(
            values, values.view(np.float64), np.empty((_SLOW, 2), np.int64),
            np.empty((_ENTRIES, 2), np.int64), np.zeros(4 * _ENTRIES, np.int32),
            _room(_STORE_BYTES), _room(_STORE_BYTES),
            np.zeros(s.ROWS + len(self._plan.kinds), np.int64),
        )  # fmt: skip
        self._table = _table_of(
            self._text, self._plan.plan, self._event, self._rows, self._plan.counter, _ROWS
        )
        self._raw = self._content = _NO_STRINGS
        self._forget()

    def add(self, text: bytes) -> bool:
        """Scan an array of events; whether its rows were added. Where not, nothing was, as there is
        no room or something in it is not known for sure."""
        if len(text) > _PIECE_BYTES or not is_utf8(text):
            return False
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._text[len(text) : len(text) + PADDING] = 0
        counts = self._rows.counts
        before = counts.copy()
        self._table[-3] = len(text)
        ended = self._scan(self._table.ctypes.data)
        if ended == s.DONE:
            return True
        counts[s.TEXT_BYTES :] = before[s.TEXT_BYTES :]
        return False

    @property
    def is_filling(self) -> bool:
        """Whether the rows should become tables soon."""
        counts = self._rows.counts
        return bool(
            counts[s.ROWS :].max() > _ROWS // 2
            or counts[s.TEXT_BYTES] > _STORE_BYTES // 2
            or counts[s.ENTRY_BYTES] > _STORE_BYTES // 2
            or counts[s.ENTRIES] > _ENTRIES // 2
            or counts[s.SLOW] > _SLOW // 2
        )

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """What waits, by kind; nothing does afterwards."""
        counts, planned = self._rows.counts, self._plan
        for place, packed in self._rows.slow[: counts[s.SLOW]].tolist():
            start, size = packed >> 24, packed & 0xFFFFFF
            self._rows.floats[place] = float(self._rows.texts[start : start + size].tobytes())
        written, strings = self._strings()
        for number, kind in enumerate(planned.kinds):
            rows = int(counts[s.ROWS + number])
            if rows:
                columns = planned.columns[number]
                columns_here = [self._column(number, place, rows) for place in range(len(columns))]
                arrays = [
                    self._array(values, how, strings, written)
                    for values, how in zip(columns_here, planned.how[number], strict=False)
                ]
                if number == planned.counter:
                    arrays.append(_series(columns_here[3], strings))
                    arrays.append(pa.array(columns_here[4].view(np.float64)))
                yield kind, pa.table(arrays, names=list(columns))
        counts[s.TEXT_BYTES :] = 0
        if counts[s.ENTRIES] > _ENTRIES // 4 or counts[s.ENTRY_BYTES] > _STORE_BYTES // 4:
            self._forget()

    def _column(self, kind: int, place: int, rows: int) -> Array:
        start = int(self._plan.plan.bases[kind]) + place * _ROWS
        return self._rows.values[start : start + rows].copy()

    def _array(self, values: Array, how: int, strings: pa.Array, written: pa.Array) -> pa.Array:
        if how == s.NUMBER_OR_NULL:
            numbers = values.view(np.float64)
            return pa.array(numbers, mask=np.isnan(numbers))
        missing = values == NULL
        mask = missing if missing.any() else None
        if how in (s.CODE, s.CODE_OR_NULL, s.JSON_OR_NULL):
            codes = pa.array(values.astype(np.int32), mask=mask)
            bytes_of = written if how == s.JSON_OR_NULL else strings
            return pa.DictionaryArray.from_arrays(codes, bytes_of)
        if how == s.INSTANT and self._plan.base_ns:
            values += self._plan.base_ns
        if how in (s.TEXT, s.TEXT_OR_NULL):
            return self._text_array(values, mask)
        return pa.array(values, mask=mask)

    def _text_array(self, packed: Array, mask: Array | None) -> pa.Array:
        """Texts, gathered from where they stand in the arena."""
        sizes = packed & 0xFFFFFF
        if mask is not None:
            sizes[mask] = 0
            packed[mask] = 0
        ends = np.cumsum(sizes)
        offsets = np.zeros(len(sizes) + 1, np.int32)
        offsets[1:] = ends
        places = np.repeat((packed >> 24) - (ends - sizes), sizes) + np.arange(offsets[-1])
        valid = None if mask is None else pa.array(~mask).buffers()[1]
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(self._rows.texts[places])]
        return pa.Array.from_buffers(pa.string(), len(sizes), buffers)

    def _strings(self) -> tuple[pa.Array, pa.Array]:
        """The dictionary's strings as they are written, and what they stand for; of those that were
        known before, this is known."""
        string_count, count = len(self._raw), int(self._rows.counts[s.ENTRIES])
        if count > string_count:
            offsets = np.zeros(count - string_count + 1, np.int32)
            offsets[1:] = np.cumsum(self._rows.entries[string_count:count, 1])
            start = int(self._rows.entries[string_count, 0])  # one stands behind the other
            used = self._rows.store[start : start + offsets[-1]].tobytes()
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(used)]
            written = pa.Array.from_buffers(pa.string(), count - string_count, buffers)
            content = _unescape(written) if b"\\" in used else written
            self._raw = pa.concat_arrays([self._raw, written])
            self._content = pa.concat_arrays([self._content, content])
        return self._raw, self._content

    def _forget(self) -> None:
        """Begin a new dictionary."""
        rows = self._rows
        rows.table[:] = 0
        rows.store[: len(_LABEL)] = np.frombuffer(_LABEL, np.uint8)
        rows.entries[0] = 0, len(_LABEL)
        rows.table[hash_of(_LABEL) % len(rows.table)] = 1
        rows.counts[[s.ENTRIES, s.ENTRY_BYTES]] = 1, len(_LABEL)
        self._raw = self._content = _NO_STRINGS


def _room(size: int) -> Array:
    """Room for so many bytes."""
    return np.zeros(size + 2 * PADDING, np.uint8)


def _table_of(
    text: Array, plan: s.Plan, event: s.Event, rows: s.Rows, counter: int, capacity: int
) -> Array:
    """Addresses and lengths of the arrays, which must live as long as it is used. Its last three
    numbers are what is asked: the size of the text, still to be put there, and these."""
    keys = [array for columns_of in plan[:4] for array in columns_of]
    table = np.zeros(s.TABLE, np.int64)
    arrays: Sequence[Array] = [text, *keys, *plan[4:], *event, *rows]
    for number, array in enumerate(arrays):
        table[3 * number] = array.ctypes.data
        table[3 * number + 1 : 3 * number + 1 + array.ndim] = array.shape
    table[3 * s.ARRAYS] = table[3 * s.ARRAYS + 3 :].ctypes.data
    table[-2:] = counter, capacity
    return table


def _unescape(written: pa.Array) -> pa.Array:
    """The strings that JSON's content stands for."""
    texts = written.to_pylist()
    return pa.array([_content(text) if "\\" in text else text for text in texts], pa.string())


def _content(text: str) -> str:
    """What a string's content stands for; other JSON that holds strings stays as it is."""
    try:
        return msgspec.json.decode(f'"{text}"', type=str)
    except msgspec.DecodeError:
        return text


def _series(packed: Array, strings: pa.Array) -> pa.DictionaryArray:
    """Names of counters' series, with their accelerators."""
    words, codes = np.unique(packed, return_inverse=True)
    names = [
        series_name(
            strings[one >> 20].as_py(), float((one & 0xFFFFF) - 1) if one & 0xFFFFF else None
        )
        for one in words.tolist()
    ]
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names))
