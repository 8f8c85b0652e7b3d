"""Query results and lists in the forms a terminal, a script or a file wants."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl
import pyarrow as pa
from pyarrow import parquet as pq
from rich import box
from rich.table import Table

from npuscope.collector.csv_cells import quoted_cells
from npuscope.collector.ingest.ingest import IngestResult
from npuscope.collector.store.cache import CachedStore
from npuscope.console.printable import json_text, printable

from .units import size_text
from .whole_files import write_whole

TABLE_ROWS = 200


def json_ready(value: Any) -> Any:
    """A value as JSON has it: exact integers, NULL for what is no number, text for the rest."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [json_ready(item) for item in value]
    return str(value)


def json_rows(reader: pa.RecordBatchReader) -> list[dict[str, Any]]:
    """Every row of a result as a JSON-ready object."""
    return [json_ready(row) for batch in reader for row in batch.to_pylist()]


def write(reader: pa.RecordBatchReader, form: str, out: Path) -> None:
    """Write a result to a file, whole or not at all. `form`: json, csv or parquet."""
    with write_whole(out) as file:
        stream(reader, form, file)


def stream(
    reader: pa.RecordBatchReader, form: str, file: IO[bytes], *, shown_in: str | None = None
) -> None:
    """Write a result batch by batch to an open file.

    Where it may be looked at as it is, `shown_in` is the encoding of whoever looks.
    """
    if form == "parquet":
        with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    elif form == "csv":
        header = True
        for batch in _or_empty(reader):
            frame = pl.DataFrame(pl.from_arrow(pa.table(_flat(batch))))
            text = quoted_cells(frame).write_csv(include_header=header)
            file.write(printable(text).encode(shown_in, "replace") if shown_in else text.encode())
            header = False
    else:
        answer = {
            "schema_version": 1, "metric": "sql", "rows": json_rows(reader), "notes": []
        }  # fmt: skip
        encoding = shown_in or "utf-8"
        file.write(json_text(answer, encoding).encode(encoding) + b"\n")
    file.flush()


def _or_empty(reader: pa.RecordBatchReader) -> Iterable[pa.RecordBatch]:
    """The batches, or one without rows, so that a header is written in any case."""
    has_rows = False
    for batch in reader:
        has_rows = True
        yield batch
    if not has_rows:
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)


def _flat(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Columns with lists, structs and maps as JSON text: CSV has no nesting."""
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_nested(column.type):
            texts = [
                None if value is None else msgspec.json.encode(json_ready(value)).decode()
                for value in column.to_pylist()
            ]
            column = pa.array(texts, pa.string())
        columns[name] = column
    return columns


def sql_table(reader: pa.RecordBatchReader) -> Table:
    """The first rows of a result for a terminal."""
    table = _table()
    for field in reader.schema:
        right = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(field.name, justify="right" if right else "left", overflow="fold")
    row_count = 0
    for batch in reader:
        for row in batch.to_pylist():
            if row_count == TABLE_ROWS:
                table.caption = f"first {TABLE_ROWS} rows: --csv, --json or -o give all"
                return table
            table.add_row(*(_cell(value) for value in row.values()))
            row_count += 1
    return table


def _table(*headings: str) -> Table:
    """A table whose texts are folded, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, (str, int, float, bool)) else str(json_ready(value))


def records(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Frozen records as JSON-ready objects."""
    return [json_ready(dataclasses.asdict(item)) for item in items]


def stores_table(stores: Sequence[CachedStore]) -> Table:
    """The user cache's stores."""
    table = _table("store", "made from", "last used")
    table.add_column("ranks", justify="right")
    table.add_column("size", justify="right")
    for store in stores:
        used = "-"
        if store.used_at:
            used = datetime.datetime.fromtimestamp(store.used_at).strftime("%Y-%m-%d %H:%M")
        size = size_text(store.size_bytes)
        table.add_row(store.name, store.source, used, str(store.ranks), size)
    return table


def failures_table(result: IngestResult) -> Table:
    """What an ingest could not read: places, ranks, single files."""
    table = _table("not read", "where", "why")
    for problem in result.problems:
        table.add_row("folder", problem.path, problem.message)
    for outcome in result.failures:
        reason = (outcome.error or "").removeprefix(f"{outcome.root}: ")
        table.add_row(f"rank {outcome.rank}", outcome.root, reason)
    for rank, path, reason in result.unread_files:
        table.add_row(f"file of rank {rank}", path, reason.removeprefix(f"{path}: "))
    return table
