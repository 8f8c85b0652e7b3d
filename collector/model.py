"""Frozen records that discovery, readers and the store share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from npuscope.messages import Message, Value

from .selection import Selection

Framework = Literal["pytorch", "mindspore", "msprof", "msprof_analyze", "kineto"]
# What the profiler was told: an option's value as its own file has it.
Option = bool | int | float | str | list[str] | None

Role = Literal[
    "main_db",  # ascend_pytorch_profiler_*.db, ascend_mindspore_profiler_*.db, msprof_*.db
    "analysis_db",  # analysis.db, communication_analyzer.db
    "trace",  # trace_view.json, msprof_*.json and slices
    "kernels",  # kernel_details.csv, op_summary_*.csv and slices
    "communication",  # communication.json
    "communication_matrix",  # communication_matrix.json
    "step_trace",  # step_trace_time.csv
    "iterations",  # step_trace_*.csv and step_trace_*.json of msprof
    "task_time",  # task_time.csv, task_time_*.csv and slices
    "memory_record",
    "operator_memory",
    "module_memory",  # npu_module_mem.csv
    "profiler_info",  # profiler_info[_N].json
    "profiler_metadata",  # profiler_metadata.json
    "info",  # host/info.json, device_N/info.json.N of msprof
    "session",  # start_info and end_info beside them, with or without a device's number
    "kineto",  # *.pt.trace.json of PyTorch's profiler on a GPU
    "cluster_output",  # what msprof-analyze made of all ranks: cluster_*.csv, .json, .db
    "train_log",  # what the trainer printed, wherever it lies: see `logged`
    "expert_load",  # a folder that counts tokens per expert: see `expert_folders`
]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a profile as it was when discovered."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class RankSource:
    """Everything one rank's profiler wrote in one session.

    `window_*_ns` is the profiling session on the rank's clock, or None where nothing tells;
    `rank_origin` names the rule that gave the rank; `nodes` are the cluster nodes that see its
    files (none: every one); `selection` is what of it is wanted: readers may pass over the rest,
    which is left out later at the latest; `processes` may share the reading of a large file.
    `shared_by` ranks were found in the same files, which were taken apart into `parts`, a folder
    that lasts as long as the reading, or not (None).

    `device_id`: of files that hold several devices, the one that this rank is; `other_devices` are
    the others. None: all that the files hold is this rank's. `rules` are choices of discovery, in
    the form of ReadLog.rules.
    """

    root: str
    framework: Framework
    rank: int
    rank_origin: str
    files: Mapping[Role, tuple[SourceFile, ...]]
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    warnings: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    processes: int = 1
    shared_by: int = 1
    parts: str | None = None
    device_id: int | None = None
    other_devices: tuple[int, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()

    def path(self, role: Role) -> str | None:
        """The first file of a role, or None."""
        files = self.files.get(role)
        return files[0].path if files else None

    def paths(self, role: Role) -> list[str]:
        return [file.path for file in self.files.get(role, ())]

    @property
    def size_bytes(self) -> int:
        whole_bytes = sum(file.size_bytes for group in self.files.values() for file in group)
        return whole_bytes // self.shared_by


@dataclass(slots=True)
class ReadLog:
    """What a reader tells about its work: kept in the rank's manifest.

    `rules` records choices between variants (key -> variant met), `rows_lost` and `bytes_lost` what
    could not be read, `damage` the files that were read in part only (path -> what is missing).
    `options` are those the profiler ran with; None: no file tells.
    """

    warnings: list[str] = field(default_factory=list)
    rules: dict[str, str] = field(default_factory=dict)
    options: dict[str, Option] | None = None
    rows_lost: int = 0
    bytes_lost: int = 0
    damage: dict[str, str] = field(default_factory=dict)

    def warn(self, text: str, /, **values: Value) -> None:
        """A message, or a template and its values; what was said is not said again."""
        message = text if isinstance(text, Message) else Message(text, **values)
        if message not in self.warnings:
            self.warnings.append(message)

    def lose(self, path: str, text: str, /, **values: Value) -> None:
        """Tell what of a file is missing: it is listed as damaged, and the rank is not complete."""
        what = text if isinstance(text, Message) else Message(text, **values)
        self.warn("{place}: {note}", place=Path(path).name, note=what)
        damage = self.damage.get(path)
        if damage is None:
            self.damage[path] = str(what)
        elif what not in damage:
            self.damage[path] = f"{damage}; {what}"


def storable(name: str) -> str:
    """A file name as text that can be stored: bytes that are no UTF-8 stand as \\xNN."""
    return os.fsencode(str(name)).decode("utf-8", "backslashreplace")
