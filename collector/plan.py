"""What an ingest has to do: which ranks are new or changed, as they were, or gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from . import schema
from .captures import KnownCapture, assign
from .discover import Discovery, Problem
from .manifest import Manifest, SourceRecord, manifests, rank_folder, read_manifest
from .model import RankSource
from .read_rank import RankTask, file_digest
from .store import replace_manifest


@dataclass(frozen=True, slots=True)
class Plan:
    """`tasks` to read, ranks `unchanged` or `vanished` from the source, `problems` to tell."""

    run: str
    tasks: tuple[RankTask, ...]
    unchanged: tuple[Manifest, ...]
    vanished: tuple[Manifest, ...]
    problems: tuple[Problem, ...]

    @property
    def size_bytes(self) -> int:
        return sum(task.source.size_bytes for task in self.tasks)


def make_plan(
    discovery: Discovery,
    store: Path,
    *,
    path: Path,
    run: str,
    memory_bytes: int,
    force: bool = False,
) -> Plan:
    """Compare what was discovered below `path` with what `store` holds of `run`."""
    published = manifests(store, run=run)
    assignment = assign(discovery.ranks, _known_captures(published))
    tasks: list[RankTask] = []
    unchanged: list[Manifest] = []
    for capture, source in assignment.chosen:
        current = read_manifest(rank_folder(store, run, capture, source.rank))
        if current and not force and _is_unchanged(store, current, source):
            unchanged.append(current)
        else:
            tasks.append(RankTask(str(store), run, capture, source, memory_bytes))
    wanted = {(capture, source.rank) for capture, source in assignment.chosen}
    root = path.resolve()
    vanished = [
        m
        for m in published
        if (m.capture, m.rank) not in wanted and Path(m.source_root).is_relative_to(root)
    ]
    problems = list(discovery.problems)
    problems += [
        Problem(
            dropped.root,
            f"rank {dropped.rank} was also profiled at the same time in {kept.root}, "
            "which ended last and is taken",
        )
        for dropped, kept in assignment.passed_over
    ]
    return Plan(run, tuple(tasks), tuple(unchanged), tuple(vanished), tuple(problems))


def _known_captures(published: Sequence[Manifest]) -> list[KnownCapture]:
    spans: dict[str, tuple[int | None, int | None]] = {}
    for m in published:
        start, end = spans.get(m.capture, (None, None))
        starts = [t for t in (start, m.window_start_ns) if t is not None]
        ends = [t for t in (end, m.window_end_ns) if t is not None]
        spans[m.capture] = (min(starts, default=None), max(ends, default=None))
    return [KnownCapture(name, start, end) for name, (start, end) in spans.items()]


def _is_unchanged(store: Path, manifest: Manifest, source: RankSource) -> bool:
    """Same files, sizes and times; where only times differ, the same content."""
    if manifest.reading_digest != schema.reading_digest():
        return False
    if manifest.source_root != source.root:
        return False
    now = {file.path: file for group in source.files.values() for file in group}
    then = {record.path: record for record in manifest.sources}
    if now.keys() != then.keys():
        return False
    if any(now[path].size_bytes != then[path].size_bytes for path in now):
        return False
    touched = [path for path in now if now[path].mtime_ns != then[path].mtime_ns]
    if any(not then[p].digest or file_digest(p) != then[p].digest for p in touched):
        return False
    if touched:
        # Remember the new times, so that the content need not be compared again.
        records = [
            SourceRecord(r.path, r.size_bytes, now[r.path].mtime_ns, r.digest)
            for r in manifest.sources
        ]
        replace_manifest(store, msgspec.structs.replace(manifest, sources=records))
    return True
