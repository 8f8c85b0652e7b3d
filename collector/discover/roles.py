"""Which role in a profile a file plays, by its name alone."""

from __future__ import annotations

import re

from ..model import Role

# A number in a name is an export's time stamp or a rank; `_slice_<n>` is one piece of a split file.
_STAMP = r"(?:_slice_\d{1,6}|_\d{1,20}){0,5}"
_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    (
        "main_db",
        re.compile(r"(ascend_(pytorch|mindspore)_profiler(_\d{1,16})?|msprof_\d{1,16})\.db"),
    ),
    ("analysis_db", re.compile(r"(analysis|communication_analyzer)\.db")),
    ("trace", re.compile(rf"(trace_view|trace|msprof{_STAMP})\.json(\.gz)?")),
    ("kernels", re.compile(rf"(kernel_details|op_summary){_STAMP}\.csv")),
    ("communication", re.compile(r"communication\.json")),
    ("communication_matrix", re.compile(r"communication_matrix\.json")),
    ("step_trace", re.compile(r"step_trace_time\.csv")),
    ("iterations", re.compile(rf"step_trace{_STAMP}\.(csv|json)")),
    ("task_time", re.compile(rf"task_time{_STAMP}\.csv")),
    ("memory_record", re.compile(rf"memory_record{_STAMP}\.csv")),
    ("operator_memory", re.compile(rf"operator_memory{_STAMP}\.csv")),
    ("module_memory", re.compile(rf"npu_module_mem{_STAMP}\.csv")),
    ("profiler_info", re.compile(r"profiler_info(_\d+)?\.json")),
    ("profiler_metadata", re.compile(r"profiler_metadata\.json")),
    ("info", re.compile(r"info\.json(\.\d+)?")),
    ("session", re.compile(r"(start|end)_info(\.\d+)?")),
)
# Roles that make a folder a profile; the others only tell about one.
EXPORTS: frozenset[Role] = frozenset(role for role, _ in _ROLES) - {
    "profiler_info", "profiler_metadata", "info", "session",
}  # fmt: skip


def role_of(name: str) -> Role | None:
    """The role of a file by its name, or None."""
    for role, pattern in _ROLES:
        if pattern.fullmatch(name):
            return role
    return None
