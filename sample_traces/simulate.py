"""Runs the programs of all ranks against each other: who waits for whom, and when all happened.

Kernels of a stream follow each other; a collective moves data once its last member has arrived, and
ends on all members together; the host launches ahead of the device until it has to wait for it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .calls import (
    BYTES_PER_NS,
    Call,
    CommCall,
    CopyCall,
    KernelCall,
    Pause,
    StepMark,
    Sync,
    jittered_ns,
    link,
)
from .job import Job
from .program import program

_START_DELAY_NS = 2_000_000  # session start to first host call
_KERNEL_GAP_NS = 1_180  # between two kernels of a stream
_EVENT_NS = 640  # from the end of a call to the start of what waited for it
_LATENCY_NS = 5_200  # launch to device start, at least
_READY_NS = 4_000  # last member's arrival to first payload
_CLOSE_NS = 4_000  # last payload to the end of the operation
_MOST_ROUNDS, _SETTLED_NS = 12, 500
_LONGEST_NS = 20_000_000  # more than a transfer takes


@dataclass(frozen=True, slots=True)
class HostTimes:
    """One launch on the host: framework operator, task queue, CANN interface, launch."""

    operator_start_ns: int
    operator_end_ns: int
    enqueue_ns: int
    dequeue_ns: int

    @property
    def api_start_ns(self) -> int:
        return self.dequeue_ns + 300

    @property
    def launch_start_ns(self) -> int:
        return self.dequeue_ns + 900

    @property
    def launch_end_ns(self) -> int:
        return self.dequeue_ns + 3_400

    @property
    def api_end_ns(self) -> int:
        return self.dequeue_ns + 3_700

    @property
    def dequeue_end_ns(self) -> int:
        return self.dequeue_ns + 4_000


class Transfer(NamedTuple):
    """What goes to a peer (its position in the group) of a meeting, from when this is ready."""

    peer: int
    size_bytes: int
    dur_ns: int
    from_ns: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A call that has happened, in true time. `ready_ns`: when a meeting's last member was there;
    `transfers`: what went to its peers."""

    call: KernelCall | CommCall | CopyCall
    host: HostTimes
    start_ns: int
    end_ns: int
    ready_ns: int = 0
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waiting for the device (`kind` api), in an operator or not; or what else keeps it
    from launching: a call of this kind and name."""

    start_ns: int
    end_ns: int
    operator: str = ""
    kind: str = "api"


@dataclass(frozen=True, slots=True)
class Window:
    """Host range of a step, in true time."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Rank:
    rank: int
    calls: list[Call]
    chance: random.Random
    noise: random.Random
    host_ns: int
    queue_ns: int = 0
    position: int = 0
    window_start_ns: int = 0
    ends: list[int | None] = field(default_factory=list)
    on_stream: dict[int, int] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)


@dataclass(slots=True)
class _Arrival:
    rank: int
    index: int
    start_ns: int
    host: HostTimes


def run(job: Job) -> dict[int, tuple[list[Event], list[Wait], list[Window]]]:
    """Events in launch order, host waits and step windows of every rank, on one true clock."""
    ranks = _run(job, {})
    if job.contention != 1.0:
        # What is stretched moves what is beside it, so that it settles in rounds.
        extra_ns = dict[tuple[int, int], int]()
        for _ in range(_MOST_ROUNDS):
            before, extra_ns = extra_ns, _stretches(job, ranks)
            if all(abs(ns - before.get(at, 0)) < _SETTLED_NS for at, ns in extra_ns.items()):
                break
            ranks = _run(job, extra_ns)
    return {
        r.rank: ([r.events[i] for i in sorted(r.events)], r.waits, r.windows)
        for r in ranks.values()
    }


def _run(job: Job, extra_ns: Mapping[tuple[int, int], int]) -> dict[int, _Rank]:
    """Every rank at its end; `extra_ns`: what kernels take longer, by rank and call."""
    ranks = {rank: _begin(job, rank) for rank in range(job.world_size)}
    meetings: dict[str, list[_Arrival]] = {}
    runnable = deque(ranks)
    waiting: set[tuple[int, int]] = set()
    while runnable:
        rank = runnable.popleft()
        for settled in _advance(job, ranks, rank, meetings, waiting, extra_ns):
            runnable.append(settled)
    stuck = [r.rank for r in ranks.values() if r.position < len(r.calls)]
    if stuck:
        raise ValueError(f"the schedule deadlocks on ranks {stuck[:8]}")
    return ranks


def _stretches(job: Job, ranks: Mapping[int, _Rank]) -> dict[tuple[int, int], int]:
    """What kernels take longer for bytes that moved beside them as it ran."""
    lengths: dict[tuple[int, int], int] = {}
    for r in ranks.values():
        moves = sorted((e.ready_ns, e.end_ns) for e in r.events.values()
                       if isinstance(e.call, CommCall))  # fmt: skip
        for index, event in r.events.items():
            if isinstance(event.call, KernelCall):
                until, beside_ns = event.start_ns, 0
                low = bisect_left(moves, (event.start_ns - _LONGEST_NS, 0))
                for begin, end in moves[low : bisect_left(moves, (event.end_ns, 0))]:
                    begin = max(begin, until)
                    end = min(end, event.end_ns)
                    beside_ns += max(end - begin, 0)
                    until = max(until, end)
                lengths[r.rank, index] = round(beside_ns * (1 - 1 / job.contention))
    return lengths


def on_clock(
    job: Job, rank: int, events: list[Event], waits: list[Wait], windows: list[Window]
) -> tuple[list[Event], list[Wait], list[Window]]:
    """What happened on a rank, at the times its own clock showed."""
    if job.clock_ns(rank, job.start_ns + 10**15) == job.start_ns + 10**15:
        return events, waits, windows

    def shift(time_ns: int) -> int:
        return job.clock_ns(rank, time_ns)

    def host(t: HostTimes) -> HostTimes:
        return HostTimes(
            shift(t.operator_start_ns), shift(t.operator_end_ns), shift(t.enqueue_ns),
            shift(t.dequeue_ns),
        )  # fmt: skip

    return (
        [Event(e.call, host(e.host), shift(e.start_ns), shift(e.end_ns), shift(e.ready_ns),
               e.transfers) for e in events],
        [Wait(shift(w.start_ns), shift(w.end_ns), w.operator, w.kind) for w in waits],
        [Window(w.step, shift(w.start_ns), shift(w.end_ns)) for w in windows],
    )  # fmt: skip


def _begin(job: Job, rank: int) -> _Rank:
    chance = random.Random(f"{job.seed}/host/{rank}")
    host_ns = job.start_ns + _START_DELAY_NS + chance.randrange(150_000)
    calls = program(job, rank)
    noise = random.Random(f"{job.seed}/host noise/{rank}")
    return _Rank(rank, calls, chance, noise, host_ns, ends=[None] * len(calls))


def _advance(
    job: Job,
    ranks: dict[int, _Rank],
    rank: int,
    meetings: dict[str, list[_Arrival]],
    waiting: set[tuple[int, int]],
    extra_ns: Mapping[tuple[int, int], int],
) -> list[int]:
    """Runs one rank until it needs an end that is not known yet; returns whom that set free."""
    r, freed = ranks[rank], list[int]()
    while r.position < len(r.calls):
        index, call = r.position, r.calls[r.position]
        for needed in _needs(r, call):
            if r.ends[needed] is None:
                waiting.add((rank, needed))
                return freed
        r.position += 1
        if isinstance(call, StepMark):
            _mark(job, r, call)
        elif isinstance(call, Sync):
            end_ns = max(r.host_ns, _end(r, call.on)) + 9_000
            r.waits.append(Wait(r.host_ns, end_ns, call.operator))
            r.host_ns = end_ns
        elif isinstance(call, Pause):
            r.waits.append(Wait(r.host_ns, r.host_ns + call.dur_ns, call.name, call.kind))
            r.host_ns += call.dur_ns
        elif isinstance(call, (KernelCall, CopyCall)):
            host = _issue(job, r)
            start_ns = _start(job, r, call, host)
            dur_ns = call.work.dur_ns if isinstance(call, KernelCall) else call.dur_ns
            dur_ns += extra_ns.get((rank, index), 0)
            r.events[index] = Event(call, host, start_ns, start_ns + dur_ns)
            r.ends[index] = start_ns + dur_ns
            r.on_stream[call.stream] = index
        elif isinstance(call, CommCall):
            host = _issue(job, r)
            arrival = _Arrival(rank, index, _start(job, r, call, host), host)
            r.on_stream[call.stream] = index
            meeting = meetings.setdefault(call.meeting, [])
            meeting.append(arrival)
            if len(meeting) == call.parties:
                del meetings[call.meeting]
                _meet(job, ranks, meeting)
                for other in meeting:
                    if (other.rank, other.index) in waiting:
                        waiting.remove((other.rank, other.index))
                        freed.append(other.rank)
        else:
            raise AssertionError(call)  # typing.assert_never needs Python 3.11
    return freed


def _needs(r: _Rank, call: Call) -> Sequence[int]:
    """Calls whose ends must be known before this one can be placed."""
    if isinstance(call, (StepMark, Pause)):
        return ()
    if isinstance(call, Sync):
        return (call.on,)
    before = r.on_stream.get(call.stream)
    return call.after if before is None else (*call.after, before)


def _end(r: _Rank, index: int) -> int:
    end_ns = r.ends[index]
    assert end_ns is not None
    return end_ns


def _mark(job: Job, r: _Rank, mark: StepMark) -> None:
    r.host_ns = max(r.host_ns, r.queue_ns)
    if mark.begins:
        r.host_ns += 8_000 + job.between_steps_ns
        r.window_start_ns = r.host_ns
        r.host_ns += 6_000
    else:
        r.host_ns += 3_000
        r.windows.append(Window(mark.step, r.window_start_ns, r.host_ns))
        r.host_ns += 2_000


def _issue(job: Job, r: _Rank) -> HostTimes:
    cost_ns = int(job.host_op_ns * job.host_slowness(r.rank) * r.chance.uniform(0.8, 1.3)) + 3_000
    if job.noise:
        cost_ns = jittered_ns(r.noise, cost_ns, job.noise)
    start_ns = r.host_ns
    if job.is_far(r.rank, start_ns):
        cost_ns = int(cost_ns * job.far_factor)
    r.host_ns += cost_ns
    enqueue_ns = r.host_ns - 2_500
    dequeue_ns = max(r.queue_ns, enqueue_ns + 1_500)
    times = HostTimes(start_ns, r.host_ns - 500, enqueue_ns, dequeue_ns)
    r.queue_ns = times.dequeue_end_ns + 200
    return times


def _start(job: Job, r: _Rank, call: KernelCall | CommCall | CopyCall, host: HostTimes) -> int:
    start_ns = host.launch_start_ns + _LATENCY_NS + r.chance.randrange(1_500)
    before = r.on_stream.get(call.stream)
    if before is not None:
        start_ns = max(start_ns, _end(r, before) + (_KERNEL_GAP_NS if _crosses(job) else 0))
    return max([start_ns, *(_end(r, index) + _EVENT_NS for index in call.after)])


def _crosses(job: Job) -> bool:
    """Steps touch unless an operation covers the gap between them, so that they add up."""
    return job.crossing and job.world_size > 1


def _meet(job: Job, ranks: dict[int, _Rank], meeting: list[_Arrival]) -> None:
    ready_ns = max(arrival.start_ns for arrival in meeting) + _READY_NS
    transfers: list[tuple[Transfer, ...]] = []
    for arrival in sorted(meeting, key=lambda a: a.rank):
        call = ranks[arrival.rank].calls[arrival.index]
        assert isinstance(call, CommCall)
        transfers.append(_transfers(job, arrival.rank, call))
    transfers = _in_two_stages(job, ranks, meeting) or transfers
    end_ns = ready_ns + max(one.from_ns + one.dur_ns for its in transfers for one in its)
    end_ns += _CLOSE_NS
    for arrival, its in zip(sorted(meeting, key=lambda a: a.rank), transfers, strict=True):
        r = ranks[arrival.rank]
        call = r.calls[arrival.index]
        assert isinstance(call, CommCall)
        r.events[arrival.index] = Event(call, arrival.host, arrival.start_ns, end_ns, ready_ns, its)
        r.ends[arrival.index] = end_ns


def _in_two_stages(
    job: Job, ranks: dict[int, _Rank], meeting: list[_Arrival]
) -> list[tuple[Transfer, ...]]:  # fmt: skip
    """Transfers of an all-to-all in two stages, by member; none where it is not one of those.

    First a rank sends to its like on each other host what is for that host, then each passes on
    within its host what came, with what it has itself: once all are done with the first stage."""
    calls = {arrival.rank: ranks[arrival.rank].calls[arrival.index] for arrival in meeting}
    members = sorted(calls)
    hosts = sorted({job.host(rank) for rank in members})
    if not job.hierarchical or len(hosts) == 1:
        return []
    sent: dict[tuple[int, int], int] = {}
    for rank, call in calls.items():
        assert isinstance(call, CommCall)
        if call.collective != "allToAllV":
            return []
        sent |= {(rank, call.group.ranks[peer]): size for peer, size in call.peers}
    on = {host: [rank for rank in members if job.host(rank) == host] for host in hosts}
    like = {(rank, host): on[host][on[job.host(rank)].index(rank) % len(on[host])]
            for rank in members for host in hosts}  # fmt: skip
    far = {(rank, via): sum(sent[rank, to] for to in on[host])
           for (rank, host), via in like.items() if host != job.host(rank)}  # fmt: skip
    near = {
        (via, to): sum(sent[rank, to] for rank in members if like[rank, host] == via and rank != to)
        for host in hosts for via in on[host] for to in on[host] if to != via
    }  # fmt: skip
    stages = [
        {ends: size / BYTES_PER_NS[wire] * job.link_slowness(*ends, wire)
         for ends, size in sizes.items()}
        for sizes, wire in ((far, "ROCE"), (near, "HCCS"))
    ]  # fmt: skip
    lengths = [max(times.values(), default=0.0) for times in stages]
    first = next(iter(calls.values()))
    assert isinstance(first, CommCall)
    chance = random.Random(f"{job.seed}/stages/{first.meeting}")
    whole = int(sum(lengths) * chance.uniform(1.0, 1.02))
    if job.noise:
        whole = jittered_ns(chance, whole, job.noise)
    drawn = whole / max(sum(lengths), 1.0)
    transfers: dict[int, list[Transfer]] = {rank: [] for rank in members}
    for sizes, times, from_ns in zip((far, near), stages, (0.0, lengths[0] * drawn), strict=True):
        for (rank, to), size in sizes.items():
            peer, dur_ns = first.group.ranks.index(to), int(times[rank, to] * drawn)
            transfers[rank].append(Transfer(peer, size, dur_ns, int(from_ns)))
    return [tuple(transfers[rank]) for rank in members]


def _transfers(job: Job, rank: int, call: CommCall) -> tuple[Transfer, ...]:
    """What goes to each peer, and for how long; a receiver moves nothing itself."""
    if call.on_vector_cores:
        return (Transfer(0, 0, 18_000),)
    chance = random.Random(f"{job.seed}/link/{call.meeting}/{rank}")
    passes = 2 if call.collective == "allReduce" else 1
    transfers: list[Transfer] = []
    for peer, size_bytes in call.peers:
        other = call.group.ranks[peer]
        wire = link(job, rank, other)
        dur_ns = 0
        if call.collective != "receive" and size_bytes:
            exact_ns = passes * size_bytes / BYTES_PER_NS[wire] * chance.uniform(1.0, 1.02)
            dur_ns = int(exact_ns * job.link_slowness(rank, other, wire))
            dur_ns = jittered_ns(chance, dur_ns, job.noise) if job.noise else dur_ns
        transfers.append(Transfer(peer, size_bytes, dur_ns))
    return tuple(transfers)
