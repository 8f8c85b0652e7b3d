"""communication_matrix.json: traffic between members of a group, as the profiler exports it.

Since 2024 an entry is a kind of operation and one of its best, middling or worst cases
(`allreduce-top1`), or the sum of all (`allreduce-total`); before, it is one operation. Ranks are
positions in the group.
"""

from __future__ import annotations

from itertools import islice

import duckdb
import msgspec
import pyarrow as pa

from ...model import ReadLog
from ..delimited import lose
from .communication_json import entries
from .communication_rows import MATRIX, insert_matrix

_CHUNK_ENTRIES = 10_000


class Link(msgspec.Struct):
    """Traffic from one member of a group to another."""

    transport: str | None = msgspec.field(default=None, name="Transport Type")
    size_mb: float | None = msgspec.field(default=None, name="Transit Size(MB)")
    time_ms: float | None = msgspec.field(default=None, name="Transit Time(ms)")
    bandwidth_gb_s: float | None = msgspec.field(default=None, name="Bandwidth(GB/s)")
    op_name: str | None = msgspec.field(default=None, name="Op Name")


_DECODER = msgspec.json.Decoder(dict[str, Link], strict=False)


def read_matrix(con: duckdb.DuckDBPyConnection, path: str, log: ReadLog) -> None:
    """Fill `comm_matrix` from one file."""
    found = entries(path)
    is_by_kind = False
    bad = 0
    while chunk := list(islice(found, _CHUNK_ENTRIES)):
        rows = []
        for entry in chunk:
            is_by_kind = is_by_kind or not entry.name.lower().startswith("hcom_")
            try:
                links = _DECODER.decode(entry.json)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            for pair, link in links.items():
                src, _, dst = pair.partition("-")
                rows.append((*entry[:4], src, dst, *msgspec.structs.astuple(link)))
        insert_matrix(con, pa.Table.from_pylist(
            [dict(zip(MATRIX.names, row, strict=True)) for row in rows], schema=MATRIX
        ))  # fmt: skip
    log.rules["communication.matrix"] = "kinds of operations" if is_by_kind else "single operations"
    lose(log, path, bad, "matrix entries with non-numeric values")
