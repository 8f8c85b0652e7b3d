"""The loss waterfall of a store or export: its inputs gathered, its terms put together.

step_summary, step_parts + figures and kernels of `mfu` --> waterfall --> per rank, stage, job
"""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from npuscope.analysis.means import without_warm_up
from npuscope.analysis.parts import step_parts
from npuscope.analysis.views import frame, open_views, where
from npuscope.messages import Message

from .waterfall import PLACE, TERMS, waterfall

_STEPS = """
select run, capture, rank, step, computing_ns, exposed_communication_ns, free_ns
from step_summary {where}"""
_STAGES = "select distinct run, capture, rank, pp_rank as stage from ranks"


def losses(
    con: duckdb.DuckDBPyConnection,
    figures: pl.DataFrame,
    kernels: pl.DataFrame,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """Rows of `waterfall` for the steps of `figures`; `kernels` as it takes them.

    What exposed communication is made of is told where `con` has what all ranks together tell
    (`ranks.rank_views.open_across`).
    """
    open_views(con)
    clause, values = where({"run": run, "capture": capture, "rank": rank, "step": step})
    return waterfall(
        figures,
        kernels,
        frame(con, _STEPS.format(where=clause), values),
        step_parts(con, run=run, capture=capture, rank=rank, step=step),
    )


def loss_notes(figures: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """What to know beside the waterfall of `figures`, a sentence each."""
    told: list[str] = []
    missing = figures.join(rows.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True)
    if missing.height:
        told.append(
            Message(
                "waterfall: left out {count} of {every} steps, whose length, peak or device time "
                "is unknown",
                count=missing.height,
                every=figures.height,
            )
        )
    if (rows.filter(pl.col("term") == "tail")["ns"] < 0).any():
        told.append(
            "waterfall: device work of some steps extends into the next step, so the time before"
            " and after it is negative there"
        )
    if (rows.filter(pl.col("term") == "recompute")["ns"] < 0).any():
        told.append(
            "waterfall: kernels with known FLOPs execute less than the model needs: check the"
            " model description and the tokens per step"
        )
    if rows.filter(pl.col("term") == "unknown_communication").height:
        told.append(
            "waterfall: for some communication, transfer and waiting cannot be separated: its"
            " groups or the times of all their ranks are unknown"
        )
    return told


def by_term(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `together` with the parts of each term added up: ns and mfu_points of each place and
    term, in order."""
    place = [name for name in ("run", "capture", "rank", "stage", "term") if name in rows.columns]
    return rows.group_by(place, maintain_order=True).agg(pl.col("ns", "mfu_points").sum())


def together(
    con: duckdb.DuckDBPyConnection,
    rows: pl.DataFrame,
    *,
    by: Literal["job", "stage", "rank"] = "job",
) -> pl.DataFrame:
    """Rows of `losses` of each rank, stage or capture (`by`: rank, stage, job), all steps without
    warm-up together.

    Columns: run, capture, rank or stage where asked for, term, part, ns (of a mean rank and step),
    mfu_points; the points of each add up to 1. Ranks whose stage is unknown are one stage, NULL.
    """
    rows = without_warm_up(con, rows)
    keys = {"job": [], "rank": ["rank"], "stage": ["stage"]}[by]
    place = ["run", "capture", *keys]
    stages = frame(con, _STAGES)
    known = rows.join(stages, on=["run", "capture", "rank"], how="left")
    steps = known.group_by(place).agg(
        pl.struct("rank", "step").n_unique().alias("step_count"), pl.col("ns").sum().alias("all_ns")
    )
    order = pl.col("term").replace_strict({term: n for n, term in enumerate(TERMS)})
    return (
        known.group_by(*place, "term", "part")
        .agg(pl.col("ns").sum())
        .join(steps, on=place, nulls_equal=True)
        .with_columns(
            pl.col("ns") / pl.col("step_count"),
            (pl.col("ns") / pl.col("all_ns")).alias("mfu_points"),
        )
        .sort(*place, order, -pl.col("ns"), "part", nulls_last=True)
        .select(*place, "term", "part", "ns", "mfu_points")
    )
