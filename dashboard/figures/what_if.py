"""From a step as it was to a step after changes: what is saved, part by part of the critical path,
and the range of what is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from npuscope.analysis.wording import delta_ms, ms
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import WATERFALL, WORSE
from .layout import ends_as_lines, lay_out, rows_px

PATH_WORDS = {
    "computing": "computing",
    "communication": "communication",
    "exogenous": "communication with ranks not captured",
    "task": "another task",
    "host": "host between launches",
    "launch": "launch to the device",
    "overhead": "between operations",
    "gap": "gaps that nothing explains",
    "micro-batches": "micro-batches",
    "schedule": "schedule",
}
_ROOM = 0.18
_LEAST_SPREAD = 0.001  # of the step, as in a comparison
_FROM_NOTHING = 0.4


def saved_figure(row: Mapping[str, Any], say: Say) -> go.Figure:
    """A waterfall from the replayed to the predicted step, and the range of that: a row of
    `whatif_steps`."""
    parts = row["saved"] or []
    names = [say("step replayed")]
    for one in parts:
        word = say(PATH_WORDS[one["part"]])
        names.append(f"{word}: {one['kind']}" if one["kind"] else word)
    names.append(say("step predicted"))
    begin, end = row["replayed_step_ns"], row["predicted_step_ns"]
    changes = [-one["saved_ns"] for one in parts]
    figure = go.Figure()
    figure.add_waterfall(
        y=names,
        x=[ns / 1e6 for ns in (begin, *changes, end)],
        measure=["absolute", *["relative"] * len(changes), "absolute"],
        orientation="h",
        text=[ms(begin), *map(delta_ms, changes), ms(end)],
        hovertemplate="%{y}: %{text} ms<extra></extra>",
        **WATERFALL,
    )
    low, high = row["predicted_low_ns"], row["predicted_high_ns"]
    figure.add_scatter(
        x=[low / 1e6, high / 1e6],
        y=[say("range")] * 2,
        mode="lines+markers+text",
        text=[ms(low), ms(high)],
        textposition=["middle left", "middle right"],
        marker={"symbol": "line-ns-open", "size": 16, "color": WORSE},
        line={"color": WORSE, "width": 2},
        name=say("range"),
        showlegend=False,
        hovertemplate=f"{ms(low)} - {ms(high)} ms<extra></extra>",
    )
    levels = [ns / 1e6 for ns in (*accumulate((begin, *changes)), low, high)]
    spread = max(levels) - min(levels)
    least = 0.0
    if spread < _FROM_NOTHING * max(levels):  # changes are small: the axis begins near them
        least = min(levels) - max(spread, _LEAST_SPREAD * max(levels)) * 2 * _ROOM
        ends_as_lines(figure, {0: begin / 1e6, len(names) - 1: end / 1e6})
    figure.update_xaxes(range=[least, max(levels) + 2 * _ROOM * (max(levels) - least)])
    title = Message("From the step replayed to the step predicted")
    return lay_out(
        figure, say, title, height_px=rows_px(len(names) + 1), x=say("ms of the job's step"),
        is_listed=True,
    )  # fmt: skip
