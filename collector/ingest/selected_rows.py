"""Of a rank that is read and linked: only the rows of the selected steps stay.

    step        11          12          13          14          selected: 12-13
    kernels     . . .   #   # # # #     # # # #     . . .       one of 11 that runs while 12
    operations  [....]     [#########]     [#########]  [..]    communicates hides it: it stays
    host, ...   .................####################.......    what overlaps their ranges

A table with a step goes by it. The rest goes by time: what overlaps the time from a step's first
trace to its last, on host or device. Figures of the steps that stay are those of a full reading.
"""

from __future__ import annotations

import duckdb

from .. import schema
from ..model import ReadLog
from ..selection import Spans, spans_text
from ..staging import is_empty, scalar

# Columns that say when a row without a step begins and ends; the last is known, the others may be.
_TIMES = {
    "host_ops": ("start_ns", "start_ns + dur_ns"),
    "comm_tasks": ("start_ns", "start_ns + dur_ns"),
    "marks": ("least(start_ns, device_start_ns)",
              "greatest(start_ns + dur_ns, device_start_ns + device_dur_ns)"),
    "launches": ("least(api_start_ns, device_start_ns)", "greatest(api_end_ns, device_start_ns)"),
    "memory": ("timestamp_ns", "timestamp_ns"),
    "counters": ("timestamp_ns", "timestamp_ns"),
    # Not freed within the window: held to its end. Freed here: allocated before it.
    "operator_memory": ("coalesce(allocated_at_ns, 0)", f"coalesce(released_at_ns, {2**63 - 1})"),
}  # fmt: skip
# Tables with a step, for steps that were seen in any of them.
_STEPPED = ("steps", "kernels", "comm_ops", "profiler_steps", "comm_times")
# What counts in a breakdown: an interval with a length.
_COMPUTE = "is_compute and dur_ns > 0 and start_ns is not null"
_OPERATION = "dur_ns > 0 and start_ns is not null"
_COMMUNICATION = (
    f"select step, start_ns, start_ns + dur_ns as end_ns from comm_ops where {_OPERATION}"
)
_TRACES = f"""
    select step, least(window_start_ns, device_start_ns) as start_ns,
        greatest(window_end_ns, device_end_ns) as end_ns from steps
    union all select step, start_ns, start_ns + dur_ns from kernels where {_COMPUTE}
    union all {_COMMUNICATION}
"""


def keep_steps(con: duckdb.DuckDBPyConnection, steps: Spans, log: ReadLog) -> None:
    """Delete what does not belong to `steps` from the staging tables; `ranks` says which are kept.

    Warns where the rank has none of them.
    """
    chosen = " or ".join(f"step between {first} and {last}" for first, last in steps)
    everywhere = " union ".join(f"select step from {table}" for table in _STEPPED)
    present = [step for (step,) in con.execute(f"{everywhere} order by 1").fetchall()]
    kept = [
        step for (step,) in con.execute(
            f"select step from ({everywhere}) where {chosen} order by 1"
        ).fetchall()
    ]  # fmt: skip
    if not kept:
        there = ", ".join(str(step) for step in present[:8] if step is not None)
        log.warn(
            f"no step of --steps {spans_text(steps)}: "
            + (f"there is {there}" + (", ..." if len(present) > 8 else "") if there else
               "its steps have no numbers, read it without --steps")
        )  # fmt: skip
    ranges = _spans_ns(con, steps, _TRACES)
    hulls = _spans_ns(con, steps, _COMMUNICATION)
    conditions = {
        name: f"({chosen})"
        for name, table in schema.tables().items()
        # What was logged beside the selected steps is what they are compared with.
        if name not in ("train_log", "expert_load")
        and any(column.name == "step" for column in table.columns)
    }
    conditions["kernels"] += f" or ({_COMPUTE} and {_meets(hulls, *_TIMES['host_ops'])})"
    for name, times in _TIMES.items():
        conditions[name] = _meets(ranges, *times)
    conditions["comm_tasks"] = (
        "case when op_id in (select op_id from comm_ops) then"
        f" op_id in (select op_id from comm_ops where {chosen})"
        f" else {conditions['comm_tasks']} end"
    )
    for name, valid in (("kernels", _COMPUTE), ("comm_ops", _OPERATION)):
        conditions[name] = f"({conditions[name]}) or {_witness(con, name, valid, conditions[name])}"
    # Tasks ask for the operations: these go last.
    for name in sorted(conditions, key=lambda name: name == "comm_ops"):
        if not is_empty(con, name):
            con.execute(f'delete from "{name}" where not coalesce({conditions[name]}, false)')
    con.execute("update ranks set kept_steps = ?", [kept])


def _witness(con: duckdb.DuckDBPyConnection, table: str, valid: str, condition: str) -> str:
    """The condition of one row that stays where no other of its kind would.

    Without any, a rank that computes or communicates in other steps only would look as if it
    never did, and its figures as if they were unknown.
    """
    found = scalar(
        con,
        f"""
        select min(rowid) from "{table}" where {valid}
        having count(*) filter (where coalesce({condition}, false)) = 0
    """,
    )
    return "false" if found is None else f"rowid = {found}"


def _spans_ns(con: duckdb.DuckDBPyConnection, steps: Spans, traces: str) -> list[tuple[int, int]]:
    """Disjoint times from the first to the last of `traces`, one for each run of chosen steps."""
    found = [
        con.execute(
            f"select min(start_ns), max(end_ns) from ({traces}) where step between ? and ?", span
        ).fetchall()[0]
        for span in steps
    ]
    return _merged(found)


def _merged(found: list[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted((a, b) for a, b in found if a is not None and b is not None):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _meets(ranges: list[tuple[int, int]], start: str, end: str) -> str:
    """Whether [start, end), or the instant `start`, overlaps one of the ranges."""
    last = f"greatest({end}, {start} + 1)"
    parts = [f"({start} < {b} and {last} > {a})" for a, b in ranges]
    return f"({' or '.join(parts)})" if parts else "false"
