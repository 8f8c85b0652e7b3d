"""Stores with described jobs in them, published without reading any profile."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path

import duckdb
import msgspec
import polars as pl

import npuscope
from npuscope.analysis.summaries import summarise
from npuscope.collector import schema, staging
from npuscope.collector.ingest.read_batch import _segment, _with_sizes, _written_files
from npuscope.collector.ingest.read_rank import generation_of
from npuscope.collector.store import segments, store
from npuscope.collector.store.batches import BATCH_FOLDER, LISTING, Batch
from npuscope.collector.store.compact_files import Place
from npuscope.collector.store.folder_handles import make_staging, staging_name
from npuscope.collector.store.manifest import (
    Manifest,
    create_store,
    publish_folder,
    rank_folder,
    write_index,
)
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "expert_load", "expert_placement")


def publish_job(
    path: Path,
    job: Job,
    capture: str,
    *,
    published_s: float,
    tables: Collection[str] = TABLES,
    ranks: Collection[int] | None = None,
    more: Mapping[str, pl.DataFrame] | None = None,
    is_done: bool = True,
) -> None:
    """One capture of a job, as an ingest leaves it, or (`is_done` False) while it is under way.

    `more` are tables for rank 0, without key columns.
    """
    create_store(path)
    frames = canonical_frames(job, tables=tables, capture=capture, pipes=False)
    chosen = range(job.world_size) if ranks is None else sorted(ranks)
    own = {name: rows.drop("run", "capture") for name, rows in frames.items()}
    own = {name: rows.filter(rows["rank"].is_in(list(chosen))) for name, rows in own.items()}
    own |= {
        name: rows.with_columns(rank=pl.lit(0, pl.Int32)) for name, rows in (more or {}).items()
    }
    own = {name: rows for name, rows in own.items() if not rows.is_empty()}
    folder = rank_folder(path, job.name, capture, 0).parent
    staged = make_staging(folder)
    generation = generation_of(staged)
    con = staging.open_staging(staged, memory_bytes=1 << 30)
    try:
        segments.create_gathered(con)
        for name, rows in own.items():
            _insert(con, f'{segments.SUMMARY_SCHEMA}."{name}"', rows)
        located = segments.write_gathered(con, job.name, capture, staged, own)
    finally:
        con.close()
    shutil.rmtree(staged / staging.SPILL, ignore_errors=True)
    summaries = segments.write_shared_summaries(staged, located, summarise, 1 << 30)
    counts = {name: dict(rows.group_by("rank").len().iter_rows()) for name, rows in own.items()}
    batch = f"{BATCH_FOLDER}{generation}"
    whole = [
        msgspec.structs.replace(
            _manifest((job.name, capture, rank), generation, published_s, _end(frames)),
            batch=batch,
            tables={
                name: _segment(generation, name, found[rank])
                for name, found in counts.items() if rank in found
            },
            summaries={
                name: _segment(generation, name, found.get(rank, 0), version)
                for name, (version, found) in summaries.items()
            },
        )
        for rank in chosen
    ]  # fmt: skip
    files = _written_files(staged, batch, whole)
    listing = Batch(dict.fromkeys(chosen, generation), list(files.values()))
    (staged / LISTING).write_bytes(msgspec.json.encode(listing))
    publish_folder(staged, batch)
    for manifest in whole:
        store.publish(path, None, _with_sizes(manifest, files))
    if is_done:
        write_index(folder)


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: pl.DataFrame) -> None:
    con.register("_rows", rows.drop("pmu", strict=False).to_arrow())
    con.execute(f"insert into {table} by name select * from _rows")
    con.unregister("_rows")


def publish_rank(
    path: Path,
    key: tuple[str, str, int],
    tables: Mapping[str, pl.DataFrame],
    published_s: float,
    *,
    ended_ns: int | None = None,
) -> None:
    """One rank's tables, without key columns."""
    folder = rank_folder(path, *key)
    staged = folder / staging_name()
    staged.mkdir(parents=True)
    con = staging.open_staging(staged, memory_bytes=1 << 30)
    try:
        for name, rows in tables.items():
            if not rows.is_empty():
                _insert(con, f'"{name}"', rows)
        written = segments.write_tables(con, key, staged)
    finally:
        con.close()
    shutil.rmtree(staged / staging.SPILL, ignore_errors=True)
    located = {name: [Place(str(staged / one.file))] for name, one in written.items()}
    summaries = segments.write_summaries(staged, located, summarise, 1 << 30)
    generation = f"made-{published_s}"
    manifest = msgspec.structs.replace(
        _manifest(key, generation, published_s, ended_ns),
        tables=segments.in_generation(written, generation),
        summaries=segments.in_generation(summaries, generation),
    )
    store.publish(path, staged, manifest)


def _manifest(
    key: tuple[str, str, int], generation: str, published_s: float, ended_ns: int | None
) -> Manifest:
    """A rank's, but for its tables and summaries."""
    return Manifest(
        run=key[0], capture=key[1], rank=key[2], generation=generation,
        npuscope_version=npuscope.__version__, schema_digest=schema.digest(),
        reading_digest=schema.reading_digest(),
        published_at=datetime.fromtimestamp(published_s, timezone.utc).isoformat(),
        rank_origin="test", source_root="", sources=[], window_start_ns=None,
        window_end_ns=ended_ns, tables={}, summaries={},
    )  # fmt: skip


def _end(frames: Mapping[str, pl.DataFrame]) -> int:
    return int(frames["steps"].select(pl.col("window_end_ns").max()).item())
