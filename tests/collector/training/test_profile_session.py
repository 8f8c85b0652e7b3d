"""`profile_session` over a torch_npu without an NPU: what is published, and what never happens."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.training import profile_session, profiling
from npuscope.collector.training.guard import is_chosen
from npuscope.collector.training.profiling import Windows
from tests.collector.training import fake_torch_npu
from tests.collector.training.fake_torch_npu import Script


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # restored to what it was
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("NPUSCOPE", raising=False)
    yield fake_torch_npu.install()


def train(root: Path, steps: int, **options: Any) -> None:
    with profile_session(root, **options) as session:
        for _ in range(steps):
            session.step()


def markers(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob("*_ascend_pt/READY.json"))]


def spans(root: Path) -> list[tuple[int, int]]:
    return [(one["first_step"], one["last_step"]) for one in markers(root)]


@pytest.mark.parametrize(
    ("every", "active", "warmup", "start", "steps", "expected"),
    [
        (20, 2, 1, 0, 60, [(20, 21), (40, 41)]),  # the third one has no whole step
        (20, 2, 1, 0, 61, [(20, 21), (40, 41), (60, 60)]),
        (20, 2, 1, 0, 63, [(20, 21), (40, 41), (60, 61)]),
        (20, 3, 0, 0, 44, [(20, 22), (40, 42)]),
        (20, 2, 1, 39, 5, [(40, 41)]),  # a run that starts again, just in time
        (20, 2, 1, 40, 30, [(60, 61)]),  # and too late
        (3, 2, 1, 0, 12, [(3, 4), (6, 7), (9, 10)]),  # one window after another
        (1, 1, 0, 0, 4, [(1, 1), (2, 2), (3, 3)]),
        (20, 2, 5, 0, 30, [(20, 21)]),
    ],
)
def test_every_window_is_published_once(
    npu: Script,
    tmp_path: Path,
    every: int,
    active: int,
    warmup: int,
    start: int,
    steps: int,
    expected: list[tuple[int, int]],
) -> None:
    train(tmp_path, steps, every=every, active=active, warmup=warmup, start_step=start)
    assert spans(tmp_path) == expected
    assert npu.starts[: len(expected)] == [first for first, _ in expected]
    assert len(npu.starts) <= len(expected) + 1


def test_the_marker_lists_the_files(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def with_one_that_goes(top: Path) -> Iterator[Any]:
        for root, folders, names in walk(top):
            yield root, folders, [*names, "removed_by_an_analysis"]

    monkeypatch.setattr(os, "walk", with_one_that_goes)
    npu.rank = 3
    train(tmp_path, 23, every=20, run="pretrain", rank=3)
    (marker,) = markers(tmp_path)
    (folder,) = npu.folders
    assert set(marker) == {
        "schema_version", "run", "rank", "first_step", "last_step", "written_utc", "files",
    }  # fmt: skip
    assert (marker["schema_version"], marker["run"], marker["rank"]) == (1, "pretrain", 3)
    assert marker["written_utc"].endswith("+00:00")
    there = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != "READY.json"
    }
    assert {one["path"]: one["size_bytes"] for one in marker["files"]} == there
    assert "profiler_info_3.json" in there and len(there) == 3


def test_the_job_is_told_in_its_metadata(npu: Script, tmp_path: Path) -> None:
    arguments = SimpleNamespace(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=4, data_parallel_size=8,
        context_parallel_size=1, expert_model_parallel_size=16, sequence_parallel=True,
        world_size=64, num_layers=61, hidden_size=7168, secret="x" * 9000, bf16=True,
        moe_layer_freq=[0, 1, 1], params_dtype=object(),
    )  # fmt: skip
    groups = {"comm_1": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]}}
    train(tmp_path, 23, every=20, run="r", parallel=arguments, model=arguments, groups=groups)
    told = json.loads((npu.folders[0] / "profiler_metadata.json").read_text())
    assert told == {
        "job_name": "r",
        "npuscope": {
            "schema_version": 1, "run": "r", "rank": 0, "first_step": 20, "last_step": 21,
        },
        "distributed_args": {
            "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
            "data_parallel_size": 8, "context_parallel_size": 1, "expert_model_parallel_size": 16,
            "sequence_parallel": True, "world_size": 64, "rank": 0,
        },
        "model_config": {
            "num_layers": 61, "hidden_size": 7168, "bf16": True, "moe_layer_freq": [0, 1, 1],
        },
        "parallel_group_info": groups,
    }  # fmt: skip
    assert npu.printed == []


def test_metadata_that_is_too_long_is_left_out_and_told(
    npu: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = {"world": {"group_name": "default_group", "global_ranks": list(range(4096))}}
    train(tmp_path, 43, every=20, run="r", parallel={"tp": 2, "dp": 4}, groups=groups)
    told = json.loads((npu.folders[0] / "profiler_metadata.json").read_text())
    assert "parallel_group_info" not in told and told["distributed_args"] == {
        "tensor_model_parallel_size": 2, "data_parallel_size": 4, "rank": 0,
    }  # fmt: skip
    assert [record.message for record in caplog.records] == [
        "npuscope: too long for the profiler's metadata, left out: parallel_group_info"
    ]
    assert npu.printed == [] and len(markers(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("export", "forms"),
    [("db", ("db",)), ("text", ("text",))],
)
def test_what_a_session_made_is_read(
    npu: Script, tmp_path: Path, export: str, forms: tuple[str, ...]
) -> None:
    npu.forms = forms
    train(tmp_path / "p", 43, every=20, run="pretrain", export=export, analyse="inline")
    for one in markers(tmp_path / "p"):
        assert any(file["path"].endswith("analyse.done") for file in one["files"])
    assert ingest(tmp_path / "p", tmp_path / "s", jobs=1).is_complete
    with store.open(tmp_path / "s") as con:
        found = con.execute("select run, step from steps order by step").fetchall()
    assert found == [("pretrain", step) for step in (20, 21, 40, 41)]


def test_settings_reach_the_profiler(npu: Script, tmp_path: Path) -> None:
    train(tmp_path / "a", 43, every=20, level=1, export="both", with_stack=True, captures=1)
    train(tmp_path / "b", 23, every=20, level="none")
    train(tmp_path / "c", 23, every=20, level=0)
    first, second, third = (one["config"] for one in npu.settings)
    assert (first.profiler_level, first.export_type) == ("Level1", ["db", "text"])
    assert npu.settings[0]["with_stack"] is True and first.aic_metrics.endswith("UTILIZATION")
    assert (second.profiler_level, second.mstx) == ("Level_none", True)
    assert (third.profiler_level, third.aic_metrics) == ("Level0", "ACL_AICORE_NONE")
    assert npu.printed == []
    assert npu.calls.count("analyse") == 0, "offline is the default"


def test_collections_of_garbage_are_asked_for_where_they_can_be(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "a", 23, every=20)
    train(tmp_path / "b", 23, every=20, gc_detect_threshold=None)
    configs = [one["config"] for one in npu.settings]
    assert [one.gc_detect_threshold for one in configs] == [1.0, None]

    class Older(fake_torch_npu._ExperimentalConfig):
        def __init__(
            self, profiler_level: Any, aic_metrics: Any, mstx: Any, data_simplification: Any,
            export_type: Any,
        ) -> None:  # fmt: skip
            super().__init__(profiler_level, aic_metrics, mstx=mstx, export_type=export_type)

    monkeypatch.setattr(sys.modules["torch_npu"].profiler, "_ExperimentalConfig", Older)
    train(tmp_path / "c", 23, every=20)
    assert spans(tmp_path / "c") == [(20, 21)]


def test_waits_for_any_loader_are_recorded(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        recorded.append(name)
        yield

    torch = SimpleNamespace(profiler=SimpleNamespace(record_function=record_function))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with profile_session(tmp_path, every=3, active=1, warmup=1, captures=1) as session:
        for batch in session.data(range(9)):
            assert len(recorded) == max(0, min(batch, 3) - 1)  # of the two steps of the window
            session.step()
    assert batch == 8 and all(one.startswith("enumerate(DataLoader)") for one in recorded)
    with pytest.raises(ZeroDivisionError):  # the loader's own, not ours
        next(session.data(1 // zero for zero in [0]))


def test_only_chosen_ranks_are_profiled(npu: Script, tmp_path: Path) -> None:
    for rank in range(4):
        train(tmp_path, 23, every=20, ranks="0,2-3", rank=rank)
    assert sorted(one["rank"] for one in markers(tmp_path)) == [0, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        (None, range(20)), ("0,7,8-15", [0, *range(7, 16)]), (" 3 - 4 , 1 ", [1, 3, 4]),
        ([2, 5], [2, 5]), (3, [3]), (range(2), [0, 1]), ("9-3", []),
    ],
)  # fmt: skip
def test_ranks(ranks: Any, chosen: Any) -> None:
    assert [rank for rank in range(20) if is_chosen(rank, ranks)] == list(chosen)


def test_numbers_and_folders_as_scripts_have_them(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy's, a checkpoint's float, threads that share the session; and a folder told relative to
    one that training leaves."""
    monkeypatch.chdir(tmp_path)
    seven: Any = np.int64(7)
    relative: Any = {"every": np.int64(20), "rank": np.int64(2), "ranks": np.int64(2)}
    with profile_session("profiles", start_step=seven, **relative) as session:
        (tmp_path / "outputs").mkdir()
        monkeypatch.chdir(tmp_path / "outputs")
        for _ in range(20):
            session.step()
    told: Any = {"start_step": 107.0, "every": 20}
    train(tmp_path / "profiles", 20, **told)
    assert sorted(spans(tmp_path / "profiles")) == [(20, 21), (120, 121)]
    with profile_session("../shared", every=5) as session:

        def hundred() -> None:
            for _ in range(100):
                session.step()

        threads = [threading.Thread(target=hundred) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(spans(tmp_path / "shared")) == 79


def test_the_rank_is_the_environments(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "12")
    train(tmp_path, 23, every=20, ranks=[12])
    assert [one["rank"] for one in markers(tmp_path)] == [12]


# ---- what goes wrong -------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize(
    "call",
    ["_ExperimentalConfig", "tensorboard_trace_handler", "profile", "start", "step", "stop",
     "add_metadata_json", "finalize"],
)  # fmt: skip
def test_what_fails_disables_it_with_one_warning(
    npu: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str, is_swallowed: bool
) -> None:
    npu.raises = {call, "swallowed"} if is_swallowed else {call}
    train(tmp_path, 100, every=20)
    warned = warnings_of(caplog)
    if is_swallowed and call in ("add_metadata_json", "stop"):
        # torch_npu prints it and goes on; the capture is there.
        assert (len(warned), len(markers(tmp_path))) == (0, 4)
        return
    assert len(warned) == 1 and "profiling is switched off" in warned[0]
    assert markers(tmp_path) == [], "a capture that did not come to its end must not be read"
    assert npu.calls.count("profile") <= 1


def test_without_cann_it_says_so_once(
    npu: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    npu.has_environment = False
    train(tmp_path, 100, every=20)
    (warned,) = warnings_of(caplog)
    assert "left no capture" in warned and npu.calls.count("profile") == 1


@pytest.mark.parametrize(
    "wrong",
    [{"every": 2}, {"every": 0}, {"active": "2"}, {"warmup": -1}, {"ranks": "a"}, {"level": 7},
     {"export": "csv"}, {"analyse": True}, {"aic_metrics": "Nothing"}, {"level": []}],
)  # fmt: skip
def test_wrong_arguments_do_not_stop_training(
    npu: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    train(tmp_path, 30, **{"every": 20, **wrong})
    assert len(warnings_of(caplog)) == 1 and markers(tmp_path) == []


def test_a_folder_that_is_none_does_not_stop_training(
    npu: Script, caplog: pytest.LogCaptureFixture
) -> None:
    none: Any = None
    train(none, 30, every=20)
    assert len(warnings_of(caplog)) == 1 and npu.calls == []


def test_without_torch_npu_it_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    train(tmp_path / "new", 30, every=20)
    (warned,) = warnings_of(caplog)
    assert "torch_npu is not installed" in warned and not (tmp_path / "new").exists()


def test_the_kill_switch(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NPUSCOPE", "0")
    train(tmp_path / "new", 30, every=20, level="nonsense")
    assert npu.calls == [] and warnings_of(caplog) == [] and not (tmp_path / "new").exists()


def test_a_nearly_full_disk_is_left_alone(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = iter([10, 10, 10**12])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
    train(tmp_path, 63, every=20, warmup=0)
    assert spans(tmp_path) == [(60, 61)]
    (warned,) = warnings_of(caplog)
    assert "nearly full" in warned


def test_a_disk_that_hangs_holds_no_step_up(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, answers = shutil.disk_usage, threading.Event()

    def hangs(path: Path) -> object:
        answers.wait(60)
        return real(path)

    monkeypatch.setattr(shutil, "disk_usage", hangs)
    began_s = time.monotonic()
    session = profile_session(tmp_path, every=20, active=2, warmup=0, rank=0)
    with session:
        for step in range(63):
            if step == 50:
                answers.set()
                time.sleep(0.2)
            session.step()
    assert time.monotonic() - began_s < 10
    assert spans(tmp_path) == [(60, 61)]
    (warned,) = warnings_of(caplog)
    assert "does not respond" in warned


def test_a_marker_that_cannot_be_written(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(opened: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    train(tmp_path, 60, every=20)
    (warned,) = warnings_of(caplog)
    assert "No space left" in warned and len(npu.folders) == 1
    assert [path.name for path in npu.folders[0].iterdir() if "READY" in path.name] == []


def test_a_run_that_ends_within_a_window(npu: Script, tmp_path: Path) -> None:
    train(tmp_path, 22, every=20, active=4)
    assert spans(tmp_path) == [(20, 21)]
    told = json.loads((npu.folders[0] / "profiler_metadata.json").read_text())
    assert told["npuscope"]["last_step"] == 21
    for code, published in ((0, [(20, 21)]), (None, [(20, 21)]), (1, [])):
        root = tmp_path / f"exit_{code}"  # as Megatron's --exit-interval ends a run
        with pytest.raises(SystemExit), profile_session(root, every=20, active=4) as session:
            for _ in range(22):
                session.step()
            sys.exit(code)
        assert spans(root) == published


def test_a_run_that_fails_within_a_window(npu: Script, tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        profile_session(tmp_path, every=20, active=4) as session,
    ):
        for _ in range(22):
            session.step()
        raise ZeroDivisionError
    assert markers(tmp_path) == [] and npu.calls[-1] == "handler", "the profiler was stopped"


def test_an_analysis_beside_training_is_waited_for(
    npu: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_ASK_SECONDS", -1.0)
    npu.is_slow_to_analyse = True
    with profile_session(tmp_path, every=20, analyse="async") as session:
        for _ in range(30):
            session.step()
        assert markers(tmp_path) == []
        fake_torch_npu.analyse(npu.folders[0])
        session.step()
        assert spans(tmp_path) == [(20, 21)]
    assert session.published == 1


def test_a_folder_that_is_not_told_is_found(npu: Script, tmp_path: Path) -> None:
    npu.forgets_path = True
    (tmp_path / f"host_{os.getpid()}_1_ascend_pt").mkdir()
    train(tmp_path, 43, every=20)
    assert spans(tmp_path) == [(20, 21), (40, 41)]


def test_a_forked_worker_leaves_the_capture_alone(npu: Script, tmp_path: Path) -> None:
    with profile_session(tmp_path, every=20) as session:
        for _ in range(21):
            session.step()
        child = os.fork()
        if child == 0:
            session.step()
            session.step()
            session.close()
            os._exit(len(markers(tmp_path)))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        session.step()
        session.step()
    assert spans(tmp_path) == [(20, 21)]


def test_windows_agree_for_all_ranks() -> None:
    windows = Windows(every=7, active=3, warmup=2)
    seen = set()
    for start in range(30):
        first = windows.next_after(start)
        assert first % 7 == 0 and start + 2 <= first < start + 2 + 7
        seen.add(first)
    assert seen == {7, 14, 21, 28, 35}
