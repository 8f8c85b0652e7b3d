"""What figures share: room for title, legend and labels, names that are told apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, count
from typing import Any

import plotly.graph_objects as go
import polars as pl

from npuscope.console.printable import visible
from npuscope.messages import Message

from ..locale.language import Say
from ..theme import COMPUTING, EXPOSED, FONT, FREE, MASKED, template

MOST_CELLS = 200_000  # of a heat map, and
MOST_BARS = 2_000  # of all bars: a browser draws them in well below a second
ROW_PX = 24
LEGEND_ROW_PX, LEGEND_COLUMNS = 20, 2  # of long names, where a window is narrow
_FRAME_PX, _LEAST_PX = 118, 230
_MOST_APART = 96  # columns with room between them
_MOST_DECADES, _LEAST_TICKS = 3, 3  # of an axis with more than powers of ten; in sight
_TRANSPARENT = "rgba(0,0,0,0)"
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


def lay_out(
    figure: go.Figure,
    say: Say,
    title: str,
    *,
    height_px: int,
    x: str = "",
    y: str = "",
    is_listed: bool = False,
) -> go.Figure:
    """The figure with a title in the reader's language and axis titles as given.

    `is_listed`: its y axis lists names, the first on top.
    """
    figure.update_layout(
        title={
            "text": say(title), "x": 0, "xref": "container", "yref": "container", "y": 1,
            "yanchor": "top", "pad": {"l": 8, "t": 8}, "font": {"size": 15},
        },
        height=height_px,
        margin={"l": 8, "r": 16, "t": 64, "b": 48},
        font={"family": FONT},
        bargap=0.25,
        hovermode="closest",
        legend={
            "orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom",
            "traceorder": "normal",
        },
    )  # fmt: skip
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    if x:
        figure.update_xaxes(title={"text": x})
    if y:
        figure.update_yaxes(title={"text": y})
    if is_listed:
        figure.update_yaxes(autorange="reversed", ticksuffix=" ")
        figure.update_xaxes(separatethousands=True)
    return figure


def without_stripes(figure: go.Figure, columns: int) -> go.Figure:
    """The figure without room between its columns where they are so many that it would be a part of
    a pixel, here and there drawn as a whole one."""
    return figure.update_layout(bargap=0) if columns > _MOST_APART else figure


def ends_as_lines(figure: go.Figure, ends: Mapping[int, float]) -> go.Figure:
    """A waterfall whose axis does not begin at 0: each end, by its place, is a line at its value,
    as the length of a bar would say nothing; changes stay bars."""
    figure.update_traces(selector={"type": "waterfall"}, totals={"marker": {"color": _TRANSPARENT}})
    for at, x in ends.items():
        line = {"color": FREE, "width": 4}
        figure.add_shape(type="line", x0=x, x1=x, y0=at - 0.38, y1=at + 0.38, line=line)
    return figure


def apply_theme(figure: go.Figure, *, is_dark: bool) -> go.Figure:
    """The figure in the colours of a page."""
    figure.layout.template = _template(is_dark=is_dark)
    return figure


def visible_names(figure: go.Figure) -> go.Figure:
    """The figure with its texts spelled out where characters of them would steer or reorder."""
    for part in (*figure.data, figure.layout):
        before = part.to_plotly_json()
        after = _visible(before)
        if after is not before:
            part.update(after, overwrite=True)
    return figure


def _visible(value: Any) -> Any:
    """A value of a figure's JSON with its texts spelled out; itself where they are harmless."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        spelled = dict(zip(value, map(_visible, value.values()), strict=True))
        return spelled if any(spelled[key] is not value[key] for key in value) else value
    if isinstance(value, (list, tuple)):
        items = list(map(_visible, value))
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if getattr(value, "dtype", None) is not None and value.dtype.hasobject:
        texts = value.tolist()
        return value if (items := _visible(texts)) is texts else items
    return value


@cache
def _template(*, is_dark: bool) -> go.layout.Template:
    """Ours on top of Plotly's own. Putting them together takes longer than most figures."""
    return go.Figure().update_layout(template=template(is_dark=is_dark)).layout.template


def of_many(whole: str, part: str, count: int, every: int) -> str:
    """A title: `whole`, or where only some are shown `part`, which says {count} of {every}."""
    return Message(part, count=count, every=every) if count < every else whole


def rows_px(rows: int, each: int = ROW_PX) -> int:
    """Height of a figure with so many rows, in pixels."""
    return max(_LEAST_PX, _FRAME_PX + each * rows)


def colour_bar(title: str) -> dict[str, object]:
    """A colour bar beside the figure, as high as its panel."""
    return {"title": {"text": title, "side": "right"}, "thickness": 14, "outlinewidth": 0}


def shorten(text: str | None, most: int = 56) -> str:
    """A long name with its middle left out: beginnings and ends tell kernels and shapes apart."""
    if text is None:
        return "-"
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


def log_ticks(values: pl.Series) -> dict[str, list[float] | list[str]]:
    """Ticks of a logarithmic axis, each written in full: powers of ten around values; where they
    lie close together, 2 and 5 times each, too; where even these are far apart, even steps. What
    else is drawn may reach further: so do the ticks."""
    positive = values.cast(pl.Float64).sort()
    positive = positive.filter(positive.is_finite() & (positive > 0))
    if positive.is_empty():
        return {}
    least, most = positive[0], positive[-1]
    low, high = (math.floor(math.log10(one)) for one in (least, most))
    between = (1, 2, 5) if high - low < _MOST_DECADES else (1,)
    ticks = [times * 10.0**power for power in range(low - 2, high + 4) for times in between]
    if least < most and sum(least <= one <= most for one in ticks) < _LEAST_TICKS:
        size = 10.0 ** math.floor(math.log10((most - least) / _LEAST_TICKS))
        step = next(size * times for times in (1, 2, 5, 10)
                    if (most - least) / (size * times) <= 2 * _LEAST_TICKS - 1)  # fmt: skip
        first, last = math.ceil(least / step), math.floor(most / step)
        even = [number * step for number in range(first, last + 1)]
        outside = [one for one in ticks if not least - step < one < most + step]
        ticks = sorted([*outside, *even])
    return {"tickvals": ticks, "ticktext": [f"{one:,.10g}" for one in ticks]}


def add_parts(
    figure: go.Figure,
    rows: pl.DataFrame,
    names: Sequence[object],
    parts: Sequence[Part],
    say: Say,
    *,
    divisor: float = 1e6,
    hover: str = "%{y}: %{x:,.3f} ms",
    mode: str = "stack",
    **more: object,
) -> go.Figure:
    """Parts of each row at the places that `names` gives them, one behind the other or (`group`)
    under each other."""
    for name, column, colour in parts:
        figure.add_bar(
            y=names,
            x=(rows[column] / divisor).to_list(),
            name=say(name),
            orientation="h",
            marker_color=colour,
            hovertemplate=hover,
            **more,
        )
    return figure.update_layout(barmode=mode)


def numbered_names(names: Iterable[str]) -> list[str]:
    """The names, those that came before with a number: bars of one name would lie on each other,
    and shortened names may be one."""
    numbers: dict[str, None] = {}
    for name in names:
        several = chain([name], (f"{name} ({number})" for number in count(2)))
        numbers[next(one for one in several if one not in numbers)] = None
    return list(numbers)
