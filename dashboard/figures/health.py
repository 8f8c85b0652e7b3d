"""A training over its steps: time, tokens, loss, gradients, phases; events and captures marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from npuscope.analysis.health.steps import PHASE_COLUMNS

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, FREE, MASKED, SERIES
from ..units import fitting_unit
from .layout import lay_out, log_ticks

_PANEL_PX = 170
_PHASES = (*PHASE_COLUMNS, "other_ns")
# Panels that show a figure whose events are marked.
_OF = {"step_ns": "Time of a step", "loss": "Loss", "grad_norm": "Gradient norm"}
_MOST_MARKS = 200


def health_figure(
    points: pl.DataFrame, events: pl.DataFrame, captures: pl.DataFrame, say: Say
) -> go.Figure:
    """Panels of what is known of `points` (rows of `health_points`), with `events` (rows of
    `health_events`) in the panel of their figure, and a band for the steps of each of `captures`
    (rows of `health_captures`)."""
    x = points["step"].to_list()
    panels: list[tuple[str, list[Any], str]] = []
    for column, title in _OF.items():
        if points[column].null_count() == points.height:
            continue
        divisor, unit = (
            fitting_unit(points[column].max(), "time") if column == "step_ns" else (1, "")
        )
        panels.append((title, [_line(x, points[column] / divisor, COMPUTING, unit)], unit))
    if points["tokens_per_second"].null_count() < points.height:
        line = _line(x, points["tokens_per_second"], MASKED, "tokens/s")
        panels.insert(1, ("Tokens per second", [line], "tokens/s"))
    if points["generation_ns"].null_count() < points.height:
        panels.append(_phases(points, x, say))
    figure = make_subplots(
        rows=max(1, len(panels)), cols=1, shared_xaxes=True,
        subplot_titles=[say(title) for title, _, _ in panels],
        vertical_spacing=0.3 / max(len(panels), 1) / 1.6,
    )  # fmt: skip
    for number, (title, traces, unit) in enumerate(panels, start=1):
        figure.add_traces(traces, rows=number, cols=1)
        figure.update_yaxes(title={"text": unit}, separatethousands=True, row=number, col=1)
        if title == _OF["grad_norm"]:
            ticks = log_ticks(points["grad_norm"])
            figure.update_yaxes(type="log", **ticks, row=number, col=1)
        elif traces[0].type == "scatter":
            figure.update_yaxes(range=_around_one(traces[0].y), row=number, col=1)
        if title == _OF["loss"]:  # has no unit that a prefix like 5µ would be of
            figure.update_yaxes(exponentformat="e", row=number, col=1)
    for title in figure.layout.annotations:
        title.update(x=0, xanchor="left", font={"size": 13})
    _marks(figure, events, [title for title, _, _ in panels], say)
    for first, last in captures.select("step", "end_step").unique().sort("step").iter_rows():
        figure.add_vrect(
            x0=first - 0.5, x1=last + 0.5, fillcolor=FREE, opacity=0.25, line={"width": 1}
        )
    lay_out(figure, say, "", height_px=110 + _PANEL_PX * len(panels))
    figure.update_layout(legend={"y": 1.04}, margin={"t": 70})
    figure.update_xaxes(title={"text": say("step")}, row=max(1, len(panels)), col=1)
    return figure


def dropped_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Share of dropped tokens over steps (rows of `health_dropped`), and of the worst layer."""
    x = rows["step"].to_list()
    figure = go.Figure([
        _line(x, rows["dropped_ratio"] * 100, EXPOSED, "%").update(
            name=say("all layers"), showlegend=True
        ),
        _line(x, rows["worst_ratio"] * 100, FREE, "%").update(
            name=say("the worst layer"), showlegend=True
        ),
    ])  # fmt: skip
    lay_out(figure, say, "", height_px=110 + _PANEL_PX)
    figure.update_yaxes(title={"text": "%"}, rangemode="tozero")
    figure.update_xaxes(title={"text": say("step")})
    return figure


def _line(x: list[int], y: pl.Series, colour: str, unit: str) -> go.Scatter:
    return go.Scatter(
        x=x, y=y.to_list(), mode="lines+markers" if len(x) == 1 else "lines", name="",
        line={"color": colour, "width": 1}, showlegend=False,
        hovertemplate=f"%{{x}}: %{{y:,.4g}} {unit}",
    )  # fmt: skip


def _around_one(values: Sequence[float | None]) -> list[float] | None:
    """From 0 to twice the value, where there is but one: by itself an axis goes from one less to
    one more, and a loss of 6e-06 would read as 0."""
    values_here = {one for one in values if one is not None}
    one = values_here.pop() if len(values_here) == 1 else 0
    return sorted((0.0, 2 * one)) if one and math.isfinite(one) else None


def _phases(points: pl.DataFrame, x: list[int], say: Say) -> tuple[str, list[Any], str]:
    divisor, unit = fitting_unit(points["step_ns"].max(), "time")
    phases = [name for name in _PHASES if points[name].null_count() < points.height]
    traces: list[Any] = [
        go.Bar(
            x=x, y=(points[name] / divisor).to_list(),
            name=say(name.removesuffix("_ns").replace("_", " ")),
            marker={"color": SERIES[number % len(SERIES)]},
            hovertemplate=f"%{{x}}: %{{y:,.3f}} {unit}",
        )
        for number, name in enumerate(phases)
    ]  # fmt: skip
    return "Phases of reinforcement learning", traces, unit


def _marks(figure: go.Figure, events: pl.DataFrame, panels: list[str], say: Say) -> None:
    """A triangle at each spike, a line where a level changes, in the panel of their figure."""
    for metric, title in _OF.items():
        if title not in panels:
            continue
        row = panels.index(title) + 1
        own = events.filter(pl.col("metric") == metric)
        spikes = own.filter(pl.col("kind") == "spike").head(_MOST_MARKS)
        if not spikes.is_empty():
            figure.add_trace(
                go.Scatter(
                    x=spikes["step"].to_list(), y=spikes["value"].to_list(), mode="markers",
                    marker={"symbol": "triangle-down", "size": 9, "color": EXPOSED},
                    name=say("spike"), legendgroup="spike",
                    showlegend=metric == "grad_norm" or _OF["grad_norm"] not in panels,
                    hovertemplate="%{x}: %{y:,.4g}",
                ),
                row=row, col=1,
            )  # fmt: skip
        for step in own.filter(pl.col("kind") == "change").head(_MOST_MARKS)["step"]:
            figure.add_vline(
                x=step, row=row, col=1, line={"color": FREE, "width": 1, "dash": "dash"}
            )
    figure.update_layout(barmode="stack", bargap=0)
