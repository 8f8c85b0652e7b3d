"""Small files of others, opened so that none of them can hang or fill whoever reads it.

A pipe is never opened (that could wait for ever), nor a device (that could do something), and a
file of terabytes, most of them holes, is refused by its size. Of a store, which may come from
somebody else, no link is followed either.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import msgspec

from .store.folder_handles import handle

# No profiler's description and no manifest comes near; a list of all ranks' manifests may.
SMALL_BYTES = 16 << 20
LIST_BYTES = 256 << 20
_PART_BYTES = 1 << 20

Content = TypeVar("Content")


def open_regular(
    path: str | Path, *, follow_links: bool = True, at: int | None = None
) -> BufferedReader:
    """A regular file, open for reading; of a folder by its handle `at`. Raises OSError for anything
    else."""
    # Before it is opened, too: opening a device may have effects.
    _require_regular(os.stat(path, dir_fd=at, follow_symlinks=follow_links), path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW, dir_fd=at)
    try:
        _require_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def decompress(raw: BufferedReader) -> BufferedReader | gzip.GzipFile:
    """A file from its beginning, unpacked where its first bytes say that it is packed: a name may
    lie."""
    begins = raw.read(2)
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if begins == b"\x1f\x8b" else raw


def read_small(
    path: str | Path,
    *,
    most_bytes: int = SMALL_BYTES,
    follow_links: bool = True,
    at: int | None = None,
) -> bytes:
    """A small file's content; of a folder by its handle `at`. Raises OSError where it is none."""
    with open_regular(path, follow_links=follow_links, at=at) as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            # By parts: asked for all at once, Python takes as much memory as there may be.
            content = bytearray()
            while len(content) <= most_bytes and (part := file.read(_PART_BYTES)):
                content += part
            if len(content) <= most_bytes:
                return bytes(content)
    why = f"larger than {most_bytes >> 20} MiB, which no such file is"
    raise OSError(errno.EFBIG, why, str(path))


def read_own(path: Path, kind: type[Content], *, most_bytes: int = SMALL_BYTES) -> Content:
    """A small JSON file of a store, where nothing is reached through a link.

    Raises OSError, and msgspec.DecodeError for other content.
    """
    with handle(path.parent) as at:
        content = read_small(path.name, most_bytes=most_bytes, follow_links=False, at=at)
    return decode(content, kind)


def crc32_of(path: Path) -> int:
    """The CRC-32 of a file of any size. Raises OSError."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            checksum = zlib.crc32(part, checksum)
    return checksum


def decode(content: bytes | str, kind: type[Content], *, strict: bool = True) -> Content:
    """JSON of a kind. Raises msgspec.DecodeError for anything else, also for what is nested too
    deeply or is no UTF-8."""
    try:
        return msgspec.json.decode(content, type=kind, strict=strict)
    except (RecursionError, UnicodeError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _require_regular(state: os.stat_result, path: str | Path) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(state.st_mode):
        kind = "a link" if stat.S_ISLNK(state.st_mode) else "not a regular file"
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))
