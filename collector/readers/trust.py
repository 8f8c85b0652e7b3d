"""Which reader reads which files of a rank, and the tables it may fill, in order of trust.

The profiler's DB speaks first; text fills only what is still empty. A reader is imported where a
file asks for it: all of them, with their libraries, take longer than a small rank.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import duckdb

from .. import schema
from ..model import RankSource, ReadLog, Role

Advance = Callable[[int], None]
Read = Callable[[duckdb.DuckDBPyConnection, RankSource, ReadLog, frozenset[str], Advance], None]

TIMELINE = frozenset(
    {
        "kernels",
        "device_tasks",
        "steps",
        "host_ops",
        "launches",
        "comm_ops",
        "comm_tasks",
        "counters",
        "marks",
    }
)
KINETO_FILLS = frozenset(
    {
        "kernels",
        "comm_ops",
        "launches",
        "steps",
        "marks",
        "host_ops",
        "memory",
        "counters",
        "ranks",
        "groups",
    }
)
MAIN_DB, TRACE, KINETO = "ascend_db.ascend_db", "trace_view.trace_view", "kineto.kineto"
EXPERT_LOAD = "expert_load.expert_files"
_HCCL, _MEMORY = "hccl.communication", "text.memory_record"
# (roles of which one must be there, module that reads them, tables it may fill), in order of trust.
READERS: tuple[tuple[tuple[Role, ...], str, frozenset[str]], ...] = (
    (("main_db",), MAIN_DB, frozenset(schema.tables())),
    (
        ("analysis_db",),
        "ascend_db.analysis_db",
        frozenset({"comm_times", "comm_links", "comm_matrix", "profiler_steps"}),
    ),
    (
        ("profiler_info", "profiler_metadata"),
        "metadata.profiler_info",
        frozenset({"ranks", "groups"}),
    ),
    (("info",), "metadata.msprof_info", frozenset({"ranks"})),
    (("kernels",), "text.kernel_details", frozenset({"kernels", "comm_ops"})),
    (("iterations",), "text.iterations", frozenset({"steps"})),
    (("trace",), TRACE, TIMELINE),
    (("task_time",), "text.task_time", frozenset({"kernels", "device_tasks", "comm_tasks"})),
    (
        ("communication", "communication_matrix"),
        _HCCL,
        frozenset({"comm_times", "comm_links", "comm_matrix"}),
    ),
    (("step_trace",), "text.step_trace", frozenset({"profiler_steps"})),
    (
        ("memory_record", "operator_memory", "module_memory"),
        _MEMORY,
        frozenset({"memory", "operator_memory"}),
    ),
    (("kineto",), KINETO, KINETO_FILLS),
    (("train_log",), "train_log.train_log", frozenset({"train_log"})),
    (
        ("expert_load",),
        EXPERT_LOAD,
        frozenset({"expert_load", "expert_counts", "expert_placement"}),
    ),
    (
        ("cluster_output",),
        "cluster.cluster_output",
        frozenset(
            {
                "ranks",
                "groups",
                "profiler_steps",
                "comm_times",
                "comm_links",
                "comm_matrix",
            }
        ),
    ),
)
# Readers whose good files stand where another cannot be read.
FILE_BY_FILE = (_HCCL, _MEMORY)
# Tables that more than one reader adds to.
SHARED_TABLES = frozenset({"ranks", "groups"})
# Tables to which a later reader adds kinds of rows that an earlier one has none of.
SUPPLEMENTS = frozenset({"memory"})


def has_steps(source: RankSource) -> bool:
    """Whether a database tells steps and operators: MindSpore leaves them to the timeline."""
    return "main_db" in source.files and source.framework != "mindspore"


def read_of(reader: str) -> Read:
    """What fills tables from the files of a reader."""
    read: Read = import_module(f".{reader}", __package__).read
    return read
