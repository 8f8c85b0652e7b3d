"""From what a user points at to open tables: a store, an exported file, or a profile folder.

A profile folder is brought up to date first in a store of its own (the user cache, or `--store`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from npuscope.analysis.memo import remember
from npuscope.analysis.scope import ALL, Scope
from npuscope.analysis.summaries import summaries
from npuscope.analysis.wording import ranks_named
from npuscope.collector.buckets import url_of
from npuscope.collector.store import mirror, store
from npuscope.collector.store.derived_tier import MEMORY_BYTES
from npuscope.collector.store.manifest import (
    folder_value,
    is_store,
    manifests,
    odd_places,
)
from npuscope.console.waiting import reading, waiting
from npuscope.errors import StoreError, TraceNotFound, UsageError
from npuscope.messages import Message, join, restore_text

if TYPE_CHECKING:
    from npuscope.collector.ingest.ingest import IngestResult
    from npuscope.collector.ingest.plan import Plan
    from npuscope.collector.ingest.shards import Shard
    from npuscope.collector.selection import Selection, Spans


@dataclass(frozen=True, slots=True)
class Source:
    """What to open and how to read it where it is not read yet; `writable` is the folder that the
    engine writes below."""

    path: Path
    store: Path | None = None
    run: str | None = None
    jobs: int | None = None
    memory_bytes: int | None = None
    force: bool = False
    shard: Shard | None = None
    engine: str = "local"
    address: str | None = None
    selection: Selection | None = None
    train_log: Path | None = None
    expert_load: Path | None = None
    writable: Path | None = None


@dataclass(frozen=True, slots=True)
class OpenTables:
    """Tables of `target`; `result` where an ingest came first; `messages` on what it did, and on
    captures that are `left_out`; `is_partial`: whether such a one was asked for; `warnings` on what
    was lost or guessed when the ranks were read; `memory_bytes` for what all ranks together tell
    (None: as much as it usually gets)."""

    con: duckdb.DuckDBPyConnection
    target: Path
    result: IngestResult | None = None
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    memory_bytes: int | None = None
    left_out: tuple[str, ...] = ()
    is_partial: bool = False


@contextlib.contextmanager
def open_tables(
    source: Source, *, is_command: bool = True, scope: Scope = ALL
) -> Iterator[OpenTables]:
    """Open the tables behind a path; closes them at the end. Warnings are of the scope's run and
    capture, and of the run that was read where one was.

    While a command has them open, it computes, and says so where that takes long. Captures of
    which a file is torn are left out.

    Raises TraceNotFound, UsageError, or StoreError: also where all that `scope` names is left out.
    """
    source = locate(source)
    target: Path = source.path
    result: IngestResult | None = None
    messages: list[str] = []
    if not is_ingested(source.path):
        target, result, messages = bring_up_to_date(source, is_command=is_command)
    with waiting("computing") if is_command else contextlib.nullcontext():
        con = store.open(target, summaries=summary_versions(), writable=source.writable)
        faults = store.left_out(con)
        if is_command:
            remember(con, target if is_store(target) and not faults else None)
        try:
            mine = replace(scope, run=result.run) if result else scope
            damage = [damages for key, damages in faults.items() if mine.has(*key)]
            if damage and not any(
                mine.has(one.run, one.capture) for one in store.opened_over(con, target)
            ):
                raise StoreError(damage[0])
            if mirror.url_behind(target) is not None:  # its files came with the first look
                messages = [*messages, *kept_within_limit(target)]
            left_out = tuple(Message("left out: {told}", told=one) for one in faults.values())
            warnings = reading_warnings(target, con, mine)
            yield OpenTables(
                con, target, result, [*messages, *left_out], warnings, source.memory_bytes,
                left_out, bool(damage),
            )  # fmt: skip
        finally:
            con.close()


def locate(source: Source) -> Source:
    """The source, with stores in object storage as their mirrors on this machine. Raises
    StoreError, also where a URL is no store, and TraceNotFound where the current folder is gone."""
    store_path = None if source.store is None else mirror.local(source.store)
    here = replace(source, path=read_from(source.path), store=store_path)
    for path in (here.path, here.store):
        try:
            (path or Path("/")).absolute()
        except FileNotFoundError:
            raise TraceNotFound(
                f"{path}: the current folder was removed: change to one that is there"
            ) from None
    return here


def place_of(path: Path) -> str:
    """What a person calls a path: the URL, where it is one or a mirror of one."""
    return url_of(path) or mirror.url_behind(path) or str(path)


def read_from(path: Path) -> Path:
    """The mirror of a URL that is a store; any other path as it is. Raises StoreError."""
    place = mirror.local(path)
    if place != path and not is_store(place):
        raise StoreError(f"{mirror.url_behind(place)}: no store there: ingest a profile into it")
    return place


def bring_up_to_date(
    source: Source, *, is_command: bool = True
) -> tuple[Path, IngestResult, list[str]]:
    """Ingest a profile folder into its store; returns the store, what was done, what to tell.
    Raises UsageError for a store, else as `ingest`.

    A command's process is its own; any other may use pandas for itself. Where nothing is to be
    read, neither pyarrow nor numpy is loaded."""
    # Here, because an answer from a store needs none of what reads profiles.
    from npuscope.analysis.summaries import summarise
    from npuscope.collector.engines.worker import spare_pandas
    from npuscope.collector.ingest.ingest import ingest
    from npuscope.collector.selection import some_spans
    from npuscope.collector.store import cache

    source = locate(source)
    if is_ingested(source.path):
        raise UsageError(f"{source.path}: already ingested: give a profile folder")
    target = source.store or cache.own_store(source.path)

    def began(plan: Plan) -> None:
        if is_command and plan.tasks:
            spare_pandas()
        # Before anything is read: a reading that is killed leaves no store of unknown origin.
        if source.store is None:
            cache.remember_use(target, source.path)

    with waiting(f"looking for profiles in {source.path}"), reading(began) as progress:
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
        f"rank {m.rank} of {m.capture} was removed from the source: dropped" for m in result.drops
    ]
    if result.absent:
        some = some_spans(result.absent)
        messages.append(f"--ranks: there is no rank {some} below {source.path}")
    if source.selection is not None and (absent := _absent_steps(target, result, source.selection)):
        messages.append(f"--steps: no rank that was asked for has step {some_spans(absent)}")
    if source.store is None:
        messages += kept_within_limit(target)
    return target, result, messages


def _absent_steps(target: Path, result: IngestResult, selection: Selection) -> Spans:
    """Steps asked for that no rank of the run has, of the ranks that were asked for; nothing where
    readers have warned of it."""
    from npuscope.collector.ingest.link import BY_STEP
    from npuscope.collector.selection import without

    if selection.steps is None or not (result.publications or result.unchanged):
        return ()
    con = store.open(target)
    try:
        everywhere = " union all ".join(f"select run, rank, step from {name}" for name in BY_STEP)
        rows = con.execute(
            f"select distinct rank, step from ({everywhere}) where run = ? and step is not null",
            [result.run],
        ).fetchall()
    finally:
        con.close()
    absent = without(selection.steps, {step for rank, step in rows if selection.has_rank(rank)})
    is_told = absent == selection.steps and not result.unchanged
    return () if is_told else absent


def kept_within_limit(in_use: Path) -> list[str]:
    """Drop what was not used for longest where the cache is too large; what to tell of it."""
    from npuscope.collector.store import cache

    return [
        f"cache over its limit: dropped the store of {gone.source}"
        for gone in cache.keep_within_limit(in_use)
    ]


def spread(source: Source, shard: str | None, engine: str, address: str | None) -> Source:
    """The source, read by one of several processes or on a cluster. Raises UsageError."""
    if engine == "local" and shard is None:
        return replace(source, address=address)
    how = f"--shard {shard}" if shard else f"--engine {engine}"
    if shard and engine != "local":
        raise UsageError("--shard and --engine both divide the ranks: give only one")
    if source.store is None:
        raise UsageError(f"{how}: give --store DIR on storage that all of them share")
    from npuscope.collector.ingest.shards import parse_shard

    parsed = parse_shard(shard) if shard else None
    return replace(source, shard=parsed, engine=engine, address=address)


def compare_ranks(data: OpenTables, *, is_needed: bool = True) -> None:
    """Make the views of all ranks together, with a word on stderr while they are computed.

    Where memory is short, what is not needed stays out, with a warning; else a StoreError.
    """
    from npuscope.analysis.ranks.rank_views import open_across

    try:
        with waiting("comparing the ranks with each other"):
            open_across(data.target, data.con, memory_bytes=data.memory_bytes or MEMORY_BYTES)
    except duckdb.OutOfMemoryException as error:
        limit_mib = (data.memory_bytes or MEMORY_BYTES) >> 20
        reason = Message(
            "comparing the ranks takes more than {given} MiB: give more with --memory",
            given=limit_mib,
        )
        if is_needed:
            raise StoreError(f"{data.target}: {reason}") from error
        left_out = Message("waiting between ranks is left out")
        data.warnings.append(join((reason, left_out), "; "))


def reading_warnings(
    target: Path, con: duckdb.DuckDBPyConnection | None = None, scope: Scope = ALL
) -> list[str]:
    """What readers warned of the scope's run and capture, a sentence per warning with the ranks it
    concerns, and their run where there are several; of those that `con` was opened over."""
    read = store.readings_of(manifests(target)) if con is None else store.readings(con, target)
    mine = [one for one in read if scope.has(one.run, one.capture)]
    is_several = len({one.run for one in mine}) > 1
    concerned: dict[tuple[str, str], list[int]] = {}
    for one in mine:
        for warning in map(restore_text, one.warnings):
            concerned.setdefault((one.run, warning), []).append(one.rank)
    warnings: list[str] = []
    for (run, warning), ranks in concerned.items():
        place = ranks_named(ranks)
        if is_several:
            place = Message("run {run}, {place}", run=run, place=place)
        warnings.append(Message("{place}: {note}", place=place, note=warning))
    reason = Message(
        "not read: a link, or its manifest is damaged; remove it and ingest the profile again"
    )
    reasons = {} if con is None else store.left_out(con)
    keys = ((one.run, one.capture, one.rank) for one in read)
    for odd in odd_places(target, keys) if is_store(target) else ():
        run, *rest = map(folder_value, odd.parts[:2])
        if scope.has(run, *rest) and (run, *rest) not in reasons:
            warnings.append(Message("{place}: {note}", place=str(odd), note=reason))
    return warnings


def summary_versions() -> dict[str, str]:
    """Summaries of the analysis room as it computes them now."""
    return {summary.name: summary.version for summary in summaries()}


def is_ingested(path: Path) -> bool:
    """Whether the path is a store or an exported file, not a profile folder."""
    return is_store(path) or store.is_export(path)


def parse_size(text: str, option: str = "--memory") -> int:
    """Bytes of `512MB`, `4GB`, `2GiB` (powers of 1024). Raises UsageError that names the option."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in units else ""
    try:
        size = int(float(number.removesuffix(unit)) * units[unit])
    except ValueError:
        raise UsageError(f"{option} {text}: give a size such as 512MB or 4GB") from None
    if option == "--memory" and size < 64 << 20:
        raise UsageError(f"--memory {text}: at least 64MB")
    return size
