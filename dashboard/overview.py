"""What the overview shows of the chosen steps, as frames: computed once, then drawn.

mfu of each rank and step --> of the whole job, and the loss waterfall
step_summary              --> masking over all of them
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.analysis.findings import Finding, findings
from npuscope.analysis.flops.counted import kernel_work
from npuscope.analysis.flops.gathered import gathered
from npuscope.analysis.flops.losses import losses, together
from npuscope.analysis.flops.mfu import mfu

# Where a finding is looked into; the rest is seen best in the timeline.
_PAGES = {
    "exposed_communication": "communication",
    "stragglers": "ranks",
    "uneven_steps": "ranks",
    "data_movement": "operators",
    "data_setting": "operators",
    "expert_imbalance": "experts",
    "ai_cpu_kernels": "operators",
    "memory_fragmentation": "memory",
    "memory_growth": "memory",
}


@dataclass(frozen=True, slots=True)
class JobUse:
    """How much of the peak the chosen steps use.

    `job`: rows of `gathered` by job, a row per step. `waterfall`: rows of `losses.together`.
    `conventions`, `peaks`: how it is counted and where the peak is from, each once. `notes`: what
    is unknown and why.
    """

    job: pl.DataFrame
    waterfall: pl.DataFrame
    conventions: tuple[str, ...]
    peaks: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def kernel_mfu_ratio(self) -> float | None:
        """Kernel MFU of all steps, attention counted as causal: each weighs as long as it lasts."""
        known = self.job.drop_nulls(["kernel_mfu_causal_ratio", "step_ns"])
        weighed = (known["kernel_mfu_causal_ratio"] * known["step_ns"]).sum()
        length_ns = int(known["step_ns"].sum())
        return float(weighed) / length_ns if length_ns else None


def job_use(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> JobUse:
    """MFU and losses of the chosen steps."""
    found = mfu(con, run=run, capture=capture, rank=rank, step=step)
    lost = losses(
        con, found.rows, kernel_work(found.counted), run=run, capture=capture, rank=rank, step=step
    )
    counted = found.rows.filter(pl.col("kernel_mfu_causal_ratio").is_not_null())
    return JobUse(
        gathered(con, found.rows, "job"),
        together(con, lost),
        tuple(counted["conventions"].drop_nulls().unique(maintain_order=True)),
        tuple(counted["peak_source"].drop_nulls().unique(maintain_order=True)),
        tuple(found.notes),
    )


def masking_ratio(steps: pl.DataFrame) -> float | None:
    """Overlapped over all communication of these rows of `steps`; None where there is none."""
    known = steps.drop_nulls(["communication_ns", "overlapped_ns"])
    communication_ns = int(known["communication_ns"].sum())
    return int(known["overlapped_ns"].sum()) / communication_ns if communication_ns else None


def found_here(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> list[Finding]:
    """Findings, the most time at stake first."""
    return findings(con, run=run, capture=capture, rank=rank, step=step)


def page_of(finding: Finding) -> str:
    """The page that shows most of a finding."""
    return _PAGES.get(finding.name, "timeline")


def place_of(finding: Finding) -> dict[str, int]:
    """Rank and step of a finding's first evidence, as far as it names them."""
    first = finding.evidence.row(0, named=True)
    named = {name: first.get(name) for name in ("rank", "step")}
    return {name: int(value) for name, value in named.items() if value is not None}
