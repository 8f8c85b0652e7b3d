"""The commands on traces of GPUs: all answer, and none speaks of what only NPUs have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuscope.cli import main
from npuscope.dashboard.locale.language import language_of
from npuscope.sample_traces.generate import Job, write_job

chinese = language_of("zh")

ONLY_ON_NPUS = (
    "Level1", "analyse()", "torch_npu", "TASK_QUEUE_ENABLE", "PYTORCH_NPU", "ProfilerActivity.NPU",
    "kernel_details", "trace_view", "aic_metrics", "HCCL",
)  # fmt: skip
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command that succeeds says; both of its outputs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def command(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["npuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert not left.value.code, captured.err
        return captured.out + captured.err if "--json" not in arguments else captured.out

    return command


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a job on GPUs whose memory was not recorded."""
    folder = tmp_path_factory.mktemp("gpus") / "traces"
    job = Job(name="gpus", layers=2, dp=2, pp=1, ep=2, memory=False, seed=3)
    write_job(job, folder, forms=("kineto",))
    return folder


def rows(answer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer)["rows"]
    return found


@pytest.mark.slow
def test_every_answer_is_without_words_of_npus(run: Run, gpus: Path, tmp_path: Path) -> None:
    run("ingest", gpus, "--store", tmp_path / "store")
    page = tmp_path / "page.html"
    for command in (
        "report", "findings", "steps", "kernels --by name", "kernels --by type",
        f"report --html {page} --lang zh", "doctor",
    ):  # fmt: skip
        verb, *options = command.split()
        text = run(verb, tmp_path / "store", *options)
        assert [word for word in ONLY_ON_NPUS if word in text] == [], command
        assert "nccl" not in text or verb != "kernels", command
    assert [word for word in ONLY_ON_NPUS if word in page.read_text()] == []


@pytest.mark.slow
def test_the_report_says_what_a_gpus_profiler_can_be_told(run: Run, gpus: Path) -> None:
    [capture] = rows(run("report", gpus, "--json"))

    assert capture["limits"] == ["ranks 0-1: no memory curve. To know it: profile_memory=True"]
    assert (capture["frameworks"], capture["ranks"]) == (["kineto"], [0, 1])
    [device_idle] = [one for one in capture["findings"] if one["finding"] == "device_idle"]
    assert device_idle["advice"].endswith("capture CUDA graphs.")
    assert chinese(device_idle["advice"]).endswith("使用 CUDA graph。")


def test_doctor_asks_for_what_a_gpus_profiler_has(run: Run, gpus: Path) -> None:
    ranks = rows(run("doctor", gpus, "--json"))

    assert [one["rank"] for one in ranks] == [0, 1]
    verdicts = {one["capability"]: one for one in ranks[0]["capabilities"]}
    assert {name for name, one in verdicts.items() if one["support"] == "yes"} >= {
        "steps", "masking", "groups", "host", "dispatch",
    }  # fmt: skip
    assert verdicts["memory"]["remedy"] == "profile_memory=True"
    assert verdicts["stacks"]["remedy"] == "with_stack=True"
    assert verdicts["waiting"]["remedy"] is None
    assert ranks[0]["not_verified_on_real_data"] == [
        "everything of the device in a PyTorch trace (Kineto): kernels, communication"
    ]


@pytest.mark.slow
def test_gpus_and_npus_in_one_store_each_hear_their_own(
    run: Run, gpus: Path, tmp_path: Path
) -> None:
    job = Job(name="npus", layers=2, dp=2, pp=1, ep=2, memory=False, comm_tasks=False, seed=3)
    write_job(job, tmp_path / "npus", forms=("text",))
    for path in (tmp_path / "npus", gpus):
        run("ingest", path, "--store", tmp_path / "store", "--run", path.name)
    limits = {
        one["run"]: one["limits"] for one in rows(run("report", tmp_path / "store", "--json"))
    }

    assert any("Level1" in limit for limit in limits["npus"])
    assert not any("Level1" in limit for limit in limits["traces"])
    figures = {
        (one["run"], one["rank"], one["step"]): (one["computing_ns"], one["communication_ns"])
        for one in rows(run("steps", tmp_path / "store", "--json"))
    }
    for (name, rank, step), told in figures.items():
        if name == "npus":
            assert figures["traces", rank, step] == told
    assert len(figures) == 8


def test_groups_without_a_name_are_told_how_to_get_one() -> None:
    remedy = "torch.distributed.new_group(..., group_desc=NAME), as Megatron and DeviceMesh do"
    limit = (
        "ranks 0-1: the purpose of communication groups is not recorded: inferred from what"
        " they do."
        f" To know it: {remedy}"
    )
    assert not any(word in chinese(limit) for word in ("ranks", "unknown", "as Megatron"))
