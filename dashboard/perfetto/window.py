"""The trace of a window that is already known: some ranks, each from and to on its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import duckdb

from npuscope.errors import UsageError
from npuscope.profile import Opened

from .choice import Choice
from .rank_tables import expected_of, trace_of
from .trace_file import Written, write

# A browser opens that in about half a minute.
MOST_BYTES = 300_000_000


def write_window(
    con: duckdb.DuckDBPyConnection,
    target: Path,
    out: Path,
    *,
    run: str,
    capture: str,
    windows_ns: Mapping[int, tuple[int, int]],
) -> Written:
    """Write the trace of `windows_ns` (rank -> from, to, on that rank's clock) to `out`.

    `target` is the store or file whose tables `con` has. Raises UsageError where there is nothing
    to show, or more than a browser opens in reasonable time.
    """
    ranks = tuple((rank, rank) for rank in sorted(windows_ns))
    trace = trace_of(Opened(con, target), Choice(run=run, capture=capture, ranks=ranks))
    places = tuple(
        replace(place, from_ns=windows_ns[place.rank][0], to_ns=windows_ns[place.rank][1])
        for place in trace.chosen.places
    )
    trace = replace(trace, chosen=replace(trace.chosen, places=places))
    expected = expected_of(trace)
    if expected.size_bytes > MOST_BYTES:
        size = expected.size_bytes / 1e6
        raise UsageError(
            f"about {size:,.0f} MB, more than a browser opens quickly:"
            " choose a shorter window or fewer ranks"
        )
    return write(trace, out, expected)
