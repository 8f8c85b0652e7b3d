"""Digests of the files that a rank was read from: whether one whose time changed did itself.

Nobody is kept out by them, so a fast hash does: XXH3, of the extra `fast`, takes a quarter of the
time of SHA-256. Which of the two it was stands in the digest, and files are compared by the one
that was kept: a store is as good where the extra is missing, or came later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ..model import RankSource, SourceFile
from ..small_files import open_regular
from ..store.manifest import SourceRecord

xxh3_128: Callable[[], Any] | None = None
with suppress(ImportError):
    import xxhash

    xxh3_128 = xxhash.xxh3_128

_FAST = "xxh3-"


def digest_now(
    source: RankSource,
    file: SourceFile,
    check: Callable[[], None] = lambda: None,
    *,
    like: str | None = None,
) -> str:
    """`file_digest` of one of a rank's files, of one that many ranks share once for all of them."""
    if source.shared_by > 1:
        return _shared_digest(file.path, file.size_bytes, file.mtime_ns, like)
    return file_digest(file.path, check, like=like)


@lru_cache(maxsize=64)
def _shared_digest(path: str, size_bytes: int, mtime_ns: int, like: str | None) -> str:
    return file_digest(path, like=like)


def file_digest(
    path: str, check: Callable[[], None] = lambda: None, *, like: str | None = None
) -> str:
    """The digest of a file's content, of the same kind as `like`; '' where it cannot be read, or
    that kind is not to be had. `check` is called now and then, and may raise."""
    is_fast = xxh3_128 is not None if like is None else like.startswith(_FAST)
    if is_fast and xxh3_128 is None:
        return ""
    # Many CPUs have instructions for SHA-256; of its digests the first half is kept.
    state: Any = xxh3_128() if is_fast and xxh3_128 else hashlib.sha256(usedforsecurity=False)
    try:
        with open_regular(path) as file:  # it may have been replaced by a pipe
            while chunk := file.read(1 << 20):
                check()
                state.update(chunk)
    except OSError:
        return ""
    return f"{_FAST if is_fast else ''}{state.hexdigest()[:32]}"


def is_same(before: SourceRecord, now: SourceRecord) -> bool:
    """Whether a file is as it was: by its digests or, where these are of two kinds, by its size and
    time. One that can no longer be read has no digest, and is not as it was."""
    is_gone = not (before.digest and now.digest)
    if is_gone or before.digest.startswith(_FAST) == now.digest.startswith(_FAST):
        return before.digest == now.digest
    return (before.size_bytes, before.mtime_ns) == (now.size_bytes, now.mtime_ns)
