"""communication.json: what HCCL measured of each operation, and its traffic per kind of link.

The link matrix beside it is read in the same go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from ...model import RankSource, ReadLog
from ..damaged_files import read_each
from ..delimited_text import lose
from .communication_json import entries, numbers, tell_partial, without_nan
from .communication_matrix import read_matrix
from .communication_rows import PACKETS, TIMES, insert_packets, insert_times

_CHUNK_ENTRIES = 10_000


class Time(msgspec.Struct, gc=False):
    """What HCCL measured of one operation on its master plane."""

    start_us: float | None = msgspec.field(default=None, name="Start Timestamp(us)")
    elapse_ms: float | None = msgspec.field(default=None, name="Elapse Time(ms)")
    transit_ms: float | None = msgspec.field(default=None, name="Transit Time(ms)")
    wait_ms: float | None = msgspec.field(default=None, name="Wait Time(ms)")
    synchronization_ms: float | None = msgspec.field(default=None, name="Synchronization Time(ms)")
    idle_ms: float | None = msgspec.field(default=None, name="Idle Time(ms)")


class Link(msgspec.Struct, gc=False):
    """Traffic of one operation over one kind of link."""

    size_mb: float | None = msgspec.field(default=None, name="Transit Size(MB)")
    time_ms: float | None = msgspec.field(default=None, name="Transit Time(ms)")
    bandwidth_gb_s: float | None = msgspec.field(default=None, name="Bandwidth(GB/s)")
    large_packet_ratio: float | None = msgspec.field(default=None, name="Large Packet Ratio")
    # Packet size in MB, as text -> [packets, ms in all].
    packets: dict[float, tuple[float, float]] = msgspec.field(
        default_factory=dict, name="Size Distribution"
    )


class Operation(msgspec.Struct, gc=False):
    """An entry of communication.json."""

    time: Time | None = msgspec.field(default=None, name="Communication Time Info")
    links: dict[str, Link] = msgspec.field(
        default_factory=dict, name="Communication Bandwidth Info"
    )


_DECODER = msgspec.json.Decoder(Operation, strict=False)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `comm_times` and `comm_links`, and from the link matrix `comm_matrix`."""

    def read_one(path: str) -> None:
        if path in matrices:
            if "comm_matrix" in tables:
                read_matrix(con, path, log)
        elif tables & {"comm_times", "comm_links"}:
            _read_file(con, path, log, tables)

    matrices = source.paths("communication_matrix")
    files = [
        *source.files.get("communication", ()), *source.files.get("communication_matrix", ())
    ]  # fmt: skip
    read_each(files, read_one, log, advance)


def _read_file(
    con: duckdb.DuckDBPyConnection, path: str, log: ReadLog, tables: frozenset[str]
) -> None:
    operations = entries(path)
    steps: set[str] = set()
    bad = partial = 0
    while chunk := list(islice(operations, _CHUNK_ENTRIES)):
        times: list[tuple[Any, ...]] = []
        packets: list[tuple[Any, ...]] = []
        for entry in chunk:
            steps.add(entry.step)
            try:
                operation = _DECODER.decode(entry.json)
            except _UNREADABLE:
                if (numbers := numbers_of(entry.json)) is None:
                    bad += 1
                    continue
                operation = numbers
                partial += 1
            if operation.time is not None:
                times.append((*entry[:4], *msgspec.structs.astuple(operation.time)))
            packets.extend(packet_rows(entry[:4], operation.links))
        if "comm_times" in tables:
            insert_times(con, as_table(times, TIMES))
        if "comm_links" in tables:
            insert_packets(con, as_table(packets, PACKETS))
    log.rules["communication.step_key"] = _spelling(steps)
    lose(log, path, bad, "operations with non-numeric values")
    tell_partial(log, path, partial)


def numbers_of(text: bytes | msgspec.Raw) -> Operation | None:
    """An operation some of whose values are no numbers: these are unknown. None: none is told."""
    try:
        values = msgspec.json.decode(without_nan(bytes(text)))
        return msgspec.convert(numbers(values), Operation, strict=False)
    except _UNREADABLE:
        return None


def _spelling(steps: set[str]) -> str:
    """How a file names its steps."""
    if not steps - {""}:
        return "none"
    return "step and its number" if any(key[-1:].isdecimal() for key in steps) else "step"


def packet_rows(head: tuple[Any, ...], links: Mapping[str, Link]) -> Iterator[tuple[Any, ...]]:
    """Rows of schema PACKETS of one operation; `head` is what stands before the link."""
    for link, traffic in links.items():
        if not (traffic.packets or traffic.size_mb or traffic.time_ms):
            continue  # most links: they would have no row anyway
        row = (
            *head, link, traffic.size_mb, traffic.time_ms, traffic.bandwidth_gb_s,
            traffic.large_packet_ratio,
        )  # fmt: skip
        if not traffic.packets:
            yield (*row, None, None, None)
        for size_mb, (count, total_ms) in traffic.packets.items():
            yield (*row, size_mb, count, total_ms)


def as_table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table of the schema, without rows too."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
