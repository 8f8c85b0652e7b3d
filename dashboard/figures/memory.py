"""Memory: curves of a rank, peaks of all, who holds it at the peak, and whether it grows."""

from __future__ import annotations

from itertools import cycle

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.wording import percent

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, FREE, SERIES
from ..units import fitting_unit
from .layout import add_parts, lay_out, numbered_names, of_many, rows_px, shorten

MOST_CURVES = 6
MOST_RANKS = 48
MOST_HOLDERS = 16
_PEAK_PARTS = (
    ("reserved at most", "peak_bytes", SERIES[6]),
    ("allocated at most", "peak_allocated_bytes", SERIES[0]),
)
_MOST_NAMED = 12  # ranks in a legend


def curve_figure(curve: pl.DataFrame, say: Say, steps: pl.DataFrame | None = None) -> go.Figure:
    """Rows of `memory_curve` of one rank: the most of each component in each stretch of time.

    Solid: allocated, dotted: reserved. `steps`: step, start_ns of the steps to mark, if any. At
    most MOST_CURVES components, those that rise highest.
    """
    keys = ["source", "device_id", "component"]
    peak = pl.max_horizontal("reserved_max_bytes", "allocated_max_bytes").max().over(keys)
    components = (
        curve.select(*keys, peak=peak).unique(keys).drop_nulls("peak").filter(pl.col("peak") > 0)
        .sort("peak", *keys, descending=[True, False, False, False], nulls_last=True)
    )  # fmt: skip
    top = components.head(MOST_CURVES)
    most = top["peak"].max()
    divisor, unit = fitting_unit(most, "memory")
    zero_ns = curve["start_ns"].min()
    several = components["device_id"].n_unique() > 1
    figure = go.Figure()
    for row, colour in zip(top.iter_rows(named=True), cycle(SERIES), strict=False):
        rows = curve.filter(pl.col(key).eq_missing(row[key]) for key in keys).sort("start_ns")
        at_ms = ((rows["start_ns"] - zero_ns) / 1e6).to_list()
        module = f" ({say('module')})" if row["source"] == "module" else ""
        device = f" {say('device')} {row['device_id']}" if several else ""
        for measure, dash in (("allocated", "solid"), ("reserved", "dot")):
            values = rows[f"{measure}_max_bytes"]
            if values.null_count() == values.len():
                continue
            figure.add_scatter(
                x=at_ms,
                y=(values / divisor).to_list(),
                name=f"{row['component']}{module}{device} {say(measure)}",
                mode="lines",
                line={"shape": "hv", "width": 1.8, "dash": dash, "color": colour},
                hovertemplate=f"%{{x:,.1f}} ms: %{{y:,.2f}} {unit}",
            )
    marks = []
    if steps is not None:
        marks = steps.select("step", "start_ns").drop_nulls().unique().sort("step").rows()
    at_step = [(str(step), (start_ns - zero_ns) / 1e6) for step, start_ns in marks]
    dotted = {"color": FREE, "width": 1, "dash": "dot"}
    figure.update_layout(
        shapes=[
            {
                "type": "line", "yref": "paper", "x0": ms, "x1": ms, "y0": 0, "y1": 1,
                "line": dotted,
            }
            for _, ms in at_step
        ],
        annotations=[
            {
                "text": step, "x": ms, "y": 1, "yref": "paper", "showarrow": False,
                "yanchor": "top", "xanchor": "left", "font": {"size": 11},
            }
            for step, ms in at_step[:: max(1, len(at_step) // _MOST_NAMED)]
        ],
    )  # fmt: skip
    part = "Memory over time: the {count} largest of {every} components"
    title = of_many("Memory over time", part, top.height, components.height)
    title = f"{say('rank')} {curve['rank'][0]} · {say(title)}" if curve.height else title
    figure = lay_out(figure, say, title, height_px=380, x=say("ms since the first record"), y=unit)
    return figure.update_yaxes(rangemode="tozero", separatethousands=True)


def peaks_figure(main: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `MemoryFacts.main`: the most each rank allocated and reserved, the fullest first."""
    top = main.head(MOST_RANKS)
    most = top.select(pl.max_horizontal("peak_bytes", "peak_allocated_bytes").max()).item()
    divisor, unit = fitting_unit(most, "memory")
    several = main.select("run", "capture", "rank").is_duplicated().any()
    names = numbered_names(
        f"{say('rank')} {rank}" + (f" {say('device')} {device}" if several else "")
        for rank, device in top.select("rank", "device_id").iter_rows()
    )
    parts = [part for part in _PEAK_PARTS if top[part[1]].is_not_null().any()]
    figure = add_parts(
        go.Figure(), top, names, parts, say, divisor=divisor, mode="group",
        hover=f"%{{y}}, %{{customdata}}: %{{x:,.3f}} {unit}",
        customdata=top["component"].to_list(),
    )  # fmt: skip
    part = "Peak of each rank: the {count} fullest of {every}"
    title = of_many("Peak of each rank", part, top.height, main.height)
    return lay_out(
        figure, say, title, height_px=rows_px(top.height, 30), x=unit, is_listed=True
    ).update_yaxes(dtick=1)


def holders_figure(holders: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `memory_holders` of one rank: what holds its memory when most of it is in use."""
    visible = holders.filter(pl.col("held_bytes") > 0).head(MOST_HOLDERS)
    whole = (visible["held_bytes"] / visible["share_ratio"]).max()
    divisor, unit = fitting_unit(whole, "memory")  # as the whole is told
    figure = go.Figure()
    figure.add_bar(
        y=numbered_names(
            shorten(name) if holder == "operator" else say(holder)
            for holder, name in visible.select("holder", "name").iter_rows()
        ),
        x=(visible["held_bytes"] / divisor).to_list(),
        text=[percent(share) for share in visible["share_ratio"]],
        textposition="outside",
        cliponaxis=False,
        orientation="h",
        marker_color=[FREE if one == "unexplained" else COMPUTING for one in visible["holder"]],
        customdata=[count or 0 for count in visible["block_count"]],
        hovertemplate=f"%{{y}}: %{{x:,.3f}} {unit}, %{{text}}, {say('blocks')} %{{customdata}}"
        "<extra></extra>",
        showlegend=False,
    )
    every = holders.filter(pl.col("held_bytes") > 0).height
    part = "Who holds the memory at the peak: {count} of {every}"
    title = of_many("Who holds the memory at the peak", part, visible.height, every)
    return lay_out(
        figure, say, title, height_px=rows_px(visible.height, 20), x=unit, is_listed=True
    ).update_yaxes(dtick=1)


def growth_figure(steps: pl.DataFrame, growth: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `memory_steps` of main components: what is in use at the end of each step, by rank.

    `growth`: rows of `memory_growth`; ranks that grow steadily stand out. At most MOST_RANKS ranks,
    those that grow fastest, in order of their numbers.
    """
    keys = ["rank", "device_id", "component", "source"]
    pace = growth.select(*keys, "is_steady", "growth_per_step_bytes").join(
        steps.select(keys).unique(), on=keys, nulls_equal=True
    )
    order = pace.sort("growth_per_step_bytes", *keys, descending=[True, False, False, False, False],
                      nulls_last=True)  # fmt: skip
    top = order.head(MOST_RANKS).sort(keys, nulls_last=True)
    most = steps["end_bytes"].max()
    divisor, unit = fitting_unit(most, "memory")
    colours = cycle(SERIES)
    figure = go.Figure()
    for row in top.iter_rows(named=True):
        one = steps.filter(pl.col(key).eq_missing(row[key]) for key in keys).sort("step")
        is_steady = bool(row["is_steady"])
        figure.add_scatter(
            x=one["step"].to_list(),
            y=(one["end_bytes"] / divisor).to_list(),
            name=f"{say('rank')} {row['rank']}" + (f" {say('grows')}" if is_steady else ""),
            mode="lines+markers",
            line={
                "width": 3 if is_steady else 1.5,
                "color": EXPOSED if is_steady else next(colours),
            },
            hovertemplate=f"{say('step')} %{{x}}: %{{y:,.3f}} {unit}",
        )
    part = "Memory at the end of each step: {count} of {every} ranks"
    title = of_many("Memory at the end of each step", part, top.height, order.height)
    figure = lay_out(figure, say, title, height_px=360, x=say("step"), y=unit)
    figure.update_yaxes(separatethousands=True)
    ticks = steps["step"].drop_nulls().unique().sort()
    if ticks.len() <= 20:
        figure.update_xaxes(tickvals=ticks.to_list())
    return figure.update_layout(
        showlegend=top.height <= _MOST_NAMED,
        legend={"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"},
    )
