"""What a report is made of, before it is drawn in a terminal, on a page or as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from npuscope.analysis.findings.finding import Finding

from ..terminal.tables import FittedTable

# As pages name the same figures: the catalog tells what each is drawn from.
ChartName = Literal[
    "ranks",
    "parts",
    "kernels",
    "communication",
    "memory_curve",
    "waterfall",
    "load",
    "devices",
    "compare",
]


@dataclass(frozen=True, slots=True)
class Heading:
    """Begins a capture."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What to change first."""

    items: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line, the end of which is what it is about."""

    text: str
    emphasis: str = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """Sentences under a title."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A frame to look at: `charts` draws it. A terminal has the tables instead."""

    name: ChartName
    frame: pl.DataFrame


Block = Heading | Facts | Findings | Sentence | Bullets | Chart | FittedTable
