"""Files for the user: whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from npuscope.collector.store.folder_handles import staging_name
from npuscope.errors import StoreError


@contextlib.contextmanager
def write_whole(out: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when all is in it. Raises StoreError."""
    temporary = out.with_name(f"{staging_name()}.{out.name}")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(out)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror})") from error
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written, nothing is there
            temporary.unlink()


def write_text(text: str, out: Path) -> None:
    """Write text as UTF-8. Raises StoreError."""
    write_bytes(text.encode("utf-8", "surrogateescape"), out)


def write_bytes(content: bytes | memoryview, out: Path) -> None:
    """Write what is there already. Raises StoreError."""
    with write_whole(out) as file:
        file.write(content)
