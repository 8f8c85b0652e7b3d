"""Phase-level traces of jobs that are simulated: what happens is known by chunk and micro-batch.

Nothing here counts sends or receives: a receive belongs to the micro-batch that needs it. So
replay, which pairs them by number, finds back the simulated times only where its rules hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import polars as pl

LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
SEPARATE, CLIP = "separate-grads-all-reduce", "optimizer-clip-main-grad"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
SECONDS = {
    "forward-compute": 0.05, "backward-compute": 0.1, "forward-send": 1e-3, "forward-recv": 1e-3,
    "backward-send": 1.5e-3, "backward-recv": 1.5e-3, GATHER: 0.02, SCATTER: 0.03, "gc": 1e-3,
    LAYERNORM: 1e-4, EMBEDDING: 0.01, SEPARATE: 4e-3, CLIP: 5e-3, "optimizer": 0.02,
}  # fmt: skip
TAIL = ("gc", LAYERNORM, EMBEDDING, SCATTER, CLIP, "optimizer")


class Op(NamedTuple):
    """A phase of a worker; `mb` is -1 where it is of no micro-batch."""

    dp: int
    stage: int
    optype: str
    chunk: int = -1
    mb: int = -1


@dataclass(frozen=True)
class Plan:
    """A job to simulate: `factor` says how much longer than usual an operation takes in a step."""

    pp: int = 2
    dp: int = 2
    micro_batches: int = 4
    chunks: int = 1
    steps: int = 2
    tail: tuple[str, ...] = TAIL
    gathers: bool = True
    noise: float = 0.2
    delay_s: float = 0.0
    seed: int = 0
    factor: Callable[[Op], float] = lambda op: 1.0

    def drawn(self, *key: object) -> float:
        """Between 0 and 1, the same for the same key."""
        return random.Random(repr((self.seed, *key))).random()


def order(plan: Plan, stage: int) -> list[tuple[str, int, int]]:
    """Computes of a stage (optype, chunk, micro-batch): 1F1B, interleaved with several chunks."""
    total = plan.micro_batches * plan.chunks
    warm_up = plan.pp - stage - 1
    if plan.chunks > 1:
        warm_up = warm_up * 2 + (plan.chunks - 1) * plan.pp
    warm_up = min(warm_up, total)

    def work(k: int, is_forward: bool) -> tuple[str, int, int]:
        if plan.chunks == 1:
            return ("forward-compute" if is_forward else "backward-compute", 0, k)
        group, within = divmod(k, plan.pp * plan.chunks)
        chunk, place = divmod(within, plan.pp)
        mb = group * plan.pp + place
        if is_forward:
            return "forward-compute", chunk, mb
        return "backward-compute", plan.chunks - 1 - chunk, mb

    found = [work(k, True) for k in range(warm_up)]
    for k in range(total - warm_up):
        found += [work(warm_up + k, True), work(k, False)]
    return found + [work(k, False) for k in range(total - warm_up, total)]


def simulate(plan: Plan) -> pl.DataFrame:
    """Rows of a trace of the job."""
    rows = [row for step in range(plan.steps) for row in _step(plan, step * 10 + 3)]
    return pl.DataFrame(rows).sample(fraction=1, shuffle=True, seed=plan.seed)


def write_trace(plan: Plan, path: Path) -> Path:
    """A trace of the job as a file."""
    simulate(plan).write_parquet(path)
    return path


def _step(plan: Plan, step: int) -> list[dict[str, object]]:
    everyone = [(dp, stage) for dp in range(plan.dp) for stage in range(plan.pp)]
    waits: dict[Op, list[Op]] = {}
    together: dict[Op, tuple[Op, ...]] = {}

    def p2p(of: Op, way: str) -> Op:
        return of._replace(optype=of.optype.split("-")[0] + way)

    for dp, stage in everyone:
        computes = [Op(dp, stage, *one) for one in order(plan, stage)]
        for before, op in zip([None, *computes], computes, strict=False):
            waits[op] = [before] if before else []
        chain = [Op(dp, stage, GATHER, chunk) for chunk in range(plan.chunks)]
        gathers = chain if plan.gathers else []
        for before, op in zip([None, *gathers], gathers, strict=False):
            waits[op] = [before] if before else []
            first = next(
                one for one in computes
                if one.optype == "forward-compute" and one.chunk == op.chunk
            )  # fmt: skip
            waits[first].append(op)
            together[op] = tuple(op._replace(dp=other) for other in range(plan.dp))
        tail = [
            Op(dp, stage, one, chunk)
            for one in plan.tail
            if one != EMBEDDING or stage in (0, plan.pp - 1)
            for chunk in (range(plan.chunks) if one == SCATTER else (-1,))
        ]
        is_apart = SEPARATE in plan.tail
        scatters = [one for one in tail if one.optype == SCATTER]
        line = [one for one in tail if not (is_apart and one.optype == SCATTER)]
        for before, op in zip([computes[-1], *line], line, strict=False):
            waits[op] = [before]
        if is_apart:
            backwards = [one for one in computes if one.optype == "backward-compute"]
            for before, op in zip([backwards[-1], *scatters], scatters, strict=False):
                waits[op] = [before]
        for op in scatters[:1]:
            waits[op] += gathers[-1:]
        for op in tail:
            if op.optype == CLIP:
                waits[op] += scatters[-1:]
                together[op] = tuple(op._replace(dp=d, stage=s) for d, s in everyone)
            elif op.optype == SCATTER:
                together[op] = tuple(op._replace(dp=other) for other in range(plan.dp))
            elif op.optype == EMBEDDING:
                together[op] = tuple(op._replace(stage=s) for s in sorted({0, plan.pp - 1}))
        warm_up = [one.optype for one in computes].index("backward-compute")
        for kind in ("forward-compute", "backward-compute"):
            own = [one for one in computes if one.optype == kind]
            sent: list[Op] = []
            got: list[Op] = []
            for at, op in enumerate(own):
                to = _neighbour(plan, op, 1)
                if to is not None:
                    send = p2p(op, "-send")
                    waits[send] = [op, *sent[-1:]]
                    together[send] = (send, p2p(to, "-recv"))
                    sent.append(send)
                source = _neighbour(plan, op, -1)
                if source is not None:
                    receive = p2p(op, "-recv")
                    waits[receive] = [*own[:at][-1:], *got[-1:]]
                    together[receive] = (p2p(source, "-send"), receive)
                    waits[op].append(receive)
                    got.append(receive)
            if kind == "backward-compute" and warm_up > 1:
                for first in (*sent[:1], *got[:1]):
                    waits[first].append(computes[warm_up - 2])
    starts: dict[Op, float] = {}
    ends: dict[Op, float] = {}

    def took(op: Op) -> float:
        varied = 1 + plan.noise * plan.drawn(step, op)
        return SECONDS[op.optype] * varied * plan.factor(op)

    def start(op: Op) -> float:
        if op not in starts:
            delay = plan.delay_s * plan.drawn("delay", step, op)
            starts[op] = max([end(one) for one in waits[op]], default=0.0) + delay
        return starts[op]

    def end(op: Op) -> float:
        if op not in ends:
            ends[op] = max(start(one) for one in together.get(op, (op,))) + took(op)
        return ends[op]

    return [
        {
            "dp_rank": op.dp, "stage": op.stage, "rank": op.stage * plan.dp + op.dp, "step": step,
            "optype": op.optype, "start_ts": start(op), "duration": end(op) - start(op),
            "seq_id": 0, "mc": op.chunk if "compute" in op.optype or op.optype in (GATHER, SCATTER)
            else -1, "mb_id": op.mb,
            "gmc": op.chunk * plan.pp + op.stage if "compute" in op.optype else -1,
        }
        for op in waits
    ]  # fmt: skip


def _neighbour(plan: Plan, of: Op, way: int) -> Op | None:
    """On another stage, what computes with the output of a compute (1) or its input (-1)."""
    way = way if of.optype == "forward-compute" else -way
    stage, chunk = of.stage + way, of.chunk
    if not 0 <= stage < plan.pp:
        stage, chunk = stage % plan.pp, chunk + way
    return of._replace(stage=stage, chunk=chunk) if 0 <= chunk < plan.chunks else None
