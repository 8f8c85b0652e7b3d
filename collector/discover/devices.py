"""Which devices the files of one profile hold: each of several is a rank of its own.

    PROF_…/device_0, device_1               msprof writes a folder per device
    RANK_DEVICE_MAP, TASK                   of a database
    Device_id in the tables, `NPU 3`        of a text export

A torch_npu process that knows its rank is that rank, whatever devices it touches: only processes
that no file gives a rank are taken apart. Large files are looked at in a few places, not read.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..model import Framework, Role, SourceFile
from ..small_files import open_regular
from .database_facts import ask
from .msprof_layout import device_of

Files = Mapping[Role, tuple[SourceFile, ...]]

_LOOKS, _LEAST_LOOKS = 64, 4
_LOOK_BYTES = 8 << 10
_END_BYTES = 64 << 10
_SMALL_BYTES = 1 << 20
_LABEL = re.compile(rb'"labels"\s*:\s*"NPU\s*:?\s*(\d{1,4})"')
_MOST_DEVICES = 1024
# Roles whose files say of each row which device it is of, where they hold several.
_DEVICE_ROLES: tuple[Role, ...] = ("step_trace", "iterations", "kernels", "task_time")


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of a profile's files. `device_id`, `other_devices`: see RankSource."""

    files: Files
    device_id: int | None = None
    other_devices: tuple[int, ...] = ()


def by_device(framework: Framework, files: Files) -> list[Part]:
    """A part per device where the files hold several ranks' devices, else one of all files."""
    devices = _devices(framework, files)
    if len(devices) < 2:
        return [Part(files)]
    return [
        Part(
            {role: own_files for role in files if (own_files := _own(files[role], device))},
            device,
            tuple(other for other in devices if other != device),
        )
        for device in devices
    ]


def _own(files: tuple[SourceFile, ...], device: int) -> tuple[SourceFile, ...]:
    """Files of the device, and those of all devices."""
    return tuple(file for file in files if device_of(file.path) in (None, device))


def _devices(framework: Framework, files: Files) -> list[int]:
    mapped = _rank_devices(files)
    if framework != "msprof":
        ranks = {rank for rank, _ in mapped if rank >= 0}
        devices = {device for _, device in mapped}
        # Every rank's database may map all ranks of the host.
        is_merged = (
            len(mapped) > 1 and len(ranks) == len(devices) and len(_ran(files) & devices) != 1
        )
        if not is_merged and _tells_rank(files, ranks):
            return []
    numbers = {device for _, device in mapped} | _ran(files)
    for group in files.values():
        numbers |= {device for file in group if (device := device_of(file.path)) is not None}
    for role in _DEVICE_ROLES:
        tables = [file for file in files.get(role, ()) if file.path.endswith(".csv")]
        for file in tables:
            numbers |= _of_table(file, max(_LEAST_LOOKS, _LOOKS // len(tables)))
    if not numbers:
        for file in files.get("trace", ()):
            numbers |= _of_labels(file)
    return sorted(device for device in numbers if 0 <= device < _MOST_DEVICES)


def _tells_rank(files: Files, mapped: set[int]) -> bool:
    """Whether some file gives the whole profile a rank."""
    if mapped:
        return True
    for file in files.get("main_db", ()):
        if re.search(r"_profiler_\d{1,9}\.db$", file.path):
            return True
    for file in files.get("profiler_info", ()):
        if re.search(r"profiler_info_\d+\.json$", file.path):
            return True
        match = re.search(rb'"rank_id"\s*:\s*"?(-?\d+)', _ends(file)[0])
        if match and int(match[1]) >= 0:
            return True
    return False


def _rank_devices(files: Files) -> set[tuple[int, int]]:
    """(rank, device) of the database's RANK_DEVICE_MAP; rank -1 where it names none."""
    query = "select distinct rankId, deviceId from RANK_DEVICE_MAP limit 4096"
    questions = [("RANK_DEVICE_MAP", query)]
    rows = [row for f in files.get("main_db", ())[:1] for row in ask(f.path, questions)[0]]
    return {
        (rank if isinstance(rank, int) else -1, device)
        for rank, device in rows
        if isinstance(device, int) and device >= 0
    }


def _ran(files: Files) -> set[int]:
    return {device for file in files.get("main_db", ())[:1] for device in _of_tasks(file.path)}


def _of_tasks(path: str) -> set[int]:
    """Devices of some of the database's tasks."""
    for (last,) in ask(path, [("TASK", "select max(rowid) from TASK")])[0]:
        if isinstance(last, int) and last > 0:
            rows = ", ".join({str(1 + last * look // _LOOKS) for look in range(_LOOKS)} | {"1"})
            query = f"select distinct deviceId from TASK where rowid in ({rows})"
            devices = ask(path, [("TASK", query)])[0]
            return {device for (device,) in devices if isinstance(device, int)}
    return set()


def _of_table(file: SourceFile, count: int) -> set[int]:
    """Devices of some of the rows of a CSV file, at `count` places and its end."""
    devices: set[int] = set()
    try:
        with open_regular(file.path) as stream:
            titles = _cells(stream.readline(_SMALL_BYTES).decode("utf-8-sig", "replace"))
            names = [title.strip().lower() for title in titles]
            if "device_id" not in names:
                return set()
            place = names.index("device_id")
            if file.size_bytes <= _SMALL_BYTES:
                looks = [(0, _SMALL_BYTES)]
            else:
                looks = [(file.size_bytes * n // count, _LOOK_BYTES) for n in range(count)]
                looks.append((file.size_bytes - _LOOK_BYTES, _LOOK_BYTES))
            for start, size in looks:
                stream.seek(start)
                for line in stream.read(size).split(b"\n")[1:-1]:  # the first may be cut
                    cells = _cells(line.decode("utf-8", "replace"))
                    if len(cells) == len(titles) and cells[place].strip().isdecimal():
                        devices.add(int(cells[place]))
    except OSError:
        return set()
    return devices


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.replace("\0", "").rstrip("\r\n")]), [])
    except csv.Error:
        return []


def _of_labels(file: SourceFile) -> set[int]:
    """Devices that processes at the ends of a timeline are labelled with."""
    return {int(number) for text in _ends(file) for number in _LABEL.findall(text)}


def _ends(file: SourceFile) -> tuple[bytes, bytes]:
    """The first and the last bytes of a file."""
    try:
        with open_regular(file.path) as stream:
            head = stream.read(_END_BYTES)
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _END_BYTES))
            return head, stream.read(_END_BYTES)
    except OSError:
        return b"", b""
