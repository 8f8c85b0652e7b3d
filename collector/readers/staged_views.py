"""Staged files (see staged_files) as views of the connection whose SQL reads them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import duckdb

from ..staging import scalar
from ..store.store import file_literal


def staging_place(con: duckdb.DuckDBPyConnection) -> Path:
    """A folder of its own for staged files, where `con` spills to; not made yet."""
    spill = str(scalar(con, "select current_setting('temp_directory')"))
    return Path(spill) / f"staged-{uuid.uuid4().hex[:12]}"


def show(
    con: duckdb.DuckDBPyConnection, prefix: str, folders: Sequence[Path], kinds: Sequence[str]
) -> None:
    """A view `<prefix><kind>` over the files of each kind in all the folders."""
    for kind in kinds:
        files = ", ".join(file_literal(str(folder / f"{kind}.parquet")) for folder in folders)
        con.execute(f"create or replace temp view {prefix}{kind} as from read_parquet([{files}])")


def hide(con: duckdb.DuckDBPyConnection, prefix: str, kinds: Sequence[str]) -> None:
    """Drop the views that `show` made."""
    for kind in kinds:
        con.execute(f"drop view if exists {prefix}{kind}")
