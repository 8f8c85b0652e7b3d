"""A training job described in a few lines: sizes, schedule, and what is planted in it.

Ranks are numbered as Megatron numbers them: tensor parallel fastest, then data, then pipeline; the
expert-parallel groups lie inside the data-parallel ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from npuscope.analysis.pipeline import schedules
from npuscope.errors import UsageError

STAY_NS, SAMPLED_NS = 8_000_000, 2_000_000  # the scheduler moves a thread; its place is read


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, where, and what is wrong with it.

    `overlap` is the share of all-to-all and gradient traffic that has compute issued beside it
    (what is hidden in the end is in the truth). `expert_skew` is the exponent of a Zipf law over
    the experts, in another order for each layer; `expert_weights` gives the popularity instead.
    With `crossing`, an asynchronous allGather starts in each step and ends in the next.
    `experts = 0` makes a dense job. `layers_by_stage` makes stages uneven (a number for each chunk
    on the way forward, where stages have several); so does `compute_by_stage`, by which kernels of
    a stage take longer (1: as usual). With `paired_transfers`, stages exchange tensors by
    batchSendRecv, activation and gradient in one where 1F1B has both at a time.

    With `recompute="parts"`, backward runs again what `recompute_parts` says by place on the way
    forward: the attention, and the feed-forward network, of so many of its first layers. Memory is
    then that of these parts: what a part made is held until its backward has ended; of one that
    runs again each output until the next one, but its last.

    `schedule` is the order of passes by its name, `chunks` of the model on each stage where it can
    have any number; where one runs passes beside each other, their parts take turns; the two copies
    of the model that DualPipe keeps reduce their gradients together. `mtp` modules predict further
    tokens after the last layer, each a layer and a head of its own.

    What can be wrong, each by its own factor: `slow_rank` runs its cube kernels longer, at a clock
    that much lower if `slow_rank_lowers_clock`; `slow_clock` is a rank whose AI cores all run at a
    lower frequency; kernels of type `slow_kernel` take longer on every rank, those of type
    `repeated_kernel` are launched twice; the ranks of host number `slow_host` take longer for every
    launch; transfers of link type `slow_link_type` take longer at one rank, or between the two, of
    `slow_link`; to `overloaded`, its expert-parallel group routes more tokens than to its other
    members.

    What could be otherwise: kernels of type `fused_kernel` run as part of the kernel before them;
    with `fused_norms`, the sum after attention and the norm after it are one kernel; with
    `serial_experts`, the shared expert waits for the all-to-all that it runs beside else;
    `placement` lists for each layer the experts in the order of devices that hold them; kernels
    beside communication of their rank that moves bytes run `contention` times as long; with
    `hierarchical`, all-to-alls over hosts go to one rank of each host first, then on within it; the
    host takes `between_steps_ns` before each step; with `skips_norm`, it reads no norm of gradients
    and launches steps ahead of the device without waiting for it. Steps that are multiples of
    `evaluate_every` run forwards alone, and the host reads their loss.

    What operators can suffer from: the projection of attention is `odd_columns` wider than it
    should be, and its products take `odd_factor` as long; kernels of type `split_kernel` run in
    `split_into` pieces of rows; those of type `converted_kernel` (matrix products) have their input
    brought into another layout and their result back; those of type `ai_cpu_kernel` run on the AI
    CPU, `ai_cpu_factor` as long; those of type `unfused_kernel` (SwiGlu, or Add with scale and
    bias) as the element-wise kernels that make them up.

    What can be wrong with the host: with `item_in_layers` it reads a value from the device in each
    layer's forward; in steps that are multiples of `gc_every` Python collects garbage for `gc_ns`;
    each micro-batch of the first stage is waited for `data_wait_ns`; threads that are not bound are
    for `far_share` of the time on cores far from their device, where a launch takes `far_factor`
    times as long, and where they are is recorded.

    `noise` is the sigma of the lognormal law by which kernels, transfers and launches vary, with a
    hiccup now and then. `clock_offsets_ns[r]` is added to every time of rank r, whose clock runs
    `clock_drift_ppm[h]` too fast on host number h.
    """

    name: str = "moe"
    layers: int = 4
    experts: int = 8
    top_k: int = 2
    tp: int = 1
    pp: int = 2
    dp: int = 4
    ep: int = 2
    micro_batches: int = 2
    recompute: str = "none"
    steps: int = 2
    first_step: int = 12
    hidden: int = 1024
    ffn: int = 1408
    sequence: int = 2048
    vocabulary: int = 32_000
    overlap: float = 0.6
    slow_rank: int | None = None
    slow_factor: float = 1.25
    expert_skew: float = 0.8
    expert_weights: tuple[float, ...] = ()
    clock_offsets_ns: tuple[int, ...] = ()
    slow_rank_lowers_clock: bool = True
    slow_clock: int | None = None
    slow_clock_factor: float = 1.2
    slow_host: int | None = None
    slow_host_factor: float = 12.0
    slow_link: tuple[int, ...] = ()
    slow_link_type: str = "HCCS"
    slow_link_factor: float = 3.0
    overloaded: int | None = None
    overload_factor: float = 2.0
    noise: float = 0.0
    clock_drift_ppm: tuple[float, ...] = ()
    crossing: bool = True
    comm_tasks: bool = True
    memory: bool = True
    frequency: bool = True
    ranks_per_host: int = 8
    host_op_ns: int = 7_000
    start_ns: int = 1_764_246_877_000_000_000
    seed: int = 1
    layers_by_stage: tuple[int, ...] = ()
    compute_by_stage: tuple[float, ...] = ()
    paired_transfers: bool = False
    schedule: str = "1f1b"
    chunks: int = 1
    mtp: int = 0
    slow_kernel: str = ""
    slow_kernel_factor: float = 1.5
    repeated_kernel: str = ""
    fused_kernel: str = ""
    fused_norms: bool = False
    serial_experts: bool = False
    placement: tuple[tuple[int, ...], ...] = ()
    contention: float = 1.0
    hierarchical: bool = False
    between_steps_ns: int = 0
    recompute_parts: tuple[tuple[int, int], ...] = ()
    odd_columns: int = 0
    odd_factor: float = 1.5
    split_kernel: str = ""
    split_into: int = 16
    converted_kernel: str = ""
    ai_cpu_kernel: str = ""
    ai_cpu_factor: float = 12.0
    unfused_kernel: str = ""
    item_in_layers: bool = False
    gc_every: int = 0
    gc_ns: int = 3_000_000
    data_wait_ns: int = 0
    far_share: float = 0.0
    far_factor: float = 1.8
    skips_norm: bool = False
    evaluate_every: int = 0

    def __post_init__(self) -> None:
        try:
            places = len(order(self).routes[0])
        except UsageError as error:
            raise ValueError(str(error)) from error
        if self.layers_by_stage:
            if len(self.layers_by_stage) != places or sum(self.layers_by_stage) != self.layers:
                raise ValueError("layers_by_stage needs one number per chunk, layers altogether")
        if self.compute_by_stage and len(self.compute_by_stage) != self.pp:
            raise ValueError("compute_by_stage needs one factor per stage")
        if self.recompute_parts and len(self.recompute_parts) != places:
            raise ValueError("recompute_parts needs two numbers of layers per chunk")
        if not self.layers_by_stage and self.layers % places:
            raise ValueError("pp (by the chunks of a stage) must divide layers")
        if self.dp % self.ep or (self.experts and self.experts % self.ep):
            raise ValueError("ep must divide dp and experts")
        if self.expert_weights and len(self.expert_weights) != self.experts:
            raise ValueError("expert_weights needs one weight per expert")
        for name in ("slow_rank", "slow_clock", "overloaded"):
            rank = getattr(self, name)
            if rank is not None and not 0 <= rank < self.world_size:
                raise ValueError(f"{name} must be below {self.world_size}")
        if len(self.slow_link) > 2:
            raise ValueError("slow_link names one rank or two")
        if self.placement and (
            len(self.placement) != self.layers
            or any(sorted(row) != [*range(self.experts)] for row in self.placement)
        ):
            raise ValueError("placement needs every expert once for each layer")

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def projected_columns(self) -> int:
        """Query, key and value of a tensor-parallel rank, side by side."""
        return 3 * self.hidden // self.tp + self.odd_columns

    def offset_ns(self, rank: int) -> int:
        return self.clock_offsets_ns[rank] if rank < len(self.clock_offsets_ns) else 0

    def host(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def clock_ns(self, rank: int, time_ns: int) -> int:
        """A true time as the rank's own clock shows it."""
        host = self.host(rank)
        ppm = self.clock_drift_ppm[host] if host < len(self.clock_drift_ppm) else 0.0
        return time_ns + self.offset_ns(rank) + round((time_ns - self.start_ns) * ppm * 1e-6)

    def slowness(self, rank: int, kernel: str, *, on_cube: bool, on_ai_core: bool) -> float:
        """How many times longer the rank's kernels of a type and kind of core take."""
        slow = self.slow_factor if rank == self.slow_rank and on_cube else 1.0
        slow *= self.slow_kernel_factor if kernel == self.slow_kernel else 1.0
        if self.compute_by_stage:
            slow *= self.compute_by_stage[rank // (self.tp * self.dp)]
        return slow * (self.slow_clock_factor if rank == self.slow_clock and on_ai_core else 1.0)

    def clock_slowness(self, rank: int) -> float:
        """By how much the rank's frequency counter stands lower."""
        slow = self.slow_factor if rank == self.slow_rank and self.slow_rank_lowers_clock else 1.0
        return slow * (self.slow_clock_factor if rank == self.slow_clock else 1.0)

    def is_far(self, rank: int, time_ns: int) -> bool:
        """Whether the rank's threads are on cores far from their device at a true time."""
        if not self.far_share:
            return False
        stay = (time_ns - self.start_ns) // STAY_NS
        return _chance(f"{self.seed}/far/{rank}/{stay}") < self.far_share

    def evaluates(self, step: int) -> bool:
        """Whether a step runs forwards alone."""
        return bool(self.evaluate_every) and step % self.evaluate_every == 0

    def host_slowness(self, rank: int) -> float:
        return self.slow_host_factor if self.host(rank) == self.slow_host else 1.0

    def link_slowness(self, rank: int, other: int, link: str) -> float:
        """How many times longer a transfer between two ranks takes."""
        is_hit = bool(self.slow_link) and set(self.slow_link) <= {rank, other}
        return self.slow_link_factor if is_hit and link == self.slow_link_type else 1.0


HALVES = ("attention", "ffn")  # of a layer


@lru_cache(maxsize=8192)
def _chance(of: str) -> float:
    return random.Random(of).random()


# Left out of a description where they stand at their defaults.
_WRONG = (
    "recompute", "recompute_parts",
    "slow_rank_lowers_clock", "slow_clock", "slow_clock_factor", "slow_host", "slow_host_factor",
    "slow_link", "slow_link_type", "slow_link_factor", "overloaded", "overload_factor", "noise",
    "clock_drift_ppm", "layers_by_stage", "compute_by_stage", "paired_transfers",
    "schedule", "chunks", "mtp",
    "slow_kernel", "slow_kernel_factor", "repeated_kernel",
    "fused_kernel", "fused_norms", "serial_experts", "placement", "contention", "hierarchical",
    "odd_columns", "odd_factor", "split_kernel", "split_into", "converted_kernel", "ai_cpu_kernel",
    "ai_cpu_factor", "unfused_kernel",
    "item_in_layers", "gc_every", "gc_ns", "data_wait_ns", "far_share", "far_factor",
    "skips_norm", "evaluate_every",
)  # fmt: skip


def job_fields(job: Job) -> dict[str, Any]:
    """The job's fields by name, without what it does not do and what is not wrong with it."""
    plain = {one.name: one.default for one in fields(Job) if one.name in _WRONG}
    return {n: v for n, v in asdict(job).items() if n not in plain or plain[n] != v}


def small(**changes: Any) -> Job:
    """A tiny job for tests: two ranks, expert parallel, two layers of few kernels."""
    tiny = Job(name="small", layers=1, pp=1, dp=2, ep=2, experts=4, micro_batches=1)
    return replace(tiny, **changes)


@dataclass(frozen=True, slots=True)
class Group:
    """A communication group: HCCL's name, the framework's label, the kind it stands for."""

    name: str
    label: str
    kind: str
    ranks: tuple[int, ...]


@lru_cache(maxsize=4096)
def group_hash(name: str) -> int:
    """HCCL's 64-bit hash of a communicator's name."""
    high = low = 0
    for char in name:
        high, low = high * 29 + ord(char), low * 131 + ord(char)
    return (high % 2**32) * 2**32 + low % 2**32


def coordinates(job: Job, rank: int) -> dict[str, int]:
    """Position of a rank on each parallel axis."""
    dp_rank = rank // job.tp % job.dp
    return {
        "tp": rank % job.tp,
        "pp": rank // (job.tp * job.dp),
        "dp": dp_rank,
        "cp": 0,
        "ep": dp_rank % job.ep,
    }


@lru_cache(maxsize=16)
def groups(job: Job) -> tuple[tuple[str, Group], ...]:
    """Every group of the job with its role, named in the order in which all processes create them.

    A role is a kind, but for the pipeline: `forward` and `backward` are two communicators of the
    same ranks and label, as activations and gradients may be on their way at one time.
    """
    world = range(job.world_size)
    place = {rank: coordinates(job, rank) for rank in world}
    families = (
        ("world", "default_group", "world", ()),
        ("dp", "dp", "dp", ("layers", "tp")),
        ("tp", "tp", "tp", ("pp", "dp")),
        ("forward", "pp", "pp", ("dp", "tp")),
        ("ep", "exp", "ep", ("pp", "tp", "edp")),
        ("dp_ep", "dp_modulo_exp", "dp_ep", ("layers", "tp", "ep")),
        ("backward", "pp", "pp", ("dp", "tp")),
    )
    groups_here: list[tuple[str, Group]] = []
    for role, label, kind, axes in families:
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in world:
            stage = place[rank]["pp"]
            # Two copies of the model: a stage has the layers of the one opposite, too.
            layers = min(stage, job.pp - 1 - stage) if len(order(job).routes) > 1 else stage
            at = {**place[rank], "edp": place[rank]["dp"] // job.ep, "layers": layers}
            members.setdefault(tuple(at[axis] for axis in axes), []).append(rank)
        for ranks in members.values():
            groups_here.append(
                (role, Group(f"group_name_{len(groups_here)}", label, kind, tuple(ranks)))
            )
    return tuple(groups_here)


@lru_cache(maxsize=16)
def _groups_by_rank(job: Job) -> dict[int, dict[str, Group]]:
    by_rank: dict[int, dict[str, Group]] = {rank: {} for rank in range(job.world_size)}
    for role, group in groups(job):
        for rank in group.ranks:
            by_rank[rank][role] = group
    return by_rank


def groups_of(job: Job, rank: int) -> dict[str, Group]:
    """The groups of one rank by role; single-member ones are known too, but never communicate."""
    return _groups_by_rank(job)[rank]


def recorded_groups(job: Job, rank: int) -> list[Group]:
    """The groups whose communicator exists, which is what the profiler lists."""
    return [g for g in groups_of(job, rank).values() if len(g.ranks) > 1 or g.kind == "tp"]


@lru_cache(maxsize=8192)
def routed_tokens(
    job: Job, step: int, micro_batch: int, layer: int, source_rank: int
) -> tuple[int, ...]:
    """Tokens that a rank routes to each expert; they sum to its tokens times `top_k`."""
    experts = list(range(job.experts))
    random.Random(f"{job.seed}/popularity/{layer}").shuffle(experts)
    weights = [0.0] * job.experts
    for position, expert in enumerate(experts):
        weights[expert] = (
            job.expert_weights[expert] if job.expert_weights else (position + 1) ** -job.expert_skew
        )
    chance = random.Random(f"{job.seed}/route/{step}/{micro_batch}/{layer}/{source_rank}")
    weights = [weight * chance.uniform(0.97, 1.03) for weight in weights]
    if job.overloaded is not None and job.overloaded in groups_of(job, source_rank)["ep"].ranks:
        for expert in local_experts(job, coordinates(job, job.overloaded)["ep"], layer):
            weights[expert] *= job.overload_factor
    total = job.sequence // job.tp * job.top_k
    exact = [weight / sum(weights) * total for weight in weights]
    tokens = [int(share) for share in exact]
    order = sorted(range(job.experts), key=lambda e: (tokens[e] - exact[e], e))
    for expert in order[: total - sum(tokens)]:
        tokens[expert] += 1
    return tuple(tokens)


def local_experts(job: Job, ep_rank: int, layer: int = 0) -> Sequence[int]:
    """Experts of a layer that a member of an expert-parallel group holds."""
    count = job.experts // job.ep
    every = job.placement[layer] if job.placement else range(job.experts)
    return every[ep_rank * count : (ep_rank + 1) * count]


def order(job: Job) -> schedules.Schedule:
    """What each stage runs, in order."""
    chunks = job.chunks if job.schedule in schedules.ANY_CHUNKS else None
    return _order(job.schedule, job.pp, job.micro_batches, chunks)


@lru_cache(maxsize=64)
def _order(name: str, stages: int, micro_batches: int, chunks: int | None) -> schedules.Schedule:
    return schedules.schedule(name, stages, micro_batches, chunks)


def place_layers(job: Job, place: int) -> range:
    """Layers of the chunk at a place on the way forward."""
    places = len(order(job).routes[0])
    counts = job.layers_by_stage or (job.layers // places,) * places
    first = sum(counts[:place])
    return range(first, first + counts[place])


def stage_layers(job: Job, pp_rank: int) -> list[int]:
    """Layers of a pipeline stage, over all its chunks."""
    return [
        layer for route in order(job).routes for at, (stage, _) in enumerate(route)
        if stage == pp_rank for layer in place_layers(job, at)
    ]  # fmt: skip


def copy_of(job: Job, stage: int, chunk: int) -> int:
    """Which copy of the model a chunk is of, where a schedule keeps several."""
    return next(n for n, route in enumerate(order(job).routes) if (stage, chunk) in route)


def is_recomputed(job: Job, stage: int, chunk: int, layer: int, half: str) -> bool:
    """Whether backward runs a layer's attention or feed-forward network (ffn) again, where single
    parts are chosen."""
    if not job.recompute_parts:
        return False
    at = order(job).routes[copy_of(job, stage, chunk)].index((stage, chunk))
    first = place_layers(job, at)[0]
    return layer - first < job.recompute_parts[at][HALVES.index(half)]


def layer_micro_batches(job: Job, stage: int, layer: int) -> range:
    """Micro-batches that pass a layer on a stage: the copies of the model take turns."""
    routes = order(job).routes
    copy = next(n for n, route in enumerate(routes) for at, (device, _) in enumerate(route)
                if device == stage and layer in place_layers(job, at))  # fmt: skip
    return range(copy, job.micro_batches, len(routes))
