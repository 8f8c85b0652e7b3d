"""Answers over all ranks as frames, on a connection that `open_across` prepared."""

from __future__ import annotations

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


def _named(hosts: list[str], ranks: list[int]) -> str:
    listed = list(dict.fromkeys(hosts))
    more = [f"{len(listed) - 4} more hosts"] if len(listed) > 4 else []
    return ", ".join([*listed[:4], *more, *([ranks_named(ranks)] if ranks else [])])
