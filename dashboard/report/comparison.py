"""Two runs compared, as blocks of a report: is the difference real, and where does it come from?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from npuscope.analysis.compare.difference import Comparison
from npuscope.analysis.compare.side import PER_TOKEN
from npuscope.analysis.compare.waterfall import by_part
from npuscope.analysis.views import sum_of
from npuscope.analysis.wording import UNKNOWN, delta_ms, ms, plain
from npuscope.messages import Message, join

from ..terminal.measures import MEASURES, figure
from ..terminal.parts_table import CHANGES, WORDS
from ..terminal.tables import Column, FittedTable, decimals
from .blocks import Block, Bullets, Chart, Facts, Heading, Sentence

VERDICTS = {
    "different": "different",
    "same": "the same within 1 %",
    "not_enough": "not enough to tell",
}
_MOST_ROWS = 20


def comparison_blocks(
    comparison: Comparison, places: tuple[str, str], notes: Sequence[str]
) -> list[Block]:
    """The whole answer as a document; `places` are A and B as they were given."""
    return [
        Heading("npuscope compare"), Facts((("A", places[0]), ("B", places[1]))),
        *comparison_tables(comparison), *note_blocks(notes),
    ]  # fmt: skip


def note_blocks(notes: Sequence[str]) -> list[Block]:
    """What to know beside the figures, where there is any."""
    return [Bullets("What to know about these figures", tuple(notes))] if notes else []


def comparison_tables(comparison: Comparison) -> list[Block]:
    """What people read first: is it real, then where it comes from (ms, B minus A)."""
    blocks: list[Block] = []
    if comparison.changes:
        facts = [{"fact": name, "a": a, "b": b} for name, (a, b) in comparison.changes.items()]
        columns = [Column("fact", "fact", is_word=True), Column("A", "a"), Column("B", "b")]
        blocks.append(FittedTable(columns, facts, "What else differs"))
    blocks.append(Sentence(headline(comparison)))
    columns = [
        Column("mean of a step (ms)", "what", is_word=True), Column("A", "a", str),
        Column("B", "b", str), Column("B - A", "delta", str),
        Column("95 % from", "low", str, 1), Column("to", "high", str, 1),
        Column("verdict", "verdict", is_word=True),
    ]  # fmt: skip
    return [
        *blocks, FittedTable(columns, measure_rows(comparison), "Is it real?"),
        Chart("compare", comparison.rows), where_from(comparison),
    ]  # fmt: skip


def headline(comparison: Comparison) -> Message:
    """The time of a step of either side, and the verdict."""
    share = comparison.delta_ns / comparison.step_a_ns if comparison.step_a_ns else None
    return Message(
        "step {a} ms -> {b} ms ({share}): {verdict}",
        a=ms(comparison.step_a_ns), b=ms(comparison.step_b_ns),
        share=UNKNOWN if share is None else f"{share:+.2%}",
        verdict=VERDICTS[comparison.verdict],
    )  # fmt: skip


def largest_change(comparison: Comparison) -> list[Message]:
    """What takes most of a difference that is one: of the part that changed most in its direction,
    the longest bar of the figure, the row that did; and the part, where it has other rows."""
    way = 1 if comparison.delta_ns > 0 else -1
    parts = by_part(comparison.rows).filter(pl.col("delta_ns") * way > 0)
    if comparison.verdict != "different" or parts.is_empty():
        return []
    part = parts.sort(pl.col("delta_ns") * way, descending=True).row(0, named=True)
    rows = comparison.rows.filter(part=part["part"])
    row = rows.sort(pl.col("delta_ns") * way, descending=True).row(0, named=True)
    what = join((WORDS[row["part"]], row["name"] or ""), " ")
    delta = delta_ms(row["delta_ns"])
    if row["change"] not in CHANGES:
        sentences = [Message("Most of it: {what}, {delta} ms.", what=what, delta=delta)]
    else:
        how = CHANGES[row["change"]]
        sentences = [
            Message("Most of it: {what} ({how}), {delta} ms.", what=what, how=how, delta=delta)
        ]
    if row["delta_ns"] != part["delta_ns"]:
        whole = delta_ms(part["delta_ns"])
        sentences.append(
            Message("{part} in all: {delta} ms.", part=WORDS[row["part"]], delta=whole)
        )
    return sentences


def measure_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row of texts per measure that there may be: what, a, b, delta, low, high, verdict."""
    return [
        {
            "what": MEASURES[row["measure"]],
            "verdict": "unknown" if row["delta"] is None else VERDICTS[row["verdict"]],
        }
        | {key: figure(row["measure"], row[key]) for key in ("a", "b", "delta", "low", "high")}
        for row in comparison.figures.iter_rows(named=True)
        if row["measure"] != PER_TOKEN or row["delta"] is not None
    ]


def with_own_sides(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Rows of the metric `compare` without the A and B (`columns`) of differences of counts: these
    have none of their own, the time of either side stands with duration."""
    is_own = pl.col("change").ne_missing(pl.lit("count"))
    return rows.with_columns(pl.when(is_own).then(pl.col(one)).alias(one) for one in columns)


def where_from(comparison: Comparison) -> FittedTable:
    """The largest changes of parts of a step, and all together; of each stage or rank where that
    was asked for. Per token where a rank of one side is none of the other."""
    table = comparison.rows if comparison.at is None else comparison.at
    place = table.columns[0] if comparison.at is not None else None
    unit = "_ns_per_token" if comparison.is_per_token else "_ns"
    values = ["a", "b", "delta"]
    table = table.with_columns(
        a=pl.col(f"a{unit}"), b=pl.col(f"b{unit}"), delta=pl.col(f"b{unit}") - pl.col(f"a{unit}")
    )
    changed = table.filter(pl.col("delta") != 0).sort(pl.col("delta").abs(), descending=True)
    rest = changed[_MOST_ROWS:]
    rows = [
        {**row, "what": WORDS[row["part"]], "how": CHANGES.get(row["change"], "")}
        for row in with_own_sides(changed[:_MOST_ROWS], ("a", "b")).to_dicts()
    ]
    if place is None:
        empty = {"name": "", "how": ""}
        if rest.height:
            rows.append({**sum_of(rest, values), **empty, "what": "smaller changes together"})
        rows.append({**sum_of(table, values), **empty, "what": "all"})
    form = decimals("{:,.3f}") if comparison.is_per_token else ms
    return FittedTable(
        [
            *([Column(place, place, plain)] if place else []),
            Column("part", "what", is_word=True), Column("of", "name"),
            Column("by", "how", None, 1, is_word=True),
            Column("A", "a", form, 2), Column("B", "b", form, 2), Column("B - A", "delta", form),
        ],
        rows,
        "Where it comes from (ns of a rank per token)"
        if comparison.is_per_token
        else "Where it comes from (ms of a mean rank's step)",
        Message("{count} smaller changes: --json has them", count=rest.height)
        if rest.height
        else None,
    )  # fmt: skip
