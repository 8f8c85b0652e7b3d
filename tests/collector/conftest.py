"""A staging database, and readers run on files made up by a test or taken from a real profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.ingest.read_batch import empty_tables
from npuscope.collector.model import RankSource, ReadLog, Role, SourceFile
from npuscope.collector.staging import open_staging
from tests.collector.readers.trace_view import written_traces

ROLES: dict[str, Role] = {
    "kernel_details.csv": "kernels",
    "step_trace_time.csv": "step_trace",
    "memory_record.csv": "memory_record",
    "operator_memory.csv": "operator_memory",
    "npu_module_mem.csv": "module_memory",
    "communication.json": "communication",
    "communication_matrix.json": "communication_matrix",
    "analysis.db": "analysis_db",
    "profiler_metadata.json": "profiler_metadata",
}


@pytest.fixture(scope="session")
def staging_engine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(open_staging(tmp_path_factory.mktemp("staging"))) as con:
        yield con


@pytest.fixture
def staging(staging_engine: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """Empty tables for what one test reads: of one database, as small ranks have theirs."""
    with closing(staging_engine.cursor()) as con:
        yield con
    empty_tables(staging_engine)


@pytest.fixture(scope="module")
def trace_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """What the reader makes of the written timeline, to look at only."""
    folder = tmp_path_factory.mktemp("written")
    path = written_traces.write(folder / "trace_view.json", written_traces.TRACE)
    con, log = written_traces.read_paths([path], folder)
    assert (log.warnings, log.rows_lost) == ([], 0)
    yield con
    con.close()


@dataclass(frozen=True)
class Staged:
    """A staging database, a folder for files, and what readers make of these."""

    con: duckdb.DuckDBPyConnection
    folder: Path

    def read(
        self,
        reader: ModuleType,
        files: Path | Mapping[Role, Path | list[Path]],
        *,
        only: frozenset[str] = frozenset(schema.tables()),
        rank: int = 0,
    ) -> ReadLog:
        """`read(reader, {role: path or paths})` or `read(reader, folder)`."""
        chosen = _of_folder(files) if isinstance(files, Path) else files
        roles: dict[Role, tuple[SourceFile, ...]] = {
            role: tuple(
                SourceFile(str(path), path.stat().st_size, path.stat().st_mtime_ns)
                for path in (paths if isinstance(paths, list) else [paths])
            )
            for role, paths in chosen.items()
        }
        source = RankSource("job", "pytorch", rank, "test", roles)
        log = ReadLog()
        consumed: list[int] = []
        reader.read(self.con, source, log, only, consumed.append)
        assert sum(consumed) <= source.size_bytes
        return log

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        found: list[Any] = self.con.execute(sql, values).fetchall()
        return found

    def records(self, sql: str) -> list[dict[str, Any]]:
        names = [column[0] for column in self.con.execute(sql).description or ()]
        return [dict(zip(names, row, strict=True)) for row in self.con.fetchall()]


@pytest.fixture
def stage(staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> Staged:
    return Staged(staging, tmp_path)


def _of_folder(folder: Path) -> dict[Role, Path]:
    found: dict[Role, Path] = {ROLES[p.name]: p for p in folder.rglob("*") if p.name in ROLES}
    for path in folder.glob("profiler_info*.json"):
        found["profiler_info"] = path
    return found
