"""What a reader of figures must know: what is missing, left out or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
import polars as pl

from .metric import sql_text
from .views import frame, open_views
from .wording import numbers, ranks_named

# Without all of these a rank was read lightly.
LARGE_TABLES = frozenset({"kernels", "comm_ops", "host_ops", "launches", "memory"})
_SELECTED = (
    "select run, capture, rank, left_out_tables, kept_steps from ranks"
    " where left_out_tables is not null or kept_steps is not null"
)


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
    selected = _of(frame(con, _SELECTED), run, capture)
    warm = _of(
        frame(con, "from job_steps where is_warm_up order by run, capture, step"), run, capture
    )
    found: list[str] = []
    for one in facts.to_dicts():
        here = (one["run"], one["capture"])
        chosen = _of(selected, *here)
        partly = set(chosen.drop_nulls("left_out_tables")["rank"])
        remarks = [
            *_missing(one),
            *_selected(chosen, one["rank_count"]),
            *_without_figures(one["ranks"], _of(steps, *here), partly),
            *_light(_of(steps, *here), partly),
            *_devices(_of(devices, *here)),
            *_unseen(_of(unseen, *here)),
            *_outside(_of(outside, *here)),
            *_warm_up(_of(warm, *here)),
        ]
        place = f"{here[0]}, {here[1]}: " if facts.height > 1 else ""
        found += [place + remark for remark in remarks]
    return found


def no_kernels(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> str:
    """Why there are no kernels: a sentence."""
    left_out = _of(frame(con, _SELECTED), run, capture).filter(
        pl.col("left_out_tables").list.contains("kernels")
    )
    if rank is not None:
        left_out = left_out.filter(pl.col("rank") == rank)
    if left_out.is_empty():
        return "no kernels were recorded here: see `npuscope steps`"
    return (
        f"kernels of {ranks_named(left_out['rank'])} were not selected: `npuscope ingest PATH"
        f" --tables kernels --ranks {numbers(left_out['rank'].head(1))}` reads them"
    )


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


def _selected(chosen: pl.DataFrame, rank_count: int) -> Iterable[str]:
    """Which ranks were read in part, by what was left out, and how to read the rest."""
    by_tables: dict[str, list[int]] = {}
    for one in chosen.drop_nulls("left_out_tables").sort("rank").to_dicts():
        tables = one["left_out_tables"]
        key = "" if LARGE_TABLES <= set(tables) else ", ".join(tables)
        by_tables.setdefault(key, []).append(one["rank"])
    for names, ranks in by_tables.items():
        what = f"{names} were not selected"
        if not names:
            full_count = rank_count - len(ranks)
            what = f"read lightly, from small files ({full_count} of {rank_count} ranks in full)"
        yield (
            f"{ranks_named(ranks)}: {what}. Figures that need more are unknown, or the profiler's"
            f" own; to read it: `npuscope ingest PATH --ranks {ranks[0]}`, or without --ranks for"
            " all ranks."
        )
    kept = chosen.drop_nulls("kept_steps")
    if not kept.is_empty():
        steps = kept.explode("kept_steps").drop_nulls("kept_steps")["kept_steps"]
        yield (
            f"{ranks_named(kept['rank'])}: only steps {numbers(steps) or '(none)'} were selected;"
            " everything outside them is unknown. To read it: `npuscope ingest PATH`."
        )


def _without_figures(ranks: list[int], steps: pl.DataFrame, partly: set[int]) -> Iterable[str]:
    silent = sorted(set(ranks) - set(steps["rank"]))
    if silent:
        yield (
            f"{ranks_named(silent)}: no step has events or a row in the profiler's table: no"
            " figures."
        )
    blind = steps.filter((pl.col("basis") == "events") & pl.col("computing_ns").is_null())
    blind = blind.filter(~pl.col("rank").is_in(sorted(partly)))
    if not blind.is_empty():
        yield (
            f"{ranks_named(blind['rank'])}: operations but no compute kernel was recorded, so"
            " computing, overlap and free time are unknown."
        )


def _light(steps: pl.DataFrame, partly: set[int]) -> Iterable[str]:
    light = steps.filter(pl.col("basis") == "profiler_table")
    for ranks, reason in (
        (sorted(set(light["rank"]) - partly), "no compute kernels; "),
        (sorted(set(light["rank"]) & partly), ""),
    ):
        if ranks:
            yield (
                f"{ranks_named(ranks)}: {reason}figures come from the profiler's own table (basis"
                " profiler_table)."
            )


def _warm_up(steps: pl.DataFrame) -> Iterable[str]:
    if steps.height:
        told = ", ".join(f"{ns / 1e6:,.1f}" for ns in steps["step_ns"])
        name = "step" if steps.height == 1 else "steps"
        verb = "is" if steps.height == 1 else "are"
        yield (
            f"{name} {numbers(steps['step'])} {verb} warm-up ({told} ms, later steps"
            f" {steps['median_ns'][0] / 1e6:,.1f} ms): excluded from means."
        )


def _devices(devices: pl.DataFrame) -> Iterable[str]:
    for one in devices.to_dicts():
        lowest = f"device {min(one['devices'])}, as the rank's own is unknown"
        shown = "the rank's own" if one["known"] else lowest
        yield (
            f"rank {one['rank']}: the profiler's table has devices {numbers(one['devices'])};"
            f" shown is {shown}."
        )


def _unseen(unseen: pl.DataFrame) -> Iterable[str]:
    for one in unseen.group_by("step").agg("rank").sort("step").to_dicts():
        yield (
            f"step {one['step']}, {ranks_named(one['rank'])}: recorded, but without any kernel or"
            " operation."
        )


def _outside(outside: pl.DataFrame) -> Iterable[str]:
    if not outside.is_empty():
        total = outside.sum().to_dicts()[0]
        parts = [
            f"{total[count]} {what} ({total[length]} ns)"
            for count, length, what in (
                ("kernel_count", "computing_ns", "compute kernels"),
                ("op_count", "communication_ns", "communication operations"),
            )
            if outside[count].null_count() < outside.height
        ]
        yield (
            f"{ranks_named(outside['rank'])}: outside all steps are {' and '.join(parts)}; they"
            " count in no step."
        )
