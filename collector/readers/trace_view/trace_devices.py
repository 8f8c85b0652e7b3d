"""A timeline of several devices as that of one: of which device a process is.

    label `NPU 3`     since 2025-06 the process says so
    label `NPU`       before, only its made-up id: (pid << 10) | (place << 5) | device, host: 31

An id is believed where every process of the timeline has one of that form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from ...model import RankSource, ReadLog
from ...staging import scalar
from ..staged_views import show

# Kinds of staged events that may be a device's.
_KINDS = ("device", "plane", "other", "counter", "flow")
_OF_DEVICE = "kind in ('hardware', 'communication', 'overlap') or label ilike 'NPU%'"


def keep_device(
    con: duckdb.DuckDBPyConnection, folders: Sequence[Path], source: RankSource, log: ReadLog
) -> None:
    """Make the staged views show the rank's device, the host's events of processes that launched
    something on it, and nothing of other devices. Needs `_trace_process`."""
    if source.device_id is None:
        return
    _tell_devices(con, source, log)
    con.execute(f"""
        create or replace temp table _trace_foreign as
        select pid from _trace_process
        where ({_OF_DEVICE}) and device_id is distinct from {source.device_id}""")
    show(con, "_trace_all_", folders, (*_KINDS, "api"))
    con.execute("""
        insert into _trace_foreign
        with arrow as (
            select s.pid, bool_or(f.pid not in (select pid from _trace_foreign)) as is_ours
            from _trace_all_flow s
            join _trace_all_flow f on f.side = 'f' and f.category = s.category and f.id = s.id
            where s.side = 's' and s.category = 'HostToDevice' group by s.pid
        )
        select pid from arrow where not is_ours and exists (from arrow where is_ours)""")
    for kind in (*_KINDS, "api"):
        con.execute(f"""
            create or replace temp view _trace_{kind} as
            select * from _trace_all_{kind}
            where pid is null or pid not in (select pid from _trace_foreign)""")


def _tell_devices(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    unlabelled = f"device_id is null and ({_OF_DEVICE})"
    if not scalar(con, f"select count(*) from _trace_process where {unlabelled}"):
        log.rules["trace.device"] = "label"
        return
    devices = ", ".join(map(str, (source.device_id, *source.other_devices)))
    is_of_form = scalar(
        con,
        f"""
        select coalesce(
            bool_and(case when kind = 'cann' then pid & 31 = 31 else pid & 31 in ({devices}) end)
                and count(distinct (kind, name, pid & 31)) = count(*)
                and count(distinct pid >> 10) = 1, false)
        from _trace_process where kind = 'cann' or {unlabelled}""",
    )
    if is_of_form:
        con.execute(f"update _trace_process set device_id = pid & 31 where {unlabelled}")
        log.rules["trace.device"] = "process id"
    else:
        log.rules["trace.device"] = "none"
        log.warn(
            "trace: its processes do not record their device, and there are several: data found"
            " only in the timeline is left out"
        )


def forget_devices(con: duckdb.DuckDBPyConnection) -> None:
    """Drop the views that `keep_device` made, but for those it made anew."""
    for kind in (*_KINDS, "api"):
        con.execute(f"drop view if exists _trace_all_{kind}")
