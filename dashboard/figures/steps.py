"""A mean step: gauges, parts of it by rank, and the losses from the peak to what is achieved."""

from __future__ import annotations

from itertools import accumulate

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.flops.losses import by_term
from npuscope.messages import Message

from ..locale.language import Say
from ..terminal.parts_table import PART_WORDS, SHOWN_FROM, WORDS
from ..theme import COMPUTING, EXPOSED, FONT, FREE, MASKED, STEP_PART_COLOURS
from ..units import fitting_unit
from .layout import MOST_BARS, STEP_PARTS, lay_out, rows_px

_GAUGE_PX = 190
_MOST_COLUMNS = MOST_BARS // len(STEP_PARTS)
_MOST_ROWS = 64


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
    divisor, unit = fitting_unit(bars["length_ns"].max(), "time")
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
            Message("A mean step of the {count} slowest ranks", count=bars.height)
            if key == "rank"
            else Message("The {count} longest of {every} steps", count=bars.height, every=every)
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title={"text": say(key)}, type="category" if bars.height <= 64 else None)
    return lay_out(figure, say, title, height_px=380, y=unit)


def parts_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `means.mean_parts`: parts of a mean step, one behind the other, of all or of each
    rank."""
    is_by_rank = "rank" in frame.columns
    ranks = frame["rank"].unique().sort().to_list()[:_MOST_ROWS] if is_by_rank else [None]
    names = [f"{say('rank')} {rank}" if is_by_rank else say("a mean step") for rank in ranks]
    figure = go.Figure()
    for part, colour in STEP_PART_COLOURS.items():
        rows = frame.filter(pl.col("part") == part)
        if rows.is_empty():
            continue
        by_rank = (
            dict(rows.select("rank", "ns").iter_rows()) if is_by_rank else {None: rows["ns"][0]}
        )
        figure.add_bar(
            y=names,
            x=[by_rank.get(rank, 0) / 1e6 for rank in ranks],
            name=say(PART_WORDS[part]),
            orientation="h",
            marker_color=colour,
            hovertemplate="%{y}: %{x:,.3f} ms",
        )
    figure.update_layout(barmode="stack")
    return lay_out(
        figure, say, "Where a step's time goes", height_px=rows_px(len(names)),
        x=say("ms per step"), is_listed=True,
    )  # fmt: skip


def waterfall_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Terms of a job's loss waterfall, from the whole peak down to what is achieved: rows of
    `losses.together`."""
    terms = by_term(frame).filter(pl.col("mfu_points").abs() >= SHOWN_FROM).reverse()
    lost = terms.filter(pl.col("term") != "achieved")
    achieved = terms.filter(pl.col("term") == "achieved")
    names = [say("peak"), *(say(WORDS[term]) for term in lost["term"]), say(WORDS["achieved"])]
    points = [100.0, *(-100 * lost["mfu_points"]), *(100 * achieved["mfu_points"])]
    each_ms = [ns / 1e6 for ns in (*lost["ns"], *achieved["ns"])]
    figure = go.Figure()
    figure.add_waterfall(
        y=names,
        x=points,
        measure=["absolute", *["relative"] * lost.height, "total"],
        orientation="h",
        text=[f"{abs(point):.1f}" for point in points],
        customdata=[sum(each_ms), *each_ms],
        hovertemplate="%{y}: %{text} %, %{customdata:,.3f} ms",
        decreasing={"marker": {"color": EXPOSED}},
        increasing={"marker": {"color": MASKED}},
        totals={"marker": {"color": COMPUTING}},
        connector={"line": {"color": FREE, "width": 1}},
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
    )
    figure.update_xaxes(range=[0, 1.12 * max(accumulate(points[:-1]))])
    return lay_out(
        figure, say, "From the peak to what is achieved", height_px=rows_px(len(names)),
        x=say("% of the peak"), is_listed=True,
    )  # fmt: skip
