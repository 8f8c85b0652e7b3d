"""The nesting that communication.json and communication_matrix.json share, undone lazily.

    {"step13": {"p2p": {"hcom_send__097_0_1@<group hash>": ENTRY, ...}, "collective": {...}}, ...}

msprof's own files are flat: `{"hcom_...@<group hash>": ENTRY, ...}`, and others lack one of the
levels. Only the keys and the undecoded text of each entry are held beside the file's bytes; entries
are decoded one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from npuscope.errors import TraceFormatError

from ...model import ReadLog
from ...small_files import open_regular
from ..damaged_files import open_error

_BOM = b"\xef\xbb\xbf"
# What Python's json writes for a float that is no number; within a name no such value stands alone.
_NO_NUMBER = re.compile(rb"(?<=[\s:,\[])(?:NaN|-?Infinity)(?=[\s,\]}])")
_CATEGORIES = ("p2p", "collective")
_ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Entry(NamedTuple):
    """One operation: `step` is 'step13', 'step' or ''; `category` p2p, collective or ''."""

    step: str
    category: str
    name: str
    group_hash: str
    json: msgspec.Raw


def entries(path: str) -> Iterator[Entry]:
    """Every operation's entry, sums over operations left out.

    Raises TraceFormatError for a file that is empty, cut short or no such file.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise open_error(path, error) from None
    data = data.removeprefix(_BOM)
    if not data.strip():
        raise TraceFormatError(path, "the whole file", "empty file")
    try:
        steps = _children(path, data, "the whole file")
    except TraceFormatError:
        steps = _children(path, without_nan(data), "the whole file")
    # A version, say, beside the operations; a file that names neither them nor steps is foreign.
    if any(_is_named(key) for key, _ in steps):
        steps = [
            (key, value) for key, value in steps
            if _is_named(key) or bytes(memoryview(value)[:1]) == b"{"
        ]  # fmt: skip
    for key, value in steps:
        if "@" in key or key.lower().startswith("total"):
            yield from _operation("", "", key, value)
            continue
        step, category = ("", key) if key in _CATEGORIES else (key, "")
        for inner, operations in _children(path, value, key):
            if "@" in inner or inner.lower().startswith("total"):
                yield from _operation(step, category, inner, operations)
                continue
            for name, entry in _children(path, operations, f"{key}/{inner}"):
                yield from _operation(key, inner, name, entry)


def _is_named(key: str) -> bool:
    """Whether a key is an operation's or a step's."""
    return "@" in key or "step" in key.lower()


def without_nan(data: bytes) -> bytes:
    """JSON in which values that are no numbers are null."""
    return _NO_NUMBER.sub(b"null", data)


def numbers(value: Any, keys: frozenset[str] | None = None) -> Any:
    """The same with text that is no number as None; with `keys`, only what stands under these."""
    if isinstance(value, dict):
        inner = {key: None if keys is None or key in keys else keys for key in value}
        return {key: numbers(one, inner[key]) for key, one in value.items()}
    if isinstance(value, str) and keys is None:
        try:
            float(value)
        except ValueError:
            return None
    return value


def tell_partial(log: ReadLog, path: str, count: int) -> None:
    """Say how many operations lack some of their values."""
    if count:
        text = "{count} operations have values that are no numbers: these are unknown"
        log.lose(path, text, count=count)


def _children(path: str, data: bytes | msgspec.Raw, where: str) -> list[tuple[str, msgspec.Raw]]:
    try:
        return list(_ENTRIES.decode(data).items())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(
            path, where, f"{error}: cut short or damaged; run the profiler's analysis again"
        ) from None


def _operation(step: str, category: str, key: str, value: msgspec.Raw) -> Iterator[Entry]:
    if not key.lower().startswith("total"):
        name, _, group_hash = key.rpartition("@") if "@" in key else (key, "", "")
        yield Entry(step, category, name, group_hash, value)
