"""From a step of one capture to a step of another: each part's change as a bar."""

from __future__ import annotations

from itertools import accumulate

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.compare.waterfall import by_part
from npuscope.analysis.views import sum_of
from npuscope.analysis.wording import delta_ms, ms
from npuscope.messages import Message

from ..locale.language import Say
from ..terminal.parts_table import WORDS
from ..theme import WATERFALL
from .layout import ends_as_lines, lay_out, rows_px

# Where changes are small beside the step, the axis begins near them, and only they are bars.
_FROM_NOTHING = 0.4
_LEAST_SPREAD = 0.001  # of the step: an axis of less counts what no number beside it shows
_ROOM = 0.3
_NUMBER = 0.14  # of the axis: as wide as a number


def change_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """A waterfall from the mean step of A to that of B: bars are sums of the rows of the metric
    `compare` for each part and end at the step of B, to the nanosecond."""
    parts = by_part(rows)
    whole = sum_of(parts, ("a_ns", "b_ns", "delta_ns"))
    ends = (whole["a_ns"], whole["b_ns"], whole["delta_ns"])
    names = [say(Message("step of {side}", side="A")), *(say(WORDS[one]) for one in parts["part"]),
             say(Message("step of {side}", side="B"))]  # fmt: skip
    changes = parts["delta_ns"].to_list()
    figure = go.Figure()
    figure.add_waterfall(
        y=names,
        x=[ns / 1e6 for ns in (ends[0], *changes, ends[1])],
        measure=["absolute", *["relative"] * len(changes), "total"],
        orientation="h",
        text=[ms(ends[0]), *map(delta_ms, changes), ms(ends[1])],
        customdata=[
            ends,
            *parts.select("a_ns", "b_ns", "delta_ns").rows(),
            ends,
        ],
        hovertemplate="%{y}<br>A %{customdata[0]:,} ns<br>B %{customdata[1]:,} ns<br>"
        "B - A %{customdata[2]:+,} ns<extra></extra>",
        **WATERFALL,
    )
    levels = [ns / 1e6 for ns in accumulate((ends[0], *changes))]
    spread = max(levels) - min(levels)
    wide = max(spread, _LEAST_SPREAD * max(levels))
    low = 0.0 if spread > _FROM_NOTHING * max(levels) else min(levels) - wide * _ROOM
    if low:
        ends_as_lines(figure, {0: ends[0] / 1e6, len(names) - 1: ends[1] / 1e6})
    elif min(levels) < _NUMBER * max(levels):
        low = -_NUMBER * max(levels)  # room for a number between the bar and the names
    figure.update_xaxes(range=[low, max(levels) + _ROOM * (max(levels) - low)])
    return lay_out(
        figure, say, "From a step of A to a step of B", height_px=rows_px(len(names)),
        x=say("ms of the job's step"), is_listed=True,
    )  # fmt: skip
