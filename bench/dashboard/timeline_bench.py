"""How long the timeline's queries take, and what its bins cost when a rank is read.

    .venv/bin/python -m bench.dashboard.timeline_bench [--full]

64 ranks x 10 steps x 20,000 kernels (a tenth of it without --full), and 1,000 ranks of bins.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from bench.inputs.stores import published
from bench.measure import BUILD, report
from npuscope.analysis.summaries import summaries
from npuscope.analysis.timeline.bins import overview
from npuscope.analysis.timeline.rank_events import RankEvents, device_events
from npuscope.analysis.timeline.shared_axis import Extent, extent, step_borders
from npuscope.analysis.timeline.tiles import BUCKETS, timeline_tiles
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.collector.store.segments import rebuild_summaries

RUNS = 5
RANKS, KERNELS, OPS = 64, 200_000, 20_000
MANY, BINS = 1_000, 10_000
_MEMORY = 256 << 20
_NEEDED = frozenset({"step_summary", "timeline_bins"})
Row = tuple[str, float, float, str]


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(what: str, call: Callable[[], str]) -> Row:
    """Wall and CPU seconds of a call, medians."""
    walls, cpus, told = [], [], ""
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), cpu_s()
        told = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_s() - cpu)
    return what, statistics.median(walls), statistics.median(cpus), told


def queries(con: duckdb.DuckDBPyConnection, *, has_events: bool) -> list[Row]:
    """The page's questions in the order it asks them."""
    place = con.execute("select distinct run, capture from timeline_bins").fetchall()[0]
    at = extent(con, run=place[0], capture=place[1])
    whole = at.window_ns
    assert whole is not None
    middle, length = (whole[0] + whole[1]) // 2, whole[1] - whole[0]
    tenth = (middle, middle + length // 10)
    found = [
        timed("extent", lambda: f"{extent(con, run=place[0], capture=place[1]).ranks.height}"
              " ranks"),
        timed("overview, all", lambda: cells(con, at, whole)),
        timed("overview, a tenth", lambda: cells(con, at, tenth)),
    ]  # fmt: skip
    if has_events:
        ranks = loaded(con, at)
        short, few = (middle, middle + 20_000_000), (middle, middle + 4_000_000)
        found += [
            timed("overview, 20 ms from events", lambda: cells(con, at, short)),
            timed("events of 2 ranks", lambda: f"{sum(map(counted, loaded(con, at)))} events"),
            timed("their tile of 4 ms", lambda: tile(ranks, few)),
            timed("their tile of all", lambda: tile(ranks, whole)),
            timed("steps", lambda: f"{step_borders(con, run=at.run, capture=at.capture).height}"
                  " steps"),
        ]  # fmt: skip
    return found


def cells(con: duckdb.DuckDBPyConnection, at: Extent, window_ns: tuple[int, int]) -> str:
    """How many cells a window has."""
    found = overview(con, at, window_ns=window_ns)
    basis = "events" if found.is_from_events else "bins"
    return f"{found.cells.height:,} cells of {found.width_ns / 1e6:g} ms from {basis}"


def loaded(con: duckdb.DuckDBPyConnection, at: Extent) -> list[RankEvents]:
    """All events of two ranks."""
    return [device_events(con, at, rank) for rank in (3, 40)]


def counted(events: RankEvents) -> int:
    """How many they are."""
    return events.count


def tile(ranks: list[RankEvents], window_ns: tuple[int, int]) -> str:
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


def many_ranks() -> duckdb.DuckDBPyConnection:
    """Bins of 1,000 ranks that run for 10 s, a file per rank as a store has them."""
    folder = BUILD / f"bins_{MANY}x{BINS}"
    con = duckdb.connect()
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for rank in range(MANY):
            con.execute(f"""
                copy (
                    select 'bench' as run, 'c' as capture, {rank}::integer as rank,
                        level::integer as level, n * width as bin_start_ns, width as bin_width_ns,
                        n * width as start_ns, (n + 1) * width as end_ns,
                        hash(n, {rank}) % 500000 * (width // 1000000) as computing_ns,
                        width // 2 as communication_ns, width // 4 as overlapped_ns,
                        width // 4 as exposed_communication_ns, width // 8 as free_ns,
                        50 * (width // 1000000) as event_count
                    from (
                        select level, cast(1000000 * 4 ** level as bigint) as width,
                            unnest(range({BINS} // cast(4 ** level as bigint))) as n
                        from range(4) as t(level)
                    )
                ) to '{folder / f"{rank}.parquet"}' (format parquet, compression zstd)""")
    con.execute("set parquet_metadata_cache = true")
    files = ", ".join(f"'{folder / f'{rank}.parquet'}'" for rank in range(MANY))
    con.execute(f"create view timeline_bins as from read_parquet([{files}])")
    for name in ("ranks", "group_kinds"):
        con.execute(
            f"create view {name} as select 'bench' as run, 'c' as capture, 'epoch' as clock"
        )
    return con


def main(arguments: list[str]) -> int:
    """Measures and prints."""
    scale = 1 if "--full" in arguments else 10
    kernels, ops = KERNELS // scale, OPS // scale
    path = published(RANKS, kernels, ops)
    spent = with_bins(path)
    lines = [f"steps and bins of {RANKS} x {kernels:,} kernels: {spent:.1f} CPU-s"]
    with store.open(path) as con:
        lines += told(f"{RANKS} ranks x {kernels:,} kernels", queries(con, has_events=True))
    with many_ranks() as con:
        lines += told(f"{MANY:,} ranks x {BINS:,} ms", queries(con, has_events=False))
    report("Timeline", "\n".join(lines))
    return 0


def told(title: str, rows: list[Row]) -> list[str]:
    """Lines of a report."""
    return ["", title] + [
        f"  {what:32} {wall:7.3f} s  {cpu:7.3f} CPU-s  {more}" for what, wall, cpu, more in rows
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
