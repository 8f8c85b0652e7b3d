"""Training loops over small MoE models on the CPU, and what their recorder wrote.

Loads PyTorch only when a model is built, so that quick runs may collect what imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from npuscope.collector.model import SourceFile
from npuscope.collector.readers.expert_load.hook import read_hook

REPOSITORY = Path(__file__).resolve().parents[3]

Routed = dict[int, Counter[int]]


def brute_force(models: ModuleType, model: Any) -> Any:
    if isinstance(model, models.MegatronModel):
        routers = {layer.router.layer_number: layer.router for layer in model.layers}
        return models.BruteForce(routers, models.map_of)
    routers = {
        int(name.split(".")[2]): module
        for name, module in model.named_modules()
        if type(module).__name__.lower().endswith("topkrouter")
    }
    return models.BruteForce(routers, models.indices_of)


def build(models: ModuleType, name: str, is_reentrant: bool | None) -> Any:
    torch = importlib.import_module("torch")
    torch.manual_seed(7)
    if name == "megatron":
        return models.MegatronModel(is_reentrant=is_reentrant).train()
    model = getattr(models, name)().train()
    if is_reentrant is not None:
        enable = getattr(model, "activation_checkpointing_enable", None)
        if enable is not None:
            enable({"use_reentrant": is_reentrant})
        else:
            model.gradient_checkpointing_enable({"use_reentrant": is_reentrant})
        model.config.use_cache = False
    return model


def loss_of(model: Any, tokens: Any) -> Any:
    found = model(input_ids=tokens, labels=tokens)
    return getattr(found, "loss", found)


def train(
    torch: Any,
    model: Any,
    steps: int,
    *,
    counted: Any = None,
    after: Callable[[], None] = lambda: None,
    micro_batches: tuple[int, ...] = (1, 3, 2),
) -> tuple[list[Routed], list[float]]:
    """A loop with gradient accumulation and evaluations in between; routed tokens of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chance = random.Random(3)
    torch.manual_seed(11)
    routed, losses = [], []
    for step in range(steps):
        for _ in range(micro_batches[step % len(micro_batches)]):
            tokens = torch.randint(0, 61, (chance.randint(1, 3), chance.randint(3, 9)))
            if counted is not None:
                counted.is_first_pass = True
            loss = loss_of(model, tokens)
            if counted is not None:
                counted.is_first_pass = False
            loss.backward()
        if step % 5 == 2:
            model.eval()
            with torch.no_grad():
                loss_of(model, torch.randint(0, 61, (2, 4)))
            model.train()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        after()
        if counted is not None:
            routed.append(counted.taken())
    return routed, losses


def write(folder: Path) -> dict[int, Routed]:
    """What the files tell: counts by step and layer."""
    found: dict[int, Routed] = {}
    for path in sorted(folder.glob("rank*.jsonl")):
        for text in path.read_text().splitlines():
            told = json.loads(text)
            counts = {expert: count for expert, count in enumerate(told["tpe"]) if count}
            found.setdefault(told["iter"], {})[told["layer"]] = Counter(counts)
    return found


def read(folder: Path) -> dict[int, Routed]:
    """What the reader makes of all files together."""
    files = [SourceFile(str(p), p.stat().st_size, 0) for p in sorted(folder.glob("*.jsonl"))]
    load = read_hook(files)
    found: dict[int, Routed] = {}
    for step, layer, expert, tokens in load.load.select(
        "step", "layer", "expert", "tokens"
    ).iter_rows():
        counts = found.setdefault(step, {}).setdefault(layer, Counter())
        if tokens:
            counts[expert] = tokens
    return found


# What processes of their own begin with.
CHILD = """
import importlib, json, os, sys
from pathlib import Path
from npuscope.collector.training import expert_load_recorder
from tests.collector.training import moe_training as loop
models = importlib.import_module("tests.collector.training.moe_models")
torch = importlib.import_module("torch")
torch.set_num_threads(1)
folder, how = Path(sys.argv[1]), sys.argv[2]
"""


def child(script: str, folder: Path, how: str, **environment: str) -> subprocess.Popen[bytes]:
    """A training process: `script` behind what each begins with."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD + script, str(folder), how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
    )
