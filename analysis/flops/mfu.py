"""MFU of each rank and step: what kernels executed, and what the model needs, over the peak.

kernels x FLOPs of their shapes --+
step lengths                      +--> FLOPs / (step_ns x peak), and why where it is unknown
peak of the chip                  |
model FLOPs per token x tokens  --+

Every ratio has the whole step and the peak of one element type below the line: that in which most
FLOPs were executed.

What to know beside figures of MFU: what is unknown, how much time it holds, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import duckdb
import polars as pl

from npuscope.messages import Message

from ..catalog import column_names
from ..memo import memoize
from ..scope import ALL, JOB, PLACE, Scope
from ..views import frame, open_views
from ..wording import ms, percent
from .chips import Place, peaks
from .kernels.count import counted_kernels, unresolved_kernels
from .lengths import step_lengths
from .model.model import Attention, Model, Recompute, count
from .needed_flops import refused_steps
from .peaks import OPTION, Peak
from .tokens import STEP, sequence_length_of, tokens_of_steps

_WORLD = """
select run, capture, max(world_size) as world_size from (
    select run, capture, world_size from ranks
    union all
    select run, capture, len(global_ranks) from groups where parallel_kind = 'world'
) group by all
"""


# Of a step: more is no count of tokens, and no integer of a table.
MOST_TOKENS = 1 << 50


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model and how a job trains it; None: not said.

    `tokens_per_step` of the whole job; `auto`: as its kernels tell; `tokens_from`: who gave them.
    `recompute` None: HFU is not known.
    """

    model: Model
    sequence_length: int | None = None
    tokens_per_step: int | Literal["auto"] | None = None
    attention: Attention = "causal"
    recompute: Recompute | None = None
    tokens_from: str = "as given"


@dataclass(frozen=True, slots=True)
class Figures:
    """`rows`: columns of the metric, then dtype, frequency_ratio, world_size and hardware_flops.

    frequency_ratio: the clock by cycles, else by its counter, over the peak's (NULL: unknown);
    tokens_per_step, model_flops and hardware_flops: of the whole job's step. `notes`: what is
    unknown, why, and what to do. `sources`: the message that each peak_source of the rows is;
    `conventions`: the parts of each text of that column.
    """

    rows: pl.DataFrame
    notes: list[str]
    sources: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def why_unknown(figures: Figures) -> str:
    """Why no step has an MFU. Where FLOPs of some kernels are known, those of the others are not
    what it lacks: it lacks the peak."""
    flops = ("matmul_flops", "attention_flops_causal", "other_flops")
    counted = figures.rows.filter(pl.sum_horizontal(flops) > 0)
    if counted.height and counted["peak_flops_per_s"].null_count() == counted.height:
        return Message("peak: {source}", source=figures.sources[counted["peak_source"][0]])
    return figures.notes[0] if figures.notes else "no kernel has shapes that FLOPs follow from"


# metric: mfu
# What share of the peak does each step of each rank reach?
#
# Every ratio has the whole step and the peak of one element type below the line: that in which
# most FLOPs were executed. Where some kernels of a kind are unresolved, FLOPs and ratios hold the
# others and are lower bounds.
#
# title: MFU of each step
# meaning: What kernels of each rank and step executed, and what the model needs, over the peak.
# by: run, capture, rank, step
# command: mfu --by step
#
#   step_ns                  bigint   length of the step; NULL where not recorded
#   matmul_flops             bigint   FLOPs of matrix multiplications, by their shapes
#   attention_flops_causal   bigint   FLOPs of attention, counted as causal
#   attention_flops_full     bigint   FLOPs of attention, counted in full
#   other_flops              bigint   FLOPs of other kernels of the cube cores
#   unresolved_kernel_ns     bigint   time of kernels that may have FLOPs, but none known
#   peak_flops_per_s         double   peak of the chip in the element type of most FLOPs
#   peak_source              varchar  where the peak is from
#   kernel_mfu_causal_ratio  double   FLOPs of kernels over step x peak, attention causal
#   kernel_mfu_full_ratio    double   likewise, attention full
#   matmul_mfu_ratio         double   likewise, matrix multiplications alone
#   tokens_per_step          bigint   tokens of the whole job's step
#   tokens_basis             varchar  who tells them
#   model_flops              bigint   FLOPs that the model needs for them; NULL without a model
#   model_mfu_ratio          double   these over step x ranks of the job x peak
#   hfu_ratio                double   the same with what is computed again; NULL where recompute is
#     not told
#   conventions              varchar  how the model's FLOPs are counted
@memoize
def mfu(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    given_peaks: Mapping[str, float] | None = None,
    use: ModelUse | None = None,
    known: pl.DataFrame | None = None,
) -> Figures:
    """Figures of each rank and step. `given_peaks` as `peaks.parse_peaks` reads them; `known`:
    `counted_kernels` of the scope, for who has them.

    model_flops are of the whole job's step: model FLOPs per token x tokens; model_mfu_ratio divides
    them by step_ns x world size x peak. FLOPs that are unknown are NULL; where some kernels of a
    kind are unresolved, its FLOPs and the ratios hold the others and are lower bounds.
    """
    counted = counted_kernels(con, scope) if known is None else known
    lengths = step_lengths(con, scope)
    steps = lengths.join(_sum_by_family(counted), on=PLACE, how="left", nulls_equal=True)
    steps, sources = _with_peaks(_with_clocks(con, steps), peaks(con, given_peaks))
    notes = _kernel_notes(steps, counted, sources)
    clause, values = scope.where(JOB)
    world = frame(con, f"select * from ({_WORLD}) {clause}", values)
    steps = steps.join(world, on=("run", "capture"), how="left")
    if scope.rank is not None and use is not None:  # what the job does in a step, all ranks tell
        everywhere = counted_kernels(con, scope.all_ranks)
    else:
        everywhere = counted
    steps, reason, words = _with_model(con, steps, everywhere, use)
    steps = _with_ratios(steps)
    steps = steps.with_columns(
        parts=pl.concat_list(
            pl.col("length_basis").fill_null("step of unknown length"),
            pl.format("peak of {}", pl.col("dtype").fill_null("bf16")),
            pl.lit(
                "causal attention is half of full where there is a mask, backward 2.5 x forward"
            ),
            pl.when(pl.col("unresolved_kernel_ns") > 0).then(
                pl.lit("kernel FLOPs without unresolved kernels")
            ),
            pl.when("is_rounded").then(pl.lit("sizes as layouts round them up")),
            *(pl.lit(word, pl.String) for word in words),
        ).list.drop_nulls()
    ).with_columns(conventions=pl.col("parts").list.join("; "))
    remarks = {
        f"peak of {dtype}": Message("peak of {dtype}", dtype=dtype)
        for dtype in steps["dtype"].fill_null("bf16").unique()
    }
    conventions = {
        text: tuple(remarks.get(part, part) for part in parts)
        for text, parts in steps.select("conventions", "parts").iter_rows()
    }
    rows = steps.select(
        *column_names("mfu"), "dtype", "frequency_ratio", "world_size", "hardware_flops"
    )
    return Figures(rows, notes + reason, sources, conventions)


def _sum_by_family(counted: pl.DataFrame) -> pl.DataFrame:
    """FLOPs of each rank and step by family, time of what is unresolved, dtype of most FLOPs."""

    def of(family: str, column: str) -> pl.Expr:
        """Sum of a family; NULL where none of its kernels is known, 0 where it has none."""
        mine = pl.col("family") == family
        flops_of = (pl.col(column) * pl.col("count")).filter(mine)
        nothing_known = mine.any() & flops_of.is_null().all()
        every_type_known = (pl.col("family") != "unknown").fill_null(True).any()
        return pl.when(~nothing_known & every_type_known).then(flops_of.sum())

    causal_unknown = (pl.col("full_flops").is_not_null() & pl.col("causal_flops").is_null()).any()
    flops = pl.col("full_flops") * pl.col("count")
    dtypes = (
        counted.drop_nulls(["dtype", "full_flops"])
        .group_by(*PLACE, "dtype")
        .agg(flops.sum().alias("flops"))
        .sort("flops", "dtype", descending=[True, False])
        .group_by(PLACE, maintain_order=True)
        .agg(
            pl.col("dtype").first(),
            (pl.col("flops").first() / pl.col("flops").sum()).alias("dtype_share"),
        )
    )
    return (
        counted.with_columns(pl.col("family").fill_null("none"))
        .group_by(PLACE)
        .agg(
            of("matmul", "full_flops").alias("matmul_flops"),
            pl.when(~causal_unknown)
            .then(of("attention", "causal_flops"))
            .alias("attention_flops_causal"),
            of("attention", "full_flops").alias("attention_flops_full"),
            of("convolution", "full_flops").alias("other_flops"),
            pl.col("total_ns")
            .filter((pl.col("family") != "none") & pl.col("full_flops").is_null())
            .sum()
            .alias("unresolved_kernel_ns"),
            pl.col("full_flops").is_not_null().any().alias("has_flops"),
            causal_unknown.alias("causal_unknown"),
            pl.col("is_rounded").any().alias("is_rounded"),
            (1000.0 * pl.col("cube_cycles_count").sum() / pl.col("cube_core_time_ns").sum()).alias(
                "measured_mhz"
            ),
        )
        .join(dtypes, on=PLACE, how="left", nulls_equal=True)
    )


def _with_clocks(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """measured_mhz of the frequency counter where kernels have no cycles."""
    clocks = rows.with_columns(pl.col("measured_mhz").fill_nan(None))
    if clocks["measured_mhz"].null_count() == 0:
        return clocks
    open_views(con, ["rank_work"])
    counter = frame(con, "select run, capture, rank, step, frequency_mhz from rank_work")
    return (
        clocks.join(counter, on=PLACE, how="left", nulls_equal=True)
        .with_columns(measured_mhz=pl.coalesce("measured_mhz", "frequency_mhz"))
        .drop("frequency_mhz")
    )


def _with_peaks(
    rows: pl.DataFrame, peaks: Mapping[Place, Peak]
) -> tuple[pl.DataFrame, dict[str, str]]:
    """Peak of the element type of most FLOPs, its source, and the measured clock over its own; and
    the sources as messages, by what they say."""
    nobody = Peak({}, {}, "unknown: the rank has no metadata; give --peak to `npuscope mfu`")
    values: list[tuple[float | None, str, float | None]] = []
    for row in rows.select("run", "capture", "rank", "dtype", "measured_mhz").iter_rows():
        peak = peaks.get(row[:3], nobody)
        # A given peak says nothing of the clock it holds for.
        own = None if peak.source_of(row[3]) == OPTION else peak.mhz
        mhz = row[4]
        ratio = mhz / own if mhz and own else None
        values.append((peak.of(row[3]), peak.source_of(row[3]), ratio))
    schema = {
        "peak_flops_per_s": pl.Float64, "peak_source": pl.String, "frequency_ratio": pl.Float64,
    }  # fmt: skip
    sources = {str(source): source for _, source, _ in values}
    return rows.hstack(pl.DataFrame(values, schema=schema, orient="row")), sources


def _with_model(
    con: duckdb.DuckDBPyConnection,
    rows: pl.DataFrame,
    counted: pl.DataFrame,
    use: ModelUse | None,
) -> tuple[pl.DataFrame, list[str], tuple[str, ...]]:
    """With tokens, model_flops and hardware_flops of the job's step, notes, and the model's
    conventions. `counted`: kernels of all ranks."""
    nothing = rows.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in _OF_MODEL.items()
    )  # fmt: skip
    if use is None:
        return nothing, [], ()
    sequence = use.sequence_length or sequence_length_of(counted)
    if sequence is None:
        reason = (
            "model FLOPs: kernel shapes do not show the sequence length; give --sequence-length"
        )
        return nothing, [reason], ()
    model = count(
        use.model, sequence_length=sequence, attention=use.attention,
        recompute=use.recompute or "none",
    )  # fmt: skip
    words = (use.model.name, *model.conventions)
    notes: list[str] = []
    if use.tokens_per_step is None:
        reason = "model MFU: tokens per step are unknown; give --tokens-per-step N or auto"
        return nothing, [reason], words
    if use.tokens_per_step == "auto":
        tokens, notes = tokens_of_steps(con, use.model, counted)
        rows = rows.join(tokens, on=STEP, how="left", nulls_equal=True)
    else:
        rows = rows.with_columns(
            tokens_per_step=pl.lit(use.tokens_per_step, pl.Int64),
            tokens_basis=pl.lit(use.tokens_from, pl.String),
        )
        words += (f"{use.tokens_per_step} tokens per step",)
    if rows["world_size"].is_null().any():
        notes.append("model MFU: the job's number of ranks was not recorded")
    if use.recompute is None:
        notes.append("HFU: recomputation is unknown; give --recompute none|selective|full")
    hardware = None if use.recompute is None else float(model.hardware_flops)
    rows = rows.with_columns(
        model_flops=pl.col("tokens_per_step") * float(model.train_flops),
        hardware_flops=pl.col("tokens_per_step") * pl.lit(hardware, pl.Float64),
    )
    notes += _model_notes(_with_ratios(rows))
    refused, refusals = refused_steps(
        con, model, _executed_flops(counted, use.attention), rows,
        is_counted=use.tokens_per_step == "auto",
    )  # fmt: skip
    rows = (
        rows.join(refused, on=STEP, how="left", nulls_equal=True)
        .with_columns(
            pl.when(~pl.col("is_refused").fill_null(False)).then("model_flops"),
            pl.when(~pl.col("is_hardware_refused").fill_null(False)).then("hardware_flops"),
        )
        .drop("is_refused", "is_hardware_refused")
    )
    return rows, [*notes, *refusals], words


_OF_MODEL = {
    "tokens_per_step": pl.Int64, "tokens_basis": pl.String, "model_flops": pl.Float64,
    "hardware_flops": pl.Float64,
}  # fmt: skip


def _executed_flops(counted: pl.DataFrame, attention: Attention) -> pl.DataFrame:
    """FLOPs of each rank's kernels, as refused_steps takes them; all pairs of attention where
    shapes do not tell the causal ones."""
    each = pl.coalesce(f"{attention}_flops", "full_flops")
    is_unknown = pl.col("family").is_not_null() & pl.col("full_flops").is_null()
    return (
        counted.group_by(PLACE)
        .agg(
            (each.cast(pl.Float64) * pl.col("count")).sum().alias("executed_flops"),
            pl.col("total_ns").filter(is_unknown).sum().alias("unresolved_kernel_ns"),
        )
    )  # fmt: skip


def _with_ratios(rows: pl.DataFrame) -> pl.DataFrame:
    possible = pl.col("step_ns") * 1e-9 * pl.col("peak_flops_per_s")
    of_job = possible * pl.col("world_size")

    def executed(attention: str) -> pl.Expr:
        parts = ("matmul_flops", attention, "other_flops")
        return pl.when("has_flops").then(
            pl.sum_horizontal(pl.col(part).fill_null(0) for part in parts) / possible
        )

    return rows.with_columns(
        kernel_mfu_causal_ratio=pl.when(~pl.col("causal_unknown")).then(
            executed("attention_flops_causal")
        ),
        kernel_mfu_full_ratio=executed("attention_flops_full"),
        matmul_mfu_ratio=pl.col("matmul_flops") / possible,
        model_mfu_ratio=pl.col("model_flops") / of_job,
        hfu_ratio=pl.col("hardware_flops") / of_job,
    )


_MOST = 5
_ONE_TYPE = 0.99  # of the FLOPs, and a step counts as one of one element type


def _kernel_notes(
    rows: pl.DataFrame, counted: pl.DataFrame, sources: Mapping[str, str]
) -> list[str]:
    """What of the kernels' FLOPs and of the peak is unknown, and what to do.

    `rows`: a row per rank and step, with its peak; `counted`: its kernels.
    """
    notes: list[str] = []
    missing = unresolved_kernels(counted)
    for row in missing.head(_MOST).to_dicts():
        held = "FLOPs of {kernels} ({ms} ms) are unknown: {reason}"
        kernels = f"{row['count']} {row['type']}"
        if not row["type"]:
            kernels = Message("{count} kernels without a type", count=row["count"])
        took = ms(row["total_ns"])
        notes.append(Message(held, kernels=kernels, ms=took, reason=Message(row["reason"])))
    if missing.height > _MOST:
        rest = ms(int(missing.slice(_MOST)["total_ns"].sum()))
        notes.append(
            Message(
                "and of {count} more kinds of kernels ({ms} ms)",
                count=missing.height - _MOST,
                ms=rest,
            )
        )
    if not missing.is_empty() and missing["type"].is_null().any():
        notes.append("collect with profiler level Level1 to have types and shapes")
    if rows["causal_unknown"].any():
        notes.append(
            "causal attention: the numbers of keys and queries differ, and shapes do not show the"
            " mask"
        )
    rounded = counted.filter(pl.col("is_rounded"))
    if not rounded.is_empty():
        kinds = ", ".join(sorted(set(rounded["type"].drop_nulls()))[:_MOST])
        notes.append(
            Message(
                "sizes as the layout rounds them up, so FLOPs are upper bounds: {kinds}",
                kinds=kinds,
            )
        )
    without = rows.filter(pl.col("peak_flops_per_s").is_null())["peak_source"]
    notes += [
        Message("peak: {source}", source=sources[source]) for source in without.unique().sort()
    ]
    if rows["has_flops"].is_null().any():
        notes.append("steps without kernels of their own have no kernel FLOPs")
    notes += _above_peak(rows, counted)
    mixed = rows.filter(pl.col("dtype_share") < _ONE_TYPE)
    if not mixed.is_empty():
        notes.append(
            "kernels of several data types are compared with the peak of the type with the most"
            " FLOPs"
        )
    return notes


def _above_peak(rows: pl.DataFrame, counted: pl.DataFrame) -> list[str]:
    """What cannot be: kernels that all together, while they run, do more than the chip can."""
    exact = counted.filter(pl.col("causal_flops").is_not_null() & ~pl.col("is_rounded"))
    own = rows.select(*PLACE, "dtype", "peak_flops_per_s").drop_nulls("peak_flops_per_s")
    share = (pl.col("causal_flops").cast(pl.Float64) * pl.col("count")).sum() * 1e9 / (
        pl.col("total_ns").sum() * pl.col("peak_flops_per_s").first()
    )  # fmt: skip
    most = (
        exact.join(own, on=[*PLACE, "dtype"], nulls_equal=True)
        .group_by(PLACE)
        .agg(share.alias("share"))
        .select(pl.col("share").filter(pl.col("share").is_finite()).max())
        .item()
    )
    if most is None or most <= 1:
        return []
    sentence = (
        "kernels reach {share} of the peak, which cannot be: check --peak of `npuscope mfu`, or the"
        " chip it is of"
    )
    return [Message(sentence, share=percent(most))]


def _model_notes(rows: pl.DataFrame) -> list[str]:
    """What cannot be: a model that needs more than the chips can do."""
    if rows.filter(pl.col("model_mfu_ratio") > 1).is_empty():
        return []
    return ["model MFU would exceed 1: check model, tokens per step, number of ranks and peak"]
