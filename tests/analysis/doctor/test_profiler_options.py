"""The profiler call that is suggested: valid Python, real names, as small as it can be."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from npuscope.analysis.doctor.profiler_options import (
    AIC_METRICS,
    CPU,
    INTERCONNECT,
    IO,
    LEVEL1,
    MEMORY,
    METADATA,
    NPU,
    PMU,
    STACKS,
    STEPS,
    Options,
    idle_options,
    level,
    snippet,
)

SETTINGS = (CPU, NPU, LEVEL1, PMU, MEMORY, STACKS, STEPS, INTERCONNECT, IO, METADATA)
# Signatures of torch_npu 2.13.0.
EXPERIMENTAL = {
    "profiler_level", "aic_metrics", "l2_cache", "msprof_tx", "mstx", "data_simplification",
    "record_op_args", "op_attr", "gc_detect_threshold", "export_type", "host_sys",
    "mstx_domain_include", "mstx_domain_exclude", "sys_io", "sys_interconnection",
}  # fmt: skip
PROFILE = {
    "activities", "schedule", "on_trace_ready", "record_shapes", "profile_memory", "with_stack",
    "with_flops", "with_modules", "experimental_config",
}  # fmt: skip
SCHEDULE = {"wait", "active", "warmup", "repeat", "skip_first", "skip_first_wait"}
ENUMS = {
    "ProfilerLevel": {"Level_none", "Level0", "Level1", "Level2"},
    "AiCMetrics": {
        "PipeUtilization", "ArithmeticUtilization", "Memory", "MemoryL0", "MemoryUB",
        "ResourceConflictRatio", "L2Cache", "MemoryAccess", "AiCoreNone",
    },
    "ExportType": {"Text", "Db"},
    "ProfilerActivity": {"CPU", "NPU"},
}  # fmt: skip
RECORDED: Options = {
    "activities": ["CPU", "NPU"], "record_shapes": False, "profile_memory": False,
    "with_stack": False, "profiler_level": "Level0", "aic_metrics": "ACL_AICORE_NONE",
    "export_type": ["text"], "sys_io": False, "sys_interconnection": False, "mstx": False,
    "gc_detect_threshold": None, "schedule.wait": 2, "schedule.warmup": 3, "schedule.active": 4,
    "schedule.repeat": 5, "schedule.skip_first": 6,
}  # fmt: skip


def calls(code: str) -> dict[str, dict[str, str]]:
    """Arguments of each call in the code: function -> keyword -> its source."""
    return {
        ast.unparse(node.func).rpartition(".")[2]: {
            str(argument.arg): ast.unparse(argument.value) for argument in node.keywords
        }
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
    }


def check(code: str) -> dict[str, dict[str, str]]:
    """The calls of a snippet that is Python and names only what torch_npu has."""
    found = calls(code)
    assert set(found["_ExperimentalConfig"]) <= EXPERIMENTAL
    assert set(found["profile"]) <= PROFILE
    assert set(found["schedule"]) <= SCHEDULE
    imported = {
        alias.name
        for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ENUMS:
                assert node.value.id in imported
                assert node.attr in ENUMS[node.value.id]
    return found


def options_like(
    levels: Iterable[str | None] = ("Level_none", "Level0", "Level1", "Level2", None, "odd"),
) -> list[Options]:
    return [{"profiler_level": told} for told in levels] + [
        {"aic_metrics": name, "profiler_level": "Level1"} for name in (*AIC_METRICS, "0x11,0x12")
    ] + [
        {}, {"export_type": "text"}, {"export_type": ["db", "text"]}, {"export_type": None},
        {"activities": ["NPU"]}, {"activities": []}, {"gc_detect_threshold": 2.5, "mstx": True},
        {"msprof_tx": True}, {"schedule.active": -1}, RECORDED,
    ]  # fmt: skip


@pytest.mark.parametrize("options", options_like(), ids=str)
def test_any_wish_on_top_of_any_options_is_valid(options: Options) -> None:
    check(snippet(options, []))
    check(snippet(options, SETTINGS))
    for setting in SETTINGS:
        check(snippet(options, [setting]))


def test_what_is_not_wished_for_stays_as_it_was() -> None:
    found = check(snippet(RECORDED, [MEMORY]))
    assert found["_ExperimentalConfig"] == {
        "profiler_level": "ProfilerLevel.Level0", "export_type": "[ExportType.Text]",
    }  # fmt: skip
    assert found["schedule"] == {
        "wait": "2", "warmup": "3", "active": "4", "repeat": "5", "skip_first": "6"
    }  # fmt: skip
    assert found["profile"].keys() == {
        "activities", "schedule", "on_trace_ready", "profile_memory", "experimental_config"
    }  # fmt: skip
    assert found["profile"]["profile_memory"] == "True"


def test_only_what_is_new_has_its_cost_above_it() -> None:
    code = snippet(RECORDED, [LEVEL1, PMU, STACKS, IO])
    lines = [line.strip() for line in code.splitlines()]
    new = {
        lines[place + 1].partition("=")[0]: line
        for place, line in enumerate(lines) if line.startswith("# new: ")
    }  # fmt: skip
    assert new == {
        "profiler_level": f"# new: {LEVEL1.cost}", "aic_metrics": f"# new: {PMU.cost}",
        "with_stack": f"# new: {STACKS.cost}", "sys_io": f"# new: {IO.cost}",
    }  # fmt: skip
    assert max(map(len, snippet({}, SETTINGS).splitlines())) <= 78


def test_a_level_is_raised_and_never_lowered() -> None:
    for told, wanted in (("Level0", "Level1"), ("Level2", "Level2"), ("Level_none", "Level1")):
        code = snippet({"profiler_level": told}, [LEVEL1])
        assert check(code)["_ExperimentalConfig"]["profiler_level"] == f"ProfilerLevel.{wanted}"
    kept = check(snippet({"profiler_level": "Level_none"}, []))["_ExperimentalConfig"]
    assert kept["profiler_level"] == "ProfilerLevel.Level_none"


def test_other_counters_stay_but_none_become_those_of_the_pipes() -> None:
    for told, wanted in (
        ("ACL_AICORE_MEMORY_BANDWIDTH", "Memory"), ("ACL_AICORE_NONE", "PipeUtilization"),
    ):  # fmt: skip
        code = snippet({"profiler_level": "Level1", "aic_metrics": told}, [PMU])
        assert check(code)["_ExperimentalConfig"]["aic_metrics"] == f"AiCMetrics.{wanted}"
    # Level0 refuses them.
    below = check(snippet({"profiler_level": "Level0", "aic_metrics": "ACL_AICORE_L2_CACHE"}, []))
    assert "aic_metrics" not in below["_ExperimentalConfig"]


def test_a_switch_that_the_recording_version_lacked_is_told() -> None:
    old = {name: value for name, value in RECORDED.items() if not name.startswith("sys_")}
    assert "needs a newer torch_npu" in snippet(old, [IO])
    assert "needs a newer torch_npu" not in snippet(RECORDED, [IO])
    assert "needs a newer torch_npu" not in snippet({}, [IO])


def test_an_activity_joins_the_others() -> None:
    code = snippet({**RECORDED, "activities": ["NPU"]}, [CPU])
    assert check(code)["profile"]["activities"] == "[ProfilerActivity.CPU, ProfilerActivity.NPU]"
    kept = check(snippet({**RECORDED, "activities": ["NPU"]}, []))
    assert kept["profile"]["activities"] == "[ProfilerActivity.NPU]"


def test_sizes_of_the_job_are_said_where_wished() -> None:
    assert "add_metadata_json" in calls(snippet(RECORDED, [METADATA]))
    assert "json" not in snippet(RECORDED, [])


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.name)
def test_a_setting_knows_whether_it_is_on(setting: object) -> None:
    assert setting in SETTINGS
    on: Options = {
        "activities": ["CPU", "NPU"], "profiler_level": "Level2",
        "aic_metrics": "ACL_AICORE_L2_CACHE",
        "record_shapes": True, "profile_memory": True, "with_stack": True, "schedule.active": 1,
        "sys_io": True, "sys_interconnection": True,
    }  # fmt: skip
    off: Options = {
        "activities": [], "profiler_level": "Level0", "aic_metrics": "ACL_AICORE_NONE",
        "record_shapes": False, "profile_memory": False, "with_stack": False, "sys_io": False,
        "sys_interconnection": False,
    }  # fmt: skip
    (known,) = (one for one in SETTINGS if one is setting)
    assert known.is_on(on) is (None if known is METADATA else True)
    assert known.is_on(off) is (None if known in (METADATA, STEPS) else False)
    assert known.is_on({}) is None


@pytest.mark.parametrize(
    ("told", "number"),
    [("Level0", 0), ("Level2", 2), ("Level_none", -1), (None, None), ("None", None), ("", None)],
)
def test_levels(told: str | None, number: int | None) -> None:
    assert level({"profiler_level": told}) == number


def test_costs_without_use_are_named() -> None:
    assert idle_options({"l2_cache": True, "with_modules": True, "with_stack": True}) == [
        "l2_cache", "with_modules",
    ]  # fmt: skip
    assert idle_options(None) == idle_options({"l2_cache": None}) == []
