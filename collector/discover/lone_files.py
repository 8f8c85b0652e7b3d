"""What a file is that somebody names as PATH: by its content, never by its name.

Nothing beside it is read: it is one rank (several where it holds several) with this source only.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npuscope.errors import TraceNotFound

from ..model import Framework, Role, SourceFile
from ..readers.delimited_text import normal
from ..readers.kineto.head import read_head
from ..small_files import decompress, open_regular
from .database_facts import ask

_HEAD_BYTES = 1 << 16
_SQLITE = b"SQLite format 3\0"
_NAMES_OF_TABLES = "select name from sqlite_master where type = 'table' limit 4096"
_OF_MAIN = {"TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP", "PYTORCH_API", "CANN_API"}
_OF_ANALYSIS = {"COMMANALYZERTIME", "COMMANALYZERBANDWIDTH", "COMMANALYZERMATRIX", "STEPTRACETIME"}
_OF_CLUSTER = re.compile(r"CLUSTER[A-Z]\w+")
_ROWS_OF_COUNTS = re.compile(rb"(\d+[ \t]*(,[ \t]*\d+[ \t]*)*\r?\n)*[\d, \t\r]*")
# Columns by which a table is known, in order: the first that are all there.
_TABLES: tuple[tuple[frozenset[str], Role], ...] = (
    (frozenset({"type", "index", "computing", "free"}), "cluster_output"),
    (frozenset({"computing", "overlapped", "free"}), "step_trace"),
    (frozenset({"name", "start time(us)", "duration(us)"}), "kernels"),
    (frozenset({"op name", "task start time(us)", "task duration(us)"}), "kernels"),
    (frozenset({"op name", "task start time", "task duration(us)"}), "kernels"),  # until 2022
    (frozenset({"op name", "start time(us)", "duration(us)"}), "kernels"),
    (frozenset({"kernel_name", "task_time(us)", "task_start(us)"}), "task_time"),
    (frozenset({"iteration id", "iteration time(us)"}), "iterations"),
    (frozenset({"name", "size(kb)", "allocation time(us)"}), "operator_memory"),
    (frozenset({"component", "total allocated(mb)"}), "memory_record"),
    (frozenset({"component", "total reserved(mb)"}), "module_memory"),
)
_COMM_TIME = re.compile(rb'"\d{1,9}"\s*:\s*\{\s*"Communication Time Info"')
_OF_PYTORCH = re.compile(rb'"(Python|cpu_op|python_function)"|ProfilerStep#')
_BETWEEN_RANKS = re.compile(rb'"\d{1,9}-\d{1,9}"\s*:\s*\{')
# What is no profile, though it stands beside some: a mark in it, and what to do.
_BESIDE: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb'"(moe_layer_count|layer_list|device_list)"\s*:'),
        "holds an expert placement and no token counts: give the folder with the counts to"
        " `npuscope experts`",
    ),
    (
        re.compile(rb'"npuscope|"source_root"\s*:'),
        "belongs to a store of npuscope: give the store's folder",
    ),
    (
        re.compile(rb'"(rank_id|common_config|ENV_VARIABLES|torch_npu_version|start_info|parallel_group_info|platform_version'
                   rb'|DeviceInfo|collectionTimeBegin)"\s*:'),
        "holds metadata of a profile and no events: give the profile's folder",
    ),
)  # fmt: skip
# What folders in one file begin with.
_ARCHIVE = re.compile(
    rb"PK\x03\x04|7z\xbc\xaf|Rar!|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|.{257}ustar", re.DOTALL
)
_FORMATS = (
    "a profiler's database, trace_view.json, msprof_*.json, a Kineto trace, a profiler's CSV or"
    " communication JSON, results of msprof-analyze, or a .duckdb export"
)


@dataclass(frozen=True, slots=True)
class LoneFile:
    """A file of a profile, and what it is."""

    file: SourceFile
    framework: Framework
    role: Role


def counts_format(path: Path) -> Literal["hook", "dump"] | None:
    """Whether a file counts tokens per expert, and who wrote it. Raises TraceNotFound where it
    cannot be read."""
    head = _head(path)
    first = head.lstrip()
    if first.startswith(b"{") and b'"tpe"' in first[:4096]:
        return "hook"
    return "dump" if first and _ROWS_OF_COUNTS.fullmatch(head) and b"," in head else None


def look_at(path: Path) -> LoneFile:
    """What a file holds. Raises TraceNotFound where it cannot be read or is of no known kind."""
    head = _head(path)
    if not head.strip():
        raise TraceNotFound(f"{path}: it is empty: give a profile or a folder with some")
    if kind := _kind(path, head):
        if kind[1] not in ("trace", "kineto") and _is_packed(path):
            raise TraceNotFound(f"{path}: a packed file: `gunzip` it, then give what was in it")
        state = path.stat()
        file = SourceFile(str(path), state.st_size, state.st_mtime_ns)
        return LoneFile(file, *kind)
    if counts_format(path):
        raise TraceNotFound(
            f"{path}: holds tokens per expert and is not a profile: show it with `npuscope"
            " experts`, or ingest its folder with --expert-load together with a profile"
        )
    for mark, words in _BESIDE if head.lstrip().startswith(b"{") else ():
        if mark.search(head):
            raise TraceNotFound(f"{path}: {words}")
    if _ARCHIVE.match(head):
        raise TraceNotFound(f"{path}: a packed file: unpack it, then give what was in it")
    if head.startswith(b"PAR1"):
        raise TraceNotFound(
            f"{path}: a Parquet file is no profile: of a phase-level trace ask `npuscope whatif`"
        )
    raise TraceNotFound(
        f"{path}: not a profile by its content: give {_FORMATS}; training logs go with --train-log"
    )


def _kind(path: Path, head: bytes) -> tuple[Framework, Role] | None:
    if head.startswith(_SQLITE):
        return _of_database(path)
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not first.startswith((b"{", b"[")):
        return _of_table(first)
    if read_head(str(path), head).is_kineto:
        return "kineto", "kineto"
    if _COMM_TIME.search(head):
        return "msprof_analyze", "cluster_output"
    if b'"Communication Time Info"' in head or b'"Communication Bandwidth Info"' in head:
        return "pytorch", "communication"
    if b'"Transport Type"' in head and _BETWEEN_RANKS.search(head):
        return "pytorch", "communication_matrix"
    if re.match(rb'\[\s*\]|\[\s*\{|\{\s*"traceEvents"', first) and b'"ph"' in head:
        # Only a framework's own process tells of one.
        return "pytorch" if _OF_PYTORCH.search(head) else "msprof", "trace"
    return None


def _of_database(path: Path) -> tuple[Framework, Role] | None:
    rows = ask(str(path), [("sqlite_master", _NAMES_OF_TABLES)])[0]
    names = {str(name).upper() for (name,) in rows}  # SQLite knows no case
    if any(_OF_CLUSTER.fullmatch(name) for name in names):
        return "msprof_analyze", "cluster_output"
    framework: Framework = "msprof"
    if "PYTORCH_API" in names:
        framework = "pytorch"
    elif "mindspore" in path.name or "FRAMEWORK_API" in names:
        framework = "mindspore"
    # One that cannot be listed is damaged: its reader says how.
    if not names or names & _OF_MAIN:
        return framework, "main_db"
    return ("pytorch", "analysis_db") if names & _OF_ANALYSIS else None


def _of_table(first: bytes) -> tuple[Framework, Role] | None:
    line = first.split(b"\n", 1)[0].decode("utf-8", "replace")
    titles = {normal(cell.strip().strip('"')) for cell in line.split(",")}
    for columns, role in _TABLES:
        if columns <= titles:
            if role == "cluster_output":
                return "msprof_analyze", role
            is_msprof = role in ("task_time", "iterations") or "op name" in titles
            return "msprof" if is_msprof else "pytorch", role
    return None


def _is_packed(path: Path) -> bool:
    with open_regular(path) as raw:
        return raw.read(2) == b"\x1f\x8b"


def _head(path: Path) -> bytes:
    """The beginning of a file, unpacked where it is packed."""
    try:
        with open_regular(path) as raw:
            return decompress(raw).read(_HEAD_BYTES)
    except FileNotFoundError:
        raise TraceNotFound(f"{path}: no such file or folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceNotFound(f"{path}: cannot be unpacked ({error})") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceNotFound(f"{os.fspath(path)}: cannot be read ({reason})") from None
