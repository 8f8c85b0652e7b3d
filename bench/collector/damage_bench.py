"""How many damaged profiles are read as they must be: what is whole exact, what is lost named.

    .venv/bin/python -m bench.collector.damage_bench [--full]

Files cut at a random place, files replaced by something else, and databases without a table, its
rows or a column: each case is a profile of two ranks, one of them damaged, that the real command
reads; `tests/prove/hardening` says what must hold, and takes a part of the same cases. With --full
all, else every twentieth. Limit: no complaint.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from bench.measure import arguments, commit, report, table
from tests.prove.hardening import test_databases, test_files_replaced, test_random_cuts
from tests.prove.hardening.captures import write_light, write_small

_FEW = 20
Complaints = Future[list[str]]


def start(pool: ProcessPoolExecutor, folder: Path, step: int) -> dict[str, list[Complaints]]:
    """Every so many-th case of each kind, under way."""
    light = write_light(folder / "light")
    full = write_small(folder / "source", "db")
    exported = full[1] / "ASCEND_PROFILER_OUTPUT"
    cuts = [
        (name, number) for name, count in test_random_cuts.CASES.items() for number in range(count)
    ]
    replaced = [
        (name, number, damage)
        for name in test_files_replaced.TARGETS
        for number, damage in test_files_replaced.cases(name)
    ]
    missing = [
        (number, name, script)
        for name in (test_databases.MAIN, test_databases.ANALYSIS)
        for number, script in enumerate(test_databases.scripts(exported / name))
    ]
    return {
        "a file cut at a random place": [
            pool.submit(test_random_cuts.cut_and_read, *case, folder, light)
            for case in cuts[::step]
        ],
        "a file replaced": [
            pool.submit(test_files_replaced.damage_and_read, *case, folder, light)
            for case in replaced[::step]
        ],
        "a table, its rows or a column missing": [
            pool.submit(test_databases.without, *case, full, light, folder)
            for case in missing[::step]
        ],
    }


def main() -> int:
    """Reads the cases, prints the table; 1 where one is not read as it must be."""
    chosen = arguments(__doc__)
    rows, wrong = [], []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(os.cpu_count(), context) as pool,
    ):
        running = start(pool, Path(folder), 1 if chosen.full else _FEW)
        for what, cases in running.items():
            found = [case.result() for case in cases]
            wrong += [one for complaints in found for one in complaints]
            right = sum(not complaints for complaints in found)
            rows.append((what, len(found), right, "yes" if right == len(found) else "NO"))
    said = table(("damage", "cases", "as they must be", "all"), rows)
    said += f"\n\nseeds are the cases' numbers, commit {commit()}"
    report("Damaged profiles", "\n\n".join([said, *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
