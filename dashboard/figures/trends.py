"""Captures of a run over time, one panel per question on a common axis, and the trainer's log."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from npuscope.collector.wall_clock import EPOCH_FROM_NS

from ..locale.language import Say
from ..theme import COMPUTING, FREE, MASKED, SERIES, kind_colour
from ..units import fitting_unit
from .layout import STEP_PARTS, lay_out

_PANEL_PX = 190
_MOST_MARKED = 100  # points of the log: a line alone shows nothing of a single step
# Where a measure whose level changes is shown.
_PANELS = {
    "step_ns": "A mean step of a rank",
    "masking_ratio": "MFU and masking",
    "kernel_mfu_causal_ratio": "MFU and masking",
}


def trends_figure(
    captures: pl.DataFrame, exposed: pl.DataFrame, changes: pl.DataFrame, say: Say
) -> go.Figure:
    """Panels of what is known: parts of a mean step, MFU and masking, exposed time by kind,
    imbalance. Rows of `trends.Trends`; x is when a capture started, or its number. Where a level
    changes there is a line."""
    panels = [
        ("A mean step of a rank", _parts(captures, say)),
        ("MFU and masking", _ratios(captures, say)),
        ("Exposed communication by kind", _kinds(captures, exposed, say)),
        ("Imbalance: most over mean", _imbalance(captures, say)),
    ]
    panels_here = [(title, traces, unit) for title, (traces, unit) in panels if traces]
    figure = make_subplots(
        rows=len(panels_here), cols=1, shared_xaxes=True,
        subplot_titles=[say(title) for title, _, _ in panels_here],
        vertical_spacing=0.32 / max(len(panels_here), 1) / 1.6,
    )  # fmt: skip
    for number, (_, traces, unit) in enumerate(panels_here, start=1):
        figure.add_traces(traces, rows=number, cols=1)
        figure.update_yaxes(title={"text": unit}, rangemode="tozero", row=number, col=1)
    for title in figure.layout.annotations:
        title.update(x=0, xanchor="left", font={"size": 13})
    _mark_changes(figure, captures, changes, [title for title, _, _ in panels_here])
    lay_out(figure, say, "", height_px=100 + _PANEL_PX * len(panels_here))
    figure.update_layout(hovermode="x unified", legend={"y": 1.04}, margin={"t": 70})
    if not is_dated(captures):
        figure.update_xaxes(dtick=1, row=len(panels_here), col=1)
        figure.update_xaxes(title={"text": say("capture")}, row=len(panels_here), col=1)
    else:
        figure.update_xaxes(title={"text": say("start, UTC")}, row=len(panels_here), col=1)
    return figure


def log_figure(points: pl.DataFrame, changes: pl.DataFrame, say: Say) -> go.Figure:
    """Steps of the trainer's log, one panel: rows of the metric `trends_log`, with a line where
    `changes` of the log begin."""
    is_timed = points["step_ns"].null_count() < points.height
    divisor, unit = fitting_unit(points["step_ns"].max(), "time") if is_timed else (1, "tokens/s")
    column = "step_ns" if is_timed else "tokens_per_s"
    figure = go.Figure(
        go.Scatter(
            x=points["step"].to_list(), y=(points[column] / divisor).to_list(),
            mode="lines+markers" if points.height <= _MOST_MARKED else "lines", marker={"size": 5},
            line={"color": COMPUTING, "width": 1}, hovertemplate=f"%{{x}}: %{{y:,.3f}} {unit}",
            name="", showlegend=False,
        )
    )  # fmt: skip
    for row in changes.filter(basis="train_log").iter_rows(named=True):
        figure.add_vline(x=row["step"], **_mark(row))
    return lay_out(
        figure, say, "Steps in the training log", height_px=100 + _PANEL_PX, x=say("step"), y=unit
    ).update_yaxes(separatethousands=True)


def is_dated(captures: pl.DataFrame) -> bool:
    """Whether every capture says when it started, as an epoch."""
    starts = captures["start_ns"]
    return starts.null_count() == 0 and bool((starts >= EPOCH_FROM_NS).all())


def _x(captures: pl.DataFrame, rows: pl.DataFrame) -> list[Any]:
    """When each row's capture started; its number where that is not known of all."""
    if is_dated(captures):
        return [datetime.fromtimestamp(ns / 1e9, tz=timezone.utc) for ns in rows["start_ns"]]
    keys = list(captures.select("run", "capture").iter_rows())
    return [keys.index(key) + 1 for key in rows.select("run", "capture").iter_rows()]


def _line(
    captures: pl.DataFrame, rows: pl.DataFrame, y: list[Any], name: str, colour: str, unit: str
) -> go.Scatter:
    """A figure of captures, `rows` with a value each of `y`; a point carries its capture's name."""
    return go.Scatter(
        x=_x(captures, rows), y=y, customdata=rows["capture"].to_list(), name=name,
        mode="lines+markers", line={"color": colour, "width": 2},
        marker={"size": 7}, connectgaps=False,
        hovertemplate=f"%{{y:,.3f}} {unit}",
    )  # fmt: skip


def _mark(row: dict[str, Any]) -> dict[str, Any]:
    """A line where a level changes, with the change as a share of what was before."""
    share = row["delta_ratio"]
    return {
        "line": {"color": FREE, "width": 1, "dash": "dash"},
        "annotation": {"text": "" if share is None else f"{share:+.1%}", "font": {"size": 11}},
    }


def _mark_changes(
    figure: go.Figure, captures: pl.DataFrame, changes: pl.DataFrame, panels: list[str]
) -> None:
    """Lines in the panels that show a measure that changes: of a step's parts those of the step."""
    rows = changes.filter(pl.col("basis") == "captures", pl.col("measure").is_in([*_PANELS]))
    for x, row in zip(_x(captures, rows), rows.iter_rows(named=True), strict=True):
        panel = panels.index(_PANELS[row["measure"]]) + 1
        figure.add_vline(x=x, row=panel, col=1, **_mark(row))


def _parts(captures: pl.DataFrame, say: Say) -> tuple[list[Any], str]:
    columns = ["step_ns", *(column for _, column, _ in STEP_PARTS)]
    most = captures.select(pl.max_horizontal(columns).max()).item()
    if most is None:
        return [], ""
    divisor, unit = fitting_unit(most, "time")
    x = _x(captures, captures)
    traces: list[Any] = [
        go.Scatter(
            x=x, y=(captures[column] / divisor).to_list(), name=say(name), mode="lines+markers",
            customdata=captures["capture"].to_list(),
            stackgroup="parts", line={"color": colour, "width": 1}, marker={"size": 5},
            hovertemplate=f"%{{y:,.3f}} {unit}",
        )
        for name, column, colour in STEP_PARTS
    ]  # fmt: skip
    if captures["step_ns"].count():  # the producer's own table has parts, and no start and end
        of_job = (captures["step_ns"] / divisor).to_list()
        traces.append(_line(captures, captures, of_job, say("step of the job"), SERIES[2], unit))
    return traces, unit


def _ratios(captures: pl.DataFrame, say: Say) -> tuple[list[Any], str]:
    ratios = (
        ("Kernel MFU", "kernel_mfu_causal_ratio", COMPUTING),
        ("Communication masked", "masking_ratio", MASKED),
    )
    return [
        _line(captures, captures, (captures[column] * 100).to_list(), say(name), colour, "%")
        for name, column, colour in ratios
        if captures[column].null_count() < captures.height
    ], "%"


def _kinds(captures: pl.DataFrame, exposed: pl.DataFrame, say: Say) -> tuple[list[Any], str]:
    divisor, unit = fitting_unit(exposed["exposed_attributed_ns"].max(), "time")
    return [
        _line(
            captures, rows, (rows["exposed_attributed_ns"] / divisor).to_list(),
            f"{say('exposed')} {rows['kind'][0]}", kind_colour(str(rows["kind"][0])), unit,
        )
        for rows in exposed.partition_by("kind", maintain_order=True)
    ], unit  # fmt: skip


def _imbalance(captures: pl.DataFrame, say: Say) -> tuple[list[Any], str]:
    ratios = (
        ("computing of ranks", "rank_imbalance", SERIES[3]),
        ("tokens of experts", "expert_imbalance", SERIES[4]),
    )
    return [
        _line(captures, captures, captures[column].to_list(), say(name), colour, "x")
        for name, column, colour in ratios
        if captures[column].null_count() < captures.height
    ], say("max / mean")
