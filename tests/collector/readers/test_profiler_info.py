"""profiler_info and profiler_metadata: three generations of keys, and files that say little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.metadata import profiler_info
from npuscope.collector.readers.metadata.profiler_info import (
    ProfilerInfo,
    ProfilerMetadata,
    group_rows,
    parse_metadata,
    read_info,
    read_metadata,
)
from npuscope.collector.readers.metadata.profiler_metadata import rank_columns
from tests.collector.conftest import Staged


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_real_file_of_2025(real_data: Path) -> None:
    folder = real_data / "qwen3_pp2_dp2_text_level2" / "rank_0_ascend_pt"
    assert read_info(str(folder / "profiler_info_0.json")) == ProfilerInfo(
        device_id=None, level="Level2", aic_metrics="ACL_AICORE_PIPE_UTILIZATION",
        torch_npu_version="2.7.1", cann_version="8.3.RC1",
        window_start_ns=1764246878131995320 - (4699802061975030 - 4699801002845430),
        window_end_ns=1764246878131995320,
        schedule=(("wait", 0), ("active", 1), ("warmup", 1), ("repeat", 1), ("skip_first", 12)),
        options={
            "activities": ["CPU", "NPU"], "record_shapes": True, "profile_memory": True,
            "with_stack": False, "with_flops": False, "with_modules": False,
            "profiler_level": "Level2", "aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
            "l2_cache": False, "msprof_tx": False, "mstx": False, "mstx_domain_include": [],
            "mstx_domain_exclude": [], "data_simplification": True, "record_op_args": False,
            "op_attr": False, "gc_detect_threshold": None, "host_sys": [], "sys_io": False,
            "sys_interconnection": False, "export_type": ["text"], "schedule.wait": 0,
            "schedule.active": 1, "schedule.warmup": 1, "schedule.repeat": 1,
            "schedule.skip_first": 12,
        },
    )  # fmt: skip


def test_real_rank_and_groups(stage: Staged, real_data: Path) -> None:
    stage.read(profiler_info, real_data / "qwen3_pp2_dp2_text_level2" / "rank_1_ascend_pt", rank=1)
    assert stage.rows("""select framework, profiler_level, source_format, clock, world_size,
        tp_size, pp_size, dp_size, cp_size, ep_size, tp_rank, pp_rank, dp_rank, cp_rank, ep_rank,
        device_id, cann_version from ranks""") == [
        ("pytorch", "Level2", "light", "epoch", 4, 1, 2, 2, 1, 1, 0, 0, 1, 0, 0, None, "8.3.RC1")
    ]  # fmt: skip
    groups = stage.rows(
        "select group_hash, group_label, parallel_kind, group_rank, global_ranks from groups"
    )
    assert ("5862276093215481612", "default_group", "world", 1, [0, 1, 2, 3]) in groups
    assert [g[4] for g in groups if g[2] == "dp_cp"] == [[0, 1]]


def test_how_the_job_was_started(stage: Staged, real_data: Path, tmp_path: Path) -> None:
    stage.read(profiler_info, real_data / "qwen3_pp2_dp2_text_level2" / "rank_1_ascend_pt", rank=1)
    ((environment, model),) = stage.rows("select environment, model_config from ranks")
    assert model is None and json.loads(environment) == {
        "ASCEND_GLOBAL_LOG_LEVEL": "3", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    }  # fmt: skip
    told = {
        "ENV_VARIABLES": json.dumps({"HCCL_ALGO": "", "B": "x" * 1000}),  # as a database has it
        "model_config": {
            "hidden_size": 4096,
            "num_experts_per_tok": "many",
            "tie": False,
            "layers": [1, 2],
            "deep": {"a": 1},
        },
    }
    metadata = read_metadata(str(write(tmp_path / "metadata.json", told)))
    assert metadata.environment == "{}"  # none is set, which is known
    assert json.loads(metadata.model_config or "") == {
        "hidden_size": "4096", "layers": "[1, 2]", "num_experts_per_tok": "many", "tie": "false",
    }  # fmt: skip
    assert metadata.top_k is None
    for nonsense in ("not JSON", 7, None, ["A=1"]):
        path = write(tmp_path / "metadata.json", {"ENV_VARIABLES": nonsense})
        assert read_metadata(str(path)).environment is None


def test_real_group_hashes_are_those_of_the_operations(real_data: Path) -> None:
    folder = real_data / "qwen3_pp2_dp2_text_level2" / "rank_0_ascend_pt"
    metadata = read_metadata(str(folder / "profiler_metadata.json"))
    hashes = set(group_rows(metadata, 0)["group_hash"].to_pylist())
    content = json.loads((folder / "ASCEND_PROFILER_OUTPUT" / "communication.json").read_text())
    used = {
        key.rpartition("@")[2]
        for step in content.values() for operations in step.values() for key in operations
        if "@" in key
    }  # fmt: skip
    assert used
    assert used <= hashes


def test_keys_of_2023(tmp_path: Path) -> None:
    path = write(tmp_path / "profiler_info_3.json", {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU"],
                "schedule": {
                    "_wait": 1, "_active": 2, "_warmup": 0, "_repeat": 1, "_skip_first": 0,
                },
                "on_trace_ready": {"_worker_name": None},
            },
            "experimental_config": {
                "_profiler_level": "Level_none", "_aic_metrics": "ACL_AICORE_NONE",
                "_export_type": "text",
            },
        },
        "rank_id": 3,
    })  # fmt: skip
    assert read_info(str(path)) == ProfilerInfo(
        level="Level_none", aic_metrics="ACL_AICORE_NONE",
        schedule=(("wait", 1), ("active", 2), ("warmup", 0), ("repeat", 1), ("skip_first", 0)),
        options={
            "activities": ["CPU"], "profiler_level": "Level_none",
            "aic_metrics": "ACL_AICORE_NONE", "export_type": "text", "schedule.wait": 1,
            "schedule.active": 2, "schedule.warmup": 0, "schedule.repeat": 1,
            "schedule.skip_first": 0,
        },
    )  # fmt: skip


def test_options_are_a_closed_list_of_plain_values(tmp_path: Path) -> None:
    path = write(tmp_path / "profiler_info_0.json", {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.NPU", 7], "record_shapes": "yes",
                "on_trace_ready": {"_dir_name": "/home/someone"}, "with_stack": 10**30,
            },
            "experimental_config": {
                "_export_type": ["ExportType.Db"], "_sys_io": {"a": 1}, "_custom": True,
                "_aic_metrics": "x" * 10_000, "_mstx_domain_include": ["a.b", " c "],
            },
        },
    })  # fmt: skip
    options = read_info(str(path)).options
    assert options == {
        "activities": ["NPU", "7"], "record_shapes": "yes", "export_type": ["Db"],
        "aic_metrics": "x" * 200, "mstx_domain_include": ["a.b", "c"],
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(options)) == options
    write(path, {"rank_id": 0})
    assert read_info(str(path)).options is None


@pytest.mark.parametrize(
    ("content", "field", "expected"),
    [
        ({"device_id": "12"}, "device_id", 12), ({"device_id": -1}, "device_id", None),
        ({"device_id": "x"}, "device_id", None), ({"device_id": True}, "device_id", None),
        ({"device_id": 2**40}, "device_id", None),
        ({"torch_npu_version": "not known"}, "torch_npu_version", None),
        ({"cann_version": ""}, "cann_version", None),
        ({"cann_version": "\"8.0.RC2\""}, "cann_version", "8.0.RC2"),
        ({"config": {"experimental_config": {"profiler_level": "ProfilerLevel.Level1"}}}, "level",
         "Level1"),
        ({"config": {"common_config": {"schedule": None}}}, "schedule", ()),
        ({"config": None, "start_info": 5, "end_info": []}, "window_end_ns", None),
        ({"end_info": {"collectionTimeEnd": 10**18, "MonotonicTimeEnd": 500}}, "window_start_ns",
         None),
        ({"end_info": {"collectionTimeEnd": 10**18, "MonotonicTimeEnd": 500},
          "start_info": {"start_monotonic": 200}}, "window_start_ns", 10**18 - 300),
        ({"end_info": {"collectionTimeEnd": 10**18, "MonotonicTimeEnd": 100},
          "start_info": {"start_monotonic": 200}}, "window_start_ns", None),
    ],
)  # fmt: skip
def test_single_keys(tmp_path: Path, content: Any, field: str, expected: object) -> None:
    assert getattr(read_info(str(write(tmp_path / "i.json", content))), field) == expected


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{", b"null", b'{"rank_id": 1'])
def test_malformed_files_warn_and_say_nothing(stage: Staged, content: bytes) -> None:
    info, metadata = (
        stage.folder / "profiler_info_0.json",
        stage.folder / "profiler_metadata.json",
    )
    info.write_bytes(content)
    metadata.write_bytes(content)
    log = stage.read(profiler_info, {"profiler_info": info, "profiler_metadata": metadata})
    assert len(log.warnings) == 2
    assert "profiler_info_0.json: JSON" in log.warnings[0]
    ranks = stage.con.execute("select profiler_level, world_size, source_format from ranks")
    assert ranks.fetchall() == [(None, None, "light")]
    assert read_metadata(str(metadata)) == ProfilerMetadata()


def test_empty_and_marked_files(tmp_path: Path) -> None:
    path = tmp_path / "profiler_info.json"
    path.write_bytes(b"")
    log = ReadLog()
    assert read_info(str(path), log) == ProfilerInfo()
    assert log.damage == {str(path): "JSON: empty file"}
    path.write_bytes(b'\xef\xbb\xbf{"device_id": "5"}')
    assert read_info(str(path), ReadLog()).device_id == 5


GROUPS = {
    "a": {"group_name": "tp", "group_rank": 1, "global_ranks": [2, 3]},
    "b": {"group_name": "tp", "group_rank": 0, "global_ranks": [9, 8]},
    "c": {"group_name": "exp", "group_rank": 0, "global_ranks": ["7", "3"]},
    "d": {"group_name": "", "global_ranks": None},
    "e": {"group_name": "dp_cp", "global_ranks": "[1, 3, 5]"},
    "f": {"group_name": "default_group", "global_ranks": list(range(16))},
    "g": {"group_name": "pp", "global_ranks": [3, "x"]},
}


def test_places_in_groups(staging: duckdb.DuckDBPyConnection) -> None:
    metadata = parse_metadata(
        {"parallel_group_info": GROUPS, "distributed_args": {"cp": 1, "pp": 4}}
    )
    assert metadata.world_size == 16
    assert dict(metadata.sizes) == {"tp": 2, "pp": 4, "cp": 1, "ep": 2}
    assert rank_columns(metadata, 3) == {
        "world_size": 16, "tp_size": 2, "pp_size": 4, "dp_size": None, "cp_size": 1, "ep_size": 2,
        "tp_rank": 1, "pp_rank": None, "dp_rank": 1, "cp_rank": 0, "ep_rank": 1,
        "environment": None, "model_config": None,
    }  # fmt: skip
    staging.register("_rows", group_rows(metadata, 3))
    staging.execute("insert into groups by name select * from _rows")
    found = staging.execute(
        "select group_name, group_label, parallel_kind, group_rank, global_ranks from groups"
    ).fetchall()
    assert found[:5] == [
        ("a", "tp", "tp", 1, [2, 3]), ("b", "tp", "tp", 0, [9, 8]), ("c", "exp", "ep", 1, [7, 3]),
        ("d", None, "unknown", None, None), ("e", "dp_cp", "dp_cp", 1, [1, 3, 5]),
    ]  # fmt: skip
    assert found[6] == ("g", "pp", "pp", None, None)


@pytest.mark.parametrize("as_text", [False, True])
def test_mapping_of_a_database_holds_json_text(as_text: bool) -> None:
    args = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": "4", "world_size": 8,
            "rank": 5, "pipeline_model_parallel_size": 0}  # fmt: skip
    mapping: dict[str, object] = {
        "distributed_args": json.dumps(args) if as_text else args,
        "parallel_group_info": json.dumps(GROUPS) if as_text else GROUPS,
        "job_name": " moe ", "SCHEMA_VERSION": "1.2.0",
        "model_config": json.dumps({"num_experts_per_tok": 8, "hidden_size": 64}),
    }  # fmt: skip
    metadata = parse_metadata(mapping)
    assert metadata.rules() == {"model.top_k": "8"}
    assert parse_metadata({"model_config": {"moe_router_topk": 2}}).top_k == 2
    assert (metadata.job_name, metadata.rank, metadata.world_size) == ("moe", 5, 8)
    assert dict(metadata.sizes) == {"tp": 2, "ep": 4}
    assert len(metadata.groups) == len(GROUPS)


@pytest.mark.parametrize(
    "mapping",
    [{}, {"distributed_args": "{"}, {"parallel_group_info": [1]}, {"distributed_args": 3},
     {"model_config": '["num_experts_per_tok", "many"]'}],
)  # fmt: skip
def test_nonsense_says_nothing(mapping: dict[str, object]) -> None:
    assert parse_metadata(mapping) == ProfilerMetadata()
    assert group_rows(parse_metadata(mapping), 0).num_rows == 0
