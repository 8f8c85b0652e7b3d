"""A mean step: gauges, parts of it by rank, and the losses from the peak to what is achieved."""

from __future__ import annotations

from itertools import accumulate, groupby

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.flops.losses import by_term
from npuscope.messages import Message

from ..locale.language import Say
from ..terminal.parts_table import PART_WORDS, SHOWN_FROM, WORDS
from ..theme import COMPUTING, EXPOSED, FONT, FREE, MASKED, STEP_PART_COLOURS
from ..units import fitting_unit
from .layout import (
    LEGEND_COLUMNS,
    LEGEND_ROW_PX,
    MOST_BARS,
    STEP_PARTS,
    lay_out,
    rows_px,
    without_stripes,
)

_GAUGE_PX = 190
_TITLE_PX = 36
_NUMBER_PX = 40
_MOST_COLUMNS = MOST_BARS // len(STEP_PARTS)
_MOST_ROWS = 64
_MOST_PX = 720  # with what is above and below, two screens
_MOST_STAGES, _FEW_STAGES = 8, 2  # have room for their names, and for these in a line


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


def ranks_figure(
    bars: pl.DataFrame,
    say: Say,
    stages: pl.DataFrame | None = None,
    silent: pl.DataFrame | None = None,
    *,
    height_px: int = 380,
) -> go.Figure:
    """A mean step of each rank, of one rank each step, as a column: computing, exposed
    communication and free time.

    `bars` are rows of `mean_step_bars`; of more columns than can be drawn the longest. `stages`:
    rank, pp_rank, computing_ns (of a mean rank of the stage); each stage that holds ranks side by
    side then has its name above them and a line across at what it computes. `silent`: rank, reason;
    ranks without a step, as grey marks.
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
    if key == "rank" and silent is not None and 0 < silent.height <= _MOST_ROWS - bars.height:
        figure.add_scatter(
            x=silent["rank"].to_list(), y=[0] * silent.height, mode="markers",
            name=say("nothing recorded"), customdata=[say(one) for one in silent["reason"]],
            marker={"symbol": "x-thin", "size": 9, "line": {"color": FREE, "width": 2}},
            hovertemplate=f"{say(key)} %{{x}}: %{{customdata}}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(
            categoryorder="array", categoryarray=sorted([*bars[key], *silent["rank"]])
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
    figure = lay_out(figure, say, title, height_px=height_px, y=unit)
    without_stripes(figure, bars.height)
    if key == "rank" and stages is not None and bars.height == every:
        _name_stages(figure, bars["rank"].to_list(), stages, divisor, unit, say)
    return figure


def _name_stages(
    figure: go.Figure, ranks: list[int], stages: pl.DataFrame, divisor: float, unit: str, say: Say
) -> None:
    of_rank = {rank: (stage, ns) for rank, stage, ns in
               stages.select("rank", "pp_rank", "computing_ns").iter_rows()}  # fmt: skip
    runs = [
        (stage, [at for at, _ in places])
        for stage, places in groupby(
            enumerate(of_rank.get(rank) for rank in ranks), key=lambda one: one[1]
        )
    ]
    if None in of_rank.values() or not 1 < len(runs) == len(set(of_rank.values())) <= _MOST_STAGES:
        return
    is_category = len(ranks) <= _MOST_ROWS
    for place, places in runs:
        if place is None or place[1] is None:
            continue
        ends = (places[0] - 0.5, places[-1] + 0.5)
        if not is_category:
            ends = (ranks[places[0]] - 0.5, ranks[places[-1]] + 0.5)
        level = place[1] / divisor
        figure.add_shape(
            type="line", x0=ends[0], x1=ends[1], y0=level, y1=level,
            line={"width": 2, "dash": "dot"},
        )  # fmt: skip
        time = f"{level:,.3f}"
        words = say(Message("stage {number}: computing {time} {unit}", number=place[0], time=time,
                            unit=unit))  # fmt: skip
        if len(runs) > _FEW_STAGES:
            words = f"{say(Message('stage {number}', number=place[0]))}<br>{time}"
        figure.add_annotation(
            x=sum(ends) / 2, y=1, yref="paper", yanchor="bottom", showarrow=False,
            text=f"<b>{words}</b>",
        )  # fmt: skip
    # Their names stand where the legend would: it goes up, beside the title.
    figure.update_layout(legend={"yref": "container", "y": 0.99, "yanchor": "top"})


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
    legend_px = LEGEND_ROW_PX * -(-len(figure.data) // LEGEND_COLUMNS)
    height_px = min(rows_px(len(names)) + legend_px, _MOST_PX)
    figure = lay_out(
        figure, say, "Where a step's time goes", height_px=height_px, x=say("ms per step"),
        is_listed=True,
    )  # fmt: skip
    # Below the title, where it has room in a narrow window, too.
    return figure.update_layout(
        margin={"t": _TITLE_PX + legend_px + 12},
        legend={"x": 0, "xanchor": "left", "yref": "container", "y": 1 - _TITLE_PX / height_px,
                "yanchor": "top"},
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
    levels = [*accumulate(points[:-1])]
    # Numbers stand before the bars: where a bar begins near 0 they need room beside the names.
    least = -0.12 * max(levels) if min(levels) < 0.15 * max(levels) else 0.0
    figure.update_xaxes(range=[least, 1.12 * max(levels)], tick0=0)
    figure = lay_out(
        figure, say, "From the peak to what is achieved", height_px=rows_px(len(names)),
        x=say("% of the peak"), is_listed=True,
    )  # fmt: skip
    return figure.update_layout(margin_r=_NUMBER_PX)  # behind the peak, in a narrow window, too
