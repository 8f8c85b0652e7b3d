"""The nesting that communication.json and communication_matrix.json share, undone lazily.

    {"step13": {"p2p": {"hcom_send__097_0_1@<group hash>": ENTRY, ...}, "collective": {...}}, ...}

msprof's own files are flat: `{"hcom_...@<group hash>": ENTRY, ...}`. Only the keys and the
undecoded text of each entry are held beside the file's bytes; entries are decoded one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from npuscope.errors import TraceFormatError

_BOM = b"\xef\xbb\xbf"
# What Python's json writes for a float that is no number; within a name no such value stands alone.
_NO_NUMBER = re.compile(rb"(?<=[\s:,\[])(?:NaN|-?Infinity)(?=[\s,\]}])")
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
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceFormatError(
            path, "opening", f"{error.strerror}: check its permissions"
        ) from None
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
        for category, operations in _children(path, value, key):
            for name, entry in _children(path, operations, f"{key}/{category}"):
                yield from _operation(key, category, name, entry)


def _is_named(key: str) -> bool:
    """Whether a key is an operation's or a step's."""
    return "@" in key or "step" in key.lower()


def without_nan(data: bytes) -> bytes:
    """JSON in which values that are no numbers are null."""
    return _NO_NUMBER.sub(b"null", data)


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
