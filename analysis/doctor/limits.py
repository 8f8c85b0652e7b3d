"""What captures cannot answer, why, and what to record next time, in doctor's words.

Reports and pages say it beside their figures; nothing but the tables is asked, which are counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import duckdb

from npuscope.messages import Message

from ..flops.chips import unknown_peaks
from ..memo import kept
from ..scope import ALL, RANK, Scope
from ..views import frame, open_views
from ..wording import ranks_named
from .judge import NOT_SELECTED, Support, Verdict, judge, recorded

# What reports and pages would have figures of; doctor lists every analysis.
_TOLD = ("kernels", "waiting", "host", "steps", "groups", "memory")


@dataclass(frozen=True, slots=True)
class Lack:
    """What ranks of a capture cannot answer, or in part, and why; `remedy` records it next time."""

    ranks: tuple[int, ...]
    capability: str
    support: Support
    reason: str
    remedy: str | None


def lacks(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[Lack]:
    """Of every capability what lacks, ranks that lack the same together."""
    open_views(con, ["contents"])
    clause, values = scope.where(RANK)
    ranks = frame(
        con,
        "select distinct run, capture, rank, framework, profiler_level, aic_metrics,"
        f" left_out_tables, world_size from ranks {clause} order by run, capture, rank",
        values,
    )
    counts: dict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    counted = frame(
        con, f"select run, capture, rank, content, count from rank_contents {clause}", values
    )
    for *key, content, count in counted.iter_rows():
        counts[key[0], key[1], key[2]][content] = count
    peaks = unknown_peaks(con)
    found: dict[tuple[str, Support, str, str | None], list[int]] = defaultdict(list)
    judged: dict[tuple[object, ...], list[Verdict]] = {}
    for facts in ranks.to_dicts():
        of = facts["run"], facts["capture"], facts["rank"]
        # Of a thousand ranks most have recorded the same.
        told = [value if name != "left_out_tables" else tuple(value or ())
                for name, value in facts.items() if name != "rank"]  # fmt: skip
        alike = (*told, peaks.get(of), frozenset(counts[of].items()))
        if alike not in judged:
            judged[alike] = judge(recorded(facts, counts[of], no_peak=peaks.get(of)))
        for one in judged[alike]:
            if one.reason is not None:
                found[one.capability, one.support, one.reason, one.remedy].append(of[2])
    return [Lack(tuple(sorted(set(of))), *what) for what, of in found.items()]


@kept
def least_rank_count(con: duckdb.DuckDBPyConnection, scope: Scope) -> int | None:
    """As many ranks as the largest group of a capture has members; None where no group is seen."""
    open_views(con, ["contents"])
    clause, values = scope.job.where()
    counted = frame(con, f"select content, count from rank_contents {clause}", values)
    least = counted.filter(content="largest_group")["count"].max()
    return least if isinstance(least, int) else None


@kept
def limits(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """Sentences on what would answer more of the captures of `con`, or of one of them."""
    found = sorted(
        (one for one in lacks(con, scope.job) if one.capability in _TOLD),
        key=lambda one: _TOLD.index(one.capability),
    )
    told = (
        Message(
            "{ranks}: {missing}. To know it: {remedy}",
            ranks=ranks_named(one.ranks), missing=one.reason, remedy=one.remedy,
        )
        for one in found
        if one.remedy is not None and NOT_SELECTED not in one.reason
    )  # fmt: skip
    return list(dict.fromkeys(told))
