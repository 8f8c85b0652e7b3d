"""Counters of a kernel's cores, as the profiler's pipe-utilization set records them."""

from __future__ import annotations

from .kernels import AI_CORES, Work

_CUBE_SHARES = {"mac": 0.78, "scalar": 0.31, "mte1": 0.52, "mte2": 0.66, "fixpipe": 0.12}
_VECTOR_SHARES = {"vec": 0.22, "scalar": 0.09, "mte2": 0.71, "mte3": 0.48}
_HIDDEN = ("mac", "mte1")  # of the vector cores: in the database only, always 0
_OVERHEAD_NS = 2_800


def pmu(work: Work, dur_ns: int, frequency_mhz: int) -> dict[str, float] | None:
    """Metrics by the names of the database, times in ns; None for kernels off the AI cores."""
    if work.core in ("AI_CPU", "DSA_SQE"):
        return None
    busy_ns = max(dur_ns - _OVERHEAD_NS, dur_ns // 2)
    on_cube, on_vector = work.is_cube, work.core != "AI_CORE"
    cube_ns = busy_ns if on_cube else 0
    vector_ns = busy_ns if on_vector else 0
    vector_blocks = work.mix_block_count or work.block_count
    found: dict[str, float] = {
        "aic_total_time": cube_ns,
        "aic_total_cycles": _cycles(cube_ns, frequency_mhz, work.block_count),
    }
    for pipe, share in _CUBE_SHARES.items():
        found |= _pipe(f"aic_{pipe}", cube_ns, share)
    found["aic_icache_miss_rate"] = 0.002 if on_cube else 0.0
    found["aiv_total_time"] = vector_ns
    found["aiv_total_cycles"] = _cycles(vector_ns, frequency_mhz, vector_blocks)
    for pipe, share in _VECTOR_SHARES.items():
        found |= _pipe(f"aiv_{pipe}", vector_ns, share)
    found["aiv_icache_miss_rate"] = 0.013 if on_vector else 0.0
    return found


def hidden() -> dict[str, float]:
    """Metrics that the CSV leaves out."""
    return {f"aiv_{pipe}_{what}": 0.0 for pipe in _HIDDEN for what in ("time", "ratio")}


def cube_utilization(metrics: dict[str, float], dur_ns: int, frequency_mhz: int) -> float:
    """Cube cycles over those all cores had while the kernel ran, 0..100, three digits."""
    return round(metrics["aic_total_cycles"] / (frequency_mhz * AI_CORES * dur_ns / 1e5), 3)


def _cycles(time_ns: int, frequency_mhz: int, blocks: int) -> int:
    return time_ns * frequency_mhz * blocks // 1000


def _pipe(name: str, busy_ns: int, share: float) -> dict[str, float]:
    time_ns = int(busy_ns * share)
    ratio = round(time_ns / busy_ns, 3) if busy_ns else 0.0
    return {f"{name}_time": time_ns, f"{name}_ratio": ratio}
