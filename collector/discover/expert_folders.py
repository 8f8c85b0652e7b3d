"""A folder with expert loads among a rank's files: it tells of the whole job, like a trainer's log.

    profiles/                              capture A   rank 0 ─ its files + the folder's
        host0_123_ascend_pt/ ...                       rank 1 ─ its files
        tokens_per_expert/rank0.jsonl      found by its name, or given by --expert-load
        saved/counts/rank0.jsonl           found by what is in it

Where several are found, each capture gets the one nearest to its ranks, or several that hold parts
of one job, see `expert_choice`. They are kept with one rank of each capture, published and dropped
with it. Whoever brings a store up to date without naming the folder keeps it as it was read, see
`logged_file`.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuscope.errors import TraceNotFound

from ..model import RankSource, SourceFile, storable
from ..readers.expert_load.load_files import (
    CONFIG,
    HOOK,
    MAP,
    RULE,
    ExpertFacts,
    counts_tokens,
    is_load_file,
    part_of,
)
from ..store.manifest import Manifest
from .lone_files import counts_format
from .train_logs import holders

if TYPE_CHECKING:
    from ..readers.expert_load.load_frames import ExpertLoad

FOLDER = "tokens_per_expert"
OPTION = "--expert-load"
# Between the folders in a rank's rules, where several are merged: no path has it.
JOINT = "\0"
Folders = Path | Sequence[Path]
# Every line of a hook has it, the first within so many bytes.
_COUNTS_KEY, _HEAD_BYTES = b'"tpe"', 4096


def expert_source(path: Path) -> ExpertLoad | None:
    """The expert loads of a folder that holds them, or of the one found in it, without a store.

    None where there are none. Raises TraceNotFound for a path that is not there, TraceFormatError
    for loads that cannot be read.
    """
    if not path.exists():
        raise TraceNotFound(f"{path}: no such file or folder")
    if not path.is_dir():
        return _of_file(path)
    from ..readers.expert_load.expert_files import read_files  # here: it loads frames

    folder = path if folder_files(path) else own_folder(path)
    return read_files(folder_files(folder)) if folder else None


def _of_file(path: Path) -> ExpertLoad | None:
    """What one file counts, and nothing beside it. Raises TraceNotFound, TraceFormatError."""
    from ..readers.expert_load.expert_files import read_files

    if counts_format(path) is None:
        return None
    if not counts_tokens(path.name):
        raise TraceNotFound(
            f"{path}: counts tokens per expert, but its rank is only in the file name: name it"
            " rank<N>.jsonl, decode_<N>.csv or prefill_<N>.csv"
        )
    state = path.stat()
    return read_files([SourceFile(str(path), state.st_size, state.st_mtime_ns)])


def own_folder(path: Path) -> Path | None:
    """The folder that lies where loads are expected at a path of profiles: it itself with dumps and
    their configuration, or `tokens_per_expert` in it; None where there is no such."""
    if (path / CONFIG).is_file() and folder_files(path):
        return path
    within = path / FOLDER
    return within if within.is_dir() and folder_files(within) else None


def holds_counts(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder with these names in it has a training hook's counts. A file is opened only
    where one is called as the hook's are, in a folder that is not."""
    hooked = [name for name in names if name.endswith(".jsonl") and HOOK.fullmatch(name)]
    if not hooked or folder.name == FOLDER:
        return bool(hooked)
    for name in sorted(hooked):
        try:
            if not stat.S_ISREG((folder / name).stat().st_mode):
                continue
            with (folder / name).open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except OSError:
            continue
        if head.strip():
            return _COUNTS_KEY in head
    return False


def folder_files(folder: Path) -> tuple[SourceFile, ...]:
    """Files with loads and placements in a folder, of dumps also one folder deeper (one for each
    node); none where nothing there counts tokens."""
    files = _list_files(folder)
    if _has_counts(files):
        return tuple(files)
    for inner in _folders(folder):
        deeper = _list_files(inner)
        if any(Path(file.path).name == CONFIG for file in deeper):
            files += deeper
    return tuple(files) if _has_counts(files) else ()


def joined_files(folders: Sequence[Path]) -> tuple[SourceFile, ...] | None:
    """Files of several folders in each of which a hook counted a part of one job's ranks.

    What lies in two of them alike counts once. None where the same rank's counts differ in two, or
    where a folder has dumps of inference: then they are no parts. One folder is taken as it is.
    """
    if len(folders) == 1:
        return folder_files(folders[0])
    files: dict[object, SourceFile] = {}
    for file in (file for folder in folders for file in folder_files(folder)):
        name = Path(file.path).name
        if not (is_hooked := HOOK.fullmatch(name)) and not MAP.fullmatch(name):
            return None
        # Of deployments there is one for all ranks, called as it may be.
        first = files.setdefault(part_of(name) if is_hooked else "map", file)
        if first is not file and not _is_alike(first, file):
            return None
    return tuple(files.values())


def require_loads(folder: Path) -> None:
    """See that a folder counts tokens, without reading it. Raises TraceNotFound."""
    if not folder_files(folder):
        raise TraceNotFound(
            f"{folder}: no rank*.jsonl, decode_N.csv or prefill_N.csv in it: give the folder that"
            " the hook or the server dumped into"
        )


def expert_holders(
    holders_here: Sequence[tuple[str, RankSource]],
    sources: Sequence[tuple[str, RankSource]],
    manifests: Sequence[Manifest],
    loads: Mapping[str, Sequence[Path]],
    *,
    is_given: bool,
) -> Mapping[str, int]:
    """By capture, the rank to read its `loads` with: as `train_logs.holders` where they are given.

    Else the lowest chosen of captures that have none yet, and the one that has them where there are
    more parts of them by now.
    """
    if is_given:
        return holders(holders_here, sources, manifests, rule=RULE, option=OPTION)
    lowest = dict(sorted(((capture, s.rank) for capture, s in sources), reverse=True))
    for one in manifests:
        if RULE not in one.rules or one.capture not in lowest:
            continue
        now = {storable(str(folder)) for folder in loads.get(one.capture, ())}
        if set(one.rules[RULE].split(JOINT)) < now:
            lowest[one.capture] = one.rank
        else:
            del lowest[one.capture]
    return lowest


def recorded_files(
    current: Manifest | None, load_folders: Folders | None
) -> tuple[str, tuple[SourceFile, ...]] | None:
    """A rank's folder, or several joined by `JOINT`, and their files: those that are given, else
    those it was read with, as they were then."""
    if load_folders is not None:
        folders = (load_folders,) if isinstance(load_folders, Path) else load_folders
        return JOINT.join(storable(str(one)) for one in folders), joined_files(folders) or ()
    folder = current.rules.get(RULE) if current else None
    if current is None or folder is None:
        return None
    read = {Path(one) for one in folder.split(JOINT)}
    files = tuple(
        SourceFile(record.path, record.size_bytes, record.mtime_ns)
        for record in current.sources
        if is_load_file(Path(record.path).name)
        and not read.isdisjoint((Path(record.path).parent, Path(record.path).parent.parent))
    )
    return (folder, files) if files else None


def with_loads(source: RankSource, loads: tuple[str, tuple[SourceFile, ...]] | None) -> RankSource:
    """The rank with a folder's files among its own."""
    if loads is None:
        return source
    folder, files = loads
    rules = (*source.rules, (RULE, folder))
    return replace(source, files={**source.files, "expert_load": files}, rules=rules)


def current_loads(source: RankSource, *, force: bool) -> RankSource:
    """The rank with its folder as it is now. One that is gone stays missing, so that what was read
    of it stays; where `force` is set, the rank goes on without."""
    if "expert_load" not in source.files:
        return source
    now = joined_files([Path(one) for one in dict(source.rules)[RULE].split(JOINT)])
    files = dict(source.files)
    if now:
        return replace(source, files={**files, "expert_load": now})
    if not force:
        return source
    del files["expert_load"]
    return replace(source, files=files, rules=tuple(r for r in source.rules if r[0] != RULE))


def expert_facts(rules: Mapping[str, str]) -> ExpertFacts | None:
    """How the loads that a rank holds were counted, by the rules of its reading; None where it
    holds none."""
    facts = {
        name: rules[f"{RULE}.{name}"]
        for name in ExpertFacts.__dataclass_fields__
        if f"{RULE}.{name}" in rules
    }
    source = facts.pop("source", None)
    if source not in ("hook", "dump"):
        return None
    counts = {name: int(text) for name, text in facts.items()}
    return ExpertFacts("hook" if source == "hook" else "dump", **counts)


def _has_counts(files: Sequence[SourceFile]) -> bool:
    return any(counts_tokens(Path(file.path).name) for file in files)


def _list_files(folder: Path) -> list[SourceFile]:
    try:
        names = sorted(name for name in os.listdir(folder) if is_load_file(name))
    except OSError:
        return []
    files: list[SourceFile] = []
    for name in names:
        try:
            state = (folder / name).stat()
        except OSError:  # gone since, or a link to nowhere: as if it were not there
            continue
        if stat.S_ISREG(state.st_mode):  # opening a pipe could wait for ever
            files.append(SourceFile(str(folder / name), state.st_size, state.st_mtime_ns))
    return files


def _is_alike(one: SourceFile, other: SourceFile) -> bool:
    if one.size_bytes != other.size_bytes:
        return False
    try:
        return filecmp.cmp(one.path, other.path, shallow=False)
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []
