"""Where on the timeline the evidence of a finding is: the event or stretch that shows it best."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from .shared_axis import Extent

_LONGEST = """
    select rank, start_ns, dur_ns, {key} as key, {name} as name from {table}
    where {place} and {asked} and dur_ns > 0 and start_ns is not null
        and (cast(? as integer) is null or rank = ?) and (cast(? as bigint) is null or step = ?)
    order by dur_ns desc, rank, start_ns limit 1"""
# What follows the longest time without any kernel.
_GAP = """
    select reach, start_ns from (
        select start_ns, max(start_ns + dur_ns) over (
            order by start_ns rows between unbounded preceding and 1 preceding) as reach
        from kernels
        where {place} and rank = ? and is_compute and (cast(? as bigint) is null or step = ?)
            and dur_ns > 0 and start_ns is not null
    )
    where start_ns > reach order by start_ns - reach desc, start_ns limit 1"""
_KERNEL = "cast(stream_id as varchar)", "coalesce(type, name, 'kernel')", "kernels"
_OPERATION = "coalesce(group_hash, '')", "coalesce(op_type, name, 'operation')", "comm_ops"


@dataclass(frozen=True, slots=True)
class EvidencePlace:
    """On the shown clock, from the capture's first moment, half-open. `kind` is stream or group,
    with the `key` of the track and the `name` of the event; None of a stretch in which no kernel
    runs."""

    rank: int
    start_ns: int
    end_ns: int
    kind: str | None = None
    key: str = ""
    name: str = ""


def evidence_place(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    *,
    of_rank: int | None,
    of_step: int | None,
    kernel: str | None,
    operation: str | None,
) -> EvidencePlace | None:
    """The longest kernel of a type, or operation of a type, of a rank and step (None: of any); of
    neither the longest time of the rank without a kernel. None where there is none."""
    for kind, value, (key, name, table) in (
        ("stream", kernel, _KERNEL),
        ("group", operation, _OPERATION),
    ):
        if value is None:
            continue
        query = _LONGEST.format(
            key=key, name=name, table=table, place=at.place, asked=f"{name} = ?"
        )
        values = [value, of_rank, of_rank, of_step, of_step]
        for rank, start_ns, dur_ns, track, evidence in con.execute(query, values).fetchall():
            begin = start_ns - at.zero_of_ns(rank)
            return EvidencePlace(rank, begin, begin + dur_ns, kind, track or "", evidence)
        return None
    if of_rank is None:
        return None
    query = _GAP.format(place=at.place)
    for from_ns, to_ns in con.execute(query, [of_rank, of_step, of_step]).fetchall():
        zero_ns = at.zero_of_ns(of_rank)
        return EvidencePlace(of_rank, from_ns - zero_ns, to_ns - zero_ns)
    return None
