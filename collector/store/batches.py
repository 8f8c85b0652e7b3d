"""Ranks that were read together: their rows stand in files of all of them, one for each table.

    <capture>/rank=12/manifest.json          the truth: generation G of rank 12, read with a batch
    <capture>/batch-<id>/batch.json          generation G of ranks 0-31 stands in ...
                        /kernels-0.parquet   ... this file, in order of ranks

The folder appears by one renaming, before any manifest names it, and never changes. Its files count
for a rank as long as the rank's manifest names the generation that they hold: so nobody who
publishes, replaces or drops a rank needs to look into them. `compact_files` are the same, made of
ranks that were published before.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from .. import schema
from ..small_files import LIST_BYTES, read_own

LISTING = "batch.json"
BATCH_FOLDER = "batch-"
COMPACT_FOLDER = "compact-"
BATCH = re.compile(rf"{BATCH_FOLDER}[A-Za-z0-9-]{{1,99}}")
_NAME = re.compile(schema.OWN_NAME)
_FILE = re.compile(
    rf"(?:{BATCH_FOLDER}|{COMPACT_FOLDER})[A-Za-z0-9-]{{1,99}}/{schema.OWN_NAME}-\d+\.parquet"
)


class SharedFile(msgspec.Struct, frozen=True):
    """A Parquet file, relative to the capture's folder, with a table's rows of `ranks`.

    `version` is that of a summary's rule; `crc32` is of its bytes, None in older stores.
    """

    file: str
    table: str
    version: str
    row_count: int
    size_bytes: int
    ranks: list[int]
    crc32: int | None = None


class Batch(msgspec.Struct, frozen=True):
    """Files that were made together, and the generations of ranks whose rows they hold."""

    generations: dict[int, str]
    files: list[SharedFile]

    def __post_init__(self) -> None:
        for one in self.files:
            if not _FILE.fullmatch(one.file) or not _NAME.fullmatch(one.table):
                raise ValueError(f"no file of several ranks: {one.file!r}")


def read_batch(capture_folder: Path, name: str) -> Batch | None:
    """What a batch's folder holds; None where that cannot be read."""
    try:
        batch = read_own(capture_folder / name / LISTING, Batch, most_bytes=LIST_BYTES)
    except (OSError, msgspec.MsgspecError):
        return None
    return batch if all(file.file.startswith(f"{name}/") for file in batch.files) else None
