"""The peak of each rank's chip, from all that its capture tells."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import polars as pl

from ..memo import memoize
from ..views import frame, open_views
from .peaks import MeasuredChip, Peak, named_chip, peak_of, plain_name

Place = tuple[str, str, int]

# Metadata of every rank, and what its cube kernels show.
_FACTS = """
with _sizes as (
    select run, capture, rank, max(most_blocks_count) as blocks_count
    from shape_summary where core in ('AI_CORE', 'MIX_AIC') group by all
),
_clocks as (
    select run, capture, rank, max(mhz) as mhz
    from (
        select run, capture, rank, step,
            round(1000 * sum(cube_cycles_count) / nullif(sum(cube_core_time_ns), 0)) as mhz
        from shape_summary where core in ('AI_CORE', 'MIX_AIC') group by all
    ) group by all
)
select run, capture, rank, any_value(framework) as framework,
    list(distinct chip_name) as chip_names,
    max(ai_core_count) as core_count, max(ai_core_frequency_mhz) as frequency_mhz,
    any_value(blocks_count) as blocks_count, any_value(mhz) as mhz
from ranks left join _sizes using (run, capture, rank) left join _clocks using (run, capture, rank)
group by all
order by run, capture, rank
"""


def peaks(
    con: duckdb.DuckDBPyConnection, peaks_given: Mapping[str, float] | None = None
) -> dict[Place, Peak]:
    """Peak of every rank by (run, capture, rank); `peaks_given` as `parse_peaks` gives it.

    Ranks of a capture with one chip share what any of them tells, so that a slow chip is held
    against the others' clock. A rank that names none, or a name that several chips have
    (Ascend910B), has the chip that others name, if they name one.
    """
    rows = _facts(con).to_dicts()
    named: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        named.setdefault((row["run"], row["capture"]), set()).update(_names(row["chip_names"]))
    alike: dict[tuple[str, str, str | None], list[dict[str, object]]] = {}
    for row in rows:
        chip = _chip(_names(row["chip_names"]), named[row["run"], row["capture"]])
        alike.setdefault((row["run"], row["capture"], chip), []).append(row)
    peaks_of: dict[Place, Peak] = {}
    for (run, capture, chip), members in alike.items():
        peak = _of_chip(chip, members, peaks_given)
        peaks_of |= {(run, capture, _whole(row["rank"])): peak for row in members}
    return peaks_of


@memoize
def _facts(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    open_views(con, ["shapes"])
    return frame(con, _FACTS)


def unknown_peaks(con: duckdb.DuckDBPyConnection) -> dict[Place, str]:
    """Why the peak of each rank's chip is unknown; empty where it is known."""
    return {place: "" if peak.flops_per_s else peak.source for place, peak in peaks(con).items()}


def _names(names: list[str | None] | None) -> set[str]:
    return {name for name in names or () if name}


def _chip(own: set[str], of_capture: set[str]) -> str | None:
    """The chip of a rank, by the names that its files and those of all ranks have."""
    exact = {name for name in own if named_chip(name)}
    if exact:
        return min(exact) if len(exact) == 1 else None
    others = {
        name for name in of_capture
        if all(plain_name(name).startswith(plain_name(mine)) for mine in own)
    }  # fmt: skip
    exact = {name for name in others if named_chip(name)}
    candidates = exact or others
    return min(candidates) if len({plain_name(name) for name in candidates}) == 1 else None


def _of_chip(
    chip: str | None, members: list[dict[str, object]], peaks_given: Mapping[str, float] | None
) -> Peak:
    if any(row["framework"] == "kineto" for row in members):
        # Its multiprocessors are no AI cores.
        return peak_of(None, None, None, MeasuredChip(), peaks_given)
    blocks, count = _most(members, "blocks_count"), _most(members, "core_count")
    return peak_of(
        chip,
        int(count) if count else None,
        _most(members, "frequency_mhz"),
        MeasuredChip(int(blocks) if blocks else None, _most(members, "mhz")),
        peaks_given,
    )


def _most(members: list[dict[str, object]], column: str) -> float | None:
    return max((float(v) for row in members if isinstance(v := row[column], int | float)),
               default=None)  # fmt: skip


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
