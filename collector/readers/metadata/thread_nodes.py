"""NUMA nodes of threads, as `profile_session` puts them into a capture's metadata.

    "npuscope_threads": {"start_ns": 1795680000000000000, "interval_ms": 100, "device_node": 0,
                         "threads": {"4711": [[0, 0, 12], [1203, 1, 3]]}}

They become counters named NUMA node: one of series `device`, and of `thread 4711` one for each
reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import duckdb
import msgspec

from npuscope.errors import TraceFormatError

from ...model import RankSource
from .profiler_metadata import json_object

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = "npuscope_threads"
_Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_Since = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Threads(msgspec.Struct):
    start_ns: _Time
    interval_ms: _Count
    threads: dict[
        Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}$")],
        Annotated[list[tuple[_Since, _Count, _Count]], msgspec.Meta(max_length=4096)],
    ]
    device_node: _Count | None = None


def fill_thread_nodes(con: duckdb.DuckDBPyConnection, source: RankSource) -> None:
    """Add a rank's to `counters`. Metadata that cannot be read adds nothing: its own reader tells
    it."""
    for file in source.files.get("profiler_metadata", ()):
        try:
            value = json_object(file.path).get(_KEY)
            if isinstance(value, str):
                threads = msgspec.json.decode(value, type=_Threads)
            else:
                threads = msgspec.convert(value, type=_Threads)
        except (TraceFormatError, msgspec.MsgspecError):
            continue
        con.register("_thread_nodes", _runs(threads))
        con.execute(
            "insert into counters by name select 'NUMA node' as name, series,"
            " start_ns + reading * interval_ns as timestamp_ns, node as value"
            " from _thread_nodes, unnest(range(sample_count)) as _readings(reading)"
        )
        con.unregister("_thread_nodes")


def _runs(threads: _Threads) -> pa.Table:
    import pyarrow as pa  # here: who looks for profiles makes no rows

    schema = pa.schema([
        ("series", pa.string()), ("start_ns", pa.int64()), ("interval_ns", pa.int64()),
        ("node", pa.float64()), ("sample_count", pa.int64()),
    ])  # fmt: skip
    interval_ns = threads.interval_ms * 1_000_000
    rows = [("device", threads.start_ns, 0, float(threads.device_node), 1)] if (
        threads.device_node is not None
    ) else []  # fmt: skip
    rows += [
        (
            f"thread {thread}",
            threads.start_ns + since_ms * 1_000_000,
            interval_ns,
            float(node),
            count,
        )
        for thread, stays in threads.threads.items()
        for since_ms, node, count in stays
    ]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
