"""What the doctor says of real profiles: what they are, what they can answer, what they lack."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.doctor.doctor import CaptureReport, examine
from npuscope.analysis.doctor.profiler_options import snippet
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests

LEVEL1 = dict.fromkeys(
    ("steps", "kernels", "pmu", "masking", "waiting", "links", "host", "dispatch", "memory",
     "operator_memory", "mfu", "peers", "replay"), "yes",
) | {
    "groups": "partly", "matrix": "partly", "stacks": "partly", "experts": "no",
    "frequency": "partly", "bandwidth": "partly", "ranks": "partly",
}  # fmt: skip
LEVEL0 = LEVEL1 | {
    "kernels": "partly", "pmu": "no", "waiting": "no", "links": "no", "matrix": "no", "mfu": "no",
}  # fmt: skip
SUPPORT: dict[str, dict[str, str]] = {
    "alexnet_ddp_text_level1": LEVEL1,
    "alexnet_ddp_db_level1": LEVEL1,
    # Without a CANN process in its timeline.
    "alexnet_ddp_text_level0": LEVEL0 | {"host": "partly", "replay": "partly"},
    "alexnet_ddp_db_level0": LEVEL0,
    "qwen3_pp2_dp2_text_level2": LEVEL1 | {
        "steps": "partly", "groups": "yes", "matrix": "yes", "host": "no", "dispatch": "no",
        "stacks": "no", "frequency": "no", "bandwidth": "no", "peers": "partly",
        "replay": "partly",
    },
}  # fmt: skip
every_set = pytest.mark.parametrize("name", SUPPORT)


@pytest.fixture(scope="module")
def reports(real_stores: Callable[[str], Path]) -> dict[str, CaptureReport]:
    captures: dict[str, CaptureReport] = {}
    for name in SUPPORT:
        with closing(store.open(real_stores(name))) as con:
            (captures[name],) = examine(con, manifests(real_stores(name)))
    return captures


@pytest.mark.slow
@every_set
def test_what_it_can_answer(reports: dict[str, CaptureReport], name: str) -> None:
    assert {v.capability: v.support for v in reports[name].verdicts} == SUPPORT[name]


@every_set
def test_nothing_was_lost_and_all_is_verified(reports: dict[str, CaptureReport], name: str) -> None:
    for rank in reports[name].ranks:
        assert not rank.loss.is_any
        assert (rank.warnings, rank.unverified) == ((), ())
        assert rank.rules["clock"] == "epoch"
        assert rank.rules.get("producers_communication") in (None, "operations, as here")


@every_set
def test_levels_steps_and_ranks_are_the_golden_ones(
    reports: dict[str, CaptureReport], goldens: dict[str, Any], name: str
) -> None:
    capture = reports[name]
    golden = {rank: facts for rank, facts in goldens[name].items() if rank.isdecimal()}
    assert {str(rank.rank) for rank in capture.ranks} == set(golden)
    for rank in capture.ranks:
        facts = golden[str(rank.rank)]
        assert [str(step) for step in rank.steps.steps] == list(facts["steps"])
        assert rank.facts["profiler_level"] == f"Level{name[-1]}"
        assert rank.options is not None
        assert rank.options["profiler_level"] == f"Level{name[-1]}"
        forms = next(iter(facts["steps"].values()))
        for form in ("db", "kernel_details"):
            if form in forms:
                assert rank.counts["kernels.compute"] == forms[form]["n_compute"]
                assert rank.counts["comm_ops"] == forms[form]["n_comm"]


def test_alexnet(reports: dict[str, CaptureReport]) -> None:
    for name in SUPPORT:
        if not name.startswith("alexnet"):
            continue
        capture = reports[name]
        assert (capture.world_size, capture.missing_ranks) == (None, None)
        # Eight NPUs: the link matrix of Level1 has seven partners.
        assert capture.least_rank_count == (8 if name.endswith("1") else None)
        for rank in capture.ranks:
            assert rank.facts["source_format"] == name.split("_")[2]
            assert rank.facts["framework_version"] is rank.facts["cann_version"] is None
            assert rank.options is not None
            assert rank.options["schedule.warmup"] == 10 and rank.options["with_stack"] is True
            assert "sys_io" not in rank.options
    by_name = {one.capability: one for one in reports["alexnet_ddp_text_level1"].verdicts}
    assert by_name["stacks"].remedy == "`npuscope ingest PATH --stacks`"
    assert by_name["ranks"].reason == "2 of at least 8 ranks are here"


def test_qwen(reports: dict[str, CaptureReport]) -> None:
    capture = reports["qwen3_pp2_dp2_text_level2"]
    assert (capture.world_size, capture.missing_ranks) == (4, (2, 3))
    first, second = capture.ranks
    assert (first.facts["source_format"], second.facts["source_format"]) == ("text", "light")
    for rank in capture.ranks:
        versions = (rank.facts["framework_version"], rank.facts["cann_version"])
        assert versions == ("2.7.1", "8.3.RC1")
    assert first.rules["communication"] == "rows of the kernel table"
    assert (first.rules["basis"], second.rules["basis"]) == ("events", "profiler_table")
    by_name = {one.capability: one for one in capture.verdicts}
    assert [(d.ranks, d.verdict.support) for d in by_name["kernels"].deviations] == [((1,), "no")]
    assert [(d.ranks, d.verdict.support) for d in by_name["masking"].deviations] == [
        ((1,), "partly")
    ]
    assert by_name["host"].reason == (
        "no host activity was recorded (trace_view.json or DB is not here)"
    )
    # It was asked for: no setting would bring it back.
    assert by_name["host"].settings == ()


def test_level0_is_told_to_become_level1(reports: dict[str, CaptureReport]) -> None:
    for form in ("text", "db"):
        capture = reports[f"alexnet_ddp_{form}_level0"]
        wanted = [s for v in capture.verdicts for s in v.settings]
        code = snippet(capture.ranks[0].options or {}, wanted)
        assert "profiler_level=ProfilerLevel.Level1" in code
        assert "aic_metrics=AiCMetrics.PipeUtilization" in code
        assert f"export_type=[ExportType.{form.capitalize()}]" in code
        assert "skip_first=40" in code and "with_stack=True" in code
    code = snippet(
        reports["alexnet_ddp_db_level1"].ranks[0].options or {},
        [s for v in reports["alexnet_ddp_db_level1"].verdicts for s in v.settings],
    )
    assert "profiler_level=ProfilerLevel.Level1" in code and "# new: several times" not in code
