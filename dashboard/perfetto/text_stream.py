"""Text that the engine builds, on its way into a file that others write to as well.

The engine writes whole files only. So it writes into a pipe, whose other end a thread empties into
the file: nothing is stored twice, and text is compressed while the next is built.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from threading import Thread
from typing import IO

import duckdb

from npuscope.collector.staging import scalar

_PIPE_BYTES = 1 << 20


def stream_lines(con: duckdb.DuckDBPyConnection, query: str, file: IO[bytes]) -> int:
    """Append the one column of a query to a file, as it is, a line per row; returns the rows.

    Raises OSError where the file cannot be written.
    """
    out_end, in_end = os.pipe()
    with contextlib.suppress(OSError):  # fewer turns between the two threads
        fcntl.fcntl(in_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    failures: list[OSError] = []
    pump = Thread(target=_pump, args=(out_end, file, failures))
    pump.start()
    # No quotes, no delimiters: rows are text without control characters.
    options = "format csv, header false, delimiter '\t', quote '', escape '', use_tmp_file false"
    rows = 0
    try:
        rows = int(scalar(con, f"copy ({query}) to '/dev/fd/{in_end}' ({options})"))
    except duckdb.IOException:
        if not failures:  # else the pipe broke because of it
            raise
    finally:
        os.close(in_end)
        pump.join()
    if failures:
        raise failures[0]
    return rows


def _pump(out_end: int, file: IO[bytes], failures: list[OSError]) -> None:
    """Move what comes out of a pipe to the end of a file, until its other end is closed."""
    try:
        while text := os.read(out_end, _PIPE_BYTES):
            file.write(text)
    except OSError as error:
        failures.append(error)
    finally:
        os.close(out_end)
