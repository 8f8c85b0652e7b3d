"""What an ingest has to do: which ranks are new, changed or lack what is asked for, or are gone.

What an ingest was asked for is remembered with the run: whoever only wants up-to-date tables
(`report PATH`) reads ranks that are new the same way, and completes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from .. import schema
from ..discover.captures import Assignment, KnownCapture, assign
from ..discover.expert_choice import chosen_folders
from ..discover.expert_folders import current_loads, expert_holders, recorded_files, with_loads
from ..discover.kineto_files import has_same_rules, with_rules
from ..discover.roles import role_of
from ..discover.search import Discovery, Problem
from ..discover.train_logs import current_log, holders, logged_file, with_log
from ..model import RankSource, storable
from ..selection import Selection
from ..small_files import read_own
from ..store.compact_files import torn
from ..store.folder_handles import handle
from ..store.manifest import (
    Manifest,
    SourceRecord,
    folder_name,
    manifests,
    rank_folder,
    read_manifest,
    write_atomically,
)
from ..store.store import replace_manifest
from .digests import digest_now
from .read_rank import RankTask
from .shards import Shard, share_of

_REQUEST = "asked.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """`tasks` to read, ranks `unchanged`, `removals` from the source, `problems` to tell.

    `captures`: of each, the ranks that were asked for, all shards' together.
    """

    run: str
    tasks: tuple[RankTask, ...]
    unchanged: tuple[Manifest, ...]
    removals: tuple[Manifest, ...]
    problems: tuple[Problem, ...]
    captures: Mapping[str, frozenset[int]]

    @property
    def size_bytes(self) -> int:
        return sum(task.source.size_bytes for task in self.tasks)


def make_plan(
    discovery: Discovery,
    store: Path,
    *,
    path: Path,
    run: str,
    memory_bytes: int | None = None,
    force: bool = False,
    selection: Selection | None = None,
    shard: Shard | None = None,
    train_log: Path | None = None,
    expert_load: Path | None = None,
) -> Plan:
    """Compare what was discovered below `path` with what `store` holds of `run`.

    `selection` is what a rank must have: one that has less is read again, with what it has and
    what is asked for (only the latter where `force` is set). Ranks it does not name are neither
    read nor gone. None: whatever the ranks that are there have, and the others as it was asked for
    last. Of the ranks that are there `shard` takes its share, and problems are told by the first.
    `train_log` and the folder `expert_load` (None: one that is found below `path`) are read with
    one rank of each capture, see `logged_file` and `expert_folders`. Raises UsageError.
    """
    published = manifests(store, run=run)
    assignment = assign(discovery.ranks, _known_captures(published))
    remembered = selection or _earlier_selection(store, run, path)
    tasks: list[RankTask] = []
    unchanged: list[Manifest] = []
    problems_of_files = [
        (storable(problem.path), problem.message)
        for problem in discovery.problems
        if role_of(Path(problem.path).name)
    ]
    sources = [
        (capture, source)
        for capture, source in assignment.sources
        if selection is None or selection.has_rank(source.rank)
    ]
    holding = holders(assignment.sources, sources, published) if train_log else {}
    roots: dict[str, list[str]] = {}
    for capture, source in assignment.sources:
        roots.setdefault(capture, []).append(source.root)
    loads, unclear = chosen_folders(path, discovery.load_folders, roots)
    if expert_load is not None:
        loads, unclear = dict.fromkeys(roots, (expert_load,)), {}
    counting = expert_holders(
        assignment.sources, sources, published, loads, is_given=expert_load is not None
    )
    looked_at = {(capture, source.rank) for capture, source in sources}
    lost = torn(store, [m for m in published if (m.capture, m.rank) in looked_at])
    for capture, source in share_of(shard, sources) if shard else sources:
        current = read_manifest(rank_folder(store, run, capture, source.rank))
        log = train_log if holding.get(capture) == source.rank else None
        source = with_log(with_rules(source), logged_file(current, log))
        is_counting = counting.get(capture) == source.rank
        folders = loads.get(capture) if is_counting else None
        source = with_loads(source, recorded_files(current, folders))
        if is_counting and capture in unclear:
            source = replace(source, warnings=(*source.warnings, unclear[capture]))
        selection_of_rank = _asked_of(source.rank, current, selection, remembered)
        if selection_of_rank is None:
            continue
        if current and not force and current.selection.covers(selection_of_rank):
            is_there = (run, capture, source.rank) not in lost
            if is_there and is_unchanged(store, current, source):
                unchanged.append(current)
                continue
        if current and not force:
            selection_of_rank = current.selection.union(selection_of_rank)
        source = replace(
            current_loads(current_log(source, force=force), force=force),
            selection=selection_of_rank,
        )
        own = storable(source.root)
        unreadable = tuple((p, why) for p, why in problems_of_files if Path(p).is_relative_to(own))
        tasks.append(RankTask(str(store), run, capture, source, memory_bytes, force, unreadable))
    keys = {(capture, source.rank) for capture, source in assignment.sources}
    root = storable(str(path.resolve()))
    vanished = [
        m
        for m in published
        if (m.capture, m.rank) not in keys
        and Path(m.source_root).is_relative_to(root)
        and (selection is None or selection.has_rank(m.rank))
    ]
    problems = () if shard and shard.index else (*discovery.problems, *_passed_over(assignment))
    captures: dict[str, frozenset[int]] = {}
    for capture, source in sources:
        captures[capture] = captures.get(capture, frozenset()) | {source.rank}
    return Plan(run, tuple(tasks), tuple(unchanged), tuple(vanished), problems, captures)


def _passed_over(assignment: Assignment) -> Iterator[Problem]:
    for dropped, winner in assignment.passed_over:
        yield Problem(
            dropped.root,
            f"rank {dropped.rank} was also profiled at the same time in {winner.root}, which ended"
            " last and is used",
        )


def remember(store: Path, run: str, path: Path, selection: Selection) -> None:
    """Note what was asked for of the profiles below `path`."""
    file = store / folder_name("run", run) / _REQUEST
    with handle(file.parent, make=True):
        pass
    root = storable(str(path.resolve()))
    selections = _all_remembered(file)
    if selections.get(root, Selection()) != selection:
        write_atomically(file, msgspec.json.encode({**selections, root: selection}))


def _earlier_selection(store: Path, run: str, path: Path) -> Selection:
    selections = _all_remembered(store / folder_name("run", run) / _REQUEST)
    return selections.get(storable(str(path.resolve())), Selection())


def _all_remembered(file: Path) -> dict[str, Selection]:
    try:
        return read_own(file, dict[str, Selection])
    except (OSError, msgspec.MsgspecError):
        return {}


def _asked_of(
    rank: int, current: Manifest | None, selection: Selection | None, remembered: Selection
) -> Selection | None:
    """What of a rank is wanted; None where nothing is."""
    if selection is None and current is not None:
        return current.selection
    if not remembered.has_rank(rank):
        return None
    return remembered.lightly() if remembered.light else remembered.in_full()


def _known_captures(published: Sequence[Manifest]) -> list[KnownCapture]:
    spans: dict[str, tuple[int | None, int | None]] = {}
    for m in published:
        start, end = spans.get(m.capture, (None, None))
        starts = [t for t in (start, m.window_start_ns) if t is not None]
        ends = [t for t in (end, m.window_end_ns) if t is not None]
        spans[m.capture] = (min(starts, default=None), max(ends, default=None))
    return [KnownCapture(name, start, end) for name, (start, end) in spans.items()]


def is_unchanged(store: Path, manifest: Manifest, source: RankSource) -> bool:
    """Same files, sizes and times; where only times differ, the same content."""
    if manifest.reading_digest != schema.reading_digest():
        return False
    if manifest.source_root != storable(source.root) or not has_same_rules(source, manifest.rules):
        return False
    now = {storable(file.path): file for group in source.files.values() for file in group}
    then = {record.path: record for record in manifest.sources}
    if now.keys() != then.keys():
        return False
    if any(now[path].size_bytes != then[path].size_bytes for path in now):
        return False
    touched = [path for path in now if now[path].mtime_ns != then[path].mtime_ns]
    for path in touched:
        digest = then[path].digest
        if not digest or digest_now(source, now[path], like=digest) != digest:
            return False
    if touched:
        # Remember the new times, so that the content need not be compared again.
        records = [
            SourceRecord(r.path, r.size_bytes, now[r.path].mtime_ns, r.digest)
            for r in manifest.sources
        ]
        replace_manifest(store, msgspec.structs.replace(manifest, sources=records))
    return True
