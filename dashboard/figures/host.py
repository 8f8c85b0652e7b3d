"""Free time by cause for each rank, and how far the host runs ahead over time."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.host.free_time import CAUSE_WORDS, freest_ranks
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import FREE_CAUSES
from .layout import MOST_BARS, lay_out, log_ticks, of_many, without_stripes

_HEIGHT_PX = 360
_MOST_NAMED = 32  # ranks on an axis


def free_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `mean_free_time` by rank: a column per rank, its free time by cause; of more ranks
    than can be drawn those with the most."""
    figure = go.Figure()
    every = freest_ranks(rows)
    ranks = every.head(MOST_BARS // max(rows["cause"].n_unique(), 1)).sort()
    for cause, words in CAUSE_WORDS.items():
        mine = rows.filter(pl.col("cause") == cause, pl.col("rank").is_in(ranks.implode()))
        if not mine.is_empty():
            figure.add_bar(
                x=mine["rank"].to_list(), y=(mine["free_ns"] / 1e6).to_list(), name=say(words),
                marker={"color": FREE_CAUSES[cause], "line": {"width": 0}},
                hovertemplate=f"{say('rank')} %{{x}}: %{{y:,.3f}} ms",
            )  # fmt: skip
    part = "Free time of a mean step by cause: of {every} ranks the {count} with the most"
    title = of_many("Free time of a mean step by cause", part, len(ranks), len(every))
    # A single cause is named, too; between ranks stands nothing.
    figure.update_layout(barmode="stack", showlegend=True)
    if len(ranks) <= _MOST_NAMED:
        figure.update_xaxes(tickvals=ranks.to_list())
    figure = lay_out(figure, say, title, height_px=_HEIGHT_PX, x=say("rank"), y=say("ms per step"))
    return without_stripes(figure, len(ranks))


def lead_figure(rows: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `host_lead`: median and least lead over time."""
    figure = go.Figure()
    seconds = ((rows["at_ns"] - rows["at_ns"].min()) / 1e6).to_list()
    for column, words, colour in (
        ("lead_ns", Message("median lead"), FREE_CAUSES["dispatch"]),
        ("least_ns", Message("least lead"), FREE_CAUSES["synchronisation"]),
    ):
        figure.add_scatter(
            x=seconds, y=(rows[column] / 1e3).to_list(), name=say(words), mode="lines",
            line={"color": colour, "shape": "hv"},
            hovertemplate="%{x:,.3f} ms: %{y:,.1f} us",
        )  # fmt: skip
    figure.update_yaxes(type="log", **log_ticks(rows["lead_ns"] / 1e3))
    return lay_out(figure, say, Message("How far the host runs ahead"), height_px=_HEIGHT_PX,
                   x=say("ms since the first launch"), y=say("lead (us)"))  # fmt: skip
