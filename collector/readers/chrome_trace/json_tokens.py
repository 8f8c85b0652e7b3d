"""JSON taken apart byte by byte, to be compiled by numba: where values end, and their numbers.

Everything here tells what it is not sure of, for another reader to judge: damage, control
characters, halves of surrogate pairs, numbers of unusual form or of more digits than fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np import arrayobj

from .scan_codes import (
    FRACTION,
    INTEGER,
    KEY_WORDS,
    LONG,
    NONE,
    NULL,
    OTHER,
    STRING,
    Array,
    Keys,
)

# A division by zero raises nothing, and nobody counts who refers to an array.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
Function = TypeVar("Function", bound=Callable[..., Any])


def compile_inline(function: Function) -> Function:
    """Compiled into what calls it. Nothing here makes an array: counting who refers to those that
    are passed on would cost more than the work."""
    inlined: Function = njit(forceinline=True, **OPTIONS)(function)
    return inlined


def _place(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Pointer to the eight bytes from a place of an array of bytes on."""
    data = context.make_array(array_type)(context, builder, array).data
    word_type = context.get_value_type(types.uint64)
    return builder.bitcast(builder.gep(data, [offset]), word_type.as_pointer())


def _word(typing: Any, array: Any, offset: Any) -> Any:
    """Eight bytes from a place on, which need not be one of every eight."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        loaded = builder.load(_place(context, builder, array, *values))
        loaded.align = 1
        return loaded

    return types.uint64(array, types.int64), generate


def _set_word(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Put eight bytes at a place."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        stored = builder.store(values[2], _place(context, builder, array, *values[:2]))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


def _low_zeros(typing: Any, value: Any) -> Any:
    """How many bits below the lowest one that is set; the value is not 0."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], context.get_value_type(types.boolean)(1))

    return types.int64(types.uint64), generate


def _byte(typing: Any, array: Any, offset: Any) -> Any:
    """The byte at a place, which is never counted from the end, as `array[offset]` might be."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(array)(context, builder, values[0]).data
        loaded = builder.load(builder.gep(data, [values[1]]))
        return builder.zext(loaded, context.get_value_type(types.int64))

    return types.int64(array, types.int64), generate


byte: Any = intrinsic(_byte)
word: Any = intrinsic(_word)
low_zeros: Any = intrinsic(_low_zeros)
set_word: Any = intrinsic(_set_word)


def array_type(dtype: Any, n_axes: int) -> Any:
    """What gives the array of a number in a table, whose lines are address and lengths."""
    array = types.Array(dtype, n_axes, "C")
    populate: Any = arrayobj.populate_array

    def array_at(typing: Any, table: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            whole = context.get_value_type(types.int64)
            lines = builder.inttoptr(values[0], whole.as_pointer())
            line = builder.mul(values[1], whole(3))
            address, *lengths = (
                builder.load(builder.gep(lines, [builder.add(line, whole(place))]))
                for place in range(1 + n_axes)
            )
            item = context.get_value_type(dtype)
            size = whole(context.get_abi_sizeof(item))
            strides = [size] if n_axes == 1 else [builder.mul(lengths[1], size), size]
            result = context.make_array(array)(context, builder)
            data = builder.inttoptr(address, item.as_pointer())
            populate(result, data, lengths, strides, size, None)
            return result._getvalue()

        return array(types.int64, types.int64), generate

    return intrinsic(array_at)


MIX = np.uint64(0x9E3779B97F4A7C15)
MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
SHIFT = np.uint64(29)
_TENS = 10.0 ** np.arange(23)
_LAST_NS = (1 << 62) - 1
_EXACT_DIGITS = 15
_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_BLANKS = np.uint64(0x2020202020202020)


@compile_inline
def past_blank(buf: Array, i: int) -> int:
    """Place of the first byte from i on that is no blank."""
    while True:
        c = byte(buf, i)
        if c != 32 and c != 10 and c != 13 and c != 9:
            return i
        i += 1


@compile_inline
def string_end(buf: Array, i: int) -> int:
    """Place of the closing quote of a string whose content begins at i; -1 where it is unusual."""
    while True:
        w = word(buf, i)
        quote, slash = w ^ _QUOTES, w ^ _SLASHES
        marks = ((quote - _LOW) & ~quote) | ((slash - _LOW) & ~slash) | ((w - _BLANKS) & ~w)
        marks &= _HIGH
        if marks == 0:
            i += 8
            continue
        i += low_zeros(marks) >> 3  # above the lowest bit others may be set that mean nothing
        c = byte(buf, i)
        if c == 34:
            return i
        if c < 32:
            return -1
        c = byte(buf, i + 1)
        if c == 117:
            for k in range(2, 6):
                h = byte(buf, i + k)
                if not (48 <= h <= 57 or 65 <= h <= 70 or 97 <= h <= 102):
                    return -1
            if (byte(buf, i + 2) | 32) == 100 and byte(buf, i + 3) >= 56:  # half of a pair
                return -1
            i += 6
        elif c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110:
            i += 2
        elif c == 114 or c == 116:
            i += 2
        else:
            return -1


@compile_inline
def key_end(buf: Array, i: int) -> int:
    """As `string_end`, of a string without escapes."""
    while True:
        c = byte(buf, i)
        if c == 34:
            return i
        if c < 32 or c == 92:
            return -1
        i += 1


@compile_inline
def number_end(buf: Array, i: int) -> tuple[int, bool]:
    """End of a number and whether it is a whole one; -1 where it is none."""
    if byte(buf, i) == 45:
        i += 1
    c = byte(buf, i)
    if c == 48:
        i += 1
    elif 49 <= c <= 57:
        while 48 <= byte(buf, i) <= 57:
            i += 1
    else:
        return -1, False
    whole = True
    if byte(buf, i) == 46:
        whole = False
        i += 1
        if not 48 <= byte(buf, i) <= 57:
            return -1, False
        while 48 <= byte(buf, i) <= 57:
            i += 1
    if byte(buf, i) | 32 == 101:
        whole = False
        i += 1
        if byte(buf, i) == 43 or byte(buf, i) == 45:
            i += 1
        if not 48 <= byte(buf, i) <= 57:
            return -1, False
        while 48 <= byte(buf, i) <= 57:
            i += 1
    return i, whole


@compile_inline
def literal_end(buf: Array, i: int) -> int:
    """End of true, false or null; -1 where it is none of them."""
    c = byte(buf, i)
    if c == 110 and byte(buf, i + 1) == 117 and byte(buf, i + 2) == 108 and byte(buf, i + 3) == 108:
        return i + 4
    if c == 116 and byte(buf, i + 1) == 114 and byte(buf, i + 2) == 117 and byte(buf, i + 3) == 101:
        return i + 4
    if c == 102 and byte(buf, i + 1) == 97 and byte(buf, i + 2) == 108 and byte(buf, i + 3) == 115:
        if byte(buf, i + 4) == 101:
            return i + 5
    return -1


@compile_inline
def scalar_end(buf: Array, i: int) -> tuple[int, int]:
    """End of a value that holds no others, behind its quote where it is a string; -1: unusual."""
    c = byte(buf, i)
    if c == 34:
        end = string_end(buf, i + 1)
        return (end + 1 if end >= 0 else -1), STRING
    if c == 45 or 48 <= c <= 57:
        end, whole = number_end(buf, i)
        return end, (FRACTION if not whole else INTEGER if end - i < 19 else LONG)
    return literal_end(buf, i), (NONE if c == 110 else OTHER)


@compile_inline
def nested_end(buf: Array, i: int) -> int:
    """End of an array or object at i; -1 where it is damaged or nested deeply."""
    objects = np.uint64(0)  # a bit for each level: whether it is an object
    depth = 0
    while True:  # a value begins here
        c = byte(buf, i)
        if c == 123 or c == 91:
            depth += 1
            if depth > 60:
                return -1
            objects = (objects << np.uint64(1)) | np.uint64(c == 123)
            i = past_blank(buf, i + 1)
            if byte(buf, i) == (125 if c == 123 else 93):
                i += 1
                depth -= 1
                objects >>= np.uint64(1)
            elif c == 123:
                i = _member(buf, i)
                if i < 0:
                    return -1
                continue
            else:
                continue
        else:
            i, _ = scalar_end(buf, i)
            if i < 0:
                return -1
        while True:  # a value ended before i
            if depth == 0:
                return i
            i = past_blank(buf, i)
            c = byte(buf, i)
            inside = objects & np.uint64(1)
            if c == 44:
                i = past_blank(buf, i + 1)
                if inside:
                    i = _member(buf, i)
                    if i < 0:
                        return -1
                break
            if c != (125 if inside else 93):
                return -1
            i += 1
            depth -= 1
            objects >>= np.uint64(1)


@compile_inline
def _member(buf: Array, i: int) -> int:
    """Where the value of the member begins whose key begins at i; -1 where there is none."""
    if byte(buf, i) != 34:
        return -1
    i = string_end(buf, i + 1)
    if i < 0:
        return -1
    i = past_blank(buf, i + 1)
    if byte(buf, i) != 58:
        return -1
    return past_blank(buf, i + 1)


@compile_inline
def integer(buf: Array, i: int, end: int) -> int:
    """A whole number of up to 18 digits; NULL for -0."""
    negative = byte(buf, i) == 45
    if negative:
        i += 1
    if negative and byte(buf, i) == 48:
        return NULL
    value: Any = 0
    for k in range(i, end):
        value = value * 10 + (byte(buf, k) - 48)
    whole: int = -value if negative else value
    return whole


@compile_inline
def nanoseconds(buf: Array, i: int, end: int, is_double: bool) -> int:
    """Microseconds without sign and exponent as whole ns, half to even; NULL for another form.

    `is_double`: the present reader reads a double and rounds the shortest digits that give it; of
    up to 15 digits these are the digits here, of more they differ little.
    """
    first = i
    value: Any = 0
    while i < end and 48 <= byte(buf, i) <= 57:
        value = value * 10 + (byte(buf, i) - 48)
        i += 1
    whole = i - first
    if whole == 0 or whole > 16 or value > _LAST_NS // 1000:
        return NULL
    if whole > 1 and byte(buf, first) == 48:
        return NULL
    digits, more = 0, False
    rest: Any = 0
    if i < end:
        if byte(buf, i) != 46 or i + 1 == end:
            return NULL
        for k in range(i + 1, end):
            c = byte(buf, k)
            if not 48 <= c <= 57:
                return NULL
            if digits < 3:
                value = value * 10 + (c - 48)
            elif digits < 7:
                rest = rest * 10 + (c - 48)
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


@compile_inline
def double(buf: Array, i: int, end: int) -> tuple[float, bool]:
    """A number as the nearest double, and whether that is sure."""
    negative = byte(buf, i) == 45
    if negative:
        i += 1
    mantissa: Any = 0
    digits, decimals, point = 0, 0, False
    for k in range(i, end):
        c = byte(buf, k)
        if c == 46:
            point = True
        elif 48 <= c <= 57:
            mantissa = mantissa * 10 + (c - 48)
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


@compile_inline
def has_escape(buf: Array, start: int, end: int) -> bool:
    """Whether a string's content has a backslash."""
    for k in range(start, end):
        if byte(buf, k) == 92:
            return True
    return False


@compile_inline
def is_key(text: Array, at: int, key: int, keys: Keys) -> bool:
    """Whether a string's content is this known key."""
    size: int = keys.sizes[key]
    if byte(text, at + size) != 34:
        return False
    last = size >> 3
    for k in range(last):
        if keys.words[key, k] != word(text, at + 8 * k):
            return False
    left: bool = keys.words[key, last] == word(text, at + 8 * last) & MASKS[size & 7]
    return left


@compile_inline
def known_key(text: Array, start: int, end: int, keys: Keys) -> int:
    """Number of a known key; -1 for another one."""
    size = end - start
    if size > 8 * KEY_WORDS:
        return -1
    h = np.uint64(size)
    for k in range((size + 7) >> 3):
        h = (h ^ (word(text, start + 8 * k) & MASKS[min(8, size - 8 * k)])) * MIX
        h ^= h >> SHIFT
    at = np.int64(h & np.uint64(len(keys.table) - 1))
    while keys.table[at]:
        key: int = keys.table[at] - 1
        if keys.sizes[key] == size and is_key(text, start, key, keys):
            return key
        at = (at + 1) & (len(keys.table) - 1)
    return -1
