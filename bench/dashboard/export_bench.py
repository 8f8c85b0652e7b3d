"""A rank of many kernels as a trace for timeline viewers: text per CPU-second, memory.

The store keeps no figures of steps, so these are computed, too.

    .venv/bin/python -m bench.dashboard.export_bench [--full] [--runs N]
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor

from bench.inputs.stores import publish
from bench.measure import BUILD, NPUSCOPE, Command, arguments, interleave, report, table, verdict

LEAST_MB_PER_CPU_S = 80
PEAK_MIB = 400


def main() -> int:
    """Writes a trace with and without the tracks that are computed for it."""
    chosen = arguments(__doc__)
    kernels = 10_000_000 if chosen.full else 1_000_000
    with ProcessPoolExecutor(1) as pool:  # what it takes is not counted below
        path = pool.submit(publish, 1, kernels, kernels // 10).result()
    out = BUILD / "trace.json"
    command = [NPUSCOPE, "export", "perfetto", str(path), "-o", str(out)]
    only = {"all tracks": [], "kernels alone": ["--tracks", "kernels"]}
    sizes: dict[str, float] = {}
    rows = []
    for name, options in only.items():
        taken = interleave({name: Command([*command, *options])}, chosen.runs)[name]
        if taken.failed:
            print(f"{name}: {taken.failed}")
            return 1
        sizes[name] = out.stat().st_size / 1e6
        with out.open("rb") as trace:
            lines = sum(block.count(b"\n") for block in iter(lambda: trace.read(1 << 20), b""))
        out.unlink()
        if lines < kernels:
            print(f"{name}: WRONG, {lines} lines for {kernels} kernels")
            return 1
        speed = sizes[name] / taken.cpu_s
        rows.append((
            name, f"{lines:,}", f"{sizes[name]:,.0f}", f"{taken.cpu_s:.1f}", f"{speed:.0f}",
            verdict(speed, LEAST_MB_PER_CPU_S, at_least=True), f"{taken.peak_mib:.0f}",
            verdict(taken.peak_mib, PEAK_MIB, at_least=False),
        ))  # fmt: skip
    header = (
        f"{kernels:,} kernels", "events", "MB", "CPU s", "MB per CPU s", "limit", "peak MiB",
        "limit",
    )  # fmt: skip
    report("A trace for timeline viewers", table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
