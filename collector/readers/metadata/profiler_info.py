"""profiler_info[_N].json: how a rank was profiled.

Fills `ranks` and, with profiler_metadata.json, `groups`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import duckdb

from npuscope.errors import TraceFormatError

from ...model import Option, RankSource, ReadLog, Role
from ...staging import insert_row, insert_rows
from .profiler_metadata import (
    ProfilerMetadata,
    group_rows,
    json_object,
    natural,
    parse_metadata,
    rank_columns,
    read_metadata,
    text,
    whole,
)

__all__ = [
    "ProfilerInfo", "ProfilerMetadata", "group_rows", "parse_metadata", "read", "read_info",
    "read_metadata",
]  # fmt: skip


_ROLES: tuple[Role, ...] = ("profiler_info", "profiler_metadata")
# Options that tell what a capture can answer. Others (paths, handlers) stay where they are.
_OPTIONS = (
    "activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules",
    "profiler_level", "aic_metrics", "l2_cache", "msprof_tx", "mstx", "mstx_domain_include",
    "mstx_domain_exclude", "data_simplification", "record_op_args", "op_attr",
    "gc_detect_threshold", "host_sys", "sys_io", "sys_interconnection", "export_type",
)  # fmt: skip
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class ProfilerInfo:
    """What the profiler says of itself; None where the file does not say it.

    schedule: wait, warmup, active, repeat, skip_first -> steps; empty without a schedule.
    window: from the start to the end of collection, ns since the epoch.
    options: name without leading underscore -> value, of those this version writes; None where the
    file says nothing of its configuration.
    """

    device_id: int | None = None
    level: str | None = None
    aic_metrics: str | None = None
    torch_npu_version: str | None = None
    cann_version: str | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    schedule: tuple[tuple[str, int], ...] = ()
    options: dict[str, Option] | None = None


def read_info(path: str, log: ReadLog | None = None) -> ProfilerInfo:
    """The file as a record; one that cannot be read says nothing, and `log` is told."""
    try:
        info = json_object(path)
    except TraceFormatError as error:
        if log is not None:
            log.lose(path, "{where}: {got}", where=error.where, got=error.got)
        return ProfilerInfo()
    level = re.search(r"level_?(none|\d)", text(_setting(info, "profiler_level")) or "", re.I)
    end_ns = whole(_section(info, "end_info").get("collectionTimeEnd"))
    if end_ns is not None and not 0 < end_ns < 1 << 63:
        end_ns = None
    return ProfilerInfo(
        device_id=natural(info.get("device_id")),
        level=level and ("Level_none" if level[1].lower() == "none" else f"Level{level[1]}"),
        aic_metrics=text(_setting(info, "aic_metrics")),
        torch_npu_version=_version(info, "torch_npu_version", "mindspore_version", "ms_version"),
        cann_version=_version(info, "cann_version"),
        window_start_ns=_window_start_ns(info, end_ns),
        window_end_ns=end_ns,
        schedule=tuple(_schedule(_setting(info, "schedule"))),
        options=_options(info),
    )


def _options(info: Mapping[str, object]) -> dict[str, Option] | None:
    """The configuration as the profiler took it; `schedule.active` and the like beside it."""
    if not _section(info, "config"):
        return None
    absent = object()
    options: dict[str, Option] = {}
    for name in _OPTIONS:
        value = _setting(info, name, absent)
        if isinstance(value, list):
            options[name] = [_option_text(item) for item in value]
        elif isinstance(value, str):
            options[name] = _option_text(value)
        elif isinstance(value, (int, float)) and abs(value) < 1 << 53:
            options[name] = value
        elif value is None:
            options[name] = None
    for name, steps in _schedule(_setting(info, "schedule")):
        options[f"schedule.{name}"] = steps
    return options


def _option_text(value: object) -> str:
    """A value's own name, without the enumeration's: `ProfilerActivity.CPU` -> `CPU`."""
    words = str(value)[:_LONGEST_TEXT].strip()
    return re.sub(
        r"^(ProfilerActivity|ProfilerLevel|AiCMetrics|ExportType|HostSystem)\.", "", words
    )


def _section(mapping: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = mapping.get(name)
    return section if isinstance(section, dict) else {}


def _setting(info: Mapping[str, object], name: str, default: object = None) -> object:
    """A setting of either configuration block; some versions put an underscore before its name."""
    config = _section(info, "config")
    for block in (
        _section(config, "experimental_config"),
        _section(config, "common_config"),
        config,
    ):
        for key in (name, f"_{name}"):
            if key in block:
                return block[key]
    return default


def _schedule(value: object) -> Iterator[tuple[str, int]]:
    for key, steps in (value if isinstance(value, dict) else {}).items():
        if isinstance(steps, int):
            yield str(key).lstrip("_"), steps


def _window_start_ns(info: Mapping[str, object], end_ns: int | None) -> int | None:
    """The end less what the monotonic clock counted since the start."""
    start = whole(_section(info, "start_info").get("start_monotonic"))
    end = whole(_section(info, "end_info").get("MonotonicTimeEnd"))
    if end_ns is None or start is None or end is None or not 0 < start <= end:
        return None
    return end_ns - (end - start)


def _version(info: Mapping[str, object], *names: str) -> str | None:
    version = next((word for name in names if (word := text(info.get(name)))), None)
    return None if version is None or version.lower() == "not known" else version


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `ranks` (one row) and `groups`; a file that cannot be read leaves its columns NULL."""
    info, metadata = ProfilerInfo(), ProfilerMetadata()
    if path := source.path("profiler_info"):
        info = read_info(path, log)
        log.options = info.options
    if path := source.path("profiler_metadata"):
        metadata = read_metadata(path, log)
        log.rules |= metadata.rules()
    if "ranks" in tables:
        insert_row(con, "ranks", _rank_columns(source, info, metadata))
    if "groups" in tables and metadata.groups:
        insert_rows(con, "groups", group_rows(metadata, source.rank))
    for role in _ROLES:
        advance(sum(file.size_bytes for file in source.files.get(role, ())))


def _rank_columns(
    source: RankSource, info: ProfilerInfo, metadata: ProfilerMetadata
) -> dict[str, str | int | None]:
    has_db, has_text = ("main_db" in source.files), bool({"kernels", "trace"} & set(source.files))
    return {
        "device_id": info.device_id,
        "framework": source.framework,
        "profiler_level": info.level,
        "aic_metrics": info.aic_metrics,
        "source_format": (
            "db+text"
            if has_db and has_text
            else "db"
            if has_db
            else "text"
            if has_text
            else "light"
        ),
        "framework_version": info.torch_npu_version,
        "cann_version": info.cann_version,
        "clock": None if info.window_end_ns is None else "epoch",
        "window_start_ns": info.window_start_ns,
        "window_end_ns": info.window_end_ns,
        **rank_columns(metadata, source.rank),
    }
