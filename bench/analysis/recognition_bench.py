"""How often the schedule of a generated job is recognised, with noise of 3 %.

    .venv/bin/python -m bench.analysis.recognition_bench [--full]

Jobs of eight schedules in turn (--full: 100, else 16), with uneven chunks, recompute, modules for
further tokens, and transfers of both kinds, drawn by number. Right is a job whose schedule,
micro-batches and phases are those planted. Limits: 95 % right, none named with high confidence and
wrong.
"""

from __future__ import annotations

import sys
import time

from bench.measure import arguments, verdict
from tests.analysis.pipeline.random_jobs import random_job, recognise_job, verdict_on

LEAST_RIGHT = 0.95


def main() -> int:
    """Prints a line for each job that is not right, and the shares."""
    jobs = [random_job(number) for number in range(100 if arguments(__doc__).full else 16)]
    began = time.monotonic()
    right = exact = wrong = 0
    for job in jobs:
        said = verdict_on(job, recognise_job(job))
        right, exact = right + said.is_right, exact + said.is_exact
        wrong += said.confidence == "high" and not said.is_named
        if not said.is_right:
            print(f"  {job.name}: {said.name}, {said.confidence}")
    share = right / len(jobs)
    print(
        f"{len(jobs)} jobs, {time.monotonic() - began:.0f} s: {right} right, every pass of {exact}"
    )
    print(f"right: {share:.2f}, {verdict(share, LEAST_RIGHT, at_least=True)}")
    print(f"named with high confidence and wrong: {wrong}, {verdict(wrong, 0, at_least=False)}")
    return 0 if share >= LEAST_RIGHT and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
