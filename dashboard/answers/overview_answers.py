"""What the overview shows of the chosen steps, as frames: computed once, then drawn.

mfu of each rank and step --> of the whole job, and the loss waterfall
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from npuscope.analysis.findings.finding import Finding
from npuscope.analysis.findings.findings import findings
from npuscope.analysis.flops.job_mfu import mean_use
from npuscope.analysis.flops.kernels.count import counted_kernels, kernel_work
from npuscope.analysis.flops.losses import losses, together
from npuscope.analysis.flops.mfu import mfu, why_unknown
from npuscope.analysis.means import mean_steps
from npuscope.analysis.scope import ALL, Scope
from npuscope.analysis.views import frame
from npuscope.analysis.wording import ms
from npuscope.messages import Message, join

# Of work that lasts longer than the step, which would contradict it otherwise.
_BEYOND = Message(
    "Some of it is outside the step: work of neighbouring steps overlaps, and ranks begin at"
    " different times."
)
_BEYOND_ALONE = Message("Some of it is outside the step, as ranks begin at different times.")
# Where a finding is looked into; the rest is seen best in the timeline.
_PAGES = {
    "exposed_communication": "communication",
    "uncaptured_ranks": "communication",
    "slow_links": "communication",
    "stragglers": "ranks",
    "late_ranks": "ranks",
    "slow_hosts": "ranks",
    "uneven_steps": "ranks",
    "uneven_stages": "pipeline",
    "pipeline_bubble": "pipeline",
    "device_idle": "host",
    "between_steps": "host",
    "host_calls": "host",
    "synchronisation": "host",
    "far_cores": "host",
    "slow_kernels": "operators",
    "slow_operators": "operators",
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

    `kernel_mfu_ratio`: of the kernels, attention counted as causal (`mean_use`). `waterfall`: rows
    of `losses.together`. `conventions`, `peaks`: how it is counted and where the peak is from, each
    once. `notes`: what is unknown and why; `why_unknown`: of which that keeps the ratio from being
    known, empty where it is.
    """

    kernel_mfu_ratio: float | None
    waterfall: pl.DataFrame
    conventions: tuple[str, ...]
    peaks: tuple[str, ...]
    notes: tuple[str, ...]
    why_unknown: str


def job_use(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> JobUse:
    """MFU and losses of the chosen steps."""
    kernels = counted_kernels(con, scope)
    figures = mfu(con, scope, known=kernels)
    lost = losses(con, figures.rows, kernel_work(kernels), scope)
    counted = figures.rows.filter(pl.col("kernel_mfu_causal_ratio").is_not_null())
    used = mean_use(con, figures.rows, ["run", "capture"])
    kernel = used.filter(pl.col("figure") == "kernel_mfu_causal_ratio")["value"]
    return JobUse(
        kernel[0] if len(kernel) else None,
        together(con, lost),
        tuple(
            dict.fromkeys(
                part
                for text in counted["conventions"].unique(maintain_order=True)
                for part in figures.conventions[text]
            )
        ),
        tuple(
            figures.sources[source]
            for source in counted["peak_source"].drop_nulls().unique(maintain_order=True)
        ),
        tuple(figures.notes),
        "" if len(kernel) else why_unknown(figures),
    )


def stage_of_ranks(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """The stage of each rank, and what a mean rank of that stage computes: rank, pp_rank,
    computing_ns."""
    clause, values = scope.job.where()
    ranks = frame(con, f"select rank, pp_rank from ranks {clause} order by all", values)
    of_stage = mean_steps(con, scope, by="stage").select(
        pp_rank="stage", computing_ns="computing_ns"
    )
    return ranks.join(of_stage, on="pp_rank", how="inner")


def step_words(
    row: Mapping[str, Any], rank: int | None, *, is_alone: bool = False
) -> tuple[Message | None, str]:
    """A step's length, where it is known, and the parts that it is made of: a row of `mean_steps`,
    which is of `rank` alone where one is chosen; `is_alone`: its capture has no other step."""
    template = (
        "The work of a mean rank spans {length} ms: {computing} ms computing, {exposed} ms"
        " exposed communication, {free} ms free."
    )
    whose = "{step} ms a step of the job"
    if rank is not None:
        template = (
            "The work of rank {rank} spans {length} ms: {computing} ms computing, {exposed} ms"
            " exposed communication, {free} ms free."
        )
        whose = "{step} ms a step of rank {rank}"
    parts: str = Message(
        template, rank=rank, length=ms(row["length_ns"]), computing=ms(row["computing_ns"]),
        exposed=ms(row["exposed_communication_ns"]), free=ms(row["free_ns"]),
    )  # fmt: skip
    step_ns = row["job_step_ns" if rank is None else "step_ns"]
    if step_ns is None:  # the producer's own table has parts of a rank, and no start and end
        return None, parts
    if row["length_ns"] > step_ns and ms(row["length_ns"]) != ms(step_ns):
        parts = join((parts, _BEYOND_ALONE if is_alone else _BEYOND), " ")
    return Message(whose, step=ms(step_ns), rank=rank), parts


def uneven(stages: pl.DataFrame) -> list[Message]:
    """Which stage computes longest and which shortest: of rows of `mean_steps` by stage; nothing
    of one stage."""
    rows = stages.drop_nulls(["stage", "computing_ns"]).sort("computing_ns", descending=True)
    if rows.height < 2:
        return []
    (most, most_ns), (least, least_ns) = (
        rows.select("stage", "computing_ns").row(at) for at in (0, -1)
    )
    return [
        Message(
            "Stage {most} computes {most_ms} ms, stage {least} {least_ms} ms.",
            most=most, most_ms=ms(most_ns), least=least, least_ms=ms(least_ns),
        )
    ]  # fmt: skip


def found_here(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[Finding]:
    """Findings, the most predicted gain first."""
    return findings(con, scope)


def page_of(finding: Finding) -> str:
    """The page that shows most of a finding."""
    return _PAGES.get(finding.name, "timeline")


def place_of(finding: Finding) -> dict[str, int]:
    """Rank and step of a finding's first evidence, as far as it names them."""
    first = finding.evidence.row(0, named=True)
    named = {name: first.get(name) for name in ("rank", "step")}
    return {name: int(value) for name, value in named.items() if value is not None}
