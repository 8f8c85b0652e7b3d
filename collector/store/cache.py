"""Where a profile folder's own store lives, and how much disk such stores may take.

Profiles given by path go to `<user cache>/npuscope/<hash of the real path>`: nothing is written
into the user's folders. The oldest unused stores go first when all together exceed the limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from npuscope.errors import UsageError

from ..buckets import url_of
from ..model import storable
from ..small_files import read_small
from .folder_handles import below, children, delete, handle, make_private
from .folder_handles import cache_folder as cache_folder
from .manifest import MARKER, is_store, manifests, write_atomically
from .mirror import SOURCE, USE_MARK
from .sweep import size_bytes

LIMIT_BYTES = 20 << 30
_NAME = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class CachedStore:
    """A store of the cache: its name, what it was made from, its size, when it was last used."""

    name: str
    path: str
    source: str
    ranks: int
    size_bytes: int
    used_at: float


def store_of(path: Path) -> Path:
    """The store that belongs to a profile path, made or not."""
    real = os.fsencode(os.path.realpath(path))  # also of links in a circle, which lead nowhere
    return cache_folder() / hashlib.sha256(real).hexdigest()[:16]


def own_store(path: Path) -> Path:
    """As `store_of`, in a cache that this user alone may enter, where that can be had."""
    store = store_of(path)
    with contextlib.suppress(OSError):
        store.parent.parent.mkdir(parents=True, exist_ok=True)
        make_private(store.parent)
    return store


def remember_use(store: Path, source: Path) -> None:
    """Note what a cached store was made from and that it was used now, where that can be noted."""
    with contextlib.suppress(OSError):
        make_private(store)
        write_atomically(store / SOURCE, storable(str(source.resolve())).encode())
        write_atomically(store / USE_MARK, str(time.time()).encode())


def cached_stores() -> list[CachedStore]:
    """Every store of the cache, last used first."""
    folder = cache_folder()
    paths = [path for path in children(folder, "") if _NAME.fullmatch(path.name)]
    stores = [_cached_store(path) for path in paths if is_store(path) and not _is_begun(path)]
    return sorted(stores, key=lambda store: store.used_at, reverse=True)


def _is_begun(path: Path) -> bool:
    """Whether its first reading still looks for profiles, or was killed while it did."""
    return not os.path.lexists(path / SOURCE) and not manifests(path)


def _cached_store(path: Path) -> CachedStore:
    return CachedStore(
        name=path.name,
        path=str(path),
        source=_read(path / SOURCE) or "unknown",
        ranks=len(manifests(path)),
        size_bytes=size_bytes(path),
        used_at=_seconds(_read(path / USE_MARK)),
    )


def remove(name: str) -> CachedStore:
    """Delete one cached store, named by its hash or by the profile path it was made from.

    Raises UsageError where the cache has no such store.
    """
    source = storable(str(Path(name).resolve()))
    for store in cached_stores():
        if store.name == name or store.source in (source, url_of(name)):
            _delete(Path(store.path))
            return store
    raise UsageError(f"no store {name} in {cache_folder()}: see `npuscope store list`")


def keep_within_limit(in_use: Path, *, limit_bytes: int = LIMIT_BYTES) -> list[CachedStore]:
    """Delete least recently used stores until the rest fit; the one in use stays."""
    stores = cached_stores()
    total = sum(store.size_bytes for store in stores)
    removed: list[CachedStore] = []
    for store in reversed(stores):
        if total <= limit_bytes:
            break
        if Path(store.path) != in_use:
            _delete(Path(store.path))
            total -= store.size_bytes
            removed.append(store)
    return removed


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError), handle(path.parent) as at:
        with below(at, path.name) as inner, contextlib.suppress(FileNotFoundError):
            os.unlink(MARKER, dir_fd=inner)  # from here on it is no store to anybody
        delete(at, path.name)


def _read(path: Path) -> str:
    try:
        return read_small(path, follow_links=False).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
