"""Strategies of a search: time against memory, and what their steps consist of."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.strategy.results import strategy_name
from npuscope.analysis.wording import ms
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, FREE, SERIES, WAIT, WARNING, WORSE
from ..units import fitting_unit
from .layout import lay_out, log_ticks, rows_px

_MOST_POINTS = 3_000  # of those that are neither on the front nor among the best
_TIMES_BUDGET = 4
_GIB = 2.0**30
# Part of a step: what it is called, its colour. What computes, moves, waits, in this order.
PARTS = {
    "matmul": ("matmuls", COMPUTING), "experts": ("matmuls of experts", "#56a3bd"),
    "attention": ("attention", "#9fd0e0"), "head": ("head and loss", "#1b5a73"),
    "vector": ("vectors", SERIES[3]), "recompute": ("recompute", SERIES[2]),
    "optimizer": ("optimizer", SERIES[4]),
    "tp_comm": ("tensor parallel", EXPOSED), "cp_comm": ("context parallel", "#f0937e"),
    "ep_comm": ("experts' exchange", "#b8431f"), "pp_comm": ("between stages", SERIES[5]),
    "dp_comm": ("data parallel", "#f7c6b8"), "bubble": ("bubble", WAIT),
    "host": ("host", "#66727f"),
}  # fmt: skip


def front_figure(
    strategies: pl.DataFrame, best: pl.DataFrame, budget_bytes: int | None, say: Say
) -> go.Figure:
    """Step and memory of strategies (rows of the metric `search`, fastest first): those on the
    front joined, the best marked, of all others at most a few thousand."""
    figure = go.Figure()
    divisor, unit = fitting_unit(best["step_ns"].max(), "time")
    # What does not fit by far would press everything else together.
    if budget_bytes:
        strategies = strategies.filter(pl.col("peak_bytes") < _TIMES_BUDGET * budget_bytes)
    others = strategies.filter(~pl.col("is_front"))
    others = others.gather_every(max(1, others.height // _MOST_POINTS))
    for fits, name, colour in ((True, "fits", FREE), (False, "does not fit", WARNING)):
        _points(figure, others.filter(fits=fits), say(name), {"color": colour, "size": 4}, divisor)
    front = strategies.filter("is_front")
    _points(figure, front, say("front"), {"color": WORSE, "size": 7}, divisor, "lines+markers")
    circle = {"color": COMPUTING, "size": 11, "symbol": "circle-open", "line": {"width": 2}}
    _points(figure, best, say("the best"), circle, divisor)
    if budget_bytes:
        figure.add_hline(y=budget_bytes / _GIB, line={"dash": "dash", "color": FREE, "width": 1})
    figure.update_xaxes(type="log", **log_ticks(strategies["step_ns"] / divisor))
    figure.update_yaxes(type="log", **log_ticks(strategies["peak_bytes"] / _GIB))
    lay_out(
        figure, say, "Step and memory of strategies", height_px=380,
        x=say(Message("step ({unit})", unit=unit)),
        y=say("GiB of the fullest rank"),
    )  # fmt: skip
    return figure


def _points(
    figure: go.Figure,
    rows: pl.DataFrame,
    name: str,
    marker: dict[str, object],
    divisor: float,
    mode: str = "markers",
) -> None:
    if rows.is_empty():
        return
    figure.add_scatter(
        x=(rows["step_ns"] / divisor).to_list(), y=(rows["peak_bytes"] / _GIB).to_list(),
        text=[strategy_name(row) for row in rows.iter_rows(named=True)],
        hovertemplate="%{text}<br>%{x:,.2f}, %{y:,.2f} GiB<extra></extra>",
        mode=mode, marker=marker, line={"color": WORSE, "width": 1}, name=name,
    )  # fmt: skip


def parts_figure(row_of: pl.DataFrame, say: Say) -> go.Figure:
    """Parts of the steps of some strategies (rows of the metric `search`), the first on top."""
    rows = row_of.to_dicts()
    divisor, unit = fitting_unit(row_of["step_ns"].max(), "time")
    names = [f"{place}. {strategy_name(row)}" for place, row in enumerate(rows, start=1)]
    figure = go.Figure()
    for part, (word, colour) in PARTS.items():
        values = [row[f"{part}_ns"] for row in rows]
        if max(values, default=0) * 1000 < max((row["step_ns"] for row in rows), default=0):
            continue
        figure.add_bar(
            y=names, x=[ns / divisor for ns in values], orientation="h", name=say(word),
            marker={"color": colour}, customdata=[ms(ns) for ns in values],
            hovertemplate="%{y}: %{customdata} ms<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    title = Message("Where the steps of {count} strategies go", count=len(rows))
    lay_out(
        figure, say, title, height_px=rows_px(len(rows), 18) + 60,
        x=say(Message("step ({unit})", unit=unit)),
        is_listed=True,
    )  # fmt: skip
    figure.update_layout(margin={"t": 110}, legend={"x": 0, "xanchor": "left"})
    return figure
