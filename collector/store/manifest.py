"""What a store knows of one rank: the files of its current generation and where they came from.

A manifest is one small JSON file, replaced atomically: readers see a rank's tables all at once or
not at all, and find them through manifests only, never by listing folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from npuscope.errors import StoreError
from npuscope.messages import StoredText, restore_text

from .. import schema
from ..model import Option, storable
from ..selection import Selection
from ..small_files import LIST_BYTES, read_own, read_small
from . import mirror
from .batches import BATCH, Batch, read_batch
from .folder_handles import (
    below,
    child_names,
    children,
    handle,
    staging_name,
    sync,
    unlink,
    write_whole,
)

MANIFEST = "manifest.json"
INDEX = "index.json"
MARKER = "npuscope-store.json"
# In the second line of a page that carries tables.
BUNDLE_HEAD = b"<!-- npuscope bundle 1 -->"
DROPPED_FILE = "dropped"
# 2: a rank's rows may stand in files that it shares with others, or be a selection only.
# 3: they may have been written into such files, see `batches`.
LAYOUT = 3
_READABLE = (1, 2, 3)
_GENERATION = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(schema.OWN_NAME)
_VERSION = re.compile("[A-Za-z0-9_-]{1,64}")


class Segment(msgspec.Struct, frozen=True):
    """One Parquet file, relative to the rank's folder; `version` names a summary's rule. `crc32` is
    of its bytes; None in older manifests, and of a share of a file of several ranks."""

    file: str
    row_count: int
    size_bytes: int
    version: str = ""
    crc32: int | None = None


class SourceRecord(msgspec.Struct, frozen=True):
    """A file that was read, as it was then."""

    path: str
    size_bytes: int
    mtime_ns: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """One rank's current generation and the story of its reading.

    `options`: what its profiler was told; `unverified`: keys of what was read in ways that no real
    profile confirmed (`readers.unverified_forms`). Both are None where nothing tells.
    `kept_warnings` are messages as they are stored; plain sentences in older manifests. `batch`:
    the folder of the ranks that it was read with, whose files hold its rows ('': it has files of
    its own).
    """

    run: str
    capture: str
    rank: int
    generation: str
    npuscope_version: str
    schema_digest: str
    reading_digest: str
    published_at: str
    rank_origin: str
    source_root: str
    sources: list[SourceRecord]
    window_start_ns: int | None
    window_end_ns: int | None
    tables: dict[str, Segment]
    summaries: dict[str, Segment]
    rules: dict[str, str] = {}
    kept_warnings: list[StoredText] = msgspec.field(default_factory=list, name="warnings")
    failed_files: dict[str, str] = {}
    rows_lost: int = 0
    bytes_lost: int = 0
    read_seconds: float = 0.0
    selection: Selection = Selection()
    options: dict[str, Option] | None = None
    unverified: list[str] | None = None
    batch: str = ""

    @property
    def warnings(self) -> list[str]:
        """What readers warned of."""
        return list(map(restore_text, self.kept_warnings))

    def __post_init__(self) -> None:
        list(map(restore_text, self.kept_warnings))  # refuses what no reader writes
        if not _GENERATION.fullmatch(self.generation):
            raise ValueError(f"no name of a generation: {self.generation!r}")
        if self.batch and not BATCH.fullmatch(self.batch):
            raise ValueError(f"no folder of a batch: {self.batch!r}")
        require_own_files(self.generation, {**self.tables, **self.summaries})


def require_own_files(folder: str, segments: Mapping[str, Segment]) -> None:
    """Raises ValueError where a table's name or its file is none that a store has: files are
    `<folder>/<name>.parquet`, or with a version before the dot."""
    for name, segment in segments.items():
        if not _is_name(name):
            raise ValueError(f"no name of a table: {name!r}")
        if segment.file and segment.file != f"{folder}/{name}.parquet":
            before, after = f"{folder}/{name}.", ".parquet"
            version = segment.file.removeprefix(before).removesuffix(after)
            if f"{before}{version}{after}" != segment.file or not _VERSION.fullmatch(version):
                raise ValueError(f"no file of the table {name}: {segment.file!r}")


@lru_cache(maxsize=1_000)
def _is_name(name: str) -> bool:
    """Asked for each table of each rank."""
    return _NAME.fullmatch(name) is not None


class IndexEntry(msgspec.Struct, frozen=True):
    """A manifest beside the state its file had: used only while the file is still in that state."""

    inode: int
    size_bytes: int
    mtime_ns: int
    manifest: Manifest


class Index(msgspec.Struct, frozen=True):
    """Cache of a capture's manifests; `version` counts its rewrites."""

    version: int
    ranks: dict[str, IndexEntry]


def folder_name(key: str, value: str | int) -> str:
    """`run=<percent-encoded>`: any name becomes one harmless folder name."""
    return f"{key}={quote(str(value), safe='')}"


def folder_value(name: str) -> str:
    """The name that `folder_name` encoded."""
    return unquote(name.partition("=")[2])


def rank_folder(store: Path, run: str, capture: str, rank: int) -> Path:
    """Where a rank's manifest and generations lie."""
    return store / folder_name("run", run) / folder_name("capture", capture) / f"rank={rank}"


def is_store(path: Path) -> bool:
    """Whether the marker is there."""
    return (path / MARKER).is_file()


def create_store(path: Path) -> None:
    """Make `path` a store of this layout unless it is one. Raises StoreError where it holds other
    things."""
    if is_store(path):
        if check_layout(path) != LAYOUT:
            write_atomically(path / MARKER, msgspec.json.encode({"layout": LAYOUT}))
        return
    if storable(str(path)) != str(path):
        raise StoreError(
            f"{storable(str(path))}: this name is not UTF-8, which a store's must be: give another"
            " folder to --store"
        )
    if path.exists() and (not path.is_dir() or _is_foreign(path)):
        named = mirror.url_behind(path) or path
        raise StoreError(f"{named}: not a store and not empty: give a new folder to --store")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / MARKER, msgspec.json.encode({"layout": LAYOUT}))
    except OSError as error:
        raise StoreError(
            f"{path}: cannot make a store here ({error.strerror}): give --store DIR where you may"
            " write"
        ) from error


def _is_foreign(path: Path) -> bool:
    """Whether a folder holds what is not ours; another process may be making it a store now."""
    foreign = mirror.others(path)
    if foreign is None:
        foreign = [name for name in os.listdir(path) if not name.startswith(".tmp-")]
    return bool(foreign) and not is_store(path)


def check_layout(path: Path) -> int:
    """A store's layout. Raises StoreError where the marker is unreadable or of a newer one."""
    try:
        layout = read_own(path / MARKER, dict[str, object])["layout"]
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise StoreError(f"{path}: its {MARKER} cannot be read: {error}") from error
    if not isinstance(layout, int) or layout not in _READABLE:
        raise StoreError(
            f"{path}: store layout {layout}, this npuscope reads {LAYOUT}: ingest again or upgrade"
        )
    return layout


def manifests(store: Path, *, run: str | None = None, capture: str | None = None) -> list[Manifest]:
    """Every published rank's manifest, in order of run, capture and rank.

    Unreadable manifests are passed over, and whatever is reached through a link: a manifest is
    written whole or not at all, so such a file is foreign damage; the rank is then missing until it
    is ingested again.
    """
    mirror.refresh(store)
    manifests: list[Manifest] = []
    for run_folder in children(store, "run="):
        if run is not None and folder_value(run_folder.name) != run:
            continue
        for capture_folder in children(run_folder, "capture="):
            if capture is None or folder_value(capture_folder.name) == capture:
                manifests += capture_manifests(capture_folder)
    return sorted(manifests, key=lambda m: (m.run, m.capture, m.rank))


def capture_manifests(folder: Path) -> list[Manifest]:
    """Manifests of one capture: from its index where that is still true, else from the files.

    None of a capture that is being dropped.
    """
    if (folder / DROPPED_FILE).exists():
        return []
    index = read_index(folder)
    manifests: list[Manifest] = []
    batches: dict[str, Batch | None] = {}
    run, capture = folder_value(folder.parent.name), folder_value(folder.name)
    for rank in child_names(folder, "rank="):
        try:
            state = Path(f"{folder}/{rank}/{MANIFEST}").stat(follow_symlinks=False)
            entry = index.ranks.get(rank)
            current = (state.st_ino, state.st_size, state.st_mtime_ns)
            if entry and (entry.inode, entry.size_bytes, entry.mtime_ns) == current:
                manifest = entry.manifest
            else:
                manifest = read_own(folder / rank / MANIFEST, Manifest)
        except (OSError, msgspec.MsgspecError):
            continue
        if manifest.batch and manifest.batch not in batches:
            batches[manifest.batch] = read_batch(folder, manifest.batch)
        of = (manifest.run, manifest.capture, f"rank={manifest.rank}")
        if of == (run, capture, rank) and _has_rows(manifest, batches.get(manifest.batch)):
            manifests.append(manifest)
    return manifests


def _has_rows(manifest: Manifest, batch: Batch | None) -> bool:
    """Whether it has files of its own, or its batch can be read and is of its generation."""
    generation = batch.generations.get(manifest.rank) if batch else None
    return not manifest.batch or generation == manifest.generation


def by_capture(manifests: Iterable[Manifest]) -> dict[tuple[str, str], list[Manifest]]:
    """Manifests of each run and capture."""
    members: dict[tuple[str, str], list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        members[manifest.run, manifest.capture].append(manifest)
    return dict(members)


def odd_places(store: Path, keys: Iterable[tuple[str, str, int]]) -> list[Path]:
    """Where a run, a capture or a rank should stand in a store and none of the `keys` (run,
    capture, rank) names one: a link, or a damaged manifest. Relative to the store."""
    read: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run_name, capture_name, number in keys:
        read[run_name, capture_name].add(f"rank={number}")
    odd = _links(store, "run=")
    for run in children(store, "run="):
        odd += _links(run, "capture=")
        for capture in children(run, "capture="):
            odd += _links(capture, "rank=")
            if not (capture / DROPPED_FILE).exists():
                names_of = read[folder_value(run.name), folder_value(capture.name)]
                ranks = [capture / rank for rank in child_names(capture, "rank=")
                         if rank not in names_of]  # fmt: skip
                odd += [rank for rank in ranks if os.path.lexists(rank / MANIFEST)]
    return [path.relative_to(store) for path in odd]


def _links(folder: Path, prefix: str) -> list[Path]:
    """What is named as a folder of a store and is none."""
    with contextlib.suppress(OSError):
        named = {name for name in os.listdir(folder) if name.startswith(prefix)}
        return [folder / name for name in sorted(named.difference(child_names(folder, prefix)))]
    return []


def _is_of(manifest: Manifest, folder: Path) -> bool:
    """Whether a manifest is of the rank in whose folder it stands."""
    capture, rank = folder.parent, f"rank={manifest.rank}"
    run = capture.parent.name
    return (rank, manifest.capture, manifest.run) == (
        folder.name,
        folder_value(capture.name),
        folder_value(run),
    )


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of one rank's folder, or None where nothing is published there."""
    try:
        manifest = read_own(folder / MANIFEST, Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    batch = read_batch(folder.parent, manifest.batch) if manifest.batch else None
    return manifest if _is_of(manifest, folder) and _has_rows(manifest, batch) else None


def summary_versions(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Summaries that all the ranks have in one version."""
    shared: dict[str, str] = {}
    for name in sorted({name for m in manifests for name in m.summaries}):
        versions = {m.summaries[name].version if name in m.summaries else "" for m in manifests}
        if len(versions) == 1:
            shared[name] = versions.pop()
    return shared


def read_index(folder: Path) -> Index:
    """A capture's index; an empty one where there is none that can be read."""
    try:
        return read_own(folder / INDEX, Index, most_bytes=LIST_BYTES)
    except (OSError, msgspec.MsgspecError):
        return Index(0, {})


def write_index(folder: Path) -> None:
    """Rewrite a capture's index from its manifests."""
    entries: dict[str, IndexEntry] = {}
    for rank in children(folder, "rank="):
        path = rank / MANIFEST
        try:
            state = path.stat(follow_symlinks=False)
            manifest = read_own(path, Manifest)
        except (OSError, msgspec.MsgspecError):
            continue
        entries[rank.name] = IndexEntry(state.st_ino, state.st_size, state.st_mtime_ns, manifest)
    write_atomically(
        folder / INDEX, msgspec.json.encode(Index(read_index(folder).version + 1, entries))
    )


def publish_folder(staging: Path, name: str) -> None:
    """Give a written staging folder its lasting name; from there on it is as open to others as the
    folder that it lies in. What is in it survives a power cut."""
    with handle(staging.parent) as at, below(at, staging.name) as inner:
        for file in os.listdir(inner):
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=inner)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.fchmod(inner, stat.S_IMODE(os.fstat(at).st_mode))
        sync(inner)
        os.rename(staging.name, name, src_dir_fd=at, dst_dir_fd=at)
        sync(at)
    mirror.upload(staging.parent / name)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it appears whole or not at all, and survives a power cut; of a bucket's
    mirror, in the bucket first."""
    if not mirror.update(path, lambda _: content):
        write_whole(path, content, staging_name())


def update(path: Path, change: Callable[[bytes | None], bytes | None]) -> None:
    """Put what `change` makes of a small file's content (None: there is none) in its place; it
    stays where that is None.

    In a bucket nobody's write in between is lost: then `change` is asked again, with what is there
    now. In a folder the last replacement wins.
    """
    if mirror.update(path, change):
        return
    before: bytes | None = None
    with contextlib.suppress(FileNotFoundError), handle(path.parent) as at:
        before = read_small(path.name, most_bytes=LIST_BYTES, follow_links=False, at=at)
    content = change(before)
    if content is not None:
        write_whole(path, content, staging_name())


def remove(path: Path, is_expected: Callable[[bytes], bool] = lambda content: True) -> bool:
    """Remove a small file of a store where its content is as expected; returns whether it is gone.

    In a bucket, an empty object says so: putting it is one step, which a condition can be put on.
    """
    gone = mirror.remove(path, is_expected)
    if gone is None:
        unlink(path)
        return True
    return gone


def sync_folder(folder: Path) -> None:
    """Make names in a folder survive a power cut, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
