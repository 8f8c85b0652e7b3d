"""Stores with described jobs in them, published without reading any profile."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path

import polars as pl

import npuscope
from npuscope.analysis.summaries import summarise
from npuscope.collector import schema, staging
from npuscope.collector.store import segments, store
from npuscope.collector.store.compact_files import Place
from npuscope.collector.store.folder_handles import staging_name
from npuscope.collector.store.manifest import Manifest, create_store, rank_folder, write_index
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
    frames = canonical_frames(job, tables=tables, capture=capture)
    for rank in range(job.world_size) if ranks is None else ranks:
        mine = {
            name: rows.filter(pl.col("rank") == rank).drop("run", "capture", "rank")
            for name, rows in frames.items()
        }
        if rank == 0:
            mine |= dict(more or {})
        publish_rank(path, (job.name, capture, rank), mine, published_s, ended_ns=_end(frames))
    if is_done:
        write_index(rank_folder(path, job.name, capture, 0).parent)


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
                plain = rows.drop("pmu", strict=False)
                con.register("_rows", plain.to_arrow())
                con.execute(f'insert into "{name}" by name select * from _rows')
                con.unregister("_rows")
        written = segments.write_tables(con, key, staged)
    finally:
        con.close()
    shutil.rmtree(staged / staging.SPILL, ignore_errors=True)
    located = {name: [Place(str(staged / one.file))] for name, one in written.items()}
    summaries = segments.write_summaries(staged, located, summarise, 1 << 30)
    generation = f"made-{published_s}"
    when = datetime.fromtimestamp(published_s, timezone.utc)
    manifest = Manifest(
        run=key[0], capture=key[1], rank=key[2], generation=generation,
        npuscope_version=npuscope.__version__, schema_digest=schema.digest(),
        reading_digest=schema.reading_digest(), published_at=when.isoformat(),
        rank_origin="test", source_root="", sources=[], window_start_ns=None,
        window_end_ns=ended_ns, tables=segments.in_generation(written, generation),
        summaries=segments.in_generation(summaries, generation),
    )  # fmt: skip
    store.publish(path, staged, manifest)


def _end(frames: Mapping[str, pl.DataFrame]) -> int:
    return int(frames["steps"].select(pl.col("window_end_ns").max()).item())
