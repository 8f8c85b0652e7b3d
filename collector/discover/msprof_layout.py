"""Where msprof puts what it exports, in its two layouts.

    PROF_…/msprof_20250102030405.db                              the database
    PROF_…/mindstudio_profiler_output/msprof_20250102030405.json, op_summary_20250102030405.csv, …
    PROF_…/analyze/communication.json                            after `msprof --analyze=on`
    PROF_…/host/info.json, PROF_…/device_3/info.json.3           what ran it, and where

    PROF_…/device_3/timeline/msprof_3_2_10.json, summary/…   until 2023: device, model, iteration

Names decide. The older layout counts where the newer one has nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..model import Framework, Role, SourceFile

OUTPUT = "mindstudio_profiler_output"
# Values of the rules `layout` and `devices`.
NEWER, OLDER = "one export for all devices", "device_N/timeline, one file per iteration"
APART = "several in the same files, each a rank of its own"

_DEVICE_FOLDER = re.compile(r"device_(\d{1,4})")
_OLDER_FOLDERS = ("timeline", "summary")
# Names that say themselves who wrote them, and names that no msprof gives.
_OF_MSPROF = re.compile(r"msprof_.*\.(db|json(\.gz)?)|op_summary.*\.csv")
_OF_OTHERS = re.compile(r"trace_view\.json(\.gz)?|kernel_details.*\.csv|ascend_.*\.db|analysis\.db")
# The kind of a timeline's file, whatever numbers it has, and its time stamp.
_TIMELINE = re.compile(r"(msprof|hccl|task_time)((?:_slice_\d{1,6}|_\d{1,20}){0,5})\.json")
_STAMP = re.compile(r"_(\d{14,20})(?=[_.])")
_SLICE = re.compile(r"_slice_(\d+)")


def is_msprof(names: Iterable[str]) -> bool:
    """Whether files of these names are msprof's own exports."""
    entries = list(names)
    ours = any(_OF_MSPROF.fullmatch(name) for name in entries)
    return ours and not any(_OF_OTHERS.fullmatch(name) for name in entries)


def is_prof(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder of another name is laid out as msprof's are."""
    return any(
        name == OUTPUT or (_DEVICE_FOLDER.fullmatch(name) and (folder / name / "timeline").is_dir())
        for name in names
    )


def places(folder: Path) -> list[Path]:
    """Folders of a profile in which exports lie, and what tells of its devices."""
    return [folder / OUTPUT, folder / "analyze", *info_places(folder)]


def info_places(folder: Path) -> list[Path]:
    """Folders that tell who ran a profile; those beside `folder`, if it is a part of one."""
    if folder.name in (OUTPUT, "analyze"):
        folder = folder.parent
    elif folder.name in _OLDER_FOLDERS:
        return [folder.parent, folder.parent.parent / "host"]
    return [folder / n for n in names_in(folder) if n == "host" or _DEVICE_FOLDER.fullmatch(n)]


def older_places(folder: Path) -> list[Path]:
    """Folders of the older layout: of every device, timeline and summary."""
    if folder.name in _OLDER_FOLDERS:
        return [folder.parent / name for name in _OLDER_FOLDERS]
    devices = sorted(n for n in names_in(folder) if _DEVICE_FOLDER.fullmatch(n))
    return [folder / device / name for device in devices for name in _OLDER_FOLDERS]


def device_of(path: str) -> int | None:
    """The device whose folder a file lies in, or None."""
    folder = Path(path).parent
    if folder.name in _OLDER_FOLDERS:
        folder = folder.parent
    match = _DEVICE_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


def timeline_roles(names: Iterable[str]) -> dict[str, Role]:
    """Files of an older timeline that are read as a trace.

    `hccl_*` and `task_time_*` hold the same slices as `msprof_*` of their numbers: they count where
    it is missing.
    """
    by_numbers: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if match := _TIMELINE.fullmatch(name):
            numbers = _SLICE.sub("", _STAMP.sub("", f"{match[2]}."))
            by_numbers.setdefault(numbers, {}).setdefault(match[1], []).append(name)
    return {
        name: "trace"
        for kinds in by_numbers.values()
        for kind, found_names in kinds.items()
        if kind == "msprof" or "msprof" not in kinds
        for name in found_names
    }


def newest_of_each(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    """Of files that differ in their time stamps only the newest ones, in order of their numbers.

    Every iteration was exported by itself: those of one folder may have different time stamps.
    """
    alike: dict[tuple[str, str], list[SourceFile]] = {}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        alike.setdefault((folder, _SLICE.sub("", _STAMP.sub("", name))), []).append(file)
    newest = [file for group in alike.values() for file in newest_export(group)]
    return tuple(sorted(newest, key=lambda file: in_number_order(file.path)))


def newest_export(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """All pieces of the newest export: a folder may hold the results of several.

    Slices are written one after the other and may have time stamps of their own: where others are
    there, too, those before the newest belong to it as long as their numbers fall.
    """

    def piece(file: SourceFile) -> tuple[int, str]:
        match = _SLICE.search(Path(file.path).name)
        return (int(match[1]) if match else -1, file.path)

    def time_of(file: SourceFile) -> tuple[str, int]:
        name = Path(file.path).name
        match = _STAMP.search(name)
        # The framework's own, which has no stamp, holds what msprof's copy does and more.
        is_framework = not match and not _OF_MSPROF.fullmatch(name)
        return ("~" if is_framework else match[1] if match else "", piece(file)[0])

    files = _of_one_form(files, time_of)
    numbers = [piece(file)[0] for file in files]
    newest = list(files)
    if -1 in numbers or len(set(numbers)) < len(files):
        first, *older = sorted(files, key=time_of, reverse=True)
        newest = [first]
        for file in older:
            (stamp, number), (last, lowest) = time_of(file), time_of(newest[-1])
            if stamp != last and not 0 <= number < lowest:
                break
            newest.append(file)
    return tuple(sorted(newest, key=piece))


def _of_one_form(
    files: Sequence[SourceFile], written: Callable[[SourceFile], tuple[str, int]]
) -> Sequence[SourceFile]:
    """Without the older of an export in one piece and one in slices that nothing else dates."""
    newest, _ = max(map(written, files))
    alike = sorted((f for f in files if written(f)[0] == newest), key=lambda f: f.mtime_ns)
    is_whole = [written(file)[1] < 0 for file in alike]
    if all(is_whole) or not any(is_whole):
        return files
    older = {file for file, whole in zip(alike, is_whole, strict=True) if whole != is_whole[-1]}
    return [file for file in files if file not in older]


def missing_slices(files: Iterable[SourceFile]) -> list[int]:
    """Numbers before the last slice of a table of which there is no file; none of a whole table."""
    numbers = {int(one[1]) for file in files if (one := _SLICE.search(Path(file.path).name))}
    return sorted({*range(max(numbers, default=0))} - numbers)


def rules(
    framework: Framework,
    files: Mapping[Role, tuple[SourceFile, ...]],
    other_devices: tuple[int, ...],
) -> tuple[tuple[str, str], ...]:
    """Variants that the places and names of a rank's files show, as in ReadLog.rules."""
    pairs: list[tuple[str, str]] = []
    paths = [Path(file.path) for group in files.values() for file in group]
    if any(path.parent.name in _OLDER_FOLDERS for path in paths):
        pairs.append(("layout", OLDER))
    elif framework == "msprof":
        pairs.append(("layout", NEWER))
    if other_devices:
        pairs.append(("devices", APART))
    return tuple(pairs)


def in_number_order(text: str) -> list[tuple[int, str]]:
    """A sort key by which `rank_10` comes after `rank_2`."""
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def names_in(folder: Path) -> list[str]:
    """Names in a folder, in order; none of one that cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
