"""Lengths of sequences as the hook in training writes them.

    lengths_rank0.jsonl   {"iter": 100, "micro": 0, "dp": 0, "lengths": [512, 2048, 96]}
    lengths_rank0.1.jsonl its next part

Ranks that share a data-parallel rank train on the same sequences: the lowest of them counts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from npuscope.errors import TraceFormatError, TraceNotFound

from ...small_files import open_regular

_FILE = re.compile(r"lengths_rank(\d{1,6})(?:\.(\d{1,9}))?\.jsonl")
_SCHEMA = {"step": pl.Int64, "micro_batch": pl.Int64, "rank": pl.Int64, "length": pl.Int64}
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Line(msgspec.Struct):
    iter: _Count
    lengths: list[_Count]
    micro: _Count = 0
    dp: _Count | None = None


_LINES = msgspec.json.Decoder(_Line)


def length_files(folder: Path) -> list[Path]:
    """Files of the hook in a folder, each rank's in the order of their writing."""
    if not folder.is_dir():
        return []
    files = [(match, one) for one in folder.iterdir() if (match := _FILE.fullmatch(one.name))]
    return [one for match, one in sorted(files, key=lambda f: (int(f[0][1]), int(f[0][2] or 0)))]


def read_lengths(folder: Path) -> pl.DataFrame:
    """step, micro_batch, rank, length: a row for each sequence, of one rank of each data-parallel
    rank. A micro-batch that is told twice (a restart) counts as told last.

    Raises TraceNotFound without such files, TraceFormatError for a line that is none of theirs.
    """
    files = length_files(folder)
    if not files:
        raise TraceNotFound(
            f"{folder}: no lengths_rank*.jsonl: give the folder that sequence_length_recorder wrote"
        )
    lengths: dict[tuple[int, int, int], list[int]] = {}
    holder: dict[int, int] = {}
    for path in files:
        match = _FILE.fullmatch(path.name)
        rank = int(match[1]) if match else 0
        with open_regular(path) as file:
            for number, line in enumerate(file):
                try:
                    one = _LINES.decode(line)
                except msgspec.DecodeError as error:
                    if not line.endswith(b"\n"):
                        continue  # still being written
                    raise TraceFormatError(path, f"line {number + 1}", str(error)) from error
                place = rank if one.dp is None else one.dp
                if holder.setdefault(place, rank) == rank:
                    lengths[one.iter, one.micro, rank] = one.lengths
    rows = [(*key, length) for key, own in sorted(lengths.items()) for length in own if length]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
