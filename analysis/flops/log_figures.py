"""What a trainer printed of its efficiency beside ours: which way of counting gives its figures.

    FLOPs per token (a convention) x tokens per step / (logged seconds x devices) = TFLOP/s
    TFLOP/s / peak = MFU

Both sides use the time the trainer logged, so that they differ by counting and by the peak alone. A
convention reconciles if it gives what was printed within 1 % in every step where it was printed.

A trainer's log beside the figures of a profile: where it comes from, and how it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from npuscope.collector.discover.train_logs import logged_facts
from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.readers.train_log.train_log import SCHEMA, TrainLog, read_log
from npuscope.collector.store.store import readings
from npuscope.messages import Message, join

from ..scope import JOB, Scope
from ..views import frame
from .kernels.count import counted_kernels
from .mfu import Figures, ModelUse
from .model.architecture import Model
from .model.model import Attention, count
from .tokens import sequence_length_of

TOLERANCE = 0.01
_ATTENTION: tuple[Attention, ...] = ("causal", "full")
_BY = ("figure", "convention", "peak")
_TERA = 1e12
_MOST = 3


def flops_by_convention(model: Model, *, sequence_length: int) -> dict[str, float]:
    """Training FLOPs per token by the name of the convention; of two that are equal the first.

    Attention causal or full, MTP blocks counted or not, router counted or not, and what full
    recompute computes again counted or not.
    """
    by_convention: dict[str, float] = {}
    for recomputes, router, with_mtp, attention in product(
        (False, True), (False, True), (False, True), _ATTENTION
    ):
        flops = count(
            model, sequence_length=sequence_length, attention=attention,
            mtp=None if with_mtp else 0, router=router, recompute="full" if recomputes else "none",
        )  # fmt: skip
        switches = ((with_mtp, "MTP"), (router, "router"), (recomputes, "full recompute"))
        name = ", ".join([attention, *(text for is_counted, text in switches if is_counted)])
        value = float(flops.hardware_flops if recomputes else flops.train_flops)
        if value not in by_convention.values():
            by_convention[name] = value
    return by_convention


# metric: mfu_log
# Which way of counting gives the figures that the trainer printed?
#
# Both sides use the time the trainer logged, so that they differ by counting and by the peak
# alone. A convention reconciles if it gives what was printed within 1 % in every step where it was
# printed.
#
# title: What the trainer logged
# meaning: Each figure of efficiency that the trainer logged, beside ours under each convention.
# command: mfu --by log
#
#   step        bigint   step of the log
#   figure      varchar  tflops_per_s and mfu_ratio, per device; tokens_per_s
#   convention  varchar  how FLOPs are counted; whose tokens
#   peak        varchar  peak that an MFU is of
#   printed     double   what the trainer printed
#   ours        double   what this convention gives; NULL where time, devices or tokens are unknown
#   ratio       double   printed / ours
#   reconciles  boolean  whether it gives what was printed in all steps; NULL where unknown
def reconcile_log(
    log: pl.DataFrame,
    *,
    model_flops_by_convention: Mapping[str, float],
    peaks: Mapping[str, float],
    world_size: int | None,
    tokens_per_step: float | None,
    tokens_per_s_of: str | None = None,
) -> pl.DataFrame:
    """Every figure that was logged of every step, beside ours under each convention.

    `log`: rows of `train_log`. `model_flops_by_convention`: FLOPs per token of the whole model;
    `peaks`: FLOP/s of one device, by name; `tokens_per_step`: of the whole job; `tokens_per_s_of`:
    `job` or `device`, whose tokens per second are logged, for logs without times.
    """
    times = log.select("step", "elapsed_s", "tokens_per_s", "tflops_per_s", "mfu_ratio").unique(
        maintain_order=True
    )
    job_rate = pl.lit(tokens_per_step, pl.Float64) / pl.col("elapsed_s")
    devices = pl.lit(world_size, pl.Float64)
    shared_by = {"device": pl.lit(1.0), "job": devices}.get(
        tokens_per_s_of or "", pl.lit(None, pl.Float64)
    )
    device_rate = pl.coalesce(job_rate / devices, pl.col("tokens_per_s") / shared_by)
    flops = pl.LazyFrame(
        {
            "convention": list(model_flops_by_convention),
            "flops": [float(value) for value in model_flops_by_convention.values()],
        },
        schema={"convention": pl.String, "flops": pl.Float64},
    )
    named_peaks = pl.LazyFrame(
        {"peak": list(peaks), "peak_flops_per_s": [float(value) for value in peaks.values()]},
        schema={"peak": pl.String, "peak_flops_per_s": pl.Float64},
    )
    counted = (
        times.lazy()
        .with_columns(job_rate.alias("job"), device_rate.alias("rate"))
        .join(flops, how="cross")
    )
    achieved = pl.col("rate") * pl.col("flops")
    no_peak = pl.lit(None, pl.String).alias("peak")
    parts = [
        counted.select(
            "step", pl.lit("tflops_per_s").alias("figure"), "convention", no_peak,
            pl.col("tflops_per_s").alias("printed"), (achieved / _TERA).alias("ours"),
        ),
        counted.join(named_peaks, how="cross").select(
            "step", pl.lit("mfu_ratio").alias("figure"), "convention", "peak",
            pl.col("mfu_ratio").alias("printed"),
            (achieved / pl.col("peak_flops_per_s")).alias("ours"),
        ),
    ]  # fmt: skip
    for whose, rate in (("whole job", job_rate), ("one device", job_rate / devices)):
        parts.append(
            times.lazy().select(
                "step", pl.lit("tokens_per_s").alias("figure"), pl.lit(whose).alias("convention"),
                no_peak, pl.col("tokens_per_s").alias("printed"), rate.alias("ours"),
            )
        )  # fmt: skip
    ratio = pl.col("printed") / pl.col("ours")
    is_near = (ratio - 1).abs() <= TOLERANCE
    return (
        pl.concat(parts)
        .filter(pl.col("printed").is_not_null())
        .with_columns(
            ratio.alias("ratio"),
            # One step that is off decides; one that is unknown leaves the rest unproven.
            is_near.all(ignore_nulls=False).over(*_BY).alias("reconciles"),
        )
        .collect()
    )


def verdicts(figures: pl.DataFrame) -> pl.DataFrame:
    """Of what `reconcile_log` gives, a row per figure, convention and peak: `steps`, least, median
    and largest `ratio`, `reconciles`; the nearest first."""
    off = pl.max_horizontal((pl.col("ratio_min") - 1).abs(), (pl.col("ratio_max") - 1).abs())
    return (
        figures.group_by(*_BY, maintain_order=True)
        .agg(
            pl.len().alias("steps"),
            pl.col("ratio").min().alias("ratio_min"),
            pl.col("ratio").median().alias("ratio_median"),
            pl.col("ratio").max().alias("ratio_max"),
            pl.col("reconciles").first(),
        )
        .sort(pl.col("figure").rank("dense"), off, nulls_last=True, maintain_order=True)
    )


def verdict_notes(figures: pl.DataFrame) -> list[str]:
    """One sentence per figure: what reconciles it, or by how much the nearest is off."""
    notes: list[str] = []
    for (figure,), rows in verdicts(figures).group_by("figure", maintain_order=True):
        named = [_at_peak(row) for row in rows.filter("reconciles").to_dicts()]
        ratios = rows.drop_nulls("ratio_median")
        if named:
            if len(named) > _MOST:
                named[_MOST:] = [Message("and {number} more", number=len(named) - _MOST)]
            sentence = Message("reconciles with {conventions}", conventions=join(named, "; "))
        elif ratios.is_empty():
            sentence = Message(
                "cannot be reconciled: tokens per step, devices or the step's time are unknown"
            )
        else:
            near = ratios.row(0, named=True)
            sentence = Message(
                "does not reconcile: nearest is {convention}, of which the log shows {ratio} times"
                " as much",
                convention=_at_peak(near),
                ratio=f"{near['ratio_median']:.3f}",
            )
        notes.append(Message("logged {figure}: {verdict}", figure=str(figure), verdict=sentence))
    return notes


def _at_peak(row: Mapping[str, Any]) -> str:
    if not row["peak"]:
        return str(row["convention"])
    return Message("{convention} at {peak}", convention=row["convention"], peak=row["peak"])


_ROWS = f"select {', '.join(SCHEMA)} from train_log {{where}} order by step"


def trainer_log(
    con: duckdb.DuckDBPyConnection,
    target: Path,
    file: Path | None,
    scope: Scope,
) -> TrainLog | None:
    """The log in `file`, else the one kept with the first chosen capture; None where neither is.

    Raises as `read_log`.
    """
    if file is not None:
        return read_log(file)
    clause, values = scope.where(JOB)
    first = frame(
        con,
        f"select run, capture from train_log {clause} group by all order by all limit 1",
        values,
    )
    if first.is_empty():
        return None
    run, capture = first.row(0)
    clause, values = Scope(run, capture).where()
    rows = frame(con, _ROWS.format(where=clause), values)
    facts = LogFacts()
    for one in readings(con, target):
        if (one.run, one.capture) == (run, capture) and logged_facts(one.rules) != LogFacts():
            facts = logged_facts(one.rules)
    return TrainLog(rows, facts)


def reconcile_figures(
    con: duckdb.DuckDBPyConnection, scope: Scope, log: TrainLog, figures: Figures, use: ModelUse
) -> pl.DataFrame:
    """Rows of `reconcile_log` for the model, length, tokens, devices and peaks of `figures`; none
    where the length of sequences is unknown."""
    sequence = (
        use.sequence_length
        or log.facts.sequence_length
        or sequence_length_of(counted_kernels(con, scope))
    )
    rows = figures.rows
    peaks = dict(
        rows.select("dtype", "peak_flops_per_s").drop_nulls().unique().sort("dtype").rows()
    )
    tokens = use.tokens_per_step if isinstance(use.tokens_per_step, int) else None
    world = rows["world_size"].drop_nulls().to_list()
    return reconcile_log(
        log.rows,
        model_flops_by_convention=(
            flops_by_convention(use.model, sequence_length=sequence) if sequence else {}
        ),
        peaks=peaks,
        world_size=max(world) if world else log.facts.world_size,
        tokens_per_step=tokens or log.facts.tokens_per_step,
        tokens_per_s_of=log.facts.tokens_per_s_of,
    )
