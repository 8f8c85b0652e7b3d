"""What the timeline costs: its queries, its tiles, and its pages in a browser.

    .venv/bin/python -m bench.dashboard.timeline_bench [--full]

64 ranks x 10 steps x 20,000 kernels, 1,000 ranks of two steps, 8 ranks x 100,000 kernels and one
rank of 300,000; without --full a tenth of each. Limits, with all of 8 ranks unfolded: 50 frames a
second while panned, 100 ms from a zoom to its picture where tiles were cut before, 50 ms CPU of the
server for a zoom. Exit status 1: one was missed. Server and browser share the machine with whatever
else runs: the load is printed beside.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import duckdb

from bench.analysis import ranks_bench
from bench.dashboard import timeline_in_browser
from bench.inputs.stores import publish
from bench.measure import arguments, commit, report, table
from npuscope.analysis.summaries import summaries
from npuscope.analysis.timeline.bins import overview
from npuscope.analysis.timeline.rank_events import device_events
from npuscope.analysis.timeline.shared_axis import Extent, extent, step_borders
from npuscope.analysis.timeline.tiles import BUCKETS, DrawnRank, drawn_rank, timeline_tiles
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.collector.store.segments import rebuild_summaries
from tests.dashboard.app.served_pages import CHROMIUM

RUNS = 5
RANKS, KERNELS, OPS = 64, 200_000, 20_000
MANY = 1_000
FRAMES, SETTLED_MS, CPU_MS = 50, 100, 50
_MEMORY = 256 << 20
_NEEDED = frozenset({"step_summary", "timeline_bins"})
Row = tuple[str, float, float, str]


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def time_of(what: str, call: Callable[[], str]) -> Row:
    """Wall and CPU seconds of a call, medians."""
    walls, cpus, told = [], [], ""
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), cpu_s()
        told = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_s() - cpu)
    return what, statistics.median(walls), statistics.median(cpus), told


def queries(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """The page's questions in the order it asks them."""
    place = con.execute("select distinct run, capture from timeline_bins").fetchall()[0]
    at = extent(con, run=place[0], capture=place[1])
    whole = at.window_ns
    assert whole is not None
    middle, length = (whole[0] + whole[1]) // 2, whole[1] - whole[0]
    tenth = (middle, middle + length // 10)
    ranks = load(con, at)
    short, few = (middle, middle + 20_000_000), (middle, middle + 4_000_000)
    return [
        time_of("extent", lambda: f"{extent(con, run=place[0], capture=place[1]).ranks.height}"
              " ranks"),
        time_of("overview, all", lambda: cells(con, at, whole)),
        time_of("overview, a tenth", lambda: cells(con, at, tenth)),
        time_of("overview, 20 ms from events", lambda: cells(con, at, short)),
        time_of("events of 2 ranks", lambda: f"{sum(map(count, load(con, at)))} events"),
        time_of("their tile of 4 ms", lambda: tile(ranks, few)),
        time_of("their tile of all", lambda: tile(ranks, whole)),
        time_of("the same from events alone", lambda: tile(from_events(ranks), whole)),
        time_of("steps", lambda: f"{step_borders(con, run=at.run, capture=at.capture).height}"
              " steps"),
    ]  # fmt: skip


def cells(con: duckdb.DuckDBPyConnection, at: Extent, window_ns: tuple[int, int]) -> str:
    """How many cells a window has."""
    found = overview(con, at, window_ns=window_ns)
    basis = "events" if found.is_from_events else "bins"
    return f"{found.cells.height:,} cells of {found.width_ns / 1e6:g} ms from {basis}"


def load(con: duckdb.DuckDBPyConnection, at: Extent) -> list[DrawnRank]:
    """All events of two ranks, with their coarser rows."""
    return [drawn_rank(device_events(con, at, rank)) for rank in (3, 40)]


def from_events(ranks: list[DrawnRank]) -> list[DrawnRank]:
    """The same without coarser rows."""
    return [replace(one, rows=one.rows[:1]) for one in ranks]


def count(one: DrawnRank) -> int:
    """How many they are."""
    return one.events.count


def tile(ranks: list[DrawnRank], window_ns: tuple[int, int]) -> str:
    """How many rows the tile has that a window's middle is in, a bucket being a pixel of 1,200."""
    level = levels.bit_length() - 1 if (levels := (window_ns[1] - window_ns[0]) // 1_200) else 0
    index = (window_ns[1] - window_ns[0]) // 2 // (BUCKETS << level)
    rows = timeline_tiles(dict(enumerate(ranks)), level, index)
    return f"{rows.num_rows:,} rows"


def with_bins(path: Path) -> float:
    """Brings the summaries of a store up to date; returns CPU seconds."""
    needed = [summary for summary in summaries() if summary.name in _NEEDED]
    before = cpu_s()
    for manifest in manifests(path):
        rebuild_summaries(path, manifest, lambda con: needed, _MEMORY)
    return cpu_s() - before


def pages(stores: Mapping[str, tuple[Path, int]]) -> tuple[str, bool]:
    """A table of what a browser sees of each store, and whether limits hold."""
    rows, over, is_met = [], [], True
    for title, (path, opened) in stores.items():
        one = timeline_in_browser.measure(path, opened)
        is_met &= one.frames >= FRAMES and one.settled_ms <= SETTLED_MS and one.server_ms < CPU_MS
        over.append([
            title, f"{one.frames / FRAMES:.2f}", f"{one.settled_ms / SETTLED_MS:.2f}",
            f"{one.server_ms / CPU_MS:.2f}",
        ])  # fmt: skip
        rows.append([
            title, opened, f"{one.first_s:.1f}", f"{one.first_cpu_s:.1f}", f"{one.frames:.0f}",
            f"{one.slow_frame_ms:.0f}",
            f"{one.zoom_ms:.0f}", f"{one.settled_ms:.0f}", f"{one.server_ms:.0f}",
            f"{one.server_mib:.0f}", f"{one.page_mib:.0f}", f"{one.rectangles:,}",
        ])  # fmt: skip
    header = (
        "data", "unfolded", "first picture s", "server CPU s", "frames/s", "95% frame ms",
        "zoom ms",
        "zoom again ms", "server CPU ms/zoom", "server MiB", "page MiB",
        "most rectangles",
    )  # fmt: skip
    limits = (
        f"of the limit: frames/{FRAMES} (at least 1)", f"zoom again/{SETTLED_MS} ms (at most 1)",
        f"server CPU/{CPU_MS} ms (at most 1)",
    )  # fmt: skip
    return f"{table(header, rows)}\n\n{table(('data', *limits), over)}", is_met


def main() -> int:
    """Measures and prints."""
    scale = 1 if arguments(__doc__).full else 10
    path = publish(RANKS, KERNELS // scale, OPS // scale)
    spent = with_bins(path)
    lines = [f"steps and bins of {RANKS} x {KERNELS // scale:,} kernels: {spent:.1f} CPU-s"]
    with store.open(path) as con:
        lines += tell(f"{RANKS} ranks x {KERNELS // scale:,} kernels", queries(con))
    is_met = True
    if CHROMIUM is not None:
        many = MANY if scale == 1 else 64
        drawn, is_met = pages({
            f"8 x {100_000 // scale:,}": (publish(8, 100_000 // scale, 10_000 // scale), 8),
            f"1 x {300_000 // scale:,}": (publish(1, 300_000 // scale, 30_000 // scale), 1),
            f"{RANKS} x {KERNELS // scale:,}": (path, 2),
            f"{many:,} ranks of two steps": (ranks_bench.store_it(many), 2),
        })  # fmt: skip
        lines += ["", drawn, "", f"limits {'met' if is_met else 'NOT met'}"]
    lines.append(f"load {os.getloadavg()[0]:.1f}, commit {commit()}")
    report("Timeline", "\n".join(lines))
    return 0 if is_met else 1


def tell(title: str, rows: list[Row]) -> list[str]:
    """Lines of a report."""
    return ["", title] + [
        f"  {what:32} {wall:7.3f} s  {cpu:7.3f} CPU-s  {more}" for what, wall, cpu, more in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
