"""Data quality: what each rank can answer."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from ..locale.language import Say, labelled
from ..theme import BETTER, WARNING, WORSE
from .layout import lay_out, rows_px

_LEVELS = {"no": 0, "partly": 1, "yes": 2}
_COLOURS = (WORSE, WARNING, BETTER)


def capability_named(name: str, say: Say) -> str:
    """A capability in the reader's language, where words like `groups` count things elsewhere."""
    return labelled(f"capability {name}", name, say)


def support_figure(support: pl.DataFrame, say: Say) -> go.Figure:
    """Analyses by ranks: possible, partly, not. Rows of `quality.Quality.support`."""
    names = support["capability"].unique(maintain_order=True).to_list()
    wide = support.pivot(on="rank", index="capability", values="support")
    ranks = [name for name in wide.columns if name != "capability"]
    levels = [[_LEVELS[row[rank]] for rank in ranks] for row in wide.iter_rows(named=True)]
    words = [[say(row[rank]) for rank in ranks] for row in wide.iter_rows(named=True)]
    figure = go.Figure()
    figure.add_heatmap(
        z=levels, x=ranks, y=[capability_named(name, say) for name in names], zmin=0, zmax=2,
        colorscale=[
            [edge, colour]
            for number, colour in enumerate(_COLOURS)
            for edge in (number / 3, (number + 1) / 3)
        ],
        showscale=False, xgap=1 if len(ranks) <= 128 else 0, ygap=1,
        customdata=words,
        hovertemplate=f"{say('rank')} %{{x}}, %{{y}}: %{{customdata}}<extra></extra>",
    )  # fmt: skip
    for level, colour in zip(("yes", "partly", "no"), reversed(_COLOURS), strict=True):
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=say(level),
            marker={"color": colour, "symbol": "square", "size": 11},
        )  # fmt: skip
    figure.update_xaxes(type="category", title={"text": say("rank")}, nticks=32)
    return lay_out(
        figure, say, "What each rank can answer", height_px=rows_px(len(names), 20), is_listed=True
    )
