"""The simdjson ceiling: six columns of each trace event and nothing else, on one core.

Needs g++ and simdjson's header (on Debian and Ubuntu: apt-get install g++ libsimdjson-dev); says so
and goes on where they are missing.

    .venv/bin/python -m bench.collector.ceiling_bench [--full] [--runs N]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.collector.ingest_bench import STORES, ingest
from bench.inputs.captures import Built, Wanted, built
from bench.measure import BUILD, Command, arguments, failures, interleaved, report, table

TITLE = "The simdjson ceiling"


def compiled() -> Path | str:
    """The program, made where it is missing or old; or why it cannot be made."""
    source, program = Path(__file__).with_name("json_ceiling.cpp"), BUILD / "json_ceiling"
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return "no C++ compiler found"
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O3", "-march=native", "-std=c++17", str(source), "-lsimdjson"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    return program if done.returncode == 0 else f"it does not compile: {done.stderr.strip()[:300]}"


def events_of(program: Path, capture: Built) -> int:
    """How many events the program finds, so that it is timed for the whole work."""
    done = subprocess.run([program, *capture.files()], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def main() -> int:
    """Compares the ceiling with our ingest of the same trace."""
    chosen = arguments(__doc__)
    program = compiled()
    if isinstance(program, str):
        print(f"{TITLE}: not measured, {program}")
        return 0
    capture = built(Wanted("text", 1000 if chosen.full else 100, 1, stacks=True))
    if events_of(program, capture) != capture.events:
        print(f"{TITLE}: WRONG, it finds other events than the capture has")
        return 1
    commands = {
        "simdjson, six columns": Command([str(program), *map(str, capture.files())]),
        "npuscope ingest, all tables": ingest(capture, 1),
    }
    found = interleaved(commands, chosen.runs)
    size_mb = capture.size_bytes / 1e6
    ceiling = found["simdjson, six columns"].cpu_s
    rows = [
        (name, f"{one.cpu_s:.2f}", f"{size_mb / one.cpu_s:.0f}",
         f"{one.cpu_s / ceiling:.1f}")
        for name, one in found.items()
    ]  # fmt: skip
    header = (f"{size_mb:.0f} MB trace", "CPU s", "MB/CPU-s", "times the ceiling")
    shutil.rmtree(STORES, ignore_errors=True)
    report(TITLE, table(header, rows) + failures(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
