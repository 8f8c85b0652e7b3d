"""Answers over all ranks as frames, on a connection that `open_across` prepared."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import polars as pl

from npuscope.analysis.views import frame, where
from npuscope.analysis.wording import ranks_named


def clocks(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> pl.DataFrame:
    """Offset and drift of each clock, in order of its ranks: columns of the metric `clocks`."""
    clause, values = where({"run": run, "capture": capture})
    return frame(con, f"select * from clocks {clause} order by run, capture, ranks", values)


def clock_notes(found: pl.DataFrame) -> list[str]:
    """What to know beside the figures of `clocks`, a sentence per remark with whom it concerns."""
    concerned: dict[tuple[str, str], tuple[list[str], list[int]]] = {}
    several = found.select("run", "capture").n_unique() > 1
    for row in found.to_dicts():
        place = f"{row['run']}, {row['capture']}: " if several else ""
        for remark in (row["note"] or "").split("; "):
            if remark:
                hosts, ranks = concerned.setdefault((place, remark), ([], []))
                hosts += [row["host"]] if row["host"] else []
                ranks += [] if row["host"] else row["ranks"]
    return [
        f"{place}{_named(hosts, ranks)}: {remark}"
        for (place, remark), (hosts, ranks) in concerned.items()
    ]


def comm_waits(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """Waiting and transfer by rank, step and parallel kind: columns of the metric `comm_waits`."""
    chosen = {"run": run, "capture": capture, "rank": rank, "step": step}
    return rows_of(con, "comm_waits", chosen, "kind")


def rows_of(
    con: duckdb.DuckDBPyConnection, view: str, chosen: Mapping[str, str | int | None], *more: str
) -> pl.DataFrame:
    """Rows of a view by rank and step where its columns have the values chosen (None: any), in
    order of these, then of `more` columns."""
    clause, values = where(chosen)
    order = ", ".join(("run", "capture", "rank", "step nulls last", *more))
    return frame(con, f"select * from {view} {clause} order by {order}", values)


def slow_pairs(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> pl.DataFrame:
    """Rates between each two ranks, the slowest first: columns of the metric `slow_pairs`."""
    clause, values = where({"run": run, "capture": capture})
    order = "order by run, capture, slow_ratio desc nulls last, link, low_rank, high_rank"
    return frame(con, f"select * from slow_pairs {clause} {order}", values)


def _named(hosts: list[str], ranks: list[int]) -> str:
    listed = list(dict.fromkeys(hosts))
    more = [f"{len(listed) - 4} more hosts"] if len(listed) > 4 else []
    return ", ".join([*listed[:4], *more, *([ranks_named(ranks)] if ranks else [])])
