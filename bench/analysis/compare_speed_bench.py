"""How long `compare` takes of two captures of 64 ranks x 10 steps x 20,000 kernels, warm stores.

    .venv/bin/python -m bench.analysis.compare_speed_bench [--full] [--runs N]

Straight to canonical tables (500 kernels of a rank and step without --full): B has another seed and
one kernel type half as slow again. Measured are the command from its start to its end, and without
the start of Python and its libraries: from opening the stores to the rows. `--by stage` and
`--by rank` are beside. Limit: 3 s for the command.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.inputs import job_stores
from bench.measure import NPUSCOPE, Command, arguments, commit, failures, interleave, report, table
from bench.measure import verdict as met
from npuscope.commands.start.compare import compare_sides

LIMIT_S = 3.0
B = replace(
    job_stores.JOB, name="slower", seed=2, slow_kernel="ApplyAdamWV2", slow_kernel_factor=1.5
)


def rows_s(a: Path, b: Path) -> float:
    """From opening the stores to the rows, in this process."""
    began = time.perf_counter()
    compare_sides([str(a)], [str(b)], None, None)
    return time.perf_counter() - began


def main() -> int:
    """Makes the stores, times the commands, prints the table; 1 where the limit is missed."""
    chosen = arguments(__doc__)
    repeats = 40 if chosen.full else 1
    a, b = job_stores.store_it(repeats), job_stores.store_it(repeats, job=B)
    words = {"compare": (), "--by stage": ("--by", "stage"), "--by rank": ("--by", "rank")}
    found = interleave(
        {
            # As for users: modules are compiled once.
            name: Command(
                [NPUSCOPE, "compare", str(a), str(b), *more, "--json"],
                environment={"PYTHONDONTWRITEBYTECODE": ""},
            )
            for name, more in words.items()
        },
        chosen.runs,
    )
    rows = [(name, f"{one.wall_s:.2f}", f"{one.cpu_s:.2f}") for name, one in found.items()]
    rows_s(a, b)
    within_s = median(rows_s(a, b) for _ in range(chosen.runs))
    rows.append(("from opened stores to rows", f"{within_s:.2f}", ""))
    kernels = job_stores.KERNELS * repeats
    said = table((f"64 ranks x 10 steps x {kernels:,} kernels, twice", "wall s", "CPU s"), rows)
    said += f"\n\nseeds {job_stores.JOB.seed} and {B.seed}, commit {commit()}"
    wall_s = found["compare"].wall_s
    said += f"\n\ncompare: {met(wall_s, LIMIT_S, at_least=False)}"
    report("Two captures compared: how long it takes", said + failures(found))
    return 0 if wall_s <= LIMIT_S or not chosen.full else 1


if __name__ == "__main__":
    sys.exit(main())
