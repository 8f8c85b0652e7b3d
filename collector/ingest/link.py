"""Finish a rank after its readers: what only all tables together can say.

One row for the rank; one per group; the step of kernels and operations that came without one;
the group of operations that came without one; global ranks for group-local ones.

Then whether what several files say of one thing can be true together: told, never repaired. A
kernel table that ends behind a row looks whole, and so does one of another rank. But the profiler
counted the same kernels in its table of steps; text exports agree to 1 ns per row. A step is
recorded on the host, its kernels on the device: they are seconds apart at most, unless a clock was
set meanwhile.

Of a rank that is linked only the rows of the selected steps stay:

    step        11          12          13          14          selected: 12-13
    kernels     . . .   #   # # # #     # # # #     . . .       one of 11 that runs while 12
    operations  [....]     [#########]     [#########]  [..]    communicates hides it: it stays
    host, ...   .................####################.......    what overlaps their ranges

A table with a step goes by it. The rest goes by time: what overlaps the time from a step's first
trace to its last, on host or device. Figures of the steps that stay are those of a full reading.
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from .. import schema
from ..model import RankSource, ReadLog
from ..readers.text.device_rows import drop_strange_rows, keep_one_device
from ..selection import Spans, spans_text
from ..staging import has_table, is_empty, run, scalar
from ..step_segments import cut_steps
from ..wall_clock import EPOCH_FROM_NS

# What torch_npu and MindSpore call a folder that nobody named: host, process, time.
_DEFAULT_NAME = re.compile(r"(.+)_\d{1,10}_(?:\d{14}|\d{17})_ascend_(?:pt|ms)")


def link(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Complete the staging tables of one rank in place."""
    drop_strange_rows(con, source, log)
    statements = schema.statements("ingest/link.sql")
    columns = [column.name for column in schema.tables()["ranks"].columns]
    # any_value takes the first that is not NULL; rows stand in the order readers spoke.
    answers = ", ".join(f'any_value("{name}") as "{name}"' for name in columns)
    run(con, statements["ranks"].format(first_answers=answers))
    keep_one_device(con, source, log)
    run(con, statements["groups"])
    cut_steps(con)
    if has_table(con, "_comm_rows"):
        was_empty = is_empty(con, "comm_ops")
        run(con, statements["comm_rows"])
        if was_empty and not is_empty(con, "comm_ops"):
            log.rules["comm_ops"] = "rows of the kernel table"
    if is_empty(con, "comm_ops") and not is_empty(con, "comm_tasks"):
        run(con, statements["task_hulls"])
        if not is_empty(con, "comm_ops"):
            log.rules["comm_ops"] = "spans of their tasks"
            log.warn(
                "communication was recorded as tasks only: an operation spans its first "
                "to its last task"
            )
    _tell_repeats(con, log)
    _forget_early_releases(con, log)
    numbered = ("comm_groups", "op_tasks", "comm_ops", "comm_tasks")
    there = () if is_empty(con, "comm_ops") and is_empty(con, "comm_tasks") else numbered
    for name in (*there, *(() if is_empty(con, "comm_matrix") else ("comm_matrix",))):
        run(con, statements[name].replace("{{3}}", "{3}"))
    outside = ""
    if has_table(con, "_comm_rows"):
        run(con, statements["outside_ops"])
        outside = "and t.op_id not in (select op_id from _outside_ops)"
    _assign_steps(con, "kernels")
    _assign_steps(con, "comm_ops", outside)
    stepless = (f"exists(from {t} where step is null)" for t in _TABLES_WITH_STEPS)
    if scalar(con, f"select {' or '.join(stepless)}"):  # as msprof tells them, in whatever folder
        run(con, statements["measured_steps"])
    _describe(con, source, log)
    traces = [table for table in ("comm_tasks", "comm_times") if not is_empty(con, table)]
    is_silent = "comm_ops" in source.selection.inputs and is_empty(con, "comm_ops")
    if traces and is_silent and not is_empty(con, "kernels"):
        log.warn(
            "communication tasks, but no operations with times: communication of the "
            "steps is unknown"
        )


# What tells one kernel or operation from another: a stream runs one at a time.
_PLACES = {
    "kernels": "device_id, stream_id, task_id, context_id, name, start_ns, dur_ns",
    "comm_ops": "device_id, stream_id, group_hash, name, start_ns, dur_ns",
}
# What HCCL measured; what a row of it must know for an equal one to be the same.
_TABLES_WITH_STEPS = ("comm_times", "comm_links", "comm_matrix")
_MEASURES = {"comm_times": "start_ns", "comm_matrix": "size_bytes"}


def _tell_repeats(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """Tell of rows that stand there twice, as in tables that somebody put together."""
    for table, place in _PLACES.items():
        # Few rows share a start: only these are held against each other.
        count = scalar(
            con,
            f"""
            select sum(n) from (
                select count(*) - 1 as n from {table}
                where name is not null and dur_ns > 0 and start_ns in (
                    select start_ns from {table} group by start_ns having count(*) > 1)
                group by {place})
        """,
        )
        if count:
            log.warn(
                "{table}: {count} rows stand there twice: counts and sums of durations are too "
                "large by them, the parts of steps are not",
                table=table,
                count=int(count),
            )
    for table, tables_of in _MEASURES.items():
        if is_empty(con, table):
            continue
        rows = f"from {table} where {tables_of} is not null"
        count = scalar(
            con,
            f"select (select count(*) {rows}) - (select count(*) from (select distinct * {rows}))",
        )
        if count:
            log.warn(
                "{table}: {count} rows stand there twice: counts, bytes and times of what HCCL "
                "measured are too large by them",
                table=table,
                count=int(count),
            )


def _forget_early_releases(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """No block is released before it is allocated: 0 and -1 stand for no time, others are damage.

    It would be held by nobody at the peak.
    """
    if is_empty(con, "operator_memory"):
        return
    run(con, "update operator_memory set allocated_at_ns = null where allocated_at_ns <= 0")
    early = 0
    for released, dur in (
        ("active_released_at_ns", "active_dur_ns"), ("released_at_ns", "dur_ns")
    ):  # fmt: skip
        [count] = con.execute(f"""
            update operator_memory set {released} = null, {dur} = null
            where {released} < allocated_at_ns or {released} <= 0""").fetchone() or (0,)
        early = max(early, count)  # a block often has both
    if early:
        log.warn(
            "operator_memory: {early} blocks have a release that is no time, or before their "
            "allocation: it is unknown",
            early=early,
        )


def _assign_steps(con: duckdb.DuckDBPyConnection, table: str, unless: str = "") -> None:
    """Give rows without a step the one whose device range covers their start.

    Where the source itself told steps for some of its rows, an empty one means "outside every
    step" and stays.
    """
    if table == "kernels" and scalar(con, "select count(step) from kernels"):
        return
    if is_empty(con, "_step_segments") or is_empty(con, table):
        return
    run(
        con,
        f"""
        create or replace table "{table}" as
        select t.* replace (
            coalesce(t.step, case when t.start_ns < s.end_ns {unless} then s.step end) as step)
        from "{table}" t asof left join _step_segments s on t.start_ns >= s.start_ns
    """,
    )


def _describe(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Fill what discovery knows of the rank."""
    if is_empty(con, "ranks"):
        run(con, "insert into ranks (framework) values (null)")
    text = not {"kernels", "trace", "kineto"}.isdisjoint(source.files)
    form = (
        "db+text"
        if text and "main_db" in source.files
        else "db"
        if "main_db" in source.files
        else ""
    )
    of_all_ranks = source.framework == "msprof_analyze"
    form = form or ("text" if text else "cluster" if of_all_ranks else "light")
    first_ns = scalar(
        con,
        """
        select min(start_ns) from (
            select min(start_ns) as start_ns from kernels
            union all select min(start_ns) from comm_ops
            union all select min(start_ns) from comm_times)
    """,
    )
    unnamed = _DEFAULT_NAME.fullmatch(Path(source.root).name)
    host = unnamed[1] if unnamed and not scalar(con, "select host_name from ranks") else None
    if host is not None:
        log.rules["host_name"] = "the folder's name"
    instant = source.window_start_ns or first_ns
    clock = None if instant is None else "epoch" if instant >= EPOCH_FROM_NS else "device"
    con.execute(
        """
        update ranks set
            framework = coalesce(framework, $framework),
            host_name = coalesce(host_name, $host),
            source_format = $form,
            clock = $clock,
            window_start_ns = coalesce(window_start_ns, $start_ns),
            window_end_ns = coalesce(window_end_ns, $end_ns),
            device_id = coalesce($device_id, device_id, (select any_value(device_id) from kernels),
                (select device_id from profiler_steps where device_id is not null
                group by 1 order by sum(computing_ns) desc nulls last, 1 limit 1))
        """,
        {
            "framework": None if of_all_ranks else source.framework,
            "form": form,
            "host": host,
            "clock": clock,
            "device_id": source.device_id,
            # Results of all ranks know no session, only when some operations began.
            "start_ns": None if of_all_ranks else source.window_start_ns,
            "end_ns": None if of_all_ranks else source.window_end_ns,
        },
    )


# The profiler's text has tenths of a microsecond and sums of rounded rows.
_TOLERANCE_NS = 1_000
_TOLERANCE_RATIO = 1e-4

# Per step with one row in the producer's table: what it says, and the kernels' durations.
_COUNTS = """
    select step, told_ns, coalesce(sum(dur_ns), 0) as kernels_ns
    from (select step, any_value(computing_ns) as told_ns from profiler_steps
          group by step having count(*) = 1 and told_ns is not null)
    left join (select step, dur_ns from kernels where is_compute) using (step)
    where step is not null
    group by all
"""
# The same of some steps, where kernels run at once: the length of their union.
_UNION = """
    with in_order as (
        select step, start_ns, start_ns + dur_ns as end_ns, max(start_ns + dur_ns) over (
            partition by step order by start_ns rows between unbounded preceding and 1 preceding
        ) as reached_ns
        from kernels where is_compute and dur_ns > 0 and step in (select unnest(?))
    )
    select step, sum(greatest(0, end_ns - greatest(start_ns, coalesce(reached_ns, start_ns))))
    from in_order group by step
"""
# What the profiler counts where steps run into each other: stretches of kernels, of whichever step,
# that begin within the range of the step.
_WITHIN = """
    with in_order as (
        select start_ns, start_ns + dur_ns as end_ns, max(start_ns + dur_ns) over (
            order by start_ns rows between unbounded preceding and 1 preceding
        ) as reached_ns
        from kernels where is_compute and dur_ns > 0
    ), numbered as (
        select *, count_if(reached_ns is null or start_ns > reached_ns) over (
            order by start_ns, end_ns rows between unbounded preceding and current row
        ) as stretch
        from in_order
    ), stretches as (
        select min(start_ns) as start_ns, max(end_ns) as end_ns from numbered group by stretch
    )
    select step, sum(k.end_ns - k.start_ns)
    from steps as s join stretches as k
        on k.start_ns >= s.device_start_ns and k.start_ns < s.device_end_ns
    where step in (select unnest(?)) group by step
"""


# A step on the host, and the first of its kernels on the device.
_APART = """
    select step, start_ns - window_start_ns as apart_ns
    from (select step, min(window_start_ns) as window_start_ns, max(window_end_ns) as window_end_ns
          from steps where step is not null group by step)
    join (select step, min(start_ns) as start_ns from kernels group by step) using (step)
    where not start_ns between window_start_ns - $far_ns and window_end_ns + $far_ns
    order by abs(apart_ns) desc, step
"""
_FAR_NS = 60_000_000_000


def cross_check(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Warn where a rank's tables contradict each other; they are filled and linked."""
    if is_empty(con, "kernels"):
        return
    _compare_sums(con, source, log)
    apart = run(con, _APART, {"far_ns": _FAR_NS}).fetchall()
    if apart:
        step, apart_ns = apart[0]
        log.warn(
            "clocks: kernels of {count} step(s) are far from the step on the host, in "
            "step {step} by {seconds} s: a clock was adjusted during profiling, or files of "
            "several profiling runs were mixed; intervals between host and device are "
            "unreliable",
            count=len(apart),
            step=step,
            seconds=f"{apart_ns / 1e9:.0f}",
        )


def _compare_sums(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """The kernel table and the producer's table of steps."""
    if "kernels" not in source.files or "main_db" in source.files:
        return
    if not scalar(con, "select count(step) from kernels"):
        return
    counted = [row for row in run(con, _COUNTS).fetchall() if _differ(*row[1:])]
    longer = [step for step, told_ns, kernels_ns in counted if kernels_ns > told_ns]
    united = dict(run(con, _UNION, [longer]).fetchall()) if longer else {}
    triples = [(step, told_ns, united.get(step, own_ns)) for step, told_ns, own_ns in counted]
    differing = [row for row in triples if _differ(*row[1:])]
    steps = [step for step, *_ in differing]
    within = dict(run(con, _WITHIN, [steps]).fetchall()) if steps else {}
    differing = [row for row in differing if _differ(row[1], within.get(row[0], row[2]))]
    if differing:
        step, told_ns, kernels_ns = max(differing, key=lambda one: abs(one[1] - one[2]))
        log.warn(
            "the kernel table does not fit the profiler's table of steps in {count} "
            "step(s): in step {step} kernels run for {own} ms, which the profiler counted "
            "as {told} ms: rows are missing, or belong to another rank",
            count=len(differing),
            step=step,
            own=f"{kernels_ns / 1e6:.3f}",
            told=f"{told_ns / 1e6:.3f}",
        )


def _differ(told_ns: float, kernels_ns: float) -> bool:
    return abs(told_ns - kernels_ns) > _TOLERANCE_NS + _TOLERANCE_RATIO * told_ns


# Columns that say when a row without a step begins and ends; the last is known, the others may be.
_TIMES = {
    "host_ops": ("start_ns", "start_ns + dur_ns"),
    "comm_tasks": ("start_ns", "start_ns + dur_ns"),
    "device_tasks": ("start_ns", "start_ns + dur_ns"),
    "marks": ("least(start_ns, device_start_ns)",
              "greatest(start_ns + dur_ns, device_start_ns + device_dur_ns)"),
    "launches": ("least(api_start_ns, device_start_ns)", "greatest(api_end_ns, device_start_ns)"),
    "memory": ("timestamp_ns", "timestamp_ns"),
    "counters": ("timestamp_ns", "timestamp_ns"),
    # Not freed within the window: held to its end. Freed here: allocated before it.
    "operator_memory": ("coalesce(allocated_at_ns, 0)", f"coalesce(released_at_ns, {2**63 - 1})"),
}  # fmt: skip
# Tables with a step, for steps that were seen in any of them.
BY_STEP = ("steps", "kernels", "comm_ops", "profiler_steps", "comm_times")
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
    condition = " or ".join(f"step between {first} and {last}" for first, last in steps)
    everywhere = " union ".join(f"select step from {table}" for table in BY_STEP)
    present = [step for (step,) in run(con, f"{everywhere} order by 1").fetchall()]
    steps_here = [
        step for (step,) in con.execute(
            f"select step from ({everywhere}) where {condition} order by 1"
        ).fetchall()
    ]  # fmt: skip
    if not steps_here:
        there = ", ".join(str(step) for step in present[:8] if step is not None)
        log.warn(
            f"no step of --steps {spans_text(steps)}: "
            + (f"there is {there}" + (", ..." if len(present) > 8 else "") if there else
               "its steps have no numbers, read it without --steps")
        )  # fmt: skip
    ranges = _spans_ns(con, steps, _TRACES)
    hulls = _spans_ns(con, steps, _COMMUNICATION)
    conditions = {
        name: f"({condition})"
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
        f" op_id in (select op_id from comm_ops where {condition})"
        f" else {conditions['comm_tasks']} end"
    )
    for name, valid in (("kernels", _COMPUTE), ("comm_ops", _OPERATION)):
        conditions[name] = f"({conditions[name]}) or {_witness(con, name, valid, conditions[name])}"
    # Tasks ask for the operations: these go last.
    for name in sorted(conditions, key=lambda name: name == "comm_ops"):
        if not is_empty(con, name):
            run(con, f'delete from "{name}" where not coalesce({conditions[name]}, false)')
    run(con, "update ranks set kept_steps = ?", [steps_here])


def _witness(con: duckdb.DuckDBPyConnection, table: str, valid: str, condition: str) -> str:
    """The condition of one row that stays where no other of its kind would.

    Without any, a rank that computes or communicates in other steps only would look as if it
    never did, and its figures as if they were unknown.
    """
    witness = scalar(
        con,
        f"""
        select min(rowid) from "{table}" where {valid}
        having count(*) filter (where coalesce({condition}, false)) = 0
    """,
    )
    return "false" if witness is None else f"rowid = {witness}"


def _spans_ns(con: duckdb.DuckDBPyConnection, steps: Spans, traces: str) -> list[tuple[int, int]]:
    """Disjoint times from the first to the last of `traces`, one for each run of chosen steps."""
    spans = [
        con.execute(
            f"select min(start_ns), max(end_ns) from ({traces}) where step between ? and ?",
            span,
        ).fetchall()[0]
        for span in steps
    ]
    return _merge_spans(spans)


def _merge_spans(spans: list[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted((a, b) for a, b in spans if a is not None and b is not None):
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
