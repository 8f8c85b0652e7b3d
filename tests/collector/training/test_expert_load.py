"""Tokens per expert of real models on the CPU, against a count by brute force."""

from __future__ import annotations

import copy
import io
import json
import socket
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npuscope.collector.training import expert_load, expert_load_recorder
from tests.collector.training.moe_training import (
    Routed,
    brute_force,
    build,
    child,
    loss_of,
    read,
    train,
    write,
)

pytestmark = pytest.mark.slow  # PyTorch is installed for these only


CHECKPOINTS = [None, True, False]
NAMES = ["none", "reentrant", "non-reentrant"]


@pytest.fixture(autouse=True)
def room_for_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take microseconds here, and the writer's thread may get no core for as long."""
    monkeypatch.setattr(expert_load, "_BUFFERS", 64)


@pytest.mark.parametrize("is_reentrant", CHECKPOINTS, ids=NAMES)
@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen", "megatron"])
def test_counts_are_those_of_brute_force(
    models: ModuleType, torch: Any, tmp_path: Path, name: str, is_reentrant: bool | None
) -> None:
    model = build(models, name, is_reentrant)
    counted = brute_force(models, model)
    with expert_load_recorder(model, dir=tmp_path, start_step=100) as recorder:
        routed, _ = train(torch, model, 20, counted=counted, after=recorder.step)
    assert recorder.dropped == 0
    expected = {100 + step: told for step, told in enumerate(routed)}
    assert sum(sum(one.values()) for told in routed for one in told.values()) > 1000
    assert write(tmp_path) == expected
    assert read(tmp_path) == expected
    told = [json.loads(text) for text in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    assert [one["n_micro"] for one in told if one["layer"] == told[0]["layer"]][:4] == [1, 3, 2, 1]


# Its guard would count the non-reentrant kind twice.
@pytest.mark.parametrize("is_reentrant", CHECKPOINTS[:2], ids=NAMES[:2])
def test_megatrons_own_counter_is_read(
    models: ModuleType, torch: Any, tmp_path: Path, is_reentrant: bool | None
) -> None:
    model = build(models, "megatron", is_reentrant)
    counted = brute_force(models, model)
    recorder = expert_load_recorder(model, dir=tmp_path, source="counter")

    def balance() -> str:
        for layer in model.layers:
            layer.router.local_tokens_per_expert.zero_()
        return "done"

    finalize = recorder.reading_before(balance)

    def after() -> None:
        assert finalize() == "done"
        recorder.step()

    routed, _ = train(torch, model, 20, counted=counted, after=after)
    recorder.close()
    assert write(tmp_path) == dict(enumerate(routed))


def test_training_is_the_same_with_it(models: ModuleType, torch: Any, tmp_path: Path) -> None:
    without = train(torch, build(models, "mixtral", False), 5)[1]
    model = build(models, "mixtral", False)
    with expert_load_recorder(model, dir=tmp_path) as recorder:
        beside = train(torch, model, 5, after=recorder.step)[1]
    assert beside == without and len(write(tmp_path)) == 5


def test_every_nth_step(models: ModuleType, torch: Any, tmp_path: Path) -> None:
    model = build(models, "mixtral", None)
    counted = brute_force(models, model)
    with expert_load_recorder(model, dir=tmp_path, every=4, start_step=10) as recorder:
        routed, _ = train(torch, model, 12, counted=counted, after=recorder.step)
    assert write(tmp_path) == {step: routed[step - 10] for step in (12, 16, 20)}


def test_other_routers_by_a_rule(models: ModuleType, torch: Any, tmp_path: Path) -> None:
    """Gates that are plain linear layers: their logits are ranked; -1 and 99 are no experts."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    expected: list[Counter[int]] = []

    def rule(output: Any) -> Any:
        places = output.topk(2, dim=-1)[1]
        expected[-1].update(places.flatten().tolist())
        strange = torch.tensor([[-1, 99]])
        return torch.cat([places, strange]).to(torch.int32)

    with expert_load_recorder(
        layers, dir=tmp_path, rule=rule, routers=lambda name, module: name == "1"
    ) as recorder:
        for _ in range(3):
            expected.append(Counter())
            layers(torch.randn(5, 8)).sum().backward()
            recorder.step()
    assert write(tmp_path) == {step: {0: told} for step, told in enumerate(expected)}


def test_without_pytorchs_number_of_the_backward_pass(
    models: ModuleType, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    for is_reentrant in (None, True):
        model = build(models, "mixtral", is_reentrant)
        counted = brute_force(models, model)
        folder = tmp_path / str(is_reentrant)
        with expert_load_recorder(model, dir=folder) as recorder:
            routed, _ = train(torch, model, 3, counted=counted, after=recorder.step)
        assert write(folder) == dict(enumerate(routed))


def test_copies_of_the_model_are_not_counted(
    models: ModuleType, torch: Any, tmp_path: Path
) -> None:
    for name in ("mixtral", "megatron"):
        model = build(models, name, None)
        tokens = torch.randint(0, 61, (2, 5))
        expected = float(loss_of(model, tokens).detach())
        with expert_load_recorder(model, dir=tmp_path / name) as recorder:
            copied = copy.deepcopy(model)
            stored = io.BytesIO()
            torch.save(model, stored)
            stored.seek(0)
            loaded = torch.load(stored, weights_only=False)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.5)
            # They route by their own weights, and count nothing.
            assert float(loss_of(copied, tokens).detach()) == expected
            assert float(loss_of(loaded, tokens).detach()) == expected
            recorder.step()
            loss_of(model, tokens)
            recorder.step()
        assert sorted(write(tmp_path / name)) == [1]
        for module in model.modules():
            assert not module._forward_hooks and "routing" not in vars(module)


DISTRIBUTED = """
torch.distributed.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
inner = loop.build(models, how, False)
model = torch.nn.parallel.DistributedDataParallel(inner)
counted = loop.brute_force(models, inner)
recorder = expert_load_recorder(model, dir=folder / "loads")
collectives = []
for name in ("all_reduce", "all_gather", "barrier", "broadcast"):
    setattr(torch.distributed, name, lambda *a, **k: collectives.append(a))
routed, _ = loop.train(torch, model, 20, counted=counted, after=recorder.step)
recorder.close()
assert not collectives
rank = os.environ["RANK"]
(folder / f"brute{rank}.json").write_text(json.dumps(routed))
"""


def test_two_ranks_of_distributed_data_parallel(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [child(DISTRIBUTED, tmp_path, "deepseek", RANK=str(rank), **meeting) for rank in (0, 1)]
    for process in ranks:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    expected: dict[int, Routed] = {}
    for rank in (0, 1):
        steps = json.loads((tmp_path / f"brute{rank}.json").read_text())
        for step, told in enumerate(steps):
            for layer, counts in told.items():
                total = expected.setdefault(step, {}).setdefault(int(layer), Counter())
                total.update({int(expert): count for expert, count in counts.items()})
    assert len(expected) == 20 and read(tmp_path / "loads") == expected


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
