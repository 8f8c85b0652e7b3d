"""Parts of a step as terminal tables: of a mean step, and of exposed communication."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.text import Text

from npuscope.analysis.flops.losses import by_term
from npuscope.analysis.parts import COMMUNICATION, exposed_parts
from npuscope.analysis.wording import figure, ms, percent, plain
from npuscope.messages import Message

from .tables import Column, FittedTable, several

PART_WORDS = {
    "computing": "computing",
    "transfer": "communication that moves bytes",
    "peer_wait": "waiting for slower ranks",
    "absent_wait": "waiting for ranks not captured",
    "pipeline_wait": "waiting in the pipeline",
    "unknown_communication": "communication, bytes or waiting unknown",
    "host": "free: the host launches late",
    "idle": "free: idle, though launched",
    "free": "free: no work of the step",
}
_HEADERS = {
    "transfer": "moves bytes", "peer_wait": "waits for ranks", "absent_wait": "ranks not captured",
    "pipeline_wait": "another stage", "unknown_communication": "unknown",
}  # fmt: skip


def parts_table(frame: pl.DataFrame) -> FittedTable:
    """A row per rank and step, a column per part; `-`: none is known of it."""
    columns = [
        *several(frame),
        Column("rank", "rank", plain),
        Column("step", "step", plain),
        Column("exposed", "exposed_ns", ms),
        Column("of the step", "share_ratio", percent, 1),
        *(Column(_HEADERS[part], f"{part}_ns", ms) for part in COMMUNICATION),
    ]
    caption = "waits: for captured ranks, for ranks not captured, for another pipeline stage"
    return FittedTable(
        columns, exposed_parts(frame).to_dicts(), "What exposed communication is (ms)", caption
    )


def mean_parts_table(frame: pl.DataFrame) -> FittedTable:
    """Parts of a mean step: rows of `means.mean_parts` by capture."""
    columns = [
        Column("part", "words", is_word=True),
        Column("ms per step", "ns", ms),
        Column("of the step", "share_ratio", percent),
    ]
    words = pl.col("part").replace_strict(PART_WORDS).alias("words")
    return FittedTable(columns, frame.with_columns(words).to_dicts(), "Where a step's time goes")


WORDS = {
    "achieved": "achieved",
    "recompute": "executed beyond the model's need",
    "frequency": "clock below its nominal",
    "cube_inefficiency": "cube kernels below the peak",
    "unresolved_kernels": "kernels of unknown FLOPs",
    "other_compute": "vector and other compute",
    **PART_WORDS,
    "tail": "after the last work, before the next step's",
    "between_steps": "between a rank's steps",
    "latest_rank": "the latest rank beyond the mean",
}
# How a part of computing changed from one run to another.
CHANGES = {
    "count": "ran more or less often",
    "duration": "each took longer or shorter",
    "shape": "other shapes",
    "core": "on other cores",
    "kernels": "other kernels of the operator",
    "new": "only in B",
    "gone": "only in A",
    "at_once": "beside each other, counted once",
    "other_ranks": "ranks without kernels, beyond the others",
}
_WIDTH = 24
_SPACE = "·"
SHOWN_FROM = 0.00005  # of the peak: less reads as nothing
_STAGES_AT_MOST = 8


def waterfall_table(job: pl.DataFrame, stages: pl.DataFrame, *, top: int = 3) -> FittedTable:
    """Terms of a capture with their `top` largest parts, and the points of each pipeline stage.

    job, stages: rows of `losses.together` by job and by stage.
    """
    place = ["run", "capture"]
    named = stages.drop_nulls("stage")["stage"].unique().sort().to_list()[:_STAGES_AT_MOST]
    parts = named if len(named) > 1 else []
    points = {
        (*at, term, stage): value
        for *at, stage, term, value in by_term(stages)
        .select(*place, "stage", "term", "mfu_points")
        .iter_rows()
    }
    rows: list[dict[str, Any]] = []
    for run, capture, term, ns, share in by_term(job).iter_rows():
        if abs(share) < SHOWN_FROM:
            continue
        before = 0.0 if not rows or rows[-1]["place"] != (run, capture) else rows[-1]["upto"]
        rows.append({
            "place": (run, capture), "run": run, "capture": capture,
            "term": WORDS[str(term)], "ns": ns, "points": share, "upto": before + share,
            "bar": (before, share),
            **{f"stage{one}": points.get((run, capture, term, one), 0.0) for one in parts},
        })  # fmt: skip
        rows += [
            {
                **dict.fromkeys((*rows[-1], "bar")), "place": (run, capture), "run": run,
                "capture": capture, "upto": before + share, "term": f"└ {part}", "ns": part_ns,
                "points": part_share,
            }
            for part, part_ns, part_share in job.filter(
                pl.col("run") == run, pl.col("capture") == capture, pl.col("term") == term
            )
            .drop_nulls("part")
            .select("part", "ns", "mfu_points")
            .head(top)
            .iter_rows()
        ]  # fmt: skip
    columns = [
        *several(job),
        Column("where the peak goes", "term", is_word=True),
        Column("of the peak", "bar", _bar, 3, is_drawing=True),
        Column("ms per step", "ns", ms),
        Column("MFU points", "points", _points),
        *(
            Column(Message("stage {number}", number=one), f"stage{one}", _points, 2)
            for one in parts
        ),
    ]
    caption = "of a mean rank and step; points add up to 100"
    return FittedTable(columns, rows, "From the peak to what is achieved", caption)


def _points(value: float | None) -> str:
    return "" if value is None else figure("{:.2f}", value * 100)


def _bar(span: tuple[float, float] | None) -> Text:
    """Where the term begins and ends on the way from nothing to the whole peak."""
    if span is None:
        return Text("")
    ends = sorted((span[0], span[0] + span[1]))
    first, last = (round(_WIDTH * min(max(end, 0.0), 1.0)) for end in ends)
    bar = _SPACE * first + "█" * (last - first) + _SPACE * (_WIDTH - last)
    return Text(bar, style="green" if span[0] == 0 else "red")
