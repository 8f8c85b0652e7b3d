"""The health of a training, as terminal tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from npuscope.analysis.health.health import Health
from npuscope.analysis.health.steps import PHASE_COLUMNS
from npuscope.analysis.wording import percent

from .tables import Column, FittedTable, decimals

_seconds = decimals("{:,.3f}", 1e9)
_figure = decimals("{:,.4g}")
_LAST = 10


def health_tables(found: Health) -> Iterator[RenderableType]:
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
        [found.summary],
        "Health",
    )
    yield FittedTable(
        [
            Column("what", "kind"),
            Column("of", "metric"),
            Column("from step", "step", str),
            Column("to", "end_step", str),
            Column("steps", "count", _figure, 1),
            Column("every", "period_steps", _figure, 2),
            Column("value", "value", _figure),
            Column("usual", "usual", _figure),
            Column("cost (s)", "cost_ns", _seconds, 1),
        ],
        found.events.to_dicts(),
        "Events",
    )
    last = found.steps.tail(_LAST)
    yield FittedTable(
        [
            Column("step", "step", str),
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
                Column("step", "step", str),
                *(Column(name[:-3].replace("_", " "), name, _seconds) for name in phases),
            ],
            last.to_dicts(),
            "Phases (s); the tail is part of generation",
        )
