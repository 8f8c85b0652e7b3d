"""What readers know from format descriptions and generated captures only: a closed list.

No real profile with these things could be had. They are read like everything else, and whoever
relies on the figures is told. A test holds the list to the real profiles there are: once one of
them has such a thing, and its figures are right, the entry goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from ..discover.msprof_layout import APART, NEWER
from ..model import Framework, RankSource, ReadLog
from ..staging import run
from .text.iterations import OF_TABLES

# What real profiles did confirm.
_OPERATIONS = ("allReduce", "allGather", "reduceScatter", "batchSendRecv")
_ALL_TO_ALL = ("allToAll", "allToAllV", "allToAllVC")
_LINKS = ("HCCS", "SDMA", "LOCAL", "ON_CHIP")
_TASK_LINKS = (*_LINKS, "PCIE")
_REMOTE = ("RDMA", "ROCE", "STANDARD_ROCE")
_CORES = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "DSA_SQE", "AI_CPU")
_COMPONENTS = ("PTA", "GE", "PTA+GE", "APP", "DEVICE")
_COUNTERS = (
    "^(AI Core Freq|(HBM|LLC) \\d+[ /].*|QoS .*|(APP|Device)/.*|(L2 Buffer|Mata) Bw Level"
    "|(read|write)_(ost|band_?width))$"
)


@dataclass(frozen=True, slots=True)
class UnverifiedForm:
    """`what` was read; `key` names it in manifests.

    It was met where `sql`, one truth about the rank's staging tables, holds, where the profile is
    of one of `frameworks`, or where a rule was chosen (`rule`: its key and the variant).
    """

    key: str
    what: str
    sql: str = ""
    frameworks: tuple[Framework, ...] = ()
    rule: tuple[str, tuple[str, ...]] = ("", ())


def _list_of(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _any(*tables_where: tuple[str, str]) -> str:
    """SQL: whether one of the tables has a row of the kind."""
    return " or ".join(
        f"exists (select 1 from {table} where {where})" for table, where in tables_where
    )


UNVERIFIED_FORMS: tuple[UnverifiedForm, ...] = (
    UnverifiedForm(
        "mindspore", "everything in a MindSpore export (text, DB and their units)",
        frameworks=("mindspore",),
    ),
    UnverifiedForm(
        "msprof",
        "everything in an export of msprof itself since 2023 (op_summary, msprof_*.db,"
        " msprof_*.json)",
        rule=("layout", (NEWER,)),
    ),
    UnverifiedForm(
        "iterations", "steps from msprof's tables of iterations (step_trace_*.csv)",
        rule=("steps", (OF_TABLES,)),
    ),
    UnverifiedForm(
        "task_time", "kernels from tables of all tasks (task_time.csv)",
        rule=("kernels", ("task_time",)),
    ),
    UnverifiedForm(
        "kineto", "everything of the device in a PyTorch trace (Kineto): kernels, communication",
        frameworks=("kineto",),
    ),
    UnverifiedForm(
        "all_to_all", "all-to-all operations (hcom_alltoall, alltoallv, alltoallvc)",
        _any(*((t, f"op_type in ({_list_of(_ALL_TO_ALL)})")
               for t in ("comm_ops", "comm_times", "comm_links", "comm_matrix"))),
    ),
    UnverifiedForm(
        "other_operations",
        "operations other than all-reduce, all-gather, reduce-scatter, batched send-receive and"
        " all-to-all (broadcast, send, receive, ...)",
        _any(*((t, f"op_type not in ({_list_of(_OPERATIONS + _ALL_TO_ALL)})")
               for t in ("comm_ops", "comm_times"))),
    ),
    UnverifiedForm(
        "remote_links", "traffic between hosts (RDMA, RoCE)",
        _any(("comm_tasks", f"link in ({_list_of(_REMOTE)}) or transport in ({_list_of(_REMOTE)})"),
             *((t, f"link in ({_list_of(_REMOTE)})") for t in ("comm_links", "comm_matrix"))),
    ),
    UnverifiedForm(
        "other_links", "traffic over PCIe, SIO, UB and links of other names",
        _any(("comm_tasks", f"link not in ({_list_of(_TASK_LINKS + _REMOTE)})"),
             *((t, f"link not in ({_list_of(_LINKS + _REMOTE)})")
               for t in ("comm_links", "comm_matrix"))),
    ),
    UnverifiedForm(
        "task_hulls", "communication recorded as tasks only",
        rule=("comm_ops", ("spans of their tasks",)),
    ),
    UnverifiedForm(
        "hccl_kernels", "HCCL's own kernels on AI CPU or vector cores",
        _any(("kernels", "not is_compute")),
    ),
    UnverifiedForm(
        "other_cores", "kernels on DVPP and other units than cube, vector, DSA and AI CPU",
        _any(("kernels", f"core not in ({_list_of(_CORES)})")),
    ),
    UnverifiedForm(
        "graph_mode", "kernels of whole graphs (a model id)", _any(("kernels", "model_id >= 0")),
    ),
    UnverifiedForm(
        "several_devices", "kernels of several devices under one rank",
        "(select count(distinct device_id) from kernels) > 1",
    ),
    UnverifiedForm(
        "devices_apart", "several devices in one profile, each taken for a rank of its own",
        rule=("devices", (APART,)),
    ),
    UnverifiedForm(
        "block_num", "the columns Block Num and blockNum, of 2026 and later",
        rule=("kernels.block_count_column", ("Block Num",)),
    ),
    UnverifiedForm(
        "block_num_db", "the columns Block Num and blockNum, of 2026 and later",
        rule=("ascend_db.block_count_column", ("blockNum",)),
    ),
    UnverifiedForm(
        "master_plane", "the flag isMaster of communication tasks",
        _any(("comm_tasks", "is_master is not null")),
    ),
    UnverifiedForm(
        "cluster_db", "results of msprof-analyze in a database (cluster_analysis.db)",
        rule=("cluster_output.form", ("db", "db+text")),
    ),
    UnverifiedForm("mstx", "ranges marked with mstx", _any(("marks", "kind = 'mstx'"))),
    UnverifiedForm("gc", "Python's garbage collection", _any(("host_ops", "kind = 'gc'"))),
    UnverifiedForm(
        "memory_components", "memory of other components than PTA, GE and APP",
        _any(("memory", f"source = 'record' and component not in ({_list_of(_COMPONENTS)})")),
    ),
    UnverifiedForm(
        "ge_memory", "a memory curve from NPU_OP_MEM",
        rule=("ascend_db.memory_curve", ("NPU_OP_MEM",)),
    ),
    UnverifiedForm(
        "counters", "counters of links, hosts and other hardware than cores, HBM and caches",
        # The limit lets each name be looked at once, not each row.
        _any(("(select distinct name from counters limit 1000000)",
              f"not regexp_matches(name, '{_COUNTERS}')")),
    ),
)  # fmt: skip


def unverified_keys(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> list[str]:
    """Keys of what a rank has of the list; its staging tables are filled and linked."""
    if source.framework == "kineto":  # the others are about parts of Ascend's profiles
        return ["kineto"]
    queries = [f"(select '{one.key}' where {one.sql})" for one in UNVERIFIED_FORMS if one.sql]
    keys = {key for (key,) in run(con, " union all ".join(queries)).fetchall()}
    for one in UNVERIFIED_FORMS:
        name, variants = one.rule
        if source.framework in one.frameworks or log.rules.get(name) in variants:
            keys.add(one.key)
    return [one.key for one in UNVERIFIED_FORMS if one.key in keys]


def unverified_parts(keys: list[str]) -> list[str]:
    """What manifests' keys stand for; a key of another version stays as it is."""
    texts = {one.key: one.what for one in UNVERIFIED_FORMS}
    return list(dict.fromkeys(texts.get(key, key) for key in keys))
