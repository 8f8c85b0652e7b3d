"""The overview: two gauges, and the length of steps of many ranks."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from ..locale.language import Say
from ..theme import COMPUTING, FONT, MASKED
from .bars import STEP_PARTS
from .layout import MOST_BARS, laid_out, time_unit

_GAUGE_PX = 190
_MOST_COLUMNS = MOST_BARS // len(STEP_PARTS)


def gauge(ratio: float, say: Say, title: str, colour: str) -> go.Figure:
    """A ratio as a half circle from 0 to 100 %."""
    figure = go.Figure()
    figure.add_indicator(
        mode="gauge+number",
        value=100 * ratio,
        number={"suffix": " %", "valueformat": ".1f", "font": {"size": 34}},
        title={"text": say(title), "font": {"size": 14}},
        gauge={
            "axis": {"range": [0, 100], "nticks": 6, "ticksuffix": "", "tickfont": {"size": 10}},
            "bar": {"color": colour, "thickness": 0.9},
            "bgcolor": "rgba(128,128,128,0.14)",
            "borderwidth": 0,
        },
    )
    figure.update_layout(
        height=_GAUGE_PX, margin={"l": 26, "r": 30, "t": 44, "b": 6}, font={"family": FONT}
    )
    return figure


def mfu_gauge(ratio: float, say: Say) -> go.Figure:
    """Kernel MFU."""
    return gauge(ratio, say, "Kernel MFU", COMPUTING)


def masking_gauge(ratio: float, say: Say) -> go.Figure:
    """Communication hidden behind compute."""
    return gauge(ratio, say, "Communication masked", MASKED)


def ranks_figure(bars: pl.DataFrame, say: Say) -> go.Figure:
    """A mean step of each rank, of one rank each step, as a column: computing, exposed
    communication and free time.

    `bars` are rows of `mean_step_bars`; of more columns than can be drawn the longest.
    """
    key = "rank" if "rank" in bars.columns else "step"
    every = bars.height
    bars = bars.sort("length_ns", descending=True).head(_MOST_COLUMNS).sort(key, nulls_last=True)
    most_ns = bars["length_ns"].max()
    divisor, unit = time_unit(float(most_ns) if isinstance(most_ns, float) else None)
    figure = go.Figure()
    for name, column, colour in STEP_PARTS:
        figure.add_bar(
            x=bars[key].to_list(),
            y=(bars[column] / divisor).to_list(),
            name=say(name),
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"{say(key)} %{{x}}: %{{y:,.3f}} {unit}",
        )
    title = "A mean step of each rank" if key == "rank" else "Each step"
    if bars.height < every:
        title = (
            f"A mean step of the {bars.height} slowest ranks"
            if key == "rank"
            else f"The {bars.height} longest of {every} steps"
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title={"text": say(key)}, type="category" if bars.height <= 64 else None)
    return laid_out(figure, say, title, height_px=380, y=unit)
