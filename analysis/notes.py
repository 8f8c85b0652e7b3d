"""What a reader of figures must know: what is missing, left out or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
import polars as pl

from .catalog import sql_text
from .views import frame, open_views
from .wording import numbers, ranks_named


def notes(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> list[str]:
    """Remarks on the captures of `con`, or on one, each a sentence; none where all is complete.

    They name the capture where there are several.
    """
    open_views(con)
    facts = _of(frame(con, "from capture_facts order by run, capture"), run, capture)
    steps = _of(frame(con, "from step_summary"), run, capture)
    outside = _of(frame(con, "from outside_steps"), run, capture)
    unseen = _of(frame(con, sql_text("unseen_steps.sql")), run, capture)
    devices = _of(frame(con, sql_text("unread_devices.sql")), run, capture)
    found: list[str] = []
    for one in facts.to_dicts():
        here = (one["run"], one["capture"])
        remarks = [
            *_missing(one),
            *_without_figures(one["ranks"], _of(steps, *here)),
            *_light(_of(steps, *here)),
            *_devices(_of(devices, *here)),
            *_unseen(_of(unseen, *here)),
            *_outside(_of(outside, *here)),
        ]
        place = f"{here[0]}, {here[1]}: " if facts.height > 1 else ""
        found += [place + remark for remark in remarks]
    return found


def _of(rows: pl.DataFrame, run: str | None, capture: str | None) -> pl.DataFrame:
    """Rows of one run and capture, where they are given."""
    if run is not None:
        rows = rows.filter(pl.col("run") == run)
    return rows if capture is None else rows.filter(pl.col("capture") == capture)


def _missing(facts: dict[str, Any]) -> Iterable[str]:
    if facts["missing_ranks"]:
        yield (
            f"{ranks_named(facts['missing_ranks'])} of {facts['world_size']} missing: figures"
            " across ranks cover the others only."
        )


def _without_figures(ranks: list[int], steps: pl.DataFrame) -> Iterable[str]:
    silent = sorted(set(ranks) - set(steps["rank"]))
    if silent:
        yield (
            f"{ranks_named(silent)}: no step has events or a row in the producer's table:"
            " no figures."
        )
    blind = steps.filter((pl.col("basis") == "events") & pl.col("computing_ns").is_null())
    if not blind.is_empty():
        yield (
            f"{ranks_named(blind['rank'])}: operations but no compute kernel was recorded, so"
            " computing, overlap and free time are unknown."
        )


def _light(steps: pl.DataFrame) -> Iterable[str]:
    light = steps.filter(pl.col("basis") == "profiler_table")
    if not light.is_empty():
        yield (
            f"{ranks_named(light['rank'])}: no compute kernels; figures are those of the producer's"
            " own table (basis profiler_table)."
        )


def _devices(devices: pl.DataFrame) -> Iterable[str]:
    for one in devices.to_dicts():
        lowest = f"device {min(one['devices'])}, as the rank's own is unknown"
        shown = "the rank's own" if one["known"] else lowest
        yield (
            f"rank {one['rank']}: the producer's table has devices {numbers(one['devices'])};"
            f" shown is {shown}."
        )


def _unseen(unseen: pl.DataFrame) -> Iterable[str]:
    for one in unseen.group_by("step").agg("rank").sort("step").to_dicts():
        yield (
            f"step {one['step']}, {ranks_named(one['rank'])}: recorded, but no kernel or operation"
            " belongs to it."
        )


def _outside(outside: pl.DataFrame) -> Iterable[str]:
    if not outside.is_empty():
        total = outside.sum().to_dicts()[0]
        yield (
            f"{ranks_named(outside['rank'])}: outside every step are {total['kernel_count']}"
            f" compute kernels ({total['computing_ns']} ns) and {total['op_count']} communication"
            f" operations ({total['communication_ns']} ns); no step counts them."
        )
