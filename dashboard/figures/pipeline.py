"""A pipeline over time: a row for each device, as it ran, and under another schedule beneath it on
the same scale."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from npuscope.analysis.pipeline.schedules import ANY_CHUNKS
from npuscope.analysis.wording import percent
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import BUBBLES, PASSES
from .layout import LEGEND_ROW_PX, MOST_BARS, lay_out
from .timeline import text_on, unit_of

# What passes and causes of the pauses between them are called.
PASS_WORDS = {
    "F": "forward", "BW": "backward", "B": "gradients of inputs", "W": "gradients of weights",
}  # fmt: skip
BUBBLE_WORDS = {
    "schedule": "schedule", "imbalance": "stage imbalance", "slow rank": "slow rank",
    "variation": "micro-batch variation", "transfers": "P2P transfers", "host": "host",
    "other": "other", "late start": "late start", "late end": "late end",
}  # fmt: skip
_DIGIT_SHARE = 0.008  # of the width, that a digit takes
_ROW_PX = 30
_TITLE_PX = 26
_LATER_CHUNK = 0.72


def schedule_titles(tries: pl.DataFrame, say: Say) -> list[str]:
    """What ran, and what is tried: a title for each row of `pipeline_tries`."""
    titles: list[str] = []
    for row in tries.to_dicts():
        facts = {
            "name": row["schedule"]
            + (f":{row['chunks']}" if row["schedule"] in ANY_CHUNKS else ""),
            "count": row["micro_batches"],
            "bubble": percent(row["bubble_ratio"]),
        }
        titles.append(
            say(Message("{name}, {count} micro-batches, executed: {bubble} bubble", **facts))
            if titles
            else say(
                Message("{name}, {count} micro-batches, as measured: {bubble} bubble", **facts)
            )
        )
    return titles


def pipeline_figure(
    blocks: pl.DataFrame, titles: Sequence[str], say: Say
) -> tuple[go.Figure, tuple[int, ...]]:
    """Rows of `pipeline_blocks`, `titles` of what ran and what is tried; and the devices that are
    drawn: of too many every second, third, ..."""
    every = sorted(set(blocks["device"].to_list()))
    apart = max(-(-blocks.height // (4 * MOST_BARS)), 1)
    devices = tuple(every[::apart])
    whole_ns = float(blocks.select((pl.col("start_ns") + pl.col("dur_ns")).max()).item() or 1)
    unit, unit_ns = unit_of(round(whole_ns))
    sides = [blocks.filter(pl.col("is_tried") == is_tried) for is_tried in (False, True)]
    sides = [_on_rows(one) for one in sides if one.height]
    figure = make_subplots(rows=len(sides), cols=1, shared_xaxes=True, vertical_spacing=0.16)
    visited: set[str] = set()
    for number, side in enumerate(sides, start=1):
        for kind, word in (PASS_WORDS | BUBBLE_WORDS).items():
            own = side.filter(
                pl.col("kind") == kind, pl.col("device").is_in(devices), pl.col("dur_ns") > 0
            )
            if own.is_empty():
                continue
            is_pass = kind in PASS_WORDS
            figure.add_trace(
                _bars(own, kind, say(word), devices, whole_ns, unit_ns, is_pass=is_pass), number, 1
            )
            figure.data[-1].showlegend = kind not in visited
            visited.add(kind)
        figure.add_annotation(
            xref="x", x=0, xanchor="left", yref=f"y{number if number > 1 else ''} domain", y=1,
            yanchor="bottom", text=titles[number - 1], showarrow=False, font={"size": 13},
        )  # fmt: skip
        figure.update_yaxes(
            tickmode="array", tickvals=list(range(len(devices))), ticktext=list(map(str, devices)),
            range=[len(devices) - 0.5, -0.5], showgrid=False, zeroline=False,
            title={"text": say("stage")}, row=number,
        )  # fmt: skip
    # Above the first title; in a narrow window it takes more rows, and the bars get lower.
    rows_px = len(sides) * (50 + _ROW_PX * len(devices))
    legend_px = 2 * LEGEND_ROW_PX + _TITLE_PX
    lay_out(figure, say, "", height_px=legend_px + 48 + rows_px)
    figure.update_layout(barmode="overlay", bargap=0, title=None, margin={"t": legend_px})
    figure.update_layout(legend={"orientation": "h", "y": 1 + _TITLE_PX / rows_px,
                                 "yanchor": "bottom", "x": 0, "xanchor": "left"})  # fmt: skip
    figure.update_xaxes(range=[0, whole_ns / unit_ns], showgrid=False, zeroline=False)
    figure.update_xaxes(
        title={"text": f"{unit} {say('from the first start of a pass')}"}, row=len(sides)
    )
    return figure, devices


def _on_rows(side: pl.DataFrame) -> pl.DataFrame:
    """With `shift` and `width` on the row of their device, which two passes beside each other
    share."""
    is_beside = pl.col("micro_batch").is_not_null() & (
        pl.struct("device", "start_ns", pl.col("micro_batch").is_null()).is_duplicated()
    )
    return side.with_columns(
        width=pl.when(is_beside).then(0.4).otherwise(0.8),
        shift=pl.when(is_beside & (pl.col("kind") == "F")).then(-0.2).when(is_beside).then(0.2)
        .otherwise(0.0),
    )  # fmt: skip


def _bars(
    own: pl.DataFrame,
    kind: str,
    word: str,
    devices: Sequence[int],
    whole_ns: float,
    unit_ns: int,
    *,
    is_pass: bool,
) -> go.Bar:
    colour = (PASSES if is_pass else BUBBLES)[kind]
    rooms = (own["dur_ns"] / whole_ns / _DIGIT_SHARE).to_list()
    numbers = own["micro_batch"].to_list()
    chunks = own["chunk"].to_list()
    times = own["dur_ns" if is_pass else "share_ns"].to_list()
    return go.Bar(
        orientation="h",
        base=(own["start_ns"] / unit_ns).to_list(),
        x=(own["dur_ns"] / unit_ns).to_list(),
        y=[devices.index(device) + shift for device, shift in own["device", "shift"].rows()],
        width=own["width"].to_list(),
        name=word,
        marker={
            "color": colour,
            "opacity": [_LATER_CHUNK if chunk else 1.0 for chunk in chunks]
            if is_pass
            else 0.75,
            "line": {"width": 0.5 if is_pass else 0, "color": "rgba(255,255,255,0.6)"},
        },
        text=[str(number) if number is not None and len(str(number)) <= room else ""
              for number, room in zip(numbers, rooms, strict=True)],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
        textfont={"size": 11, "color": text_on(colour)},
        customdata=[[number if number is not None else "", chunk if chunk is not None else "",
                     time / 1e6]
                    for number, chunk, time in zip(numbers, chunks, times, strict=True)],
        hovertemplate=word + (" %{customdata[0]} (%{customdata[1]})" if is_pass else "")
        + ": %{customdata[2]:,.3f} ms<extra></extra>",
    )  # fmt: skip
