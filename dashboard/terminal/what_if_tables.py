"""What a change would make of a step, as terminal tables."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.views import sum_of
from npuscope.analysis.wording import UNKNOWN, figure, ms, percent, plain
from npuscope.messages import Message

from .tables import Column, FittedTable

_MOST_CONTRIBUTIONS = 12
_MOST_OF_A_STEP = 12
_STEPS = {
    "measured_ns": "measured",
    "replayed_ns": "replayed, without launch delays",
    "predicted_ns": "with the changes",
    "ideal_ns": "ideal: all phases of a type alike",
}


def what_if_tables(rows: pl.DataFrame) -> RenderableType:
    """A row of the metric `whatif`: a table of steps, and of contributions where nothing else was
    asked for than the ideal."""
    (row,) = rows.to_dicts()
    replayed = row["replayed_ns"]
    steps = [
        {"words": words, "ns": row[key], "factor": replayed / row[key] if row[key] else None}
        for key, words in _STEPS.items()
        if row[key] is not None
    ]
    workers = ", ".join(f"({peer},{stage})" for peer, stage in row["worst_workers"])
    remark = (
        "{last} of what is lost to the ideal step is the last stage (M_s), {worst} the worst"
        " workers (M_w): {workers}"
    )
    if any((row[share] or 0) > 1 for share in ("last_stage_share", "worst_workers_share")):
        remark = (
            "{last} of what is lost to the ideal step is the last stage (M_s), {worst} the worst"
            " workers (M_w): {workers}. A share may be above 100 %: the ideal step has mean"
            " durations, so fast workers get slower in it"
        )
    shares = Message(
        remark, last=percent(row["last_stage_share"]), worst=percent(row["worst_workers_share"]),
        workers=workers,
    )  # fmt: skip
    columns = [
        Column("mean step", "words", is_word=True),
        Column("ms", "ns", ms),
        Column("faster than replayed", "factor", _times),
    ]
    first = FittedTable(columns, steps, "What if", shares)
    if row["predicted_ns"] not in (None, row["ideal_ns"]):
        return first
    return Group(first, _contributions_table(row["contributions"]))


def replay_table(frame: pl.DataFrame) -> RenderableType:
    """Steps of the job, and of each the rank whose replay without gaps is furthest off."""
    rows = []
    for part in frame.partition_by("step", maintain_order=True):
        rows += part.filter(pl.col("rank").is_null()).to_dicts()
        off = pl.col("without_gaps_error_ratio").abs()
        rows += part.drop_nulls("rank").sort(off, descending=True, nulls_last=True)[:1].to_dicts()
    return FittedTable(
        [
            Column("step", "step", plain), Column("rank", "rank", _rank),
            Column("measured (ms)", "measured_ns", ms), Column("replayed", "replayed_ns", ms, 2),
            Column("off", "error_ratio", _off), Column("without gaps", "without_gaps_ns", ms, 2),
            Column("off", "without_gaps_error_ratio", _off),
            Column("unexplained", "unexplained_ratio", percent),
            Column("peers not captured", "exogenous_ratio", percent, 1),
        ],
        rows,
        "Replay: the job's steps, and of each the rank that is furthest off",
    )  # fmt: skip


def critical_path_table(path: pl.DataFrame) -> RenderableType:
    """What is longest on the path of each step; the rest in a row of its own."""
    rows = []
    for part in path.partition_by("step", maintain_order=True):
        rows += part[:_MOST_OF_A_STEP].to_dicts()
        rest = part[_MOST_OF_A_STEP:]
        if rest.height:
            sums = sum_of(rest, ["count", "path_ns", "share_ratio"])
            rows.append({**sums, "step": rest["step"][0], "part": f"{rest.height} more"})
    return FittedTable(
        [
            Column("step", "step", plain), Column("rank", "rank", plain), Column("part", "part"),
            Column("kind", "kind"), Column("type", "type"), Column("times", "count", str, 1),
            Column("on the path (ms)", "path_ns", ms),
            Column("of the step", "share_ratio", percent),
        ],
        rows,
        "Critical path",
    )  # fmt: skip


def runner_up_table(rows: pl.DataFrame) -> RenderableType:
    """What is longest on the runner-up path of each step, and by how much that is behind."""
    return FittedTable(
        [
            Column("step", "step", plain), Column("rank", "rank", plain), Column("part", "part"),
            Column("kind", "kind"), Column("type", "type"), Column("times", "count", str, 1),
            Column("on the path (ms)", "path_ns", ms),
            Column("of the path", "share_ratio", percent),
            Column("path is shorter by (ms)", "behind_ns", ms),
        ],
        [row for step in rows.partition_by("step", maintain_order=True)
         for row in step.head(_MOST_OF_A_STEP).to_dicts()],
        "Runner-up path: the longest but the critical one",
    )  # fmt: skip


def slack_table(rows: pl.DataFrame) -> RenderableType:
    """The operations with the least slack above 0 of each step: what is next to be critical."""
    steps = rows.filter(pl.col("slack_ns") > 0).partition_by("step", maintain_order=True)
    return FittedTable(
        [
            Column("step", "step", plain), Column("rank", "rank", plain), Column("kind", "kind"),
            Column("type", "type"), Column("took (ms)", "dur_ns", ms),
            Column("may take longer by (ms)", "slack_ns", ms),
        ],
        [row for step in steps for row in step.head(_MOST_OF_A_STEP).to_dicts()],
        "Slack: off the critical path, the least first",
    )  # fmt: skip


def whatif_steps_table(frame: pl.DataFrame) -> RenderableType:
    """Rows of the metric `whatif_steps`."""
    mean = frame.height - 1
    rows = [
        {**row, "what": "mean" if at == mean else plain(row["step"]),
         "change": _ratio_of(row["predicted_step_ns"], row["replayed_step_ns"])}
        for at, row in enumerate(frame.to_dicts())
    ]  # fmt: skip
    steps = FittedTable(
        [
            Column("step", "what"), Column("measured (ms)", "measured_step_ns", ms),
            Column("replayed", "replayed_step_ns", ms, 1),
            Column("predicted", "predicted_step_ns", ms), Column("change", "change", _off),
            Column("from", "predicted_low_ns", ms, 2), Column("to", "predicted_high_ns", ms, 2),
        ],
        rows,
        "What if",
    )  # fmt: skip
    saved = frame["saved"].to_list()[mean] or []
    columns = [Column("part", "part"), Column("kind", "kind"), Column("saved (ms)", "saved_ns", ms)]
    tables = [
        steps, FittedTable(columns, saved, "Where the saved time was, on the critical path")
    ]  # fmt: skip
    parts = frame["contributions"].to_list()[mean]
    return Group(*tables, *([] if parts is None else [_contributions_table(parts)]))


def _contributions_table(rows: list[dict[str, Any]]) -> FittedTable:
    """What makes a step longer than the ideal, the largest first."""
    parts = sorted(rows, key=_weight)
    more = len(parts) - _MOST_CONTRIBUTIONS
    return FittedTable(
        [
            Column("of", "kind"),
            Column("name", "name"),
            Column("step, times the ideal", "slowdown", _times),
        ],
        parts[:_MOST_CONTRIBUTIONS],
        "What makes the step longer, each alone",
        f"{more} more with --json" if more > 0 else None,
    )


def _ratio_of(part: int, whole: int) -> float | None:
    return part / whole - 1 if whole else None


def _off(value: float | None) -> str:
    return UNKNOWN if value is None else figure("{:+.2%}", value)


def _rank(value: int | None) -> str:
    return "all" if value is None else str(value)


def _weight(row: dict[str, Any]) -> float:
    return -(row["slowdown"] or 0.0)


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"x {value:.4f}"
