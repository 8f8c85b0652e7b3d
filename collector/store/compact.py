"""Merge the small segments of many ranks into few large files.

    rank=0/<generation>/kernels.parquet  ─┐
    rank=1/<generation>/kernels.parquet  ─┼─▶  compact-<id>/kernels-0.parquet   ranks 0, 1, 2, ...
    rank=2/<generation>/kernels.parquet  ─┘

Rows stand in order of ranks, so that a query for one rank reads that part of the file only. Nothing
that is published changes: the merged files are written aside, then `compacted.json` is replaced
once (see `compact_files`). Killed at any moment, it leaves the capture as it was. Segments
that were merged stay for readers of the moment until a sweep.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import duckdb

from npuscope.errors import StoreError

from ..literals import file_literal, sql_literal
from ..small_files import crc32_of
from ..staging import SPILL, connect, scalar
from . import mirror
from .batches import COMPACT_FOLDER, Batch, SharedFile
from .compact_files import (
    CompactFiles,
    Use,
    exchange_compacted,
    in_use,
    read_compacted,
    segment,
    torn_advice,
)
from .folder_handles import captures, discard, make_staging, require_regular, touch
from .manifest import Manifest, capture_manifests, create_store, folder_value, publish_folder
from .space import is_out_of_space
from .store import PARQUET

TARGET_BYTES = 256 << 20
MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of one capture: its ranks, and how many files held the merged rows."""

    run: str
    capture: str
    rank_count: int
    files_before: int
    files_after: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file with rows of `ranks` that count: their own segment, or one of several in `use`."""

    path: str
    ranks: tuple[int, ...]
    row_count: int
    size_bytes: float
    crc32: int | None
    use: Use | None = None


# Pieces whose rows can stand in one file: a table, the version of a summary, the schema's digest.
_Key = tuple[str, str, str]


def compact(
    store: Path,
    *,
    target_bytes: int = TARGET_BYTES,
    memory_bytes: int = MEMORY_BYTES,
    done: Callable[[Compaction], None] = lambda compaction: None,
) -> list[Compaction]:
    """Merge what is smaller than half of `target_bytes`, capture by capture.

    Returns the captures in which anything was merged. Raises StoreError where its disk is full, and
    after all others where a capture is damaged or cannot be written; what was merged stays.
    """
    mirror.refresh(store, is_needed=True)
    create_store(store)
    compactions: list[Compaction] = []
    faults: list[str] = []
    for folder in captures(store):
        compaction = None
        try:
            compaction = _again(folder, target_bytes, memory_bytes)
        except StoreError as error:
            faults.append(str(error))
        except (OSError, duckdb.Error) as error:
            if is_out_of_space(error):
                raise StoreError(
                    f"{store}: no space left to merge {folder.name}: merged and small files are"
                    " both kept for a day; nothing was lost, free some space and try again"
                ) from error
            reason = error.strerror if isinstance(error, OSError) else None
            faults.append(f"{folder}: cannot be compacted: {reason or error}")
        if compaction:
            compactions.append(compaction)
            done(compaction)
    if faults:
        raise StoreError("; ".join(faults))
    return compactions


def _again(folder: Path, target_bytes: int, memory_bytes: int) -> Compaction | None:
    """Compact a capture; once more where a file was swept between our look and our reading."""
    try:
        return _compact_capture(folder, target_bytes, memory_bytes)
    except duckdb.IOException as error:
        if is_out_of_space(error):
            raise
        return _compact_capture(folder, target_bytes, memory_bytes)


def _compact_capture(folder: Path, target_bytes: int, memory_bytes: int) -> Compaction | None:
    manifests = capture_manifests(folder)
    small = {
        key: pieces_to_merge
        for key, pieces in _pieces(folder, manifests).items()
        if len(
            pieces_to_merge := [piece for piece in pieces if piece.size_bytes * 2 < target_bytes]
        )
        > 1
    }
    if not small:
        return None
    for piece in (one for pieces in small.values() for one in pieces):
        # Merged, damage would have a checksum of its own.
        if piece.crc32 not in (None, crc32_of(Path(piece.path))):
            raise StoreError(f"nothing is merged: {torn_advice(piece.path)}")
    staged = make_staging(folder)
    try:
        files = list(_merge(staged, small, target_bytes, memory_bytes))
        name = f"{COMPACT_FOLDER}{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{staged.name[-12:]}"
        publish_folder(staged, name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    merged = [piece for pieces in small.values() for piece in pieces]
    try:
        _publish(folder, manifests, merged, [_place_file(file, name) for file in files])
    except OSError:  # a full disk needs the room
        batches = read_compacted(folder).batches
        if not any(file.file.startswith(f"{name}/") for one in batches for file in one.files):
            discard(folder / name)
        raise
    return Compaction(
        folder_value(folder.parent.name),
        folder_value(folder.name),
        len({rank for piece in merged for rank in piece.ranks}),
        len(merged),
        len(files),
        sum(file.size_bytes for file in files),
    )


def _pieces(folder: Path, capture_manifests: Sequence[Manifest]) -> dict[_Key, list[_Piece]]:
    """Every file that holds rows of the ranks, by what may be merged with what."""
    manifests = {manifest.rank: manifest for manifest in capture_manifests}
    pieces: dict[_Key, list[_Piece]] = defaultdict(list)
    copied: set[tuple[str, str, int]] = set()
    for use in in_use(folder, capture_manifests):
        table, version = use.file.table, use.file.version
        copied.update((table, version, rank) for rank in use.ranks)
        segments = [segment(manifests[rank], table, version) for rank in use.ranks]
        pieces[table, version, manifests[use.ranks[0]].schema_digest].append(
            _Piece(
                str(folder / use.file.file),
                use.ranks,
                sum(one.row_count for one in segments if one),
                use.file.size_bytes * len(use.ranks) / len(use.file.ranks),
                use.file.crc32,
                use,
            )
        )
    for manifest in capture_manifests:
        for table, one in (*manifest.tables.items(), *manifest.summaries.items()):
            if one.file and (table, one.version, manifest.rank) not in copied:
                path = f"{folder}/rank={manifest.rank}/{one.file}"
                pieces[table, one.version, manifest.schema_digest].append(
                    _Piece(path, (manifest.rank,), one.row_count, one.size_bytes, one.crc32)
                )
    paths = (piece.path for capture_manifests in pieces.values() for piece in capture_manifests)
    files = [path.removeprefix(f"{folder}/") for path in paths]
    mirror.fetch(folder, files)
    require_regular(folder, files)
    return pieces


def _merge(
    staging: Path, small: dict[_Key, list[_Piece]], target_bytes: int, memory_bytes: int
) -> Iterator[SharedFile]:
    """Write the pieces of each key into files of about `target_bytes`."""
    number = 0
    with contextlib.closing(connect(staging, memory_bytes=memory_bytes)) as con:
        for (table, version, _), pieces in sorted(small.items()):
            expected = sum(piece.row_count for piece in pieces)
            written = 0
            for part in _parts(pieces, target_bytes):
                path = staging / f"{table}-{number}.parquet"
                number += 1
                row_count = int(scalar(con, _copy_sql(part, path)))
                written += row_count
                ranks = [rank for rank, _ in part]
                yield SharedFile(
                    path.name, table, version, row_count, path.stat().st_size, ranks, crc32_of(path)
                )
            if written != expected:
                raise StoreError(
                    f"{table}: {expected} rows expected in the merged file, {written} found:"
                    " nothing is changed; read the profiles again with --force"
                )
    shutil.rmtree(staging / SPILL, ignore_errors=True)


def _parts(pieces: Sequence[_Piece], target_bytes: int) -> Iterator[list[tuple[int, _Piece]]]:
    """Ranks in order with their pieces, cut where a file is full."""
    order = sorted(((rank, p) for p in pieces for rank in p.ranks), key=lambda pair: pair[0])
    part: list[tuple[int, _Piece]] = []
    filled = 0.0
    for rank, piece in order:
        size_bytes = piece.size_bytes / len(piece.ranks)
        if part and filled + size_bytes > target_bytes:
            yield part
            part, filled = [], 0.0
        part.append((rank, piece))
        filled += size_bytes
    yield part


def _copy_sql(part: Sequence[tuple[int, _Piece]], path: Path) -> str:
    """SQL that writes the rows of the ranks, in their order, each rank's as they stand."""
    selects: list[str] = []
    own: list[str] = []  # neighbours that have segments of their own

    def flush() -> None:
        if own:
            selects.append(_read(f"[{', '.join(own)}]"))
            own.clear()

    position = 0
    while position < len(part):
        piece = part[position][1]
        end = position + 1
        if piece.use is None:
            own.append(file_literal(piece.path))
        else:
            flush()
            while end < len(part) and part[end][1] is piece:
                end += 1
            ranks = ", ".join(str(rank) for rank, _ in part[position:end])
            selects.append(f"{_read(file_literal(piece.path))} where rank in ({ranks})")
        position = end
    flush()
    target = sql_literal(str(path))
    return f"copy ({' union all '.join(selects)}) to {target} ({PARQUET})"


def _read(files: str) -> str:
    return f"select * from read_parquet({files}, hive_partitioning = false)"


def _place_file(file: SharedFile, folder: str) -> SharedFile:
    return SharedFile(
        f"{folder}/{file.file}",
        file.table,
        file.version,
        file.row_count,
        file.size_bytes,
        file.ranks,
        file.crc32,
    )


def _publish(
    folder: Path, manifests: Sequence[Manifest], merged: Sequence[_Piece], files: list[SharedFile]
) -> None:
    """Make readers take the merged files; what they replace begins its grace period before."""
    for piece in merged:
        touch(Path(piece.path))
    ranks = {rank for file in files for rank in file.ranks}
    generations = {m.rank: m.generation for m in manifests if m.rank in ranks}
    replaced = {piece.use.file.file for piece in merged if piece.use}

    def with_ours(former: CompactFiles) -> CompactFiles:
        # Another compaction may have published meanwhile: what it merged stays.
        others = _prune(folder, replaced, former)
        return CompactFiles(uuid.uuid4().hex, [*others, Batch(generations, files)])

    exchange_compacted(folder, with_ours)


def _prune(folder: Path, replaced: set[str], former: CompactFiles) -> Iterator[Batch]:
    """Merged before, with the files that anybody reads from, the `replaced` ones apart."""
    manifests = capture_manifests(folder)
    used = {use.file.file for use in in_use(folder, manifests, former)} - replaced
    for batch in former.batches:
        files = [file for file in batch.files if file.file in used]
        ranks = {rank for file in files for rank in file.ranks}
        if files:
            generations = {rank: g for rank, g in batch.generations.items() if rank in ranks}
            yield Batch(generations, files)
