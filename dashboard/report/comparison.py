"""Two runs compared, as blocks of a report: is the difference real, and where does it come from?"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from npuscope.analysis.compare.difference import Comparison
from npuscope.analysis.wording import UNKNOWN, mebibytes, ms, percent
from npuscope.messages import Message

from ..terminal.parts_table import PART_WORDS
from ..terminal.tables import Column, FittedTable
from .blocks import Block, Bullets, Facts, Heading, Sentence

_PARTS = {
    **PART_WORDS,
    "between_steps": "between a rank's steps",
    "latest_rank": "the latest rank beyond the mean",
}
_CHANGES = {
    "count": "ran more or less often",
    "duration": "each took longer or shorter",
    "shape": "other shapes",
    "new": "only in B",
    "gone": "only in A",
    "at_once": "beside each other, counted once",
}
VERDICTS = {
    "different": "different",
    "same": "the same within 1 %",
    "not_enough": "not enough to tell",
}
_MEASURES = {
    "step_ns": "step of the job",
    "computing_ns": "computing",
    "exposed_communication_ns": "exposed communication",
    "free_ns": "free",
    "masking_ratio": "masking",
    "kernel_mfu_causal_ratio": "kernel MFU",
    "peak_memory_bytes": "peak memory (MiB)",
    "expert_max_over_mean": "fullest expert over mean",
}
_MOST_ROWS = 20


def comparison_blocks(
    found: Comparison, places: tuple[str, str], notes: Sequence[str]
) -> list[Block]:
    """The whole answer as a document; `places` are A and B as they were given."""
    return [
        Heading("npuscope compare"), Facts((("A", places[0]), ("B", places[1]))),
        *comparison_tables(found), *remaining(notes),
    ]  # fmt: skip


def remaining(notes: Sequence[str]) -> list[Block]:
    """What to know beside the figures, where there is any."""
    return [Bullets("What to know about these figures", tuple(notes))] if notes else []


def comparison_tables(found: Comparison) -> list[Block]:
    """What people read first: is it real, then where it comes from (ms, B minus A)."""
    told: list[Block] = []
    if found.changed:
        facts = [{"fact": name, "a": a, "b": b} for name, (a, b) in found.changed.items()]
        columns = [Column("fact", "fact", is_word=True), Column("A", "a"), Column("B", "b")]
        told.append(FittedTable(columns, facts, "What else differs"))
    share = found.delta_ns / found.step_a_ns if found.step_a_ns else None
    told.append(
        Sentence(
            Message(
                "step {a} ms -> {b} ms ({share}): {verdict}",
                a=ms(found.step_a_ns), b=ms(found.step_b_ns),
                share=UNKNOWN if share is None else f"{share:+.2%}",
                verdict=VERDICTS[found.verdict],
            )
        )
    )  # fmt: skip
    measures = [
        {**row, "what": _MEASURES[row["measure"]], "verdict": VERDICTS[row["verdict"]]}
        | {key: figure(row["measure"], row[key]) for key in ("a", "b", "delta", "low", "high")}
        for row in found.figures.iter_rows(named=True)
    ]
    columns = [
        Column("mean of a step (ms)", "what", is_word=True), Column("A", "a", str),
        Column("B", "b", str), Column("B - A", "delta", str),
        Column("95 % from", "low", str, 1), Column("to", "high", str, 1),
        Column("verdict", "verdict", is_word=True),
    ]  # fmt: skip
    return [*told, FittedTable(columns, measures, "Is it real?"), where_from(found)]


def where_from(found: Comparison) -> FittedTable:
    """The largest changes of parts of a step, and all together."""
    rows = [
        {**row, "what": _PARTS[row["part"]], "how": _CHANGES.get(row["change"], "")}
        for row in found.rows.sort(pl.col("delta_ns").abs(), descending=True).to_dicts()
        if row["delta_ns"]
    ]
    rest = rows[_MOST_ROWS:]
    if rest:
        rows = rows[:_MOST_ROWS]
        rows.append(
            {"what": "smaller changes together", "name": "", "how": ""}
            | {key: sum(row[key] for row in rest) for key in ("a_ns", "b_ns", "delta_ns")}
        )
    total = {"what": "all", "name": "", "how": "", "a_ns": found.step_a_ns}
    return FittedTable(
        [
            Column("part", "what", is_word=True), Column("of", "name"),
            Column("by", "how", None, 1, is_word=True),
            Column("A", "a_ns", ms, 2), Column("B", "b_ns", ms, 2), Column("B - A", "delta_ns", ms),
        ],
        [*rows, total | {"b_ns": found.step_b_ns, "delta_ns": found.delta_ns}],
        "Where it comes from (ms of a mean rank's step)",
        Message("{count} smaller changes: --json has them", count=len(rest)) if rest else None,
    )  # fmt: skip


def figure(measure: str, value: float | None) -> str:
    """A measure's value or difference in its unit: ms, per cent, MiB, or none."""
    if value is None:
        return UNKNOWN
    ending = measure.rpartition("_")[2]
    form = {"ns": ms, "ratio": percent, "bytes": mebibytes}.get(ending, "{:.3f}".format)
    return form(value)
