"""The health of a training, as terminal tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.health.health import Health
from npuscope.analysis.health.steps import PHASE_COLUMNS
from npuscope.analysis.wording import UNKNOWN, percent, plain

from .tables import Column, FittedTable, decimals

_seconds = decimals("{:,.3f}", 1e9)
_figure = decimals("{:,.4g}")
_whole = decimals("{:,.0f}")
_LAST = 10
_MOST_SPIKES = 30


def health_tables(health: Health) -> Iterator[RenderableType]:
    """What went wrong, the last steps, and of RL their phases."""
    yield FittedTable(
        [
            Column("goodput", "goodput_ratio", percent),
            Column("steps", "steps_count", str),
            Column("useful (s)", "useful_s", decimals("{:,.1f}")),
            Column("wall (s)", "wall_s", decimals("{:,.1f}")),
            Column("grad norm spikes per 1,000", "grad_norm_spikes_per_1000_steps", _figure),
            Column("loss spikes per 1,000", "loss_spikes_per_1000_steps", _figure),
        ],
        [health.summary],
        "Health",
    )
    newest, left = _latest(health.events)
    yield FittedTable(
        [
            Column("what", "kind"),
            Column("of", "metric"),
            Column("from step", "step", str),
            Column("to", "end_step", str),
            Column("steps", "count", _whole, 1),
            Column("every", "period_steps", _whole, 2),
            Column("value", "value", str),
            Column("usual", "usual", str),
            Column("cost (s)", "cost_ns", _seconds, 1),
        ],
        event_rows(newest),
        "Events",
        f"{left:,} earlier spikes: --json has all" if left else "",
    )
    last = health.steps.tail(_LAST)
    yield FittedTable(
        [
            Column("step", "step", plain),
            Column("time (s)", "step_ns", _seconds),
            Column("loss", "loss", _figure),
            Column("grad norm", "grad_norm", _figure),
            Column("tokens/s", "tokens_per_second", decimals("{:,.1f}")),
            Column("per card", "tokens_per_second_per_card", decimals("{:,.1f}"), 1),
        ],
        last.to_dicts(),
        "Last steps",
    )
    if last["generation_ns"].count():
        phases = (*PHASE_COLUMNS, "other_ns", "generation_tail_ns")
        yield FittedTable(
            [
                Column("step", "step", plain),
                *(Column(name[:-3].replace("_", " "), name, _seconds) for name in phases),
            ],
            last.to_dicts(),
            "Phases (s); the tail is part of generation",
        )


_TITLES = {
    "phases": "Phases: shares of time and of all cards",
    "bounds": "Bounds: no step is shorter, if its phases take what they take now",
    "scaling": "Scaling over supernodes",
    "heads": "MTP heads: accepted at least, by their losses",
    "speculation": "Speculative decoding",
    "captures": "Captures and events",
    "dropped": "Tokens that experts refused, latest steps",
}
_rate = decimals("{:,.1f}")
_length = decimals("{:.2f}")
_tokens = decimals("{:,.0f}")
_times = decimals("{:.3f}x")
_COLUMNS = {
    "phases": (
        Column("phase", "phase", is_word=True),
        Column("time (s)", "dur_ns", _seconds),
        Column("of the step", "step_share", percent),
        Column("of all cards", "device_share", percent),
        Column("idle cards", "idle_share", percent),
    ),
    "bounds": (
        Column("case", "case", is_word=True),
        Column("steps ahead", "stale_count", _figure),
        Column("step (s)", "step_ns", _seconds),
        Column("tokens/s", "tokens_per_second", _rate),
        Column("faster", "speedup_ratio", _times),
    ),
    "scaling": (
        Column("supernodes", "supernodes_count", str),
        Column("tokens/s", "tokens_per_second", _rate),
        Column("of each", "supernode_tokens_per_s", _rate),
        Column("faster", "speedup_ratio", _times),
        Column("linear", "linear_share", percent),
        Column("from", "low", percent, 1),
        Column("to", "high", percent, 1),
    ),
    "heads": (
        Column("head", "head", str),
        Column("loss", "loss", _figure),
        Column("of the head", "head_loss", _figure),
        Column("accepted", "acceptance_share", percent),
        Column("length", "accepted_length", _length),
    ),
    "captures": (
        Column("capture", "capture"),
        Column("from step", "step", str),
        Column("to", "end_step", str),
        Column("event", "kind"),
        Column("of", "metric"),
        Column("from step", "event_step", plain, 1),
        Column("to", "event_end_step", plain, 1),
        Column("logged (s)", "logged_ns", _seconds),
        Column("usual (s)", "usual_ns", _seconds),
    ),
    "dropped": (
        Column("step", "step", str),
        Column("layers", "layers_count", str, 2),
        Column("routed", "routed_tokens", _tokens),
        Column("dropped", "dropped_tokens", _tokens),
        Column("share", "dropped_ratio", percent),
        Column("worst layer", "worst_layer", _tokens, 1),
        Column("its share", "worst_ratio", percent, 1),
    ),
    "speculation": (
        Column("engine", "engine"),
        Column("head", "head", _figure),
        Column("drafted", "drafted_tokens", decimals("{:,.0f}"), 2),
        Column("accepted", "accepted_tokens", decimals("{:,.0f}"), 1),
        Column("acceptance", "acceptance_share", percent),
        Column("length", "accepted_length", _length),
        Column("tokens/s", "tokens_per_second", _rate),
        Column("worth tokens/s", "worth_tokens_per_s", _rate),
    ),
}


def _latest(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """All events but for spikes before the latest, and how many these are."""
    is_spike = pl.col("kind") == "spike"
    left = max(0, events.filter(is_spike).height - _MOST_SPIKES)
    visible = events.filter(~is_spike | (pl.int_range(pl.len()).over("kind") >= left))
    return visible, left


def event_rows(events: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of `health_events` with their values as text: times in s."""
    return [
        {**row, **{name: _value(row[name], row["metric"]) for name in ("value", "usual")}}
        for row in events.to_dicts()
    ]


def _value(value: float | None, metric: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / 1e9:,.3f} s" if metric == "step_ns" else f"{value:,.4g}"


def speculation_table(rows: pl.DataFrame) -> RenderableType:
    """Drafted and accepted tokens of serving engines."""
    return FittedTable(_COLUMNS["speculation"], rows.to_dicts(), _TITLES["speculation"])


def balance_table(rows: pl.DataFrame) -> RenderableType:
    """What unequal sequences cost each step."""
    return FittedTable(
        [
            Column("step", "step", str),
            Column("ranks", "ranks_count", str, 1),
            Column("sequences", "sequences_count", str, 2),
            Column("mean (s)", "mean_ns", _seconds),
            Column("slowest (s)", "max_ns", _seconds),
            Column("unequal", "imbalance_share", percent),
            Column("arranged (s)", "arranged_ns", _seconds),
            Column("saves", "saved_share", percent),
        ],
        rows.to_dicts(),
        "Sequences of unequal lengths",
    )


def more_tables(frames: Mapping[str, pl.DataFrame]) -> Iterator[RenderableType]:
    """What is told beyond the steps, where there is any."""
    for name, rows in frames.items():
        if not rows.is_empty():
            visible = rows.tail(_LAST) if name == "dropped" else rows
            yield FittedTable(_COLUMNS[name], visible.to_dicts(), _TITLES[name])


def dropped_table(rows: pl.DataFrame) -> RenderableType:
    """What experts refused in the latest counted steps."""
    (table,) = more_tables({"dropped": rows})
    return table
