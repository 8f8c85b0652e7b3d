"""Random jobs with realistic noise, healthy or with one thing wrong, and who should be named."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from npuscope.sample_traces.calls import link
from npuscope.sample_traces.job import Job, groups

Fault = Literal["healthy", "compute", "host", "link", "frequency", "alltoall_bytes"]
FAULTS: tuple[Fault, ...] = ("compute", "host", "link", "frequency", "alltoall_bytes")
_SHAPES = (
    {"tp": 2, "pp": 2, "dp": 4, "ep": 2}, {"tp": 1, "pp": 2, "dp": 8, "ep": 4},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4}, {"tp": 1, "pp": 4, "dp": 4, "ep": 2},
    {"tp": 4, "pp": 2, "dp": 2, "ep": 2}, {"tp": 2, "pp": 1, "dp": 8, "ep": 4},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A job and the ranks that are to be named (`verdict`), and nobody else."""

    job: Job
    verdict: Fault
    ranks: frozenset[int]


def case(fault: Fault, seed: int, **changes: Any) -> Case:
    """The seed-th random job with that fault: 16 ranks, 4 to 6 steps; clocks of hosts differ by up
    to 50 ms and drift."""
    dice = random.Random(f"{fault}/{seed}")
    shape = dice.choice(_SHAPES)
    chosen: dict[str, Any] = {
        **shape, "layers": max(2, shape["pp"]), "micro_batches": 1,
        "steps": dice.choice((4, 4, 4, 4, 6)), "ranks_per_host": dice.choice((4, 8)),
        "noise": dice.uniform(0.02, 0.08), "expert_skew": dice.uniform(0.0, 0.02),
        "overlap": dice.choice((0.3, 0.6, 0.9)), "memory": False, "seed": seed,
        "comm_tasks": fault in ("healthy", "link"), **changes,
    }  # fmt: skip
    plain = Job(**chosen)
    size, hosts = plain.world_size, plain.host(plain.world_size - 1) + 1
    offsets = [dice.randrange(-50_000_000, 50_000_000) for _ in range(hosts)]
    chosen["clock_offsets_ns"] = tuple(offsets[plain.host(rank)] for rank in range(size))
    chosen["clock_drift_ppm"] = tuple(dice.uniform(-20, 20) for _ in range(hosts))
    rank, host = dice.randrange(size), dice.randrange(hosts)
    ranks = {rank}
    if fault == "compute":
        chosen |= {"slow_rank": rank, "slow_factor": dice.uniform(1.15, 1.5),
                   "slow_rank_lowers_clock": False}  # fmt: skip
    elif fault == "frequency":
        chosen |= {"slow_clock": rank, "slow_clock_factor": dice.uniform(1.1, 1.4)}
    elif fault == "alltoall_bytes":
        chosen |= {"overloaded": rank, "overload_factor": dice.uniform(1.5, 3.0)}
    elif fault == "host":
        chosen |= {"slow_host": host, "slow_host_factor": dice.uniform(15.0, 25.0)}
        ranks = {r for r in range(size) if plain.host(r) == host}
    elif fault == "link":
        ranks = _ends(plain, dice)
        chosen |= {"slow_link": tuple(sorted(ranks)), "slow_link_factor": dice.uniform(2.0, 5.0)}
    else:
        ranks = set()
    return Case(Job(**chosen), fault, frozenset(ranks))


def _ends(job: Job, dice: random.Random) -> set[int]:
    """A rank with two partners inside its host at least, or a pair that is not all a rank has."""
    partners: dict[int, set[int]] = {rank: set() for rank in range(job.world_size)}
    for role, group in groups(job):
        if role in ("tp", "ep", "dp", "dp_ep"):
            for rank in group.ranks:
                partners[rank] |= {
                    other for other in group.ranks
                    if other != rank and link(job, rank, other) == "HCCS"
                }  # fmt: skip
    rank = dice.choice([rank for rank, others in partners.items() if len(others) > 1])
    return {rank} if dice.random() < 0.5 else {rank, dice.choice(sorted(partners[rank]))}
