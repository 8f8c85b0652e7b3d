"""How often `compare` calls equals different, finds a change of 3 %, and covers it.

    .venv/bin/python -m bench.analysis.compare_bench [--full] [--runs N]

Pairs of small generated jobs, 10 steps each, every job of a seed of its own, from the simulation
straight to canonical tables (with --full 200 pairs of each kind, else 20). Kernels, transfers and
launches vary by 2 %. The change makes one kernel type so much longer that the step is 3 % longer in
a pair without noise, which is the truth that intervals are held against. Limits: 8 % of equals,
90 % of changes, coverage of 92 to 98 %.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from statistics import median

from bench.measure import arguments, commit, report, table
from npuscope.analysis.catalog import metric
from npuscope.analysis.compare.difference import Comparison, compare
from npuscope.analysis.compare.side import Side, measure
from npuscope.analysis.memo import remember
from npuscope.analysis.scope import ALL
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.tables import connect, put

JOB = Job(name="pair", layers=4, experts=0, dp=2, pp=1, ep=1, micro_batches=2, steps=10, noise=0.02)
TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches")
SUMMARIES = ("steps", "comm", "kernels")
KERNEL, CHANGE = "ApplyAdamWV2", 0.03
PAIRS, FEW = 200, 20
# The first ones of A and B that are equal, and of A and a longer B.
SEEDS = (1000, 2000, 3000, 4000)


def side(job: Job) -> Side:
    """What a job's own tables tell."""
    with connect() as con:
        put(con, canonical_frames(job, tables=TABLES, pipes=False))
        for name in SUMMARIES:  # as a store has them
            con.execute(f'create temp table "{metric(name).view}" as {metric(name).sql}')
        remember(con)  # as a command does
        return measure(con, ALL)


def slower(job: Job, factor: float) -> Job:
    """The job with its optimizer's kernel that much longer."""
    return replace(job, slow_kernel=KERNEL, slow_kernel_factor=factor)


def change() -> tuple[Job, int]:
    """The job with a step 3 % longer, and how much that is in ns."""
    calm = replace(JOB, noise=0.0)
    before = side(calm)
    twice = compare(before, side(slower(calm, 2.0)))
    factor = 1 + CHANGE * twice.step_a_ns / twice.delta_ns
    truth = compare(before, side(slower(calm, factor)))
    return slower(JOB, factor), truth.delta_ns


def covers(found: Comparison, truth_ns: int) -> bool:
    """Whether the interval holds the truth."""
    low, high = found.delta_low_ns, found.delta_high_ns
    return low is not None and high is not None and low <= truth_ns <= high


@dataclass(frozen=True, slots=True)
class Shares:
    """Of pairs: equals called different, changes found, and intervals of these that hold the
    truth; `half`: median half an interval over a step."""

    false: float
    found: float
    covered: float
    half: float


def judge(pairs: int) -> Shares:
    """So many pairs of each kind compared."""
    longer, truth_ns = change()
    same, other, before, after = SEEDS
    equals = [
        compare(side(replace(JOB, seed=same + n)), side(replace(JOB, seed=other + n)))
        for n in range(pairs)
    ]
    changes = [
        compare(side(replace(JOB, seed=before + n)), side(replace(longer, seed=after + n)))
        for n in range(pairs)
    ]
    return Shares(
        sum(one.verdict == "different" for one in equals) / pairs,
        sum(one.verdict == "different" for one in changes) / pairs,
        sum(covers(one, truth_ns) for one in changes) / pairs,
        median(
            float(one.figures["high"][0] - one.figures["low"][0]) / 2 / one.step_a_ns
            for one in equals
        ),
    )


def main() -> int:
    """Compares the pairs, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    pairs = PAIRS if chosen.full else FEW
    told = judge(pairs)
    rows = [
        ("equals called different", told.false, "at most 8 %", told.false <= 0.08),
        (f"{CHANGE:.0%} found", told.found, "at least 90 %", told.found >= 0.90),
        ("intervals that hold the truth", told.covered, "92 to 98 %", 0.92 <= told.covered <= 0.98),
    ]
    said = table(
        (f"of {pairs} pairs", "share", "limit", "holds"),
        [
            (what, f"{share:.1%}", limit, "yes" if holds else "NO")
            for what, share, limit, holds in rows
        ],
    )
    said += f"\n\nhalf an interval: {told.half:.2%} of a step (median)"
    said += (
        f"\n\nseeds {', '.join(f'{one} to {one + pairs - 1}' for one in SEEDS)}, commit {commit()}"
    )
    report("Two runs compared: how honest the verdicts are", said)
    return 0 if all(row[3] for row in rows) or not chosen.full else 1


if __name__ == "__main__":
    sys.exit(main())
