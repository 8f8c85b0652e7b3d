"""Ours against msprof-analyze and HolisticTraceAnalysis (HTA), interleaved, on captures made alike.

The peers come from PyPI into a venv of their own below build/. Ratios are of a whole command's CPU
seconds; marginal rates beside them are what the larger trace costs more than the smaller one, so
that nobody's start-up counts. Traces are of one rank.

    .venv/bin/python -m bench.collector.peers_bench [--full] [--runs N]

msprof-analyze's advisor reads one rank's trace; its `cluster -m all` would open none. HTA reads
what a GPU's profiler would have written of the same job: as large, without counters and stacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from functools import partial
from math import nan
from pathlib import Path

from bench.collector.ingest_bench import STORES, ingest
from bench.inputs.captures import CaptureFiles, CaptureSpec, build
from bench.inputs.kineto import write_kineto
from bench.measure import (
    BUILD,
    NPUSCOPE,
    Command,
    Usage,
    arguments,
    failures,
    interleave,
    report,
    run,
    table,
    verdict,
)

PEERS = BUILD / "peers"
# HTA 0.5 writes into columns in a way that pandas 3 refuses.
PACKAGES = ("msprof-analyze", "HolisticTraceAnalysis", "pandas<3")
_WORK = BUILD / "peers_work"
_LOAD = (
    "import sys; from hta.trace_analysis import TraceAnalysis;"
    " TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='/')"
)
_RECIPES = ("compute_op_sum", "hccl_sum")
_SAMPLE = Path(__file__).parents[2] / "sample_traces" / "moe_8_ranks"
RANKS = 8
ADVISOR, HTA, COLD, REPORT = 18, 12, 2, 1.3


def install() -> str:
    """Makes the peers' venv where it is missing; why it cannot be made, or ''."""
    if (PEERS / "bin" / "msprof-analyze").exists():
        return ""
    venv.create(PEERS, with_pip=True, clear=True)
    command = [str(PEERS / "bin" / "pip"), "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(PEERS)
    return done.stderr.strip()[-300:] if done.returncode else ""


def versions() -> str:
    """The peers as they were measured."""
    names = [*PACKAGES[:2], "pandas"]
    command = [str(PEERS / "bin" / "pip"), "list", "--format", "freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found = dict(line.split("==", 1) for line in listed if "==" in line)
    return ", ".join(f"{name} {found.get(name, '?')}" for name in names)


def advisor(capture: CaptureFiles) -> Command:
    """`msprof-analyze advisor all` on a copy, as it writes beside its input."""
    copy = _WORK / capture.folder.name
    command = ["advisor", "all", "-d", str(copy), "-l", "en", "-o", str(_WORK / "advice")]
    return _msprof(command, partial(_link, capture.folder, copy))


def _link(source: Path, copy: Path) -> None:
    shutil.rmtree(_WORK / "advice", ignore_errors=True)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=os.link)


def recipe(name: str, capture: CaptureFiles) -> Command:
    """One recipe of `msprof-analyze cluster` on databases."""
    out = _WORK / f"{name}_{capture.folder.name}"
    command = ["cluster", "-m", name, "-d", str(capture.folder), "-o", str(out)]
    clean = partial(shutil.rmtree, out, ignore_errors=True)
    return _msprof([*command, "--export_type", "db"], clean)


def _msprof(command: list[str], prepare: partial[None]) -> Command:
    return Command([str(PEERS / "bin" / "msprof-analyze"), *command], prepare)


def traces(full: bool, runs: int) -> None:
    """Reading a trace: the advisor, HTA's load, our ingest with everything it publishes."""
    sizes_mb = (20, 232) if full else (10, 50)
    captures = [build(CaptureSpec("text", mb, 1, stacks=True)) for mb in sizes_mb]
    kineto = [_WORK / f"rank0_{mb}.pt.trace.json" for mb in sizes_mb]
    for path, mb in zip(kineto, sizes_mb, strict=True):
        write_kineto(path, mb * 10**6)
    python = str(PEERS / "bin" / "python")
    commands: dict[str, Command] = {}
    for at, capture in enumerate(captures):
        commands[f"npuscope ingest {at}"] = ingest(capture, 1)
        commands[f"msprof-analyze advisor {at}"] = advisor(capture)
        commands[f"HTA load {at}"] = Command([python, "-c", _LOAD, str(kineto[at])])
    found = interleave(commands, runs)
    ours_mb = [capture.size_bytes / 1e6 for capture in captures]
    theirs_mb = [path.stat().st_size / 1e6 for path in kineto]
    ours = _marginal(found, "npuscope ingest", ours_mb)
    rows = []
    for name, sizes, target in (
        ("npuscope ingest", ours_mb, 0),
        ("msprof-analyze advisor", ours_mb, ADVISOR),
        ("HTA load", theirs_mb, HTA),
    ):
        rate, large = _marginal(found, name, sizes), found[f"{name} 1"]
        ratio = large.cpu_s / found["npuscope ingest 1"].cpu_s
        rows.append((
            name, f"{sizes[1]:.0f}", f"{large.cpu_s:.1f}", f"{rate:.1f}", f"{large.peak_mib:.0f}",
            f"{large.peak_mib * 1.048576 / sizes[1]:.1f}",
            f"{ours / rate:.1f}", f"{ratio:.1f}",
            verdict(ratio, target, at_least=True) if target else "",
        ))  # fmt: skip
    header = (
        "reads a trace", "MB", "CPU s", "MB/CPU-s, marginal", "peak MiB", "memory / file",
        "ours is times", "CPU s, times ours", "limit",
    )  # fmt: skip
    report("Peers: traces", f"{versions()}\n\n{table(header, rows)}{failures(found)}")


def _marginal(found: Mapping[str, Usage], name: str, sizes_mb: list[float]) -> float:
    """MB per CPU-second beyond the smaller trace."""
    more_s = found[f"{name} 1"].cpu_s - found[f"{name} 0"].cpu_s
    return (sizes_mb[1] - sizes_mb[0]) / more_s if more_s else nan


def databases(full: bool, runs: int) -> None:
    """8 ranks of databases: everything ingested and the steps printed, against one recipe; and what
    a report on the sample takes, beside the peer's help."""
    capture = build(CaptureSpec("db", 21 if full else 5, RANKS))
    tiny = build(CaptureSpec("db", 1, 2))
    cold = ingest(capture, os.cpu_count() or 1)
    sample = STORES / "sample"
    store = cold.arguments[cold.arguments.index("--store") + 1]
    commands = {
        "npuscope ingest, cold": cold,
        "npuscope steps, warm": Command([NPUSCOPE, "steps", store, "--json"]),
        **{f"recipe {name}": recipe(name, capture) for name in _RECIPES},
        "a recipe on nothing much": recipe(_RECIPES[0], tiny),
        "npuscope report on the sample, warm": Command([NPUSCOPE, "report", str(sample)]),
        "msprof-analyze --help": Command([str(PEERS / "bin" / "msprof-analyze"), "--help"]),
    }
    for words in (["ingest", str(_SAMPLE), "--store", str(sample)], ["report", str(sample)]):
        run(Command([NPUSCOPE, *words]))
    found = interleave(commands, runs)
    rows = [
        (name, f"{t.wall_s:.2f}", f"{t.cpu_s:.2f}", f"{t.peak_mib:.0f}")
        for name, t in found.items()
    ]
    cold_s = found["npuscope ingest, cold"].wall_s + found["npuscope steps, warm"].wall_s
    recipe_s = max(found[f"recipe {name}"].wall_s for name in _RECIPES)
    start_s = found["a recipe on nothing much"].wall_s
    warm_s = found["npuscope steps, warm"].wall_s
    shown, help_s = (
        found[name].cpu_s
        for name in ("npuscope report on the sample, warm", "msprof-analyze --help")
    )
    said = [
        f"cold ingest and steps / the slower recipe: {cold_s / recipe_s:.2f}"
        f" ({verdict(cold_s / recipe_s, COLD, at_least=False)})",
        f"warm steps / a recipe's start: {warm_s / start_s:.2f}"
        f" ({verdict(warm_s / start_s, 1, at_least=False)})",
        f"report / msprof-analyze --help, CPU: {shown / help_s:.2f}"
        f" ({verdict(shown / help_s, REPORT, at_least=False)})",
    ]
    each_mb = capture.size_bytes / RANKS / 1e6
    header = (f"{RANKS} ranks x {each_mb:.0f} MB", "wall s", "CPU s", "peak MiB")
    text = "\n\n".join([versions(), table(header, rows), *said])
    report("Peers: databases", text + failures(found))


def main() -> int:
    """Runs both parts; where the peers cannot be had it says so and is content."""
    chosen = arguments(__doc__)
    if why := install():
        print(f"peers: not measured, they could not be installed: {why}")
        return 0
    _WORK.mkdir(parents=True, exist_ok=True)
    traces(chosen.full, chosen.runs)
    databases(chosen.full, chosen.runs)
    for folder in (_WORK, STORES):
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
