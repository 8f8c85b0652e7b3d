"""Counters of a kernel's cores, as the profiler's pipe-utilization set records them."""

from __future__ import annotations

from ..kernels import AI_CORES, Work

# Names of a time and of its ratio, and the share of the core's time.
_CUBE_PIPES = tuple(
    (f"aic_{pipe}_time", f"aic_{pipe}_ratio", share)
    for pipe, share in (
        ("mac", 0.78), ("scalar", 0.31), ("mte1", 0.52), ("mte2", 0.66), ("fixpipe", 0.12),
    )
)  # fmt: skip
_VECTOR_PIPES = tuple(
    (f"aiv_{pipe}_time", f"aiv_{pipe}_ratio", share)
    for pipe, share in (("vec", 0.22), ("scalar", 0.09), ("mte2", 0.71), ("mte3", 0.48))
)
_ZEROS = ("mac", "mte1")  # of the vector cores: in the database only, always 0
_OVERHEAD_NS = 2_800


def pmu(
    work: Work, dur_ns: int, frequency_mhz: int, *, pipes: bool = True
) -> dict[str, float] | None:
    """Metrics by the names of the database, times in ns; None for kernels off the AI cores. Without
    `pipes`, those of whole cores alone."""
    if work.core in ("AI_CPU", "DSA_SQE"):
        return None
    busy_ns = max(dur_ns - _OVERHEAD_NS, dur_ns // 2)
    on_cube, on_vector = work.is_cube, work.core != "AI_CORE"
    cube_ns = busy_ns if on_cube else 0
    vector_ns = busy_ns if on_vector else 0
    vector_blocks = work.mix_block_count or work.block_count
    values: dict[str, float] = {
        "aic_total_time": cube_ns,
        "aic_total_cycles": _cycles(cube_ns, frequency_mhz, work.block_count),
    }
    for time, ratio, share in _CUBE_PIPES if pipes else ():
        time_ns = values[time] = int(cube_ns * share)
        values[ratio] = round(time_ns / cube_ns, 3) if cube_ns else 0.0
    values["aic_icache_miss_rate"] = 0.002 if on_cube else 0.0
    values["aiv_total_time"] = vector_ns
    values["aiv_total_cycles"] = _cycles(vector_ns, frequency_mhz, vector_blocks)
    for time, ratio, share in _VECTOR_PIPES if pipes else ():
        time_ns = values[time] = int(vector_ns * share)
        values[ratio] = round(time_ns / vector_ns, 3) if vector_ns else 0.0
    values["aiv_icache_miss_rate"] = 0.013 if on_vector else 0.0
    return values


def database_only() -> dict[str, float]:
    """Metrics that the CSV leaves out."""
    return {f"aiv_{pipe}_{what}": 0.0 for pipe in _ZEROS for what in ("time", "ratio")}


def cube_utilization(metrics: dict[str, float], dur_ns: int, frequency_mhz: int) -> float:
    """Cube cycles over those all cores had while the kernel ran, 0..100, three digits."""
    return round(metrics["aic_total_cycles"] / (frequency_mhz * AI_CORES * dur_ns / 1e5), 3)


def _cycles(time_ns: int, frequency_mhz: int, blocks: int) -> int:
    return time_ns * frequency_mhz * blocks // 1000
