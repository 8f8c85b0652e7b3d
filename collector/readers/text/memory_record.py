"""memory_record.csv, operator_memory.csv, npu_module_mem.csv: device memory and its blocks.

Sizes are KB or MB of 1024, as the header says. `PTA+GE` rows are the running total of both
allocators: they stand beside PTA and GE rows and are not to be added to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb

from npuscope.errors import TraceFormatError

from ...literals import sql_literal
from ...model import RankSource, ReadLog, Role
from ..damaged_files import read_each
from ..delimited_text import Rows, fill, lose, normal, open_rows
from .device_rows import names_device

_TIME = ("Timestamp(us)",)
_ALLOCATED_COLUMNS = ("Total Allocated(KB)", "Total Allocated(MB)")
_RESERVED_COLUMNS = ("Total Reserved(KB)", "Total Reserved(MB)")
_SIZE = ("Size(KB)", "Size(MB)")
# What databases of MindSpore and msprof tell of: the framework's allocator is in the text alone.
# One of torch_npu without NPU_MEM does not know what the process holds (APP).
_WITHOUT_FRAMEWORK = frozenset({"APP", "DEVICE", "GE"})


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `memory` and `operator_memory`; of `memory` what a database beside the text lacks."""
    pairs = con.execute("select distinct source, component from memory").fetchall()
    components = sorted(component or "" for kind, component in pairs if kind == "record")
    spared: set[Role] = {"module_memory"} if any(kind == "module" for kind, _ in pairs) else set()
    if "APP" in components and not _WITHOUT_FRAMEWORK.issuperset(components):
        spared.add("memory_record")
    selects: dict[Role, tuple[str, Callable[[Rows, str], str], tuple[tuple[str, ...], ...]]] = {
        "memory_record": (
            "memory",
            _record_sql,
            (_TIME, (*_ALLOCATED_COLUMNS, *_RESERVED_COLUMNS)),
        ),
        "module_memory": ("memory", _module_sql, (_TIME, _RESERVED_COLUMNS)),
        "operator_memory": ("operator_memory", _operator_sql, (("Allocation Time(us)",), _SIZE)),
    }
    role_of = {file.path: role for role in selects for file in source.files.get(role, ())}

    def read_one(path: str) -> None:
        table, select, required = selects[role_of[path]]
        is_wanted = table in tables and role_of[path] not in spared
        rows = open_rows(path, log, required) if is_wanted else None
        if rows is not None and role_of[path] == "module_memory" and rows.has(*_ALLOCATED_COLUMNS):
            raise TraceFormatError(path, "header", "the columns of memory_record.csv")
        if rows is not None and names_device(rows, source, log):
            others = components if role_of[path] == "memory_record" else ()
            _insert(con, rows, table, select, log, others)

    files = [file for role in selects for file in source.files.get(role, ())]
    read_each(files, read_one, log, advance)


def _insert(
    con: duckdb.DuckDBPyConnection,
    rows: Rows,
    table: str,
    select: Callable[[Rows, str], str],
    log: ReadLog,
    components: Sequence[str],
) -> None:
    """known: components that are told already."""
    log.rules["memory.unit"] = "KB" if _in_kib(rows, "Total Reserved") else "MB"
    sizes = [title for title in rows.titles if title.strip().endswith(("(KB)", "(MB)"))]
    times = [title for title in rows.titles if normal(title).endswith("(us)")]
    insert = f"insert into {table} by name from"
    names = ", ".join(map(sql_literal, components))
    own = f"where component is null or component not in ({names})" if components else ""
    fill(con, rows, log, lambda source: f"{insert} ({select(rows, source)}) {own}", sizes, times)
    if table == "memory":
        bad = con.execute("delete from memory where timestamp_ns is null").fetchone() or (0,)
        lose(log, rows.path, bad[0], "no valid time")


def _device(rows: Rows) -> str:
    """Number in `NPU:3`, or of a column of device numbers."""
    label = rows.cell("Device Type", "Device")
    return f"""coalesce(
        try_cast(case when starts_with({label}, 'NPU:') then substr({label}, 5)
            else regexp_extract(cell({label}), '(\\d+)$', 1) end as integer),
        try_cast(cell({rows.cell("Device_id")}) as integer))"""


def _in_kib(rows: Rows, title: str) -> bool:
    return rows.has(f"{title}(KB)")


def _bytes(rows: Rows, title: str) -> str:
    """Bytes of a column whose header says MB or KB."""
    if _in_kib(rows, title):
        return f"kib_bytes({rows.cell(f'{title}(KB)')})"
    return f"mib_bytes({rows.cell(f'{title}(MB)')})"


def _record_sql(rows: Rows, source: str) -> str:
    return f"""
        select {_device(rows)} as device_id, 'record' as source,
            cell({rows.cell("Component")}) as component,
            near_ns(us_ns({rows.cell(*_TIME)})) as timestamp_ns,
            {_bytes(rows, "Total Allocated")} as allocated_bytes,
            {_bytes(rows, "Total Reserved")} as reserved_bytes,
            {_bytes(rows, "Total Active")} as active_bytes,
            cell({rows.cell("Stream Ptr")}) as stream_ptr
        from {source}"""


def _module_sql(rows: Rows, source: str) -> str:
    # -1 KB stands for "only the release was seen".
    size = _bytes(rows, "Total Reserved")
    return f"""
        select {_device(rows)} as device_id, 'module' as source,
            cell({rows.cell("Component")}) as component,
            near_ns(us_ns({rows.cell(*_TIME)})) as timestamp_ns,
            case when {size} >= 0 then {size} end as reserved_bytes
        from {source}"""


def _operator_sql(rows: Rows, source: str) -> str:
    times = {
        "allocated_at_ns": "Allocation Time(us)",
        "released_at_ns": "Release Time(us)",
        "active_released_at_ns": "Active Release Time(us)",
        "dur_ns": "Duration(us)",
        "active_dur_ns": "Active Duration(us)",
    }
    sizes = {
        "size_bytes": "Size",
        "allocation_total_allocated_bytes": "Allocation Total Allocated",
        "allocation_total_reserved_bytes": "Allocation Total Reserved",
        "allocation_total_active_bytes": "Allocation Total Active",
        "release_total_allocated_bytes": "Release Total Allocated",
        "release_total_reserved_bytes": "Release Total Reserved",
        "release_total_active_bytes": "Release Total Active",
    }
    columns = [f"near_ns(us_ns({rows.cell(header)})) as {name}" for name, header in times.items()]
    columns += [f"{_bytes(rows, title)} as {name}" for name, title in sizes.items()]
    return f"""
        select {_device(rows)} as device_id, cell({rows.cell("Name")}) as name,
            {", ".join(columns)}, cell({rows.cell("Stream Ptr")}) as stream_ptr
        from {source}"""
