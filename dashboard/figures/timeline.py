"""Captures over time as figures: ranks x bins of time side by side, and bars of single events.

The axis of time counts from the start of the shown window, in a unit that fits its length: raw
instants since the epoch are longer than what a browser's numbers hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from npuscope.analysis.timeline.bins import Overview
from npuscope.analysis.timeline.lanes import flat_lanes

from .. import theme
from ..locale.language import Say
from .layout import MOST_BARS, colour_bar, lay_out, shorten

# What a cell's colour tells: the column, and the colour of the whole.
SHARES = {
    "computing": ("computing_ns", theme.COMPUTING),
    "exposed communication": ("exposed_communication_ns", theme.EXPOSED),
    "masked communication": ("overlapped_ns", theme.MASKED),
    "free": ("free_ns", theme.FREE),
}
_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3))
_BARS = (
    ("computing", "compute", theme.COMPUTING),
    ("communication", "communication", theme.KINDS["dp_cp"]),
    ("exposed communication", "overlap", theme.EXPOSED),
    ("masked communication", "overlap", theme.MASKED),
    ("host", "host", theme.KINDS["cp"]),
)
_LETTERS = 125  # that a bar as long as a narrow window has room for


def unit_of(length_ns: int) -> tuple[str, int]:
    """The unit in which a stretch of time is read best: its name and its ns."""
    return next(((name, ns) for name, ns in _UNITS if length_ns >= 2 * ns), _UNITS[-1])


@dataclass(frozen=True, slots=True)
class Slot:
    """A step's bins and where its first instant stands on the axis; `step` None: no steps."""

    step: int | None
    bins: Overview
    start_ns: int
    at_ns: int


def aligned_figure(
    sides: Sequence[tuple[str, Sequence[Slot]]], length_ns: int, share: str, say: Say
) -> go.Figure:
    """Ranks x time of two captures under each other, on one axis as long as `length_ns`: a title
    and the steps of each."""
    unit, unit_ns = unit_of(length_ns)
    figure = make_subplots(rows=len(sides), cols=1, shared_xaxes=True, vertical_spacing=0.14)
    beside = {"xref": "x", "xanchor": "left", "yanchor": "bottom", "y": 1, "showarrow": False}
    height_px = 60
    for row, (title, slots) in enumerate(sides, start=1):
        domain = f"y{row if row > 1 else ''} domain"
        figure.add_annotation(**beside, yref=domain, x=0, text=title, yshift=14)
        for slot in slots:
            zero_ns = slot.start_ns - slot.at_ns
            figure.add_trace(_heat(slot.bins, share, zero_ns, unit, unit_ns, say), row, 1)
            at = slot.at_ns / unit_ns
            if slot.step is not None:
                named = f"{say('step')} {slot.step}"
                font = {"size": 11}
                figure.add_annotation(**beside, yref=domain, x=at, text=named, font=font)
            if at:
                line = {"width": 1, "dash": "dot", "color": "#8a94a0"}
                figure.add_shape(
                    type="line", x0=at, x1=at, y0=0, y1=1, xref="x", yref=domain, line=line
                )
        ranks = slots[0].bins.ranks
        figure.update_yaxes(**_ranks_axis(ranks, say), row=row)
        height_px += _heat_px(len(ranks))
    figure.update_traces(colorbar=None, showscale=False)
    figure.data[0].update(
        showscale=True, colorbar={**colour_bar(say("share of time")), "tickformat": ".0%"}
    )
    lay_out(figure, say, "", height_px=height_px)
    figure.update_layout(title=None, margin={"t": 44})
    figure.update_xaxes(range=[0, length_ns / unit_ns], showgrid=False, zeroline=False)
    figure.update_xaxes(title={"text": f"{unit} {say('from the start of the first step')}"}, row=2)
    return figure


def _ranks_axis(ranks: Sequence[int], say: Say) -> dict[str, object]:
    """An axis with the first rank on top."""
    rows, _ = _positions(ranks)
    low, high = min(rows, default=0) - 0.5, max(rows, default=0) + 0.5
    return {
        "range": [high, low], "showgrid": False, "zeroline": False,
        "title": {"text": say("rank")}, **_ticks(ranks, rows),
    }  # fmt: skip


def _heat(
    bins: Overview, share: str, zero_ns: int, unit: str, unit_ns: int, say: Say
) -> go.Heatmap:
    """Cells of some ranks, counted from `zero_ns`."""
    column, colour = SHARES[share]
    rows, is_numbered = _positions(bins.ranks)
    place = pl.DataFrame({"rank": bins.ranks, "row": rows}, schema_overrides={"rank": pl.Int32})
    cells = bins.cells.join(place, on="rank", how="inner", maintain_order="left")
    height = (max(rows) - min(rows) + 1) if rows else 0
    shares = np.full((height, bins.columns), np.nan, dtype=np.float32)
    at_row = (cells["row"] - min(rows, default=0)).to_numpy()
    at_column = ((cells["bin_start_ns"] - bins.start_ns) // max(bins.width_ns, 1)).to_numpy()
    shares[at_row, at_column] = (cells[column] / cells["active_ns"]).cast(pl.Float32).to_numpy()
    first = (bins.start_ns - zero_ns) / unit_ns
    return go.Heatmap(
        z=shares,
        x0=first + bins.width_ns / unit_ns / 2,
        dx=bins.width_ns / unit_ns,
        y0=min(rows, default=0),
        dy=1,
        zmin=0,
        zmax=1,
        colorscale=_scale(colour),
        colorbar={**colour_bar(say("share of time")), "tickformat": ".0%"},
        hovertemplate=("rank %{y}<br>" if is_numbered else "")
        + f"%{{x:,.4~f}} {unit}<br>{say(share)}: %{{z:.1%}}<extra></extra>",
        hoverongaps=False,
    )


def _heat_px(ranks: int) -> int:
    return int(min(max(130 + 22 * ranks, 240), 560))


def _positions(ranks: Sequence[int]) -> tuple[list[int], bool]:
    """Where each rank's row stands, and whether that is its number: not with too many gaps."""
    if not ranks or ranks[-1] - ranks[0] + 1 <= 2 * len(ranks) + 8:
        return list(ranks), True
    return list(range(len(ranks))), False


def _ticks(ranks: Sequence[int], rows: Sequence[int]) -> dict[str, object]:
    """At most some twenty rows are named."""
    every = max(1, -(-len(ranks) // 20))
    return {
        "tickmode": "array",
        "tickvals": list(rows[::every]),
        "ticktext": [str(rank) for rank in ranks[::every]],
    }


def _scale(colour: str) -> list[tuple[float, str]]:
    """From nearly nothing to the colour: on white as on dark."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return [(0.0, f"rgba({red},{green},{blue},0.05)"), (1.0, f"rgba({red},{green},{blue},1)")]


def lanes_figure(rows: pl.DataFrame, window_ns: tuple[int, int], say: Say) -> go.Figure:
    """Events as bars on lanes, rank after rank; events of a lane that overlap lie under each other.

    rows: rank, kind (compute, communication, overlap, host), lane, name, detail, start_ns, dur_ns,
    in order of rank, kind, lane and start; at most 2,000 that are not pieces of overlap.
    """
    unit, unit_ns = unit_of(window_ns[1] - window_ns[0])
    bars, names = _place_events(rows.head(2 * MOST_BARS))
    whole_ns = window_ns[1] - window_ns[0]
    figure = go.Figure()
    for name, kind, colour in _BARS:
        events_of_kind = bars.filter(pl.col("kind") == kind)
        if kind == "overlap":
            events_of_kind = events_of_kind.filter(pl.col("name") == name)
        if events_of_kind.is_empty():
            continue
        # Cut at the window: a bar that began long before would have its name out of sight.
        start = events_of_kind["start_ns"].clip(lower_bound=window_ns[0])
        end = (events_of_kind["start_ns"] + events_of_kind["dur_ns"]).clip(upper_bound=window_ns[1])
        labels = [shorten(text, 80) for text in events_of_kind["name"]]
        rooms = ((end - start) * (_LETTERS / whole_ns)).cast(pl.Int64).to_list()
        figure.add_bar(
            orientation="h",
            base=((start - window_ns[0]) / unit_ns).to_list(),
            x=((end - start) / unit_ns).to_list(),
            y=events_of_kind["row"].to_list(),
            width=0.8,
            name=say(name),
            marker={"color": colour, "line": {"width": 0}},
            text=[
                _shorten(text, room) if kind != "overlap" else ""
                for text, room in zip(labels, rooms, strict=True)
            ],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            constraintext="none",
            cliponaxis=True,
            textfont={"size": 11, "color": text_on(colour)},
            customdata=[
                [text, dur / 1e3, detail or ""]
                for text, dur, detail in zip(
                    labels, events_of_kind["dur_ns"], events_of_kind["detail"], strict=True
                )
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]:,.3f} us %{customdata[2]}"
            "<extra></extra>",
        )
    lay_out(
        figure, say, "", height_px=max(220, 96 + 22 * len(names)),
        x=f"{unit} {say('from the start of the window')}",
    )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0, title=None, margin={"t": 40})  # fmt: skip
    figure.update_xaxes(range=[0, whole_ns / unit_ns], zeroline=False)
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(names))), ticktext=names,
        range=[len(names) - 0.4, -0.6], zeroline=False, showgrid=False,
    )  # fmt: skip
    return figure


def _shorten(name: str, letters: int) -> str:
    """The beginning of a name as far as there is room, or nothing."""
    if len(name) <= letters:
        return name
    return f"{name[: letters - 1]}…" if letters >= 5 else ""


def text_on(colour: str) -> str:
    """Black or white: what is read on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def _place_events(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Events with the row of the picture they stand on, and the names of rows from the top."""
    lane = pl.struct("rank", "kind", "lane")
    numbered = rows.with_columns(lane_number=lane.rle_id().cast(pl.Int64)).sort(
        "lane_number", "start_ns", "dur_ns", maintain_order=True
    )
    ends = (numbered["start_ns"] + numbered["dur_ns"]).to_list()
    spans = zip(
        numbered["lane_number"].to_list(), numbered["start_ns"].to_list(), ends, strict=True
    )
    seats = pl.DataFrame(
        list(flat_lanes(spans)),
        schema={"lane_number": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64,
                "seat": pl.Int64},
        orient="row",
    )  # fmt: skip
    rows_with_places = (
        numbered.with_columns(end_ns=pl.Series(ends, dtype=pl.Int64))
        .join(seats, on=["lane_number", "start_ns", "end_ns"], how="left", maintain_order="left")
        .sort("lane_number", "seat", maintain_order=True)
        .with_columns(row=pl.struct("lane_number", "seat").rle_id().cast(pl.Int64))
    )
    firsts = rows_with_places.unique("row", keep="first", maintain_order=True)
    several = rows["rank"].n_unique() > 1
    names = []
    for rank, lane_name, seat in firsts["rank", "lane", "seat"].rows():
        label = f"rank {rank} · {lane_name}" if several else lane_name
        names.append(label if not seat else f"{label} ({seat + 1})")
    return rows_with_places, names
