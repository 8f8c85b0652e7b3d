"""Which folders under a path hold profiles, and which files of each rank play which role.

    any depth/…_ascend_pt/            framework folder (torch_npu, MindSpore)
        profiler_info_3.json          rank 3
        ASCEND_PROFILER_OUTPUT/       what was exported: text, DB, or both
        PROF_…/                       raw data; its own exports count where there are no others
    any depth/PROF_…/                 stand-alone msprof: see msprof_layout; a rank per device
    any depth/folder with such files  a rank whose folders were renamed or flattened
    any depth/train.json              a rank of a GPU, one per file: see kineto_files
    one file                          that file alone: see lone_files

Nothing is opened for writing and no file is read here but a few small heads: names decide, but for
Kineto traces and a file that is named by itself: there it is the content.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from npuscope.errors import TraceNotFound

from ..error_line import error_line
from ..model import Framework, RankSource, Role, SourceFile
from ..readers.metadata.profiler_metadata import read_metadata
from . import cluster_outputs, kineto_files, lone_files, msprof_layout
from .devices import by_device
from .expert_folders import FOLDER, holds_counts
from .identity import Identity, identify
from .msprof_layout import names_in
from .numbering import with_ranks
from .roles import EXPORTS, role_of
from .unread_files import ARCHIVE, what_to_do

OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"

_FRAMEWORK_FOLDER = re.compile(r".*_ascend_(pt|ms)")
_PROF_FOLDER = re.compile(r"PROF_.+")
_PACKED_PROFILE = re.compile(r".*_ascend_(pt|ms)\.|PROF_[^.]+\.")
# Dumped arguments, hidden folders: never a profile's export. Raw data and logs lie inside profile
# folders, which are not searched further.
_SKIP = re.compile(r".*_op_arg|\..*")
_IS_INFO = re.compile(r"profiler_info(_\d+)?\.json").fullmatch
_RANK_DB = re.compile(r"_profiler_(\d{1,9})\.db$")
_KERNEL_TABLE = re.compile(r"kernel_details(_\d{1,9})?\.csv$")
# Folders looked into at once: on network storage each look is a chain of waits.
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """A place that looked like a profile but cannot be used, and what to do about it."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a path holds: ranks that can be read, places that cannot, and folders beside them in
    which a training hook counted tokens per expert."""

    ranks: tuple[RankSource, ...]
    problems: tuple[Problem, ...]
    load_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """One rank's files as they lie, and what they tell.

    `device_id`, `other_devices`, `rules`, `nodes`, `shared_by`: see RankSource.
    """

    folder: str
    framework: Framework
    files: Mapping[Role, tuple[SourceFile, ...]]
    identity: Identity
    device_id: int | None = None
    other_devices: tuple[int, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class Findings:
    """What one machine sees below a path, before ranks that no file tells are numbered."""

    profiles: tuple[Profile, ...]
    problems: tuple[Problem, ...]
    load_folders: tuple[str, ...] = ()


Finds = tuple[list[Profile], list[Problem]]
Place = TypeVar("Place", Path, tuple[Path, Framework])


def discover(path: Path) -> Discovery:
    """Find every rank's profile at or below `path`.

    Raises TraceNotFound where the path is missing or holds nothing that looks like a profile.
    """
    return number_ranks(search(path))


def search(path: Path) -> Findings:
    """`discover`, before ranks are numbered. Raises TraceNotFound like it."""
    if not path.exists():
        raise TraceNotFound(f"{path}: no such file or folder")
    if not path.is_dir():
        return _of_file(path.absolute())
    problems: list[Problem] = []
    profiles: list[Profile] = []
    results: list[Path] = []
    loads: list[Path] = []
    places = _profile_folders(path, problems, results, loads)
    with ThreadPoolExecutor(_WORKERS) as threads:
        for findings, unusable in threads.map(_guard(_look_into), places):
            profiles += findings
            problems += unusable
        if not profiles:  # what was made of profiles tells less than they do
            for findings, unusable in threads.map(_guard(_of_results), results):
                profiles += findings
                problems += unusable
    if not profiles and not problems:
        if told := what_to_do(path):
            raise TraceNotFound(f"{path}: no profile here or below, but {told}")
        raise TraceNotFound(
            f"{path}: no *_ascend_pt, *_ascend_ms, PROF_* folder or Kineto trace here or below: "
            "was analyse() run, and is this the folder the profiler wrote to?"
        )
    return Findings(tuple(profiles), tuple(problems), tuple(map(str, loads)))


def lone_loads(path: Path) -> tuple[Path, ...]:
    """Folders of a training hook's counts below a path without any profile; none where there is a
    profile."""
    loads: list[Path] = []
    if path.is_dir() and next(_profile_folders(path, [], [], loads), None) is None:
        return tuple(loads)
    return ()


def _look_into(place: tuple[Path, Framework]) -> Finds:
    folder, framework = place
    if framework == "kineto":
        look = kineto_files.look_into(folder)
        if isinstance(look, str):
            return [], [Problem(str(folder), look)]
        return [Profile(str(folder), framework, {"kineto": (f,)}, who) for f, who in look], []
    problems: list[Problem] = []
    files = _files(folder, framework, problems)
    if not EXPORTS & files.keys():
        return [], [*problems, Problem(str(folder), _nothing_exported(folder, framework))]
    return _profiles(folder, framework, files), problems


def _profiles(
    folder: Path, framework: Framework, files: dict[Role, tuple[SourceFile, ...]]
) -> list[Profile]:
    profiles: list[Profile] = []
    for one_rank in _by_rank(files):
        for part in by_device(framework, one_rank):
            identity = identify(framework, part.files, part.device_id)
            rules = msprof_layout.rules(framework, part.files, part.other_devices)
            profiles.append(
                Profile(
                    str(folder), framework, part.files, identity, part.device_id,
                    part.other_devices, rules,
                )
            )  # fmt: skip
    return profiles


def _of_file(path: Path) -> Findings:
    """What one file holds, and nothing beside it. Raises TraceNotFound."""
    lone = lone_files.look_at(path)
    if lone.role == "kineto":
        identity = kineto_files.identify(str(path))
        profiles = [Profile(str(path), "kineto", {"kineto": (lone.file,)}, identity)]
    elif lone.role == "cluster_output":
        output = cluster_outputs.describe_files(path, [lone.file], [])
        if output.problem:
            raise TraceNotFound(f"{path}: {output.problem}")
        profiles = _of_output(output)
    else:
        profiles = _profiles(path, lone.framework, {lone.role: (lone.file,)})
    return Findings(tuple(profiles), ())


def _guard(look: Callable[[Place], Finds]) -> Callable[[Place], Finds]:
    """A way to look at a place that makes a problem of whatever goes wrong: one profile that nobody
    foresaw must not hide the others."""

    def guarded(place: Place) -> Finds:
        try:
            return look(place)
        except Exception as error:
            folder = place if isinstance(place, Path) else place[0]
            return [], [Problem(str(folder), f"cannot be read: {error_line(error)}")]

    return guarded


def _of_results(folder: Path) -> Finds:
    """A profile for each rank that results of msprof-analyze are about."""
    output = cluster_outputs.look_at(folder)
    problems = [Problem(output.folder, output.problem)] if output.problem else []
    return _of_output(output), problems


def _of_output(output: cluster_outputs.ClusterOutput) -> list[Profile]:
    start_ns, end_ns = output.window_start_ns, output.window_end_ns
    return [
        Profile(
            output.folder, "msprof_analyze", {"cluster_output": output.files},
            Identity(rank, cluster_outputs.ORIGIN, window_start_ns=start_ns, window_end_ns=end_ns),
            shared_by=len(output.ranks),
        )
        for rank in output.ranks
    ]  # fmt: skip


def number_ranks(findings: Findings) -> Discovery:
    """Ranks that no file tells are numbered in order of (host, device, folder), past the known."""
    profiles = findings.profiles
    identities = with_ranks([(profile.folder, profile.identity) for profile in profiles])
    ranks: list[RankSource] = []
    order = sorted(
        zip(profiles, identities, strict=True),
        key=lambda one: (one[1].host, one[1].device, one[0].folder),
    )
    for profile, identity in order:
        assert identity.rank is not None
        ranks.append(
            RankSource(
                root=profile.folder,
                framework=profile.framework,
                rank=identity.rank,
                rank_origin=identity.origin,
                files=profile.files,
                window_start_ns=identity.window_start_ns,
                window_end_ns=identity.window_end_ns,
                warnings=identity.warnings,
                nodes=profile.nodes,
                shared_by=profile.shared_by + len(profile.other_devices),
                device_id=profile.device_id,
                other_devices=profile.other_devices,
                rules=profile.rules,
            )
        )
    return Discovery(tuple(ranks), findings.problems, findings.load_folders)


def job_name(source: RankSource) -> str | None:
    """The training job's name, where the rank's metadata tells one."""
    metadata = source.path("profiler_metadata")
    return read_metadata(metadata).job_name if metadata else None


def _profile_folders(
    start: Path, problems: list[Problem], results: list[Path], loads: list[Path]
) -> Iterator[tuple[Path, Framework]]:
    """Folders that are one rank's profile each, depth first in name order; `results` gets those
    with results of msprof-analyze, `loads` those with a training hook's counts."""
    pending, visited = [start.resolve()], set[Path]()
    while pending:
        folder = pending.pop()
        if folder in visited:
            continue
        visited.add(folder)
        try:
            with os.scandir(folder) as entries:
                children = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            problems.append(Problem(str(folder), f"cannot be listed ({error.strerror})"))
            continue
        names = [child.name for child in children]
        kind = _framework(folder, names)
        if kind:
            if FOLDER in names and holds_counts(inner := folder / FOLDER, names_in(inner)):
                loads.append(inner)
            yield folder, kind
            continue
        if cluster_outputs.holds_results(names):
            results.append(folder)
        if holds_counts(folder, names):
            loads.append(folder)
        for trace in kineto_files.candidates(folder, names):
            yield trace, "kineto"
        if flat := [name for name in names if "\\" in name and role_of(name.rpartition("\\")[2])]:
            what = "not read: \\ in names stands for folders: unpack it with a tool that makes them"
            problems.append(Problem(str(folder / flat[0]), what))
        problems += [
            Problem(str(folder / packed), "packed, not read: unpack it")
            for packed in filter(ARCHIVE.fullmatch, names)
            if _PACKED_PROFILE.match(packed) and packed.split(".")[0] not in names
        ]
        for child in children:
            try:
                if child.is_dir() and not (folder != start and _SKIP.fullmatch(child.name)):
                    pending.append(Path(child.path).resolve())
                elif child.is_symlink() and (lost := _lost_profile(child.path)):
                    problems.append(lost)
            except OSError as error:
                if error.errno != errno.ELOOP:  # a link to itself hides nothing
                    problems.append(Problem(child.path, f"cannot be read ({error.strerror})"))


def _lost_profile(link: str) -> Problem | None:
    """A profile that a link leads to and that is not there now: what was read of it stays."""
    target = Path(os.path.realpath(link))
    is_profile = any(
        pattern.fullmatch(name)
        for pattern in (_FRAMEWORK_FOLDER, _PROF_FOLDER)
        for name in (target.name, Path(link).name)
    )
    if not is_profile or target.exists():
        return None
    return Problem(str(target), f"not there, but {link} leads to it: is its disk mounted?")


def _framework(folder: Path, names: list[str]) -> Framework | None:
    """Which producer wrote this folder, or None where it is no rank's profile."""
    marked = _FRAMEWORK_FOLDER.fullmatch(folder.name)
    if marked:
        return "mindspore" if marked[1] == "ms" else "pytorch"
    if _PROF_FOLDER.fullmatch(folder.name):
        return "msprof"
    # Renamed, analysed or with raw data alone.
    if OUTPUT_FOLDER in names or ("FRAMEWORK" in names and any(map(_IS_INFO, names))):
        inner = (
            name for place in (OUTPUT_FOLDER, "FRAMEWORK") for name in names_in(folder / place)
        )
        return _framework_of_names([*inner, *names])
    if msprof_layout.is_prof(folder, names):  # renamed
        return "msprof"
    roles = {role for name in names if (role := role_of(name))}
    # A folder of JSON called trace.json or info.json is not yet a profile.
    timeline = any(re.fullmatch(r"(trace_view|msprof_.*)\.json(\.gz)?", name) for name in names)
    if timeline or roles & (EXPORTS - {"trace"}):
        return _framework_of_names(names)
    return None


def _framework_of_names(names: list[str]) -> Framework:
    if any("mindspore" in name for name in names):
        return "mindspore"
    return "msprof" if msprof_layout.is_msprof(names) else "pytorch"


def _files(
    folder: Path, framework: Framework, problems: list[Problem]
) -> dict[Role, tuple[SourceFile, ...]]:
    """Files of a profile by role: the newest export where several lie side by side."""
    places = [folder, folder / OUTPUT_FOLDER]
    if folder.name == OUTPUT_FOLDER:
        places.append(folder.parent)  # profiler_info_*.json stands one level up
    if framework == "msprof":
        places += msprof_layout.places(folder)
    files_by_role = _collect(places, problems, info_only={folder.parent})
    profs = [folder] if framework == "msprof" else _prof_children(folder)
    if framework != "msprof" and not EXPORTS & files_by_role.keys():
        # analysis kept only what msprof itself exported, of each session for itself
        inner: dict[Role, tuple[SourceFile, ...]] = {}
        for prof in profs:
            for role, files in _collect([prof, *msprof_layout.places(prof)], problems).items():
                inner[role] = (*inner.get(role, ()), *files)
        files_by_role = {**inner, **files_by_role}
    if not {"main_db", "trace", "kernels"} & files_by_role.keys():
        older = [place for prof in profs for place in msprof_layout.older_places(prof)]
        files_by_role = {**_collect(older, problems, older=True), **files_by_role}
    if (
        "info" not in files_by_role
    ):  # raw data that was kept tells the chip, which text exports do not
        devices = [place for prof in profs for place in msprof_layout.info_places(prof)]
        files_of = _collect(devices, problems)
        files_by_role |= {role: files for role, files in files_of.items() if role == "info"}
    return files_by_role


def _prof_children(folder: Path) -> list[Path]:
    return [folder / name for name in names_in(folder) if _PROF_FOLDER.fullmatch(name)]


def _collect(
    places: list[Path],
    problems: list[Problem],
    info_only: set[Path] | None = None,
    *,
    older: bool = False,
) -> dict[Role, tuple[SourceFile, ...]]:
    """Regular files by role; `older`: of msprof's older layout."""
    by_role: dict[Role, list[SourceFile]] = {}
    for place in places:
        names = names_in(place)
        timeline = msprof_layout.timeline_roles(names) if older else {}
        for name in names:
            role = timeline.get(name) or role_of(name)
            bare = name.removesuffix(".gz")
            if role is None and bare not in names and role_of(bare) in EXPORTS:
                problems.append(Problem(str(place / name), "packed, not read: `gunzip` it"))
            elif role is None and name.lower() not in names and role_of(name.lower()) in EXPORTS:
                what = f"not read: rename it to {name.lower()}, as the profiler calls it"
                problems.append(Problem(str(place / name), what))
            if role is None or (info_only and place in info_only and role in EXPORTS):
                continue
            path = place / name
            try:
                state = path.stat()
            except OSError as error:
                problems.append(Problem(str(path), f"cannot be read ({error.strerror})"))
                continue
            if not stat.S_ISREG(state.st_mode):
                # Opening a pipe could wait for ever.
                kind = "a folder" if stat.S_ISDIR(state.st_mode) else "not a regular file"
                problems.append(Problem(str(path), f"cannot be read: it is {kind}"))
                continue
            by_role.setdefault(role, []).append(
                SourceFile(str(path), state.st_size, state.st_mtime_ns)
            )
    if older:
        return {role: msprof_layout.newest_of_each(files) for role, files in by_role.items()}
    newest = {role: msprof_layout.newest_export(files) for role, files in by_role.items()}
    for files in newest.values():
        if lacking := msprof_layout.missing_slices(files):
            numbers = ", ".join(map(str, lacking[:8]))
            what = f"slices {numbers} of this table are missing: copy them too, or export again"
            problems.append(Problem(files[-1].path, what))
    if "kernels" in newest:
        newest["kernels"] = _of_one_rank(newest["kernels"], problems)
    return newest


def _of_one_rank(files: tuple[SourceFile, ...], problems: list[Problem]) -> tuple[SourceFile, ...]:
    """Without kernel tables that somebody put beside another: nothing tells whose they are."""
    whole = [file for file in files if _KERNEL_TABLE.search(file.path)]
    for beside in sorted(whole, key=lambda file: (len(file.path), file.path))[1:]:
        problems.append(
            Problem(
                beside.path,
                "not read, another kernel table stands beside it: give each rank a folder",
            )
        )
        files = tuple(file for file in files if file is not beside)
    return files


def _by_rank(
    files: dict[Role, tuple[SourceFile, ...]],
) -> list[dict[Role, tuple[SourceFile, ...]]]:
    """One set of files per rank where the DBs of several ranks were put into one folder.

    Only the DB and the profiler_info of its number can be told apart then; the rest is nobody's.
    """
    databases = files.get("main_db", ())
    numbers = {file: _RANK_DB.search(file.path) for file in databases}
    if len(databases) < 2 or not all(numbers.values()):
        return [files]
    parts: list[dict[Role, tuple[SourceFile, ...]]] = []
    for file, number in numbers.items():
        part: dict[Role, tuple[SourceFile, ...]] = {"main_db": (file,)}
        ending = f"profiler_info_{number[1]}.json" if number else ""
        own = tuple(f for f in files.get("profiler_info", ()) if f.path.endswith(ending))
        if own:
            part["profiler_info"] = own
        parts.append(part)
    return parts


def _nothing_exported(folder: Path, framework: Framework) -> str:
    if not names_in(folder):
        return "the folder is empty: profiling was stopped, or copying: copy or record it again"
    if framework == "msprof":
        return "raw data only: run `msprof --export=on --output=<this folder>` first"
    for name in names_in(folder):
        if name.upper() == OUTPUT_FOLDER != name:
            return f"{name} is not read: rename it to {OUTPUT_FOLDER}, as the profiler calls it"
    if (folder / OUTPUT_FOLDER).is_dir():
        state = "holds no file of a profiler" if names_in(folder / OUTPUT_FOLDER) else "is empty"
        return f"{OUTPUT_FOLDER} {state}: analysis failed or was stopped; run analyse() again"
    owner = "mindspore" if framework == "mindspore" else "torch_npu"
    return f"raw data only: run {owner}.profiler.profiler.analyse(<this folder>) first"
