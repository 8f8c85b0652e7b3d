"""The commands on traces of GPUs: all answer, and none speaks of what only NPUs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.dashboard.locale.language import language_of
from npuscope.messages import Message
from npuscope.sample_traces.generate import Job, write_job
from tests.cli.command import Run

chinese = language_of("zh")

ONLY_ON_NPUS = (
    "Level1", "analyse()", "torch_npu", "TASK_QUEUE_ENABLE", "PYTORCH_NPU", "ProfilerActivity.NPU",
    "kernel_details", "trace_view", "aic_metrics", "HCCL",
)  # fmt: skip


@pytest.fixture
def answer_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command that succeeds says; both of its outputs."""
    monkeypatch.setenv("COLUMNS", "160")

    def command(*arguments: object) -> str:
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out + outcome.err

    return command


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a job on GPUs whose memory was not recorded."""
    folder = tmp_path_factory.mktemp("gpus") / "traces"
    job = Job(name="gpus", layers=2, dp=2, pp=1, ep=2, memory=False, seed=3)
    write_job(job, folder, forms=("kineto",))
    return folder


@pytest.mark.slow
def test_every_answer_is_without_words_of_npus(
    answer_of: Callable[..., str], gpus: Path, tmp_path: Path
) -> None:
    answer_of("ingest", gpus, "--store", tmp_path / "store")
    page = tmp_path / "page.html"
    for command in (
        "report", "findings", "steps", "kernels --by name", "kernels --by type",
        f"report --html {page} --lang zh", "doctor",
    ):  # fmt: skip
        verb, *options = command.split()
        text = answer_of(verb, tmp_path / "store", *options)
        assert [word for word in ONLY_ON_NPUS if word in text] == [], command
        assert "nccl" not in text or verb != "kernels", command
    assert [word for word in ONLY_ON_NPUS if word in page.read_text()] == []


@pytest.mark.slow
def test_the_report_says_what_a_gpus_profiler_can_be_told(run: Run, gpus: Path) -> None:
    [capture] = run("report", gpus, "--json").rows

    assert capture["limits"] == ["ranks 0-1: no memory curve. To know it: profile_memory=True"]
    assert (capture["frameworks"], capture["ranks"]) == (["kineto"], [0, 1])
    [device_idle] = [one for one in capture["findings"] if one["finding"] == "device_idle"]
    assert device_idle["advice"].endswith("capture CUDA graphs.")


def test_doctor_asks_for_what_a_gpus_profiler_has(run: Run, gpus: Path) -> None:
    ranks = run("doctor", gpus, "--json").rows

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
    limits = {one["run"]: one["limits"] for one in run("report", tmp_path / "store", "--json").rows}

    # Level1 was asked for: what lacks of communication was not copied.
    assert limits["npus"] == [
        "ranks 0-1: waiting and transfer cannot be separated (though it was asked for). To know"
        " it: run analyse() on the whole folder, or copy all that it wrote",
        "ranks 0-1: no memory curve. To know it: profile_memory=True",
    ]
    assert limits["traces"] == ["ranks 0-1: no memory curve. To know it: profile_memory=True"]
    figures = {
        (one["run"], one["rank"], one["step"]): (one["computing_ns"], one["communication_ns"])
        for one in run("steps", tmp_path / "store", "--json").rows
    }
    for (name, rank, step), told in figures.items():
        if name == "npus":
            assert figures["traces", rank, step] == told
    assert len(figures) == 8


def test_groups_without_a_name_are_told_how_to_get_one() -> None:
    remedy = "torch.distributed.new_group(..., group_desc=NAME), as Megatron and DeviceMesh do"
    what = "the purpose of communication groups is not recorded: inferred from what they do"
    told = "{ranks}: {missing}. To know it: {remedy}"
    limit = Message(told, ranks="ranks 0-1", missing=what, remedy=remedy)
    assert not any(word in chinese(limit) for word in ("purpose", "unknown", "as Megatron"))
