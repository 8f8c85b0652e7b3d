"""Many small ranks: what one more costs, how many files they are, how soon a store of them answers.

A rank of some 0.7 MB, as a database: so little data that only what is done once for each rank
counts. Marginal: what 64 ranks take more than 16, for each. Growth: what a rank takes with each
number of ranks, beside the smallest; 1 is linear. Questions go to the store as the ingest leaves
it, without `compact`, and were asked once before.

    .venv/bin/python -m bench.collector.batch_bench [--full] [--runs N]
"""

from __future__ import annotations

import shutil
import sys
from functools import partial

from bench.inputs.captures import CaptureSpec, build
from bench.measure import (
    BUILD,
    NPUSCOPE,
    Command,
    arguments,
    failures,
    interleave,
    report,
    table,
    verdict,
)

STORES = BUILD / "batches"
MB = 0.7
QUESTIONS = ("report", "comm", "ranks", "mfu", "findings")
TABLES = ("steps", "kernels", "mfu")  # of a row per rank and step, at the least
MARGINAL_S, FILES_A_RANK, ANSWER_S = 0.35, 3.0, 2.0


def ingests(counts: tuple[int, ...], runs: int) -> None:
    """CPU seconds and files of captures of so many ranks."""
    commands = {}
    for ranks in counts:
        capture, store = build(CaptureSpec("db", MB, ranks)), STORES / str(ranks)
        forget = partial(shutil.rmtree, store, ignore_errors=True)
        command = [NPUSCOPE, "ingest", str(capture.folder), "--store", str(store), "--jobs", "1"]
        commands[str(ranks)] = Command(command, forget)
    found = interleave(commands, runs)
    start_s = found["1"].cpu_s
    rows = []
    for ranks in counts:
        taken = found[str(ranks)]
        files = sum(1 for path in (STORES / str(ranks)).rglob("*") if path.is_file())
        rows.append((
            f"{ranks:,}", f"{taken.cpu_s:.1f}", f"{taken.cpu_s / ranks:.2f}",
            f"{taken.cpu_s / ranks / start_s:.2f}", f"{files:,}",
            verdict(files / ranks, FILES_A_RANK, at_least=False) if ranks >= 64 else "",
            f"{taken.peak_mib:.0f}",
        ))  # fmt: skip
    marginal_s = (found["64"].cpu_s - found["16"].cpu_s) / 48
    header = ("ranks", "CPU s", "CPU s a rank", "growth", "files", "files a rank", "peak MiB")
    said = (
        f"one more rank takes {marginal_s:.2f} CPU-s"
        f" ({verdict(marginal_s, MARGINAL_S, at_least=False)})"
    )
    report(f"Ingest of many ranks of {MB} MB", f"{table(header, rows)}\n\n{said}{failures(found)}")


def questions(ranks: int, runs: int) -> None:
    """Wall seconds of commands on the store that the ingest left."""
    store = str(STORES / str(ranks))
    commands = {name: Command([NPUSCOPE, name, store, "--json"]) for name in QUESTIONS}
    commands |= {f"{name}, on the terminal": Command([NPUSCOPE, name, store]) for name in TABLES}
    interleave(commands, 1)
    found = interleave(commands, max(runs, 3))
    rows = [
        (name, f"{t.wall_s:.2f}", f"{t.cpu_s:.2f}", verdict(t.wall_s, ANSWER_S, at_least=False))
        for name, t in found.items()
    ]
    header = (f"store of {ranks:,} ranks", "wall s", "CPU s", "limit")
    report(f"Questions to {ranks:,} small ranks", table(header, rows) + failures(found))


def main() -> int:
    """Up to 64 ranks, 1,000 with `--full`."""
    chosen = arguments(__doc__)
    counts = (1, 16, 64, *((256, 1000) if chosen.full else ()))
    ingests(counts, chosen.runs)
    questions(counts[-1], chosen.runs)
    shutil.rmtree(STORES, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
