"""A recorder of expert loads never disturbs training, whatever fails; and what it costs."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

from npuscope.collector.training import expert_load, expert_load_recorder
from tests.collector.training.moe_training import brute_force, build, child, loss_of, train, write

pytestmark = pytest.mark.slow  # PyTorch is installed for these only


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("npuscope")]


def test_a_rule_that_raises(
    models: ModuleType, torch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def rule(output: Any) -> Any:
        calls.append(1)
        if len(calls) > 4:
            raise RuntimeError("no such thing")
        return output[-1]

    without = train(torch, build(models, "mixtral", None), 6)[1]
    model = build(models, "mixtral", None)
    with expert_load_recorder(model, dir=tmp_path, rule=rule) as recorder:
        beside = train(torch, model, 6, after=recorder.step)[1]
    assert beside == without and len(calls) == 5
    (warned,) = warnings_of(caplog)
    assert "switched off: no such thing" in warned
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"every": 0}, "every=0"), ({"source": "x"}, "source='x'"), ({"ranks": "a"}, "ranks"),
        ({"routers": "nothing"}, "no MoE router found"), ({"source": "counter"}, "keeps no local"),
    ],
)  # fmt: skip
def test_wrong_arguments(
    models: ModuleType,
    torch: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    why: str,
) -> None:
    model = build(models, "mixtral", None)
    with expert_load_recorder(model, dir=tmp_path, **options) as recorder:
        train(torch, model, 2, after=recorder.step)
    (warned,) = warnings_of(caplog)
    assert why in warned and list(tmp_path.iterdir()) == []


def test_output_without_indices(
    models: ModuleType, torch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(models, "mixtral", None)
    with expert_load_recorder(model, dir=tmp_path, top_k=5) as recorder:
        train(torch, model, 2, after=recorder.step)
    (warned,) = warnings_of(caplog)
    assert "give top_k=K, or rule=FUNCTION" in warned


def test_the_kill_switch(
    models: ModuleType, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPUSCOPE", "0")
    model = build(models, "mixtral", None)
    with expert_load_recorder(model, dir=tmp_path / "new") as recorder:
        assert not any(module._forward_hooks for module in model.modules())
        train(torch, model, 2, after=recorder.step)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files end after some bytes, as where a disk is full."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, former[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_a_full_disk(
    models: ModuleType,
    torch: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    small_files: None,
) -> None:
    model = build(models, "mixtral", None)
    without = train(torch, build(models, "mixtral", None), 8)[1]
    recorder = expert_load_recorder(model, dir=tmp_path)

    def after() -> None:
        recorder.step()
        time.sleep(0.02)  # the thread has time to fail

    assert train(torch, model, 8, after=after)[1] == without
    recorder.close()
    (warned,) = warnings_of(caplog)
    assert "File too large" in warned and not recorder.is_active
    assert not any(module._forward_hooks for module in model.modules())


def test_a_slow_writer(
    models: ModuleType,
    torch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, real = threading.Event(), expert_load.ExpertLoadRecorder._lines

    def slow(self: Any, copied: Any) -> bytes:
        gate.wait(60)
        return real(self, copied)

    monkeypatch.setattr(expert_load.ExpertLoadRecorder, "_lines", slow)
    model = build(models, "mixtral", None)
    counted = brute_force(models, model)
    recorder = expert_load_recorder(model, dir=tmp_path)
    routed, _ = train(torch, model, 30, counted=counted, after=recorder.step)
    gate.set()
    recorder.close()
    found = write(tmp_path)
    assert len(found) + recorder.dropped == 30 and recorder.dropped >= 30 - 2 * 8 - 1
    assert all(found[step] == routed[step] for step in found), "those that are there are right"
    (warned,) = warnings_of(caplog)
    assert f"{recorder.dropped} dropped" in warned


class LateEvent:
    """A device's event whose copy arrives two steps later."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 2

    def synchronize(self) -> None:
        self.asked = 100


def test_copies_that_arrive_late_are_not_waited_for(
    models: ModuleType, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[LateEvent] = []

    def event(self: Any, device: Any) -> LateEvent:
        events.append(LateEvent())
        return events[-1]

    monkeypatch.setattr(expert_load.ExpertLoadRecorder, "_event", event)
    model = build(models, "mixtral", None)
    counted = brute_force(models, model)
    recorder = expert_load_recorder(model, dir=tmp_path)
    routed, _ = train(torch, model, 20, counted=counted, after=recorder.step)
    assert [one.asked for one in events[-2:]] == [0, 0], "only the oldest is asked for"
    assert not any(one.asked == 100 for one in events), "nothing waits within the run"
    recorder.close()
    found = write(tmp_path)
    assert all(found[step] == routed[step] for step in found)
    assert len(found) + recorder.dropped == 20


def test_a_forked_worker_counts_nothing(models: ModuleType, torch: Any, tmp_path: Path) -> None:
    model = build(models, "mixtral", None)
    counted = brute_force(models, model)
    with expert_load_recorder(model, dir=tmp_path) as recorder:
        first, _ = train(torch, model, 1, counted=counted, after=recorder.step)
        child = os.fork()
        if child == 0:
            loss_of(model, torch.randint(0, 61, (2, 5)))
            recorder.step()
            recorder.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        second, _ = train(torch, model, 1, counted=counted, after=recorder.step)
    assert write(tmp_path) == {0: first[0], 1: second[0]}


KILLED = """
import signal
model = loop.build(models, "megatron", None)
recorder = expert_load_recorder(model, dir=folder, rotate_seconds=float(how))
def after():
    recorder.step()
    import time
    time.sleep(0.05)
loop.train(torch, model, 10, after=after)
os.kill(os.getpid(), signal.SIGKILL)
"""

FORGOTTEN = """
model = loop.build(models, "megatron", None)
recorder = expert_load_recorder(model, dir=folder)
loop.train(torch, model, 4, after=recorder.step)
if how == "raises":
    raise ZeroDivisionError
"""


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    process = child(KILLED, tmp_path, "3600")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.jsonl.part"]
    # The next process publishes it, and goes on behind it; nobody closes its recorder.
    process = child(FORGOTTEN, tmp_path, "ends")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.1.jsonl", "rank0.jsonl"]
    assert len(write(tmp_path)) >= 9
    (tmp_path / "rank0.jsonl").unlink()
    assert sorted(write(tmp_path)) == [0, 1, 2, 3]


def test_a_recorder_that_nobody_closes_in_a_process_that_fails(tmp_path: Path) -> None:
    process = child(FORGOTTEN, tmp_path, "raises")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and b"ZeroDivisionError" in errors, errors.decode()
    assert sorted(write(tmp_path)) == [0, 1, 2, 3]


# ---- what it costs ---------------------------------------------------------------------------


@pytest.fixture
def one_thread(torch: Any) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_what_it_costs(
    models: ModuleType,
    torch: Any,
    tmp_path: Path,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CPU time of steps with and without it in turn, and CPU time within the recorder alone, its
    writer included: the difference of two steps is noisy where a machine is shared."""
    within = [0.0]

    def timed(name: str) -> None:
        real = getattr(expert_load.ExpertLoadRecorder, name)

        def measured(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return real(*args)
            finally:
                within[0] += time.thread_time() - began

        monkeypatch.setattr(expert_load.ExpertLoadRecorder, name, measured)

    for name in ("_show", "step", "_lines"):
        timed(name)
    model = models.mixtral(hidden=256, layers=4, experts=8, ffn=512).train()
    recorder = expert_load_recorder(model, dir=tmp_path)
    tokens = torch.randint(0, 61, (4, 128))
    spent: dict[bool, list[float]] = {True: [], False: []}
    for step in range(32):
        is_on = step % 2 == 0
        recorder._is_counting = is_on
        if step == 2:
            within[0] = 0.0  # what is made once
        began = time.process_time()
        loss_of(model, tokens).backward()
        if is_on:
            recorder.step()
        if step > 1:
            spent[is_on].append(time.process_time() - began)
        model.zero_grad()
    recorder.close()
    with_it, without = median(spent[True]), median(spent[False])
    share_ratio = within[0] / len(spent[True]) / without
    with capsys.disabled():
        sys.stdout.write(
            f"\nexpert loads: step {without * 1e3:.1f} ms CPU, with it {with_it * 1e3:.1f} ms"
            f" ({with_it / without - 1:+.2%}); within the recorder {share_ratio:.3%} of a step\n"
        )
    assert len(write(tmp_path)) == 16
    assert share_ratio < 0.01
