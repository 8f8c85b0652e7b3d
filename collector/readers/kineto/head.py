"""What a Kineto trace says before its events: rank, groups, devices, the zero of its clock.

    {"schemaVersion": 1, "deviceProperties": [...], "distributedInfo": {...}, "host_name": "...",
     "baseTimeNanoseconds": 1790857026000000000, "traceEvents": [ ...gigabytes... ], ...}

Each key is looked for by itself, because jobs add metadata of their own there that need not be
whole JSON. Where and when a trace was recorded must be known before it is read: from both ends of
the file, but of a packed one only its beginning can be had.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model import Option, ReadLog
from ...small_files import decompress, open_regular
from ..chrome_trace.json_events import BLANK, BOUNDARY
from ..metadata.profiler_metadata import ProfilerMetadata, natural, parse_metadata, text

if TYPE_CHECKING:
    from ..chrome_trace.events import Event

_EDGE_BYTES = 1 << 16
_MOST_BYTES = 16 << 20  # groups of ten thousand ranks are listed there
_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]*:')
_EVENTS_FIRST = re.compile(rb'\s*(\{\s*"traceEvents"\s*:|\[\s*\{)')
# Categories of PyTorch's events, and those that no trace of Ascend has.
_OF_PYTORCH = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|python_function|user_annotation|kernel|cuda_runtime|gpu_memcpy)"'
)
_OF_GPU = re.compile(
    rb'"cat"\s*:\s*"((cuda|xpu)_(runtime|driver)|gpu_(memcpy|memset|user_annotation)|ac2g)"'
)
_BEHIND_BYTES = 1 << 20
_MARKS = (b'"deviceProperties"', b'"distributedInfo"', b'"traceEvents"')
_OPTIONS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_WRITTEN_AT = re.compile(r"\.(\d{19})\.pt\.trace\.json(?:\.gz)?$", re.A)
_LONGEST_NS = 24 * 3600 * 10**9  # a profile of a day: what looks longer was written later
# How a packed file is damaged: what was unpacked before counts.
_READ_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the host: its number, name and count of multiprocessors."""

    id: int
    name: str | None
    multiprocessor_count: int | None


@dataclass(frozen=True, slots=True)
class KinetoHead:
    """What the head tells; None or empty where it does not.

    `is_kineto`: it has the keys that only Kineto writes. `metadata`: rank, world size and groups by
    name. `options`: those the profiler ran with.
    """

    is_kineto: bool = False
    base_ns: int = 0
    host_name: str | None = None
    metadata: ProfilerMetadata = field(default_factory=ProfilerMetadata)
    devices: tuple[Device, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)


def read_head(path: str, beginning: bytes) -> KinetoHead:
    """The head of a trace that begins so. Programs that write traces anew may put events first:
    then the keys behind them tell, and where they left these out, the events. Raises OSError."""
    first = _EVENTS_FIRST.match(beginning)
    is_cheap = first is not None and first[1].startswith(b"{") and not path.endswith(".gz")
    if first is None or not (is_cheap or _OF_PYTORCH.search(beginning)):
        return parse_head(beginning)
    ending = _ending(path, _BEHIND_BYTES)
    head = parse_head(_EVENTS.split(ending)[-1] + b'"traceEvents":')
    is_gpus = _OF_GPU.search(beginning) or _OF_GPU.search(ending)
    return replace(head, is_kineto=True) if is_gpus else head


def parse_head(beginning: bytes) -> KinetoHead:
    """The head of a trace's beginning."""
    match = _EVENTS.search(beginning)
    head = beginning[: match.end() if match else len(beginning)]
    content = head.decode("utf-8", "replace")
    info = _value(content, "distributedInfo")
    if isinstance(info, str):
        info = _decode(info, 0)
    info = info if isinstance(info, dict) else {}
    base = _value(content, "baseTimeNanoseconds")
    devices = _value(content, "deviceProperties") or _value(content, "computeProperties")  # < 1.11
    return KinetoHead(
        is_kineto=b'"schemaVersion"' in head and any(mark in head for mark in _MARKS),
        base_ns=int(base) if isinstance(base, (int, str)) and _is_base(base) else 0,
        host_name=text(_value(content, "host_name")),
        metadata=_metadata(info),
        devices=tuple(_devices(devices if isinstance(devices, list) else [])),
        options={
            name: bool(value) for name in _OPTIONS if (value := _value(content, name)) is not None
        },
    )


def _is_base(value: int | str) -> bool:
    return re.fullmatch(r"\d{1,19}", str(value), re.A) is not None and int(value) < 1 << 63


def _value(head: str, key: str) -> Any:
    """The value of a key, wherever it stands in the head; None where it is not whole."""
    match = re.search(rf'"{key}"\s*:\s*', head)
    return _decode(head, match.end()) if match else None


def _decode(head: str, place: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(head, place)[0]
    except (ValueError, RecursionError):
        return None


def job_metadata(
    world_size: int | None, groups: Iterable[tuple[str, str | None, Iterable[int] | str]]
) -> ProfilerMetadata:
    """A job of groups (name, label, members), as Ascend's metadata would say it."""
    args = {"world_size": world_size}
    group_records = {
        name: {"group_name": label, "global_ranks": m if isinstance(m, str) else list(m)}
        for name, label, m in groups
    }
    return parse_metadata({"distributed_args": args, "parallel_group_info": group_records})


def _metadata(info: Mapping[str, Any]) -> ProfilerMetadata:
    """distributedInfo: rank, world size and groups."""
    world_size = natural(info.get("world_size"))
    groups: list[tuple[str, str | None, Iterable[int] | str]] = []
    configs = info.get("pg_config")
    for group in configs if isinstance(configs, list) else []:
        if not isinstance(group, dict) or not isinstance(group.get("pg_name"), (str, int)):
            continue
        members = group.get("ranks")
        size = natural(group.get("pg_size", group.get("group_size")))  # the latter: torch < 2.3
        if members in (None, [], "", "[]") and world_size and size == world_size:
            members = range(world_size)  # of the whole job early versions list none
        members_here = members if isinstance(members, (list, range, str)) else []
        groups.append((str(group["pg_name"]), text(group.get("pg_desc")), members_here))
    return replace(job_metadata(world_size, groups), rank=natural(info.get("rank")))


def _devices(properties: Sequence[Any]) -> list[Device]:
    devices = [one for one in properties if isinstance(one, dict)]
    return [
        Device(number, text(one.get("name")), natural(one.get("numSms")) or None)
        for one in devices
        if (number := natural(one.get("id"))) is not None
    ]


def window_ns(path: str, beginning: bytes, head: KinetoHead) -> tuple[int | None, int | None]:
    """From when to when a trace was recorded, as both ends of its file tell. Raises OSError.

    The profiler writes its own span last. Of a packed file the end is not read: it is when the
    file was written, which its name or its packing tells, or the last instant near its beginning.
    """
    match = _EVENTS.search(beginning)
    spans = _spans(_whole_events(beginning[match.end() if match else 0 :][:_EDGE_BYTES]), head)
    if not path.endswith(".gz"):
        spans += _spans(_whole_events(_ending(path)), head)
        own = [(start, end) for is_own, start, end in spans if is_own]
        if own:
            return min(start for start, _ in own), max(end for _, end in own)
    if not spans:
        return None, None
    start_ns, end_ns = min(start for _, start, _ in spans), max(end for _, _, end in spans)
    written = [at for at in _written_ns(path) if end_ns <= at <= start_ns + _LONGEST_NS]
    return start_ns, min(written, default=end_ns) if path.endswith(".gz") else end_ns


def _spans(events: Sequence[Event], head: KinetoHead) -> list[tuple[bool, int, int]]:
    """Of slices: whether it is the profiler's own span, start and end."""
    # Here, as who looks for traces of any kind loads no columns for it.
    from ..chrome_trace.events import durations_ns, instants_ns
    from .kineto_columns import KINDS

    slices = [e for e in events if e.ph == "X" and (e.cat in KINDS or e.cat == "Trace")]
    starts = instants_ns([e.ts for e in slices], head.base_ns).to_pylist() if slices else []
    lengths = durations_ns([e.dur for e in slices]).to_pylist()
    return [
        (event.cat == "Trace", start, start + length)
        for event, start, length in zip(slices, starts, lengths, strict=True)
        if start is not None and length is not None
    ]


def _whole_events(piece: bytes) -> list[Event]:
    """Events of a piece of a file that is cut anywhere."""
    from ..chrome_trace.events import decode_events

    events: list[Event] = []
    body = piece.strip(BLANK).removeprefix(b"[").lstrip(BLANK)
    array_end = re.search(rb"\}[ \t\r\n]*\][ \t\r\n]*[,}]", body)
    if array_end:
        body = body[: array_end.start() + 1]
    for one in BOUNDARY.split(body):
        start = one.find(b"{")
        one = one[start:] if start >= 0 else one
        for event in (one, one + b"}"):
            try:
                events += decode_events(b"[" + event + b"]", ReadLog())
                break
            except ValueError:
                continue
    return events


def _written_ns(path: str) -> list[int]:
    """Instants at which a packed file may have been written: by its name, by its packing."""
    match = _WRITTEN_AT.search(Path(path).name)
    stamps = [int(match[1])] if match else []
    with open_regular(path) as file:
        start = file.read(8)
    if len(start) == 8 and start.startswith(b"\x1f\x8b"):
        (seconds,) = struct.unpack("<I", start[4:])
        stamps.append(seconds * 10**9)
    return stamps


def read_beginning(path: str) -> bytes:
    """The file's bytes, unpacked, until its events begin, and some of these. Raises OSError."""
    data, start = b"", None
    with open_regular(path) as raw:
        stream = decompress(raw)
        try:
            while len(data) < _MOST_BYTES:
                chunk = stream.read(_EDGE_BYTES)
                data += chunk
                start = start or _EVENTS.search(data, max(0, len(data) - len(chunk) - 64))
                if not chunk or (start and len(data) - start.end() >= _EDGE_BYTES):
                    break
        except _READ_ERRORS:
            pass
    return data


def _ending(path: str, most_bytes: int = _EDGE_BYTES) -> bytes:
    """The last bytes; a packed file is unpacked for them from its beginning."""
    with open_regular(path) as file:
        stream = decompress(file)
        if stream is file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            return file.read()
        data = b""
        with suppress(*_READ_ERRORS):
            while part := stream.read(most_bytes):
                data = (data + part)[-most_bytes:]
        return data
