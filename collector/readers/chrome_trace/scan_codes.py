"""What a compiled pass and those who call it agree on: numbers, and the arrays they share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

PADDING = 64  # bytes behind a text that may be looked at
NULL = -(2**63)
KEY_WORDS = 4  # a known key has no more than so many times eight bytes
SERIES = 16  # a counter with more of them is read by the present reader
# Tokens. LONG: a whole number of over 18 digits.
ABSENT, STRING, INTEGER, FRACTION, NONE, OTHER, LONG = range(7)
# How a scan ends.
DONE, UNSURE, FULL = range(3)
# How a token becomes a value. Without `_OR_NULL` it has to be there.
WHOLE, WHOLE_OR_NULL, CODE, CODE_OR_NULL, TEXT, TEXT_OR_NULL = range(1, 7)
INSTANT, DURATION, NUMBER_OR_NULL, JSON_OR_NULL = range(7, 11)
# Fields of an event: their slots; those of args follow.
PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS = range(9)
FIELDS = 9
# What is to be done with an event of a class and phase, if it is no kind's number.
DROP, COUNTER, FOREIGN = -1, -2, -3
# Places in the counts: rows of each kind follow `ROWS`.
ENTRIES, ENTRY_BYTES, TEXT_BYTES, SLOW, ROWS = range(5)


class Keys(NamedTuple):
    """Known keys: their words, zeros behind the last byte, and one more; their sizes; numbers + 1
    by hash."""

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
    series. found: how many known args there are, and their slots. guesses: which known key came
    after each the last time, of fields and then of args."""

    tokens: Array
    starts: Array
    ends: Array
    series: Array
    series_starts: Array
    series_ends: Array
    found: Array
    guesses: Array


class Rows(NamedTuple):
    """What was taken. Columns stand in `values` (and as doubles in `floats`, which is the same
    memory) one behind the other. slow: place and text of numbers to be read with care. entries:
    place and size of the dictionary's strings in `store`; table: codes + 1 by hash."""

    values: Array
    floats: Array
    slow: Array
    entries: Array
    table: Array
    store: Array
    texts: Array
    counts: Array


ARRAYS = 1 + 3 * 4 + 9 + len(Event._fields) + len(Rows._fields)  # a text, a plan, an event, rows
TABLE = 3 * ARRAYS + 6  # address and lengths of each; those of what is asked; what is
