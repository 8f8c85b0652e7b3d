"""Answers that are kept in a store, for as long as its ranks are as they are.

    <store>/answers/<version of the ranks>-<version of the rules>/<digest of the question>.answer

A cache: where a file is missing, damaged or of another question, the answer is computed again, and
where it cannot be written, it is not kept. Who makes a store up can make answers up, as summaries.
Only the store that a command or page was given is written to; a bucket gets none of it. Nothing is
reached through a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..small_files import read_small
from .folder_handles import below, delete, handle, staging_name

ANSWERS = "answers"
# Of one answer, of all of a version together, and how many of them.
ONE_BYTES = 16 << 20
ALL_BYTES = 128 << 20
MOST_FILES = 400
_FOLDER = re.compile("[0-9a-f]{16}-[0-9a-f]{12}")
_FILE = re.compile(r"[0-9a-f]{32}\.answer")
_DIGEST_BYTES = 32
_STAGING_S = 3_600  # who writes a file is done long before


@dataclass(frozen=True, slots=True)
class Answers:
    """Those of one version of a store's ranks by one version of the rules."""

    store: Path
    ranks: str
    rules: str

    @property
    def folder(self) -> str:
        """Where they lie."""
        return f"{self.ranks}-{self.rules}"


def read_answer(of: Answers, question: str) -> bytes | None:
    """What was answered to a question; None where nothing is kept, or it is damaged."""
    try:
        with _open_folder(of) as at:
            content = read_small(
                _file(question), most_bytes=ONE_BYTES + _DIGEST_BYTES, follow_links=False, at=at
            )
    except OSError:
        return None
    payload = content[_DIGEST_BYTES:]
    return payload if content[:_DIGEST_BYTES] == _digest(of, question, payload) else None


def keep_answer(of: Answers, question: str, payload: bytes) -> bool:
    """Keep an answer, as long as there is room; returns whether it is kept.

    With the first of a version those of others go.
    """
    if len(payload) > ONE_BYTES:
        return False
    try:
        with handle(of.store) as root:
            _make_folder(root, of.folder)
        with _open_folder(of) as at:
            _make_room(at, len(payload))
            _write(at, _file(question), _digest(of, question, payload) + payload)
    except OSError:  # read-only, full, or its folder was swept meanwhile
        return False
    return True


def sweep_answers(store: Path, ranks: str) -> int:
    """Delete answers to other versions of the ranks; returns bytes freed."""
    freed = 0
    with contextlib.suppress(OSError), handle(store) as root, below(root, ANSWERS) as at:
        for name in os.listdir(at):
            if _FOLDER.fullmatch(name) and not name.startswith(f"{ranks}-"):
                with contextlib.suppress(OSError):
                    freed += delete(at, name)
    return freed


@contextlib.contextmanager
def _open_folder(of: Answers) -> Iterator[int]:
    with handle(of.store) as root, below(root, ANSWERS, of.folder) as at:
        yield at


def _make_folder(root: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(ANSWERS, dir_fd=root)
    with below(root, ANSWERS) as at:
        try:
            os.mkdir(name, dir_fd=at)
        except FileExistsError:
            return
        for other in os.listdir(at):
            if _FOLDER.fullmatch(other) and other != name:
                with contextlib.suppress(OSError):
                    delete(at, other)


def _make_room(at: int, size_bytes: int) -> None:
    """Delete the oldest files until one more of that size has its place."""
    now_s = time.time()
    ours: list[tuple[float, int, str]] = []
    with os.scandir(at) as entries:
        for entry in entries:
            state = entry.stat(follow_symlinks=False)
            if _FILE.fullmatch(entry.name):
                ours.append((state.st_mtime, state.st_size, entry.name))
            elif entry.name.startswith(".tmp-") and now_s - state.st_mtime > _STAGING_S:
                os.unlink(entry.name, dir_fd=at)
    whole_bytes = sum(size for _, size, _ in ours) + size_bytes
    left = len(ours)
    for _, size, name in sorted(ours):
        if left < MOST_FILES and whole_bytes <= ALL_BYTES:
            break
        os.unlink(name, dir_fd=at)
        whole_bytes -= size
        left -= 1


def _write(at: int, name: str, content: bytes) -> None:
    """A file that appears whole or not at all; what a power cut leaves of it, its digest tells."""
    temporary = staging_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=at), "wb") as file:
            file.write(content)
        os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=at)
        raise


def _file(question: str) -> str:
    return f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.answer"


def _digest(of: Answers, question: str, payload: bytes) -> bytes:
    """Of an answer in its place: one that was put elsewhere is none."""
    state = hashlib.sha256(f"{of.folder}\0{question}\0".encode())
    state.update(payload)
    return state.digest()
