"""Which rows of files that hold several devices are a rank's own.

    rank of device 3, others 0-2:    rows of device 3, and rows without a device (the host's)

Readers pass over rows of the other ranks' devices. What then is left of a device that nothing else
in the profile told of is nobody's: it goes when the rank is linked, and is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from ...discover.msprof_layout import device_of
from ...model import RankSource, ReadLog
from ...staging import has_table
from ..delimited_text import Rows

if TYPE_CHECKING:
    from ..sqlite import SqliteFile


def own_rows(source: RankSource, column: str) -> str:
    """SQL: whether a row is of the rank, by the SQL of its device."""
    if not source.other_devices:
        return "true"
    return f"({column} is null or {column} not in ({_list_of(source.other_devices)}))"


def names_device(rows: Rows, source: RankSource, log: ReadLog) -> bool:
    """Whether a table is of use to the rank: of several devices it must say which a row is of."""
    if source.device_id is None or rows.has("Device_id", "Device", "Device Type"):
        return True
    if device_of(rows.path) == source.device_id:
        return True
    name = Path(rows.path).name
    log.warn(
        "{file}: left out: its rows do not record their device, and there are several", file=name
    )
    return False


def own_database(file: SqliteFile, source: RankSource) -> None:
    """Make the file show the rank's own rows: tasks of its device, what belongs to these tasks, and
    calls of the processes that launched them."""
    if not source.other_devices or "TASK" not in file.tables:
        return
    others = _list_of(source.other_devices)
    tasks = f'"TASK" where ("deviceId" is null or "deviceId" not in ({others}))'
    pids = file.select({"pid": ("integer", '"globalPid"')}, f"from {tasks} group by 1")
    processes = [str(pid) for pid in pids.read_all()["pid"].to_pylist() if pid is not None]
    for table, columns in file.tables.items():
        names = {name.lower(): f'"{name}"' for name in columns}
        if own := names.get("deviceid"):
            condition = f"({own} is null or {own} not in ({others}))"
        elif task := names.get("globaltaskid"):
            condition = f'{task} in (select "globalTaskId" from {tasks})'
        elif table == "COMMUNICATION_OP" and (connection := names.get("connectionid")):
            condition = f'{connection} in (select "connectionId" from {tasks})'
        elif (thread := names.get("globaltid")) and processes:
            condition = f"({thread} >> 32) in ({', '.join(processes)})"
        else:
            continue
        file.conditions[table] = condition


def tables_without_device(source: RankSource, log: ReadLog) -> frozenset[str]:
    """Tables whose files do not say of which device a row is: unknown, where there are several."""
    if source.device_id is None:
        return frozenset()
    if source.files.keys() & {"communication", "communication_matrix", "analysis_db"}:
        log.warn(
            "HCCL's measurements of operations are left out: its files do not record the "
            "device, and there are several"
        )
    return frozenset({"comm_times", "comm_links", "comm_matrix"})


def drop_strange_rows(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Leave out rows of other devices than the rank's; of devices nobody told of, say so."""
    if source.device_id is None:
        return
    strange: set[int] = set()
    listing = "select table_name from duckdb_columns() where column_name = 'device_id'"
    for (table,) in con.execute(listing).fetchall():
        if table == "ranks":
            continue
        elsewhere = f"where device_id is not null and device_id <> {source.device_id}"
        per_device = con.execute(
            f'select device_id, count(*) from "{table}" {elsewhere} group by 1'
        ).fetchall()
        counts = {d: count for d, count in per_device if d not in source.other_devices}
        strange |= counts.keys()
        log.rows_lost += sum(counts.values())
        if per_device:
            con.execute(f'delete from "{table}" {elsewhere}')
    if strange:
        log.warn(
            "rows of device {strange} left out: no other file of the profile has this device",
            strange=", ".join(map(str, sorted(strange))),
        )


def keep_one_device(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Of a process that knows its rank, keep the device with most kernels and operations, and name
    it in `ranks`: one device's kernels would hide another's communication."""
    if source.device_id is not None:
        return
    telling = ["kernels", "comm_ops", *(["_comm_rows"] if has_table(con, "_comm_rows") else [])]
    rows = " union all ".join(f"select device_id from {table}" for table in telling)
    counts = con.execute(
        f"select device_id, count(*) from ({rows}) where device_id >= 0"
        " group by 1 order by 2 desc, 1"
    ).fetchall()
    if len(counts) < 2:
        return
    own, _ = counts[0]
    con.execute(f"""
        delete from comm_tasks where op_id in (select op_id from comm_ops where device_id <> {own})
    """)
    left_out = 0
    for table in (*telling, "device_tasks", "launches"):
        [lost] = con.execute(f"delete from {table} where device_id <> {own}").fetchone() or (0,)
        left_out += lost if table in telling else 0
    con.execute(f"update ranks set device_id = {own}")
    log.warn(
        "figures are of device {device}: {tasks} kernels and operations of others ({devices}) "
        "are left out, as a rank is one device with a process of its own",
        device=own,
        tasks=left_out,
        devices=", ".join(str(device) for device in sorted(device for device, _ in counts[1:])),
    )


def _list_of(devices: tuple[int, ...]) -> str:
    return ", ".join(map(str, devices))
