"""What measures of a step are called, and their values in the units people read."""

from __future__ import annotations

from npuscope.analysis.compare.side import PER_TOKEN
from npuscope.analysis.wording import UNKNOWN, mebibytes, ms, percent

MEASURES = {
    "step_ns": "step of the job",
    "computing_ns": "computing",
    "exposed_communication_ns": "exposed communication",
    "free_ns": "free",
    "masking_ratio": "masking",
    "kernel_mfu_causal_ratio": "kernel MFU",
    "peak_memory_bytes": "peak memory (MiB)",
    "expert_max_over_mean": "fullest expert over mean",
    PER_TOKEN: "time of a rank per token (ns)",
}


def figure(measure: str, value: float | None) -> str:
    """A measure's value or difference in its unit: ms, per cent, MiB, or none."""
    if value is None:
        return UNKNOWN
    ending = measure.rpartition("_")[2]
    form = {"ns": ms, "ratio": percent, "bytes": mebibytes}.get(ending, "{:.3f}".format)
    return form(value)
