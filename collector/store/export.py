"""A store's content as one portable DuckDB database, or as Parquet or CSV files.

Written into a staging folder and renamed when whole, so that a name never holds half an export.
What one that was killed leaves goes with the next that is written beside it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import duckdb
import msgspec

from npuscope.errors import StoreError, UsageError

from .. import schema
from ..csv_cells import quoted_cell
from ..literals import engine_name, sql_literal
from ..quiet_duckdb import open_duckdb
from ..staging import scalar
from .folder_handles import staging_name, sweep_staging
from .manifest import sync_folder
from .space import is_out_of_space
from .store import READINGS, SUMMARY_VERSIONS, Reading, attach_export, readings

FORMATS = ("duckdb", "parquet", "csv")
# The oldest DuckDB that npuscope supports (1.4) opens files of this version.
STORAGE_VERSION = "v1.0.0"


def export(
    con: duckdb.DuckDBPyConnection,
    form: str,
    out: Path,
    *,
    summaries: Mapping[str, str],
    run: str | None = None,
    capture: str | None = None,
) -> dict[str, int]:
    """Write the canonical tables and the given summaries (name -> version); returns rows by table.

    All rows, or those of a run and of a capture.
    `con` comes from `store.open`, where it may write into the folder of `out`. `duckdb` writes one
    file with every table, `parquet` and `csv` a folder with a file per table that has rows. Raises
    UsageError where `out` holds something else than an earlier export, StoreError where it cannot
    be written.
    """
    writers: dict[
        str, Callable[[duckdb.DuckDBPyConnection, Mapping[str, str], Path], dict[str, int]]
    ] = {
        "duckdb": _write_duckdb,
        "parquet": _write_parquet,
        "csv": _write_csv,
    }
    if form not in writers:
        raise UsageError(f"unknown export format {form}: one of {', '.join(FORMATS)}")
    names = [*schema.tables(), *summaries]
    keys = {"run": run, "capture": capture}
    equal = (f"{key} = {sql_literal(value)}" for key, value in keys.items() if value is not None)
    condition = " and ".join(equal) or "true"
    rows_of = {name: f'(select * from "{name}" where {condition})' for name in names}
    engine_name(out)
    _refuse_foreign(out, form, names)
    staged = out.with_name(staging_name())
    temporary = staged / out.name
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep_staging(out.parent)  # of exports that were killed
        staged.mkdir()  # DuckDB's errors do not tell this place from that of the store
        rows = writers[form](con, rows_of, temporary)
        if form == "duckdb":
            mine = (
                one
                for one in readings(con)
                if run in (None, one.run) and capture in (None, one.capture)
            )
            _write_origins(temporary, summaries, mine)
        if out.is_dir():
            out.rename(staged / f"{out.name}.old")
        temporary.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror})") from error
    except duckdb.Error as error:
        if not is_out_of_space(error):
            raise
        raise StoreError(f"{out}: cannot be written (no space left)") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return rows


def _refuse_foreign(out: Path, form: str, names: Collection[str]) -> None:
    """Only an earlier export may be replaced: a database with our tables, or a folder with nothing
    but their files."""
    if not out.exists():
        return
    if form == "duckdb":
        try:
            with open_duckdb() as con:
                if "ranks" in attach_export(con, out):
                    return
        except duckdb.Error:
            pass
    elif out.is_dir() and not out.is_symlink():
        own = {f"{name}.{form}" for name in names}
        with os.scandir(out) as entries:
            if all(e.name in own and e.is_file(follow_symlinks=False) for e in entries):
                return
    raise UsageError(f"{out}: exists and is no earlier {form} export: give another -o")


def _write_duckdb(
    con: duckdb.DuckDBPyConnection, rows_of: Mapping[str, str], out: Path
) -> dict[str, int]:
    place = sql_literal(engine_name(out))
    con.execute(f"attach {place} as written (storage_version '{STORAGE_VERSION}')")
    try:
        rows: dict[str, int] = {}
        for name, source in rows_of.items():
            con.execute(f'create table written."{name}" as from {source}')
            rows[name] = _count(con, f'written."{name}"')
        con.execute("checkpoint written")  # detaching and closing pass over a disk that is full
    finally:
        con.execute("detach written")
    return rows


def _write_origins(out: Path, summaries: Mapping[str, str], read: Iterable[Reading]) -> None:
    """Readers trust a summary only if they would compute the same, and say what was told when the
    ranks were read."""
    with open_duckdb(str(out)) as written:
        written.execute(f"create table {SUMMARY_VERSIONS} (name varchar, version varchar)")
        for name, version in summaries.items():
            written.execute(f"insert into {SUMMARY_VERSIONS} values (?, ?)", [name, version])
        written.execute(
            f"create table {READINGS}"
            " (run varchar, capture varchar, rank integer, rules varchar, warnings varchar)"
        )
        for *place, rules, warnings in read:
            texts = (msgspec.json.encode(told).decode() for told in (rules, warnings))
            written.execute(f"insert into {READINGS} values (?, ?, ?, ?, ?)", [*place, *texts])
        written.execute("checkpoint")


def _write_parquet(
    con: duckdb.DuckDBPyConnection, rows_of: Mapping[str, str], out: Path
) -> dict[str, int]:
    options = "format parquet, compression zstd"
    return _write_files(con, rows_of, out, "parquet", options, lambda column, kind: column)


def _write_csv(
    con: duckdb.DuckDBPyConnection, rows_of: Mapping[str, str], out: Path
) -> dict[str, int]:
    def cell(column: str, kind: str) -> str:
        return quoted_cell(column) if kind == "VARCHAR" else column

    return _write_files(con, rows_of, out, "csv", "format csv, header", cell)


def _write_files(
    con: duckdb.DuckDBPyConnection,
    rows_of: Mapping[str, str],
    out: Path,
    suffix: str,
    options: str,
    cell: Callable[[str, str], str],
) -> dict[str, int]:
    """One file per table that has rows; `cell` turns a column and its type into what is written."""
    out.mkdir()
    rows: dict[str, int] = {}
    for name, source in rows_of.items():
        if _count(con, source):
            path = sql_literal(engine_name(out / f"{name}.{suffix}"))
            described = con.execute(f"describe from {source}").fetchall()
            columns = [(f'"{column}"', kind) for column, kind, *_ in described]
            cells = ", ".join(f"{cell(column, kind)} as {column}" for column, kind in columns)
            query = f"select {cells} from {source}"
            rows[name] = int(scalar(con, f"copy ({query}) to {path} ({options})"))
    return rows


def _count(con: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(scalar(con, f"select count(*) from {relation}"))
