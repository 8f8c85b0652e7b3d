"""Files and rows that say what was profiled: the rank folder's name, its info and its metadata."""

from __future__ import annotations

import random
from datetime import datetime, timezone

from ..capture import Capture

FRAMEWORK_VERSION, CANN_VERSION = "2.7.1", "8.3.RC1"
_ENVIRONMENT = (
    "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT",
    "HOST_CACHE_CAPACITY", "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF",
    "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
)  # fmt: skip


def folder_name(c: Capture) -> str:
    """Host, process and time; the rank cannot be read from it."""
    chance = random.Random(f"{c.job.seed}/folder/{c.rank}")
    written_ns = c.session_start_ns + chance.randrange(400_000_000, 900_000_000)
    at = datetime.fromtimestamp(written_ns // 10**9, tz=timezone.utc)
    milliseconds = written_ns // 10**6 % 1000
    return f"{c.host_name}_{c.process_id}_{at:%Y%m%d%H%M%S}{milliseconds:03d}_ascend_pt"


def profiler_info(c: Capture, export: list[str]) -> dict[str, object]:
    """Content of profiler_info_<rank>.json."""
    monotonic_ns = 4_699_801_002_845_430
    return {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
                "schedule": {
                    "wait": 0,
                    "active": c.job.steps,
                    "warmup": 1,
                    "repeat": 1,
                    "skip_first": c.job.first_step - 1,
                },
                "record_shapes": True,
                "profile_memory": c.job.memory,
                "with_stack": False,
                "with_flops": False,
                "with_modules": False,
            },
            "experimental_config": {
                "_profiler_level": "Level1",
                "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
                "_l2_cache": False,
                "_msprof_tx": False,
                "_mstx": False,
                "_data_simplification": True,
                "record_op_args": False,
                "_export_type": export,
                "_host_sys": [],
                "_op_attr": False,
                "_gc_detect_threshold": None,
                "_mstx_domain_include": [],
                "_mstx_domain_exclude": [],
                "_sys_io": False,
                "_sys_interconnection": False,
            },
        },
        "start_info": {
            "syscnt_enable": True,
            "freq": 100,
            "start_cnt": monotonic_ns // 10,
            "start_monotonic": monotonic_ns,
        },
        "end_info": {
            "collectionTimeEnd": c.session_end_ns,
            "MonotonicTimeEnd": monotonic_ns + c.session_end_ns - c.session_start_ns,
        },
        "torch_npu_version": FRAMEWORK_VERSION,
        "cann_version": CANN_VERSION,
        "rank_id": str(c.rank),
    }


def profiler_metadata(c: Capture) -> dict[str, object]:
    """Content of profiler_metadata.json; the database holds the same by key."""
    job = c.job
    return {
        "distributed_args": {
            "tensor_model_parallel_size": job.tp,
            "pipeline_model_parallel_size": job.pp,
            "data_parallel_size": job.dp,
            "context_parallel_size": 1,
            "expert_model_parallel_size": job.ep,
            "sequence_parallel": False,
            "rank": c.rank,
            "world_size": job.world_size,
        },
        "ENV_VARIABLES": dict.fromkeys(_ENVIRONMENT, ""),
        "parallel_group_info": {
            group.name: {
                "group_name": group.label,
                "group_rank": group.ranks.index(c.rank),
                "global_ranks": list(group.ranks),
            }
            for group in c.groups
        },
    }
