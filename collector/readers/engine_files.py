"""A text file under a name, and with an end, that the engine's own reader takes.

The engine takes names for patterns (`*`, `?`, `[`) and knows none that are not UTF-8: such a file
is read through a link. And it takes what stands behind the last line break for a row:

    17,Add,10.500\\n18,Mul,1        written by a killed analysis: `1` may have been `12.250`

Every producer ends its last line, so what may be cut there is left out, through a copy without it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_ODD_NAME = re.compile(r"[*?\[\\\ud800-\udfff]")
# As long as a line may be.
_TAIL_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class EngineFile:
    """`path` is for the engine; `is_torn`: the file does not end with its last line."""

    path: str
    is_torn: bool


@contextlib.contextmanager
def engine_file(path: str, place: Path) -> Iterator[EngineFile]:
    """The file as the engine can read it; `place`, a folder made where it is needed, goes again.

    Raises OSError where the file cannot be read or copied.
    """
    size_bytes, tail = _last_line(path)
    kept_bytes = size_bytes - len(tail) + _whole_bytes(tail)
    # The header's own line is found whether it ends or not.
    needs_copy = bool(tail) and 0 < kept_bytes < size_bytes
    if not needs_copy and not _ODD_NAME.search(path):
        yield EngineFile(path, bool(tail))
        return
    place.mkdir(parents=True, exist_ok=True)
    try:
        stand_in = place / "rows.csv"
        if needs_copy:
            with Path(path).open("rb") as source, stand_in.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.truncate(kept_bytes)
        else:
            stand_in.symlink_to(Path(path).absolute())
        yield EngineFile(str(stand_in), bool(tail))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _last_line(path: str) -> tuple[int, bytes]:
    """The file's size, and what stands behind its last line break."""
    with Path(path).open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - _TAIL_BYTES))
        tail = file.read(_TAIL_BYTES)
    return size_bytes, tail[max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1 :]


def _whole_bytes(tail: bytes) -> int:
    """How much of a line without an end is surely whole: all cells but the last, or that too
    where its closing quote is there."""
    if tail.count(b'"') % 2:
        opening = tail.rfind(b',"') + 1
        if opening or tail.startswith(b'"'):
            if tail.count(b'"', opening) % 2:
                return opening  # the cell was opened here and never closed
    elif tail.endswith(b'"'):
        return len(tail)
    return tail.rfind(b",") + 1


def has_zero_bytes(path: str) -> bool:
    """Whether a text file has bytes that no text has: blocks that a crash or a copy left empty."""
    with Path(path).open("rb") as file:
        return any(b"\0" in chunk for chunk in iter(partial(file.read, 1 << 20), b""))
