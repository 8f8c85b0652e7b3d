"""How long a placement of experts takes to find, and what it gains over EPLB's algorithm.

    .venv/bin/python -m bench.analysis.experts_bench [--full] [--runs N]

58 layers of 256 experts on 64 devices with 5 slots, in 8 nodes: loads evenly drawn, and Zipf's of
many exponents; by tokens alone, and by a time with links. EPLB's published algorithm, our
implementation of it, has the same slots. In CPU seconds of this process. Limit: 5 s for all layers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt

from bench.measure import arguments, report, table, verdict
from npuscope.analysis.experts.plan.eplb import eplb
from npuscope.analysis.experts.plan.placement import Placement, max_over_mean, replicas
from npuscope.analysis.experts.plan.placement_search import search
from npuscope.analysis.experts.plan.plan_moves import plan
from npuscope.analysis.experts.plan.step_time import TOKENS_ONLY, Cost, layer_times

LIMIT_S = 5.0
LAYERS, EXPERTS, DEVICES, SLOTS, NODES = 58, 256, 64, 5, 8
# Grouped matmuls of 1.4 us a token, 15 KiB a token each of four times, links of 137 and 17.5 GB/s.
TIMED = Cost(1400.0, 200_000.0, 0.0, 61_440.0, 137e9, 17.5e9)
Floats = npt.NDArray[np.float64]


def loads() -> dict[str, Floats]:
    """[layers, experts] by name, from a fixed seed."""
    rng = np.random.default_rng(8)
    powers = np.linspace(0.2, 1.4, LAYERS)[:, None]
    skewed = rng.permuted(1e6 / np.arange(1, EXPERTS + 1) ** powers, axis=1)
    return {
        "even": rng.uniform(0, 10_000, (LAYERS, EXPERTS)),
        "Zipf": skewed,
        "counts of Zipf": rng.poisson(skewed / 100).astype(np.float64),
    }


def take(work: Callable[[], Placement], runs: int) -> tuple[Placement, float]:
    """What it finds, and CPU seconds: the median of the runs."""
    seconds = []
    for _ in range(runs):
        began = time.process_time()
        found = work()
        seconds.append(time.process_time() - began)
    return found, median(seconds)


def main() -> int:
    """Checks and measures each load, prints the table."""
    chosen = arguments(__doc__)
    rows, slowest = [], 0.0
    for name, load in loads().items():
        for basis, cost, nodes in (("tokens", TOKENS_ONLY, 1), ("time", TIMED, NODES)):
            theirs, theirs_s = take(partial(eplb, load, devices=DEVICES, slots=SLOTS), 1)
            ours, ours_s = take(
                partial(search, load, devices=DEVICES, slots=SLOTS, nodes=nodes, cost=cost),
                chosen.runs,
            )
            before, after = (max_over_mean(one, load) for one in (theirs, ours))
            was, now = (layer_times(one, load, cost, nodes) for one in (theirs, ours))
            fair = (after <= before * (1 + 1e-12)).all() and (now <= was * (1 + 1e-12)).all()
            if not fair or replicas(ours, EXPERTS).min() < 1:
                print(f"{name}, {basis}: WRONG, a layer is worse than EPLB's or lacks an expert")
                return 1
            slowest = max(slowest, ours_s / LIMIT_S)
            rows.append((
                name, basis, f"{before.mean():.4f}", f"{after.mean():.4f}", f"{before.max():.4f}",
                f"{after.max():.4f}", f"{(1 - now.sum() / was.sum()) * 100:.2f} %",
                f"{theirs_s:.2f}", f"{ours_s:.2f}", f"{ours_s / LIMIT_S:.2f}",
            ))  # fmt: skip
    steps = np.stack([np.random.default_rng(at).poisson(loads()["Zipf"] / 100) for at in range(60)])
    _, plan_s = take(
        lambda: (
            plan(
                steps,
                devices=DEVICES,
                nodes=NODES,
                slots=SLOTS,
                cost=TIMED,
                expert_bytes=94_400_000,
            ).placement
        ),
        chosen.runs,
    )
    slowest = max(slowest, plan_s / LIMIT_S)
    header = (
        "load", "by", "EPLB max/mean", "ours", "EPLB worst", "ours", "time won", "EPLB CPU s",
        "our CPU s", f"ours / {LIMIT_S:g} s",
    )  # fmt: skip
    said = table(header, rows)
    said += f"\n\na whole plan from 60 steps, back-test and moves with it: {plan_s:.2f} CPU s"
    said += f"\nslowest over its limit: {slowest:.2f}, {verdict(slowest, 1, at_least=False)}"
    report(f"Placement of {LAYERS} x {EXPERTS} experts on {DEVICES} devices", said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
