"""A store in a bucket, as a folder of the cache that is a store itself.

    s3://BUCKET/PREFIX/run=R/capture=C/rank=12/manifest.json        the truth: one put publishes
                                              /<generation>/<table>.parquet      never changes

    <cache>/<hash of the URL>/run=R/capture=C/rank=12/manifest.json  as of the last `refresh`
                                                     /<generation>/  as far as it was read

Whoever lists a store asks the bucket first, whoever reads files gets those that are not here yet,
whoever publishes puts them into the bucket, and last of all the manifest. A mirror is a cached
store like any other: `store list` shows it, the cache's limit holds for it, it may be deleted at
any time. Of a folder that mirrors nothing all of this is nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from npuscope.errors import StoreError

from ..buckets import Bucket, Object, bucket_of, endpoint_of, url_of
from ..small_files import read_own, read_small
from .folder_handles import (
    cache_folder,
    children,
    handle,
    make_private,
    touch,
    unlink,
    write_whole,
)

SOURCE = "npuscope-source.txt"
USE_MARK = "npuscope-used.txt"
TAGS = "npuscope-tags.json"
_LOCK = "npuscope-lock"
_CAPTURE = r"run=[^/\0]+/capture=[^/\0]+"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
# What is exchanged, and what tells of files that ranks share.
_SMALL = re.compile(
    rf"npuscope-store\.json|dropped\.json|{_CAPTURE}/(compacted\.json|dropped"
    rf"|rank=\d+/manifest\.json|batch-{_NAME}/batch\.json)"
)
_FILE = re.compile(rf"{_CAPTURE}/(rank=\d+/{_NAME}|(batch|compact)-{_NAME})/{_NAME}\.parquet")
# Who looks again so soon finds what is there.
_FRESH_S = 1.0
_seen_s: dict[Path, float] = {}


def local(path: Path) -> Path:
    """The mirror of a store's URL, up to date; any other path as it is. Raises StoreError."""
    url = url_of(path)
    if url is None:
        return path
    endpoint = endpoint_of(url)
    name = hashlib.sha256(f"{url}\0{endpoint}".encode()).hexdigest()[:16]
    root = cache_folder() / name
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        make_private(root.parent)
        make_private(root)
        write_whole(root / SOURCE, url.encode(), _temporary())
        write_whole(root / USE_MARK, str(time.time()).encode(), _temporary())
    except OSError as error:
        raise StoreError(
            f"{url}: its files cannot be kept in {root} ({error.strerror}): set XDG_CACHE_HOME to a"
            " folder that you may write"
        ) from error
    _seen_s.pop(root, None)
    refresh(root)
    return root


def url_behind(path: Path) -> str | None:
    """The URL of a mirror, or of the one that a path lies in; None where it is of no mirror."""
    root = _root(path)
    return root[1] if root else None


def _root(path: Path) -> tuple[Path, str] | None:
    cache = cache_folder()
    if not path.is_relative_to(cache) or path == cache:
        return None
    root = cache / path.relative_to(cache).parts[0]
    try:
        url = url_of(read_small(root / SOURCE, follow_links=False).decode())
    except (OSError, UnicodeDecodeError):
        return None
    return (root, url) if url else None


def _far(path: Path, names: re.Pattern[str]) -> tuple[Path, Bucket, str] | None:
    """Mirror, bucket and key of a file that is kept in a bucket."""
    bucket = _root(path)
    if bucket is None:
        return None
    root, url = bucket
    key = path.relative_to(root).as_posix()
    return (root, bucket_of(url, endpoint_of(url)), key) if names.fullmatch(key) else None


def others(path: Path) -> list[str] | None:
    """Objects below a mirror's URL; None where a path is no mirror. Where another process made it
    a store meanwhile, the mirror is one, too."""
    root = _root(path)
    if root is None:
        return None
    objects = list(bucket_of(root[1], endpoint_of(root[1])).list())
    refresh(path, is_needed=True)
    return objects


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[None]:
    """One process of this machine at a time changes what a mirror says."""
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def refresh(store: Path, *, is_needed: bool = False) -> None:
    """Bring a mirror's manifests up to date, unless that was done just now; `is_needed`: also then.

    Raises StoreError where the bucket cannot be asked.
    """
    pair = _root(store)
    if pair is None:
        return
    root, url = pair
    if not is_needed and time.monotonic() - _seen_s.get(root, -_FRESH_S) < _FRESH_S:
        return
    bucket = bucket_of(url, endpoint_of(url))
    with _lock(root):
        objects = {key: one for key, one in bucket.list().items() if _SMALL.fullmatch(key)}
        tags = _read_tags(root)
        changed = {
            key for key, one in objects.items()
            if one.size_bytes and (tags.get(key) != one.tag or not (root / key).is_file())
        }  # fmt: skip
        objects_here = bucket.get(changed)
        gone = _here(root) - {key for key, one in objects.items() if one.size_bytes}
        gone |= changed - objects_here.keys()
        if changed or gone:
            # Killed in the middle, what is not told of is asked for again.
            _write_tags(root, {k: t for k, t in tags.items() if k not in changed | gone})
            # What tells of shared files comes before the manifests that name them.
            for key in sorted(objects_here, key=lambda key: (key.endswith("/manifest.json"), key)):
                _apply(root, key, objects_here[key][0])
            for key in gone:
                _apply(root, key, None)
            tags_here = {key: tag for key, tag in tags.items() if key not in gone}
            _write_tags(root, {**tags_here, **{key: tag for key, (_, tag) in objects_here.items()}})
        _seen_s[root] = time.monotonic()


def _here(root: Path) -> set[str]:
    """Keys of what a mirror has of what is exchanged."""
    files = [root / "npuscope-store.json", root / "dropped.json"]
    for capture in (one for run in children(root, "run=") for one in children(run, "capture=")):
        files += [capture / "compacted.json", capture / "dropped"]
        files += [rank / "manifest.json" for rank in children(capture, "rank=")]
        files += [batch / "batch.json" for batch in children(capture, "batch-")]
    return {path.relative_to(root).as_posix() for path in files if path.is_file()}


def _apply(root: Path, key: str, content: bytes | None) -> None:
    """Make a small file of a mirror what the bucket has; readers of the moment keep the files that
    it named before for a while."""
    path = root / key
    with handle(path.parent, make=True):
        pass
    for folder in (path.parent, path.parent.parent):
        if folder.is_relative_to(root) and folder != root:
            for one in children(folder, ""):
                touch(one)
    if content:
        write_whole(path, content, _temporary())
    else:
        unlink(path)


def update(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    """As `manifest.update`, where the file is kept in a bucket; returns whether it is.

    What is there is asked for first; the put holds only if it is still there.
    """
    far = _far(path, _SMALL)
    if far is None:
        return False
    root, bucket, key = far
    with _lock(root):
        written: bytes | None = None
        while True:
            content, tag = bucket.get([key]).get(key, (b"", None))
            if written is not None and content == written:
                break  # the answer to our put got lost
            written = change(content or None)
            if written is None or bucket.put(key, written, tag):
                break
        if written is not None:
            current = bucket.get([key]).get(key, (b"", ""))
            tags = _read_tags(root)
            _write_tags(root, {k: t for k, t in tags.items() if k != key})
            _apply(root, key, current[0])
            _write_tags(root, {**tags, key: current[1]})
    return True


def remove(path: Path, is_expected: Callable[[bytes], bool]) -> bool | None:
    """As `manifest.remove`, where the file is kept in a bucket; None where it is not."""
    is_gone = True

    def emptied(content: bytes | None) -> bytes | None:
        nonlocal is_gone
        is_gone = content is None or is_expected(content)
        return b"" if content is not None and is_gone else None

    return is_gone if update(path, emptied) else None


def upload(folder: Path, names: Iterable[str] | None = None) -> None:
    """Put a folder's files, or some of them, into the bucket; nothing where there is none.

    To be called before the manifest that names them is replaced.
    """
    bucket = _root(folder)
    if bucket is None:
        return
    root, url = bucket
    with os.scandir(folder) as entries:
        names_of = set(names) if names is not None else {entry.name for entry in entries}
    keys = {(folder / name).relative_to(root).as_posix(): folder / name for name in names_of}
    files = {k: p for k, p in keys.items() if _FILE.fullmatch(k) or _SMALL.fullmatch(k)}
    if files:
        bucket_of(url, endpoint_of(url)).upload(files)


def fetch(folder: Path, files: Iterable[str]) -> None:
    """Get files of a capture that a mirror does not have yet.

    Raises FileNotFoundError where one is gone: the manifests are to be read again.
    """
    bucket = _root(folder)
    if bucket is None:
        return
    root, url = bucket
    keys = ((folder / file).relative_to(root).as_posix() for file in files)
    missing = {key for key in keys if _FILE.fullmatch(key) and not (root / key).exists()}
    if not missing:
        return
    parts = {key: root / f"{_temporary()}.part{n}" for n, key in enumerate(sorted(missing))}
    try:
        gone = bucket_of(url, endpoint_of(url)).download(parts)
        for key in missing - gone:
            path = root / key
            with handle(path.parent, make=True) as at:
                os.replace(parts[key], path.name, dst_dir_fd=at)
        if gone:
            raise FileNotFoundError(errno.ENOENT, "replaced meanwhile", f"{url}/{min(gone)}")
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Delete the copy of a file that is kept in a bucket, as it is not whole: who looks next gets
    it again. Of any other file this is nothing."""
    if _far(path, _FILE) is not None:
        path.unlink(missing_ok=True)


def sweep(store: Path, needs: Callable[[Path], set[str]], *, grace_s: float) -> int:
    """Delete objects that no manifest named for so long; returns bytes freed.

    `needs` tells files of a rank's or a capture's folder that are read. What superseded a file is
    as old as the manifests beside it.
    """
    pair = _root(store)
    if pair is None:
        return 0
    root, url = pair
    bucket = bucket_of(url, endpoint_of(url))
    objects = bucket.list()
    before = time.time() - grace_s
    newest: dict[str, float] = {}
    for key, one in objects.items():
        if _SMALL.fullmatch(key):
            for folder in Path(key).parents:
                newest[str(folder)] = max(newest.get(str(folder), 0.0), one.modified_s)
    going: dict[str, Object] = {}
    named: dict[Path, set[str]] = {}
    for key, one in objects.items():
        holder = Path(key).parent.parent
        is_old = max(one.modified_s, newest.get(str(holder), 0.0)) < before
        if not is_old or not _FILE.fullmatch(key):
            continue
        if holder not in named:
            named[holder] = needs(root / holder)
        if f"{Path(key).parent.name}/{Path(key).name}" not in named[holder]:
            going[key] = one
    bucket.delete(going)
    return sum(one.size_bytes for one in going.values())


def _read_tags(root: Path) -> dict[str, str]:
    try:
        return read_own(root / TAGS, dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write_tags(root: Path, tags: dict[str, str]) -> None:
    write_whole(root / TAGS, msgspec.json.encode(tags), _temporary())


def _temporary() -> str:
    return f".tmp-mirror-{os.getpid()}-{uuid.uuid4().hex[:12]}"
