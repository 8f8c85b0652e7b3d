"""Finish a rank after its readers: what only all tables together can say.

One row for the rank; one per group; the step of kernels and operations that came without one;
the group of operations that came without one; global ranks for group-local ones.

Then whether what several files say of one thing can be true together: told, never repaired. A
kernel table that ends behind a row looks whole, and so does one of another rank. But the profiler
counted the same kernels in its table of steps; text exports agree to 1 ns per row. A step is
recorded on the host, its kernels on the device: they are seconds apart at most, unless a clock was
set meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from .. import schema
from ..discover.captures import EPOCH_FROM_NS
from ..model import RankSource, ReadLog
from ..readers.text.device_rows import drop_strange_rows
from ..staging import is_empty, scalar

# What torch_npu and MindSpore call a folder that nobody named: host, process, time.
_UNNAMED = re.compile(r"(.+)_\d{1,10}_(?:\d{14}|\d{17})_ascend_(?:pt|ms)")


def link(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Complete the staging tables of one rank in place."""
    drop_strange_rows(con, source, log)
    statements = schema.statements("ingest/link.sql")
    columns = [column.name for column in schema.tables()["ranks"].columns]
    # any_value takes the first that is not NULL; rows stand in the order readers spoke.
    answers = ", ".join(f'any_value("{name}") as "{name}"' for name in columns)
    con.execute(statements["ranks"].format(first_answers=answers))
    _replace(con, "ranks", "_rank")
    con.execute(statements["groups"])
    _replace(con, "groups", "_groups", keep=True)
    cut_steps(con)
    if _has_table(con, "_comm_rows"):
        was_empty = is_empty(con, "comm_ops")
        con.execute(statements["comm_rows"])
        if was_empty and not is_empty(con, "comm_ops"):
            log.rules["comm_ops"] = "rows of the kernel table"
    if is_empty(con, "comm_ops") and not is_empty(con, "comm_tasks"):
        con.execute(statements["task_hulls"])
        if not is_empty(con, "comm_ops"):
            log.rules["comm_ops"] = "spans of their tasks"
            log.warn(
                "communication was recorded as tasks only: an operation spans its first to its"
                " last task"
            )
    numbered = ("comm_groups", "comm_ops", "comm_tasks")
    there = () if is_empty(con, "comm_ops") and is_empty(con, "comm_tasks") else numbered
    for name in (*there, *(() if is_empty(con, "comm_matrix") else ("comm_matrix",))):
        con.execute(statements[name].replace("{{3}}", "{3}"))
        if name != "comm_groups":
            _replace(con, name, f"_{name}")
    outside = ""
    if _has_table(con, "_comm_rows"):
        con.execute(statements["outside_ops"])
        outside = "and t.op_id not in (select op_id from _outside_ops)"
    _assign_steps(con, "kernels")
    _assign_steps(con, "comm_ops", outside)
    if source.framework == "msprof":
        con.execute(statements["measured_steps"])
    _describe(con, source, log)
    _notice_devices(con, log)
    traces = [table for table in ("comm_tasks", "comm_times") if not is_empty(con, table)]
    is_silent = "comm_ops" in source.selection.read and is_empty(con, "comm_ops")
    if traces and is_silent and not is_empty(con, "kernels"):
        log.warn(
            "communication tasks, but no operations with times: communication of the steps is"
            " unknown"
        )


def cut_steps(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_step_segments` (start_ns, end_ns, step): to which step an instant belongs."""
    con.execute(schema.statements("ingest/link.sql")["step_segments"])


def _replace(con: duckdb.DuckDBPyConnection, table: str, by: str, *, keep: bool = False) -> None:
    """Put the rows of a temporary table in place of a canonical one's."""
    con.execute(f'delete from "{table}"')
    con.execute(f'insert into "{table}" by name select * from "{by}"')
    if not keep:
        con.execute(f'drop table "{by}"')


def _assign_steps(con: duckdb.DuckDBPyConnection, table: str, unless: str = "") -> None:
    """Give rows without a step the one whose device range covers their start.

    Where the source itself told steps for some of its rows, an empty one means "outside every
    step" and stays.
    """
    if table == "kernels" and scalar(con, "select count(step) from kernels"):
        return
    if is_empty(con, "_step_segments") or is_empty(con, table):
        return
    con.execute(f"""
        create temp table _stepped as
        select t.* replace (
            coalesce(t.step, case when t.start_ns < s.end_ns {unless} then s.step end) as step)
        from "{table}" t asof left join _step_segments s on t.start_ns >= s.start_ns
    """)
    _replace(con, table, "_stepped")


def _describe(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Fill what discovery knows of the rank."""
    if is_empty(con, "ranks"):
        con.execute("insert into ranks (framework) values (null)")
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
    unnamed = _UNNAMED.fullmatch(Path(source.root).name)
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
                (select any_value(device_id) from profiler_steps))
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


def _notice_devices(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    found = (
        "select list(distinct device_id order by device_id) filter (device_id >= 0) from kernels"
    )
    devices = scalar(con, found) or []
    if len(devices) > 1:
        log.warn(
            f"kernels of {len(devices)} devices {devices} under one rank: its figures are unions"
            " over all devices"
        )


def _has_table(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    # Asking the catalog's own table would count the rows of every table.
    try:
        con.execute(f'select 1 from "{name}" limit 0')
    except duckdb.CatalogException:
        return False
    return True


# The profiler's text has tenths of a microsecond and sums of rounded rows.
_TOLERANCE_NS = 1_000
_TOLERANCE_RATIO = 1e-4

# Per step with one row in the producer's table: what it says, and the kernels' durations.
_COUNTED = """
    select step, told_ns, coalesce(sum(dur_ns), 0) as kernels_ns
    from (select step, any_value(computing_ns) as told_ns from profiler_steps
          group by step having count(*) = 1 and told_ns is not null)
    left join (select step, dur_ns from kernels where is_compute) using (step)
    where step is not null
    group by all
"""
# The same, where kernels run at once: the length of their union.
_UNITED = """
    with ordered as (
        select step, start_ns, start_ns + dur_ns as end_ns, max(start_ns + dur_ns) over (
            partition by step order by start_ns rows between unbounded preceding and 1 preceding
        ) as reached_ns
        from kernels where is_compute and dur_ns > 0
    )
    select sum(greatest(0, end_ns - greatest(start_ns, coalesce(reached_ns, start_ns))))
    from ordered where step = ?
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
    apart = con.execute(_APART, {"far_ns": _FAR_NS}).fetchall()
    if apart:
        step, apart_ns = apart[0]
        log.warn(
            f"clocks: kernels of {len(apart)} step(s) are far from the step on the host, in step"
            f" {step} by {apart_ns / 1e9:.0f} s: a clock was adjusted during profiling, or files"
            " of several profiling runs were mixed; intervals between host and device are"
            " unreliable"
        )


def _compare_sums(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """The kernel table and the producer's table of steps."""
    if "kernels" not in source.files or "main_db" in source.files:
        return
    if not scalar(con, "select count(step) from kernels"):
        return
    differing: list[tuple[int, float, float]] = []
    for step, told_ns, kernels_ns in con.execute(_COUNTED).fetchall():
        if _differ(told_ns, kernels_ns):
            if kernels_ns > told_ns:
                [(kernels_ns,)] = con.execute(_UNITED, [step]).fetchall()
            if _differ(told_ns, kernels_ns):
                differing.append((step, told_ns, kernels_ns))
    if differing:
        step, told_ns, kernels_ns = max(differing, key=lambda one: abs(one[1] - one[2]))
        log.warn(
            f"the kernel table does not fit the profiler's table of steps in {len(differing)}"
            f" step(s): in step {step} kernels run for {kernels_ns / 1e6:.3f} ms, which the"
            f" profiler counted as {told_ns / 1e6:.3f} ms: rows are missing, or belong to another"
            " rank"
        )


def _differ(told_ns: float, kernels_ns: float) -> bool:
    return abs(told_ns - kernels_ns) > _TOLERANCE_NS + _TOLERANCE_RATIO * told_ns
