"""torch_npu's profiler_config.json: each wrong field is named with what is allowed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.training import dynamic_profile as dynamic
from npuscope.collector.training.dynamic_profile import check, config, dyno_command


def wrong(top: dict[str, Any], **experimental: Any) -> dict[str, str]:
    content = {**top, "experimental_config": experimental} if experimental else top
    return {one.field.removeprefix("experimental_config."): one.rule for one in check(content)}


def test_what_is_written_is_right() -> None:
    assert check(config()) == []
    assert check(json.loads(json.dumps(config({"active": 3}, {"profiler_level": "Level2"})))) == []
    assert check({}) == [], "every field has a default"


@pytest.mark.parametrize("content", [[], None, "x", 3])
def test_a_configuration_is_an_object(content: object) -> None:
    (one,) = check(content)
    assert one.rule == "a JSON object"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("active", 0), ("active", True), ("active", "2"), ("active", 1.5), ("warmup", -1),
        ("start_step", -2), ("start_step", None), ("prof_dir", ""), ("prof_dir", None),
        ("analyse", "true"), ("with_stack", 1), ("is_rank", "false"), ("activities", "CPU"),
        ("activities", ["GPU"]), ("rank_list", "0,1"), ("rank_list", [0, -1]),
        ("rank_list", [True]), ("metadata", []), ("record_shape", True),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(field: str, value: object) -> None:
    assert list(wrong({field: value})) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profiler_level", "Level3"), ("profiler_level", 1), ("aic_metrics", "pipe"),
        ("export_type", "csv"), ("export_type", ["db", "csv"]), ("host_sys", ["gpu"]),
        ("host_sys", "cpu"), ("gc_detect_threshold", -1), ("gc_detect_threshold", "1"),
        ("gc_detect_threshold", float("nan")), ("l2_cache", "yes"), ("mstx_domain_include", [1]),
        ("mstx_domains", []),
    ],
)  # fmt: skip
def test_wrong_fields_of_the_experimental_config_are_named(field: str, value: object) -> None:
    assert list(wrong({}, **{field: value})) == [field]


def test_a_misspelt_field_is_recognised() -> None:
    (told,) = wrong({"activites": ["CPU"]}).values()
    assert "did you mean activities?" in told


@pytest.mark.parametrize(
    ("top", "experimental", "field"),
    [
        ({"activities": []}, {}, "activities"),
        ({}, {"aic_metrics": "Memory"}, "aic_metrics"),
        ({}, {"profiler_level": "Level_none"}, "mstx"),
        ({}, {"mstx": True, "mstx_domain_include": ["a"], "mstx_domain_exclude": ["b"]},
         "mstx_domain_exclude"),
        ({}, {"mstx_domain_include": ["a"]}, "mstx_domain_include"),
        ({}, {"op_attr": True, "export_type": "text"}, "op_attr"),
        ({}, {"export_type": []}, "export_type"),
        ({"async_mode": True}, {}, "async_mode"),
        ({"is_rank": True}, {}, "rank_list"),
        ({"rank_list": [1]}, {}, "is_rank"),
        ({"is_rank": True, "rank_list": [1], "analyse": True}, {}, "analyse"),
        ({"metadata": {"long": "x" * 5000}}, {}, "metadata.long"),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_together_are_named(
    top: dict[str, Any], experimental: dict[str, Any], field: str
) -> None:
    assert list(wrong(top, **experimental)) == [field]


def test_what_torch_npu_takes_is_taken() -> None:
    content = {
        "activities": ["cpu", "npu"], "start_step": -1, "is_rank": True, "rank_list": [0, 3],
        "is_valid": True, "metadata": {"job": {"a": 1}},
        "experimental_config": {
            "profiler_level": "Level1", "aic_metrics": "L2Cache", "export_type": "db",
            "gc_detect_threshold": 0.5, "host_sys": ["cpu", "numa"], "op_attr": True,
            "mstx_domain_include": None,
        },
    }  # fmt: skip
    assert check(content) == []


def test_the_same_by_ms_monitor() -> None:
    content = config(
        {"prof_dir": "/data/my profiles", "start_step": 10, "active": 3, "warmup": 1,
         "analyse": True, "async_mode": True, "is_rank": True, "rank_list": [0, 8]},
        {"profiler_level": "Level1", "aic_metrics": "PipeUtilization", "export_type": ["db"],
         "data_simplification": False, "mstx": True, "host_sys": ["cpu", "mem"]},
    )  # fmt: skip
    command = dyno_command(content, "/certs")
    assert shlex.split(command) == [
        "dyno", "--certs-dir", "/certs", "nputrace", "--start-step", "10", "--iterations", "3",
        "--log-file", "/data/my profiles", "--warmup-iterations", "1", "--activities", "CPU,NPU",
        "--analyse", "--async-mode", "--is-rank", "--rank-list", "0,8", "--profiler-level",
        "Level1", "--aic-metrics", "PipeUtilization", "--data-simplification", "false",
        "--export-type", "Db", "--mstx", "--host-sys", "cpu,mem",
    ]  # fmt: skip
    assert "--certs-dir NO_CERTS" in dyno_command({}) and "--iterations 1" in dyno_command({})


def test_every_field_says_what_it_takes(tmp_path: Path) -> None:
    for field in (*dynamic.FIELDS.values(), *dynamic.EXPERIMENTAL_FIELDS.values()):
        assert field.takes(field.default) and field.rule
