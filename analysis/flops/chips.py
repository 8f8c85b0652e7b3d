"""The peak of each rank's chip, from all that its capture tells."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from npuscope.analysis.views import frame, open_views

from .peaks import Measured, Peak, peak_of

Place = tuple[str, str, int]

# Metadata of every rank, and what its cube kernels show. A kernel on AI_CORE has the cube cores to
# itself; where there is none, those on MIX_AIC (cube and vector cores) are asked.
_FACTS = """
with _shown as (
    select run, capture, rank,
        max(case when core = 'AI_CORE' then most_blocks_count end) as blocks_count,
        max(case when core = 'MIX_AIC' then most_blocks_count end) as mixed_blocks_count
    from shape_summary group by all
),
_clocks as (
    select run, capture, rank, max(mhz) as mhz
    from (
        select run, capture, rank, step,
            round(1000 * sum(cube_cycles_count) / nullif(sum(cube_core_time_ns), 0)) as mhz
        from shape_summary where core in ('AI_CORE', 'MIX_AIC') group by all
    ) group by all
)
select run, capture, rank, any_value(framework) as framework, any_value(chip_name) as chip_name,
    max(ai_core_count) as core_count, max(ai_core_frequency_mhz) as frequency_mhz,
    any_value(blocks_count) as blocks_count, any_value(mixed_blocks_count) as mixed_blocks_count,
    any_value(mhz) as mhz
from ranks left join _shown using (run, capture, rank) left join _clocks using (run, capture, rank)
group by all
order by run, capture, rank
"""


def peaks(
    con: duckdb.DuckDBPyConnection, given: Mapping[str, float] | None = None
) -> dict[Place, Peak]:
    """Peak of every rank by (run, capture, rank); `given` as `parse_peaks` gives it.

    Ranks of a capture whose chips have one name share what any of them tells, so that a slow chip
    is held against the others' clock; so does a rank that does not name its chip where all others
    name the same.
    """
    open_views(con, ["shapes"])
    rows = frame(con, _FACTS).to_dicts()
    named: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["chip_name"]:
            named.setdefault((row["run"], row["capture"]), set()).add(row["chip_name"])
    alike: dict[tuple[str, str, str | None], list[dict[str, object]]] = {}
    for row in rows:
        names = named.get((row["run"], row["capture"]), set())
        chip = row["chip_name"] or (next(iter(names)) if len(names) == 1 else None)
        alike.setdefault((row["run"], row["capture"], chip), []).append(row)
    found: dict[Place, Peak] = {}
    for (run, capture, chip), members in alike.items():
        peak = _of_chip(chip, members, given)
        found |= {(run, capture, _whole(row["rank"])): peak for row in members}
    return found


def _of_chip(
    chip: str | None, members: list[dict[str, object]], given: Mapping[str, float] | None
) -> Peak:
    if any(row["framework"] == "kineto" for row in members):
        # Its multiprocessors are no AI cores.
        return peak_of(None, None, None, Measured(), given)
    cores = _most(members, "blocks_count") or _most(members, "mixed_blocks_count")
    count = _most(members, "core_count")
    return peak_of(
        chip,
        int(count) if count else None,
        _most(members, "frequency_mhz"),
        Measured(int(cores) if cores else None, _most(members, "mhz")),
        given,
    )


def _most(members: list[dict[str, object]], column: str) -> float | None:
    return max((float(v) for row in members if isinstance(v := row[column], int | float)),
               default=None)  # fmt: skip


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
