"""How near a captured job's memory plan comes to the job that is generated with it.

    .venv/bin/python -m bench.analysis.memory_plan_bench [--full]

Random jobs without recompute (dense or with experts, 1 to 4 stages, four schedules), each planned
from its capture for a budget drawn between its peak and what is left with all layers run again;
then the same job is generated with the plan. With --full 25 jobs, else 4; seeds that no test has.
Limits: the step within 3 % of the generated one, and nearer than "nothing changes" is in sum; what
is saved within 5 %. Jobs whose schedule is not recognised are refused, and listed.
"""

from __future__ import annotations

import gc
import random
import sys
from statistics import median

from bench.measure import arguments, commit, report, table, verdict
from npuscope.errors import CannotAnswer
from tests.analysis.strategy.planned_jobs import random_job, replay

JOBS, FEW, FIRST_SEED = 25, 4, 9_001
STEP, SAVED = 0.03, 0.05


def main() -> int:
    """Plans and generates the jobs, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    gc.disable()  # takes a third of the time of a generated job
    seeds = range(FIRST_SEED, FIRST_SEED + (JOBS if chosen.full else FEW))
    rows: list[tuple[object, ...]] = []
    steps, unchanged, saved, inside = list[float](), list[float](), list[float](), 0
    for seed in seeds:
        share = random.Random(f"share/{seed}").uniform(0.2, 0.95)
        job = random_job(seed)
        kind = f"{job.schedule} pp{job.pp}{' moe' if job.experts else ''}"
        try:
            found = replay(job, share)
        except CannotAnswer as error:
            rows.append((seed, kind, f"{share:.2f}", "refused", str(error)[:40], ""))
            continue
        steps.append(abs(found.step_error))
        unchanged.append(abs(found.unchanged_error))
        saved.append(abs(found.saved_error))
        inside += found.low_ns <= found.truth_ns <= found.high_ns
        rows.append((
            seed, kind, f"{share:.2f}", f"{found.unchanged_error:+.1%}",
            f"{found.step_error:+.2%}", f"{found.saved_error:+.2%}",
        ))  # fmt: skip
    heads = ("seed", "job", "budget", "unchanged / real step", "planned / real step",
             "saved / really saved")  # fmt: skip
    told = (
        ("worst error of the step", max(steps), STEP),
        ("mean error of the step over that of no change", sum(steps) / sum(unchanged), 1.0),
        ("worst error of what is saved", max(saved), SAVED),
    )
    said = table(heads, rows)
    more = (
        f"median error of the step {median(steps):.2%}, of no change {median(unchanged):.1%};"
        f" {inside} of {len(steps)} steps within their range"
    )
    lines = "\n".join(
        f"{what}: {found:.4f}, {verdict(found, limit, at_least=False)}"
        for what, found, limit in told
    )
    report("Memory plans", f"{said}\n\n{more}\n\n{lines}\n\ncommit {commit()}")
    return 0 if all(found <= limit for _, found, limit in told) else 1


if __name__ == "__main__":
    sys.exit(main())
