"""What a rank's framework can launch, and how a list of such calls is written."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from npuscope.analysis.pipeline.schedules import Pass

from . import kernels as k
from .faults import plant
from .job import Group, Job, copy_of, order, place_layers

COMPUTE_STREAM, SIDE_STREAM = 2, 3
# One stream for each communicator of a rank.
_COMM_STREAMS = {
    "world": 11, "dp": 12, "tp": 13, "ep": 14, "dp_ep": 15, "forward": 16, "backward": 17,
}  # fmt: skip
_LANES = 4  # transfers of one way on their way at a time
BYTES_PER_NS = {"HCCS": 20.0, "ROCE": 12.0}


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel on a stream, once the calls of `after` have ended; `part`: of which pass. `block`:
    memory that it makes (-1: none is planted), and what is free from there on."""

    work: k.Work
    stream: int
    after: tuple[int, ...]
    backward: bool
    sequence: int
    part: Pass | None = None
    block: int = -1
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommCall:
    """`peers`: positions in the group and bytes sent there; who takes part shares `meeting`."""

    collective: str
    group: Group
    meeting: str
    parties: int
    stream: int
    after: tuple[int, ...]
    backward: bool
    peers: tuple[tuple[int, int], ...]
    element_count: int
    data_type: str = "BFP16"
    on_vector_cores: bool = False


@dataclass(frozen=True, slots=True)
class CopyCall:
    """A device task that is no kernel."""

    name: str
    stream: int
    dur_ns: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for the end of a call, in an operator or by itself."""

    on: int
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """The host does something else; `kind` and `name` as the profiler records it."""

    kind: str
    name: str
    dur_ns: int


@dataclass(frozen=True, slots=True)
class StepMark:
    """The framework begins or ends a step."""

    step: int
    begins: bool


Call = KernelCall | CommCall | CopyCall | Sync | Pause | StepMark


@dataclass(slots=True)
class Draft:
    """A program while it is written. Indices of calls stand for their results."""

    job: Job
    rank: int
    place: dict[str, int]
    groups: dict[str, Group]
    chance: random.Random
    noise: random.Random
    dice: random.Random  # for kernels that stand in no job without the fault
    calls: list[Call] = field(default_factory=list)
    last: int = 0
    step: int = 0
    sequence: int = 1000
    part: Pass | None = None
    is_recomputing: bool = False
    # Of operators whose backward is to come, by chunk and micro-batch.
    forward_sequences: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    meetings: dict[str, int] = field(default_factory=dict)
    arrival: int | None = None  # what an exchange brought before it is used
    half: str = ""  # attention or ffn of a layer
    is_kept: bool = True  # what this half makes, for its backward
    layer: int = -1
    block: int = -1
    blocks: dict[tuple[object, ...], list[int]] = field(default_factory=dict)  # by half, in use
    free: list[int] = field(default_factory=list)  # blocks that are so as of the next kernel
    open_layers: int = 0  # layers whose gradients are still to be reduced


class Place(NamedTuple):
    """Where a chunk stands on the way forward: the stages before and after it (None: none, or the
    same stage), whether it is first or last, and its layers."""

    before: int | None
    after: int | None
    is_first: bool
    is_last: bool
    layers: list[int]


def place_of(d: Draft, chunk: int) -> Place:
    """Where the draft's rank has a chunk of its own."""
    own = d.place["pp"]
    route = order(d.job).routes[copy_of(d.job, own, chunk)]
    at = route.index((own, chunk))
    before = route[at - 1][0] if at else own
    after = route[at + 1][0] if at + 1 < len(route) else own
    return Place(
        None if before == own else before, None if after == own else after,
        at == 0, at == len(route) - 1, list(place_layers(d.job, at)),
    )  # fmt: skip


def link(job: Job, rank: int, other: int) -> str:
    """Ranks of one host talk over HCCS, others over RoCE."""
    return "HCCS" if job.host(rank) == job.host(other) else "ROCE"


def _with_duration(w: k.Work, dur_ns: int) -> k.Work:
    """The work with another duration (`replace` takes three times as long)."""
    return k.Work(
        w.type, w.name, w.core, w.api, w.operator, w.input_shapes, w.input_dtypes,
        w.output_shapes, w.output_dtypes, dur_ns, w.is_compute,
    )  # fmt: skip


def collective(
    d: Draft,
    role: str,
    collective: str,
    count: int,
    *,
    after: tuple[int, ...],
    backward: bool = False,
    peers: tuple[tuple[int, int], ...] = (),
    data_type: str = "BFP16",
    on_vector_cores: bool = False,
) -> tuple[int, ...]:
    """One collective of a group; nothing where the group is this rank alone."""
    group = d.groups[role]
    size = len(group.ranks)
    if size == 1:
        return ()
    backward = backward or d.is_recomputing
    width = 4 if data_type == "FP32" else 2
    if not peers:
        me = group.ranks.index(d.rank)
        near = [(me + away) % size for away in range(1, min(size, 8))]  # seven links of a mesh
        peers = tuple((p, max(width, count * width // size)) for p in near)
    meeting = f"{group.name}/{_next(d, group.name)}"
    call = CommCall(
        collective, group, meeting, size, _COMM_STREAMS[role], after, backward, peers,
        count, data_type, on_vector_cores,
    )  # fmt: skip
    return (add(d, call),)


def peer_to_peer(d: Draft, source: int, target: int, *, backward: bool = False) -> int:
    """The activation or its gradient from one pipeline stage to another."""
    role = "backward" if backward else "forward"
    group = d.groups[role]
    sends = d.place["pp"] == source
    count = d.job.sequence // d.job.tp * d.job.hidden
    name = "send" if sends else "receive"
    moved = 2 * count
    if d.job.paired_transfers:
        name, moved = "batchSendRecv", moved if sends else 0
    way = f"{group.name}/{source}-{target}"
    number, stream = _next(d, way), _COMM_STREAMS[role]
    if d.job.schedule != "1f1b":  # tensors go several ways at a time
        stream += 2 * (1 + number % _LANES + _LANES * (source * d.job.pp + target))
    call = CommCall(
        name, group, f"{way}/{number}", 2, stream, (d.last,), backward,
        ((target if sends else source, moved),),
        count,
    )  # fmt: skip
    return add(d, call)


def exchange(d: Draft, other: int) -> int:
    """The activation one way between two stages and a gradient the other way, in one operation."""
    group = d.groups["forward"]
    low, high = sorted((d.place["pp"], other))
    count = d.job.sequence // d.job.tp * d.job.hidden
    way = f"{group.name}/{low}+{high}"
    call = CommCall(
        "batchSendRecv", group, f"{way}/{_next(d, way)}", 2, _COMM_STREAMS["forward"], (d.last,),
        False, ((other, 2 * count),), count,
    )  # fmt: skip
    return add(d, call)


def compute(
    d: Draft,
    work: k.Work,
    *,
    stream: int = COMPUTE_STREAM,
    after: tuple[int, ...] = (),
    backward: bool = False,
    even: bool = False,
) -> int:
    """A kernel as long as its work takes on this rank, give or take 1.5 % unless `even`, or the
    kernels that run in its place. What is planted draws lots of its own: all others take as long as
    in the job without it."""
    kernels = plant(d.job, work)
    own = next((at for at, one in enumerate(kernels) if one is work), 0)
    for at, one in enumerate(kernels):
        lots = (d.chance, d.noise) if at == own else (d.dice, d.dice)
        index = _compute(d, one, stream, after, lots, backward=backward, even=even)
        after = ()
    return index


def _compute(
    d: Draft, work: k.Work, stream: int, after: tuple[int, ...],
    lots: tuple[random.Random, random.Random], *, backward: bool, even: bool,
) -> int:  # fmt: skip
    chance, noise = lots
    on_ai_core = work.core not in ("AI_CPU", "DSA_SQE")
    slowness = d.job.slowness(d.rank, work.type, on_cube=work.is_cube, on_ai_core=on_ai_core)
    spread = 1.0 if even else chance.uniform(0.985, 1.015)
    dur_ns = int(work.dur_ns * slowness * spread)
    if d.job.noise:
        dur_ns = jittered_ns(noise, dur_ns, d.job.noise)
    last = d.calls[d.last]
    if work.type == d.job.fused_kernel and not after and isinstance(last, KernelCall):
        whole = _with_duration(last.work, last.work.dur_ns + dur_ns)
        d.calls[d.last] = replace(last, work=whole)
        return d.last
    numbers = d.forward_sequences.setdefault(d.part[1:] if d.part else (-1, -1), [])
    sequence = -1
    if backward:
        sequence = numbers.pop() if numbers else -1
    elif d.part is None or d.part.kind == "F":
        d.sequence += 1
        sequence = d.sequence
        numbers.append(sequence)
    block, frees = _memory(d, backward=backward)
    backward = backward or d.is_recomputing
    for _ in range(2 if work.type == d.job.repeated_kernel else 1):
        call = KernelCall(
            _with_duration(work, dur_ns), stream, after, backward, sequence, d.part, block, frees
        )
        block, frees = -1, ()
        index = add(d, call)
    if stream == COMPUTE_STREAM:
        d.last = index
    return index


def held_by(d: Draft, layer: int, half: str) -> tuple[object, ...]:
    """The key of what a half of a layer holds of the pass's micro-batch; "" is what is no layer."""
    assert d.part is not None
    return (*d.part[1:], layer, half)


def _memory(d: Draft, *, backward: bool) -> tuple[int, tuple[int, ...]]:
    """The block that a kernel makes, and those that are free from it on."""
    if d.job.recompute != "parts":
        return -1, ()
    frees, d.free = d.free, []
    if d.part is None or backward or not (d.part.kind == "F" or d.is_recomputing):
        return -1, tuple(frees)
    own = d.blocks.setdefault(held_by(d, d.layer, d.half), [])
    if not d.is_kept:
        d.free += own
        own.clear()
    d.block += 1
    own.append(d.block)
    return d.block, tuple(frees)


def jittered_ns(chance: random.Random, dur_ns: int, sigma: float) -> int:
    """A duration as a real machine varies it: lognormal, and once in 2,000 times a hiccup."""
    hiccup_ns = chance.randrange(50_000, 500_000) if chance.random() < 0.0005 else 0
    return int(dur_ns * chance.lognormvariate(0.0, sigma)) + hiccup_ns


def _next(d: Draft, name: str) -> int:
    d.meetings[name] = d.meetings.get(name, -1) + 1
    return d.meetings[name]


def add(d: Draft, call: Call) -> int:
    """Puts a call at the end of the program; returns its index."""
    d.calls.append(call)
    return len(d.calls) - 1
