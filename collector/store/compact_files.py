"""Where a rank's rows lie: in its own segments, or in files that `compact` made of many ranks'.

    <capture>/rank=12/manifest.json          the truth: generation G of rank 12, and its segments
    <capture>/compacted.json                 generation G of ranks 0-63 also stands in ...
    <capture>/compact-<id>/kernels-0.parquet ... this file, in order of ranks

The second is only a shortcut: it counts for a rank as long as the rank's manifest still names the
generation that was copied. So nobody who publishes, replaces or drops a rank needs to know of
compaction, and a copy of what was replaced since is passed over, row by row.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from npuscope.messages import Message

from ..small_files import LIST_BYTES, crc32_of, decode, read_own
from . import mirror
from .batches import Batch, SharedFile, read_batch
from .folder_handles import require_regular
from .manifest import Manifest, Segment, by_capture, folder_value, rank_folder, update

COMPACT_FILE = "compacted.json"


class CompactFiles(msgspec.Struct, frozen=True):
    """Every compact file of a capture that is in use; `id` changes with each rewrite."""

    id: str = ""
    batches: list[Batch] = []


@dataclass(frozen=True, slots=True)
class Place:
    """A Parquet file, and the condition for its rows to count; '' where all do."""

    path: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """A file of several ranks with those that are read from it."""

    batch: Batch
    file: SharedFile
    ranks: tuple[int, ...]


def read_compacted(capture_folder: Path) -> CompactFiles:
    """A capture's compact files; none where nothing was compacted."""
    try:
        return read_own(capture_folder / COMPACT_FILE, CompactFiles, most_bytes=LIST_BYTES)
    except (OSError, msgspec.MsgspecError):
        return CompactFiles()


def exchange_compacted(
    capture_folder: Path, change: Callable[[CompactFiles], CompactFiles]
) -> None:
    """Replace a capture's list of compact files at once by what `change` makes of it."""

    def rewrite(content: bytes | None) -> bytes:
        former = CompactFiles()
        with contextlib.suppress(msgspec.MsgspecError):
            former = decode(content or b"", CompactFiles)
        return msgspec.json.encode(change(former))

    update(capture_folder / COMPACT_FILE, rewrite)


def segment(manifest: Manifest, table: str, version: str) -> Segment | None:
    """A rank's segment of a table, or of a summary in that version, where it has rows."""
    entry = manifest.tables.get(table) if not version else manifest.summaries.get(table)
    return entry if entry and entry.file and entry.version == version else None


def in_use(
    capture_folder: Path,
    rank_manifests: Collection[Manifest],
    compact_files: CompactFiles | None = None,
) -> list[Use]:
    """Files of several ranks that count for ranks of one capture; each table of a rank in one at
    most: one that `compact` made before one of ranks that were read together.

    `compact_files` is the capture's list of compact files, where it is known."""
    manifests = {manifest.rank: manifest for manifest in rank_manifests}
    together = dict.fromkeys(manifest.batch for manifest in rank_manifests if manifest.batch)
    read = (read_batch(capture_folder, name) for name in together)
    compact_files = compact_files or read_compacted(capture_folder)
    batches = [*compact_files.batches, *(batch for batch in read if batch)]
    ranks_by_table: dict[tuple[str, str], set[int]] = defaultdict(set)
    uses: list[Use] = []
    for batch in batches:
        current = {
            rank: manifests[rank]
            for rank, generation in batch.generations.items()
            if rank in manifests and manifests[rank].generation == generation
        }
        for file in batch.files:
            gone = ranks_by_table[file.table, file.version]
            ranks = tuple(
                rank
                for rank in file.ranks
                if rank in current
                and rank not in gone
                and segment(current[rank], file.table, file.version)
            )
            gone.update(ranks)
            if ranks:
                uses.append(Use(batch, file, ranks))
    return uses


def places(store: Path, manifests: Sequence[Manifest]) -> dict[str, list[Place]]:
    """Where the rows of every table and summary of the given ranks lie.

    Raises StoreError where a file is reached through a link or is none; FileNotFoundError where
    one is gone from a bucket.
    """
    located: dict[str, list[Place]] = defaultdict(list)
    for key, members in by_capture(manifests).items():
        folder = rank_folder(store, *key, 0).parent
        files: list[str] = []
        for one in _files(folder, members):
            located[one.table].append(Place(f"{folder}/{one.file}", one.condition))
            files.append(one.file)
        mirror.fetch(folder, files)
        require_regular(folder, files)
    return located


def torn(
    store: Path,
    manifests: Sequence[Manifest],
    *,
    with_content: bool = False,
    with_copies: bool = False,
) -> dict[tuple[str, str, int], str]:
    """Ranks (run, capture, number) of which a file is gone or is not as large as it was written,
    with the first such file; `with_content`: or has other bytes, for which each is read. Of a
    bucket nothing is told unless `with_copies`: those that are not here yet are got then, and a
    copy that is not whole goes, to be got again by who looks next.
    """
    missing: dict[tuple[str, str, int], str] = {}
    if mirror.url_behind(store) is not None and not with_copies:
        return missing
    for key, members in by_capture(manifests).items():
        folder = rank_folder(store, *key, 0).parent
        files = [*_files(folder, members)]
        with contextlib.suppress(FileNotFoundError):  # what could not be got is missing below
            mirror.fetch(folder, (one.file for one in files))
        for one in files:
            try:
                is_whole = (folder / one.file).lstat().st_size == one.size_bytes
                if is_whole and with_content and one.crc32 is not None:
                    is_whole = crc32_of(folder / one.file) == one.crc32
            except OSError:
                is_whole = False
            if not is_whole:
                mirror.forget(folder / one.file)
                for rank in one.ranks:
                    missing.setdefault((*key, rank), f"{folder}/{one.file}")
    return missing


def without_torn(
    store: Path, manifests: Sequence[Manifest], *, with_content: bool = False
) -> tuple[list[Manifest], dict[tuple[str, str], str]]:
    """The ranks of captures that are whole, and of those others (run, capture) whose files are torn
    what is so and what to do about it: half of a capture's ranks would be wrong numbers."""
    advice = {
        key[:2]: torn_advice(file)
        for key, file in torn(store, manifests, with_content=with_content, with_copies=True).items()
    }
    return [one for one in manifests if (one.run, one.capture) not in advice], advice


def torn_advice(file: str) -> str:
    """Whose file of a store it is that is torn, and what to do about it."""
    capture = next((one for one in Path(file).parents if one.name.startswith("capture=")), None)
    if capture is None:
        return f"{file} is damaged or missing: read the profile again with `npuscope ingest`"
    return Message(
        "run {run}, capture {capture}: {file} is damaged or missing: read the profile again with"
        " `npuscope ingest PATH --store STORE --force`, or move {folder} out of the store",
        run=folder_value(capture.parent.name),
        capture=folder_value(capture.name),
        file=file,
        folder=str(capture),
    )


@dataclass(frozen=True, slots=True)
class _File:
    """A file that holds rows of a table of `ranks`, relative to the capture's folder."""

    table: str
    file: str
    size_bytes: int
    ranks: tuple[int, ...]
    crc32: int | None
    condition: str = ""


def _files(folder: Path, members: Sequence[Manifest]) -> Iterator[_File]:
    """Every file that is read of a capture's ranks."""
    copied: dict[str, set[int]] = defaultdict(set)
    for use in in_use(folder, members):
        shared = use.file
        copied[shared.table].update(use.ranks)
        yield _File(
            shared.table, shared.file, shared.size_bytes, use.ranks, shared.crc32, _condition(use)
        )
    for manifest in members:
        rank = manifest.rank
        for segments in (manifest.tables, manifest.summaries):
            for table, one in segments.items():
                if one.file and rank not in copied[table]:
                    file = f"rank={rank}/{one.file}"
                    yield _File(table, file, one.size_bytes, (rank,), one.crc32)


def _condition(use: Use) -> str:
    """SQL that holds for the rows of the ranks in use, by the shorter of two lists."""
    others = set(use.file.ranks) - set(use.ranks)
    if not others:
        return ""
    if len(others) < len(use.ranks):
        return f"rank not in ({', '.join(map(str, sorted(others)))})"
    return f"rank in ({', '.join(map(str, use.ranks))})"
