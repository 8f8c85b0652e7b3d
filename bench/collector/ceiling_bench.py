"""Ingest of a timeline against what any reader of it has to do at least, on one core: a scan by
simdjson, six columns of each event and nothing else, and a plain decoding by msgspec.

The latter without Python's garbage collector, which would take four times the decoder's own time.
Our ingest is measured with the compiled pass of `npuscope[fast]`, and without it. The scan needs
g++ and simdjson's header (on Debian and Ubuntu: apt-get install g++ libsimdjson-dev); says so and
goes on where they are missing.

    .venv/bin/python -m bench.collector.ceiling_bench [--full] [--runs N]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench.collector.ingest_bench import STORES, ingest
from bench.inputs.captures import CaptureFiles, CaptureSpec, build
from bench.measure import BUILD, Command, arguments, failures, interleave, report, table, verdict
from npuscope.collector.readers.chrome_trace.scan_library import scan_function

TITLE = "The simdjson ceiling"
_DECODE = (
    "import gc, sys, msgspec; from pathlib import Path; gc.disable();"
    " msgspec.json.decode(Path(sys.argv[1]).read_bytes())"
)


def compile_it() -> Path | str:
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


def events_of(program: Path, capture: CaptureFiles) -> int:
    """How many events the program finds, so that it is timed for the whole work."""
    done = subprocess.run([program, *capture.files()], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def main() -> int:
    """Compares the ceiling with our ingest of the same trace."""
    chosen = arguments(__doc__)
    program = compile_it()
    if isinstance(program, str):
        print(f"{TITLE}: not measured, {program}")
        return 0
    with_pass = scan_function() is not None  # compiled now, where nobody did so before
    sizes_mb = (1000, 232) if chosen.full else (100, 50)
    capture, plain = (
        build(CaptureSpec("text", sizes_mb[0], 1, stacks=True)),
        build(CaptureSpec("text", sizes_mb[1], 1)),
    )
    if events_of(program, capture) != capture.events:
        print(f"{TITLE}: WRONG, it finds other events than the capture has")
        return 1
    scanned = Command([str(program), *map(str, capture.files())])
    decoded = Command([sys.executable, "-c", _DECODE, *map(str, plain.files())])
    found = interleave(
        {
            "simdjson, six columns": scanned, **_ingests("large", capture),
            "msgspec.json.decode": decoded, **_ingests("plain", plain),
        },
        chosen.runs,
    )  # fmt: skip
    shutil.rmtree(STORES, ignore_errors=True)
    rows, said = [], []
    for floor, name, one, limits in (
        ("simdjson, six columns", "large", capture, (12, 16)),
        ("msgspec.json.decode", "plain", plain, (3.5, 4.5)),
    ):
        size_mb, least_s = one.size_bytes / 1e6, found[floor].cpu_s
        for label in (floor, f"{name}, with the pass", f"{name}, without"):
            taken = found[label]
            shown = label if label == floor else f"npuscope ingest{label.removeprefix(name)}"
            rows.append((
                f"{size_mb:.0f}", shown, f"{taken.cpu_s:.2f}", f"{size_mb / taken.cpu_s:.0f}",
                f"{taken.peak_mib:.0f}", f"{taken.cpu_s / least_s:.1f}",
            ))  # fmt: skip
        for label, limit in zip(("with the pass", "without"), limits, strict=True):
            ratio = found[f"{name}, {label}"].cpu_s / least_s
            said.append(
                f"{size_mb:.0f} MB, {label} / {floor}: {ratio:.1f}"
                f" ({verdict(ratio, limit, at_least=False)})"
            )
    if not with_pass:
        said.append("the pass could not be had: all was measured without it")
    header = ("MB", "what", "CPU s", "MB/CPU-s", "peak MiB", "times the least")
    load = f"load of the machine: {os.getloadavg()[0]:.1f}"
    text = "\n\n".join([table(header, rows), *said, load])
    report(TITLE, text + failures(found))
    return 0


def _ingests(name: str, capture: CaptureFiles) -> dict[str, Command]:
    """Ingest with the compiled pass, and where no folder can keep it."""
    command = ingest(capture, 1)
    nowhere = {"XDG_CACHE_HOME": "/dev/null"}
    return {
        f"{name}, with the pass": command,
        f"{name}, without": replace(command, environment=nowhere),
    }


if __name__ == "__main__":
    sys.exit(main())
