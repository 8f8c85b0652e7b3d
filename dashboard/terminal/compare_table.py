"""Two runs compared, as terminal tables: the verdict, the figures, and where the difference is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from npuscope.analysis.compare.difference import Comparison
from npuscope.analysis.wording import UNKNOWN, ms, percent

from .parts_table import PART_WORDS
from .tables import Column, FittedTable

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
_VERDICTS = {
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
}
_MOST = 20


def compare_tables(found: Comparison) -> Iterator[RenderableType]:
    """What people read first: is it real, then where it comes from (ms, B minus A)."""
    if found.changed:
        facts = [{"fact": name, "a": a, "b": b} for name, (a, b) in found.changed.items()]
        columns = [Column("fact", "fact"), Column("A", "a"), Column("B", "b")]
        yield FittedTable(columns, facts, "What else differs")
    share = found.delta_ns / found.step_a_ns if found.step_a_ns else None
    yield Text(
        f"step {ms(found.step_a_ns)} ms -> {ms(found.step_b_ns)} ms"
        f" ({UNKNOWN if share is None else f'{share:+.2%}'}): {_VERDICTS[found.verdict]}\n"
    )
    measures = [
        {**row, "what": _MEASURES[row["measure"]], "verdict": _VERDICTS[row["verdict"]]}
        | {key: _shown(row, key) for key in ("a", "b", "delta", "low", "high")}
        for row in found.figures.iter_rows(named=True)
    ]
    yield FittedTable(
        [
            Column("mean of a step (ms)", "what"), Column("A", "a", str), Column("B", "b", str),
            Column("B - A", "delta", str), Column("95 % from", "low", str, 1),
            Column("to", "high", str, 1), Column("verdict", "verdict"),
        ],
        measures,
        "Is it real?",
    )  # fmt: skip
    rows = [
        {**row, "what": _PARTS[row["part"]], "how": _CHANGES.get(row["change"], "")}
        for row in found.rows.sort(pl.col("delta_ns").abs(), descending=True).to_dicts()
        if row["delta_ns"]
    ]
    rest = rows[_MOST:]
    if rest:
        rows = rows[:_MOST]
        rows.append(
            {"what": f"{len(rest)} more rows: --json", "name": "", "how": ""}
            | {key: sum(row[key] for row in rest) for key in ("a_ns", "b_ns", "delta_ns")}
        )
    total = {"what": "all", "name": "", "how": "", "a_ns": found.step_a_ns}
    yield FittedTable(
        [
            Column("part", "what"), Column("of", "name"), Column("by", "how", None, 1),
            Column("A", "a_ns", ms, 2), Column("B", "b_ns", ms, 2), Column("B - A", "delta_ns", ms),
        ],
        [*rows, total | {"b_ns": found.step_b_ns, "delta_ns": found.delta_ns}],
        "Where it comes from (ms of a mean rank's step)",
    )  # fmt: skip


def _shown(row: dict[str, Any], key: str) -> str:
    if row[key] is None:
        return UNKNOWN
    return percent(row[key]) if row["measure"].endswith("_ratio") else ms(row[key])
