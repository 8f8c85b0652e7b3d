"""A report as one HTML file: figures and all, without the network.

blocks -> parts of the template -> report.html.jinja
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import plotly.graph_objects as go
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from npuscope import __version__
from npuscope.analysis.catalog import drawn_in
from npuscope.analysis.findings.finding import Finding, gain_words
from npuscope.analysis.wording import ms, percent
from npuscope.console.printable import visible
from npuscope.messages import join

from ..figures.communication import masking_figure
from ..figures.comparison import change_figure
from ..figures.experts import load_figure
from ..figures.layout import visible_names
from ..figures.memory import curve_figure
from ..figures.operators import top_figure
from ..figures.steps import parts_figure, ranks_figure, waterfall_figure
from ..locale.language import Say, label_of, language_of
from ..terminal.tables import Column, FittedTable, frame_table
from .blocks import Block, Bullets, Chart, Facts, Findings, Heading, Sentence

_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}
# The pages' own, by the name of their chart.
_FIGURES: dict[str, Callable[[pl.DataFrame, Say], go.Figure]] = {
    "ranks": ranks_figure,
    "parts": parts_figure,
    "kernels": top_figure,
    "communication": masking_figure,
    "memory_curve": curve_figure,
    "waterfall": waterfall_figure,
    "load": load_figure,
    "devices": load_figure,
    "compare": change_figure,
}
_CODE = re.compile(r"`([^`]+)`")


def page(blocks: Iterable[Block], *, language: str = "en") -> str:
    """The page; `language` is en or zh."""
    say = language_of(language)
    parts = [_part(block, say) for block in blocks]
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            parts=parts,
            say=say,
            language=language,
            version=__version__,
            made=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
            plotly=get_plotlyjs() if any(part["kind"] == "figure" for part in parts) else "",
        )
    )


def fragment(blocks: Iterable[Block]) -> str:
    """Facts and findings as HTML to stand within another page: what a notebook shows."""
    say = language_of("en")
    parts = [_part(block, say) for block in blocks]
    return _environment().get_template("capture.html.jinja").render(parts=parts, say=say)


def chart_figure(chart: Chart, say: Say) -> go.Figure:
    """The figure of a chart, every name in it made visible."""
    return visible_names(_FIGURES[chart.name](chart.frame, say))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("npuscope.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["code"] = _with_code
    return environment


def _finalize(value: Any) -> Any:
    """What a reader sees of a value; our own markup has been through here already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _with_code(text: str) -> Markup:
    """A sentence in which commands stand between backquotes."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(visible(text)))))


def _part(block: Block, say: Say) -> dict[str, Any]:
    if isinstance(block, Heading):
        return {"kind": "heading", "text": block.text}
    if isinstance(block, Facts):
        return {"kind": "facts", "lines": [(say(name), say(value)) for name, value in block.lines]}
    if isinstance(block, Findings):
        return {"kind": "findings", "found": [_finding(one, say) for one in block.items]}
    if isinstance(block, Sentence):
        text = say(join((block.text, block.emphasis), "; "))
        return {"kind": "sentence", "text": text}
    if isinstance(block, Bullets):
        return {"kind": "bullets", "title": say(block.title), "lines": list(map(say, block.lines))}
    if isinstance(block, Chart):
        figure = chart_figure(block, say)
        figure.update_layout(template="plotly_white")
        html = figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)
        sources = [(one.name, one.file, say(one.meaning)) for one in drawn_in(block.name)]
        return {"kind": "figure", "html": html, "sources": sources}
    return {"kind": "table", **table(block, say)}


def table(fitted: FittedTable, say: Say) -> dict[str, Any]:
    """Cells as text; `numbers` tells which columns stand on the right."""
    columns = [column for column in fitted.columns if not column.is_drawing]
    return {
        "title": say(fitted.title) if fitted.title else None,
        "caption": say(fitted.caption) if fitted.caption else None,
        "headings": [heading(column, say) for column in columns],
        "numbers": [column.form is not None for column in columns],
        "rows": [[cell(column, row, say) for column in columns] for row in fitted.rows],
    }


def heading(column: Column, say: Say) -> str:
    """A column's heading: the profiler's stage of a step is another word than a pipeline's."""
    return label_of(f"heading {column.key}", column.heading, say)


def cell(column: Column, row: Mapping[str, Any], say: Say) -> str:
    """A cell's text; words in the reader's language, names as they are."""
    text = column.text(row).plain
    if not column.is_word:
        return text
    return label_of(f"measure {text}", text, say) if column.key == "measure" else say(text)


def _finding(one: Finding, say: Say) -> dict[str, Any]:
    return {
        "stake": ms(one.at_stake_ns) if one.at_stake_ns is not None else None,
        "share": percent(one.step_share_ratio) if one.step_share_ratio is not None else None,
        "width": round(100 * min(one.step_share_ratio or 0, 1), 1),
        "gain": ms(one.predicted_gain_ns) if one.predicted_gain_ns is not None else None,
        "gain_words": say(gain_words(one)),
        "certainty": say(one.certainty),
        "statement": say(one.statement),
        "reason": say(one.reason),
        "advice": say(one.advice),
        "command": one.command,
        "evidence": table(frame_table(one.evidence), say),
    }
