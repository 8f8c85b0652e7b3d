"""A change as terminal tables: what it made of a step, and what it would make of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from npuscope.analysis.wording import UNKNOWN, mebibytes, ms, percent

from .parts_table import PART_WORDS
from .tables import Column, FittedTable

if TYPE_CHECKING:
    from npuscope.analysis.compare.difference import Comparison  # loads scipy

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
    "kernel_mfu_causal_ratio": "kernel MFU",
    "peak_memory_bytes": "peak memory (MiB)",
    "expert_max_over_mean": "fullest expert over mean",
}
_MOST_ROWS = 20
_MOST_CONTRIBUTIONS = 12
_STEPS = {
    "measured_ns": "measured",
    "replayed_ns": "replayed, without launch delays",
    "predicted_ns": "with the changes",
    "ideal_ns": "ideal: all phases of a type alike",
}


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
        | {key: figure(row["measure"], row[key]) for key in ("a", "b", "delta", "low", "high")}
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
    rest = rows[_MOST_ROWS:]
    if rest:
        rows = rows[:_MOST_ROWS]
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


def figure(measure: str, value: float | None) -> str:
    """A measure's value or difference in its unit: ms, per cent, MiB, or none."""
    if value is None:
        return UNKNOWN
    ending = measure.rpartition("_")[2]
    form = {"ns": ms, "ratio": percent, "bytes": mebibytes}.get(ending, "{:.3f}".format)
    return form(value)


def what_if_tables(found: pl.DataFrame) -> RenderableType:
    """A row of the metric `whatif`: a table of steps, and of contributions where nothing else was
    asked for than the ideal."""
    (row,) = found.to_dicts()
    replayed = row["replayed_ns"]
    steps = [
        {"words": words, "ns": row[key], "factor": replayed / row[key] if row[key] else None}
        for key, words in _STEPS.items()
        if row[key] is not None
    ]
    workers = ", ".join(f"({peer},{stage})" for peer, stage in row["worst_workers"])
    shares = (
        f"{percent(row['last_stage_share'])} of what is lost to the ideal step is the last stage"
        f" (M_s), {percent(row['worst_workers_share'])} the worst workers (M_w): {workers}"
    )
    columns = [
        Column("mean step", "words", is_word=True),
        Column("ms", "ns", ms),
        Column("faster than replayed", "factor", _times),
    ]
    first = FittedTable(columns, steps, "What if", shares)
    if row["predicted_ns"] not in (None, row["ideal_ns"]):
        return first
    listed = sorted(row["contributions"], key=_weight)
    more = len(listed) - _MOST_CONTRIBUTIONS
    return Group(first, FittedTable(
        [
            Column("of", "kind"),
            Column("name", "name"),
            Column("step, times the ideal", "slowdown", _times),
        ],
        listed[:_MOST_CONTRIBUTIONS],
        "What makes the step longer, each alone",
        f"{more} more with --json" if more > 0 else None,
    ))  # fmt: skip


def _weight(row: dict[str, Any]) -> float:
    return -(row["slowdown"] or 0.0)


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"x {value:.4f}"
