"""What went wrong with a file or a store, in a line for a person."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import duckdb

from npuscope.errors import NpuscopeError, is_out_of_memory

from .store.space import is_out_of_space

_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def error_line(error: Exception, store: str = "") -> str:
    """One line: what an exception says, without a traceback. `store`: what was written to."""
    if is_out_of_space(error):
        return "no space left on the disk of the store"
    if isinstance(error, duckdb.OutOfMemoryException):
        return "exceeds its memory limit: raise --memory or lower --jobs"
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        # A bare name stands below a folder of the store that is held open; sources are never so.
        path = str(Path(store, str(error.filename or "")))
        if store and path.startswith(store):
            return f"{path}: {error.strerror}: give --store DIR where you may write"
        return f"{path}: {error.strerror}: check its permissions"
    if isinstance(error, RecursionError):
        return "nested more deeply than can be read"
    if is_out_of_memory(error):
        return "exceeds the available memory"
    text = str(error).strip() or type(error).__name__
    if isinstance(error, NpuscopeError):
        return text
    if isinstance(error, (OSError, duckdb.Error)):
        return f"{type(error).__name__}: {text}"
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {Path(place[0].filename).name}, line {place[0].lineno}" if place else ""
    return f"an error of npuscope itself, please report it: {type(error).__name__}{where}: {text}"
