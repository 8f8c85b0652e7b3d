"""Traces that tests write, and what stands in them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from npuscope.collector.store import store
from npuscope.dashboard.perfetto.choice import parse_choice
from npuscope.dashboard.perfetto.rank_tables import expected_of, trace_of
from npuscope.dashboard.perfetto.trace_file import TraceSummary, write
from npuscope.profile import OpenTables, summary_versions

Event = dict[str, Any]
# Pieces of the overlap tracks, and the figure of steps that they add up to.
OVERLAP = {
    "computing": "computing_ns",
    "exposed communication": "exposed_communication_ns",
    "masked communication": "overlapped_ns",
    "free": "free_ns",
}


def export(path: Path, out: Path, **options: str) -> TraceSummary:
    """Write a trace of a store or exported file with the command's options."""
    con = store.open(path, summaries=summary_versions())
    try:
        trace = trace_of(OpenTables(con, path), parse_choice(**options))
        return write(trace, out, expected_of(trace))
    finally:
        con.close()


def read_trace(path: Path) -> dict[str, Any]:
    """A trace as JSON has it."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def file_events(path: Path) -> list[Event]:
    """Every event of a trace."""
    events: list[Event] = read_trace(path)["traceEvents"]
    return events


def ns(us: float) -> int:
    """Integer ns of us; times of a test count from an instant near by, so that they are exact."""
    return round(us * 1000)


def of(events: list[Event], **wanted: object) -> list[Event]:
    """Events with these members."""
    return [e for e in events if all(e.get(name) == value for name, value in wanted.items())]


def assert_nests(events: list[Event]) -> None:
    """No slice of a track begins inside another of it and ends after it."""
    tracks = defaultdict(list)
    for event in of(events, ph="X"):
        start = ns(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, -(start + ns(event["dur"]))))
    assert tracks
    for slices in tracks.values():
        ends: list[int] = []
        for start, end in sorted(slices):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or -end <= ends[-1]
            ends.append(-end)
