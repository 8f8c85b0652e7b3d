"""Free time by cause, episodes and pace of the host as terminal tables."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.host.free_time import CAUSE_WORDS
from npuscope.analysis.wording import ms, number, percent, plain, us
from npuscope.messages import Message

from .tables import Column, FittedTable, decimals, several

STAGE_WORDS = {
    "python": Message("Python before the operator"),
    "prepare": Message("preparing in the operator"),
    "enqueue": Message("enqueuing"),
    "queue": Message("in the task queue"),
    "dequeue": Message("dequeuing until the launch"),
    "launch": Message("launch on its way"),
    "unknown": Message("no operator known"),
    "call": Message("in the call"),
    "event": Message("waiting for an event"),
    "copy": Message("copying"),
    "task": Message("another task"),
    "between": Message("between tasks"),
}
GAIN_WORDS = {
    **CAUSE_WORDS,
    "far_node": Message("threads on far cores"),
    "between_steps": Message("time between steps"),
}
BASIS_WORDS = {"replay": Message("replay"), "free time": Message("free time")}
_TITLES = {
    "gain": "What a mean step gains without a cause",
    "call": "What keeps the host from launching",
    "placement": "Threads on far cores",
    "episode": "When the device waited for the host",
    "pace": "How far the host runs ahead",
    "lead": "Lead of the host over time",
    "step": "Free time of each step",
}


def table_of(key: str, frame: pl.DataFrame, *, left_out: int = 0) -> FittedTable:
    """Rows of the metric that `npuscope host --by KEY` answers with."""
    caption = f"{left_out:,} more rows: --top, --json" if left_out else None
    title = _TITLES.get(key, "What the free time of a mean step was lost to")
    if key == "pace":
        return FittedTable(_pace(frame), frame.to_dicts(), title, caption)
    if key == "lead":
        columns = [
            Column("rank", "rank", plain), Column("at ns", "at_ns", plain),
            Column("launches", "launch_count", number),
            Column("median lead us", "lead_ns", us), Column("least lead us", "least_ns", us),
        ]  # fmt: skip
        return FittedTable(columns, frame.to_dicts(), title, caption)
    if key in ("gain", "call", "placement"):
        columns = {"gain": _gains, "call": _calls, "placement": _places}[key](frame)
        rows = frame
        if "cause" in frame.columns:
            rows = frame.with_columns(pl.col("cause").replace(GAIN_WORDS))
        return FittedTable(columns, rows.to_dicts(), title, caption)
    words = frame.with_columns(
        words=pl.col("cause").replace(CAUSE_WORDS), stage=pl.col("stage").replace(STAGE_WORDS)
    )
    columns = [
        *several(frame),
        *(Column(one, one, plain) for one in ("rank", "step") if one in frame.columns),
        Column("cause", "words", is_word=True),
        Column("stage", "stage", is_word=True),
        Column("operator", "operator"),
        Column("thread", "thread_id", plain, 2),
        Column("gaps", "count", decimals("{:,.1f}") if frame["count"].dtype.is_float() else number),
        Column("free ms", "free_ns", ms),
    ]
    if "share_ratio" in frame.columns:
        columns.append(Column("of free", "share_ratio", percent))
        columns.append(Column("of the step", "step_share_ratio", percent))
    columns.append(Column("longest ms", "longest_ns", ms, 1))
    if "start_ns" in frame.columns:
        columns.append(Column("start ns", "start_ns", plain, 3))
    empty = {name for name in ("stage", "operator", "thread_id") if frame[name].is_null().all()}
    columns_here = [column for column in columns if column.key not in empty]
    return FittedTable(columns_here, words.to_dicts(), title, caption)


def _gains(frame: pl.DataFrame) -> list[Column]:
    return [
        *several(frame),
        Column("cause", "cause", is_word=True),
        Column("operator", "operator"),
        Column("gain ms", "gain_ns", ms),
        Column("from", "gain_low_ns", ms),
        Column("to", "gain_high_ns", ms),
        Column("of the step", "step_share_ratio", percent),
        Column("free ms", "free_ns", ms, 1),
        Column("by", "basis", is_word=True),
        Column("change", "change", left_out=2),
    ]


def _calls(frame: pl.DataFrame) -> list[Column]:
    return [
        *several(frame),
        Column("rank", "rank", plain),
        Column("step", "step", plain),
        Column("cause", "cause", is_word=True),
        Column("operator", "operator"),
        Column("at", "location", left_out=1),
        Column("calls", "count", number),
        Column("total ms", "total_ns", ms),
        Column("longest ms", "longest_ns", ms, 1),
    ]


def _places(frame: pl.DataFrame) -> list[Column]:
    return [
        *several(frame),
        Column("rank", "rank", plain),
        Column("device's node", "device_node", plain, 1),
        Column("far", "far_ratio", percent),
        Column("migrations", "migration_count", number),
        Column("far launches", "far_count", number, 1),
        Column("times as long", "slow_ratio", decimals("{:.2f}")),
        Column("from", "slow_low_ratio", decimals("{:.2f}")),
        Column("to", "slow_high_ratio", decimals("{:.2f}")),
    ]


def _pace(frame: pl.DataFrame) -> list[Column]:
    return [
        *several(frame),
        Column("rank", "rank", plain),
        Column("step", "step", plain),
        Column("launches", "launch_count", number),
        Column("host us/launch", "pace_ns", us),
        Column("device us/launch", "device_ns", us),
        Column("median lead us", "lead_p50_ns", us),
        Column("p10 lead us", "lead_p10_ns", us, 1),
        Column("p90 lead us", "lead_p90_ns", us, 2),
        Column("call p50 us", "call_p50_ns", us, 2),
        Column("call p99 us", "call_p99_ns", us, 2),
        Column("queue", "queue_p50_count", number, 1),
        Column("queue max", "queue_max_count", number, 1),
        Column("queue full ms", "queue_full_ns", ms),
        Column("waits for device ms", "host_wait_ns", ms, 1),
    ]
