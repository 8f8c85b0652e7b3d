"""Ranks: which is slow in which step, whom the others wait for, whether its host is slow, and what
each can answer."""

from __future__ import annotations

from typing import Literal

import numpy as np
import plotly.graph_objects as go
import polars as pl

from npuscope.analysis.means import are_known, deviations
from npuscope.analysis.ranks.stragglers.blame import VERDICT_WORDS
from npuscope.messages import Message

from ..locale.language import Say, label_of
from ..theme import BETTER, COMPUTING, CULPRIT, DIVERGING, FREE, SEQUENTIAL, WARNING, WORSE
from .layout import MOST_CELLS, colour_bar, lay_out, of_many, rows_px

Measure = Literal["stage_ns", "computing_ns", "exposed_communication_ns", "free_ns"]
MEASURES: dict[Measure, str] = {
    "stage_ns": "step without bubble", "computing_ns": "computing",
    "exposed_communication_ns": "exposed communication", "free_ns": "free",
}  # fmt: skip
MOST_BARS = 32
_MOST_PX = 720  # with what is above and below, two screens
_BAR_WIDTH = 0.75  # of the place of a rank
NO_SUSPECT = "no suspect"
MOST_CULPRITS, MOST_NAMED = 1_000, 4
FAINT = f"{FREE}99"
# Of bars with names: the highest and its name have room in a panel so high; names of ranks closer
# than that share of all would cover each other.
_ROOM_ABOVE, _PANEL_PX, _NAME_PX, _CLOSE = 1.3, 200, 18, 0.08
_LEVELS = {"no": 0, "partly": 1, "yes": 2}
_LEVEL_COLOURS = (WORSE, WARNING, BETTER)


def steps_figure(
    frame: pl.DataFrame,
    say: Say,
    measure: Measure = "stage_ns",
    *,
    is_deviation: bool = True,
    hosts: pl.DataFrame | None = None,
    stages: pl.DataFrame | None = None,
) -> go.Figure:
    """Rows of `steps` as a heat map: ranks (down) by steps (across).

    `is_deviation`: what a rank takes more than the step's median rank, of its pipeline stage where
    stages are known, else the measure itself; in ms. `stages`: rank, pp_rank. `hosts`: rows of
    `rank_hosts`; ranks then stand by host, with lines between them. Steps beyond what cells allow
    are left out, the last stay.
    """
    rows = deviations(frame, measure, stages)
    ranks = _order_ranks(rows, hosts)
    steps = rows["step"].unique().sort(nulls_last=True).to_list()
    most = max(1, MOST_CELLS // max(ranks.height, 1))
    steps_here = steps[-most:]
    row_of = {rank: at for at, rank in enumerate(ranks["rank"])}
    column_of = {step: at for at, step in enumerate(steps_here)}
    value = "deviation_ns" if is_deviation else measure
    grid = np.full((len(row_of), len(column_of)), np.nan)
    for rank, step, ns in rows.select("rank", "step", value).iter_rows():
        if step in column_of and ns is not None:
            grid[row_of[rank], column_of[step]] = ns / 1e6
    limit = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    scale = (
        {"colorscale": [list(stop) for stop in DIVERGING], "zmin": -limit, "zmid": 0, "zmax": limit}
        if is_deviation
        else {"colorscale": SEQUENTIAL}
    )
    names = [str(rank) for rank in ranks["rank"]]
    figure = go.Figure(
        go.Heatmap(
            z=grid,
            x=[say("no step") if step is None else str(step) for step in steps_here],
            y=names,
            customdata=[[host or ""] * len(steps_here) for host in ranks["host"]],
            colorbar=colour_bar("ms"),
            hovertemplate=f"{say('rank')} %{{y}} %{{customdata}}, {say('step')} %{{x}}:"
            " %{z:,.3f} ms<extra></extra>",
            hoverongaps=False,
            xgap=1 if grid.size <= 4096 else 0,
            ygap=1 if grid.size <= 4096 else 0,
            **scale,
        )
    )
    named = say(MEASURES[measure])
    title = say(Message("{measure} of each rank and step", measure=named))
    if is_deviation:
        template = "{measure}: more or less than the median rank of the step"
        if are_known(stages):
            template = "{measure}: more or less than the median rank of step and stage"
        title = say(Message(template, measure=named))
    if len(steps_here) < len(steps):
        cut = "{title}: the last {count} of {every} steps"
        title = say(Message(cut, title=title, count=len(steps_here), every=len(steps)))
    figure = lay_out(
        figure, say, title, height_px=max(280, min(_MOST_PX, 130 + 22 * len(names))), x=say("step"),
        y=say("rank"),
    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return _host_lines(figure, ranks)


def _order_ranks(rows: pl.DataFrame, hosts: pl.DataFrame | None) -> pl.DataFrame:
    """rank, host: in order of ranks, or of hosts by their first rank."""
    ranks = rows.select(pl.col("rank").unique().sort())
    if hosts is None or hosts["host"].null_count() == hosts.height:
        return ranks.with_columns(host=pl.lit(None, pl.String))
    named = hosts.select("rank", pl.coalesce("host_name", "host").alias("host"), key="host")
    rows_with_places = ranks.join(named, on="rank", how="left")
    return rows_with_places.sort(pl.col("rank").min().over("key"), "rank").select("rank", "host")


def _host_lines(figure: go.Figure, ranks: pl.DataFrame) -> go.Figure:
    """A line where the next host begins, where hosts are several and not too many."""
    hosts = ranks["host"].to_list()
    edges = [at for at in range(1, len(hosts)) if hosts[at] != hosts[at - 1]]
    if edges and len(edges) <= 128:
        # At once: added one by one, plotly copies all of them each time.
        figure.update_layout(
            shapes=[
                {
                    "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at - 0.5,
                    "y1": at - 0.5, "line": {"color": FREE, "width": 2},
                }
                for at in edges
            ]
        )  # fmt: skip
    return figure


def culprits_figure(ranking: pl.DataFrame, silent: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `by_rank`: the waiting that each rank causes in a step, those suspected in one strong
    colour with their name, all others muted; ranks of `silent` (rank, reason) as grey marks.

    Of more than can be drawn those that cause most; as many silent ranks as others.
    """
    top_rows = ranking.head(MOST_CULPRITS)
    told_ms = pl.col("caused_wait_per_step_ns").fill_null(0) / 1e6
    rows = top_rows.with_columns(wait_ms=told_ms)
    top = max([*rows["wait_ms"], 1e-6])
    figure = go.Figure()
    for is_suspect, name, colour in (
        (True, "suspected", CULPRIT), (False, "others", FAINT)
    ):  # fmt: skip
        some = rows.filter(pl.col("verdict").is_not_null() == is_suspect).sort("rank")
        if some.is_empty():
            continue
        words = [say(VERDICT_WORDS.get(one, NO_SUSPECT)) for one in some["verdict"]]
        figure.add_bar(
            x=some["rank"].to_list(),
            y=some["wait_ms"].to_list(),
            name=say(name),
            width=_BAR_WIDTH,  # else each trace has that of the gaps between its own ranks
            marker={"color": colour, "line": {"width": 0}},
            customdata=words,
            hovertemplate=f"{say('rank')} %{{x}}: %{{y:,.3f}} ms, %{{customdata}}<extra></extra>",
        )
        if is_suspect:
            _name_culprits(figure, some.with_columns(words=pl.Series(words)), top, say)
    grey = silent.head(top_rows.height)
    if not grey.is_empty():
        figure.add_scatter(
            x=grey["rank"].to_list(),
            y=[0] * grey.height,
            mode="markers",
            name=say("nothing recorded"),
            marker={"symbol": "x-thin", "size": 9, "line": {"color": FREE, "width": 2}},
            customdata=[say(one) for one in grey["reason"]],
            hovertemplate=f"{say('rank')} %{{x}}: %{{customdata}}<extra></extra>",
        )
    part = "Waiting that each rank causes in a step: {count} of {every} ranks"
    title = of_many(
        "Waiting that each rank causes in a step", part, top_rows.height, ranking.height
    )
    figure.update_layout(showlegend=True, barmode="overlay")
    figure = lay_out(figure, say, title, height_px=320, x=say("rank"), y=say("ms per step"))
    every = sorted({*top_rows["rank"], *grey["rank"]})
    if len(every) <= MOST_BARS:
        figure.update_xaxes(tickvals=every)
    figure.update_xaxes(range=[min(every) - 0.7, max(every) + 0.7])
    return figure.update_yaxes(range=[-0.04 * top, _ROOM_ABOVE * top])


def _name_culprits(figure: go.Figure, rows: pl.DataFrame, top: float, say: Say) -> None:
    """The first suspects by name, at their bars: one above the other where they stand close.
    `top`: the most that any rank causes, in ms."""
    first = rows.sort("wait_ms", "rank", descending=[True, False]).head(MOST_NAMED).reverse()
    px_per_ms, is_alone = _PANEL_PX / (_ROOM_ABOVE * top), first.height == 1
    ranks = rows["rank"].to_list()
    close = _CLOSE * (max(ranks) - min(ranks) + 1)
    heights: list[tuple[int, float]] = []  # where names stand, from the lowest
    for row in first.iter_rows(named=True):
        bar_px = row["wait_ms"] * px_per_ms
        name_px = bar_px + _NAME_PX
        for rank, px in heights:
            if abs(rank - row["rank"]) < close and abs(px - name_px) < _NAME_PX:
                name_px = px + _NAME_PX
        heights.append((row["rank"], name_px))
        figure.add_annotation(
            x=row["rank"], y=row["wait_ms"], yanchor="bottom", arrowcolor=CULPRIT,
            text=f"<b>{say('rank')} {row['rank']}</b>" + (f": {row['words']}" if is_alone else ""),
            showarrow=True, arrowhead=2, ax=0, ay=bar_px - name_px,
            font={"color": CULPRIT, "size": 14},
        )  # fmt: skip


def hosts_figure(frame: pl.DataFrame, hosts: pl.DataFrame, say: Say) -> go.Figure:
    """Rows of `steps` and of `rank_hosts`: computing and free time of a mean step, a point for
    each rank, by host."""
    means = by_host(frame, hosts)
    figure = go.Figure()
    for name, column, colour in (
        ("computing", "computing_ns", COMPUTING), ("free", "free_ns", FREE)
    ):  # fmt: skip
        means_of = means.drop_nulls(column)
        figure.add_box(
            x=means_of["host_name"].to_list(),
            y=(means_of[column] / 1e6).to_list(),
            name=say(name),
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"size": 6, "color": colour},
            line={"width": 1},
            customdata=means_of["rank"].to_list(),
            hovertemplate=f"{say('rank')} %{{customdata}}, %{{x}}: %{{y:,.3f}} ms",
        )
    figure.update_layout(boxmode="group")
    figure = lay_out(
        figure, say, "Ranks by host, a mean step", height_px=340, x=say("host"),
        y=say("ms per step"),
    )  # fmt: skip
    figure.update_xaxes(type="category")
    return figure.update_yaxes(rangemode="tozero")


def by_host(frame: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """Rows of `mean_steps` by rank with their hosts: host_name, rank, stage_ns, computing_ns,
    exposed_communication_ns, free_ns. Ranks of unknown hosts are left out; of machines that share
    a name, the key stands behind it."""
    shared = pl.col("host").n_unique().over("host_name") > 1
    named = hosts.drop_nulls("host").select(
        "rank",
        pl.when(pl.col("host_name").is_null())
        .then("host")
        .when(shared)
        .then(pl.format("{} ({})", "host_name", "host"))
        .otherwise("host_name")
        .alias("host_name"),
    )
    return (
        frame.join(named, on="rank")
        .sort("host_name", "rank")
        .select("host_name", "rank", *MEASURES)
    )


def capability_named(name: str, say: Say) -> str:
    """A capability in the reader's language, where words like `groups` count things elsewhere."""
    return label_of(f"capability {name}", name.replace("_", " "), say)


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
            for number, colour in enumerate(_LEVEL_COLOURS)
            for edge in (number / 3, (number + 1) / 3)
        ],
        showscale=False, xgap=1 if len(ranks) <= 128 else 0, ygap=1,
        customdata=words,
        hovertemplate=f"{say('rank')} %{{x}}, %{{y}}: %{{customdata}}<extra></extra>",
    )  # fmt: skip
    for level, colour in zip(("yes", "partly", "no"), reversed(_LEVEL_COLOURS), strict=True):
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=say(level),
            marker={"color": colour, "symbol": "square", "size": 11},
        )  # fmt: skip
    figure.update_xaxes(type="category", title={"text": say("rank")}, nticks=32)
    return lay_out(
        figure, say, "What each rank can answer", height_px=rows_px(len(names), 20), is_listed=True
    )
