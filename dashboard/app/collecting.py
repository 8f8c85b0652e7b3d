"""What to collect where a page has nothing to show: in the words of `npuscope doctor`."""

from __future__ import annotations

import duckdb

from npuscope.analysis.doctor.doctor import known_options
from npuscope.analysis.doctor.judge import Recorded, judge
from npuscope.analysis.flops.chips import unknown_peaks
from npuscope.analysis.scope import ALL, RANK, Scope
from npuscope.analysis.views import frame, open_views
from npuscope.messages import Message

from .page import Page


def how_to_collect(page: Page, name: str) -> str:
    """What would make a capability possible, else why it is not; nothing where it is possible.

    Raises KeyError for a capability that is not listed.
    """
    reason, remedy = page.frame(lacking, step=None)[name]
    return Message("To know it: {remedy}", remedy=remedy) if remedy else reason or ""


def lacking(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL
) -> dict[str, tuple[str | None, str | None]]:
    """Reason and remedy of each capability of a capture or a rank; None where it is possible.

    Of what was recorded the rank counts that has most. Manifests, which are many, are not asked.
    """
    open_views(con, ["contents"])
    clause, values = scope.where(RANK)
    facts = frame(
        con,
        "select framework, profiler_level, aic_metrics, left_out_tables, world_size"
        f" from ranks {clause} order by run, capture, rank limit 1",
        values,
    ).to_dicts()
    counts = frame(
        con, f"select content, max(count) as count from rank_contents {clause} group by content",
        values,
    )  # fmt: skip
    one = facts[0] if facts else {}
    no_peaks = {
        why
        for place, why in unknown_peaks(con).items()
        if scope.chosen(RANK).items() <= dict(zip(RANK, place, strict=True)).items()
    }
    recorded = Recorded(
        dict(counts.iter_rows()),
        known_options(one, None) if facts else {},
        left_out=frozenset(one.get("left_out_tables") or ()),
        world_size=one.get("world_size"),
        is_gpu=one.get("framework") == "kineto",
        no_peak=min(no_peaks, default=None),
    )
    return {verdict.capability: (verdict.reason, verdict.remedy) for verdict in judge(recorded)}
