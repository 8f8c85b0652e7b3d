"""Files that cannot be read: one must not hide the others of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from npuscope.errors import TraceFormatError

from ..model import ReadLog, SourceFile


def open_error(path: str, error: OSError) -> TraceFormatError:
    """What to raise of a file that the system does not open or read."""
    advice = ": check its permissions" if isinstance(error, PermissionError) else ""
    return TraceFormatError(path, "opening", f"{error.strerror}{advice}")


def read_each(
    files: Iterable[SourceFile],
    read_one: Callable[[str], None],
    log: ReadLog,
    advance: Callable[[int], None],
) -> None:
    """Read every file; after the last, raise the first TraceFormatError: others are warnings."""
    failures: list[TraceFormatError] = []
    for file in files:
        try:
            read_one(file.path)
        except TraceFormatError as error:
            failures.append(error)
        advance(file.size_bytes)
    for failure in failures[1:]:
        log.lose(failure.path, "not read: {where}: {got}", where=failure.where, got=failure.got)
    if failures:
        raise failures[0]
