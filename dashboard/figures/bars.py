"""Bars that lie, with parts in their colours: of a step, of communication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import plotly.graph_objects as go
import polars as pl

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, FREE, MASKED

Part = tuple[str, str, str]
# Of a step, and of communication: what it is called, its column, its colour.
STEP_PARTS: tuple[Part, ...] = (
    ("computing", "computing_ns", COMPUTING),
    ("exposed communication", "exposed_communication_ns", EXPOSED),
    ("free", "free_ns", FREE),
)
HIDING_PARTS: tuple[Part, ...] = (
    ("exposed", "exposed_ns", EXPOSED),
    ("hidden", "masked_ns", MASKED),
)


def add_parts(
    figure: go.Figure,
    rows: pl.DataFrame,
    names: Sequence[object],
    parts: Sequence[Part],
    say: Say,
) -> go.Figure:
    """Parts of each row in ms, one behind the other, at the places that `names` gives them."""
    for name, column, colour in parts:
        figure.add_bar(
            y=names,
            x=(rows[column] / 1e6).to_list(),
            name=say(name),
            orientation="h",
            marker_color=colour,
            hovertemplate="%{y}: %{x:,.3f} ms",
        )
    return figure.update_layout(barmode="stack")


def told_apart(names: Iterable[str]) -> list[str]:
    """The names, those that came before with a number: bars of one name would lie on each other,
    and names that were shortened may be one."""
    told: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({number})" for number in count(2))
        told[name if name not in told else next(one for one in numbered if one not in told)] = None
    return list(told)
