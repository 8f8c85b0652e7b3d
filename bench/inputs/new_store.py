"""Stores without profiles: ranks whose tables are filled by SQL, published as by an ingest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path

import duckdb

import npuscope
from bench.measure import BUILD
from npuscope.analysis.summaries import summaries, summarise
from npuscope.collector import schema, staging
from npuscope.collector.store import segments, store
from npuscope.collector.store.compact_files import Place
from npuscope.collector.store.folder_handles import staging_name
from npuscope.collector.store.manifest import Manifest, create_store, rank_folder

_GENERATION = "made"


def store_once(name: str, write: Callable[[Path], object], recipe: Iterable[object]) -> Path:
    """The store that `write` fills; kept for the next time, as long as tables, summaries and the
    `recipe` are the same."""
    path = BUILD / name
    record = path / ".bench.json"
    made_by = json.dumps([schema.digest(), *sorted(one.version for one in summaries()), *recipe])
    if record.is_file() and record.read_text() == made_by:
        return path
    shutil.rmtree(path, ignore_errors=True)
    create_store(path)
    write(path)
    record.write_text(made_by)
    return path


def in_two_processes(write: Callable[[int], object], parts: Iterable[int]) -> None:
    """Each of the parts. Not forked: the engine of another store may have threads here."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(write, parts))


def publish_rank(
    path: Path,
    key: tuple[str, str, int],
    fill: Callable[[duckdb.DuckDBPyConnection], object],
    *,
    window_ns: tuple[int | None, int | None] = (None, None),
    memory_bytes: int = 1 << 30,
    with_summaries: bool = True,
) -> None:
    """One rank, from the tables that `fill` puts into a staging database."""
    staged = rank_folder(path, *key) / staging_name()
    staged.mkdir(parents=True)
    con = staging.open_staging(staged, memory_bytes=memory_bytes)
    try:
        fill(con)
        tables = segments.write_tables(con, key, staged)
    finally:
        con.close()
    shutil.rmtree(staged / staging.SPILL, ignore_errors=True)
    located = {name: [Place(str(staged / one.file))] for name, one in tables.items()}
    answers = (
        segments.write_summaries(staged, located, summarise, memory_bytes) if with_summaries else {}
    )
    run, capture, rank = key
    manifest = Manifest(
        run=run, capture=capture, rank=rank, generation=_GENERATION,
        npuscope_version=npuscope.__version__, schema_digest=schema.digest(),
        reading_digest=schema.reading_digest(),
        published_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        rank_origin="bench", source_root="", sources=[],
        window_start_ns=window_ns[0], window_end_ns=window_ns[1],
        tables=segments.in_generation(tables, _GENERATION),
        summaries=segments.in_generation(answers, _GENERATION),
    )  # fmt: skip
    store.publish(path, staged, manifest)
