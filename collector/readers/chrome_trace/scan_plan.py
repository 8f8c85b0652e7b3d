"""What a compiled pass is to look for in one producer's timelines, as the arrays it reads.

A form tells by category and phase which kind an event is, and what of it is kept. The types that
its args are documented with become the tokens that are allowed there: with any other one the
present reader decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_type_hints

import msgspec
import numpy as np
from msgspec import Raw, Struct

from . import scan_codes as s
from .events import Int64, Scalar
from .kept_kinds import KeptEvents, WantedKinds
from .scan_codes import Array

_MIX, _SHIFT, _WORD = 0x9E3779B97F4A7C15, 29, (1 << 64) - 1
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
_PLACES = {
    "pid": (s.PID, s.WHOLE),
    "tid": (s.TID, s.WHOLE),
    "start_ns": (s.TS, s.INSTANT),
    "at_ns": (s.TS, s.INSTANT),
    "timestamp_ns": (s.TS, s.INSTANT),
    "dur_ns": (s.DUR, s.DURATION),
    "name": (s.NAME, s.CODE),
    "label": (s.NAME, s.CODE),
    "category": (s.CAT, s.CODE),
    "side": (s.PH, s.CODE),
    "id": (s.ID, s.TEXT),
}
_OR_NULL = {s.WHOLE: s.WHOLE_OR_NULL, s.CODE: s.CODE_OR_NULL, s.TEXT: s.TEXT_OR_NULL}
_TYPES = {
    Int64 | None: s.WHOLE_OR_NULL,
    str | None: s.CODE_OR_NULL,
    Scalar: s.TEXT_OR_NULL,
    float | None: s.NUMBER_OR_NULL,
    Raw: s.JSON_OR_NULL,
}
_NOTHING = 1 << s.ABSENT | 1 << s.NONE
_ALLOWED_KINDS = {
    s.WHOLE_OR_NULL: _NOTHING | 1 << s.INTEGER,
    s.CODE_OR_NULL: _NOTHING | 1 << s.STRING,
    s.TEXT_OR_NULL: _NOTHING | 1 << s.INTEGER | 1 << s.LONG | 1 << s.STRING,
    s.NUMBER_OR_NULL: _NOTHING | 1 << s.INTEGER | 1 << s.LONG | 1 << s.FRACTION,
}
_ANY = (1 << 8) - 1


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """`kinds` by their numbers, their columns, and how each is converted; what `scan` reads."""

    kinds: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    how: tuple[tuple[int, ...], ...]
    plan: s.Plan = field(repr=False)
    base_ns: int

    @property
    def counter(self) -> int:
        return self.kinds.index("counter")


def plan_arrays(event_kinds: WantedKinds, capacity: int) -> ScanPlan:
    """The arrays of what is wanted, for columns of so many rows."""
    kinds = tuple(event_kinds.kinds)
    events = [event_kinds.kinds[kind] for kind in kinds]
    arguments: dict[str, int] = {}
    typed: list[dict[str, tuple[int, int]]] = []  # attribute -> slot, conversion
    for one in events:
        attributes = {}
        for name, key, how in _attributes(one.args):
            slot = arguments.setdefault(key, s.FIELDS + len(arguments))
            attributes[name] = slot, how
        typed.append(attributes)
    arrays = [_columns(one, columns_of) for one, columns_of in zip(events, typed, strict=True)]
    allowed = np.full((len(kinds), s.FIELDS + len(arguments)), _ANY, np.int64)
    for number, columns_of in enumerate(typed):
        for slot, how in columns_of.values():
            allowed[number, slot] = _ALLOWED_KINDS.get(how, _ANY)
    names = sorted({name for one in events for name in (*one.only, *one.bare)})
    choices = [
        (number, typed[number][attribute][0], kinds.index(other))
        for number, one in enumerate(events)
        for attribute, other in one.choices
    ]
    categories = [category for category in event_kinds.of if category]
    widths = [len(one.columns) for one in events]
    plan = s.Plan(
        _known_keys(_FIELDS), _known_keys(tuple(arguments)), _known_keys(categories),
        _known_keys(names), *_actions(event_kinds, categories),
        _bits(names, [one.only for one in events]), _bits(names, [one.bare for one in events]),
        np.array(choices or np.empty((0, 3)), np.int64), allowed,
        _matrix([[slot for slot, _ in columns] for columns in arrays]),
        _matrix([[how for _, how in columns] for columns in arrays]),
        np.concatenate(([0], np.cumsum(widths)[:-1])) * capacity,
    )  # fmt: skip
    how_of = tuple(tuple(how for _, how in columns) for columns in arrays)
    return ScanPlan(
        kinds, tuple(tuple(one.columns) for one in events), how_of, plan, event_kinds.base_ns
    )


def _attributes(args: type[Struct] | None) -> Iterable[tuple[str, str, int]]:
    """Attributes of args, their keys, how they are converted."""
    if args is None:
        return ()
    hints = get_type_hints(args, include_extras=True)
    return [
        (fields_of.name, fields_of.encode_name, _TYPES[hints[fields_of.name]])
        for fields_of in msgspec.structs.fields(args)
    ]


def _columns(
    events: KeptEvents, columns_of: Mapping[str, tuple[int, int]]
) -> list[tuple[int, int]]:
    """Slot and conversion of each column; a counter's last two have none."""
    columns = []
    for name in events.columns:
        if name in columns_of:
            columns.append(columns_of[name])
        elif name in _PLACES:
            slot, how = _PLACES[name]
            columns.append((slot, _OR_NULL[how] if name in events.or_null else how))
    return columns


def _actions(kinds: WantedKinds, categories: Sequence[str]) -> tuple[Array, Array]:
    """Phase of a character, and what is done with events by category and phase."""
    letters = sorted({p for phases in kinds.of.values() for p in phases if p != "*"})
    phases = np.zeros(256, np.int64)
    for number, letter in enumerate(letters, 1):
        phases[ord(letter)] = number
    numbers = {kind: number for number, kind in enumerate(kinds.kinds)} | {"counter": s.COUNTER}
    actions = np.full((2 + len(categories), 1 + len(letters)), s.DROP, np.int64)
    for row, category in enumerate((None, "", *categories)):
        by_name = kinds.of.get(category, {})
        if "*" in by_name:
            actions[row] = s.FOREIGN
        for letter, kind in by_name.items():
            if letter != "*":
                actions[row, phases[ord(letter)]] = numbers[kind]
    return phases, actions


def _known_keys(keys: Sequence[str]) -> s.Keys:
    """Words and sizes of keys, and a table from their hashes to their numbers + 1."""
    words = np.zeros((max(1, len(keys)), s.KEY_WORDS + 1), np.uint64)
    sizes = np.zeros(len(keys), np.int64)
    table = np.zeros(256, np.int64)
    for number, key in enumerate(keys):
        text = key.encode()
        padded = text.ljust(8 * s.KEY_WORDS, b"\0")
        words[number, :-1] = np.frombuffer(padded, "<u8")
        sizes[number] = len(text)
        place = hash_of(text) % len(table)
        while table[place]:
            place = (place + 1) % len(table)
        table[place] = number + 1
    return s.Keys(words, sizes, table)


def hash_of(text: bytes) -> int:
    """As the pass computes it."""
    mixed = len(text)
    for word in np.frombuffer(text.ljust(-(-len(text) // 8) * 8, b"\0"), "<u8").tolist():
        mixed = ((mixed ^ word) * _MIX) & _WORD
        mixed ^= mixed >> _SHIFT
    return mixed


def _bits(names: Sequence[str], sets: Sequence[Iterable[str]]) -> Array:
    """For each kind the names that are chosen, a bit for each."""
    return np.array([sum(1 << names.index(n) for n in some) for some in sets], np.int64)


def _matrix(rows: Sequence[Sequence[int]]) -> Array:
    """Rows of different length, filled up with -1."""
    matrix = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for place, row in enumerate(rows):
        matrix[place, : len(row)] = row
    return matrix
