"""Kineto's traces, *.pt.trace.json: what PyTorch's profiler saw of a GPU and of its host.

    JSON pieces -> typed events  -> Arrow          -> Parquet, one file per kind -> canonical tables
    json_events    events           kineto_columns    staging                       kineto.sql

The head of the file (head) tells rank, groups and devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from ... import schema
from ...groups import group_hash
from ...model import RankSource, ReadLog
from ...staging import insert_row, insert_rows, scalar
from ..chrome_trace.staged_views import event_views, keep_rows
from ..metadata.profiler_metadata import SIZE_KINDS, ProcessGroup, group_rows, rank_columns
from .gpu_comm import RULE, collective_rows, data_type_rows, kernel_rows, parse_comm_kernels
from .head import KinetoHead, job_metadata, read_beginning, read_head
from .kineto_columns import KinetoForm

_TABLES = ("kernels", "comm_ops", "launches", "steps", "marks", "host_ops", "memory", "counters")
_HEAD = frozenset({"ranks", "groups"})
# Nothing of a light reading but what the head tells.


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill those of `_TABLES`, and of ranks and groups, that stand in `tables`.

    Where only the latter are, or the rank is read lightly, no more than the file's head is read.
    Raises TraceFormatError if the trace cannot be read.
    """
    path = source.paths("kineto")[0]
    head = read_head(path, read_beginning(path))
    log.options = dict(head.options) or None
    log.rules["kineto.clock"] = "baseTimeNanoseconds" if head.base_ns else "as the events have it"
    if source.selection.light or tables <= _HEAD:
        _fill_head(con, source, head, head.metadata.groups, tables)
        return
    form = KinetoForm(head.base_ns, "counters" in tables, source.selection.stacks)
    with event_views(con, "_kineto_", [path], form, log, advance, processes=source.processes):
        groups = list(_all_groups(con, head))
        _name(con, source, groups)
        _derive(con, log, tables)
        if path in log.damage:
            log.lose(path, "figures of this rank cover only the part that was read")
        # Of a packed file discovery saw the beginning only.
        [window_ns] = con.execute(_WINDOW).fetchall() if path.endswith(".gz") else [(None, None)]
        _fill_head(con, source, head, tuple(groups), tables, window_ns)


def _derive(con: duckdb.DuckDBPyConnection, log: ReadLog, tables: frozenset[str]) -> None:
    """Canonical tables from staged events."""
    sql = schema.statements("readers/kineto/kineto.sql")
    con.execute(sql["places"])
    for table in _TABLES:
        if table in tables:
            con.execute(sql[table])
    if "comm_ops" in tables and scalar(con, "select count(*) from comm_ops"):
        log.rules["comm_ops"] = "kernels of communication libraries"
        untold = scalar(con, sql["untold"])
        if untold:
            log.warn(
                "trace: {untold} kernels called SendRecv are taken as point to point, though"
                " all-to-all has such kernels too: neither they nor an operator around their call"
                " tell their collective",
                untold=untold,
            )
    elsewhere = con.execute(sql["elsewhere"]).fetchall()
    if elsewhere:
        log.warn(
            "trace: figures are of device {device}: {tasks} tasks of others ({devices}) are left"
            " out, as a rank is one device with a process of its own",
            device=scalar(con, "select device_id from _kineto_own_device"),
            tasks=sum(count for _, count in elsewhere),
            devices=", ".join(str(device) for device, _ in elsewhere),
        )
    unbound = scalar(con, sql["unbound"])
    if unbound and "launches" in tables:
        log.warn(
            "trace: {unbound} device tasks whose launching call was not recorded", unbound=unbound
        )


def _name(con: duckdb.DuckDBPyConnection, source: RankSource, groups: list[ProcessGroup]) -> None:
    """What the names of kernels, collectives, types and groups stand for, as tables."""
    own = parse_comm_kernels(dict(source.rules).get(RULE, ""))
    kernels = _texts(con, "select distinct name from _kineto_device where category = 'kernel'")
    keep_rows(con, "_kineto_comm_kernel", kernel_rows(kernels, own))
    collectives = {*_distinct(con, "collective"), *_texts(con, _AROUND)}
    keep_rows(con, "_kineto_collective", collective_rows(collectives))
    keep_rows(con, "_kineto_data_type", data_type_rows(_distinct(con, "data_type")))
    hashes = {
        "group_name": pa.array([group.name for group in groups], pa.string()),
        "group_hash": pa.array([_hash(group) for group in groups], pa.string()),
    }
    keep_rows(con, "_kineto_group", pa.table(hashes))


def _distinct(con: duckdb.DuckDBPyConnection, column: str) -> list[str]:
    return _texts(con, f"select distinct {column} from _kineto_device where {column} is not null")


def _texts(con: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    return [text for (text,) in con.execute(query).fetchall()]


def _all_groups(con: duckdb.DuckDBPyConnection, head: KinetoHead) -> Iterator[ProcessGroup]:
    """The head's groups, with what operations tell of them, and those that only operations tell."""
    query = """
        select group_name, any_value(group_label), any_value(group_ranks) from _kineto_device
        where group_name is not null group by group_name order by group_name"""
    rows = {name: rest for name, *rest in con.execute(query).fetchall()}
    for group in head.metadata.groups:
        label, members = rows.pop(group.name, (None, None))
        yield ProcessGroup(
            group.name, group.label or label, group.group_rank,
            group.global_ranks or _members(members),
        )  # fmt: skip
    for name, (label, members) in rows.items():
        yield ProcessGroup(name, label, None, _members(members))


def _members(text: str | None) -> tuple[int, ...]:
    """`"[0, 1, 2]"` as ranks; none where the profiler left some out: `[0, 1, ...]`."""
    inner = (text or "").strip(' "')
    if not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", inner, re.A):
        return ()
    numbers = tuple(int(number) for number in re.findall(r"\d+", inner, re.A))
    return numbers if len(set(numbers)) == len(numbers) and max(numbers) < 1 << 31 else ()


def _hash(group: ProcessGroup) -> str:
    """Of the group's name and members: processes that make groups by themselves count them from 0,
    so that one name may stand for other members elsewhere."""
    members = ",".join(map(str, group.global_ranks))
    return group_hash(f"{group.name}[{members}]" if members else group.name)


def _fill_head(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    head: KinetoHead,
    groups: tuple[ProcessGroup, ...],
    tables: frozenset[str],
    window_ns: tuple[int | None, int | None] = (None, None),
) -> None:
    """The rows of ranks and groups; `window_ns`: start and end, where they are known better."""
    metadata = job_metadata(
        head.metadata.world_size, ((g.name, g.label, g.global_ranks) for g in groups)
    )
    if "groups" in tables and groups:
        rows = group_rows(metadata, source.rank)
        hashes = pa.array([_hash(group) for group in groups], pa.string())
        place = rows.schema.get_field_index("group_hash")
        insert_rows(con, "groups", rows.set_column(place, "group_hash", hashes))
    if "ranks" in tables:
        device_id = scalar(con, _DEVICE)
        device = next((one for one in head.devices if one.id == device_id), None)
        if device is None and len({(d.name, d.multiprocessor_count) for d in head.devices}) == 1:
            device = head.devices[0]
        columns = {
            "device_id": device_id,
            "host_name": head.host_name or _host_of(source),
            "chip_name": device and device.name,
            "ai_core_count": device and device.multiprocessor_count,
            "window_start_ns": window_ns[0],
            "window_end_ns": window_ns[1],
            **rank_columns(metadata, source.rank),
            **dict.fromkeys(_ambiguous(groups)),
        }
        insert_row(con, "ranks", columns)


def _ambiguous(groups: tuple[ProcessGroup, ...]) -> Iterator[str]:
    """Columns of kinds of which the rank is in several groups: data parallelism of two levels."""
    for kind in SIZE_KINDS:
        if len({group.global_ranks for group in groups if group.kind == kind}) > 1:
            yield from (f"{kind}_size", f"{kind}_rank")


# Whose most tasks are; kernels and operations are filled before ranks.
_DEVICE = """
    select device_id from (select device_id from kernels union all select device_id from comm_ops)
    where device_id is not null group by device_id order by count(*) desc, device_id limit 1"""


# Framework operators that issue collectives.
_AROUND = """
    select distinct name from _kineto_host
    where kind = 'operator' and (name like 'c10d::%' or name like 'nccl:%')"""


_WINDOW = """
    select min(start_ns), max(end_ns) from (
        select min(start_ns) as start_ns, max(start_ns + dur_ns) as end_ns from _kineto_host
        union all select min(start_ns), max(start_ns + dur_ns) from _kineto_step
        union all select min(start_ns), max(start_ns + dur_ns) from _kineto_device)"""


def _host_of(source: RankSource) -> str | None:
    """The host that tensorboard_trace_handler put into the file's name."""
    name = Path(source.paths("kineto")[0]).name
    match = re.fullmatch(r"(.+)_\d+\.\d{10,20}\.pt\.trace\.json(\.gz)?", name)
    return match[1] if match else None
