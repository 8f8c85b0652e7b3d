"""cluster_communication.json and cluster_communication_matrix.json, one operation at a time.

    {"(0, 1, 2)": {"step12": {"hcom_send__097_0_1@<group hash>": {...}, ...}, ...}, "p2p": ...}
    1             2          3                                   4  depth

Those of a large job have gigabytes. They are read in pieces, in which only braces are looked for:
what lies between those of depth 4 is an operation with all its ranks. A file that was cut short
gives what stands before the cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from npuscope.errors import TraceFormatError

from ...model import ReadLog

CHUNK_BYTES = 16 << 20
_OPEN, _CLOSE = ord("{"), ord("}")
_DEPTH = 4
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*\Z', re.S)
_KEY_BYTES = 1 << 16  # a world group of thousands of ranks is spelled out
_BLANK = b" \t\r\n"


class Operation(NamedTuple):
    """`members`: "(0, 1, 2)" or "p2p"; `step`: "step12" or "step"; `json`: figures by rank, or by
    link."""

    members: str
    step: str
    name: str
    group_hash: str
    json: bytes


def operations(path: str, log: ReadLog, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Operation]:
    """Every operation in file order, sums over operations left out.

    What is missing of a file that was cut short is told to `log`. Raises TraceFormatError for one
    that cannot be opened, is empty or is not of this kind.
    """
    try:
        with Path(path).open("rb") as file:
            yield from _operations(file, path, log, chunk_bytes)
    except OSError as error:
        raise TraceFormatError(
            path, "opening", f"{error.strerror}: check its permissions"
        ) from None


def _operations(file: BinaryIO, path: str, log: ReadLog, chunk_bytes: int) -> Iterator[Operation]:
    keys = ["", "", ""]  # of the objects of depth 2, 3 and 4 that are open
    rest, depth, count = b"", 0, 0
    is_first = True
    while chunk := file.read(chunk_bytes):
        if is_first:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
            if chunk[:1] != b"{":
                break
            is_first = False
        data = rest + chunk
        done, opened = 0, 0
        for place, level, opens in _braces(data, depth):
            if opens and level > 1:
                keys[level - 2] = _key(data[max(done, place - _KEY_BYTES) : place], path, count)
            if opens and level == _DEPTH:
                opened = place
                continue  # its key stands in `rest` until the operation is whole
            if not opens and level == _DEPTH - 1:
                name, _, group_hash = keys[2].rpartition("@")
                count += 1
                if not keys[2].lower().startswith("total"):
                    yield Operation(
                        keys[0], keys[1], name or group_hash, group_hash if name else "",
                        data[opened : place + 1],
                    )  # fmt: skip
            done, depth = place + 1, level
        rest = data[done:]
    if is_first:
        what = "a JSON object was expected" if chunk else "empty file"
        raise TraceFormatError(path, "the whole file", what)
    if depth or rest.strip(_BLANK):
        log.lose(
            path,
            (
                f"truncated or damaged: only the entries before the damage are read ({count}"
                " entries)"
            ),
        )


def _braces(data: bytes, depth: int) -> Iterator[tuple[int, int, bool]]:
    """(place, depth behind it, whether it opens) of the braces around operations; not inside."""
    text = np.frombuffer(data, dtype=np.uint8)
    places = np.flatnonzero((text == _OPEN) | (text == _CLOSE))
    opens = text[places] == _OPEN
    depths = depth + np.cumsum(np.where(opens, 1, -1))
    outer = np.flatnonzero(depths <= np.where(opens, _DEPTH, _DEPTH - 1))
    yield from zip(
        places[outer].tolist(), depths[outer].tolist(), opens[outer].tolist(), strict=True
    )


def _key(before: bytes, path: str, count: int) -> str:
    """The name that stands before a brace."""
    found = _KEY.search(before)
    try:
        return str(json.loads(found[1])) if found else _refuse(path, count)
    except ValueError:
        return _refuse(path, count)


def _refuse(path: str, count: int) -> str:
    raise TraceFormatError(
        path, f"behind {count} entries", "no JSON of msprof-analyze: run its cluster analysis again"
    )
