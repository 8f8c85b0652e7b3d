"""How often `ranks` names who is slow in planted jobs, and anybody in healthy ones.

    .venv/bin/python -m bench.analysis.stragglers_bench [--full]

Random jobs of 16 ranks with realistic noise, healthy or with one thing wrong; clocks of hosts
differ by up to 50 ms and are aligned as planted (with --full 50 jobs of each kind, else 20:
of fewer, one that is missed says nothing about 95 %).
Limits: nobody wrong, at least 95 % of those who are slow.
"""

from __future__ import annotations

import gc
import sys

from bench.measure import arguments, commit, report, table
from tests.analysis.ranks.straggler_jobs import FAULTS
from tests.analysis.ranks.straggler_verdicts import judge

JOBS, FEW = 50, 20


def main() -> int:
    """Judges the jobs, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    gc.disable()  # takes a third of the time of a generated job
    jobs = JOBS if chosen.full else FEW
    rows, holds = [], True
    for fault in ("healthy", *FAULTS):
        told = judge(fault, range(jobs))
        is_held = told.wrong == 0 and (fault == "healthy" or told.recall >= 0.95)
        holds &= is_held
        rows.append((fault, told.right, told.wrong, told.missed, "yes" if is_held else "NO"))
    said = table((f"{jobs} jobs each", "right", "wrong", "missed", "holds"), rows)
    report("Slow ranks named", f"{said}\n\nseeds 0 to {jobs - 1}, commit {commit()}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
