"""How close `micro_batches=` comes to steps that really ran with so many.

    .venv/bin/python -m bench.replay.micro_batches_bench [--full]

Jobs of tp 2, pp 4, dp 2, ep 2 with noise of 2 % and hiccups are generated with 4, 8 and 16
micro-batches; each predicts the others of its seed and of the next one, of whom it knows nothing.
Experts are as popular with every seed. 20 seeds of 4 steps with --full, else 3 of 2. Two runs of
one job differ, too: beside errors stands what the mean step of a run is unsure by. Limits: no bias
beyond 0.5 %, 95 % of ranges contain the truth.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from bench.measure import arguments, commit, report, table, verdict
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.capture_changes import apply_change
from npuscope.analysis.replay.capture_what_if import predicted_steps
from npuscope.analysis.replay.captures import capture_job
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import ALL
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.replay.replayed_jobs import LARGE
from tests.analysis.tables import connect, put

PAIRS = ((4, 8), (8, 4), (8, 16), (16, 8))
JOB = replace(LARGE, noise=0.02, expert_weights=tuple((at + 1) ** -0.8 for at in range(8)))
TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches")
FIRST, MOST_BIAS, LEAST = 40_001, 0.005, 0.95

Told = dict[int, dict[str, int]]  # rows of the mean step by the number that was asked


def ran(job: Job) -> tuple[Told, float, float]:
    """What other numbers are predicted to take; its mean step, and what that is unsure by."""
    con = connect()
    put(con, canonical_frames(job, tables=TABLES))
    open_across(None, con)
    found = capture_job(con, ALL)
    told = {}
    for few, many in PAIRS:
        if few == job.micro_batches:
            other = apply_change(con, found, [parse_change(f"micro_batches={many}")])
            told[many] = predicted_steps(found, other).row(-1, named=True)
    con.close()
    lengths = found.measured.lengths()
    return told, float(lengths.mean()), float(lengths.std(ddof=1) / len(lengths) ** 0.5)


def main() -> int:
    """Generates every job, prints the table by pair."""
    chosen = arguments(__doc__)
    seeds, steps = (20, 4) if chosen.full else (3, 2)
    found = {}
    for seed in range(FIRST, FIRST + seeds):
        for count in (4, 8, 16):
            found[seed, count] = ran(replace(JOB, seed=seed, steps=steps, micro_batches=count))
        print(f"seed {seed} of {FIRST + seeds - 1}", file=sys.stderr, flush=True)
    rows, worst, inside_all = [], 0.0, []
    for few, many in PAIRS:
        for name, next_one in (("the same", 0), ("another", 1)):
            errors, unsure, widths = [], [], []
            for seed in range(FIRST, FIRST + seeds):
                row = found[seed, few][0][many]
                other = FIRST + (seed - FIRST + next_one) % seeds
                _, truth, error = found[other, many]
                errors.append(row["predicted_step_ns"] / truth - 1)
                unsure.append(error / truth)
                widths.append((row["predicted_high_ns"] - row["predicted_low_ns"]) / truth)
                inside_all.append(row["predicted_low_ns"] <= truth <= row["predicted_high_ns"])
            off = np.array(errors)
            limit = 0.015 if next_one else 0.01
            worst = max(worst, abs(float(off.mean())))
            rows.append((
                f"{few} to {many}", name, seeds, f"{off.mean():+.2%}",
                f"{float(np.sqrt((off**2).mean())):.2%}", f"{np.abs(off).max():.2%}",
                f"{int((np.abs(off) <= limit).sum())}", f"{np.mean(unsure):.2%}",
                f"{int(np.sum(inside_all[-seeds:]))}", f"{np.mean(widths):.2%}",
            ))  # fmt: skip
    header = ("micro-batches", "seed", "pairs", "mean error", "rms", "largest",
              "within 1 % (another seed: 1.5 %)", "a run is unsure by", "truth in range",
              "mean width")  # fmt: skip
    share = float(np.mean(inside_all))
    report(
        "What if: other numbers of micro-batches",
        f"{table(header, rows)}\n\nseeds {FIRST} to {FIRST + seeds - 1}, {steps} steps, commit"
        f" {commit()}\n\nlargest mean error {worst:.2%},"
        f" {verdict(worst, MOST_BIAS, at_least=False)};"
        f" {share:.1%} of ranges contain the truth, {verdict(share, LEAST, at_least=True)}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
