"""JSON taken apart byte by byte, compiled by numba: where values end, and numbers of them.

Everything here tells what it is not sure of, for another reader to judge: damage, control
characters, halves of surrogate pairs, numbers of unusual form or of more digits than fit.

Words are eight bytes from any byte on: whoever gives a buffer leaves `PADDING` bytes behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import config as _config
from numba import njit

from ...store.cache import cache_folder

Array = np.ndarray[Any, Any]


class Text(NamedTuple):
    """Bytes, and the words that begin at each of them."""

    bytes: Array
    words: Array


# A division by zero raises nothing, and nobody counts who refers to an array.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
Function = TypeVar("Function", bound=Callable[..., Any])

PADDING = 64
NULL = -(2**63)
# Tokens.
ABSENT, STRING, INTEGER, FRACTION, NONE, OTHER, LONG = range(7)  # LONG: of over 18 digits


def compiled(function: Function) -> Function:
    """Compiled into what calls it. Nothing here makes an array: counting who refers to those that
    are passed on would cost more than the work."""
    inlined: Function = njit(forceinline=True, **OPTIONS)(function)
    return inlined


def kept(function: Function) -> Function:
    """Compiled for Python to call, and kept in the user's cache for the processes to come.

    Raises RuntimeError where no folder can be written.
    """
    config: Any = _config
    before = config.CACHE_DIR
    # What was compiled of other sources must not count: numba looks at the caller's alone.
    state = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        state.update(source.read_bytes())
    base = Path(before or cache_folder() / "compiled")
    config.CACHE_DIR = str(base / state.hexdigest()[:16])
    try:
        called: Function = njit(cache=True, nogil=True, **OPTIONS)(function)
    finally:
        config.CACHE_DIR = before
    return called


_TENS = 10.0 ** np.arange(23)
_LAST_NS = (1 << 62) - 1
_EXACT_DIGITS = 15
_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_BLANKS = np.uint64(0x2020202020202020)


@compiled
def past_blank(buf: Array, i: int) -> int:
    """Place of the first byte from i on that is no blank."""
    while True:
        c = buf[i]
        if c != 32 and c != 10 and c != 13 and c != 9:
            return i
        i += 1


@compiled
def string_end(buf: Array, words: Array, i: int) -> int:
    """Place of the closing quote of a string whose content begins at i; -1 where it is unusual."""
    while True:
        w = words[i]
        quote, slash = w ^ _QUOTES, w ^ _SLASHES
        found = ((quote - _LOW) & ~quote) | ((slash - _LOW) & ~slash) | ((w - _BLANKS) & ~w)
        if found & _HIGH == 0:
            i += 8
            continue
        while True:
            c = buf[i]
            if c == 34:
                return i
            if c < 32:
                return -1
            if c == 92:
                c = buf[i + 1]
                if c == 117:
                    for k in range(2, 6):
                        h = buf[i + k]
                        if not (48 <= h <= 57 or 65 <= h <= 70 or 97 <= h <= 102):
                            return -1
                    if (buf[i + 2] | 32) == 100 and buf[i + 3] >= 56:  # half of a pair
                        return -1
                    i += 6
                elif c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110:
                    i += 2
                elif c == 114 or c == 116:
                    i += 2
                else:
                    return -1
                break
            i += 1


@compiled
def key_end(buf: Array, i: int) -> int:
    """As `string_end`, of a string without escapes."""
    while True:
        c = buf[i]
        if c == 34:
            return i
        if c < 32 or c == 92:
            return -1
        i += 1


@compiled
def number_end(buf: Array, i: int) -> tuple[int, bool]:
    """End of a number and whether it is a whole one; -1 where it is none."""
    if buf[i] == 45:
        i += 1
    c = buf[i]
    if c == 48:
        i += 1
    elif 49 <= c <= 57:
        while 48 <= buf[i] <= 57:
            i += 1
    else:
        return -1, False
    whole = True
    if buf[i] == 46:
        whole = False
        i += 1
        if not 48 <= buf[i] <= 57:
            return -1, False
        while 48 <= buf[i] <= 57:
            i += 1
    if buf[i] | 32 == 101:
        whole = False
        i += 1
        if buf[i] == 43 or buf[i] == 45:
            i += 1
        if not 48 <= buf[i] <= 57:
            return -1, False
        while 48 <= buf[i] <= 57:
            i += 1
    return i, whole


@compiled
def literal_end(buf: Array, i: int) -> int:
    """End of true, false or null; -1 where it is none of them."""
    c = buf[i]
    if c == 110 and buf[i + 1] == 117 and buf[i + 2] == 108 and buf[i + 3] == 108:
        return i + 4
    if c == 116 and buf[i + 1] == 114 and buf[i + 2] == 117 and buf[i + 3] == 101:
        return i + 4
    if c == 102 and buf[i + 1] == 97 and buf[i + 2] == 108 and buf[i + 3] == 115:
        if buf[i + 4] == 101:
            return i + 5
    return -1


@compiled
def scalar_end(buf: Array, words: Array, i: int) -> tuple[int, int]:
    """End of a value that holds no others, behind its quote where it is a string; -1: unusual."""
    c = buf[i]
    if c == 34:
        end = string_end(buf, words, i + 1)
        return (end + 1 if end >= 0 else -1), STRING
    if c == 45 or 48 <= c <= 57:
        end, whole = number_end(buf, i)
        return end, (FRACTION if not whole else INTEGER if end - i < 19 else LONG)
    return literal_end(buf, i), (NONE if c == 110 else OTHER)


@compiled
def nested_end(buf: Array, words: Array, i: int) -> int:
    """End of an array or object at i; -1 where it is damaged or nested deeply."""
    objects = np.uint64(0)  # a bit for each level: whether it is an object
    depth = 0
    while True:  # a value begins here
        c = buf[i]
        if c == 123 or c == 91:
            depth += 1
            if depth > 60:
                return -1
            objects = (objects << np.uint64(1)) | np.uint64(c == 123)
            i = past_blank(buf, i + 1)
            if buf[i] == (125 if c == 123 else 93):
                i += 1
                depth -= 1
                objects >>= np.uint64(1)
            elif c == 123:
                i = _member(buf, words, i)
                if i < 0:
                    return -1
                continue
            else:
                continue
        else:
            i, _ = scalar_end(buf, words, i)
            if i < 0:
                return -1
        while True:  # a value ended before i
            if depth == 0:
                return i
            i = past_blank(buf, i)
            c = buf[i]
            inside = objects & np.uint64(1)
            if c == 44:
                i = past_blank(buf, i + 1)
                if inside:
                    i = _member(buf, words, i)
                    if i < 0:
                        return -1
                break
            if c != (125 if inside else 93):
                return -1
            i += 1
            depth -= 1
            objects >>= np.uint64(1)


@compiled
def _member(buf: Array, words: Array, i: int) -> int:
    """Where the value of the member begins whose key begins at i; -1 where there is none."""
    if buf[i] != 34:
        return -1
    i = string_end(buf, words, i + 1)
    if i < 0:
        return -1
    i = past_blank(buf, i + 1)
    if buf[i] != 58:
        return -1
    return past_blank(buf, i + 1)


@compiled
def integer(buf: Array, i: int, end: int) -> int:
    """A whole number of up to 18 digits; NULL for -0."""
    negative = buf[i] == 45
    if negative:
        i += 1
    if negative and buf[i] == 48:
        return NULL
    value: Any = 0
    for k in range(i, end):
        value = value * 10 + np.int64(buf[k] - 48)
    whole: int = -value if negative else value
    return whole


@compiled
def nanoseconds(buf: Array, i: int, end: int, is_double: bool) -> int:
    """Microseconds without sign and exponent as whole ns, half to even; NULL for another form.

    `is_double`: the present reader reads a double and rounds the shortest digits that give it; of
    up to 15 digits these are the digits here, of more they differ little.
    """
    first = i
    value: Any = 0
    while i < end and 48 <= buf[i] <= 57:
        value = value * 10 + np.int64(buf[i] - 48)
        i += 1
    whole = i - first
    if whole == 0 or whole > 16 or (whole > 1 and buf[first] == 48) or value > _LAST_NS // 1000:
        return NULL
    digits, more = 0, False
    rest: Any = 0
    if i < end:
        if buf[i] != 46 or i + 1 == end:
            return NULL
        for k in range(i + 1, end):
            c = buf[k]
            if not 48 <= c <= 57:
                return NULL
            if digits < 3:
                value = value * 10 + np.int64(c - 48)
            elif digits < 7:
                rest = rest * 10 + np.int64(c - 48)
            elif c != 48:
                more = True
            digits += 1
    for _ in range(digits, 3):
        value *= 10
    for _ in range(max(digits, 3), 7):
        rest *= 10
    if is_double and whole + digits > _EXACT_DIGITS and (4980 < rest < 5020 or whole > 7):
        return NULL
    if rest > 5000 or (rest == 5000 and (more or value & 1)):
        value += 1
    return value if value <= _LAST_NS else NULL


@compiled
def double(buf: Array, i: int, end: int) -> tuple[float, bool]:
    """A number as the nearest double, and whether that is sure."""
    negative = buf[i] == 45
    if negative:
        i += 1
    mantissa: Any = 0
    digits, decimals, point = 0, 0, False
    for k in range(i, end):
        c = buf[k]
        if c == 46:
            point = True
        elif 48 <= c <= 57:
            mantissa = mantissa * 10 + np.int64(c - 48)
            digits += mantissa > 0
            decimals += point
            if digits > _EXACT_DIGITS:
                return 0.0, False
        else:
            return 0.0, False
    if decimals > 22:
        return 0.0, False
    value = mantissa / _TENS[decimals]
    return (-value if negative else value), True


@compiled
def has_escape(buf: Array, start: int, end: int) -> bool:
    """Whether a string's content has a backslash."""
    for k in range(start, end):
        if buf[k] == 92:
            return True
    return False
