"""Operators: which take longest, how near they come to the chip's limits, what cores do in them."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.operators.causes import CAUSE_WORDS
from npuscope.analysis.wording import percent
from npuscope.messages import Message

from ..locale.language import Say
from ..terminal.operator_tables import CLASS_WORDS
from ..theme import CLASSES, COMPUTING, FREE, SERIES
from .layout import lay_out, log_ticks, numbered_names, of_many, rows_px, shorten

MOST_ROWS = 25
MOST_POINTS = 5_000
_LEAST_LABELLED = 0.04  # of a bar: a share written into less would be turned or shrunk
# Dark figures can be read on all of it, on a light page and on a dark one.
_LIGHT_TO_STRONG = [[0, "#e3edf2"], [1, "#5cb3d1"]]
_PIPES = (
    ("cube multiplies", "aic_mac_ratio"), ("cube loads", "aic_mte2_ratio"),
    ("vector computes", "aiv_vec_ratio"), ("vector loads", "aiv_mte2_ratio"),
    ("vector stores", "aiv_mte3_ratio"),
)  # fmt: skip


def classes_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `operator_classes`: one bar of a mean rank's step, a part for each class."""
    figure = go.Figure()
    for name, ns, share in rows.select("class", "computing_ns", "share_ratio").iter_rows():
        figure.add_bar(
            y=[""], x=[ns / 1e6], name=say(CLASS_WORDS[name]), orientation="h",
            marker_color=CLASSES[name], textposition="inside", textangle=0,
            text=percent(share) if share is None or share >= _LEAST_LABELLED else "",
            customdata=[percent(share)], hovertemplate="%{x:,.3f} ms, %{customdata}",
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    return lay_out(figure, say, Message("Computing time by class"), height_px=190,
                   x=say("ms per step and rank"))  # fmt: skip


def headroom_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `operator_headroom`: the MOST_ROWS with the most headroom, from low to high."""
    top = rows.drop_nulls("headroom_high_ns").head(MOST_ROWS)
    names = [
        f"{shorten(type_ or '-')} {shorten((shapes or '').rstrip(';'))} "
        for type_, shapes in top.select("type", "input_shapes").iter_rows()
    ]
    places = list(range(top.height))
    low, high = top["headroom_low_ns"] / 1e6, top["headroom_high_ns"] / 1e6
    figure = go.Figure()
    figure.add_bar(y=places, x=low.to_list(), orientation="h", name=say("beyond its like"),
                   marker_color=COMPUTING, hovertemplate="%{x:,.3f} ms")  # fmt: skip
    figure.add_bar(
        y=places, x=(high - low).to_list(), orientation="h", name=say("beyond the chip's limits"),
        marker_color=FREE, customdata=high.to_list(), hovertemplate="%{customdata:,.3f} ms",
    )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure = lay_out(figure, say, Message("Headroom of operators"), height_px=rows_px(top.height),
                     x=say("ms per step and rank"), is_listed=True)  # fmt: skip
    return figure.update_yaxes(tickvals=places, ticktext=names)


def causes_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `operator_causes` with headroom: a bar for each, a line from its low to its high."""
    visible = rows.filter(pl.col("headroom_high_ns") > 0)
    headroom = visible["headroom_ns"].fill_null(0) / 1e6
    low, high = visible["headroom_low_ns"] / 1e6, visible["headroom_high_ns"] / 1e6
    places = list(range(visible.height))
    figure = go.Figure()
    figure.add_bar(
        y=places, x=headroom.to_list(), orientation="h", marker_color=COMPUTING,
        customdata=list(zip(low.to_list(), high.to_list(), strict=True)), showlegend=False,
        error_x={
            "type": "data", "symmetric": False, "color": FREE, "thickness": 2, "width": 4,
            "array": (high - headroom).to_list(), "arrayminus": (headroom - low).to_list(),
        },
        hovertemplate="%{x:,.3f} ms (%{customdata[0]:,.3f} - %{customdata[1]:,.3f})<extra></extra>",
    )  # fmt: skip
    figure = lay_out(
        figure, say, Message("Causes of slow operators"), height_px=rows_px(visible.height),
        x=say("ms per step and rank"), is_listed=True,
    )  # fmt: skip
    names = [f"{say(CAUSE_WORDS[name])} " for name in visible["cause"]]
    return figure.update_yaxes(tickvals=places, ticktext=names)


def top_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_kernels`: the MOST_ROWS longest of a mean rank's step, and their shares."""
    top = rows.head(MOST_ROWS)
    key = next(name for name in ("type", "name", "shape", "core") if name in rows.columns)
    names = [f"{shorten(value)} " for value in top[key]]
    figure = go.Figure()
    figure.add_bar(
        y=list(range(top.height)),
        x=(top["total_ns"] / 1e6).to_list(),
        text=["" if share is None else percent(share) for share in top["share_ratio"]],
        textposition="outside",
        cliponaxis=False,
        customdata=[
            [name or "-", count, mean_ns / 1e3]
            for name, count, mean_ns in top.select(key, "count", "mean_ns").iter_rows()
        ],
        orientation="h",
        marker_color=COMPUTING,
        hovertemplate="%{customdata[0]}<br>%{x:,.3f} ms, %{text}<br>"
        "%{customdata[1]:,.1f} × %{customdata[2]:,.1f} us<extra></extra>",
        showlegend=False,
    )
    part = "Longest kernels: {count} of {every}"
    title = of_many("Longest kernels", part, top.height, rows.height)
    figure = lay_out(
        figure, say, title, height_px=rows_px(top.height, 17), x=say("ms per step and rank"),
        is_listed=True,
    )  # fmt: skip
    return figure.update_yaxes(tickvals=list(range(top.height)), ticktext=names)


def roofline_figure(points: pl.DataFrame, peaks: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `roofline.points`, the longest MOST_POINTS, under the limits of their chip.

    `peaks`: dtype, peak_flops_per_s, hbm_bytes_per_s (NULL where unknown). A point's area is its
    time.
    """
    top = points.head(MOST_POINTS)
    longest_ns = top["total_ns"].max()
    scale = float(longest_ns) if isinstance(longest_ns, int) else 1.0
    figure = go.Figure()
    for at, name in enumerate(top["type"].unique(maintain_order=True)):
        one = top.filter(pl.col("type") == name)
        figure.add_scatter(
            x=one["intensity"].to_list(),
            y=(one["achieved_flops_per_s"] / 1e12).to_list(),
            name=shorten(name, 32),
            mode="markers",
            marker={
                "size": [6 + 26 * (ns / scale) ** 0.5 for ns in one["total_ns"]],
                "color": SERIES[at % len(SERIES)],
                "opacity": 0.75,
                "line": {"width": 0},
            },
            customdata=one.select(
                pl.col("input_shapes").map_elements(shorten, return_dtype=pl.String),
                pl.col("total_ns") / 1e6,
                pl.col("peak_share_ratio") * 100,
            ).rows(),
            hovertemplate="%{customdata[0]}<br>%{x:,.1f} FLOP/byte, %{y:,.1f} TFLOP/s,"
            " %{customdata[2]:.1f} %<br>%{customdata[1]:,.3f} ms",
        )
    if top.height:
        _limits(figure, top, peaks, say)
    title = "Kernels under the roofline of their chip"
    figure = lay_out(figure, say, title, height_px=460, x=say("FLOP per byte moved"), y="TFLOP/s")
    figure.update_layout(
        legend={
            "orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top",
            "itemsizing": "constant",
        }
    )  # fmt: skip
    if top.height:
        figure.update_xaxes(**log_ticks(top["intensity"]))
        figure.update_yaxes(**log_ticks(top["achieved_flops_per_s"] / 1e12))
    return figure.update_xaxes(type="log").update_yaxes(type="log")


def _limits(figure: go.Figure, points: pl.DataFrame, peaks: pl.DataFrame, say: Say) -> None:
    """Ceilings of the types that are drawn: the cube's peak, and memory's slope up to it."""
    used = points["dtype"].drop_nulls().unique()
    limits = peaks.filter(pl.col("dtype").is_in(used.implode())).drop_nulls("peak_flops_per_s")
    reach = points.select(
        least=pl.col("intensity").min() / 2, most=pl.col("intensity").max() * 2
    ).row(0)
    heights = ["peak_flops_per_s", "hbm_bytes_per_s"]
    for alike in limits.partition_by(heights, maintain_order=True):
        peak, hbm = alike.select(heights).row(0)
        dtypes = alike["dtype"].unique(maintain_order=True)
        least, most = reach
        x, y = [least, most], [peak, peak]
        if hbm is not None:
            ridge = peak / hbm
            least = min(least, ridge / 2)
            x, y = [least, ridge, max(most, ridge * 2)], [least * hbm, peak, peak]
        figure.add_scatter(
            x=x,
            y=[one / 1e12 for one in y],
            name=say(Message("limit, {dtypes}", dtypes=", ".join(dtypes))),
            mode="lines",
            line={"color": FREE, "width": 2, "dash": "solid" if hbm is not None else "dash"},
            hovertemplate="%{x:,.1f} FLOP/byte: %{y:,.1f} TFLOP/s",
        )


def cores_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `core_use`: how long cube and vector cores of the longest types are busy, and what
    they do, as shares of the kernels' time."""
    visible = rows.filter(pl.col("timed_ns") > 0).head(MOST_ROWS)
    names = numbered_names(shorten(name, 40) for name in visible["type"])
    columns = [
        (say("cube busy"), "cube_busy_ratio"),
        (say("vector busy"), "vector_busy_ratio"),
        *((say(name), column) for name, column in _PIPES if column in visible.columns),
    ]
    columns = [(name, column) for name, column in columns if visible[column].is_not_null().any()]
    grid = [[row[column] for _, column in columns] for row in visible.iter_rows(named=True)]
    figure = go.Figure(
        go.Heatmap(
            z=[[None if value is None else value * 100 for value in row] for row in grid],
            x=[name.replace(" ", "<br>") for name, _ in columns],
            y=names,
            zmin=0,
            zmax=100,
            colorscale=_LIGHT_TO_STRONG,
            showscale=False,
            texttemplate="%{z:.0f} %",
            textfont={"color": "#12181d"},
            hovertemplate="%{y}, %{x}: %{z:.1f} %<extra></extra>",
            hoverongaps=False,
            xgap=2,
            ygap=2,
        )
    )
    figure = lay_out(
        figure, say, "What the cores do, share of the kernels' time",
        height_px=rows_px(visible.height), is_listed=True,
    )  # fmt: skip
    figure.update_xaxes(side="top", showgrid=False, type="category", tickangle=0)
    figure.update_yaxes(showgrid=False, type="category")
    return figure.update_layout(margin={"t": 96})
