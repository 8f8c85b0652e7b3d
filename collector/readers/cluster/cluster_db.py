"""cluster_analysis.db: msprof-analyze's results over profiles that were databases.

Tables were renamed once (CommunicationGroup, ClusterCommAnalyzer*); any may be missing, and those
of recipes stand beside them. Parallel indices that nobody told are padded with 0.

What results of msprof-analyze become before they are a rank's: canonical rows of all ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa

from npuscope.messages import StoredText

from ... import schema
from ...discover.cluster_outputs import ranks_in
from ...model import ReadLog
from ..ascend_db import analysis_db
from ..ascend_db.analysis_db import STEP_TIMES, Column, sources_of
from ..hccl.communication_rows import insert_matrix, insert_packets, insert_times
from ..sqlite import SqliteFile, open_sqlite

# Tables that every rank takes its rows from, and their columns in SQL: `rank`, then those of the
# canonical table. `places` is what is known of the ranks themselves.
TABLES = {
    name: ", ".join(
        ["rank integer", *(f"{c.name} {c.type}" for c in schema.tables()[canonical].columns)]
    )
    for name, canonical in (
        ("comm_times", "comm_times"), ("comm_links", "comm_links"), ("comm_matrix", "comm_matrix"),
        ("profiler_steps", "profiler_steps"), ("places", "ranks"),
    )
}  # fmt: skip


@dataclass(slots=True)
class Group:
    """A group as its framework told it; `group_hash`, `name`, `label`: None or unknown where empty.

    Its ranks stand in order: the sets that msprof-analyze writes have none.
    """

    group_hash: str | None
    name: str | None
    label: str | None
    ranks: list[int]


@dataclass(slots=True)
class JobFacts:
    """What concerns all ranks. `members`: ranks that have operations of a group, by its hash;
    `args`: the job's sizes (distributed_args), as JSON; `warnings`: of the log, as stored."""

    groups: list[Group] = field(default_factory=list)
    members: dict[str, list[int]] = field(default_factory=dict)
    args: str | None = None
    log: ReadLog = field(default_factory=ReadLog)
    warnings: list[StoredText] = field(default_factory=list)


_RANK: Column = ("rank", "integer", ("rank_id",))
_AXES = ("tp", "pp", "dp")
_STEPS: tuple[Column, ...] = (
    *analysis_db.STEPS, ("kind", "text", ("type",)), ("index", "text", ("index",)),
    *((f"{axis}_rank", "integer", (f"{axis}_index",)) for axis in _AXES),
)  # fmt: skip
# In the matrix the source's rank is the rank whose row it is; older and newer type it differently.
_MATRIX: tuple[Column, ...] = (
    ("rank", "integer", ("src_rank",)),
    *((name, "integer" if name in ("src", "dst") else kind, names)
      for name, kind, names in analysis_db.MATRIX),
)  # fmt: skip
_LARGE = (
    (insert_times, ("ClusterCommunicationTime", "ClusterCommAnalyzerTime"),
     (_RANK, *analysis_db.TIMES)),
    (insert_packets, ("ClusterCommunicationBandwidth", "ClusterCommAnalyzerBandwidth"),
     (_RANK, *analysis_db.PACKETS)),
    (insert_matrix, ("ClusterCommunicationMatrix", "ClusterCommAnalyzerMatrix"), _MATRIX),
)  # fmt: skip
_GROUPS: tuple[Column, ...] = tuple(
    (name, "text", (name,)) for name in ("rank_set", "group_name", "group_id", "pg_name")
)
_BASE: tuple[Column, ...] = (("key", "text", ("key",)), ("value", "text", ("value",)))
_DEVICES: tuple[Column, ...] = (
    ("rank", "integer", ("rankId",)), ("device_id", "integer", ("deviceId",)),
    ("host_uid", "text", ("hostUid",)), ("path", "text", ("profilePath",)),
)  # fmt: skip
_GROUP_TABLES = ("CommunicationGroupMapping", "CommunicationGroup")
_TABLES = (
    *(table for _, tables, _ in _LARGE for table in tables), *_GROUP_TABLES,
    "ClusterStepTraceTime", "ClusterBaseInfo", "RankDeviceMap", "HostInfo",
)  # fmt: skip
_FRAMEWORKS = (("_ascend_pt", "pytorch"), ("_ascend_ms", "mindspore"), ("/PROF_", "msprof"))


def read(con: duckdb.DuckDBPyConnection, path: str, facts: JobFacts) -> None:
    """Fill `TABLES` and what concerns all ranks.

    Raises TraceFormatError for a file that is no database or is damaged.
    """
    with open_sqlite(path, _TABLES) as db:
        met: list[str] = []
        for insert, tables, columns in _LARGE:
            if actual := _first(db, tables):
                met.append(actual)
                insert(con, _select(db, actual, columns), of_ranks=True)
        _fill_steps(con, db)
        if actual := _first(db, _GROUP_TABLES):
            met.append(actual)
            facts.groups = [
                Group(row["group_name"] or None, row["group_id"] or None, row["pg_name"] or None,
                      list(ranks_in(row["rank_set"])))
                for row in _rows(db, actual, _GROUPS)
            ]  # fmt: skip
        if "ClusterBaseInfo" in db.tables:
            base = _rows(db, "ClusterBaseInfo", _BASE)
            facts.args = next((r["value"] for r in base if r["key"] == "distributed_args"), None)
        _fill_places(con, db)
        for what in db.damage:
            facts.log.lose(path, what)
    facts.log.rules["cluster_output.tables"] = ", ".join(met) or "none of communication"


def _first(db: SqliteFile, tables: tuple[str, ...]) -> str | None:
    return next((table for table in tables if table in db.tables), None)


def _select(db: SqliteFile, table: str, columns: tuple[Column, ...]) -> pa.RecordBatchReader:
    db.check(table)
    return db.select(sources_of(columns, db.tables[table]), f'from "{table}"')


def _rows(db: SqliteFile, table: str, columns: tuple[Column, ...]) -> list[dict[str, str | None]]:
    rows: list[dict[str, str | None]] = _select(db, table, columns).read_all().to_pylist()
    return rows


def read_steps(con: duckdb.DuckDBPyConnection, path: str) -> None:
    """Fill the table of steps alone. Raises TraceFormatError like `read`."""
    with open_sqlite(path, _TABLES) as db:
        _fill_steps(con, db)


def _fill_steps(con: duckdb.DuckDBPyConnection, db: SqliteFile) -> None:
    if "ClusterStepTraceTime" not in db.tables:
        return
    con.register("_incoming", _select(db, "ClusterStepTraceTime", _STEPS))
    con.execute("create temp table _loaded as from _incoming")
    con.unregister("_incoming")
    times = ", ".join(f"scaled({name}::varchar, 1000) as {name}_ns" for name in STEP_TIMES)
    axes = ", ".join(f"{axis}_rank" for axis in _AXES)
    is_rank = """lower(kind) = 'rank' and try_cast("index" as integer) is not null"""
    con.execute(f"""
        insert into profiler_steps by name
        select distinct try_cast("index" as integer) as rank, step_number(step) as step, {times}
        from _loaded where {is_rank}""")
    is_told = " or ".join(f"bool_or({axis}_rank > 0)" for axis in _AXES)
    con.execute(f"""
        insert into places by name
        select distinct try_cast("index" as integer) as rank, {axes}
        from _loaded where {is_rank} and (select {is_told} from _loaded)""")
    con.execute("drop table _loaded")


def _fill_places(con: duckdb.DuckDBPyConnection, db: SqliteFile) -> None:
    """Devices, hosts and frameworks beside the indices that are there."""
    if "RankDeviceMap" not in db.tables:
        return
    hosts: dict[str | None, str | None] = {}
    if "HostInfo" in db.tables:
        columns: tuple[Column, ...] = (
            ("uid", "text", ("hostUid",)), ("name", "text", ("hostName",))
        )  # fmt: skip
        hosts = {row["uid"]: row["name"] for row in _rows(db, "HostInfo", columns)}
    for row in _rows(db, "RankDeviceMap", _DEVICES):
        framework = next((f for part, f in _FRAMEWORKS if re.search(part, row["path"] or "")), None)
        con.execute(
            "insert into places (rank, framework, device_id, host_uid, host_name)"
            " values (?, ?, ?, ?, ?)",
            [row["rank"], framework, row["device_id"], row["host_uid"], hosts.get(row["host_uid"])],
        )
