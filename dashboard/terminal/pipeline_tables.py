"""Pipelines as terminal tables: what ran, other orders, what schedules cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.pipeline import STEADY, STEP
from npuscope.analysis.pipeline.answer import Answer
from npuscope.analysis.wording import UNKNOWN, ms, percent, plain
from npuscope.messages import Message

from .tables import Column, FittedTable, decimals

_times = decimals("{:,.3f}", 1)


# What causes of bubbles are called where their name alone would mean something else.
CAUSE_WORDS = {"transfers": "P2P transfers"}
_CAUSE_HEADS = {"transfers": "P2P"}


def formula_table(rows: pl.DataFrame) -> RenderableType:
    """Rows of the metric `pipeline_formula`."""
    return FittedTable(
        [
            Column("device", "device", str),
            Column("step (ns)", "step_ns", _times),
            Column("bubble (ns)", "bubble_ns", _times),
            Column("bubble", "bubble_ratio", percent),
            Column("activations held", "live_activations", decimals("{:,.2f}", 1)),
        ],
        rows.to_dicts(),
        "Pipeline on even stages",
    )


def answer_tables(answer: Answer) -> Iterator[RenderableType]:
    """What ran, phases of each stage, masking, work of stages, bubbles by cause."""
    (facts,) = answer.facts.to_dicts()
    yield FittedTable(
        [
            Column("schedule", "schedule"),
            Column("confidence", "confidence", is_word=True),
            Column("passes elsewhere", "distance_ratio", percent, 2),
            Column("micro-batches", "micro_batches", plain),
            Column("chunks", "chunks", plain),
            Column("stages", "stages", plain),
            Column("captured", "seen_stages", plain, 1),
            Column("masked, steady phase", "steady_masking_ratio", percent),
            Column("whole step", "step_masking_ratio", percent),
            Column("bubble", "bubble_ratio", percent),
        ],
        [facts],
        "Pipeline",
        "masked: transfers between stages are not counted",
    )
    if answer.phases.height:
        yield phases_table(answer.phases)
    if answer.masking.height:
        yield masking_table(answer.masking)
    if answer.stages.height:
        yield stages_table(answer.stages)
    if answer.bubbles is not None:
        yield bubbles_table(answer.bubbles)


def phases_table(phases: pl.DataFrame, most: int | None = None) -> FittedTable:
    """Rows of the metric `pipeline_phases`, of the first stages alone where there are more than
    `most`."""
    return FittedTable(
        [
            Column("stage", "stage", plain),
            Column("pipeline phase", "phase", is_word=True),
            Column("ms", "dur_ns", ms),
            Column("forwards", "forward_count", decimals("{:,.4g}", 1), 1),
            Column("backwards", "backward_count", decimals("{:,.4g}", 1), 1),
            Column("computing", "computing_ns", ms),
            Column("exposed comm", "exposed_communication_ns", ms),
            Column("exposed transfer", "exposed_transfer_ns", ms),
            Column("idle", "idle_ns", ms),
            Column("kernel MFU", "kernel_mfu_ratio", percent),
        ],
        *_first_stages(phases, most, "Phases of each stage (ms, mean of ranks and steps)"),
    )


def masking_table(phases: pl.DataFrame, most: int | None = None) -> FittedTable:
    """Rows of the metric `pipeline_masking`: the steady phase beside the whole step."""
    keys = ["stage", "kind"]
    of_phase = [
        phases.filter(phase=phase).select(*keys, *(pl.col(name).alias(f"{phase}_{name}") for name in
                     ("communication_ns", "masking_ratio", "beside_other_ns")))
        for phase in (STEP, STEADY)
    ]  # fmt: skip
    wide = of_phase[0].join(of_phase[1], on=keys, how="left", maintain_order="left")
    return FittedTable(
        [
            Column("stage", "stage", plain),
            Column("kind", "kind", is_word=True),
            Column("whole step", "step_communication_ns", ms),
            Column("masked", "step_masking_ratio", percent),
            Column("beside the other direction", "step_beside_other_ns", ms, 2),
            Column("steady phase", "steady_communication_ns", ms),
            Column("masked", "steady_masking_ratio", percent),
            Column("beside the other direction", "steady_beside_other_ns", ms, 1),
        ],
        *_first_stages(wide, most, "Communication with compute beside it (ms)"),
    )


def stages_table(stages: pl.DataFrame) -> FittedTable:
    """Rows of the metric `pipeline_stages`."""
    return FittedTable(
        [
            Column("stage", "stage", plain),
            Column("layers", "layer_count", decimals("{:,.4g}", 1)),
            Column("compute", "compute_ns", ms),
            Column("of layers", "layers_ns", ms),
            Column("embedding", "embedding_ns", ms),
            Column("output head", "head_ns", ms),
            Column("further tokens", "further_tokens_ns", ms),
            Column("recompute", "recompute_ns", ms),
            Column("above the mean", "excess_ns", ms),
        ],
        stages.to_dicts(),
        "Work of a micro-batch (ms)",
    )


def bubbles_table(bubbles: pl.DataFrame, most: int | None = None) -> FittedTable:
    """Rows of the metric `pipeline_bubbles`, a stage in each line."""
    causes = bubbles["cause"].unique(maintain_order=True).to_list()
    wide = bubbles.pivot("cause", index="stage", values="bubble_ns")
    return FittedTable(
        [
            Column("stage", "stage", plain),
            *(Column(_CAUSE_HEADS.get(cause, cause), cause, ms) for cause in causes),
        ],
        *_first_stages(wide, most, "Bubble of each stage by cause (ms); causes add up to all"),
    )


def _first_stages(
    rows: pl.DataFrame, most: int | None, title: str
) -> tuple[list[dict[str, Any]], str, str | None]:
    """Rows, title and caption: of the first stages alone where there are more."""
    stages = rows["stage"].n_unique()
    if most is None or stages <= most:
        return rows.to_dicts(), title, None
    first = rows["stage"].unique().sort().head(most).implode()
    remark = Message(
        "the first {shown} of {all} stages: {command} gives all",
        shown=most, all=stages, command="`npuscope pipeline`",
    )  # fmt: skip
    return rows.filter(pl.col("stage").is_in(first)).to_dicts(), title, remark


def tries_table(tries: pl.DataFrame) -> RenderableType:
    """Rows of the metric `pipeline_tries`."""
    rows = [
        {
            **row,
            "range": UNKNOWN
            if row["predicted_step_ns"] is None
            else f"{ms(row['predicted_low_ns'])} - {ms(row['predicted_high_ns'])}",
            "micro_batch_ns": None
            if row["predicted_step_ns"] is None
            else row["predicted_step_ns"] / row["micro_batches"],
            "held": _spread(row["devices"], "live_activations", "{:,.4g}".format),
            "kept": _spread(row["devices"], "kept_bytes", _gib),
            "placed": " ".join(map(str, row["layers"] or [])) or None,
        }
        for row in tries.iter_rows(named=True)
    ]
    columns = [
        Column("order", "name", str),
        Column("micro-batches", "micro_batches", str),
        Column("step (ms)", "predicted_step_ns", ms),
        Column("range", "range", str),
        Column("of a micro-batch", "micro_batch_ns", ms),
        Column("bubble", "bubble_ratio", percent),
        Column("activations held", "held", str),
    ]
    if any(row["kept"] for row in rows):
        columns.append(Column("GiB held", "kept", str))
    if any(row["needed_overlap_ratio"] is not None for row in rows):
        columns.append(Column("overlap needed", "needed_overlap_ratio", percent))
    if any(row["placed"] for row in rows):
        columns.append(Column("layers", "placed", lambda one: one or UNKNOWN))
    title = f"Step as measured: {ms(rows[0]['measured_step_ns'])} ms"
    return FittedTable(columns, rows, title)


def _spread(devices: list[dict[str, Any]], key: str, word: Callable[[float], str]) -> str:
    """Least and most over devices; empty where unknown."""
    values = [one[key] for one in devices if one[key] is not None]
    if not values:
        return ""
    least, most = word(min(values)), word(max(values))
    return least if least == most else f"{least} - {most}"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.2f}"
