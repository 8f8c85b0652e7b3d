"""Profiles to a store, end to end: `npuscope ingest` of text and DB captures, and `npuscope steps`.

Limits: 120 MB of trace JSON and 1.2 M task rows per CPU-second; 400 and 500 MiB for a process,
whatever the size of the file; two ranks on two cores 1.8 times as fast as on one.

    .venv/bin/python -m bench.collector.ingest_bench [--full] [--runs N]
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from bench.inputs.captures import CaptureFiles, CaptureSpec, build
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

STORES = BUILD / "stores"


def ingest(capture: CaptureFiles, jobs: int) -> Command:
    """`npuscope ingest` into a store that is not there yet."""
    store = STORES / f"{capture.folder.name}_{jobs}"
    command = [NPUSCOPE, "ingest", str(capture.folder), "--store", str(store)]
    forget = partial(shutil.rmtree, store, ignore_errors=True)
    return Command([*command, "--jobs", str(jobs)], forget)


def text(full: bool, runs: int) -> None:
    """One rank of growing size, with and without call stacks in it."""
    wanted = [
        CaptureSpec("text", mb, 1, stacks=True) for mb in ((200, 1000, 2000) if full else (100,))
    ]
    wanted.insert(0, CaptureSpec("text", 200 if full else 100, 1))
    captures = {w.name: build(w) for w in wanted}
    found = interleave({name: ingest(c, 1) for name, c in captures.items()}, runs)
    rows = []
    for name, taken in found.items():
        rate = captures[name].size_bytes / 1e6 / taken.cpu_s
        rows.append((
            name, f"{taken.wall_s:.1f}", f"{taken.cpu_s:.1f}", f"{rate:.0f}",
            verdict(rate, 120, at_least=True), f"{taken.peak_mib:.0f}",
            verdict(taken.peak_mib, 400, at_least=False),
        ))  # fmt: skip
    header = ("text capture", "wall s", "CPU s", "MB/CPU-s", "limit", "peak MiB", "limit")
    report("Ingest of text, one rank", table(header, rows) + failures(found))


def two_ranks(full: bool, runs: int) -> None:
    """The gain of a second process, where each has a rank to read."""
    capture = build(CaptureSpec("text", 400 if full else 100, 2, stacks=True))
    processes = {"one process": 1, "two processes": 2}
    found = interleave({name: ingest(capture, n) for name, n in processes.items()}, runs)
    one, two = found.values()
    gain = one.wall_s / two.wall_s
    rows = [(name, f"{t.wall_s:.1f}", f"{t.cpu_s:.1f}") for name, t in found.items()]
    header = (f"2 ranks x {capture.size_bytes / 2e6:.0f} MB", "wall s", "CPU s")
    said = f"speed-up {gain:.2f} ({verdict(gain, 1.8, at_least=True)})"
    report("Ingest of text, two ranks", f"{table(header, rows)}\n\n{said}{failures(found)}")


def db(full: bool, runs: int) -> None:
    """Databases with counters per task, as level 1 writes them, and without."""
    mb = 1000 if full else 100
    captures = {
        w.name: build(w) for pmu in (True, False) for w in [CaptureSpec("db", mb, 1, pmu=pmu)]
    }
    found = interleave({name: ingest(c, 1) for name, c in captures.items()}, runs)
    rows = []
    for name, taken in found.items():
        rate, rows_rate = (
            n / 1e6 / taken.cpu_s for n in (captures[name].tasks, captures[name].rows)
        )
        rows.append((
            name, f"{captures[name].tasks / 1e6:.2f}", f"{taken.wall_s:.1f}", f"{taken.cpu_s:.1f}",
            f"{rate:.2f}", verdict(rate, 1.2, at_least=True), f"{rows_rate:.2f}",
            f"{taken.peak_mib:.0f}",
            verdict(taken.peak_mib, 500, at_least=False),
        ))  # fmt: skip
    header = (
        "DB capture", "M tasks", "wall s", "CPU s", "M tasks/CPU-s", "limit",
        "M rows/CPU-s, all tables", "peak MiB", "limit",
    )  # fmt: skip
    report("Ingest of databases", table(header, rows) + failures(found))


def warm(full: bool, runs: int) -> None:
    """An answer from a store that is there."""
    capture = build(CaptureSpec("db", 20 if full else 5, 32))
    command = ingest(capture, 2)
    store = _store_of(command)
    shutil.rmtree(store, ignore_errors=True)
    found = interleave({"ingest": command}, 1)
    steps = Command([NPUSCOPE, "steps", str(store), "--json"])
    found |= interleave({"steps, warm": steps}, max(runs, 3))
    rows = [(n, f"{t.wall_s:.2f}", f"{t.cpu_s:.2f}") for n, t in found.items()]
    header = (f"32 ranks x {capture.size_bytes / 32e6:.0f} MB DB", "wall s", "CPU s")
    report("Steps from a warm store", table(header, rows) + failures(found))


def _store_of(command: Command) -> Path:
    return Path(command.arguments[command.arguments.index("--store") + 1])


def main() -> int:
    """Runs all parts; the sizes are small unless `--full`."""
    chosen = arguments(__doc__)
    for part in (text, two_ranks, db, warm):
        part(chosen.full, chosen.runs)
    shutil.rmtree(STORES, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
