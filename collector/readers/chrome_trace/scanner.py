"""One pass over the bytes of whole events, compiled by numba: what stands where, as numbers.

    bytes --tokens--> one event's fields --convert--> a row of its kind: int64 for each column

Strings that repeat become codes of a dictionary of the bytes as they are written, others places in
an arena. The pass takes only what it knows to read exactly as the present reader does. On anything
else (damage, a key twice, escapes in keys, numbers of unusual form, types that are not documented)
it stops with `UNSURE`, and that reader takes the whole piece.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .json_tokens import (
    ABSENT,
    FRACTION,
    INTEGER,
    LONG,
    NONE,
    NULL,
    OTHER,
    PADDING,
    STRING,
    Array,
    Text,
    compiled,
    double,
    has_escape,
    integer,
    kept,
    key_end,
    nanoseconds,
    nested_end,
    past_blank,
    scalar_end,
)

KEY_WORDS = 4  # a known key has no more bytes than these hold
SERIES = 16  # a counter with more of them is read by the present reader
DONE, UNSURE, FULL = 0, 1, 2
# How a token becomes a value. Without `_OR_NULL` it has to be there.
WHOLE, WHOLE_OR_NULL, CODE, CODE_OR_NULL, TEXT, TEXT_OR_NULL = 1, 2, 3, 4, 5, 6
INSTANT, DURATION, NUMBER_OR_NULL, JSON_OR_NULL = 7, 8, 9, 10
# Fields of an event: their slots; those of args follow.
PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS = range(9)
FIELDS = 9
# What is to be done with an event of a class and phase, if it is no kind's number.
DROP, COUNTER, FOREIGN = -1, -2, -3
# Places in the counts: rows of each kind follow `ROWS`.
ENTRIES, ENTRY_BYTES, TEXT_BYTES, SLOW, ROWS = range(5)

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
_SHIFT = np.uint64(29)


class Keys(NamedTuple):
    """Known keys: their words, zeros behind the last byte; their sizes; numbers + 1 by hash."""

    words: Array
    sizes: Array
    table: Array


class Plan(NamedTuple):
    """What is to be found, and what is made of it: see `scan_plan`.

    phases: number of a letter. actions: kind by category (none, other, known ones) and phase.
    only, bare: a bit for each known name. choices: kind, slot that makes it another one, which.
    allowed: a bit for each token by kind and slot. slots, how: columns of each kind.
    """

    fields: Keys
    args: Keys
    categories: Keys
    names: Keys
    phases: Array
    actions: Array
    only: Array
    bare: Array
    choices: Array
    allowed: Array
    slots: Array
    how: Array
    bases: Array


class Event(NamedTuple):
    """Of one event: token, start and end of each slot. Of a counter: code, start and end of each
    series."""

    tokens: Array
    starts: Array
    ends: Array
    series: Array
    series_starts: Array
    series_ends: Array


class Rows(NamedTuple):
    """What was taken. Columns stand in `values` (and as doubles in `floats`, which is the same
    memory) one behind the other. slow: place and text of numbers to be read with care. entries:
    place and size of the dictionary's strings in `store`; table: codes + 1 by hash."""

    values: Array
    floats: Array
    slow: Array
    entries: Array
    table: Array
    store: Text
    texts: Text
    counts: Array


@compiled
def _known(text: Text, start: int, end: int, keys: Keys) -> int:
    """Number of a known key; -1 for another one."""
    size = end - start
    if size > 8 * KEY_WORDS:
        return -1
    h = np.uint64(size)
    for k in range((size + 7) >> 3):
        h = (h ^ (text.words[start + 8 * k] & _MASKS[min(8, size - 8 * k)])) * _MIX
        h ^= h >> _SHIFT
    at = np.int64(h & np.uint64(len(keys.table) - 1))
    while keys.table[at]:
        key: int = keys.table[at] - 1
        if keys.sizes[key] == size:
            same = True
            for k in range((size + 7) >> 3):
                mask = _MASKS[min(8, size - 8 * k)]
                if keys.words[key, k] != text.words[start + 8 * k] & mask:
                    same = False
            if same:
                return key
        at = (at + 1) & (len(keys.table) - 1)
    return -1


@compiled
def _code(text: Text, start: int, end: int, rows: Rows) -> int:
    """Code of a string, entered where it is new; -1 where there is no more room."""
    size = end - start
    h = np.uint64(size)
    for k in range(start, end, 8):
        h = (h ^ (text.words[k] & _MASKS[min(8, end - k)])) * _MIX
        h ^= h >> _SHIFT
    at = np.int64(h & np.uint64(len(rows.table) - 1))
    while rows.table[at]:
        code: int = rows.table[at] - 1
        if rows.entries[code, 1] == size:
            place = rows.entries[code, 0]
            same = True
            for k in range(0, size, 8):
                mask = _MASKS[min(8, size - k)]
                if (text.words[start + k] ^ rows.store.words[place + k]) & mask:
                    same = False
                    break
            if same:
                return code
        at = (at + 1) & (len(rows.table) - 1)
    new: int = rows.counts[ENTRIES]
    place = rows.counts[ENTRY_BYTES]
    if new == len(rows.entries) or place + size + PADDING > len(rows.store.bytes):
        return -1
    for k in range(0, size, 8):
        rows.store.words[place + k] = text.words[start + k]
    rows.entries[new, 0], rows.entries[new, 1] = place, size
    rows.table[at] = new + 1
    rows.counts[ENTRIES], rows.counts[ENTRY_BYTES] = new + 1, place + size
    return new


@compiled
def _put_text(text: Text, start: int, end: int, rows: Rows) -> int:
    """Place and size of text put into the arena, in one number; NULL where it has no room."""
    place: int = rows.counts[TEXT_BYTES]
    size = end - start
    if place + size + PADDING > len(rows.texts.bytes):
        return NULL
    for k in range(0, size, 8):
        rows.texts.words[place + k] = text.words[start + k]
    rows.counts[TEXT_BYTES] = place + size
    return (place << 24) | size


@compiled
def _put_number(text: Text, start: int, end: int, place: int, rows: Rows) -> int:
    """Put a double at a place; text of one that is not sure waits in `slow`."""
    value, sure = double(text.bytes, start, end)
    rows.floats[place] = value
    if sure:
        return DONE
    if end - start > 40:
        return UNSURE
    for k in range(start, end):
        if text.bytes[k] | 32 == 101:
            return UNSURE
    number = rows.counts[SLOW]
    if number == len(rows.slow):
        return FULL
    packed = _put_text(text, start, end, rows)
    if packed == NULL:
        return FULL
    rows.slow[number, 0], rows.slow[number, 1] = place, packed
    rows.counts[SLOW] = number + 1
    return DONE


@compiled
def _put(text: Text, how: int, token: int, start: int, end: int, place: int, rows: Rows) -> int:
    """Put a field's value at a place of the columns."""
    value = NULL
    if token == ABSENT or token == NONE:
        if how == NUMBER_OR_NULL:
            rows.floats[place] = np.nan
            return DONE
        rows.values[place] = NULL
        known = how == WHOLE_OR_NULL or how == CODE_OR_NULL or how == TEXT_OR_NULL
        return DONE if known or (how == JSON_OR_NULL and token == ABSENT) else UNSURE
    if how == CODE or how == CODE_OR_NULL or how == JSON_OR_NULL:
        if token != STRING and how != JSON_OR_NULL:
            return UNSURE
        if token == STRING and how == JSON_OR_NULL:  # as it is written
            start, end = start - 1, end + 1
        value = _code(text, start, end, rows)
        rows.values[place] = value
        return FULL if value < 0 else DONE
    is_number = token == INTEGER or token == FRACTION or token == LONG
    if how == TEXT or how == TEXT_OR_NULL:
        is_odd = token == INTEGER and integer(text.bytes, start, end) == NULL
        is_odd |= token == STRING and has_escape(text.bytes, start, end)
        if is_odd or (token != STRING and token != INTEGER and token != LONG):
            return UNSURE
        value = _put_text(text, start, end, rows)
        rows.values[place] = value
        return FULL if value == NULL else DONE
    if how == NUMBER_OR_NULL:
        return _put_number(text, start, end, place, rows) if is_number else UNSURE
    if how == INSTANT:
        if is_number or token == STRING:
            value = nanoseconds(text.bytes, start, end, False)
    elif how == DURATION:
        if is_number:
            value = nanoseconds(text.bytes, start, end, True)
    elif token == INTEGER:
        value = integer(text.bytes, start, end)
    rows.values[place] = value
    return UNSURE if value == NULL else DONE


@compiled
def _series(text: Text, at: int, event: Event, rows: Rows) -> tuple[int, int]:
    """How many series a counter has, and its accelerator + 1; -1 for an unusual counter, -2 where
    there is no room."""
    buf = text.bytes
    found, accelerator = 0, 0
    at = past_blank(buf, at + 1)
    while buf[at] != 125:
        ends = key_end(buf, at + 1)
        code = _code(text, at + 1, ends, rows)
        if code < 0:
            return -2, 0
        at = past_blank(buf, past_blank(buf, ends + 1) + 1)
        end, token = scalar_end(buf, text.words, at)
        if token != INTEGER and token != FRACTION and token != LONG:
            return -1, 0
        if code == 0:  # the label of an accelerator
            if accelerator or token != INTEGER or end - at > 6 or buf[at] == 45:
                return -1, 0
            accelerator = integer(buf, at, end) + 1
        else:
            if found == SERIES:
                return -1, 0
            for k in range(found):
                if event.series[k] == code:
                    return -1, 0
            event.series[found] = code
            event.series_starts[found], event.series_ends[found] = at, end
            found += 1
        at = past_blank(buf, end)
        if buf[at] == 44:
            at = past_blank(buf, at + 1)
    return found, accelerator


@compiled
def _member(text: Text, at: int, keys: Keys) -> tuple[int, int]:
    """Where the value begins of the member at a place, and which known key it has; -1: damage, or
    a key with escapes."""
    if text.bytes[at] != 34:
        return -1, -1
    end = key_end(text.bytes, at + 1)
    if end < 0:
        return -1, -1
    value = past_blank(text.bytes, end + 1)
    if text.bytes[value] != 58:
        return -1, -1
    return past_blank(text.bytes, value + 1), _known(text, at + 1, end, keys)


@compiled
def _value(text: Text, at: int, slot: int, event: Event) -> int:
    """End of a value, which is put into its slot where it has one; -1: unusual, or a second one."""
    token = OTHER
    if text.bytes[at] == 123 or text.bytes[at] == 91:
        end = nested_end(text.bytes, text.words, at)
    else:
        end, token = scalar_end(text.bytes, text.words, at)
    if slot < 0:
        return end
    if event.tokens[slot] != ABSENT:
        return -1
    quoted = np.int64(token == STRING)
    event.tokens[slot], event.starts[slot], event.ends[slot] = token, at + quoted, end - quoted
    return end


@compiled
def _args(text: Text, at: int, plan: Plan, event: Event) -> int:
    """End of an object of args, its known ones in their slots; -1: unusual."""
    if text.bytes[at] != 123 or event.tokens[ARGS] != ABSENT:
        return -1
    event.tokens[ARGS], event.starts[ARGS] = OTHER, at
    at = past_blank(text.bytes, at + 1)
    if text.bytes[at] == 125:
        return at + 1
    while True:
        at, key = _member(text, at, plan.args)
        if at < 0:
            return -1
        at = _value(text, at, FIELDS + key if key >= 0 else -1, event)
        if at < 0:
            return -1
        at = past_blank(text.bytes, at)
        if text.bytes[at] == 125:
            return at + 1
        if text.bytes[at] != 44:
            return -1
        at = past_blank(text.bytes, at + 1)


@compiled
def _event(text: Text, at: int, plan: Plan, event: Event) -> int:
    """End of an event, its fields in their slots; -1: unusual."""
    if text.bytes[at] != 123:
        return -1
    for slot in range(FIELDS + len(plan.args.sizes)):
        event.tokens[slot] = ABSENT
    at = past_blank(text.bytes, at + 1)
    while True:
        at, key = _member(text, at, plan.fields)
        if at < 0:
            return -1
        at = _args(text, at, plan, event) if key == ARGS else _value(text, at, key, event)
        if at < 0:
            return -1
        at = past_blank(text.bytes, at)
        if text.bytes[at] == 125:
            return at + 1
        if text.bytes[at] != 44:
            return -1
        at = past_blank(text.bytes, at + 1)


@compiled
def _is_documented(event: Event) -> bool:
    """Whether an event's own fields are of the types that all producers write."""
    tokens = event.tokens
    for slot in (CAT, NAME):
        if tokens[slot] != STRING and tokens[slot] != NONE and tokens[slot] != ABSENT:
            return False
    for slot in (PID, TID):
        if tokens[slot] != INTEGER and tokens[slot] != NONE and tokens[slot] != ABSENT:
            return False
    if tokens[DUR] == STRING or tokens[DUR] == OTHER or (tokens[ID] == OTHER):
        return False
    is_letter: bool = event.ends[PH] - event.starts[PH] == 1
    return is_letter and tokens[PH] == STRING


@compiled
def _kind(text: Text, plan: Plan, event: Event) -> int:
    """An event's kind by category, phase, name and args; or DROP, COUNTER, FOREIGN."""
    tokens, starts, ends = event.tokens, event.starts, event.ends
    category = 0
    if tokens[CAT] == STRING:
        category = 2 + _known(text, starts[CAT], ends[CAT], plan.categories)
        if category == 1 and has_escape(text.bytes, starts[CAT], ends[CAT]):
            return FOREIGN
    kind: int = plan.actions[category, plan.phases[text.bytes[starts[PH]]]]
    if kind < 0:
        return kind
    if plan.only[kind] or plan.bare[kind]:
        name = -1
        if tokens[NAME] == STRING:
            name = _known(text, starts[NAME], ends[NAME], plan.names)
            if name < 0 and has_escape(text.bytes, starts[NAME], ends[NAME]):
                return FOREIGN
        if plan.only[kind] and (name < 0 or not (plan.only[kind] >> name) & 1):
            return DROP
        if tokens[ARGS] == ABSENT and name >= 0 and (plan.bare[kind] >> name) & 1:
            return DROP
    for slot in range(FIELDS, FIELDS + len(plan.args.sizes)):
        if not (plan.allowed[kind, slot] >> tokens[slot]) & 1:
            return FOREIGN
    for k in range(len(plan.choices)):
        if plan.choices[k, 0] == kind and tokens[plan.choices[k, 1]] == STRING:
            kind = plan.choices[k, 2]
            break
    return kind


@kept
def scan(
    text: Text, size: int, plan: Plan, counter: int, capacity: int, event: Event, rows: Rows
) -> int:
    """Add the rows of an array of events, at most `capacity` of each kind; tells how it ended.

    Whoever calls puts back the counts of rows, texts and slow numbers where it did not end DONE.
    """
    buf = text.bytes
    at = past_blank(buf, 0)
    if buf[at] != 91:
        return UNSURE
    at = past_blank(buf, at + 1)
    if buf[at] == 93:
        return DONE if past_blank(buf, at + 1) == size else UNSURE
    while True:
        at = _event(text, at, plan, event)
        if at < 0 or not _is_documented(event):
            return UNSURE
        kind = _kind(text, plan, event)
        if kind == FOREIGN:
            return UNSURE
        lines, series, accelerator = 1, 0, 0
        if kind == COUNTER:
            kind = counter
            if event.tokens[ARGS] != ABSENT:
                series, accelerator = _series(text, event.starts[ARGS], event, rows)
                if series < 0:
                    return UNSURE if series == -1 else FULL
            lines = series
        if kind >= 0 and lines:
            row = rows.counts[ROWS + kind]
            if row + lines > capacity:
                return FULL
            for line in range(lines):
                place = plan.bases[kind] + row + line
                for column in range(plan.slots.shape[1]):
                    slot = plan.slots[kind, column]
                    if slot < 0:
                        break
                    ended = _put(
                        text, plan.how[kind, column], event.tokens[slot], event.starts[slot],
                        event.ends[slot], place, rows,
                    )  # fmt: skip
                    if ended != DONE:
                        return ended
                    place += capacity
                if series:
                    rows.values[place] = (event.series[line] << 20) | accelerator
                    start, end = event.series_starts[line], event.series_ends[line]
                    ended = _put_number(text, start, end, place + capacity, rows)
                    if ended != DONE:
                        return ended
            rows.counts[ROWS + kind] = row + lines
        at = past_blank(buf, at)
        if buf[at] == 93:
            return DONE if past_blank(buf, at + 1) == size else UNSURE
        if buf[at] != 44:
            return UNSURE
        at = past_blank(buf, at + 1)
