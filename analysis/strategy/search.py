"""All strategies of a model on a cluster, predicted as arrays: what fits, what is fast, why.

Strategies with the same stages (pp, vpp) are one job whose other sizes are arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.errors import UsageError

from ..catalog import column_names
from ..flops.model.architecture import GroupedQueries, Model
from .constants import Constants, default_constants, described_constants
from .cost import step_parts
from .job import (
    Job,
    Machine,
    Recompute,
    Software,
    balanced_stages,
    chunks_divide,
    even_stages,
)
from .memory import stage_memory
from .results import BALANCED, EVEN, with_front

Floats = npt.NDArray[np.float64]

LIMITS = ("matmul", "experts", "attention", "vector", "tp_comm", "cp_comm", "ep_comm", "host",
          "recompute", "head", "pp_comm", "bubble", "dp_comm", "optimizer")  # fmt: skip
_SIZES = ("tp", "cp", "ep", "micro_batch")
_MOST_TP = 64
_USUAL = Software(grad_overlap=True, fused_permutation=True)
# Selective: activation functions, permutations of tokens and latent attention's up-projections.
RECOMPUTES = {
    "none": Recompute(),
    "selective": Recompute(activation=1.0, experts=1, latent_up=True),
    "full": Recompute(full_layers=None),
}


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched: sizes to try of each dimension (None: all that divide), and bounds.

    `spare_ratio`: of the chip's memory what stays free for HCCL and fragmentation. `software`: what
    the framework is told in all of them.
    """

    sequence_length: int
    global_batch: int
    tp: Sequence[int] | None = None
    pp: Sequence[int] | None = None
    vpp: Sequence[int] | None = None
    cp: Sequence[int] | None = None
    ep: Sequence[int] | None = None
    micro_batch: Sequence[int] | None = None
    recompute: Sequence[str] = tuple(RECOMPUTES)
    spare_ratio: float = 0.1
    tp_beyond_node: bool = False
    software: Software = _USUAL


def jobs_of_space(
    model: Model, machine: Machine, world: int, space: Space
) -> Iterator[tuple[dict[str, object], Job]]:
    """Each layout of layers over stages with each recompute: what is fixed, and a job of arrays
    over the rest."""
    heads = model.attention.heads
    kv = model.attention.kv_heads if isinstance(model.attention, GroupedQueries) else heads
    tps = [
        tp
        for tp in _sizes(space.tp, world, _MOST_TP)
        if heads % tp == 0
        and max(tp, kv) % min(tp, kv) == 0
        and (space.tp_beyond_node or machine.node_devices % tp == 0)
    ]
    for pp in _sizes(space.pp, world, model.layers):
        grid = _grid(model, world // pp if world % pp == 0 else 0, tps, space)
        if not len(grid["tp"]):
            continue
        chunks = _chunks(space.vpp, model.layers, pp)
        for vpp, again in product(chunks, space.recompute):
            if pp * vpp > model.layers:
                continue
            # Chunks take turns in rounds of pp micro-batches.
            is_possible = (grid["micro_batches"] % pp == 0) if vpp > 1 else grid["tp"] > 0
            if not is_possible.any():
                continue
            sizes = {name: grid[name][is_possible] for name in _SIZES}
            for layers, stages in _layouts(model, pp, vpp, space.sequence_length).items():
                job = Job(
                    model=model, machine=machine, world=float(world),
                    stages=stages,
                    sequence_length=space.sequence_length, global_batch=float(space.global_batch),
                    tp=sizes["tp"], cp=sizes["cp"], ep=sizes["ep"],
                    micro_batch=sizes["micro_batch"], expert_tp=np.ones_like(sizes["tp"]),
                    sequence_parallel=True,
                    distributed_optimizer=True,
                    recompute=RECOMPUTES[again],
                    software=space.software,
                )  # fmt: skip
                yield {
                    "pp": pp, "vpp": vpp, "recompute": again, "layers": layers,
                    "last_layers": len(stages[-1][-1]),
                }, job  # fmt: skip


def _layouts(
    model: Model, pp: int, vpp: int, sequence_length: int
) -> dict[str, tuple[tuple[tuple[int, ...], ...], ...]]:
    """Layers of stages in both ways; as even as can be alone where balancing changes nothing."""
    even = even_stages(model.layers, pp, vpp)
    balanced = balanced_stages(model, pp, vpp, sequence_length)
    return {EVEN: even} if balanced == even else {EVEN: even, BALANCED: balanced}


def _sizes(sizes: Sequence[int] | None, divided: int, most: int) -> list[int]:
    """The sizes to try: those given, else all powers of two and divisors up to `most`."""
    if sizes is not None:
        return sorted(set(sizes))
    return [size for size in range(1, min(divided, most) + 1) if divided % size == 0]


def _chunks(counts: Sequence[int] | None, layers: int, pp: int) -> list[int]:
    """Chunks of a stage to try: what divides its layers, or those of the busiest stage."""
    if pp == 1:
        return [1]
    most = max(1, -(-layers // pp))
    trials = counts if counts is not None else range(1, min(most, 16) + 1)
    return sorted({size for size in trials if chunks_divide(layers, pp, size)})


def _grid(model: Model, of_stage: int, tps: list[int], space: Space) -> dict[str, Floats]:
    """All sizes on the NPUs of one stage that divide everything, one element for each strategy."""
    experts = model.experts.routed if model.experts else 1
    sizes = []
    for tp in tps:
        if not of_stage or of_stage % tp:
            continue
        for cp in _sizes(space.cp, of_stage // tp, 64):
            if of_stage % (tp * cp) or space.sequence_length % (2 * tp * cp):
                continue
            dp = of_stage // (tp * cp)
            if space.global_batch % dp:
                continue
            batch = space.global_batch // dp
            micro = [size for size in _sizes(space.micro_batch, batch, 8) if batch % size == 0]
            eps = [
                ep
                for ep in _sizes(space.ep, of_stage if experts > 1 else 1, experts)
                if experts % ep == 0 and of_stage % ep == 0
            ]
            sizes += [(tp, cp, ep, size, batch // size) for ep, size in product(eps, micro)]
    columns = np.array(sizes, dtype=np.float64).reshape(-1, 5).T
    return dict(zip((*_SIZES, "micro_batches"), columns, strict=True))


# metric: search
# Which strategies of a model fit a cluster, and how long do their steps take?
#
# Each strategy whose sizes divide is predicted as `predict` does, with a distributed optimizer,
# sequence parallelism and experts not cut by tensor parallelism. The front are those that no other
# beats in time and memory at once.
#
# title: Strategies of a model
# meaning: Predicted step and memory of all strategies of a model on a cluster.
# command: search
# table: search
# figure: search_front, search_parts
#
#   tp             bigint   tensor parallel size
#   pp             bigint   pipeline stages
#   vpp            bigint   chunks of a stage
#   cp             bigint   context parallel size
#   ep             bigint   expert parallel size
#   dp             bigint   replicas
#   micro_batch    bigint   sequences of a micro-batch
#   recompute      varchar  none, selective or full
#   layers         varchar  even: over chunks as they divide; balanced: fewer in the last, as many
#                           as the head counts for
#   last_layers    bigint   layers of the last chunk, beside the head: the others are even
#   step_ns        bigint   predicted step
#   peak_bytes     bigint   predicted peak of later steps, of the rank with most
#   fits           boolean  whether the peak leaves enough of the chip's memory free
#   is_front       boolean  whether no strategy that fits is faster with less memory
#   limit          varchar  what takes most of the step, matmuls and attention aside
#   limit_ratio    double   its share of the step
#   matmul_ns      bigint   of the step: dense matmuls
#   experts_ns     bigint   matmuls of experts
#   attention_ns   bigint   scores and values
#   vector_ns      bigint   norms, activation functions, permutations, rotations
#   tp_comm_ns     bigint   exposed communication of tensor parallelism
#   cp_comm_ns     bigint   of context parallelism
#   ep_comm_ns     bigint   of experts, with waiting for the numbers of tokens
#   host_ns        bigint   by which the host is slower than the device
#   recompute_ns   bigint   layers computed again as a whole
#   head_ns        bigint   head and loss
#   pp_comm_ns     bigint   between stages
#   bubble_ns      bigint   waiting for other stages
#   dp_comm_ns     bigint   exposed communication of gradients and weights
#   optimizer_ns   bigint   the update
#   fixed_ns       bigint   what every step takes, whatever the strategy: the part step of predict.
#     All these parts add up to step_ns, but for rounding
def search(
    model: Model,
    machine: Machine,
    world: int,
    space: Space,
    constants: Constants | None = None,
    spread: Callable[..., Iterable[pl.DataFrame]] = map,
) -> pl.DataFrame:
    """The rows of the metric, those that fit first, fastest first; of those that do not, the one
    that lacks least. Raises UsageError for none.

    `spread(function, tasks)` gives a function's results for tasks in their order, as `map` does.
    """
    predicted = partial(_predict_batch, constants=constants or default_constants())
    frames = list(spread(predicted, list(jobs_of_space(model, machine, world, space))))
    if not frames:
        raise UsageError(
            f"{model.name}: no strategy divides {world} NPUs, {space.global_batch} sequences of"
            f" {space.sequence_length} tokens and {model.layers} layers"
        )
    budget = machine.memory_bytes * (1 - space.spare_ratio)
    strategies = pl.concat(frames).with_columns(fits=pl.col("peak_bytes") <= budget)
    nearest = pl.when("fits").then("step_ns").otherwise("peak_bytes")
    order = ["fits", nearest, "step_ns", "peak_bytes"]
    strategies = strategies.sort(order, descending=[True, False, False, False], maintain_order=True)
    return with_front(strategies).select(column_names("search"))


def _predict_batch(task: tuple[dict[str, object], Job], constants: Constants) -> pl.DataFrame:
    fixed, job = task
    shape = np.shape(job.tp)
    parts = step_parts(job, constants)
    seconds = np.stack([np.broadcast_to(parts[name], shape) for name in LIMITS])
    step = seconds.sum(axis=0) + parts["step"]
    peak = np.max(
        [np.broadcast_to(one.peak_bytes, shape) for one in stage_memory(job, constants)], axis=0
    )
    lost = np.where(np.isin(LIMITS, ("matmul", "attention", "experts"))[:, None], 0.0, seconds)
    worst = lost.argmax(axis=0)
    columns = {name: np.asarray(getattr(job, name)).astype(np.int64) for name in _SIZES}
    return pl.DataFrame(
        columns
        | {
            "dp": np.broadcast_to(job.dp, shape).astype(np.int64),
            "step_ns": (step * 1e9).astype(np.int64),
            "peak_bytes": peak.astype(np.int64),
            "limit": np.array(LIMITS)[worst],
            "limit_ratio": np.take_along_axis(lost, worst[None], axis=0)[0] / step,
        }
        | {
            f"{name}_ns": (ns * 1e9).astype(np.int64)
            for name, ns in zip(LIMITS, seconds, strict=True)
        }
        | {"fixed_ns": np.full(shape, parts["step"] * 1e9).astype(np.int64)}
    ).with_columns(
        pp=pl.lit(fixed["pp"], dtype=pl.Int64), vpp=pl.lit(fixed["vpp"], dtype=pl.Int64),
        recompute=pl.lit(fixed["recompute"]), layers=pl.lit(fixed["layers"]),
        last_layers=pl.lit(fixed["last_layers"], dtype=pl.Int64),
    )  # fmt: skip


# metric: search_sensitivity
# Which constant, being wrong, would change the best strategy?
#
# Each constant is taken a spread of its prior higher and lower, and the best strategies are
# predicted once more.
#
# title: Sensitivity of the best strategy
# meaning: Constants whose error would put another strategy first.
# table: search_sensitivity
#
#   constant     varchar  its name
#   changed_ratio  double   by which it is changed
#   best         bigint   place, from 1, of the strategy that is then the best
#   lost_ratio   double   by which the first is then slower than that one
def sensitivity(
    model: Model,
    machine: Machine,
    world: int,
    space: Space,
    strategies: pl.DataFrame,
    constants: Constants | None = None,
    top: int = 20,
) -> pl.DataFrame:
    """The rows of the metric for the `top` best strategies of `strategies`, most lost first."""
    best = strategies.filter("fits").head(top)
    base = constants or default_constants()
    rows = []
    for name, constant in described_constants().items() if len(best) else ():
        for factor in (np.exp(constant.spread), np.exp(-constant.spread)):
            if constant.spread <= 0:
                continue
            changed = base | {name: base[name] * float(factor)}
            steps = _steps_of(model, machine, world, space, best, changed)
            place = int(np.argmin(steps))
            if place:
                rows.append({
                    "constant": name, "changed_ratio": float(factor), "best": place + 1,
                    "lost_ratio": float(steps[0] / steps[place] - 1),
                })  # fmt: skip
    schema = {"constant": pl.String, "changed_ratio": pl.Float64, "best": pl.Int64,
              "lost_ratio": pl.Float64}  # fmt: skip
    return pl.DataFrame(rows, schema=schema).sort("lost_ratio", descending=True)


def _steps_of(
    model: Model, machine: Machine, world: int, space: Space, strategies: pl.DataFrame,
    constants: Constants,
) -> Floats:  # fmt: skip
    """Steps of these strategies, seconds."""
    steps = np.zeros(len(strategies))
    for place, row in enumerate(strategies.to_dicts()):
        one = replace(
            space, tp=[row["tp"]], pp=[row["pp"]], vpp=[row["vpp"]], cp=[row["cp"]],
            ep=[row["ep"]], micro_batch=[row["micro_batch"]], recompute=[row["recompute"]],
        )  # fmt: skip
        jobs = {fixed["layers"]: job for fixed, job in jobs_of_space(model, machine, world, one)}
        job = jobs[row["layers"]]
        steps[place] = float(np.sum([np.sum(v) for v in step_parts(job, constants).values()]))
    return steps
