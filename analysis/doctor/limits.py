"""What captures cannot answer, why, and what to record next time, in doctor's words.

Reports and pages say it beside their figures; nothing but the tables is asked, which are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

import duckdb

from npuscope.messages import Message

from ..flops.chips import unknown_peaks
from ..memo import memoize
from ..scope import ALL, RANK, Scope
from ..views import frame, open_views
from ..wording import ranks_named
from .judge import NOT_SELECTED, Support, Verdict, judge, rank_record

# What reports and pages would have figures of; doctor lists every analysis.
_CAPABILITIES = ("kernels", "waiting", "host", "steps", "groups", "memory")


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
    lacks_of: dict[tuple[str, Support, str, str | None], list[int]] = defaultdict(list)
    judged: dict[tuple[object, ...], list[Verdict]] = {}
    for facts in ranks.to_dicts():
        of = facts["run"], facts["capture"], facts["rank"]
        # Of a thousand ranks most have recorded the same.
        cell_values = [value if name != "left_out_tables" else tuple(value or ())
                for name, value in facts.items() if name != "rank"]  # fmt: skip
        alike = (*cell_values, peaks.get(of), frozenset(counts[of].items()))
        if alike not in judged:
            judged[alike] = judge(rank_record(facts, counts[of], no_peak=peaks.get(of)))
        for one in judged[alike]:
            if one.reason is not None:
                lacks_of[one.capability, one.support, one.reason, one.remedy].append(of[2])
    return [Lack(tuple(sorted(set(of))), *what) for what, of in lacks_of.items()]


@memoize
def least_rank_count(con: duckdb.DuckDBPyConnection, scope: Scope) -> int | None:
    """As many ranks as the largest group of a capture has members; None where no group is seen."""
    open_views(con, ["contents"])
    clause, values = scope.job.where()
    counted = frame(con, f"select content, count from rank_contents {clause}", values)
    least = counted.filter(content="largest_group")["count"].max()
    return least if isinstance(least, int) else None


@memoize
def limits(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """Sentences on what would answer more of the captures of `con`, or of one of them."""
    lacks_here = sorted(
        (one for one in lacks(con, scope.job) if one.capability in _CAPABILITIES),
        key=lambda one: _CAPABILITIES.index(one.capability),
    )
    sentences = (_sentence(one) for one in lacks_here if NOT_SELECTED not in one.reason)
    return list(dict.fromkeys(one for one in sentences if one is not None))


def ranks_with_communication(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[int]:
    """Ranks of a scope of which any communication was recorded, were it its time alone."""
    open_views(con, ["contents"])
    clause, values = scope.where(RANK)
    counted = f"select rank, content from rank_contents {clause}"
    timed = f"select * from step_summary {clause}"
    return frame(
        con,
        f"select rank from ({counted}) where starts_with(content, 'comm_')"
        f" union select rank from ({timed}) where communication_ns > 0",
        [*values, *values],
    )["rank"].to_list()


def open_questions(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    capabilities: Collection[str],
    *,
    beside: Collection[int] = (),
) -> list[str]:
    """Sentences on ranks of a scope that communicate and answer none of this, and on what would
    record it; `beside` are ranks of which there is something after all, and then notes of the
    capture tell what was not selected."""
    ranks = set(ranks_with_communication(con, scope)).difference(beside)
    sentences = [
        _sentence(replace(one, ranks=here))
        for one in lacks(con, scope)
        if one.capability in capabilities and one.support == "no"
        if not (beside and NOT_SELECTED in one.reason)
        if (here := tuple(sorted(ranks.intersection(one.ranks))))
    ]
    return list(dict.fromkeys(one for one in sentences if one is not None))


def _sentence(lack: Lack) -> str | None:
    """What lacks and what would record it; None where nothing would."""
    if lack.remedy is None:
        return None
    return Message(
        "{ranks}: {missing}. To know it: {remedy}",
        ranks=ranks_named(lack.ranks), missing=lack.reason, remedy=lack.remedy,
    )  # fmt: skip
