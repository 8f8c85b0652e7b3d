"""Hardware and host counters of a profiler database as rows of (device, name, series, time, value).

Values stay as recorded. Names are the timeline's where it has the counter; its values are brought
to these units (trace_view.sql), so that the same rank has the same rows:

    AI Core Freq          MHz                          LLC 0 Read/Hit Rate    Hit Rate(%), 0..100
    HBM 0/Read            Read(B/s), also Write        LLC 0 Read/Throughput  Throughput(B/s)
    DDR/Read, DDR/Write   Read(B/s), Write(B/s)        QoS OTHERS             value
    APP/HBM, APP/DDR      B, also Device               APP/Memory             B, of both
    read_bandwidth, write_band_width, read_ost, write_ost  acc N (one series per accelerator)
    L2 Buffer Bw Level, Mata Bw Level                  like the name

The rest is named after its table and port (`HCCS`, `RoCE 0`, `NIC 0`, `PCIe`, `NETDEV_STATS`,
`SIO <name>`, `UB 0`, `CPU 3`, `Memory Usage`, `Disk Usage`, `Network Usage`); its series are the
table's columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import duckdb

from ...literals import sql_literal
from ..sqlite import SqliteFile, SqlType
from .source_tables import stream_columns

_KEYS = ("deviceId", "timestampNs")


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter table: SQL for its name, the ids the name needs, and series by column.

    `word` is a column of string ids, in SQL `word`. Without `series` every other column is one,
    under its own name. `total` is the name and series of all of them added up.
    """

    name: str
    ids: tuple[str, ...] = ()
    word: str | None = None
    series: dict[str, tuple[str, str]] = field(default_factory=dict)  # column -> (name, series)
    total: tuple[str, str] | None = None


def _port(name: str, column: str) -> _Counter:
    return _Counter(f"'{name}' || coalesce(' ' || {column}, '')", (column,))


_TITLE_CASE = "coalesce(upper(word[1]) || lower(word[2:]), '?')"
_ACC = "'acc ' || coalesce(accId, -1)"

COUNTERS: dict[str, _Counter] = {
    "AICORE_FREQ": _Counter(
        "'AI Core Freq'", ("dieId",),
        series={"freq": ("name", "'MHz' || coalesce(' die ' || nullif(dieId, 0), '')")},
    ),
    "HBM": _Counter(
        f"'HBM ' || coalesce(hbmId, -1) || '/' || {_TITLE_CASE}", ("hbmId",), "type",
        {"bandwidth": ("name", f"{_TITLE_CASE} || '(B/s)'")},
    ),
    "LLC": _Counter(
        f"'LLC ' || coalesce(llcId, -1) || ' ' || {_TITLE_CASE}", ("llcId",), "mode",
        {"hitRate": ("name || '/Hit Rate'", "'Hit Rate(%)'"),
         "throughput": ("name || '/Throughput'", "'Throughput(B/s)'")},
    ),
    "DDR": _Counter(
        "'DDR'",
        series={"read": ("name || '/Read'", "'Read(B/s)'"),
                "write": ("name || '/Write'", "'Write(B/s)'")},
    ),
    "NPU_MEM": _Counter(
        "case lower(word) when 'app' then 'APP' when 'device' then 'Device' end", (), "type",
        {"ddr": ("name || '/DDR'", "'B'"), "hbm": ("name || '/HBM'", "'B'")},
        ("name || '/Memory'", "'B'"),
    ),
    "QOS": _Counter("'QoS ' || coalesce(word, '?')", word="eventName", series={
        "bandwidth": ("name", "'value'")}),
    "ACC_PMU": _Counter("'Acc PMU'", ("accId",), series={
        "readBwLevel": ("'read_bandwidth'", _ACC), "writeBwLevel": ("'write_band_width'", _ACC),
        "readOstLevel": ("'read_ost'", _ACC), "writeOstLevel": ("'write_ost'", _ACC)}),
    "SOC_BANDWIDTH_LEVEL": _Counter("'Stars Soc Info'", series={
        "l2BufferBwLevel": ("'L2 Buffer Bw Level'", "'L2 Buffer Bw Level'"),
        "mataBwLevel": ("'Mata Bw Level'", "'Mata Bw Level'")}),
    "HCCS": _Counter("'HCCS'"),
    "ROCE": _port("RoCE", "funcId"),
    "NIC": _port("NIC", "funcId"),
    "PCIE": _Counter("'PCIe'"),
    "NETDEV_STATS": _Counter("'NETDEV_STATS'"),
    "SIO": _Counter("'SIO' || coalesce(' ' || word, '')", word="name"),
    "UB": _port("UB", "portId"),
    "CPU_USAGE": _port("CPU", "cpuId"),
    "HOST_MEM_USAGE": _Counter("'Memory Usage'"),
    "HOST_DISK_USAGE": _Counter("'Disk Usage'"),
    "HOST_NETWORK_USAGE": _Counter("'Network Usage'"),
}  # fmt: skip


def fill_counters(
    con: duckdb.DuckDBPyConnection, file: SqliteFile, spend: Callable[[int], None]
) -> None:
    """Insert every counter table of the file; needs `_string`. Rows without a time are left out."""
    for table, counter in COUNTERS.items():
        present = {name.lower(): name for name in file.tables.get(table, {})}
        if present:
            _fill_one(con, file, (table, counter, present), spend)


def _fill_one(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    entry: tuple[str, _Counter, dict[str, str]],
    spend: Callable[[int], None],
) -> None:
    table, counter, present = entry
    column_names = {key.lower() for key in (*_KEYS, *counter.ids, counter.word or "")}
    columns = [column for column in counter.series if column.lower() in present] or (
        []
        if counter.series
        else [name for lower, name in present.items() if lower not in column_names]
    )
    sources: dict[str, tuple[SqlType, str]] = {
        key: ("integer", _quote(present.get(key.lower()))) for key in (*_KEYS, *counter.ids)
    }
    sources["word_id"] = ("text", _quote(present.get((counter.word or "").lower())))
    for number, column in enumerate(columns):
        sources[f"v{number}"] = ("real", _quote(present[column.lower()]))
    if not columns:
        return
    entries = [
        (*counter.series.get(column, ("name", sql_literal(column))), f"v{number}")
        for number, column in enumerate(columns)
    ]
    if counter.total and len(columns) == len(counter.series):  # of some it would be too little
        entries.append((*counter.total, " + ".join(value for *_, value in entries)))
    values = ", ".join(
        f"{{'name': {name}, 'series': {series}, 'value': {value}}}"
        for name, series, value in entries
    )
    # A word is a string id; some versions write the text itself.
    sql = f"""
        insert into counters by name
        select try_cast(some_id(deviceId) as integer) as device_id, one.name as name,
            one.series as series, timestampNs as timestamp_ns, one.value as value
        from (
            select deviceId, timestampNs, unnest([{values}]) as one from (
                select *, {counter.name} as name from (
                    select c.*, coalesce(s.value, nullif(c.word_id, '')) as word
                    from _incoming as c
                    left join _string as s on s.id = try_cast(c.word_id as bigint))
                where timestampNs is not null))
        where isfinite(one.value) and one.name is not null"""
    stream_columns(con, file.select(sources, file.rows_of(table)), sql, spend)


def _quote(name: str | None) -> str:
    return '"' + name.replace('"', '""') + '"' if name else "null"
