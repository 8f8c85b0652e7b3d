"""Communication: what compute hides, who waits, how fast links are, who sends to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.communication.volume import matrix_blocks
from npuscope.analysis.wording import percent
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, SEQUENTIAL, TRANSFER, WAIT, WARNING
from ..units import fitting_unit
from .layout import (
    HIDING_PARTS,
    MOST_CELLS,
    add_parts,
    colour_bar,
    lay_out,
    numbered_names,
    of_many,
    rows_px,
    shorten,
)

Measure = Literal["size", "time", "bandwidth"]
MEASURES: tuple[Measure, ...] = ("size", "time", "bandwidth")
MOST_ROWS = 40
_CONTENTION_PARTS = (
    ("beside compute", "beside_bandwidth_bytes_per_s", COMPUTING),
    ("alone", "alone_bandwidth_bytes_per_s", TRANSFER),
)
_WAITING_PARTS = (("wait", "wait_ns", WAIT), ("transfer", "transfer_ns", TRANSFER))


def masking_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_comm` by kind, type or group: of a mean step of a rank, what compute hides and
    what it does not; the most exposed first, at most MOST_ROWS."""
    keys = [name for name in ("kind", "op_type", "group_hash") if name in frame.columns]
    every = frame.drop_nulls(["masked_ns", "exposed_ns"])
    rows = every.head(MOST_ROWS)
    names = numbered_names(_row_name(row, say) for row in rows.select(keys).iter_rows())
    figure = add_parts(go.Figure(), rows, names, HIDING_PARTS, say)
    figure.add_scatter(
        y=names,
        x=((rows["masked_ns"] + rows["exposed_ns"]) / 1e6).to_list(),
        text=[f" {percent(ratio)}" for ratio in rows["masking_ratio"]],
        customdata=(rows["exposed_attributed_ns"] / 1e6).to_list(),
        mode="text",
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
        hovertemplate=f"{say('exposed, no time counted twice')}: %{{customdata:,.3f}} ms"
        "<extra></extra>",
    )
    title = say("Communication of a mean step, hidden behind compute or exposed")
    if rows.height < every.height:
        template = "{title}: the {count} most exposed of {every}"
        title = say(Message(template, title=title, count=rows.height, every=every.height))
    figure = lay_out(
        figure, say, title, height_px=rows_px(rows.height), x=say("ms per step and rank"),
        is_listed=True,
    )  # fmt: skip
    return figure.update_xaxes(rangemode="tozero")


def _kind(name: str | None, say: Say) -> str:
    """A parallel kind: abbreviations stay, `unknown` is a word."""
    return say(name) if name else "-"


def _row_name(row: Sequence[str | None], say: Say) -> str:
    """A kind, a type, or an operation: kind, type and the end of its group's number."""
    if len(row) < 3:
        return _kind(row[0], say)
    kind, op_type, group = row
    short = "" if group is None else f" …{group[-4:]}" if len(group) > 6 else f" {group}"
    return f"{_kind(kind, say)} {op_type or '-'}{short}"


def waiting_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_waits`: for each kind a bar per way of telling waiting and transfer apart."""
    rows = rows.head(MOST_ROWS * 3)
    names = [
        [_kind(name, say) for name in rows["kind"]],
        [say(name) for name in rows["estimate"]],
    ]
    figure = add_parts(go.Figure(), rows, names, _WAITING_PARTS, say)
    figure = lay_out(
        figure, say, "Waiting or transferring?", height_px=rows_px(rows.height, 20),
        x=say("ms per step and rank"), is_listed=True,
    )  # fmt: skip
    return figure.update_yaxes(dividerwidth=0)


def links_figure(rates: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_links`: bandwidth of each link, its published peak, and its slowest rank; links
    without a time are left out."""
    rates = rates.drop_nulls("bandwidth_bytes_per_s")
    rows = rates.head(MOST_ROWS)
    names = [
        f"{link or '-'} · {_kind(kind, say)} {op_type or '-'}"
        for link, kind, op_type in rows.select("link", "kind", "op_type").iter_rows()
    ]
    figure = go.Figure()
    figure.add_bar(
        y=names,
        x=(rows["bandwidth_bytes_per_s"] / 1e9).to_list(),
        name=say("all ranks"),
        orientation="h",
        marker_color=TRANSFER,
        text=[percent(ratio) if ratio is not None else "" for ratio in rows["peak_ratio"]],
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        hovertemplate="%{y}: %{x:,.2f} GB/s",
    )
    figure.add_scatter(
        y=names,
        x=(rows["slowest_bytes_per_s"] / 1e9).to_list(),
        name=say("slowest rank"),
        mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": WARNING},
        customdata=rows["slowest_rank"].to_list(),
        hovertemplate=f"%{{y}}: {say('rank')} %{{customdata}}: %{{x:,.2f}} GB/s<extra></extra>",
    )
    peaks = rows.with_columns(name=pl.Series(names, dtype=pl.String)).drop_nulls("peak_bytes_per_s")
    if peaks.height:
        figure.add_scatter(
            y=peaks["name"].to_list(),
            x=(peaks["peak_bytes_per_s"] / 1e9).to_list(),
            name=say("peak of the link"),
            mode="markers",
            marker={
                "symbol": "line-ns", "size": 18, "line": {"width": 3, "color": EXPOSED},
                "color": EXPOSED,
            },
            hovertemplate="%{y}: %{x:,.2f} GB/s",
        )  # fmt: skip
    part = "Bandwidth by link: the {count} with most bytes of {every}"
    title = of_many("Bandwidth by link", part, rows.height, rates.height)
    figure = lay_out(figure, say, title, height_px=rows_px(rows.height), x="GB/s", is_listed=True)
    return figure.update_xaxes(rangemode="tozero")


def matrix_figure(
    frame: pl.DataFrame, say: Say, measure: Measure = "size", kind: str | None = None
) -> go.Figure:
    """Rows of `mean_pairs` as a heat map, from each rank (down) to each other (across)."""
    cells, block = matrix_blocks(frame, kind, most_cells=MOST_CELLS)
    columns = {"size": "size_bytes", "time": "time_ns", "bandwidth": "bandwidth_bytes_per_s"}
    values = cells[columns[measure]].cast(pl.Float64)
    divisor, unit = 1e9, "GB/s"
    if measure != "bandwidth":
        divisor, unit = fitting_unit(values.max(), "time" if measure == "time" else "bytes")
    places = int(np.max([*cells["src"].to_list(), *cells["dst"].to_list(), -1])) + 1
    grid = np.full((places, places), np.nan)
    grid[cells["src"].to_numpy(), cells["dst"].to_numpy()] = (values / divisor).to_numpy()
    each = "%{y} → %{x}: %{z:,.3f} " + unit + "<extra></extra>"
    names = [
        str(at) if block == 1 else f"{at * block}-{(at + 1) * block - 1}" for at in range(places)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=grid,
            x=names,
            y=names,
            colorscale=SEQUENTIAL,
            colorbar=colour_bar(unit),
            hovertemplate=each,
            hoverongaps=False,
            xgap=1 if places <= 64 else 0,
            ygap=1 if places <= 64 else 0,
        )
    )
    title = {
        "size": "Bytes between ranks per step",
        "time": "Transfer time between ranks per step",
        "bandwidth": "Bandwidth between ranks",
    }[measure]
    if block > 1:
        template = "{title}: a cell is {count} by {again} ranks"
        title = say(Message(template, title=say(title), count=block, again=block))
    figure = lay_out(
        figure, say, title, height_px=max(320, min(720, 150 + 26 * places)), x=say("to rank"),
        y=say("from rank"),
    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False, constrain="domain")
    return figure.update_yaxes(
        type="category", autorange="reversed", showgrid=False, constrain="domain"
    )


def contention_figure(frame: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_contention`: bandwidth beside compute and without it, by link and type."""
    rows = frame.head(MOST_ROWS)
    names = [
        shorten(f"{link or '-'} · {op or '-'}")
        for link, op in rows.select("link", "op_type").iter_rows()
    ]
    figure = add_parts(
        go.Figure(), rows, numbered_names(names), _CONTENTION_PARTS, say, divisor=1e9,
        hover="%{y}: %{x:,.2f} GB/s", mode="group",
    )  # fmt: skip
    return lay_out(
        figure, say, "Does compute slow links down?", height_px=rows_px(rows.height, 34), x="GB/s",
        is_listed=True,
    )  # fmt: skip
