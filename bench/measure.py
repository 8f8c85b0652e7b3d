"""Runs commands, interleaved, and says what each took: wall, CPU seconds, peak memory.

CPU seconds are user and system time of a command with all processes it started. Peak memory is that
of its largest process: what a limit per process must allow. Medians over the repetitions; other
load moves wall times far more than CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from math import isnan, nan
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "bench"
RESULTS = HERE / "RESULTS.md"
_TIMEOUT_S = 3_600
_SAID = 300  # characters that are kept of what a failing command said
NPUSCOPE = str(Path(sys.executable).parent / "npuscope")


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `prepare` is called before each run and is not measured."""

    arguments: Sequence[str]
    prepare: Callable[[], object] = lambda: None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run took, or the medians of several. `said` is the end of what it printed,
    `failed` the same with its exit code where that is not 0."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    said: str = ""
    failed: str = ""


def run(command: Command) -> Usage:
    """Runs a command once, to its end."""
    command.prepare()
    said_path = BUILD / f"said-{os.getpid()}.log"
    said_path.parent.mkdir(parents=True, exist_ok=True)
    # A command that is installed compiles its modules once, not at every start.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, **(command.environment or {})}
    with said_path.open("wb") as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            command.arguments, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
        )
        status, usage = _wait(process, began + _TIMEOUT_S)
        wall_s = time.perf_counter() - began
    text = said_path.read_bytes().decode("utf-8", "replace")
    said_path.unlink()
    code = os.waitstatus_to_exitcode(status)
    last = " ".join(text.split())[-_SAID:]
    failed = f"exit {code}: {last}" if code else ""
    # Linux counts a tree's largest process, in KiB, and the time of all that were waited for. A
    # process begins as a copy of this one, so what is smaller counts as large as this one.
    return Usage(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, last, failed)


def _wait(process: subprocess.Popen[bytes], until: float) -> tuple[int, resource.struct_rusage]:
    """Waits for a process; kills it when it takes too long."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        if time.perf_counter() > until:
            process.kill()
        time.sleep(0.002)


def interleave(commands: Mapping[str, Command], runs: int = 3) -> dict[str, Usage]:
    """Medians of each command; one run of each after the other, so that a slow spell hits all.

    A command that fails once is not run again.
    """
    taken: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            if not any(one.failed for one in taken[name]):
                taken[name].append(run(command))
    return {name: _medians(found) for name, found in taken.items()}


def _medians(found: list[Usage]) -> Usage:
    """What failed took nothing that could be compared."""
    failed = next((one.failed for one in found if one.failed), "")
    if failed:
        return Usage(nan, nan, nan, failed=failed)
    return Usage(
        median(one.wall_s for one in found),
        median(one.cpu_s for one in found),
        median(one.peak_mib for one in found),
        sorted(found, key=lambda one: one.wall_s)[len(found) // 2].said,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, readable as it is: text to the left, figures to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [
        all(re.match(r"[-\d]|nan$|$", row[i]) for row in cells[1:]) for i in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )  # fmt: skip
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def failures(found: Mapping[str, Usage]) -> str:
    """A line for each command that failed, with its last words."""
    lines = [f"{name} failed, {one.failed}" for name, one in found.items() if one.failed]
    return "\n\n".join(["", *lines]) if lines else ""


def report(title: str, text: str) -> None:
    """Prints a result; one of a full run also goes into RESULTS.md, in place of its last one."""
    print(f"{title}\n\n{text}\n", flush=True)
    if "--full" not in sys.argv:
        return
    module = ".".join(Path(sys.argv[0]).resolve().relative_to(HERE.parent).with_suffix("").parts)
    command = " ".join([".venv/bin/python", "-m", module, *sys.argv[1:]])
    section = f"## {title}\n\n`{command}`, {_today()}, {machine()}\n\n{text.strip()}\n"
    known = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n"
    head, *sections = re.split(r"^(?=## )", known, flags=re.MULTILINE)
    named = {part.splitlines()[0]: part.rstrip() + "\n" for part in sections}
    named[f"## {title}"] = section
    ordered = [named[name] for name in sorted(named)]
    RESULTS.write_text("\n".join([head.rstrip() + "\n", *ordered]), encoding="utf-8")


def _today() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%d}"


def machine() -> str:
    """What the figures were measured on, in general terms."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    python = ".".join(map(str, sys.version_info[:2]))
    return (
        f"{len(os.sched_getaffinity(0))} cores, {round(pages / 2**30)} GiB,"
        f" Python {python}, DuckDB {version('duckdb')}"
    )


def commit() -> str:
    """Short name of the commit that is measured."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def arguments(description: str | None, *, seed: int | None = None) -> argparse.Namespace:
    """`full` and `runs` of a benchmark's command line, and `seed` where it has a usual one."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the sizes of the targets: long")
    parser.add_argument("--runs", type=int, default=0, help="repetitions; the median is shown")
    if seed is not None:
        parser.add_argument("--seed", type=int, default=seed, help="of the generated jobs")
    chosen = parser.parse_args()
    chosen.runs = chosen.runs or (3 if chosen.full else 1)
    return chosen


def verdict(value: float, target: float, *, at_least: bool) -> str:
    """The target beside whether it is met."""
    if isnan(value):
        return "not measured"
    met = value >= target if at_least else value <= target
    return f"{'≥' if at_least else '≤'} {target:g}: {'met' if met else 'NOT met'}"
