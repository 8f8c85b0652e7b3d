"""communication_matrix.json: traffic between members of a group, as the profiler exports it.

Since 2024 an entry is a kind of operation and one of its best, middling or worst cases
(`allreduce-top1`), or the sum of all (`allreduce-total`); before, it is one operation. Ranks are
positions in the group.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from ...model import ReadLog
from ..delimited import lose
from .communication_json import entries, numbers, tell_partial, without_nan
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
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NUMBERS = frozenset({"Transit Size(MB)", "Transit Time(ms)", "Bandwidth(GB/s)"})
_PAIR = re.compile(r"[\s(\[]*(\d{1,9})\s*[-,]\s*(\d{1,9})[\s)\]]*", re.A)


def read_matrix(con: duckdb.DuckDBPyConnection, path: str, log: ReadLog) -> None:
    """Fill `comm_matrix` from one file."""
    found = entries(path)
    is_by_kind = False
    bad = partial = odd = 0
    while chunk := list(islice(found, _CHUNK_ENTRIES)):
        rows = []
        for entry in chunk:
            is_by_kind = is_by_kind or not entry.name.lower().startswith("hcom_")
            links, is_partial = links_of(entry.json)
            bad += links is None
            partial += is_partial
            for src, dst, *figures in pairs(links or {}):
                odd += src is None
                if src is not None:
                    rows.append((*entry[:4], src, dst, *figures))
        insert_matrix(con, pa.Table.from_pylist(
            [dict(zip(MATRIX.names, row, strict=True)) for row in rows], schema=MATRIX
        ))  # fmt: skip
    log.rules["communication.matrix"] = "kinds of operations" if is_by_kind else "single operations"
    tell_links(log, path, bad, partial, odd)


def links_of(text: bytes | msgspec.Raw) -> tuple[dict[str, Link] | None, bool]:
    """Traffic by pair of ranks (None: the text tells none), and whether values that are no numbers
    are unknown in it."""
    try:
        return _DECODER.decode(text), False
    except _UNREADABLE:
        pass
    try:
        values = msgspec.json.decode(without_nan(bytes(text)))
        return msgspec.convert(numbers(values, _NUMBERS), dict[str, Link], strict=False), True
    except _UNREADABLE:
        return None, False


def pairs(links: dict[str, Link]) -> list[tuple[Any, ...]]:
    """(source, destination, figures ...) of each link; both None where "0-1" names no ranks."""
    found = ((_PAIR.fullmatch(key), link) for key, link in links.items())
    return [
        (*(pair.groups() if pair else (None, None)), *msgspec.structs.astuple(link))
        for pair, link in found
    ]


def tell_links(log: ReadLog, path: str, bad: int, partial: int, odd: int) -> None:
    """Say how many entries have no figures, lack some, and how many links are of no ranks."""
    lose(log, path, bad, "matrix entries with non-numeric values")
    tell_partial(log, path, partial)
    lose(log, path, odd, "links between ranks that are not named")
