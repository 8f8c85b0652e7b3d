"""What the doctor finds of a capture, as frames for a page."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl

from npuscope.analysis.doctor.doctor import CaptureReport, RankReport, examine
from npuscope.analysis.scope import ALL, Scope
from npuscope.analysis.wording import ranks_named
from npuscope.collector.store.manifest import is_store, manifests
from npuscope.messages import Message

from ..terminal.doctor.doctor_rows import Disk, config_of, doctor_notes, tables_of

_FACTS = (
    "framework", "source_format", "profiler_level", "framework_version", "cann_version",
    "chip_name", "host_name", "clock",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quality:
    """`capabilities`: capability, question, support, reason, remedy, exceptions (a sentence per
    group of ranks that deviate). `support`: rank, capability, support. `ranks`: a row per rank of
    what was recorded, rows_lost, bytes_lost, missing_steps, window_covered_ratio. `tables`: rank,
    table, row_count, source. `losses`: rank, file, reason.
    `config`: the profiler call that records what is missing; None where nothing would.
    """

    present_count: int
    expected_count: int | None
    missing_ranks: tuple[int, ...]
    capabilities: pl.DataFrame
    support: pl.DataFrame
    ranks: pl.DataFrame
    tables: pl.DataFrame
    losses: pl.DataFrame
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    config: str | None
    overhead_ratio: float | None


def quality(con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, path: str) -> Quality | None:
    """The doctor's report on one capture of the store or export at `path`; None where it has
    nothing of the capture."""
    read = (
        manifests(Path(path), run=scope.run, capture=scope.capture) if is_store(Path(path)) else []
    )
    reports = examine(con, read, scope)
    if not reports:
        return None
    report = reports[0]
    return Quality(
        len(report.ranks),
        report.world_size,
        tuple(report.missing_ranks or ()),
        _capabilities(report),
        pl.DataFrame(
            [
                (one.rank, verdict.capability, verdict.support)
                for one in report.ranks
                for verdict in one.verdicts
            ],
            schema={"rank": pl.Int32, "capability": pl.String, "support": pl.String},
            orient="row",
        ),
        pl.DataFrame([_rank_row(one) for one in report.ranks], infer_schema_length=None),
        pl.DataFrame(
            [
                (one.rank, table, count, one.sources.get(table))
                for one in report.ranks
                for table, count in sorted(tables_of(one).items())
            ],
            schema={
                "rank": pl.Int32, "table": pl.String, "row_count": pl.Int64, "source": pl.String
            },
            orient="row",
        ),
        pl.DataFrame(
            [
                (one.rank, Path(file).name, why.removeprefix(f"{file}: "))
                for one in report.ranks
                for file, why in sorted((one.loss.files or {}).items())
            ],
            schema={"rank": pl.Int32, "file": pl.String, "reason": pl.String},
            orient="row",
        ),
        tuple(_warnings(report)),
        tuple(doctor_notes([report], Disk(beside=()))),
        config_of(report.ranks),
        report.overhead.ratio,
    )  # fmt: skip


def _capabilities(report: CaptureReport) -> pl.DataFrame:
    rows = [
        {
            "support": one.support,
            "capability": one.capability,
            "question": one.question,
            "reason": one.reason,
            "remedy": one.remedy,
            "exceptions": "; ".join(
                f"{ranks_named(other.ranks)}: {other.verdict.support}"
                + (f" ({other.verdict.reason})" if other.verdict.reason else "")
                for other in one.deviations
            )
            or None,
        }
        for one in report.verdicts
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.String) if rows else None)


def _rank_row(one: RankReport) -> dict[str, object]:
    return {
        "rank": one.rank,
        **{name: one.facts[name] for name in _FACTS},
        "rows_lost": one.loss.rows,
        "bytes_lost": one.loss.bytes,
        "missing_step_count": len(one.steps.missing),
        "window_covered_ratio": one.steps.covered_ratio,
        "npuscope_version": one.npuscope_version,
    }


def _warnings(report: CaptureReport) -> list[str]:
    """What readers warned of, with the ranks it concerns."""
    concerned: dict[str, list[int]] = defaultdict(list)
    for one in report.ranks:
        for warning in one.warnings or ():
            concerned[warning].append(one.rank)
    return [
        Message("{place}: {note}", place=ranks_named(ranks), note=warning)
        for warning, ranks in concerned.items()
    ]
