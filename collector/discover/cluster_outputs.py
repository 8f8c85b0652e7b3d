"""Where msprof-analyze left its results, and which ranks they are about.

    any depth/cluster_analysis_output/
        cluster_step_trace_time.csv         one row per step and rank (and per pipeline stage)
        cluster_communication.json          what HCCL measured, of every rank
        cluster_communication_matrix.json   links between global ranks
        communication_group.json            members of groups
        cluster_analysis.db                 the same in SQLite, where profiles were databases

They are a light input of their own where no profile lies beside them: all ranks in one set of
files. Where profiles do, they are what our figures are compared with.
"""

from __future__ import annotations

import csv
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from npuscope.errors import TraceFormatError

from ..model import SourceFile
from ..readers.delimited_text import normal
from ..small_files import open_regular
from .database_facts import ask

FOLDER = "cluster_analysis_output"
STEPS, TIMES, MATRIX, GROUPS, DATABASE = (
    "cluster_step_trace_time.csv", "cluster_communication.json",
    "cluster_communication_matrix.json", "communication_group.json", "cluster_analysis.db",
)  # fmt: skip
_NAMES = (STEPS, TIMES, MATRIX, GROUPS, DATABASE)

ORIGIN = "results of msprof-analyze"
_PROBE_BYTES = 1 << 16
_CHUNK_BYTES = 4 << 20
_KEPT_BYTES = 256  # a rank may stand across two pieces
Piece = TypeVar("Piece", str, bytes)

_START_US = re.compile(rb'"Start Timestamp\(us\)"\s*:\s*"?(\d{6,17})(?=[.,"}])')
_MEASURED_RANK = re.compile(rb'"(\d{1,9})"\s*:\s*\{\s*"Communication Time Info"')
# Tables that name ranks, in order of trust, and the column of ranks in each.
_RANK_QUERIES = (
    (
        "ClusterStepTraceTime",
        """select distinct "index" from ClusterStepTraceTime where type = 'rank'""",
    ),
    ("ClusterCommunicationTime", "select distinct rank_id from ClusterCommunicationTime"),
    ("ClusterCommAnalyzerTime", "select distinct rank_id from ClusterCommAnalyzerTime"),
)
# Files of a few lines per rank are looked through whole.
_WITHIN_S = 60.0
_LINE_CHARACTERS = 1 << 20
_TIME_TABLES = ("ClusterCommunicationTime", "ClusterCommAnalyzerTime")


@dataclass(frozen=True, slots=True)
class ClusterOutput:
    """The files of one folder of results, its ranks in order, and when they communicated (ns; None
    where nothing tells). `problem`: why they cannot be used."""

    folder: str
    files: tuple[SourceFile, ...]
    ranks: tuple[int, ...] = ()
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    problem: str | None = None


def holds_results(names: Iterable[str]) -> bool:
    """Whether a folder with files of these names holds figures of msprof-analyze."""
    return not {*_NAMES}.isdisjoint({*names} - {GROUPS})


def look_at(folder: Path) -> ClusterOutput:
    """What a folder of results is about. Nothing in it is changed, and small parts are read."""
    files: list[SourceFile] = []
    odd: list[str] = []
    for name in _NAMES:
        try:
            state = (folder / name).stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            odd.append(f"{name} cannot be read ({error.strerror})")
            continue
        if stat.S_ISREG(state.st_mode):
            files.append(SourceFile(str(folder / name), state.st_size, state.st_mtime_ns))
        else:
            odd.append(f"{name} cannot be read: it is not a regular file")
    return describe_files(folder, files, odd)


def paths_by_name(files: Iterable[SourceFile]) -> dict[str, str]:
    """Paths by the names that msprof-analyze gives; a file of another name, which somebody gave
    alone, by its content."""
    paths: dict[str, str] = {}
    for file in files:
        name = Path(file.path).name
        if name not in _NAMES:
            with open_regular(file.path) as opened:
                head = opened.read(_PROBE_BYTES)
            name = DATABASE if head.startswith(b"SQLite") else STEPS
            if head.lstrip().startswith(b"{"):
                name = TIMES if _MEASURED_RANK.search(head) else MATRIX
        paths[name] = file.path
    return paths


def describe_files(folder: Path, files: Sequence[SourceFile], odd: list[str]) -> ClusterOutput:
    """What such files are about; `odd` is what is wrong with others."""
    paths = paths_by_name(files)
    ranks: set[int] = set()
    if STEPS in paths:
        ranks |= _ranks_of_table(paths[STEPS], odd)
    if DATABASE in paths:
        ranks |= _ranks_of_database(paths[DATABASE])
    if not ranks and TIMES in paths:
        ranks = _ranks_of_times(paths[TIMES])
    start_ns, end_ns = _window(paths)
    problem = None
    if not ranks:
        reason = "; ".join(odd) or "neither steps nor communication of any rank in it"
        problem = f"results of msprof-analyze without figures: {reason}; run its cluster analysis"
    return ClusterOutput(str(folder), tuple(files), tuple(sorted(ranks)), start_ns, end_ns, problem)


def ranks_in(text: str | None) -> tuple[int, ...]:
    """Members of `(0, 1, 2)`, `(0,1,2)` or `[0, 1, 2]`, in order."""
    return tuple(sorted({int(number) for number in re.findall(r"\d{1,9}", text or "")}))


def _ranks_of_table(path: str, odd: list[str]) -> set[int]:
    ranks: set[int] = set()
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            lines = iter(partial(stream.readline, _LINE_CHARACTERS), "")
            rows = csv.reader(line.replace("\0", "") for line in _in_time(lines, path))
            titles = [normal(title) for title in next(rows, [])]
            if not {"type", "index"} <= set(titles):
                odd.append(f"{STEPS} has no columns Type and Index")
                return ranks
            kind, index = titles.index("type"), titles.index("index")
            for row in rows:
                if len(row) > max(kind, index) and row[kind].strip().lower() == "rank":
                    ranks |= _rank(row[index])
    except (OSError, csv.Error) as error:
        odd.append(f"{STEPS} cannot be read ({error})")
    return ranks


def _in_time(pieces: Iterable[Piece], path: str) -> Iterator[Piece]:
    """Pieces of a file as long as there is time. Raises TraceFormatError when there is no more."""
    end_s = time.monotonic() + _WITHIN_S
    for piece in pieces:
        if time.monotonic() > end_s:
            raise TraceFormatError(path, "searching it", f"not done in {_WITHIN_S:.0f} s")
        yield piece


def _rank(value: object) -> set[int]:
    text = str(value).strip()
    return {int(text)} if text.isascii() and text.isdecimal() and int(text) < 1 << 31 else set()


def _ranks_of_database(path: str) -> set[int]:
    for question in _RANK_QUERIES:
        ranks: set[int] = set()
        for (value,) in ask(path, [question], within_s=_WITHIN_S)[0]:
            ranks |= _rank(value)
        if ranks:
            return ranks
    return set()


def _ranks_of_times(path: str) -> set[int]:
    """Ranks that have measured operations: the whole file is looked through, not decoded."""
    ranks: set[int] = set()
    buffer = b""
    try:
        with Path(path).open("rb") as file:
            for chunk in _in_time(iter(partial(file.read, _CHUNK_BYTES), b""), path):
                data = buffer + chunk
                ranks |= {int(rank) for rank in _MEASURED_RANK.findall(data)}
                buffer = data[-_KEPT_BYTES:]
    except OSError:
        return set()
    return ranks


def _window(paths: dict[str, str]) -> tuple[int | None, int | None]:
    """First and last start of an operation at both ends of what was measured."""
    starts: list[int] = []
    if TIMES in paths:
        try:
            with Path(paths[TIMES]).open("rb") as file:
                ends = file.read(_PROBE_BYTES)
                size_bytes = file.seek(0, 2)
                file.seek(max(0, size_bytes - _PROBE_BYTES))
                ends += b"\n" + file.read(_PROBE_BYTES)
            starts += [int(us) * 1000 for us in _START_US.findall(ends)]
        except OSError:
            pass
    for table in _TIME_TABLES if DATABASE in paths else ():
        some = "start_timestamp is not null order by rowid"
        for order in ("asc", "desc"):
            query = f"select start_timestamp from {table} where {some} {order} limit 1000"
            starts += [
                int(us) * 1000
                for (us,) in ask(paths[DATABASE], [(table, query)])[0]
                if isinstance(us, (int, float)) and 0 < us < 9e15
            ]
    starts = [start for start in starts if start > 0]
    return min(starts, default=None), max(starts, default=None)
