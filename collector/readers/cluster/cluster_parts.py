"""Results of msprof-analyze, taken apart by rank: read once, however many ranks they are about.

    cluster_communication.json  ─┐            comm_times.parquet  ┐
    cluster_step_trace_time.csv ─┼─▶  parts/  comm_links.parquet  ├─▶ each rank's reading takes
    cluster_analysis.db         ─┘            ...                 ┘   the rows of its rank

Rows are sorted by rank, so that a reading opens the pieces of a file that hold its rank only. The
database speaks first; text fills what it does not tell. What is small, or concerns all files,
stands in `job.json`.

cluster_communication.json and cluster_communication_matrix.json, one operation at a time.

    {"(0, 1, 2)": {"step12": {"hcom_send__097_0_1@<group hash>": {...}, ...}, ...}, "p2p": ...}
    1             2          3                                   4  depth

Those of a large job have gigabytes. They are read in pieces, in which only braces are looked for:
what lies between those of depth 4 is an operation with all its ranks. A file that was cut short
gives what stands before the cut.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from npuscope.errors import TraceFormatError
from npuscope.messages import store_text

from ... import schema
from ...discover import cluster_outputs as outputs
from ...literals import sql_literal
from ...model import ReadLog, SourceFile
from ...small_files import decode, open_regular, read_small
from ...staging import connect, is_empty, scalar
from ..damaged_files import open_error
from ..delimited_text import Rows, fill, lose, open_rows
from ..hccl.communication import Operation, as_table, numbers_of, packet_rows
from ..hccl.communication_json import tell_partial, without_nan
from ..hccl.communication_matrix import links_of, tell_links
from ..hccl.communication_rows import (
    MATRIX,
    PACKETS,
    TIMES,
    insert_matrix,
    insert_packets,
    insert_times,
)
from ..text import step_trace
from . import cluster_db
from .cluster_db import TABLES, Group, JobFacts

_OPERATIONS_AT_ONCE = 200
# Small enough that a rank's rows are in few pieces with little else, large enough for many ranks.
_PIECE_ROWS = 8192
_STEPS_MEMORY_BYTES = 256 << 20
_BY_RANK = msgspec.json.Decoder(dict[int, Operation], strict=False)


def split_by_rank(
    files: Iterable[SourceFile], ranks: frozenset[int] | None, folder: Path, memory_bytes: int
) -> None:
    """Write the parts into `folder`, which is made; `ranks` are those that will be read.

    Files that cannot be read are told in the parts; OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = outputs.paths_by_name(files)
    facts = JobFacts()
    log = facts.log
    log.rules["cluster_output.form"] = _form(paths.keys())
    con = connect(folder, memory_bytes=memory_bytes)
    try:
        con.execute(schema.sql("text.sql"))
        for table, columns in TABLES.items():
            con.execute(f"create table {table} ({columns})")
        readers: tuple[tuple[str, Callable[[str], None]], ...] = (
            (outputs.DATABASE, lambda path: cluster_db.read(con, path, facts)),
            (outputs.STEPS, lambda path: _read_steps(con, path, log)),
            (outputs.TIMES, lambda path: _read_times(con, path, facts, log)),
            (outputs.MATRIX, lambda path: _read_matrix(con, path, log)),
            (outputs.GROUPS, lambda path: _read_groups(path, facts)),
        )
        for name, read in readers:
            if name in paths:
                try:
                    read(paths[name])
                except TraceFormatError as error:
                    log.lose(
                        paths[name], "not read: {where}: {got}", where=error.where, got=error.got
                    )
        _tell_strangers(con, ranks, log)
        _number_globally(con, facts)
        for table in TABLES:
            target = sql_literal(str(folder / f"{table}.parquet"))
            con.execute(
                f"copy (from {table} order by rank) to {target}"
                f" (format parquet, row_group_size {_PIECE_ROWS})"
            )
    finally:
        con.close()
    facts.warnings = list(map(store_text, log.warnings))
    log.warnings.clear()
    (folder / "job.json").write_bytes(msgspec.json.encode(facts))


def _form(names: Iterable[str]) -> str:
    """`db`, `text` or `db+text`."""
    return "+".join(sorted({"db" if name == outputs.DATABASE else "text" for name in names}))


def steps_in(files: Iterable[SourceFile], folder: Path) -> list[dict[str, Any]]:
    """Rows of the table of steps alone (`rank`, then the columns of `profiler_steps`); none where
    it cannot be read. `folder` is for scratch."""
    paths = outputs.paths_by_name(files)
    con = connect(folder, memory_bytes=_STEPS_MEMORY_BYTES)
    try:
        con.execute(schema.sql("text.sql"))
        for table in ("profiler_steps", "places"):
            con.execute(f"create table {table} ({TABLES[table]})")
        with contextlib.suppress(TraceFormatError):
            if outputs.DATABASE in paths:
                cluster_db.read_steps(con, paths[outputs.DATABASE])
        with contextlib.suppress(TraceFormatError):
            if outputs.STEPS in paths:
                _read_steps(con, paths[outputs.STEPS], ReadLog())
        cursor = con.execute("from profiler_steps order by rank, step")
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    finally:
        con.close()


def _tell_strangers(
    con: duckdb.DuckDBPyConnection, ranks: frozenset[int] | None, log: ReadLog
) -> None:
    """Figures of ranks that nobody will ask for are not lost silently."""
    every = " union all ".join(f"select rank from {table}" for table in TABLES if table != "places")
    ranks_here = scalar(con, f"select list(distinct rank order by rank) from ({every})") or []
    strangers = [rank for rank in ranks_here if ranks is not None and rank not in ranks]
    if strangers:
        names = ", ".join(map(str, strangers[:8])) + (", ..." if strangers[8:] else "")
        log.warn(
            "figures of ranks without a row in the table of steps are left out: {listed}",
            listed=names,
        )


def _number_globally(con: duckdb.DuckDBPyConnection, facts: JobFacts) -> None:
    """Ranks of the matrix are global ones here; places follow where a group's order is known."""
    con.execute("create temp table _group (group_hash varchar, ranks integer[])")
    rows = [[group.group_hash, group.ranks] for group in facts.groups if group.name]
    if rows:
        con.executemany("insert into _group values (?, ?)", rows)
    con.execute("""
        create or replace table comm_matrix as
        select m.* replace (
            src_group_rank as src_rank, dst_group_rank as dst_rank,
            list_position(g.ranks, src_group_rank) - 1 as src_group_rank,
            list_position(g.ranks, dst_group_rank) - 1 as dst_group_rank)
        from comm_matrix m left join _group g using (group_hash)""")


def _read_steps(con: duckdb.DuckDBPyConnection, path: str, log: ReadLog) -> None:
    rows = open_rows(path, log, [("Type",), ("Index",), ("Computing",)])
    if rows is None:
        return
    late = [name for name in ("Preparing", "DP Index") if rows.has(name)]
    log.rules["profiler_steps.late_columns"] = ", ".join(late) or "none"
    rank = f"try_cast(cell({rows.cell('Index')}) as integer)"
    if is_empty(con, "profiler_steps"):
        times = ", ".join(
            f"scaled({rows.cell(header)}, 1000) as {name}"
            for name, header in step_trace.COLUMNS.items()
        )
        _insert(
            con,
            rows,
            log,
            "profiler_steps",
            f"{rank} as rank, step_number({rows.cell('Step')}) as step, {times}",
        )
        lost = con.execute("delete from profiler_steps where rank is null").fetchone() or (0,)
        lose(log, path, lost[0], "no rank")
    if is_empty(con, "places"):
        axes = ", ".join(
            f"try_cast(cell({rows.cell(f'{kind.upper()} Index')}) as integer) as {kind}_rank"
            for kind in ("tp", "pp", "dp")
        )
        _insert(con, rows, log, "places", f"{rank} as rank, {axes}")


def _insert(
    con: duckdb.DuckDBPyConnection, rows: Rows, log: ReadLog, table: str, columns: str
) -> None:
    is_rank = f"lower(cell({rows.cell('Type')})) = 'rank'"

    def statement(source: str) -> str:
        return (
            f"insert into {table} by name select distinct {columns} from {source} where {is_rank}"
        )

    fill(con, rows, log, statement, decimals=step_trace.COLUMNS.values())


def _read_times(con: duckdb.DuckDBPyConnection, path: str, facts: JobFacts, log: ReadLog) -> None:
    tables = {table for table in ("comm_times", "comm_links") if is_empty(con, table)}
    bad = partial = 0
    members: dict[str, set[int]] = {}
    entries = operations(path, log)
    while chunk := list(islice(entries, _OPERATIONS_AT_ONCE)):
        times: list[tuple[Any, ...]] = []
        packets: list[tuple[Any, ...]] = []
        for one in chunk:
            category = "p2p" if one.members == "p2p" else ""
            measured, lost, lacking = _measure(one.json)
            bad += lost
            partial += lacking
            together = members.setdefault(one.group_hash, set())
            together.update(measured, () if category else outputs.ranks_in(one.members))
            for rank, operation in measured.items():
                head = (one.step, category, one.name, one.group_hash)
                if operation.time is not None:
                    times.append((rank, *head, *msgspec.structs.astuple(operation.time)))
                packets += packet_rows((rank, *head), operation.links)
        if "comm_times" in tables:
            insert_times(con, _table(times, TIMES), of_ranks=True)
        if "comm_links" in tables:
            insert_packets(con, _table(packets, PACKETS), of_ranks=True)
    lose(log, path, bad, "operations with non-numeric values")
    tell_partial(log, path, partial)
    facts.members = {name: sorted(ranks) for name, ranks in members.items() if name}


def _measure(data: bytes) -> tuple[dict[int, Operation], int, int]:
    """Figures by rank, how many ranks' figures are no figures, and how many lack some."""
    try:
        return _BY_RANK.decode(data), 0, 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    entries: dict[int, Operation] = {}
    try:
        parts = msgspec.json.decode(without_nan(data), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}, 1, 0
    lacking = 0
    for rank, part in parts.items():
        if not rank.isdecimal():
            continue
        try:
            entries[int(rank)] = msgspec.json.decode(part, type=Operation, strict=False)
        except (ValueError, UnicodeDecodeError):
            if numbers := numbers_of(part):
                entries[int(rank)] = numbers
                lacking += 1
    return entries, len(parts) - len(entries), lacking


def _read_matrix(con: duckdb.DuckDBPyConnection, path: str, log: ReadLog) -> None:
    if not is_empty(con, "comm_matrix"):
        return
    lost = Counter[str]()
    entries = operations(path, log)
    while chunk := list(islice(entries, 10 * _OPERATIONS_AT_ONCE)):
        rows: list[tuple[Any, ...]] = []
        for one in chunk:
            head = (one.step, "p2p" if one.members == "p2p" else "", one.name, one.group_hash)
            rows += [(int(link[0]), *head, *link) for link in links_of(one.json, lost)]
        insert_matrix(con, _table(rows, MATRIX), of_ranks=True)
    tell_links(log, path, lost)


def _table(rows: list[tuple[Any, ...]], schema_of_one: pa.Schema) -> pa.Table:
    return as_table(rows, pa.schema([("rank", pa.int32()), *schema_of_one]))


def _read_groups(path: str, facts: JobFacts) -> None:
    try:
        content = decode(read_small(path).removeprefix(b"\xef\xbb\xbf"), object)
    except (OSError, msgspec.DecodeError) as error:
        raise TraceFormatError(path, "the whole file", str(error)) from None
    named = content.get("comm_group_parallel_info") if isinstance(content, dict) else None
    if not facts.groups:
        facts.groups = list(_named_groups(named if isinstance(named, list) else []))


def _named_groups(entries: Iterable[object]) -> Iterator[Group]:
    for entry in entries:
        if isinstance(entry, dict):
            ranks = outputs.ranks_in(str(entry.get("rank_set")))
            texts = (entry.get("group_name"), entry.get("group_id"), entry.get("pg_name"))
            names = [str(text) if text else None for text in texts]
            yield Group(names[0], names[1], names[2], list(ranks))


_CHUNK_BYTES = 16 << 20
_OPEN, _CLOSE = ord("{"), ord("}")
_DEPTH = 4
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*\Z', re.S)
_KEY_BYTES = 1 << 16  # a world group of thousands of ranks is spelled out
_BLANK = b" \t\r\n"


class _Operation(NamedTuple):
    """`members`: "(0, 1, 2)" or "p2p"; `step`: "step12" or "step"; `json`: figures by rank, or by
    link."""

    members: str
    step: str
    name: str
    group_hash: str
    json: bytes


def operations(path: str, log: ReadLog) -> Iterator[_Operation]:
    """Every operation in file order, sums over operations left out.

    What is missing of a file that was cut short is told to `log`. Raises TraceFormatError for one
    that cannot be opened, is empty or is not of this kind.
    """
    try:
        with open_regular(path) as file:
            yield from _operations(file, path, log)
    except OSError as error:
        raise open_error(path, error) from None


def _operations(file: BinaryIO, path: str, log: ReadLog) -> Iterator[_Operation]:
    keys = ["", "", ""]  # of the objects of depth 2, 3 and 4 that are open
    rest, depth, count = b"", 0, 0
    is_first = True
    while chunk := file.read(_CHUNK_BYTES):
        if is_first:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
            if chunk[:1] != b"{":
                break
            is_first = False
        data = rest + chunk
        done, opened = 0, 0
        for place, level, opens in _braces(data, depth):
            if opens and level > 1:
                keys[level - 2] = _key(data[max(done, place - _KEY_BYTES) : place], path, count)
            if opens and level == _DEPTH:
                opened = place
                continue  # its key stands in `rest` until the operation is whole
            if not opens and level == _DEPTH - 1:
                name, _, group_hash = keys[2].rpartition("@")
                count += 1
                if not keys[2].lower().startswith("total"):
                    yield _Operation(
                        keys[0], keys[1], name or group_hash, group_hash if name else "",
                        data[opened : place + 1],
                    )  # fmt: skip
            done, depth = place + 1, level
        rest = data[done:]
    if is_first:
        what = "a JSON object was expected" if chunk else "empty file"
        raise TraceFormatError(path, "the whole file", what)
    if depth or rest.strip(_BLANK):
        log.lose(
            path,
            "truncated or damaged: only the entries before the damage are read ({count} entries)",
            count=count,
        )


def _braces(data: bytes, depth: int) -> Iterator[tuple[int, int, bool]]:
    """(place, depth behind it, whether it opens) of the braces around operations; not inside."""
    text = np.frombuffer(data, dtype=np.uint8)
    places = np.flatnonzero((text == _OPEN) | (text == _CLOSE))
    opens = text[places] == _OPEN
    depths = depth + np.cumsum(np.where(opens, 1, -1))
    outer = np.flatnonzero(depths <= np.where(opens, _DEPTH, _DEPTH - 1))
    yield from zip(
        places[outer].tolist(), depths[outer].tolist(), opens[outer].tolist(), strict=True
    )


def _key(before: bytes, path: str, count: int) -> str:
    """The name that stands before a brace."""
    match = _KEY.search(before)
    try:
        return str(json.loads(match[1])) if match else _refuse(path, count)
    except ValueError:
        return _refuse(path, count)


def _refuse(path: str, count: int) -> str:
    raise TraceFormatError(
        path, f"behind {count} entries", "no JSON of msprof-analyze: run its cluster analysis again"
    )
