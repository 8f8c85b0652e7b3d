"""One pass over the bytes of whole events, to be compiled by numba: what stands where, as numbers.

    bytes --tokens--> one event's fields --convert--> a row of its kind: int64 for each column

Strings that repeat become codes of a dictionary of the bytes as they are written, others places in
an arena. The pass takes only what it knows to read exactly as the present reader does. On anything
else (damage, a key twice, escapes in keys, numbers of unusual form, types that are not documented)
it stops with `UNSURE`, and that reader takes the whole piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from .json_tokens import (
    MASKS,
    MIX,
    OPTIONS,
    SHIFT,
    array_type,
    byte,
    compile_inline,
    double,
    has_escape,
    integer,
    is_key,
    key_end,
    known_key,
    nanoseconds,
    nested_end,
    past_blank,
    scalar_end,
    set_word,
    word,
)
from .scan_codes import (
    ABSENT,
    ARGS,
    ARRAYS,
    CAT,
    CODE,
    CODE_OR_NULL,
    COUNTER,
    DONE,
    DROP,
    DUR,
    DURATION,
    ENTRIES,
    ENTRY_BYTES,
    FIELDS,
    FOREIGN,
    FRACTION,
    FULL,
    ID,
    INSTANT,
    INTEGER,
    JSON_OR_NULL,
    LONG,
    NAME,
    NONE,
    NULL,
    NUMBER_OR_NULL,
    OTHER,
    PADDING,
    PH,
    PID,
    ROWS,
    SERIES,
    SLOW,
    STRING,
    TEXT,
    TEXT_BYTES,
    TEXT_OR_NULL,
    TID,
    UNSURE,
    WHOLE_OR_NULL,
    Array,
    Event,
    Keys,
    Plan,
    Rows,
)


@compile_inline
def _code(text: Array, start: int, end: int, rows: Rows) -> int:
    """Code of a string, entered where it is new; -1 where there is no more room."""
    size = end - start
    h, last = np.uint64(size), start + size - (size & 7)
    for k in range(start, last, 8):
        h = (h ^ word(text, k)) * MIX
        h ^= h >> SHIFT
    left = word(text, last) & MASKS[size & 7]
    if last < end:
        h = (h ^ left) * MIX
        h ^= h >> SHIFT
    at = np.int64(h & np.uint64(len(rows.table) - 1))
    while rows.table[at]:
        code: int = rows.table[at] - 1
        if rows.entries[code, 1] == size:
            place = rows.entries[code, 0]
            same = left == word(rows.store, place + last - start) & MASKS[size & 7]
            for k in range(0, last - start, 8):
                if word(text, start + k) != word(rows.store, place + k):
                    same = False
                    break
            if same:
                return code
        at = (at + 1) & (len(rows.table) - 1)
    new: int = rows.counts[ENTRIES]
    place = rows.counts[ENTRY_BYTES]
    if new == len(rows.entries) or place + size + PADDING > len(rows.store):
        return -1
    for k in range(0, size, 8):
        set_word(rows.store, place + k, word(text, start + k))
    rows.entries[new, 0], rows.entries[new, 1] = place, size
    rows.table[at] = new + 1
    rows.counts[ENTRIES], rows.counts[ENTRY_BYTES] = new + 1, place + size
    return new


@compile_inline
def _put_text(text: Array, start: int, end: int, rows: Rows) -> int:
    """Place and size of text put into the arena, in one number; NULL where it has no room."""
    place: int = rows.counts[TEXT_BYTES]
    size = end - start
    if place + size + PADDING > len(rows.texts):
        return NULL
    for k in range(0, size, 8):
        set_word(rows.texts, place + k, word(text, start + k))
    rows.counts[TEXT_BYTES] = place + size
    return (place << 24) | size


@compile_inline
def _put_number(text: Array, start: int, end: int, place: int, rows: Rows) -> int:
    """Put a double at a place; text of one that is not sure waits in `slow`."""
    value, sure = double(text, start, end)
    rows.floats[place] = value
    if sure:
        return DONE
    if end - start > 40:
        return UNSURE
    for k in range(start, end):
        if byte(text, k) | 32 == 101:
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


@compile_inline
def _put(text: Array, how: int, token: int, start: int, end: int, place: int, rows: Rows) -> int:
    """Put a field's value at a place of the columns."""
    value = NULL
    if token == ABSENT or token == NONE:
        if how == NUMBER_OR_NULL:
            rows.floats[place] = np.nan
            return DONE
        rows.values[place] = NULL
        is_value = how == WHOLE_OR_NULL or how == CODE_OR_NULL or how == TEXT_OR_NULL
        return DONE if is_value or (how == JSON_OR_NULL and token == ABSENT) else UNSURE
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
        is_odd = token == INTEGER and integer(text, start, end) == NULL
        is_odd |= token == STRING and has_escape(text, start, end)
        if is_odd or (token != STRING and token != INTEGER and token != LONG):
            return UNSURE
        value = _put_text(text, start, end, rows)
        rows.values[place] = value
        return FULL if value == NULL else DONE
    if how == NUMBER_OR_NULL:
        return _put_number(text, start, end, place, rows) if is_number else UNSURE
    if how == INSTANT:
        if is_number or token == STRING:
            value = nanoseconds(text, start, end, False)
    elif how == DURATION:
        if is_number:
            value = nanoseconds(text, start, end, True)
    elif token == INTEGER:
        value = integer(text, start, end)
    rows.values[place] = value
    return UNSURE if value == NULL else DONE


@compile_inline
def _series(text: Array, at: int, event: Event, rows: Rows) -> tuple[int, int]:
    """How many series a counter has, and its accelerator + 1; -1 for an unusual counter, -2 where
    there is no room."""
    count, accelerator = 0, 0
    at = past_blank(text, at + 1)
    while byte(text, at) != 125:
        ends = key_end(text, at + 1)
        code = _code(text, at + 1, ends, rows)
        if code < 0:
            return -2, 0
        at = past_blank(text, past_blank(text, ends + 1) + 1)
        end, token = scalar_end(text, at)
        if token != INTEGER and token != FRACTION and token != LONG:
            return -1, 0
        if code == 0:  # the label of an accelerator
            if accelerator or token != INTEGER or end - at > 6 or byte(text, at) == 45:
                return -1, 0
            accelerator = integer(text, at, end) + 1
        else:
            if count == SERIES:
                return -1, 0
            for k in range(count):
                if event.series[k] == code:
                    return -1, 0
            event.series[count] = code
            event.series_starts[count], event.series_ends[count] = at, end
            count += 1
        at = past_blank(text, end)
        if byte(text, at) == 44:
            at = past_blank(text, at + 1)
    return count, accelerator


@compile_inline
def _member(text: Array, at: int, keys: Keys, guesses: Array, before: int) -> tuple[int, int]:
    """Where the value begins of the member at a place, and which known key it has; -1: damage, or
    a key with escapes. Most keys are the one that came the last time after the key `before`."""
    if byte(text, at) != 34:
        return -1, -1
    at += 1
    key: int = guesses[before]
    if key >= 0 and is_key(text, at, key, keys):
        end = at + keys.sizes[key]
    else:
        end = key_end(text, at)
        if end < 0:
            return -1, -1
        key = known_key(text, at, end, keys)
        guesses[before] = key
    value = past_blank(text, end + 1)
    if byte(text, value) != 58:
        return -1, -1
    return past_blank(text, value + 1), key


@compile_inline
def _value(text: Array, at: int, slot: int, event: Event) -> int:
    """End of a value, which is put into its slot where it has one; -1: unusual, or a second one."""
    token = OTHER
    if byte(text, at) == 123 or byte(text, at) == 91:
        end = nested_end(text, at)
    else:
        end, token = scalar_end(text, at)
    if slot < 0:
        return end
    if event.tokens[slot] != ABSENT:
        return -1
    quoted = np.int64(token == STRING)
    event.tokens[slot], event.starts[slot], event.ends[slot] = token, at + quoted, end - quoted
    return end


@compile_inline
def _args(text: Array, at: int, plan: Plan, event: Event) -> int:
    """End of an object of args, its known ones in their slots; -1: unusual."""
    if byte(text, at) != 123 or event.tokens[ARGS] != ABSENT:
        return -1
    event.tokens[ARGS], event.starts[ARGS] = OTHER, at
    at = past_blank(text, at + 1)
    if byte(text, at) == 125:
        return at + 1
    unknown = FIELDS + 2 + len(plan.args.sizes)
    before = unknown + 1
    while True:
        at, key = _member(text, at, plan.args, event.guesses, before)
        if at < 0:
            return -1
        before = unknown if key < 0 else FIELDS + 2 + key
        at = _value(text, at, FIELDS + key if key >= 0 else -1, event)
        if at < 0:
            return -1
        if key >= 0:
            event.found[0] += 1
            event.found[event.found[0]] = FIELDS + key
        at = past_blank(text, at)
        if byte(text, at) == 125:
            return at + 1
        if byte(text, at) != 44:
            return -1
        at = past_blank(text, at + 1)


@compile_inline
def _event(text: Array, at: int, plan: Plan, event: Event) -> int:
    """End of an event, its fields in their slots; -1: unusual."""
    if byte(text, at) != 123:
        return -1
    for slot in range(FIELDS + len(plan.args.sizes)):
        event.tokens[slot] = ABSENT
    event.found[0] = 0
    at = past_blank(text, at + 1)
    before = FIELDS + 1
    while True:
        at, key = _member(text, at, plan.fields, event.guesses, before)
        if at < 0:
            return -1
        before = FIELDS if key < 0 else key
        at = _args(text, at, plan, event) if key == ARGS else _value(text, at, key, event)
        if at < 0:
            return -1
        at = past_blank(text, at)
        if byte(text, at) == 125:
            return at + 1
        if byte(text, at) != 44:
            return -1
        at = past_blank(text, at + 1)


@compile_inline
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


@compile_inline
def _kind(text: Array, plan: Plan, event: Event) -> int:
    """An event's kind by category, phase, name and args; or DROP, COUNTER, FOREIGN."""
    tokens, starts, ends = event.tokens, event.starts, event.ends
    category = 0
    if tokens[CAT] == STRING:
        category = 2 + known_key(text, starts[CAT], ends[CAT], plan.categories)
        if category == 1 and has_escape(text, starts[CAT], ends[CAT]):
            return FOREIGN
    kind: int = plan.actions[category, plan.phases[byte(text, starts[PH])]]
    if kind < 0:
        return kind
    if plan.only[kind] or plan.bare[kind]:
        name = -1
        if tokens[NAME] == STRING:
            name = known_key(text, starts[NAME], ends[NAME], plan.names)
            if name < 0 and has_escape(text, starts[NAME], ends[NAME]):
                return FOREIGN
        if plan.only[kind] and (name < 0 or not (plan.only[kind] >> name) & 1):
            return DROP
        if tokens[ARGS] == ABSENT and name >= 0 and (plan.bare[kind] >> name) & 1:
            return DROP
    for number in range(1, 1 + event.found[0]):  # what is absent is allowed
        slot = event.found[number]
        if not (plan.allowed[kind, slot] >> tokens[slot]) & 1:
            return FOREIGN
    for k in range(len(plan.choices)):
        if plan.choices[k, 0] == kind and tokens[plan.choices[k, 1]] == STRING:
            kind = plan.choices[k, 2]
            break
    return kind


@compile_inline
def _scan(
    text: Array, size: int, plan: Plan, counter: int, capacity: int, event: Event, rows: Rows
) -> int:
    """Add the rows of an array of events, at most `capacity` of each kind; tells how it ended.

    Whoever calls puts back the counts of rows, texts and slow numbers where it did not end DONE.
    """
    at = past_blank(text, 0)
    if byte(text, at) != 91:
        return UNSURE
    at = past_blank(text, at + 1)
    if byte(text, at) == 93:
        return DONE if past_blank(text, at + 1) == size else UNSURE
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
        at = past_blank(text, at)
        if byte(text, at) == 93:
            return DONE if past_blank(text, at + 1) == size else UNSURE
        if byte(text, at) != 44:
            return UNSURE
        at = past_blank(text, at + 1)


_words, _grid = array_type(types.uint64, 2), array_type(types.int64, 2)
_wholes, _doubles = array_type(types.int64, 1), array_type(types.float64, 1)
_codes, _bytes = array_type(types.int32, 1), array_type(types.uint8, 1)


def scan(at: int) -> int:
    """As `_scan`, of arrays that a table at an address tells of: see `scan_library`."""
    plan = Plan(
        Keys(_words(at, 1), _wholes(at, 2), _wholes(at, 3)),
        Keys(_words(at, 4), _wholes(at, 5), _wholes(at, 6)),
        Keys(_words(at, 7), _wholes(at, 8), _wholes(at, 9)),
        Keys(_words(at, 10), _wholes(at, 11), _wholes(at, 12)),
        _wholes(at, 13), _grid(at, 14), _wholes(at, 15), _wholes(at, 16), _grid(at, 17),
        _grid(at, 18), _grid(at, 19), _grid(at, 20), _wholes(at, 21),
    )  # fmt: skip
    event = Event(
        _wholes(at, 22), _wholes(at, 23), _wholes(at, 24), _wholes(at, 25), _wholes(at, 26),
        _wholes(at, 27), _wholes(at, 28), _wholes(at, 29),
    )  # fmt: skip
    rows = Rows(
        _wholes(at, 30), _doubles(at, 31), _grid(at, 32), _grid(at, 33), _codes(at, 34),
        _bytes(at, 35), _bytes(at, 36), _wholes(at, 37),
    )  # fmt: skip
    counts = _wholes(at, ARRAYS)
    return _scan(_bytes(at, 0), counts[0], plan, counts[1], counts[2], event, rows)


def compile_scan() -> tuple[str, str]:
    """The scan in LLVM's language, and what it is called there."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **OPTIONS}
    done: Any = njit(types.int64(types.int64), **options)(scan)
    (overload,) = done.overloads.values()
    return overload.library.get_llvm_str(), overload.fndesc.llvm_func_name
