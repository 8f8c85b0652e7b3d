"""Rows that wait on disk until SQL reads them, in bounded memory.

Inserting rows into an engine's table costs ten times what writing them to Parquet does, because
every value is hashed there for statistics that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_ROW_GROUP_BYTES = 8 << 20
# Columns of few values; looking for repetitions among ids only costs.
_REPEATED = frozenset({"name", "kind", "level", "task_type", "category", "side"})


class StagedFiles:
    """One growing file `<kind>.parquet` per kind of rows in a new folder.

    schemas: kind -> its columns. After `close` every kind has its file, also without rows.
    """

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        folder.mkdir(parents=True)
        self._waiting: dict[str, list[pa.Table]] = {kind: [] for kind in schemas}
        self._waiting_bytes = dict.fromkeys(schemas, 0)
        self._schemas = schemas
        self._writers = {
            kind: pq.ParquetWriter(
                folder / f"{kind}.parquet",
                schema,
                compression="lz4",
                use_dictionary=[name for name in schema.names if name in _REPEATED],
                write_statistics=False,
            )
            for kind, schema in schemas.items()
        }

    def append(self, kind: str, table: pa.Table) -> None:
        """Add rows; the columns are those of the kind's schema."""
        self._waiting[kind].append(table)
        self._waiting_bytes[kind] += table.nbytes
        if self._waiting_bytes[kind] > _ROW_GROUP_BYTES:
            self._write(kind)

    def _write(self, kind: str) -> None:
        rows = pa.concat_tables([self._schemas[kind].empty_table(), *self._waiting[kind]])
        self._writers[kind].write_table(rows)
        self._waiting[kind].clear()
        self._waiting_bytes[kind] = 0

    def close(self) -> None:
        """Write what waits and end the files."""
        for kind, writer in self._writers.items():
            self._write(kind)
            writer.close()
