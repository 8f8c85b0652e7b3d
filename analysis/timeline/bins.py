"""What each rank does in each of some hundred bins of a window, from the pyramid of its bins.

Shown bins are as long as a whole number of kept ones, so that their sums are exact. In a window
that is too short for kept bins, shorter ones are made from its events, where these are not many.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from ..metric import sql_text
from ..views import frame, open_views
from .events import chosen_events, most_events, of_ranks
from .shared_axis import Extent, ahead_table

MOST_CELLS = 200_000
MOST_COLUMNS = 1_500
FINEST_NS = 1_000_000
# So many columns are fine enough; below, shorter bins are worth reading so many events.
_FINE_COLUMNS = 200
_MOST_EVENTS = 3_000_000
_LENGTHS = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns", "free_ns",
)  # fmt: skip

_BINS = """
    select b.rank, b.bin_start_ns - r.moved_ns as bin_ns, computing_ns, communication_ns,
        overlapped_ns, exposed_communication_ns, event_count
    from timeline_bins as b join _ranks as r on r.rank = b.rank and r.level = b.level
    where {place} and {ranks}
        and b.level between {least_level} and {most_level}
        and {inside}
        and b.bin_start_ns - r.moved_ns >= {start_ns} and b.bin_start_ns - r.moved_ns < {end_ns}"""
_LIVE = """
    select rank, bin_ns, computing_ns, communication_ns,
        coalesce(computing_ns, 0) + coalesce(communication_ns, 0) - busy_ns as overlapped_ns,
        busy_ns - coalesce(computing_ns, 0) as exposed_communication_ns,
        event_count
    from ({events})
    where bin_ns >= {start_ns} and bin_ns < {end_ns}"""
_SUMS = """
    select cast(rank as integer) as rank,
        cast((bin_ns - {start_ns}) // {width_ns} as bigint) as place,
        cast(sum(computing_ns) as bigint) as computing_ns,
        cast(sum(communication_ns) as bigint) as communication_ns,
        cast(sum(overlapped_ns) as bigint) as overlapped_ns,
        cast(sum(exposed_communication_ns) as bigint) as exposed_communication_ns,
        cast(sum(event_count) as bigint) as event_count
    from ({bins}) group by all"""


@dataclass(frozen=True, slots=True)
class Overview:
    """Bins of `width_ns` from `start_ns` to `end_ns`, `columns` of them.

    cells: rank, bin_start_ns, active_ns (the bin's part in the rank's time), and what of it is
    computing_ns, communication_ns, overlapped_ns, exposed_communication_ns, free_ns (NULL:
    unknown), event_count. Bins outside of a rank's time have no row. All instants are on the
    shown clock. `is_from_events`: the bins are none that are kept.
    """

    cells: pl.DataFrame
    ranks: tuple[int, ...]
    start_ns: int
    end_ns: int
    width_ns: int
    columns: int
    is_from_events: bool = False


def overview(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    *,
    window_ns: tuple[int, int] | None = None,
    columns: int = MOST_COLUMNS,
) -> Overview:
    """What each rank does in a window (None: all there is), in at most so many columns, and at most
    200,000 cells.

    The window grows to borders of bins.
    """
    open_views(con, ("timeline_bins",))
    rows = at.ranks
    window = window_ns or at.window_ns
    if rows.is_empty() or window is None:
        return Overview(_no_cells(), (), 0, 0, FINEST_NS, 0)
    columns = max(1, min(columns, MOST_CELLS // rows.height) - 2 * _is_moved(rows))
    target_ns = max(-(-(window[1] - window[0]) // columns), 1)
    least = max(int(rows["finest"].sort()[-1]), 0)
    level = max(least, _level_below(target_ns))
    level_ns = FINEST_NS * 4**level
    if level_ns > target_ns and -(-(window[1] - window[0]) // level_ns) < _FINE_COLUMNS:
        if most_events(con, at, window_ns=window) <= _MOST_EVENTS:
            return live_bins(con, at, rows, window, _round_ns(target_ns))
    # Rounding to borders at both ends may add a column.
    width_ns = -(-target_ns // level_ns) * level_ns
    if -(-window[1] // width_ns) - window[0] // width_ns > columns:
        width_ns += level_ns
    while width_ns % (4 * level_ns) == 0:
        level, level_ns = level + 1, 4 * level_ns
    return kept_bins(con, at, rows, window, level, width_ns)


def _is_moved(rows: pl.DataFrame) -> bool:
    return bool((rows["ahead_ns"] != 0).any())


def _level_below(target_ns: int) -> int:
    """The coarsest level whose bins are not longer than that; 0 where none is."""
    level = 0
    while FINEST_NS * 4 ** (level + 1) <= target_ns:
        level += 1
    return level


def _round_ns(target_ns: int) -> int:
    """The next of 1, 2, 5, 10, ... ns."""
    return next(
        step * int(10**power)
        for power in range(19)
        for step in (1, 2, 5)
        if step * 10**power >= target_ns
    )


def kept_bins(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    rows: pl.DataFrame,
    window: tuple[int, int],
    level: int,
    width_ns: int,
) -> Overview:
    """Cells of the ranks in `rows` (of `Extent.ranks`) over a window on the shown clock, from kept
    bins of a level, and of the coarsest of a rank that has none so coarse."""
    whole = at.window_ns or window
    is_whole = window[0] <= whole[0] and window[1] >= whole[1]
    if _is_moved(rows):
        # What is moved by whole bins may stand half a bin beside its place.
        half_ns = FINEST_NS * 4**level // 2
        window = (window[0] - half_ns, window[1] + half_ns)
    start_ns, end_ns, columns = _borders(window, width_ns)
    own = rows.with_columns(
        level=pl.min_horizontal(pl.lit(level, pl.Int32), pl.col("coarsest").cast(pl.Int32))
    ).with_columns(own_ns=(FINEST_NS * 4 ** pl.col("level").cast(pl.Int64)))
    # Whole bins are moved: by the clock's offset to half a bin.
    half = pl.col("own_ns") // 2
    moved = own.with_columns(
        moved_ns=((pl.col("ahead_ns") + half).floordiv(pl.col("own_ns")) * pl.col("own_ns"))
    )
    far_ns = moved["moved_ns"].to_list()
    names = ", ".join(f"({a}, {b}, {c})" for a, b, c in moved["rank", "level", "moved_ns"].rows())
    # Looking at each bin's start takes as long as all else: not where every bin is meant.
    inside = "true"
    if not is_whole:
        inside = f"b.bin_start_ns > {start_ns + min(far_ns) - 1}"
        inside += f" and b.bin_start_ns < {end_ns + max(far_ns)}"
    bins = _BINS.format(
        place=at.place, ranks=of_ranks("b.rank", rows, at),
        least_level=min(moved["level"].to_list()), most_level=max(moved["level"].to_list()),
        inside=inside,
        start_ns=start_ns, end_ns=end_ns,
    )  # fmt: skip
    with_ranks = f"select * from (values {names}) as listed(rank, level, moved_ns)"
    summed = _SUMS.format(bins=bins, start_ns=start_ns, width_ns=width_ns)
    summed_rows = frame(con, f"with _ranks as ({with_ranks}) {summed}")
    spans = _rank_windows(rows, moved["moved_ns"])
    cells = _cells(summed_rows, spans, start_ns, width_ns, columns)
    return Overview(cells, tuple(rows["rank"]), start_ns, end_ns, width_ns, columns)


def live_bins(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    rows: pl.DataFrame,
    window: tuple[int, int],
    width_ns: int,
) -> Overview:
    """The same from the events of the window themselves, in bins of any length."""
    start_ns, end_ns, columns = _borders(window, width_ns)
    text = sql_text("timeline_window.sql").partition("\nwith\n")[2]
    part = "_" + sql_text("covered_bins.sql").partition("\n_")[2].rstrip()
    # Bins are as long for all ranks: joining their length to each event is in vain, and in windows
    # of few events DuckDB 2.0 fails on what the join gives (an internal error: "dictionary").
    wide = f"(select *, cast({width_ns} as bigint) as width_ns from _own)"
    part = part.replace("_own join _bins using (rank_key)", wide)
    text = text.replace("\n_covered_bins\n", f"\n{part}\n")
    moved = ahead_table(rows.filter(pl.col("ahead_ns") != 0))
    text = text.replace("from kernels where", f"from ({chosen_events('kernels', moved)}) where")
    text = text.replace("from comm_ops where", f"from ({chosen_events('comm_ops', moved)}) where")
    condition = (
        f"{at.place} and {of_ranks('rank', rows, at)}"
        f" and start_ns < {end_ns} and start_ns + dur_ns > {start_ns}"
    )
    events = "with " + text.replace("{chosen}", condition).replace("{width_ns}", str(width_ns))
    bins = _LIVE.format(events=events, start_ns=start_ns, end_ns=end_ns)
    summed = frame(con, _SUMS.format(bins=bins, start_ns=start_ns, width_ns=width_ns))
    cells = _cells(summed, _rank_windows(rows, rows["ahead_ns"]), start_ns, width_ns, columns)
    return Overview(cells, tuple(rows["rank"]), start_ns, end_ns, width_ns, columns, True)


def _borders(window: tuple[int, int], width_ns: int) -> tuple[int, int, int]:
    first, last = window[0] // width_ns, -(-window[1] // width_ns)
    return first * width_ns, last * width_ns, last - first


def _rank_windows(rows: pl.DataFrame, ahead_ns: pl.Series) -> pl.DataFrame:
    """Ranks from where to where they are shown."""
    return rows.with_columns(
        first_ns=rows["first_ns"] - ahead_ns, last_ns=rows["last_ns"] - ahead_ns
    )


def _cells(
    summed: pl.DataFrame, spans: pl.DataFrame, start_ns: int, width_ns: int, columns: int
) -> pl.DataFrame:
    """`Overview.cells`: bins of what was summed, and those inside a rank's time in which nothing
    ran: free in whole. `spans`: rank, first_ns, last_ns and what is known of each rank."""
    places = pl.DataFrame({"place": pl.int_range(columns, eager=True)})
    begin, spent = pl.col("bin_start_ns"), pl.col("computing_ns", "exposed_communication_ns")
    flags = {
        "computing_ns": "knows_compute", "communication_ns": "knows_ops",
        "overlapped_ns": "knows_all", "exposed_communication_ns": "knows_all",
        "free_ns": "knows_all",
    }  # fmt: skip
    return (
        spans.join(places, how="cross", maintain_order="left_right")
        .with_columns(bin_start_ns=start_ns + pl.col("place") * width_ns)
        .with_columns(
            active_ns=pl.min_horizontal(begin + width_ns, "last_ns")
            - pl.max_horizontal(begin, "first_ns")
        )
        .filter(pl.col("active_ns") > 0)
        .join(summed, on=("rank", "place"), how="left", maintain_order="left")
        .with_columns(pl.col(*summed.columns[2:]).fill_null(0))
        .with_columns(free_ns=pl.col("active_ns") - pl.sum_horizontal(spent))
        .select(
            "rank", "bin_start_ns", "active_ns",
            *(pl.when(condition).then(name).alias(name) for name, condition in flags.items()),
            "event_count",
        )
        .sort("rank", "bin_start_ns", maintain_order=True)
    )  # fmt: skip


def _no_cells() -> pl.DataFrame:
    columns = ("bin_start_ns", "active_ns", *_LENGTHS, "event_count")
    return pl.DataFrame(schema={"rank": pl.Int32} | dict.fromkeys(columns, pl.Int64))
