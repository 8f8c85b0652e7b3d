"""Limits on a change as tables and Markdown, as JUnit XML, and as GitHub's annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

import polars as pl

from npuscope.analysis.compare.difference import Comparison
from npuscope.console.printable import visible
from npuscope.messages import Message

from ..terminal.measures import figure
from ..terminal.tables import Column, FittedTable
from .blocks import Block, Bullets, Facts, Heading, Sentence
from .comparison import note_blocks, where_from

_VERDICTS = {
    "kept": "kept",
    "broken": "broken",
    "not_enough": "not enough to tell",
    "unknown": "unknown",
}
_FIGURES = ("a", "b", "delta", "low", "high")
_LEVELS = {"broken": "error", "not_enough": "warning", "unknown": "warning", "kept": "notice"}


def gate_blocks(
    verdicts: pl.DataFrame, comparison: Comparison, places: tuple[str, str], notes: list[str]
) -> list[Block]:
    """Rows of the metric `gate` first, then where the difference comes from; `places` are A and B
    as they were given."""
    blocks = (
        [Bullets("Warnings", tuple(warned))]
        if (warned := warnings(verdicts, comparison.unit))
        else []
    )
    return [
        Heading("npuscope gate"), _summary(verdicts), Facts((("A", places[0]), ("B", places[1]))),
        limits_table(verdicts), *blocks, where_from(comparison), *note_blocks(notes),
    ]  # fmt: skip


def _summary(verdicts: pl.DataFrame) -> Sentence:
    broken = verdicts.filter(verdict="broken").height
    sentence = "{broken} of {all} limits broken" if broken else "none of {all} limits broken"
    return Sentence(Message(sentence, broken=broken, all=verdicts.height))


def limits_table(verdicts: pl.DataFrame) -> FittedTable:
    """A row per limit, each figure in its measure's unit."""
    rows = [
        {**row, "verdict": _VERDICTS[row["verdict"]]}
        | {key: figure(row["measure"], row[key]) for key in _FIGURES}
        for row in verdicts.iter_rows(named=True)
    ]
    return FittedTable(
        [
            Column("limit", "limit"), Column("allowed", "allowed", str), Column("A", "a", str),
            Column("B", "b", str), Column("B - A", "delta", str),
            Column("95 % from", "low", str, 1), Column("to", "high", str, 1),
            Column("verdict", "verdict", is_word=True),
        ],
        rows,
        "Limits (ms, MiB)",
    )  # fmt: skip


def warnings(verdicts: pl.DataFrame, unit: str) -> list[str]:
    """What could not be judged, and what would tell: limits that are neither kept nor broken."""
    return [
        sentence(row, unit)
        for row in verdicts.iter_rows(named=True)
        if row["verdict"] in ("not_enough", "unknown")
    ]


def sentence(row: Mapping[str, Any], unit: str) -> str:
    """A limit in words; `unit`: step or capture, whatever was counted."""
    values = {key: _with_unit(row["measure"], key, row[key]) for key in _FIGURES}
    values |= {"limit": row["limit"], "allowed": row["allowed"]}
    if row["verdict"] == "unknown":
        statement = "{limit} is not judged: the measure is unknown of {side}"
        sides = [side.upper() for side in ("a", "b") if row[side] is None]
        if len(sides) == 2:
            statement = "{limit} is not judged: the measure is unknown of both A and B"
        return Message(statement, side=sides[0], **values)
    if row["verdict"] == "broken":
        return Message(
            "{limit} is broken: {a} -> {b} ({delta}, 95 % from {low} to {high}), allowed {allowed}",
            **values,
        )
    if row["verdict"] == "kept":
        return Message("{limit} is kept: {a} -> {b} ({delta}), allowed {allowed}", **values)
    more = Message("more steps of each are needed")
    if row["more_count"] is not None:
        statement = "record {count} more steps of each" if unit == "step" else (
            "{count} more captures of each would tell"
        )  # fmt: skip
        more = Message(statement, count=row["more_count"])
    return Message(
        "{limit} is beyond what is allowed ({a} -> {b}, allowed {allowed}), perhaps by chance:"
        " {more}",
        more=more, **values,
    )  # fmt: skip


def _with_unit(measure: str, key: str, value: float | None) -> str:
    """A figure with its unit; of a ratio's difference these are points."""
    is_mean = key in ("a", "b")
    text = figure(measure, value)
    if value is None:
        return text
    if measure.endswith("_ratio") and not is_mean:
        text = f"{value * 100:.1f} points"
    unit = {"ns": " ms", "bytes": " MiB"}.get(measure.rpartition("_")[2], "")
    return f"{'' if is_mean or value < 0 else '+'}{text}{unit}"


def junit(verdicts: pl.DataFrame, comparison: Comparison) -> str:
    """JUnit XML: a test per limit, failed where it is broken, skipped where it is not judged."""
    rows = verdicts.to_dicts()
    counts = {
        "tests": len(rows),
        "failures": sum(row["verdict"] == "broken" for row in rows),
        "errors": 0,
        "skipped": sum(row["verdict"] in ("not_enough", "unknown") for row in rows),
    }
    attributes = {name: str(count) for name, count in counts.items()}
    root = Element("testsuites", attributes)
    suite = SubElement(root, "testsuite", {"name": "npuscope gate", **attributes, "time": "0"})
    table = where_from(comparison)
    origin = "\n".join(
        "  ".join(column.text(row).plain for column in table.columns).rstrip() for row in table.rows
    )
    for row in rows:
        names = {"classname": "npuscope.gate", "name": row["limit"], "time": "0"}
        case = SubElement(suite, "testcase", names)
        message = str(sentence(row, comparison.unit))
        if row["verdict"] == "broken":
            SubElement(case, "failure", {"message": message}).text = visible(origin)
        elif row["verdict"] == "kept":
            SubElement(case, "system-out").text = message
        else:
            SubElement(case, "skipped", {"message": message})
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def workflow_commands(verdicts: pl.DataFrame, unit: str) -> str:
    """A workflow command per limit, as GitHub reads them from a job's output."""
    lines = []
    for row in verdicts.iter_rows(named=True):
        text = str(sentence(row, unit)).replace("%", "%25").replace("\n", "%0A")
        level = _LEVELS[row["verdict"]]
        lines.append(f"::{level} title=npuscope gate {row['limit']}::{text}\n")
    return "".join(lines)
