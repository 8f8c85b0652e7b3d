"""Bringing a profile folder up to date in its store, by whatever engine.

Apart from `opening`, because an answer from a store needs none of what reads profiles.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.ingest.plan import Plan
from npuscope.collector.ingest.shards import parse_shard
from npuscope.collector.store import cache
from npuscope.errors import UsageError

from .opening import Source, is_ingested
from .terminal.progress import shown
from .terminal.waiting import waiting


def bring_up_to_date(source: Source) -> tuple[Path, IngestResult, list[str]]:
    """Ingest a profile folder into its store; returns the store, what was done, what to tell."""
    if is_ingested(source.path):
        raise UsageError(f"{source.path}: already ingested: give a profile folder")
    target = source.store or cache.own_store(source.path)

    def began(plan: Plan) -> None:
        # Before anything is read: a reading that is killed leaves no store of unknown origin.
        if source.store is None:
            cache.remember_use(target, source.path)

    with waiting(f"looking for profiles in {source.path}"), shown(began) as progress:
        result = ingest(
            source.path,
            target,
            run=source.run,
            summarise=summarise,
            jobs=source.jobs,
            memory_bytes=source.memory_bytes,
            progress=progress,
            force=source.force,
            shard=source.shard,
            engine=source.engine,
            address=source.address,
            selection=source.selection,
            train_log=source.train_log,
            expert_load=source.expert_load,
        )
    messages = [
        f"rank {m.rank} of {m.capture} was removed from the source: dropped" for m in result.dropped
    ]
    if source.store is None:
        messages += [
            f"cache over its limit: dropped the store of {gone.source}"
            for gone in cache.keep_within_limit(target)
        ]
    return target, result, messages


def spread(source: Source, shard: str | None, engine: str, address: str | None) -> Source:
    """The source, read by one of several processes or on a cluster. Raises UsageError."""
    if engine == "local" and shard is None:
        return replace(source, address=address)
    how = f"--shard {shard}" if shard else f"--engine {engine}"
    if shard and engine != "local":
        raise UsageError("--shard and --engine both divide the ranks: give only one")
    if source.store is None:
        raise UsageError(f"{how}: give --store DIR on storage that all of them share")
    parsed = parse_shard(shard) if shard else None
    return replace(source, shard=parsed, engine=engine, address=address)
