"""Files with expert loads, whoever wrote them, as rows of `expert_load` and `expert_placement`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.messages import Message

from ...model import RankSource, ReadLog, SourceFile
from ...staging import insert_rows
from . import hook, mindie_dump
from .deployment_json import read_deployment
from .load_files import DUMP, HOOK, MAP, RULE, ExpertFacts
from .load_frames import ExpertLoad

# Rows that go to the engine at once.
_ROWS_AT_ONCE = 1 << 20
_LISTS_AT_ONCE = 1 << 12


def read_files(
    files: Sequence[SourceFile],
    *,
    advance: Callable[[int], None] = lambda n_bytes: None,
) -> ExpertLoad:
    """Read a folder's files: those of a training hook, else dumps of inference.

    A deployment beside the hook's files tells where experts were. Raises TraceNotFound where there
    are no counts, TraceFormatError where they cannot be read.
    """
    hooked = [file for file in files if HOOK.fullmatch(Path(file.path).name)]
    if not hooked:
        return mindie_dump.read_dump(files, advance=advance)
    files_of = hook.read_hook(hooked, advance=advance)
    rest = [file for file in files if file not in hooked]
    maps = [f.path for f in rest if MAP.fullmatch(Path(f.path).name)]
    notes = list(files_of.notes)
    if any(DUMP.fullmatch(Path(file.path).name) for file in rest):
        notes.append(
            Message(
                "inference dumps in the same folder as the hook's files: not read; ingest "
                "them from a folder of their own"
            )
        )
    placement = files_of.placement
    if len(maps) == 1:
        deployment = read_deployment(maps[0])
        placement = deployment.placement
        notes += deployment.notes
    elif maps:
        notes.append(
            Message(
                "{count} deployment files in the same folder as the hook's files: none is used",
                count=len(maps),
            )
        )
    return ExpertLoad(files_of.load, placement, files_of.facts, tuple(notes), files_of.counts)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `expert_load`, `expert_counts` and `expert_placement`."""
    files = source.files.get("expert_load", ())
    if not files:
        return
    try:
        loads = read_files(files, advance=advance)
    except (TraceNotFound, FileNotFoundError) as error:  # the rank is read without it
        raise TraceFormatError(files[0].path, "expert loads", str(error)) from error
    for table, rows, at_once in (
        ("expert_load", loads.load, _ROWS_AT_ONCE),
        ("expert_counts", loads.counts, _LISTS_AT_ONCE),
        ("expert_placement", loads.placement, _ROWS_AT_ONCE),
    ):
        for part in rows.iter_slices(at_once) if table in tables else ():
            insert_rows(con, table, part.to_arrow())
    for note in loads.notes:
        log.warn("expert loads: {note}", note=note)
    for name in ExpertFacts.__dataclass_fields__:
        value = getattr(loads.facts, name)
        if value is not None:
            log.rules[f"{RULE}.{name}"] = str(value)
