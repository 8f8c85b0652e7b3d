"""Which rank a profile folder belongs to and when it was recorded.

Rank, first answer wins: number in `profiler_info_<rank>.json`; `rank_id` inside it; the DB's
RANK_DEVICE_MAP; number in the DB's file name; `rank` of `distributed_args` in profiler_metadata or
the DB's META_DATA, else the rank's place in its groups there; `rank_id` of msprof's info.json.
Never the folder's name (users rename folders) and never the device (rank 2 may run on device 4).

Window: the profiler's own clock readings; the DB's session; msprof's start_info and end_info; else
first and last times found in the kernel table or at both ends of the timeline.

start_info and end_info tell when msprof collected, on the epoch's clock and on the machine's:

    start_info.0  {"collectionTimeBegin": "1692340024324979", "clockMonotonicRaw": "56579931060630"}
    end_info.0    {"collectionTimeEnd":   "1692340082430569", "clockMonotonicRaw": "56638036649460"}

Collection times are microseconds, the other clock's are nanoseconds. Exports until 2023 tell the
times of events on the machine's clock.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuscope.messages import Message

from ..model import Framework, Role, SourceFile
from ..readers.metadata.profiler_metadata import parse_metadata, read_metadata
from ..small_files import open_regular, read_small
from ..wall_clock import EPOCH_FROM_NS
from .database_facts import Row, ask
from .msprof_layout import device_of

_PROBE_BYTES = 1 << 16
_US = re.compile(rb'"ts"\s*:\s*"?(\d{6,17})(?:\.(\d{1,3}))?')
_CELL_US = re.compile(r"\s*(\d{6,17})(?:\.(\d{1,3})\d*)?\s*")
# Where a rank came from that some collectors write for every device.
OF_INFO = "rank_id in info.json"
_METADATA = """select name, value from META_DATA
    where name in ('distributed_args', 'parallel_group_info') limit 64"""
_CSV_START = re.compile(r"(task )?start time\(us\)|task start time")


@dataclass(frozen=True, slots=True)
class Identity:
    """Rank (None: nobody tells), how it was found, host and device for ordering, and the window."""

    rank: int | None
    origin: str
    host: str = ""
    device: int = -1
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    warnings: tuple[str, ...] = ()


def identify(
    framework: Framework,
    files: Mapping[Role, tuple[SourceFile, ...]],
    device_id: int | None = None,
) -> Identity:
    """Resolve rank and window of one profile; unreadable hints become warnings, not errors.

    device_id: of a profile of several devices, the one that is meant.
    """
    warnings: list[str] = []
    infos = [(file.path, _load(file.path, warnings)) for file in files.get("profiler_info", ())]
    database = files.get("main_db", ())
    facts = _database_facts(database[0].path, device_id) if database else {}
    machines = {file.path: _load(file.path, warnings) for file in files.get("info", ())}

    answers: list[tuple[int, str]] = []
    for path, _ in infos:
        answers += _from_name(path, r"profiler_info_(\d+)\.json", "number in profiler_info's name")
    for _, info in infos:
        answers += _valid(info.get("rank_id"), "rank_id in profiler_info")
    answers += _valid(facts.get("rank"), "RANK_DEVICE_MAP of the DB")
    if database:
        answers += _from_name(
            database[0].path, r"ascend_\w+_profiler_(\d+)\.db", "number in the DB's name"
        )
    # It is of the process: of one whose devices are ranks each it tells none.
    for file in files.get("profiler_metadata", ()) if not answers and device_id is None else ():
        answers += _valid(read_metadata(file.path).rank, "rank in profiler_metadata")
    if database and not answers and device_id is None:
        rows = ask(database[0].path, [("META_DATA", _METADATA)])[0]
        told = parse_metadata({str(name): value for name, value in rows})
        answers += _valid(told.rank, "rank in META_DATA of the DB")
    for path, info in machines.items() if not answers or framework == "msprof" else ():
        # Beside what torch_npu and MindSpore say of the rank, this is what the process was told.
        if device_id is None or path.endswith(f".{device_id}"):  # else it speaks of all devices
            answers += _valid(info.get("rank_id"), OF_INFO)
    if len({rank for rank, _ in answers}) > 1:
        words = ", ".join(f"{rank} by {origin}" for rank, origin in answers)
        warnings.append(
            Message("sources disagree on the rank ({told}): the first is used", told=words)
        )
    rank, origin = answers[0] if answers else (None, "")

    start, end = _window(infos, facts, files)
    keys = ("hostUid", "hostname")
    told_hosts = [one[key] for key in keys for one in machines.values() if one.get(key)]
    host = str(facts.get("host") or next(iter(told_hosts), ""))
    if device_id is None:
        device_id = _integer(facts.get("device"))
    numbers = [Path(file.path).suffix[1:] for file in files.get("info", ())]
    numbered = [int(number) for number in numbers if number.isdecimal()]  # info.json.<device>
    if device_id is None and len(numbered) == 1:
        device_id = numbered[0]
    return Identity(
        rank=rank,
        origin=origin,
        host=host,
        device=-1 if device_id is None else device_id,
        window_start_ns=start,
        window_end_ns=end,
        warnings=tuple(warnings),
    )


def _from_name(path: str, pattern: str, origin: str) -> list[tuple[int, str]]:
    match = re.fullmatch(pattern, Path(path).name)
    return _valid(match[1], origin) if match else []


def _valid(value: object, origin: str) -> list[tuple[int, str]]:
    rank = _integer(value)
    return [(rank, origin)] if rank is not None and 0 <= rank < 1 << 31 else []


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return int(str(value).strip())
    except ValueError:
        return None


def _load(path: str, warnings: list[str]) -> dict[str, Any]:
    """A small JSON object; {} with a warning where the file is not one."""
    try:
        loaded = json.loads(read_small(path).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        warnings.append(
            Message(
                "{file}: not read: {kind}: {error}",
                file=path,
                kind=type(error).__name__,
                error=str(error),
            )
        )
        return {}
    if not isinstance(loaded, dict):
        warnings.append(Message("{file}: not read: a JSON object was expected", file=path))
        return {}
    return loaded


# The device of most of 200 tasks, found by their rowid: to look at all takes long.
_BUSIEST = """
    with recursive look (n) as (select 0 union all select n + 1 from look where n < 199)
    select deviceId from look join TASK on TASK.rowid = 1 + n * (select max(rowid) from TASK) / 200
    where deviceId >= 0 group by 1 order by count(*) desc, 1 limit 1"""


def _database_facts(path: str, device_id: int | None) -> dict[str, object]:
    """Rank, device, host and session of a profiler DB; {} where its reader will say why not."""
    of_device = "" if device_id is None else f"where deviceId = {device_id}"
    # msprof names no rank (-1) but a device
    rank = f"select rankId, deviceId from RANK_DEVICE_MAP {of_device} order by rankId < 0"
    session = "SESSION_TIME_INFO"
    questions = {
        ("rank", "device"): ("RANK_DEVICE_MAP", f"{rank}, 1, 2 limit 1"),
        ("mapped",): ("RANK_DEVICE_MAP", f"select count(*) from RANK_DEVICE_MAP {of_device}"),
        ("host",): ("HOST_INFO", "select hostUid from HOST_INFO limit 1"),
        ("start",): (session, f"select startTimeNs from {session} where startTimeNs > 0 limit 1"),
        ("end",): (session, f"select endTimeNs from {session} where endTimeNs > 0 limit 1"),
    }
    facts = _by_name(questions, ask(path, [*questions.values()]))
    mapped = facts.pop("mapped", None)
    if isinstance(mapped, int) and mapped > 1:
        # All ranks of a host may be mapped: the rank's own has the device of most tasks.
        for (own,) in ask(path, [("TASK", _BUSIEST)])[0]:
            if isinstance(own, int):
                nearest = ("RANK_DEVICE_MAP", f"{rank}, deviceId <> {own}, 1, 2 limit 1")
                facts |= _by_name([("rank", "device")], ask(path, [nearest]))
    if not (facts.get("start") and facts.get("end")):
        # Without an index this reads the whole table: only where no session is recorded.
        tasks = {
            ("first_task", "last_task"): ("TASK", "select min(startNs), max(startNs) from TASK")
        }
        facts |= _by_name(tasks, ask(path, [*tasks.values()]))
    return facts


def _by_name(questions: Iterable[tuple[str, ...]], answers: list[list[Row]]) -> dict[str, object]:
    by_name: dict[str, object] = {}
    for names, rows in zip(questions, answers, strict=True):
        for row in rows[:1]:
            by_name.update(zip(names, row, strict=True))
    return by_name


def _window(
    infos: Iterable[tuple[str, dict[str, Any]]],
    facts: Mapping[str, object],
    files: Mapping[Role, tuple[SourceFile, ...]],
) -> tuple[int | None, int | None]:
    """The first window told that can be one: clocks jump, and files are damaged."""
    for start, end in _windows(infos, facts, files):
        if 0 <= start <= end < 1 << 63:
            return start, end
    return None, None


def _windows(
    infos: Iterable[tuple[str, dict[str, Any]]],
    facts: Mapping[str, object],
    files: Mapping[Role, tuple[SourceFile, ...]],
) -> Iterator[tuple[int, int]]:
    for _, info in infos:
        end = _integer(_inner(info, "end_info", "collectionTimeEnd"))
        last = _integer(_inner(info, "end_info", "MonotonicTimeEnd"))
        first = _integer(_inner(info, "start_info", "start_monotonic"))
        if end and last and first and first <= last:
            yield end - (last - first), end
    start, end = _integer(facts.get("start")), _integer(facts.get("end"))
    first, last = _integer(facts.get("first_task")), _integer(facts.get("last_task"))
    if (told_start := start or first) and (told_end := end or last):
        yield told_start, told_end
    stamps = _stamps(files)
    session = session_ns([file.path for file in files.get("session", ())], min(stamps, default=0))
    if session is not None:
        yield session
    if stamps:
        yield min(stamps), max(stamps)


def _stamps(files: Mapping[Role, tuple[SourceFile, ...]]) -> list[int]:
    """Some times in ns that events of the profile have."""
    probes: tuple[tuple[Role, Callable[[bytes, bytes], list[int]]], ...] = (
        ("kernels", _csv_stamps),
        ("trace", _trace_stamps),
    )
    for role, stamps_of in probes:
        head, tail = _ends([file.path for file in files.get(role, ())])
        if stamps := stamps_of(head, tail):
            return stamps
    return []


def _inner(info: Mapping[str, Any], section: str, key: str) -> object:
    inner = info.get(section)
    return inner.get(key) if isinstance(inner, dict) else None


def _ends(paths: list[str]) -> tuple[bytes, bytes]:
    """The head of the first file and the tail of the last."""
    if not paths:
        return b"", b""
    try:
        with open_regular(paths[0]) as file:
            head = file.read(_PROBE_BYTES)
        with open_regular(paths[-1]) as file:
            file.seek(max(0, file.seek(0, 2) - _PROBE_BYTES))
            return head, file.read(_PROBE_BYTES)
    except OSError:
        return b"", b""


def _trace_stamps(head: bytes, tail: bytes) -> list[int]:
    """Times in ns."""
    stamps = _US.findall(head + b"\n" + tail)
    return [int(us) * 1000 + int((ns or b"0").ljust(3, b"0")) for us, ns in stamps]


def _csv_stamps(head: bytes, tail: bytes) -> list[int]:
    """Starts in ns, of their own column only: a long duration looks like an early instant."""
    titles, *rows = _cells(head) or [[]]
    names = [title.strip('\ufeff \t"').lower() for title in titles]
    place = next((i for i, name in enumerate(names) if _CSV_START.fullmatch(name)), None)
    if place is None:
        return []
    # The last line of the head and the first of the tail may be cut.
    cells = [row[place] for row in rows[:-1] + _cells(tail)[1:] if len(row) == len(titles)]
    cells = cells or [row[place] for row in rows if len(row) == len(titles)]
    stamps = (_CELL_US.fullmatch(cell) for cell in cells)
    return [int(m[1]) * 1000 + int((m[2] or "0").ljust(3, "0")) for m in stamps if m]


def _cells(text: bytes) -> list[list[str]]:
    lines = text.decode("utf-8", "replace").replace("\0", "").splitlines()
    cells = []
    for line in lines:
        try:
            cells += list(csv.reader([line]))
        except csv.Error:
            continue
    return cells


def session_ns(paths: Iterable[str], event_ns: int) -> tuple[int, int] | None:
    """First and last ns of the session on the clock that an event has; None where nothing tells.

    A device's own files are believed before the host's. A session that does not hold the event is
    of another clock, and tells nothing.
    """
    ordered = sorted(paths, key=lambda path: device_of(path) is None)
    begins = [_readings(path, "collectionTimeBegin") for path in ordered if _is(path, "start")]
    ends = [_readings(path, "collectionTimeEnd") for path in ordered if _is(path, "end")]
    for begin, end in zip(begins, ends, strict=False):
        for start_ns, end_ns in zip(begin, end, strict=True):
            if start_ns is None or end_ns is None or not 0 < start_ns < end_ns:
                continue
            if (start_ns >= EPOCH_FROM_NS) != (event_ns >= EPOCH_FROM_NS) and event_ns:
                continue
            if not event_ns or start_ns <= event_ns <= end_ns:
                return start_ns, end_ns
    return None


def _is(path: str, which: str) -> bool:
    return Path(path).name.startswith(f"{which}_info")


def _readings(path: str, key: str) -> tuple[int | None, int | None]:
    """ns on the epoch's clock and on the machine's."""
    try:
        content = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(content, dict):
        return None, None
    wall = _digits(content.get(key))
    if wall is not None and wall < EPOCH_FROM_NS // 10:
        wall *= 1000
    return wall, _digits(content.get("clockMonotonicRaw"))


def _digits(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None
