"""Lines into files beside training: a thread that may be slow, fail or be killed.

    rank0.jsonl.part    being written
    rank0.jsonl         its first part, complete
    rank0.1.jsonl       the second, ... after `rotate_bytes` or `rotate_seconds`

A part gets its name by one atomic renaming. What a killed process left is published by the next
one that writes there, up to its last whole line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .guard import warn

_LOCK_ERRORS = (errno.EWOULDBLOCK, errno.EACCES)
# Files this process writes: its own locks do not keep it from opening one twice.
_OURS: set[Path] = set()


class LineWriter:
    """Formats and writes what is offered, in a thread; never blocks or raises to who offers.

    `lines` makes bytes, whole lines, of an item, and `done` gets each item back, written or not;
    `what` they are is told where they cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        lines: Callable[[Any], bytes],
        done: Callable[[Any], None],
        *,
        depth: int,
        rotate_bytes: int,
        rotate_seconds: float,
        what: str = "expert loads",
    ) -> None:
        self.failure: str | None = None
        self.dropped = 0  # items that were offered and not written
        self.written = 0
        # The folder of now, wherever training goes.
        self._folder, self._stem, self._lines, self._on_end = folder.absolute(), stem, lines, done
        self._rotate_bytes, self._rotate_seconds = rotate_bytes, rotate_seconds
        self._what = what
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=depth)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npuscope-lines", daemon=True)
        self._file: int | None = None
        self._size_bytes, self._opened_at = 0, 0.0

    @property
    def part(self) -> Path:
        """The file that is being written."""
        return self._folder / f"{self._stem}.jsonl.part"

    def offer(self, item: Any) -> bool:
        """Hand over an item; False, and counted, where the writer cannot keep up or has failed."""
        if self.failure is None:
            if self._thread.ident is None:
                self._thread.start()
            try:
                self._queue.put_nowait(item)
                if self.failure is not None:  # in between: nobody takes it any more
                    self._refuse()
                return True
            except queue.Full:
                pass
        self.dropped += 1
        return False

    def close(self, seconds: float) -> bool:
        """Write what waits, for so long at most, and publish; whether all that was done."""
        self._ends.set()
        if self._thread.ident is None:
            return True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # wakes it
        self._thread.join(seconds)
        return not self._thread.is_alive() and self.failure is None

    def _run(self) -> None:
        try:
            self._open()
            while not (self._ends.is_set() and self._queue.empty()):
                self._write_next()
        except Exception as error:
            self._fail(error)
        finally:
            try:
                self._publish()
            except Exception as error:
                self._fail(error)
            self._refuse()

    def _write_next(self) -> None:
        try:
            item = self._queue.get(timeout=1.0)
        except queue.Empty:
            item = None
        if item is not None:
            try:
                data = self._lines(item)
                self._append(data)
            except Exception:
                self.dropped += 1
                raise
            finally:
                self._on_end(item)
            self.written += 1
        if self._size_bytes >= self._rotate_bytes or (
            self._size_bytes and time.monotonic() - self._opened_at >= self._rotate_seconds
        ):
            self._publish()
            self._open()

    def _append(self, data: bytes) -> None:
        """All of it or, where the disk is full, nothing."""
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.part.resolve() in _OURS:
            raise RuntimeError(f"{self.part} is being written by another recorder")
        opened = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            # Not flock: processes forked out of a job that was killed would go on holding it.
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCK_ERRORS:
                os.close(opened)
                raise RuntimeError(f"{self.part} is being written by another process") from None
            # A file system without locks: then there is none.
        self._file = opened
        _OURS.add(self.part.resolve())
        self._size_bytes, self._opened_at = _whole_lines(self._file), time.monotonic()
        if os.fstat(self._file).st_size > self._size_bytes:
            os.ftruncate(self._file, self._size_bytes)
        if self._size_bytes:  # left by a process that was killed
            self._publish()
            self._open()

    def _publish(self) -> None:
        """Give the part its name; an empty one goes."""
        if self._file is None:
            return
        opened, self._file = self._file, None
        try:
            if self._size_bytes:
                os.fsync(opened)
                self.part.replace(self._next_name())
            else:
                self.part.unlink(missing_ok=True)
        finally:
            self._size_bytes = 0
            _OURS.discard(self.part.resolve())
            os.close(opened)

    def _next_name(self) -> Path:
        numbered = re.compile(re.escape(self._stem) + r"(?:\.(\d{1,9}))?\.jsonl")
        matches = [numbered.fullmatch(name) for name in os.listdir(self._folder)]
        numbers = [int(match[1] or 0) for match in matches if match]
        number = max(numbers, default=-1) + 1
        return self._folder / (f"{self._stem}.{number}.jsonl" if number else f"{self._stem}.jsonl")

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = str(error) or type(error).__name__
            warn(f"{self._what} are no longer written: {self.failure}")

    def _refuse(self) -> None:
        """Give back what is still waiting."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self.dropped += 1
                self._on_end(item)


def _whole_lines(opened: int) -> int:
    """Bytes up to the end of the last line."""
    end = os.fstat(opened).st_size
    while end > 0:
        start = max(0, end - (1 << 16))
        end_at = os.pread(opened, end - start, start).rfind(b"\n")
        if end_at >= 0:
            return start + end_at + 1
        end = start
    return 0
