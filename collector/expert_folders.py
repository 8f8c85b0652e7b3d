"""A folder with expert loads among a rank's files: it tells of the whole job, like a trainer's log.

    profiles/                              capture A   rank 0 ─ its files + the folder's
        host0_123_ascend_pt/ ...                       rank 1 ─ its files
        tokens_per_expert/rank0.jsonl      found by its name, or given by --expert-load

It is kept with one rank of each capture, published and dropped with it. Whoever brings a store up
to date without naming the folder keeps it as it was read, see `logged`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from npuscope.errors import TraceNotFound

from .logged import holders
from .manifest import Manifest
from .model import RankSource, SourceFile, spelled
from .readers.expert_dump import CONFIG
from .readers.expert_files import counts_tokens, is_load_file, read_files
from .readers.expert_frames import RULE, ExpertFacts, ExpertLoad

FOLDER = "tokens_per_expert"
OPTION = "--expert-load"


def expert_source(path: Path) -> ExpertLoad | None:
    """The expert loads of a folder that holds them, or of the one found in it, without a store.

    None where there are none. Raises TraceNotFound for a path that is not there, TraceFormatError
    for loads that cannot be read.
    """
    if not path.exists():
        raise TraceNotFound(f"{path}: no such file or folder")
    folder = path if folder_files(path) else found_folder(path)
    return read_files(folder_files(folder)) if folder else None


def found_folder(path: Path) -> Path | None:
    """The folder that lies where loads are expected at a path of profiles: it itself with dumps and
    their configuration, or `tokens_per_expert` in it; None where there is no such."""
    start = path if path.is_dir() else path.parent
    if (start / CONFIG).is_file() and folder_files(start):
        return start
    within = start / FOLDER
    return within if within.is_dir() and folder_files(within) else None


def folder_files(folder: Path) -> tuple[SourceFile, ...]:
    """Files with loads and placements in a folder, of dumps also one folder deeper (one for each
    node); none where nothing there counts tokens."""
    found = _listed(folder)
    if _counting(found):
        return tuple(found)
    for inner in _folders(folder):
        deeper = _listed(inner)
        if any(Path(file.path).name == CONFIG for file in deeper):
            found += deeper
    return tuple(found) if _counting(found) else ()


def require_loads(folder: Path) -> None:
    """See that a folder counts tokens, without reading it. Raises TraceNotFound."""
    if not folder_files(folder):
        raise TraceNotFound(
            f"{folder}: no rank*.jsonl, decode_N.csv or prefill_N.csv in it: give the folder that"
            " the hook or the server dumped into"
        )


def expert_holders(
    found: Sequence[tuple[str, RankSource]],
    chosen: Sequence[tuple[str, RankSource]],
    published: Sequence[Manifest],
    *,
    is_given: bool,
) -> Mapping[str, int]:
    """By capture, the rank to read a folder with: as `logged.holders` where the user gave it, else
    the lowest chosen of captures that have none yet."""
    if is_given:
        return holders(found, chosen, published, rule=RULE, option=OPTION)
    having = {one.capture for one in published if RULE in one.rules}
    lowest = dict(sorted(((capture, s.rank) for capture, s in chosen), reverse=True))
    return {capture: rank for capture, rank in lowest.items() if capture not in having}


def kept_files(
    current: Manifest | None, given: Path | None
) -> tuple[str, tuple[SourceFile, ...]] | None:
    """A rank's folder and its files: those that are given, else those it was read with, as they
    were then."""
    if given is not None:
        return spelled(str(given)), folder_files(given)
    folder = current.rules.get(RULE) if current else None
    if current is None or folder is None:
        return None
    files = tuple(
        SourceFile(record.path, record.size_bytes, record.mtime_ns)
        for record in current.sources
        if is_load_file(Path(record.path).name)
        and Path(folder) in (Path(record.path).parent, Path(record.path).parent.parent)
    )
    return (folder, files) if files else None


def with_loads(source: RankSource, kept: tuple[str, tuple[SourceFile, ...]] | None) -> RankSource:
    """The rank with a folder's files among its own."""
    if kept is None:
        return source
    folder, files = kept
    rules = (*source.rules, (RULE, folder))
    return replace(source, files={**source.files, "expert_load": files}, rules=rules)


def loads_as_now(source: RankSource, *, force: bool) -> RankSource:
    """The rank with its folder as it is now. One that is gone stays missing, so that what was read
    of it stays; where `force` is set, the rank goes on without."""
    if "expert_load" not in source.files:
        return source
    now = folder_files(Path(dict(source.rules)[RULE]))
    files = dict(source.files)
    if now:
        return replace(source, files={**files, "expert_load": now})
    if not force:
        return source
    del files["expert_load"]
    return replace(source, files=files, rules=tuple(r for r in source.rules if r[0] != RULE))


def expert_facts(manifest: Manifest) -> ExpertFacts | None:
    """How the loads that a rank holds were counted; None where it holds none."""
    told = {
        name: manifest.rules[f"{RULE}.{name}"]
        for name in ExpertFacts.__dataclass_fields__
        if f"{RULE}.{name}" in manifest.rules
    }
    source = told.pop("source", None)
    if source not in ("hook", "dump"):
        return None
    counts = {name: int(text) for name, text in told.items()}
    return ExpertFacts("hook" if source == "hook" else "dump", **counts)


def _counting(files: Sequence[SourceFile]) -> bool:
    return any(counts_tokens(Path(file.path).name) for file in files)


def _listed(folder: Path) -> list[SourceFile]:
    try:
        names = sorted(name for name in os.listdir(folder) if is_load_file(name))
    except OSError:
        return []
    found: list[SourceFile] = []
    for name in names:
        state = (folder / name).stat()
        if stat.S_ISREG(state.st_mode):  # opening a pipe could wait for ever
            found.append(SourceFile(str(folder / name), state.st_size, state.st_mtime_ns))
    return found


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []
