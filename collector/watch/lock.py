"""One watcher at a time works on a store; another one stands by and takes over.

    <store>/watch.lock        locked as long as the watcher lives, however it ends

Two at once would do no harm, because ranks are published whole and the last publication counts;
they would read everything twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK = "watch.lock"
# What file systems answer that know no locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


@contextlib.contextmanager
def turn(store: Path) -> Iterator[bool]:
    """Whether the store is ours to watch, until the end of the block.

    It is, too, where the store's file system knows no locks. Raises OSError where the file cannot
    be made.
    """
    descriptor = os.open(store / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)
