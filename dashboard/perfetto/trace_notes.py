"""What to tell about a trace: before it is written, what to expect; after, what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npuscope.analysis.wording import number, ranks_named

from ..units import size_text
from .instants import ms_after_start, utc
from .rank_tables import Trace
from .trace_file import Written
from .trace_size import Expected

# From here on a viewer is slow to open it; and beyond, most do not open it at all.
_LARGE_BYTES, _HUGE_BYTES = 300_000_000, 2_000_000_000
# The Perfetto UI, measured: 660 MB in 52 s and 1.7 GB, 1,980 MB in 163 s and 3.5 GB.
_OPENED_BYTES_PER_S = 12_000_000
_BROWSER_BYTES_PER_BYTE = 2.6


def before(trace: Trace, expected: Expected) -> Iterator[str]:
    """What was asked for and is not there; clocks that do not agree; that it will be large."""
    chosen = trace.chosen
    yield from chosen.messages
    if chosen.clock != "epoch" and len(chosen.places) > 1:
        yield (
            "note: not all ranks record wall-clock timestamps: their relative position has no"
            " meaning"
        )
    if expected.size_bytes < _LARGE_BYTES:
        return
    size = expected.size_bytes
    told = f"large: about {number(expected.event_count)} events, {size_text(size)}"
    if size < _HUGE_BYTES:
        seconds = size / _OPENED_BYTES_PER_S
        memory = size * _BROWSER_BYTES_PER_BYTE / 1e9
        told += f", which a browser opens in {seconds:,.0f} s and {memory:.1f} GB of memory"
    else:
        told += ", more than most browsers open"
    yield f"{told}; {' or '.join(_less(trace))} makes it smaller"


def _less(trace: Trace) -> Iterator[str]:
    """Options that choose less than now."""
    ranks = [place.rank for place in trace.chosen.places]
    if len(ranks) > 1:
        yield f"--ranks {ranks[0]}"
    first, last = trace.choice.steps or (0, 1)
    if first < last and trace.choice.window_ns is None:
        known = trace.con.execute(
            "select min(step) from step_summary where run = ? and capture = ? and step >= ?",
            [trace.chosen.places[0].run, trace.chosen.places[0].capture, first],
        ).fetchall()
        if known[0][0] is not None:
            yield f"--steps {known[0][0]}"
    if trace.choice.window_ns is not None:
        yield "a shorter --window"
    yield "--tracks overlap,communication"


def written_line(trace: Trace, expected: Expected, written: Written, out: Path) -> str:
    """What a trace holds, and which instant is its zero."""
    events = number(sum(written.event_counts.values()))
    ranks = ranks_named(place.rank for place in trace.chosen.places)
    told = f"{out}: {events} events of {ranks}, {size_text(written.size_bytes)}"
    zero = utc(expected.zero_ns) if trace.chosen.clock == "epoch" else None
    since = ms_after_start(expected.zero_ns, trace.chosen.start_ns)
    told += f"; 0 is {zero}" if zero else ""
    if since is not None:
        told += f", {since} ms" if zero else f"; 0 is {since} ms"
        told += " after the capture's start"
    return f"{told}; open it with ui.perfetto.dev or chrome://tracing"
