"""Expert load: who is hot, what a plan would change, how it goes on, what it costs."""

from __future__ import annotations

from itertools import cycle
from typing import Literal

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from npuscope.analysis.experts.load.mean_layers import mean_costs, mean_devices, over_mean
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import BETTER, COMPUTING, DIVERGING, EXPOSED, FREE, SERIES, TRANSFER, WORSE
from .layout import MOST_CELLS, colour_bar, lay_out, rows_px

Item = Literal["expert", "device"]
_ALL_LAYERS = "all"
_TOP = 2.0  # times the mean: the end of the colour scale, but for loads beyond


def load_figure(loads: pl.DataFrame, say: Say, item: Item | None = None) -> go.Figure:
    """Rows by expert or device of one phase: tokens of each beside its layer's mean, steps added
    up. Where cells would be too many, a cell is the fullest of some neighbours. By device where
    there are no experts and nothing else is asked."""
    item = item or ("expert" if "expert" in loads.columns else "device")
    grid, layers, items, block = _grid(over_mean(loads, item), item)
    figure = go.Figure(_heat(grid, layers, items, say, item))
    title = say(
        "Load of each expert, times the mean of its layer"
        if item == "expert"
        else "Load of each device, times the mean of its layer"
    )
    if block > 1:
        title = say(Message("{title}: a cell is the maximum of {count}", title=title, count=block))
    figure = lay_out(
        figure, say, title, height_px=_heat_px(len(layers)), x=say(item), y=say("layer")
    )
    return _heat_axes(figure)


def _grid(
    loads: pl.DataFrame, item: str
) -> tuple[npt.NDArray[np.float64], list[str], list[str], int]:
    """over_mean as [layers, items], NaN where unknown; names of both; items to a column."""
    layers = loads["layer"].unique().sort(nulls_last=True)
    last = loads[item].max()
    count = int(last) + 1 if isinstance(last, int) else 0
    block = max(1, -(-count * len(layers) // MOST_CELLS))
    row_of = {layer: at for at, layer in enumerate(layers)}
    grid = np.full((len(layers), -(-count // block)), np.nan)
    rows = np.array([row_of[layer] for layer in loads["layer"]], dtype=np.int64)
    columns = loads[item].to_numpy() // block
    values = loads["over_mean"].cast(pl.Float64).to_numpy()
    np.fmax.at(grid, (rows, columns.astype(np.int64)), values)
    named = [_ALL_LAYERS if layer is None else str(layer) for layer in layers]
    items = [
        str(at) if block == 1 else f"{at * block}-{min((at + 1) * block, count) - 1}"
        for at in range(grid.shape[1])
    ]
    return grid, named, items, block


def _heat(
    grid: npt.NDArray[np.float64], layers: list[str], items: list[str], say: Say, item: str
) -> go.Heatmap:
    few = grid.size <= 4096
    return go.Heatmap(
        z=grid,
        x=items,
        y=layers,
        zmin=0,
        zmid=1,
        zmax=_TOP,
        colorscale=[list(stop) for stop in DIVERGING],
        colorbar=colour_bar(say("times the mean")),
        hovertemplate=f"{say('layer')} %{{y}}, {say(item)} %{{x}}: %{{z:.3f}}<extra></extra>",
        hoverongaps=False,
        xgap=1 if few else 0,
        ygap=1 if few else 0,
    )


def _heat_px(layers: int) -> int:
    return max(260, min(760, 130 + 26 * layers))


def _heat_axes(figure: go.Figure) -> go.Figure:
    figure.update_xaxes(type="category", showgrid=False)
    return figure.update_yaxes(type="category", autorange="reversed", showgrid=False)


def plan_figure(devices: pl.DataFrame, say: Say) -> go.Figure:
    """Load of devices as experts lie now, and as planned: layers by devices, one scale.

    `devices`: layer, device, before_tokens, after_tokens, for the same forecast load.
    """
    figure = make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.03,
        subplot_titles=[say("as it is"), say("as planned")],
    )  # fmt: skip
    layers: list[str] = []
    for column, tokens in ((1, "before_tokens"), (2, "after_tokens")):
        loads = over_mean(
            devices.select("layer", "device", pl.col(tokens).alias("tokens")), "device"
        )
        grid, layers, items, _ = _grid(loads, "device")
        heat = _heat(grid, layers, items, say, "device")
        heat.update(showscale=column == 2)
        figure.add_trace(heat, row=1, col=column)
    title = "Devices before and after the plan, times the mean of the layer"
    figure = lay_out(figure, say, title, height_px=_heat_px(len(layers)) + 24)
    figure = _heat_axes(figure)
    figure.update_xaxes(title={"text": say("device")})
    figure.update_yaxes(title={"text": say("layer")}, col=1)
    return figure.update_layout(margin={"t": 84})


def plan_gain_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `plan_rows` of one plan: max / mean of each layer's devices before and after."""
    layers = rows.drop_nulls("layer").sort("layer")
    at = layers["layer"].to_list()
    figure = go.Figure()
    lines_x: list[int | None] = []
    lines_y: list[float | None] = []
    for layer, before, after in layers.select(
        "layer", "max_over_mean_before", "max_over_mean_after"
    ).iter_rows():
        lines_x += [layer, layer, None]
        lines_y += [before, after, None]
    figure.add_scatter(
        x=lines_x, y=lines_y, mode="lines", line={"color": FREE, "width": 2},
        showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    for name, column, colour in (
        ("as it is", "max_over_mean_before", WORSE),
        ("as planned", "max_over_mean_after", BETTER),
    ):
        figure.add_scatter(
            x=at,
            y=layers[column].to_list(),
            name=say(name),
            mode="markers",
            marker={"size": 9, "color": colour},
            hovertemplate=f"{say('layer')} %{{x}}: %{{y:.3f}}",
        )
    figure = lay_out(
        figure, say, "Most loaded device of each layer, times the mean", height_px=300,
        x=say("layer"), y=say("max / mean"),
    )  # fmt: skip
    figure.update_xaxes(dtick=1 if layers.height <= 32 else None)
    return figure.update_yaxes(rangemode="normal")


def time_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows by time: max / mean of experts and devices by step, a line style for each phase."""
    figure = go.Figure()
    dashes = cycle(("solid", "dash", "dot"))
    for one in rows.partition_by("phase", maintain_order=True):
        phase, dash = one["phase"][0], next(dashes)
        several = f" {phase}" if rows["phase"].n_unique() > 1 else ""
        for name, column, colour in (
            ("worst layer", "worst_max_over_mean", WORSE),
            ("mean of layers", "mean_max_over_mean", SERIES[0]),
            ("devices", "device_max_over_mean", SERIES[2]),
        ):
            if one[column].null_count() == one.height:
                continue
            figure.add_scatter(
                x=one["step"].to_list(),
                y=one[column].to_list(),
                name=say(name) + several,
                mode="lines+markers" if one.height <= 200 else "lines",
                line={"color": colour, "width": 2, "dash": dash},
                hovertemplate=f"{say('step')} %{{x}}: %{{y:.3f}}",
            )
    figure = lay_out(
        figure, say, "Imbalance over time", height_px=320, x=say("step"), y=say("max / mean")
    )
    steps = rows["step"].drop_nulls().unique()
    if steps.len() <= 20:
        figure.update_xaxes(tickvals=steps.sort().to_list())
    return figure


def cost_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows by cost: how much longer each layer takes for its fullest device, mean over steps: its
    grouped matmuls, their activations, and what compute leaves of its all-to-alls where told."""
    parts = (
        ("grouped matmuls", "grouped_excess_ns", COMPUTING),
        ("activations", "activation_excess_ns", SERIES[2]),
        ("all-to-alls", "exchange_exposed_ns", TRANSFER),
    )
    costs = mean_costs(rows)
    several = costs["layer"].is_duplicated().any()
    names = [
        (_ALL_LAYERS if layer is None else str(layer)) + (f" / {stage}" if several else "")
        for layer, stage in costs.select("layer", "stage").iter_rows()
    ]
    figure = go.Figure()
    for name, column, colour in parts:
        if costs[column].null_count() == costs.height:
            continue
        figure.add_bar(
            x=names,
            y=(costs[column] / 1e6).to_list(),
            name=say(name),
            marker_color=colour,
            customdata=costs["device_max_over_mean"].to_list(),
            hovertemplate=f"{say('layer')} %{{x}}: %{{y:,.3f}} ms, max / mean %{{customdata:.3f}}",
        )
    figure.update_layout(barmode="stack", showlegend=True)
    figure = lay_out(
        figure, say, "Cost of the imbalance by layer", height_px=320, x=say("layer"),
        y=say("ms per step"),
    )  # fmt: skip
    return figure.update_xaxes(type="category")


def devices_figure(loads: pl.DataFrame, say: Say) -> go.Figure:
    """Rows by device of one phase: tokens of each, of a mean step, layers added up."""
    devices, mean = mean_devices(loads)
    tokens = devices["tokens"].to_list()
    figure = go.Figure()
    figure.add_bar(
        y=[str(device) for device in devices["device"]],
        x=tokens,
        orientation="h",
        marker_color=COMPUTING,
        showlegend=False,
        hovertemplate=f"{say('device')} %{{y}}: %{{x:,.0f}}<extra></extra>",
    )
    if mean is not None:
        figure.add_vline(
            x=mean, line={"color": EXPOSED, "width": 2, "dash": "dot"},
            annotation={"text": say("mean"), "yanchor": "bottom"},
        )  # fmt: skip
    figure = lay_out(
        figure, say, "Tokens of each device in a mean step, all layers",
        height_px=rows_px(min(devices.height, 40)), x=say("tokens"), y=say("device"),
        is_listed=True,
    )  # fmt: skip
    return figure.update_yaxes(type="category")
