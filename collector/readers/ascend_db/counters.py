"""Hardware and host counters of a profiler database as rows of (device, name, series, time, value).

Values stay as recorded, so a series says the database's unit: `Read(B/s)` here, `Read(MB/s)` in a
timeline. Names are the timeline's where it has the counter:

    AI Core Freq          MHz                          LLC 0 Read/Hit Rate    Hit Rate(%), 0..100
    HBM 0/Read            Read(B/s), also Write        LLC 0 Read/Throughput  Throughput(B/s)
    DDR/Read, DDR/Write   Read(B/s), Write(B/s)        QoS OTHERS             value
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

from ..sqlite import SqliteFile, SqlType
from .source_tables import stream_columns

_KEYS = ("deviceId", "timestampNs")


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter table: SQL for its name, the ids the name needs, and series by column.

    `word` is a column of string ids, in SQL `word`. Without `series` every other column is one,
    under its own name.
    """

    name: str
    ids: tuple[str, ...] = ()
    word: str | None = None
    series: dict[str, tuple[str, str]] = field(default_factory=dict)  # column -> (name, series)


def _port(name: str, column: str) -> Counter:
    return Counter(f"'{name}' || coalesce(' ' || {column}, '')", (column,))


_CASED = "coalesce(upper(word[1]) || lower(word[2:]), '?')"
_ACC = "'acc ' || coalesce(accId, -1)"

COUNTERS: dict[str, Counter] = {
    "AICORE_FREQ": Counter(
        "'AI Core Freq'", ("dieId",),
        series={"freq": ("name", "'MHz' || coalesce(' die ' || nullif(dieId, 0), '')")},
    ),
    "HBM": Counter(
        f"'HBM ' || coalesce(hbmId, -1) || '/' || {_CASED}", ("hbmId",), "type",
        {"bandwidth": ("name", f"{_CASED} || '(B/s)'")},
    ),
    "LLC": Counter(
        f"'LLC ' || coalesce(llcId, -1) || ' ' || {_CASED}", ("llcId",), "mode",
        {"hitRate": ("name || '/Hit Rate'", "'Hit Rate(%)'"),
         "throughput": ("name || '/Throughput'", "'Throughput(B/s)'")},
    ),
    "DDR": Counter(
        "'DDR'",
        series={"read": ("name || '/Read'", "'Read(B/s)'"),
                "write": ("name || '/Write'", "'Write(B/s)'")},
    ),
    "QOS": Counter("'QoS ' || coalesce(word, '?')", word="eventName", series={
        "bandwidth": ("name", "'value'")}),
    "ACC_PMU": Counter("'Acc PMU'", ("accId",), series={
        "readBwLevel": ("'read_bandwidth'", _ACC), "writeBwLevel": ("'write_band_width'", _ACC),
        "readOstLevel": ("'read_ost'", _ACC), "writeOstLevel": ("'write_ost'", _ACC)}),
    "SOC_BANDWIDTH_LEVEL": Counter("'Stars Soc Info'", series={
        "l2BufferBwLevel": ("'L2 Buffer Bw Level'", "'L2 Buffer Bw Level'"),
        "mataBwLevel": ("'Mata Bw Level'", "'Mata Bw Level'")}),
    "HCCS": Counter("'HCCS'"),
    "ROCE": _port("RoCE", "funcId"),
    "NIC": _port("NIC", "funcId"),
    "PCIE": Counter("'PCIe'"),
    "NETDEV_STATS": Counter("'NETDEV_STATS'"),
    "SIO": Counter("'SIO' || coalesce(' ' || word, '')", word="name"),
    "UB": _port("UB", "portId"),
    "CPU_USAGE": _port("CPU", "cpuId"),
    "HOST_MEM_USAGE": Counter("'Memory Usage'"),
    "HOST_DISK_USAGE": Counter("'Disk Usage'"),
    "HOST_NETWORK_USAGE": Counter("'Network Usage'"),
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
    known: tuple[str, Counter, dict[str, str]],
    spend: Callable[[int], None],
) -> None:
    table, counter, present = known
    taken = {key.lower() for key in (*_KEYS, *counter.ids, counter.word or "")}
    columns = [column for column in counter.series if column.lower() in present] or (
        [] if counter.series else [name for lower, name in present.items() if lower not in taken]
    )
    sources: dict[str, tuple[SqlType, str]] = {
        key: ("integer", _quoted(present.get(key.lower()))) for key in (*_KEYS, *counter.ids)
    }
    sources["word_id"] = ("text", _quoted(present.get((counter.word or "").lower())))
    for number, column in enumerate(columns):
        sources[f"v{number}"] = ("real", _quoted(present[column.lower()]))
    sql = "create temp table _counter as select * from _batches"
    stream_columns(con, file.select(sources, file.rows_of(table)), sql, spend)
    # A word is a string id; some versions write the text itself.
    con.execute(f"""
        create or replace temp view _named_counter as
        select *, {counter.name} as name from (
            select c.*, coalesce(s.value, nullif(c.word_id, '')) as word
            from _counter as c left join _string as s on s.id = try_cast(c.word_id as bigint))
        where timestampNs is not null""")
    for number, column in enumerate(columns):
        name, series = counter.series.get(column, ("name", "'" + column.replace("'", "''") + "'"))
        con.execute(f"""
            insert into counters by name
            select try_cast(some_id(deviceId) as integer) as device_id,
                {name} as name, {series} as series, timestampNs as timestamp_ns, v{number} as value
            from _named_counter where isfinite(v{number})""")
    con.execute("drop view _named_counter; drop table _counter")


def _quoted(name: str | None) -> str:
    return '"' + name.replace('"', '""') + '"' if name else "null"
