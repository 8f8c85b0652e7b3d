"""A capture's tables within one HTML file: compressed Parquet, read back as an exported file is.

<!doctype html> ... the report ... <script id="npuscope-tables">base64 of a zip</script>
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import zipfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

import duckdb

from npuscope.errors import StoreError

from .. import schema
from ..literals import sql_literal
from ..quiet_duckdb import open_duckdb
from ..small_files import open_regular
from .folder_handles import ELSEWHERE, cache_folder, make_private, staging_name, sweep_staging
from .manifest import BUNDLE_HEAD
from .space import is_out_of_space

_BEGIN = b'<script type="application/zip" id="npuscope-tables">'
_END = b"</script>"
# A bundle is for sending: what is larger is not one of ours.
MOST_BYTES = 512 << 20
# Tables of events, the first to be left out where a bundle would be too large; their summaries
# stay, and answer most questions.
_EVENTS = (
    "counters", "host_ops", "device_tasks", "launches", "comm_tasks", "memory", "operator_memory",
    "kernels", "comm_ops",
)  # fmt: skip
_KEPT_BUNDLES = 16
# What the archive's reader raises: RuntimeError for what it does not know.
_DAMAGE = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile)
_TABLE = re.compile(rf"({schema.OWN_NAME})\.parquet")


def pack(database: Path, most_bytes: int) -> tuple[bytes, list[str]]:
    """The tables of a DuckDB file as a zip of Parquet files, and names of tables left out of it
    since all would take more than `most_bytes`; column `left_out_tables` of `ranks` has them."""
    with open_duckdb(str(database)) as con:
        names = [
            name for (name,) in con.execute("select table_name from duckdb_tables()").fetchall()
        ]
        folder = database.with_suffix(".tables")
        folder.mkdir()
        sizes = {name: _write(con, name, folder) for name in names}
        left_out: list[str] = []
        for name in _EVENTS:
            if sum(sizes.values()) <= most_bytes:
                break
            if sizes.pop(name, 0):
                left_out.append(name)
        if left_out:
            con.execute(
                "update ranks set left_out_tables = list_distinct(list_concat("
                "coalesce(left_out_tables, []), ?))",
                [left_out],
            )
            sizes["ranks"] = _write(con, "ranks", folder)
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(name for name, size in sizes.items() if size):
            member = zipfile.ZipInfo(f"{name}.parquet")
            archive.writestr(member, (folder / f"{name}.parquet").read_bytes())
    return whole.getvalue(), left_out


def _write(con: duckdb.DuckDBPyConnection, name: str, folder: Path) -> int:
    """Bytes of a table's file; 0: it has no rows."""
    count = con.execute(f'select count(*) from "{name}"').fetchone()
    if not count or not count[0]:
        return 0
    file = folder / f"{name}.parquet"
    target = sql_literal(str(file))
    con.execute(
        f'copy "{name}" to {target} (format parquet, compression zstd, compression_level 12)'
    )
    return file.stat().st_size


def with_tables(page: str, tables: bytes) -> bytes:
    """A page that carries tables: what `unpack` reads."""
    head, mark, rest = page.encode("utf-8", "surrogateescape").partition(b"\n")
    body, end, after = rest.rpartition(b"</body>")
    script = _BEGIN + base64.b64encode(tables) + _END + b"\n"
    return head + mark + BUNDLE_HEAD + b"\n" + body + script + end + after


def unpack(path: Path) -> Path:
    """The DuckDB file of a bundle's tables, in the user's cache; made when it is first asked for.

    Raises StoreError for a damaged bundle.
    """
    stat = path.stat()
    key = path.absolute(), stat.st_mtime_ns, stat.st_size
    target = _unpack_into_cache(*key)
    if not target.exists():  # newer ones took its place since this process unpacked it
        _unpack_into_cache.cache_clear()
        target = _unpack_into_cache(*key)
    return target


@lru_cache(maxsize=64)
def _unpack_into_cache(path: Path, _: int, size: int) -> Path:
    if size > MOST_BYTES:
        raise StoreError(f"{path}: {size} bytes: no bundle is as large")
    with open_regular(path) as file:
        whole = file.read()
    folder = cache_folder() / "bundles"
    target = folder / f"{hashlib.sha256(whole).hexdigest()[:32]}.duckdb"
    if target.exists():
        with suppress(OSError):
            os.utime(target)
        return target
    begin = whole.rfind(_BEGIN)
    end = whole.find(_END, begin)
    if begin < 0 or end < 0:
        raise StoreError(f"{path}: its tables are cut off: send or save the whole file again")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private(folder)
        sweep_staging(folder)
        tables = base64.b64decode(whole[begin + len(_BEGIN) : end], validate=True)
        _fill(io.BytesIO(tables), folder, target)
    except (*_DAMAGE, duckdb.Error, OSError) as error:
        if is_out_of_space(error):  # the engine's error tells nothing else of it
            why = "no space left"
        elif isinstance(error, OSError):
            why = error.strerror or str(error)
        else:
            raise StoreError(f"{path}: its tables are damaged: {error}") from error
        reason = f"{path}: its tables cannot be unpacked below {folder} ({why})"
        raise StoreError(f"{reason}: {ELSEWHERE}") from error
    with suppress(OSError):  # another process may be at it
        databases = sorted(folder.glob("*.duckdb"), key=lambda one: -one.stat().st_mtime)
        for old in databases[_KEPT_BUNDLES:]:
            old.unlink(missing_ok=True)
    return target


def _fill(archive: IO[bytes], folder: Path, target: Path) -> None:
    """One table for each member; canonical ones with their own types."""
    temporary = folder / f"{staging_name()}.duckdb"
    part = folder / f"{staging_name()}.parquet"
    tables = schema.tables()
    try:
        with zipfile.ZipFile(archive) as files, open_duckdb(str(temporary)) as con:
            for member in files.infolist():
                name = _TABLE.fullmatch(member.filename)
                if name is None:
                    continue
                part.write_bytes(files.read(_stored_member(member)))
                rows = f"from read_parquet({sql_literal(str(part))})"
                if name[1] in tables:
                    con.execute(schema.create_sql(tables[name[1]], keys=True))
                    columns = _shared_columns(con, name[1], rows)
                    con.execute(f'insert into "{name[1]}" by name select {columns}')
                else:
                    con.execute(f'create table "{name[1]}" as select * {rows}')
            for name_of, table in tables.items():
                con.execute(schema.create_sql(table, keys=True).replace(
                    f'create table "{name_of}"', f'create table if not exists "{name_of}"'
                ))  # fmt: skip
            con.execute("checkpoint")  # closing passes over a disk that is full
        temporary.replace(target)
    finally:
        for one in (temporary, temporary.with_name(f"{temporary.name}.wal")):
            one.unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _stored_member(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """The member as `pack` writes them, as long as the page has bytes for it: a compressed one
    may become any size. Raises BadZipFile."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise zipfile.BadZipFile(f"{member.filename} is compressed or encrypted")
    return member


def _shared_columns(con: duckdb.DuckDBPyConnection, name: str, rows: str) -> str:
    """The columns of a table that its rows have, and the rows; a newer version may have others."""
    ours = {row[0] for row in con.execute(f'describe "{name}"').fetchall()}
    theirs = [row[0] for row in con.execute(f"describe {rows}").fetchall()]
    shared = ", ".join(f'"{column}"' for column in theirs if column in ours)
    return f"{shared} {rows}"
