"""Frames of the analyses as figures to look at; pages and reports show them.

`say` puts words into the reader's language. Times are drawn in ms, memory in MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, cycle

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.flops.losses import by_term

from ..locale.language import Say
from ..terminal.parts_table import PART_WORDS
from ..terminal.waterfall_table import SHOWN_FROM, WORDS
from ..theme import COMPUTING, EXPOSED, FONT, FREE, MASKED, SERIES, STEP_PART_COLOURS
from .bars import HIDING_PARTS, STEP_PARTS, add_parts
from .experts import load_figure

_MOST_BARS = 64
_BAR_PX, _FRAME_PX, _LEAST_PX = 22, 110, 220


def steps_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_step_bars`: a mean step of each rank, or each step where there is one rank."""
    key = "rank" if "rank" in frame.columns else "step"
    bars = frame.sort("length_ns", key, descending=[True, False]).head(_MOST_BARS).sort(key)
    names = [f"{say(key)} {value}" for value in bars[key]]
    figure = add_parts(go.Figure(), bars, names, STEP_PARTS, say)
    title = "Where a mean step goes on each rank" if key == "rank" else "Where each step goes"
    return _laid_out(figure, say, title, bars.height, "ms per step")


def parts_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `means.mean_parts`: parts of a mean step, one behind the other, of all or of each
    rank."""
    is_by_rank = "rank" in frame.columns
    ranks = frame["rank"].unique().sort().to_list()[:_MOST_BARS] if is_by_rank else [None]
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
    return _laid_out(figure, say, "Where a step's time goes", len(names), "ms per step")


def kernels_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_kernels` by type or name, the longest first."""
    key = "type" if "type" in frame.columns else "name"
    names = [str(value) if value is not None else "-" for value in frame[key]]
    figure = go.Figure()
    figure.add_bar(
        y=names,
        x=(frame["total_ns"] / 1e6).to_list(),
        text=["-" if share is None else f"{share:.1%}" for share in frame["share_ratio"]],
        orientation="h",
        marker_color=COMPUTING,
        hovertemplate="%{y}: %{x:,.3f} ms, %{text}",
        showlegend=False,
    )
    return _laid_out(figure, say, "Longest kernels", frame.height, "ms per step and rank")


def communication_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_comm` by kind and type: what compute hides of it, and what it does not."""
    rows = frame.drop_nulls(["masked_ns", "exposed_ns"]).head(_MOST_BARS)
    names = [f"{kind} {op or '-'}" for kind, op in zip(rows["kind"], rows["op_type"], strict=True)]
    figure = add_parts(go.Figure(), rows, names, HIDING_PARTS, say)
    title = "Communication, hidden behind compute or exposed"
    return _laid_out(figure, say, title, rows.height, "ms per step and rank")


def memory_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Curves of one rank: what each component reserved and what of it was allocated."""
    figure = go.Figure()
    start_ns = frame["start_ns"].min()
    components = frame.partition_by("component", maintain_order=True)
    for rows, colour in zip(components, cycle(SERIES), strict=False):
        component = rows["component"][0]
        at_ms = ((rows["start_ns"] - start_ns) / 1e6).to_list()
        for measure, dash in (("reserved", "dot"), ("allocated", "solid")):
            values = rows[f"{measure}_max_bytes"]
            if values.null_count() == values.len():
                continue
            figure.add_scatter(
                x=at_ms,
                y=(values / 2**20).to_list(),
                name=f"{component} {say(measure)}",
                mode="lines",
                line={"shape": "hv", "width": 1.5, "dash": dash, "color": colour},
                hovertemplate="%{x:,.1f} ms: %{y:,.1f} MiB",
            )
    title = f"{say('Memory of the rank with the highest peak')}: {say('rank')} {frame['rank'][0]}"
    figure = _laid_out(figure, say, title, 8, "ms since the first record")
    figure.update_yaxes(title="MiB", autorange=True, rangemode="tozero")
    return figure


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
    return _laid_out(figure, say, "From the peak to what is achieved", len(names), "% of the peak")


def experts_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Loads of experts, or of devices, beside the mean of their layer, steps added up."""
    return load_figure(frame, say, "expert" if "expert" in frame.columns else "device")


def _laid_out(figure: go.Figure, say: Say, title: str, bars: int, unit: str) -> go.Figure:
    figure.update_layout(
        title={
            "text": say(title),
            "x": 0,
            "xref": "container",
            "pad": {"l": 8},
            "font": {"size": 15},
        },
        barmode="stack",
        bargap=0.25,
        height=max(_LEAST_PX, _FRAME_PX + _BAR_PX * bars),
        margin={"l": 8, "r": 16, "t": 64, "b": 44},
        template="plotly_white",
        font={"family": FONT},
        legend={
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        hovermode="closest",
    )
    figure.update_xaxes(title=say(unit), automargin=True)
    figure.update_yaxes(automargin=True, autorange="reversed")
    return figure


FIGURES: dict[str, Callable[[pl.DataFrame, Say], go.Figure]] = {
    "steps": steps_figure,
    "parts": parts_figure,
    "kernels": kernels_figure,
    "communication": communication_figure,
    "memory": memory_figure,
    "waterfall": waterfall_figure,
    "experts": experts_figure,
}
