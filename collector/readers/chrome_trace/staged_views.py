"""What was staged of timelines, as views that SQL reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from ...literals import file_literal
from ...model import ReadLog
from ...staging import staging_place
from .columns import Form
from .staging import stage

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def event_views(
    con: duckdb.DuckDBPyConnection,
    prefix: str,
    paths: Sequence[str],
    form: Form,
    log: ReadLog,
    advance: Callable[[int], None],
    *,
    processes: int,
) -> Iterator[list[Path]]:
    """The files' events as views `<prefix><kind>`, for as long as the block lasts.

    Gives the staged folders. Every table and view whose name begins so goes at the end. Raises as
    `stage` does.
    """
    place = staging_place(con)
    try:
        folders = stage(paths, place, form, log, advance, processes=processes)
        show(con, prefix, folders, form.schemas)
        yield folders
    finally:
        with suppress(duckdb.Error):  # it must not hide what went wrong before
            _drop(con, prefix)
        shutil.rmtree(place, ignore_errors=True)


def show(
    con: duckdb.DuckDBPyConnection, prefix: str, folders: Sequence[Path], kinds: Iterable[str]
) -> None:
    """A view `<prefix><kind>` over the files of each kind in all the folders."""
    for kind in kinds:
        files = ", ".join(file_literal(str(folder / f"{kind}.parquet")) for folder in folders)
        con.execute(f"create or replace temp view {prefix}{kind} as from read_parquet([{files}])")


def keep_rows(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Make the temporary table `name` of these rows."""
    con.register("_staged_rows", rows)
    con.execute(f"create or replace temp table {name} as from _staged_rows")
    con.unregister("_staged_rows")


def _drop(con: duckdb.DuckDBPyConnection, prefix: str) -> None:
    for kind in ("view", "table"):
        rows = con.execute(
            f"select {kind}_name from duckdb_{kind}s() where starts_with({kind}_name, ?)", [prefix]
        )
        for (name,) in rows.fetchall():
            con.execute(f'drop {kind} "{name}"')
