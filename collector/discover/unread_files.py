"""What else lies below a path of profiles: files that no rank was read from, and why not.

    ranks read from    rank 0's kernel_details.csv, trace_view.json, ...
    not read           op_statistic.csv     computed from the kernels instead
                       FRAMEWORK/           raw data: the input of analyse()
                       decode_0.csv         expert loads: read where their folder is given
                       notes.txt            no profile

Names decide; nothing is opened, links are not followed, and raw data is not entered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..model import storable
from ..store.manifest import MARKER
from .msprof_layout import names_in
from .roles import role_of

_ENTRIES_AT_MOST = 500_000
_RAW = "raw data, the input of analyse()"
_NO_RANK = "no rank was read from it: not selected, or incomplete"
_OTHERS = "not a profiler file known to this version"
_FROM_EVENTS = "not needed: the same figures are computed from single events"
_NOT_YET = "known, but not read by this version"
_BY_OPTION = "read where their folder is given: ingest with --expert-load DIR"

# MindSpeed-RL's counts; MindIE's sums, its choices of single tokens, and its copies.
_OTHER_COUNTS = (
    r"token_collects_all\.json|(prefill|decode)_(info|topk_\d+)\.csv|(prefill|decode).*_bak\.csv"
)
# Names of folders in one file.
ARCHIVE = re.compile(r".*\.(zip|7z|rar|tar|tgz|tar\.\w+)", re.I)
# What a folder's name says, with its parent's: then nothing inside it is looked at.
_FOLDERS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), label, why)
    for pattern, label, why in (
        (r".*/(FRAMEWORK|PROF_.+)|PROF_.*/(host|device_\d+|sqlite)|(host|device_\d+)/.*", "", _RAW),
        (r".*_ascend_(pt|ms)/logs?|PROF_.*/mindstudio_profiler_log", "", "logs"),
        (r".*/cluster_analysis_output", "", "results of msprof-analyze from these profiles"),
        (r".*_op_arg", "*_op_arg", "dumped arguments of operators"),
        (r".*/\..*", "hidden folders", "hidden"),
    )
)
_FILES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), label, why)
    for pattern, label, why in (
        (r"(op|api|communication|hccl)_statistic.*\.csv", "*_statistic*.csv", _FROM_EVENTS),
        (r"(step_trace|task_time).*\.csv", "", _FROM_EVENTS),
        (r"operator_details.*\.csv", "", "not needed: the timeline has its operators with times"),
        (r"(l2_cache|soc_pmu|data_preprocess|aicpu|fusion_op|static_op_mem).*\.csv", "", _NOT_YET),
        (r"(nic|roce|hccs|pcie|llc|ddr|hbm|sys_mem|host|npu_mem).*\.csv", "", _NOT_YET),
        (_OTHER_COUNTS, "", _NOT_YET),
        (r"(prefill|decode)_.*\.csv", "decode_*.csv, prefill_*.csv",
         f"expert loads: {_BY_OPTION}"),
        (r"rank_?\d+(\.\d+)?\.jsonl", "rank*.jsonl", f"expert loads: {_BY_OPTION}"),
        (r".*_global_deployment\.json|model_gen_config\.json|expert_map.*\.json",
         "expert placement", f"expert placement: {_BY_OPTION}"),
        (r"(hccl|task_time)_.*\.json", "", "not needed: msprof_*.json has the same slices"),
        (r"(step_trace|msprof_tx|thread_group)_.*\.json", "", _NOT_YET),
        (r"msmonitor_.*\.db", "msmonitor_*.db", f"a database of msMonitor: {_NOT_YET}"),
        (r"(memscope|leaks)_dump_.*", "", _NOT_YET),
        (r"mindstudio_data\.db|cluster_analysis\.db", "", "made by another tool"),
        (r".*\.db-(wal|shm|journal)", "*.db-wal, *.db-shm", (
            "belong to a database in the same folder"
        )),
        (r"dataset\.csv|minddata_.*", "", f"MindData's pipeline: {_NOT_YET}"),
        (r"(start|end)_info.*|.*\.done|info\.json.*|.*\.log", "markers and logs",
         "logs of the analysis"),
        (ARCHIVE.pattern, "", "packed: what is in it is read once unpacked"),
        (r"truth\.json", "", "ground truth of a generated sample"),
    )
)  # fmt: skip


# Names of files from which no profile is read, and what whoever gave them can do.
_INSTEAD: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(rf"{ARCHIVE.pattern}|.+\.(json|csv|db)\.(zst|xz|bz2)", re.I),
        "{name}: unpack it, then give the folder",
    ),
    (
        re.compile(_OTHER_COUNTS),
        "{name}: tokens per expert in a form that is not read: `npuscope experts` reads"
        " rank<N>.jsonl of a training hook, decode_<N>.csv and prefill_<N>.csv of MindIE",
    ),
    (
        re.compile(r"(ascend_timeline_display|step_trace_raw|aicore_intermediate|hccl_raw)_.*"),
        "{name}, of an older MindSpore's profiler, which is not read: give the PROF_* folder that"
        " it analysed, after `msprof --export=on --output=PROF_...`",
    ),
    (
        re.compile(
            r"(?i).*(trace_view|kernel_details|op_summary|step_trace).*\.(json|csv)"
            r"|.*(profiler|rank).*\.db"
        ),
        "{name}: give each rank's files the names that the profiler gave them, in a folder of its"
        " own; or give one file alone",
    ),
    (
        re.compile(r"(prefill|decode)_\d+\.csv|rank_?\d+(\.\d+)?\.jsonl"),
        "{name}, tokens per expert: `npuscope experts` tells of them, as of this folder",
    ),
    (
        re.compile(r"(?i).*\.log|events\.out\.tfevents\..*"),
        "{name}: of a trainer's log `npuscope health` tells",
    ),
    (re.compile(r".*\.parquet"), "{name}: of a phase-level trace `npuscope whatif` tells"),
)


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """Files or folders of one kind that nothing was read from; `example` is one of them."""

    what: str
    why: str
    count: int
    size_bytes: int | None
    example: str


def unread(path: Path, sources: Iterable[str], problems: Iterable[str] = ()) -> list[UnreadFile]:
    """What lies below `path` beside the files in `sources` that ranks were read from, by kind.

    Places in `problems` are told elsewhere and left out. Sizes are those of files; of folders that
    were not entered they are unknown.
    """
    root = (path if path.is_dir() else path.parent).resolve()
    known_paths = {_real(source) for source in sources}
    places = {str(parent) for source in known_paths for parent in Path(source).parents}
    paths = {_real(place) for place in problems}
    kinds: dict[tuple[str, str], list[tuple[str, int | None]]] = {}
    for entry, what, why, size_bytes in _walk(root, known_paths, places, paths):
        kinds.setdefault((what, why), []).append((entry, size_bytes))
    entries_here = []
    for (what, why), entries in kinds.items():
        sizes = [size for _, size in entries]
        total = None if None in sizes else sum(size for size in sizes if size is not None)
        entries_here.append(
            UnreadFile(what, why, len(entries), total, min(entry for entry, _ in entries))
        )
    return sorted(entries_here, key=lambda one: (one.why, one.what))


def what_to_do(folder: Path) -> str | None:
    """What is to be done with what lies in a folder without a profile; None if nobody knows."""
    names = names_in(folder)
    for pattern, text in _INSTEAD:
        if name := next(filter(pattern.fullmatch, names), None):
            return text.format(name=name)
    return None


def _real(place: str) -> str:
    """Where it lies without links, in the text that manifests keep of a name."""
    name = os.fsdecode(place.encode(errors="surrogateescape"))
    return storable(os.path.realpath(name))


def _walk(
    root: Path, known_paths: set[str], places: set[str], paths: set[str]
) -> Iterator[tuple[str, str, str, int | None]]:
    """(path, what, why, bytes) of every file and closed folder that is not `known_paths`."""
    pending, count = [str(root)], 0
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError:
            continue  # discovery told of it
        if any(entry.name == MARKER for entry in entries):
            continue  # a store of ours
        for entry in entries:
            count += 1
            if count > _ENTRIES_AT_MOST:
                yield folder, "more entries", "too many to list", None
                return
            place = storable(entry.path)
            if place in known_paths or place in paths:
                continue
            if entry.is_symlink():
                if _real(entry.path) not in known_paths | places:
                    yield entry.path, "links", "links are followed for profiles only", None
            elif not entry.is_dir(follow_symlinks=False):
                what, why = _of_file(entry.name, storable(folder) in places)
                try:
                    size_bytes = entry.stat(follow_symlinks=False).st_size
                except OSError:
                    size_bytes = None
                yield entry.path, what, why, size_bytes
            elif place not in places and (kind := _match_name(_FOLDERS, _with_parent(entry.path))):
                yield entry.path, kind[0] + "/", kind[1], None
            else:
                pending.append(entry.path)


def _match_name(
    table: tuple[tuple[re.Pattern[str], str, str], ...], name: str
) -> tuple[str, str] | None:
    for pattern, label, why in table:
        if pattern.fullmatch(name):
            return label or _shape(name.rpartition("/")[2]), why
    return None


def _shape(name: str) -> str:
    """A name without what tells one of a kind from the others."""
    return re.sub(r"(?<=_)\d+(?=[_.]|$)", "*", re.sub(r"^PROF_.+", "PROF_*", name))


def _with_parent(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[1:])


def _of_file(name: str, is_beside_read_ones: bool) -> tuple[str, str]:
    if match := _match_name(_FILES, name):
        return match
    if role_of(name) is not None:
        why = "an older export next to a newer one" if is_beside_read_ones else _NO_RANK
        return _shape(name), why
    suffix = Path(name).suffix.lower()
    return (f"*{suffix}" if suffix else "files without a suffix"), _OTHERS
