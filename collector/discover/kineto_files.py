"""Kineto's traces: one file is one rank of one recording, wherever it lies.

    any depth/host_4711.1795272051554499761.pt.trace.json     worker, when it was written
    any depth/train.json, trace_0.json.gz                     if its first bytes say Kineto

Several workers, and several recordings of each, may share a folder. Rank, first answer wins:
`distributedInfo` in the file's head, a number in its name. Files of one worker are of one rank.
"""

from __future__ import annotations

import gzip
import re
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from npuscope.messages import Message

from ..model import RankSource, SourceFile
from ..readers.kineto import gpu_comm
from ..readers.kineto.head import read_beginning, read_head, window_ns
from ..small_files import decompress, open_regular
from .identity import Identity

_NAME = re.compile(r".+\.pt\.trace\.json(\.gz)?")
# Names that people give to export_chrome_trace. Those of Ascend's exports are roles of their own.
_JSON = re.compile(r"(?i).+\.json(\.gz)?")
_MAYBE = re.compile(r"(?i).*(trace|kineto|rank).*\.json(\.gz)?")
_NEVER = re.compile(r"(?i)trace_view\.json.*|msprof.*")
_RANK = re.compile(r"(?i)(?:^|[^a-z])rank[_.-]?(\d{1,6})(?!\d)")
_NUMBER = re.compile(r"(?i)(?:^|[^a-z])(?:trace|worker)[_.-]?(\d{1,6})(?!\d)")
_WORKER = re.compile(r"(?P<worker>.+_\d+)\.\d{10,20}\.pt\.trace\.json(?:\.gz)?")
_HEAD_BYTES = 1 << 16
_LOOKED_INTO = 4096


def candidates(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Files of a folder that may be traces, but no packed copy of another.

    Content tells, see `look_into`. Where so much JSON lies that looking into all of it would take
    long, only names that suggest a trace count.
    """
    names_here = [name for name in names if _JSON.fullmatch(name) and not _NEVER.fullmatch(name)]
    if len(names_here) > _LOOKED_INTO:
        names_here = [name for name in names_here if _MAYBE.fullmatch(name)]
    for name in sorted(names_here):
        if not (name.endswith(".gz") and name[:-3] in names):
            yield folder / name


def look_into(path: Path) -> list[tuple[SourceFile, Identity]] | str:
    """The trace and whose it is; nothing for another file; why it cannot be read, where it should.

    A pipe is not opened: that could wait for ever.
    """
    is_named = _NAME.fullmatch(path.name) is not None
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            is_wanted = is_named and not stat.S_ISDIR(state.st_mode)
            return "cannot be read: it is not a regular file" if is_wanted else []
        if not is_named and not _says_kineto(path):
            return []
        file = SourceFile(str(path), state.st_size, state.st_mtime_ns)
        return [(file, identify(str(path)))]
    except OSError as error:
        return f"cannot be read ({error.strerror})" if is_named else []


def _says_kineto(path: Path) -> bool:
    with open_regular(path) as raw:
        stream = decompress(raw)
        try:
            return read_head(str(path), stream.read(_HEAD_BYTES)).is_kineto
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return False


def identify(path: str) -> Identity:
    """Rank, host and window of a trace. Raises OSError."""
    beginning = read_beginning(path)
    head = read_head(path, beginning)
    start_ns, end_ns = window_ns(path, beginning, head)
    name = Path(path).name
    worker = _WORKER.fullmatch(name)
    rank, origin = head.metadata.rank, "distributedInfo in the trace's head"
    warnings: tuple[str, ...] = ()
    if rank is None and (match := _RANK.search(name) or _NUMBER.search(name)):
        rank, origin = int(match[1]), "number in the trace's name"
        untold = "the trace does not record its rank: rank {rank} is taken from its name"
        warnings = (Message(untold, rank=rank),)
    return Identity(
        rank=rank,
        origin=origin if rank is not None else "",
        # A worker's files are numbered as a device's, where nothing tells their rank.
        host=worker["worker"] if worker else head.host_name or "",
        device=0 if worker else -1,
        window_start_ns=start_ns,
        window_end_ns=end_ns,
        warnings=warnings,
    )


def with_rules(source: RankSource) -> RankSource:
    """The source with what the environment says of its kernels: it travels with the work."""
    text = gpu_comm.site_kernels() if source.framework == "kineto" else None
    return replace(source, rules=(*source.rules, (gpu_comm.RULE, text))) if text else source


def has_same_rules(source: RankSource, rules: Mapping[str, str]) -> bool:
    """Whether a rank was read by the rule for communication kernels that now holds."""
    return rules.get(gpu_comm.RULE) == dict(source.rules).get(gpu_comm.RULE)
