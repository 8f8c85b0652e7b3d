"""Which reader reads which files of a rank, and the tables it may fill, in order of trust.

The profiler's DB speaks first; text fills only what is still empty.
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from .. import schema
from ..model import RankSource, ReadLog, Role
from .ascend_db import analysis_db, ascend_db
from .cluster import cluster_output
from .expert_load import expert_files
from .hccl import communication
from .kineto import kineto
from .metadata import msprof_info, profiler_info
from .text import iterations, kernel_details, memory_record, step_trace, task_time
from .trace_view import trace_view
from .train_log import train_log

Advance = Callable[[int], None]
Reader = Callable[[duckdb.DuckDBPyConnection, RankSource, ReadLog, frozenset[str], Advance], None]

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
# (roles that must be there, what reads them, tables it may fill), in order of trust.
READERS: tuple[tuple[tuple[Role, ...], Reader, frozenset[str]], ...] = (
    (("main_db",), ascend_db.read, frozenset(schema.tables())),
    (
        ("analysis_db",),
        analysis_db.read,
        frozenset({"comm_times", "comm_links", "comm_matrix", "profiler_steps"}),
    ),
    (
        ("profiler_info", "profiler_metadata"),
        profiler_info.read,
        frozenset({"ranks", "groups"}),
    ),
    (("info",), msprof_info.read, frozenset({"ranks"})),
    (("kernels",), kernel_details.read, frozenset({"kernels", "comm_ops"})),
    (("iterations",), iterations.read, frozenset({"steps"})),
    (("trace",), trace_view.read, TIMELINE),
    (("task_time",), task_time.read, frozenset({"kernels", "device_tasks"})),
    (
        ("communication", "communication_matrix"),
        communication.read,
        frozenset({"comm_times", "comm_links", "comm_matrix"}),
    ),
    (("step_trace",), step_trace.read, frozenset({"profiler_steps"})),
    (
        ("memory_record", "operator_memory", "module_memory"),
        memory_record.read,
        frozenset({"memory", "operator_memory"}),
    ),
    (("kineto",), kineto.read, kineto.FILLS),
    (("train_log",), train_log.read, frozenset({"train_log"})),
    (
        ("expert_load",),
        expert_files.read,
        frozenset({"expert_load", "expert_counts", "expert_placement"}),
    ),
    (
        ("cluster_output",),
        cluster_output.read,
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
FILE_BY_FILE = (communication.read, memory_record.read)
# Tables that more than one reader adds to.
SHARED = frozenset({"ranks", "groups"})
