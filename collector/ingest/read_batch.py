"""Small ranks from their files to files with the rows of all of them.

    rank 0  ─ readers, link ─▶ canonical tables ─┐
    rank 1  ─ readers, link ─▶ canonical tables ─┼─▶ gathered ─▶ a file for each table ─▶ ...
    rank 2  ─ cannot be read: told, and left out ┘

Of a rank of a few megabytes, most time goes into statements that take no longer for many ranks.
One that fails leaves the batch. Where what they do together fails, each is read alone: whoever is
to blame is told, and costs the others nothing but time.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb
import msgspec

from npuscope.errors import StoreError

from .. import schema
from ..model import ReadLog
from ..readers.trust import Advance
from ..readers.words import worded_table
from ..small_files import crc32_of
from ..staging import (
    DATABASE_PROCESS_BYTES,
    PROCESS_BYTES,
    SPILL,
    database_bytes,
    nonempty,
    open_staging,
    run,
)
from ..store import store
from ..store.batches import BATCH_FOLDER, LISTING, Batch, SharedFile
from ..store.folder_handles import discard, make_staging
from ..store.manifest import Manifest, Segment, publish_folder, rank_folder
from ..store.segments import (
    Summarise,
    create_gathered,
    gather_tables,
    shared_name,
    write_gathered,
    write_shared_summaries,
)
from .deadline import Deadline
from .read_rank import (
    ALONE_BYTES,
    ProgressCount,
    RankOutcome,
    RankTask,
    ReadFacts,
    deadline_of,
    failure,
    fill_tables,
    generation_of,
    limit_of,
    manifest_of,
    read_rank,
    require_better,
    source_records,
    success,
)

log = logging.getLogger(__name__)

# A batch ends at so many ranks or bytes of their files: a reader holds it, and a kill costs it.
MOST_RANKS = 64
MOST_BYTES = 64 << 20


def in_batches(tasks: Sequence[RankTask], workers: int) -> list[tuple[RankTask, ...]]:
    """Tasks that are read together: small ranks of one capture that the same nodes see, in order
    of ranks, so many that each of the workers has some. The largest batch first."""
    together: dict[object, list[RankTask]] = {}
    for task in sorted(tasks, key=lambda task: task.source.rank):
        key = (task.store, task.run, task.capture, task.source.nodes)
        together.setdefault(key, []).append(task)
    most = max(1, min(MOST_RANKS, -(-len(tasks) // workers)))
    batches = [batch for tasks_here in together.values() for batch in _cut(tasks_here, most)]
    return sorted(batches, key=size_bytes, reverse=True)


def size_bytes(batch: Sequence[RankTask]) -> int:
    """Bytes of the files of ranks."""
    return sum(task.source.size_bytes for task in batch)


def _cut(tasks: Sequence[RankTask], most: int) -> Iterator[tuple[RankTask, ...]]:
    batch: list[RankTask] = []
    for task in tasks:
        # To copy its rows would cost more than to read it with others saves.
        if task.source.size_bytes > ALONE_BYTES:
            yield (task,)
            continue
        if len(batch) == most or (batch and size_bytes([*batch, task]) > MOST_BYTES):
            yield tuple(batch)
            batch = []
        batch.append(task)
    if batch:
        yield tuple(batch)


@dataclass(frozen=True, slots=True)
class _RankRows:
    """A rank whose rows are gathered, with its manifest but for its batch and summaries."""

    task: RankTask
    reading: ReadLog
    facts: ReadFacts
    manifest: Manifest


def read_batch(
    tasks: Sequence[RankTask], summarise: Summarise | None, advance: Advance
) -> list[RankOutcome]:
    """Read ranks of one capture and publish them. Bad input becomes an outcome's `error`."""
    if len(tasks) == 1:
        return [read_rank(tasks[0], summarise, advance)]
    one = tasks[0]
    deadline = Deadline(batch_limit(tasks))
    advanced = {task.source.rank: ProgressCount(advance) for task in tasks}
    outcomes: dict[int, RankOutcome] = {}
    alone: list[RankTask] = []
    staged: Path | None = None
    try:
        staged = make_staging(rank_folder(Path(one.store), one.run, one.capture, 0).parent)
        generation = generation_of(staged)
        memory_bytes = database_bytes(_process_bytes(tasks))
        ranks: list[_RankRows] = []
        with closing(open_staging(staged, memory_bytes=memory_bytes, plainly=True)) as con:
            create_gathered(con)
            for task in tasks:
                rank = task.source.rank
                outcome = _gather(con, task, generation, advanced[rank])
                if isinstance(outcome, _RankRows):
                    ranks.append(outcome)
                elif outcome.out_of_memory:
                    alone.append(task)
                else:
                    outcomes[rank] = outcome
                    if outcome.out_of_space:
                        break
            filled = {name for g in ranks for name in g.manifest.tables}
            with deadline.interrupts(con):
                located = write_gathered(con, one.run, one.capture, staged, filled)
        shutil.rmtree(staged / SPILL, ignore_errors=True)
        if ranks:
            summaries = write_shared_summaries(staged, located, summarise, memory_bytes)
            deadline.check()
            outcomes |= _publish(staged, ranks, summaries)
    except Exception:  # of all of them together: alone, only who is to blame fails
        log.debug("a batch of %d ranks failed", len(tasks), exc_info=True)
        alone = [task for task in tasks if task.source.rank not in outcomes]
    finally:
        if staged:
            shutil.rmtree(staged, ignore_errors=True)
    for task in alone:
        advance(-advanced[task.source.rank].total)
        outcomes[task.source.rank] = read_rank(task, summarise, advance)
        if outcomes[task.source.rank].out_of_space:
            break  # what fits is published, the others need not be tried
    return list(outcomes.values())


def batch_limit(tasks: Sequence[RankTask]) -> float | None:
    """How long reading ranks together may take, in seconds."""
    limits = [limit for task in tasks if (limit := limit_of(task)) is not None]
    return sum(limits) if len(limits) == len(tasks) else None


def _process_bytes(tasks: Sequence[RankTask]) -> int:
    least = max(
        DATABASE_PROCESS_BYTES if "main_db" in task.source.files else PROCESS_BYTES
        for task in tasks
    )
    return tasks[0].memory_bytes or least


def _gather(
    base: duckdb.DuckDBPyConnection,
    task: RankTask,
    generation: str,
    advance: ProgressCount,
) -> _RankRows | RankOutcome:
    """Read one rank, whose rows are then gathered; the canonical tables are empty again."""
    began = time.monotonic()
    source = task.source
    reading = ReadLog(warnings=list(source.warnings), rules=dict(source.rules))
    deadline = deadline_of(task)
    try:
        # What readers put aside belongs to their connection, and goes with it.
        with ThreadPoolExecutor(1) as beside, closing(base.cursor()) as con:
            digests = beside.submit(source_records, source, deadline)
            with deadline.interrupts(con):
                facts = fill_tables(con, task, reading, advance, deadline)
            manifest = manifest_of(task, reading, facts, digests.result(), generation)
            filled = nonempty(con, schema.tables()) - facts.left_out
            counted = [f"(select '{name}', count(*) from \"{name}\")" for name in sorted(filled)]
            counts = con.execute(" union all ".join(counted)).fetchall() if filled else []
            manifest = msgspec.structs.replace(
                manifest, tables={name: _segment(generation, name, n) for name, n in counts}
            )
            require_better(task, manifest)
            with deadline.interrupts(con):
                gather_tables(con, source.rank, filled, stacks=source.selection.stacks)
        manifest = msgspec.structs.replace(
            manifest, read_seconds=round(time.monotonic() - began, 3)
        )
        return _RankRows(task, reading, facts, manifest)
    except Exception as error:  # one that nobody foresaw must not cost the other ranks
        return failure(task, reading, error, deadline, time.monotonic() - began)
    finally:
        empty_tables(base)


def empty_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Empty the canonical tables, and give those their columns back that hold words (words.py)."""
    words = "select type_name from duckdb_types() where logical_type = 'ENUM' and not internal"
    types = [name for (name,) in con.execute(words).fetchall()]
    run(con, _empty_sql(nonempty(con, schema.tables()).union(map(worded_table, types))))
    for name in types:
        con.execute(f"drop type {name}")


@cache
def _empty_sql(names: frozenset[str]) -> str:
    return ";".join(
        f'drop table "{name}"; {schema.create_sql(schema.tables()[name])}' for name in sorted(names)
    )


def _segment(generation: str, name: str, row_count: int, version: str = "") -> Segment:
    """What a rank has of a shared file, named as one of its own would be."""
    if not row_count:
        return Segment("", 0, 0, version)
    file = f"{name}.{version}.parquet" if version else f"{name}.parquet"
    return Segment(f"{generation}/{file}", row_count, 0, version)


def _publish(
    staging: Path,
    ranks: Sequence[_RankRows],
    summaries: Mapping[str, tuple[str, Mapping[int, int]]],
) -> dict[int, RankOutcome]:
    """Give the written files their lasting names, then publish rank after rank."""
    generation = ranks[0].manifest.generation
    name = f"{BATCH_FOLDER}{generation}"
    whole = [
        msgspec.structs.replace(
            g.manifest,
            batch=name,
            summaries={
                table: _segment(generation, table, counts.get(g.manifest.rank, 0), version)
                for table, (version, counts) in summaries.items()
            },
        )
        for g in ranks
    ]
    files = _written_files(staging, name, whole)
    manifests = [_with_sizes(manifest, files) for manifest in whole]
    batch = Batch({manifest.rank: generation for manifest in manifests}, list(files.values()))
    (staging / LISTING).write_bytes(msgspec.json.encode(batch))
    publish_folder(staging, name)
    outcomes: dict[int, RankOutcome] = {}
    for g, manifest in zip(ranks, manifests, strict=True):
        store_path = Path(g.task.store)
        try:
            store.publish(store_path, None, manifest)
            result = success(manifest, g.task.source, g.reading, g.facts, manifest.read_seconds)
        except (OSError, StoreError) as error:  # a full disk: those before are published
            result = failure(g.task, g.reading, error, Deadline(None), manifest.read_seconds)
        outcomes[manifest.rank] = result
        if result.out_of_space:
            break
    if all(outcome.error is not None for outcome in outcomes.values()):
        discard(staging.parent / name)
    return outcomes


def _written_files(
    staging: Path, folder: str, manifests: Sequence[Manifest]
) -> dict[str, SharedFile]:
    """The written files by table, with the ranks that have rows in them."""
    files: dict[str, SharedFile] = {}
    having: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for manifest in manifests:
        for table, one in (*manifest.tables.items(), *manifest.summaries.items()):
            if one.row_count:
                having.setdefault((table, one.version), []).append((manifest.rank, one.row_count))
    for (table, version), segments in having.items():
        path = staging / shared_name(table)
        rows = sum(n for _, n in segments)
        ranks = [rank for rank, _ in segments]
        files[table] = SharedFile(
            f"{folder}/{path.name}",
            table,
            version,
            rows,
            path.stat().st_size,
            ranks,
            crc32_of(path),
        )
    return files


def _with_sizes(manifest: Manifest, files: Mapping[str, SharedFile]) -> Manifest:
    """With the rank's share of the bytes, by rows."""

    def sized(segments: Mapping[str, Segment]) -> dict[str, Segment]:
        return {
            name: msgspec.structs.replace(
                one, size_bytes=files[name].size_bytes * one.row_count // files[name].row_count
            )
            if one.row_count
            else one
            for name, one in segments.items()
        }

    return msgspec.structs.replace(
        manifest, tables=sized(manifest.tables), summaries=sized(manifest.summaries)
    )
