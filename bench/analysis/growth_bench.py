"""The summaries of one rank as it grows: their time against n log n, their memory, reading them.

Limits: 10 M kernels and 1 M operations under 3 s and 2 GiB for the steps; growth no worse than
n log n; reading in milliseconds. Draws bench/analysis/growth.svg.

    .venv/bin/python -m bench.analysis.growth_bench [--full] [--runs N]
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from math import log, nan
from pathlib import Path

from bench.inputs.stores import STEPS, publish, rank_manifest
from bench.measure import Command, Usage, arguments, failures, interleave, report, table, verdict
from bench.plot import Curve, draw
from npuscope.analysis.summaries import Summary, summaries
from npuscope.collector.store import store
from npuscope.collector.store.segments import rebuild_summaries

_MEMORY_BYTES = 1 << 30
_READS = 7


def build(path: Path, names: list[str]) -> None:
    """Builds summaries of the store's one rank in this process; prints its wall and CPU seconds."""
    wanted = [summary for summary in summaries() if not names or summary.name in names]
    began, cpu_began = time.perf_counter(), time.process_time()
    rebuild_summaries(path, rank_manifest(path), lambda con: wanted, _MEMORY_BYTES)
    print(f"{time.perf_counter() - began:.4f} {time.process_time() - cpu_began:.4f}")


def forget(path: Path) -> None:
    """Lets the rank have no summaries, as before they were built."""
    known = rank_manifest(path)
    for segment in known.summaries.values():
        if segment.file:
            next(path.glob(f"run=*/capture=*/rank=0/{segment.file}")).unlink()
    without = type(known)(**{name: getattr(known, name) for name in known.__struct_fields__}
                          | {"summaries": {}})  # fmt: skip
    store.replace_manifest(path, without)


def steps_summary() -> Summary:
    """The summary that holds the breakdown of the steps."""
    return next(summary for summary in summaries() if summary.name == "step_summary")


def read_ms(path: Path) -> float:
    """Median time of reading the breakdown of the steps from an open store."""
    name = steps_summary().name
    con = store.open(path)
    times = []
    for _ in range(_READS):
        began = time.perf_counter()
        rows = con.execute(f'select * from "{name}"').fetchall()
        times.append(time.perf_counter() - began)
        assert len(rows) == STEPS, f"{len(rows)} steps instead of {STEPS}"
    con.close()
    return statistics.median(times) * 1e3


def measure(path: Path, names: list[str], runs: int) -> Usage:
    """Building in a process of its own, whose start does not count: times are what it says."""
    command = [sys.executable, "-m", "bench.analysis.growth_bench", "build", str(path), *names]
    found = interleave({"": Command(command, lambda: forget(path))}, runs)[""]
    if found.failed:
        return found
    wall_s, cpu_s = map(float, found.said.split()[-2:])
    return replace(found, wall_s=wall_s, cpu_s=cpu_s)


def main() -> int:
    """Measures every size, prints the table, draws the curve."""
    if sys.argv[1:2] == ["build"]:
        build(Path(sys.argv[2]), sys.argv[3:])
        return 0
    chosen = arguments(__doc__)
    sizes = [100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]
    sizes = sizes if chosen.full else sizes[:3]
    steps, rows, points = steps_summary().name, [], []
    all_found: dict[str, Usage] = {}
    slowest = Usage(nan, nan, nan)
    for kernels in sizes:
        path = publish(1, kernels, kernels // 10)
        alone = measure(path, [steps], chosen.runs)
        whole = measure(path, [], chosen.runs)
        if alone.failed or whole.failed:
            all_found |= {f"{kernels} steps": alone, f"{kernels} all": whole}
            continue
        points.append((kernels / 1e6, alone.cpu_s))
        slowest = alone
        rows.append((
            f"{kernels / 1e6:g}", f"{alone.wall_s:.2f}", f"{alone.cpu_s:.2f}",
            f"{alone.peak_mib:.0f}", f"{whole.wall_s:.2f}", f"{whole.cpu_s:.2f}",
            f"{whole.peak_mib:.0f}", f"{read_ms(path):.1f}",
        ))  # fmt: skip
    header = (
        "M kernels", "steps, wall s", "CPU s", "peak MiB", "all summaries, wall s", "CPU s",
        "peak MiB", "read steps, ms",
    )  # fmt: skip
    said = [table(header, rows)]
    if len(points) > 1:
        (small, small_s), (large, large_s) = points[0], points[-1]
        fair = small_s * large * log(large * 1e6) / (small * log(small * 1e6))
        said.append(f"CPU seconds over n log n from the smallest: {large_s / fair:.2f}"
                    f" ({verdict(large_s / fair, 1, at_least=False)})")  # fmt: skip
        curve = [Curve("measured", points), Curve("n log n", _n_log_n(points), dashed=True)]
        if chosen.full:
            svg = draw("Step summary of one rank", "million kernels", "CPU seconds", curve)
            Path(__file__).with_name("growth.svg").write_text(svg, encoding="utf-8")
            said.append(
                f"steps of 10 M kernels: {verdict(slowest.wall_s, 3, at_least=False)} s,"
                f" {verdict(slowest.peak_mib, 2048, at_least=False)} MiB"
            )
            said.append("![growth](analysis/growth.svg)")
    report("Growth of the summaries", "\n\n".join(said) + failures(all_found))
    return 1 if all_found else 0


def _n_log_n(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The law through the smallest size."""
    first, first_s = points[0]
    unit = first_s / (first * log(first * 1e6))
    return [(n, unit * n * log(n * 1e6)) for n, _ in points]


if __name__ == "__main__":
    sys.exit(main())
