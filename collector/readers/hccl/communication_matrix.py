"""communication_matrix.json: traffic between members of a group, as the profiler exports it.

Since 2024 an entry is a kind of operation and one of its best, middling or worst cases
(`allreduce-top1`), or the sum of all (`allreduce-total`); before, it is one operation. Ranks are
positions in the group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from ...model import ReadLog
from ..delimited_text import lose
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
    operations = entries(path)
    is_by_kind = False
    lost = Counter[str]()
    while chunk := list(islice(operations, _CHUNK_ENTRIES)):
        rows = []
        for entry in chunk:
            is_by_kind = is_by_kind or not entry.name.lower().startswith("hcom_")
            rows += [(*entry[:4], *link) for link in links_of(entry.json, lost)]
        insert_matrix(con, pa.Table.from_pylist(
            [dict(zip(MATRIX.names, row, strict=True)) for row in rows], schema=MATRIX
        ))  # fmt: skip
    log.rules["communication.matrix"] = "kinds of operations" if is_by_kind else "single operations"
    tell_links(log, path, lost)


def links_of(text: bytes | msgspec.Raw, lost: Counter[str]) -> Iterator[tuple[Any, ...]]:
    """(source, destination, figures ...) of an entry's links between two ranks.

    `lost` counts entries that are none (`bad`), those of which some values are no numbers and so
    unknown (`partial`), and links that name no two ranks (`odd`).
    """
    try:
        links = _DECODER.decode(text)
    except _UNREADABLE:
        try:
            values = msgspec.json.decode(without_nan(bytes(text)))
            links = msgspec.convert(numbers(values, _NUMBERS), dict[str, Link], strict=False)
        except _UNREADABLE:
            lost["bad"] += 1
            return
        lost["partial"] += 1
    for key, link in links.items():
        if pair := _PAIR.fullmatch(key):
            yield (*pair.groups(), *msgspec.structs.astuple(link))
        else:
            lost["odd"] += 1


def tell_links(log: ReadLog, path: str, lost: Counter[str]) -> None:
    """Say what `links_of` counted."""
    lose(log, path, lost["bad"], "matrix entries with non-numeric values")
    tell_partial(log, path, lost["partial"])
    lose(log, path, lost["odd"], "links between ranks that are not named")
