"""The terminal report: facts of each capture, where its steps go, who differs, what runs longest.

Pure: frames in, things to draw out; the command line draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import duckdb
import polars as pl
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from npuscope.analysis import query
from npuscope.collector.captures import EPOCH_FROM_NS

from .tables import ms, number, percent, plain, steps_table, table_of, us

_MAX_STEP_ROWS = 48


def report(
    con: duckdb.DuckDBPyConnection, chosen: Mapping[str, Any], *, top: int
) -> Iterator[RenderableType]:
    """Everything the report says about the chosen captures, in order.

    `chosen` has run, capture, rank and step (None: all); `top` is the length of rankings.
    """
    place = {name: chosen.get(name) for name in ("run", "capture")}
    for facts in query.capture_facts(con, **place).to_dicts():
        here = {**chosen, "run": facts["run"], "capture": facts["capture"]}
        frame = query.steps(con, **here)
        if frame.is_empty():
            continue
        yield Rule(f"{facts['run']}  {facts['capture']}", align="left")
        yield _facts(facts)
        yield from _steps(frame)
        yield from _spread(con, here)
        yield from _kernels(con, here, frame, top)
        yield from _communication(con, here, top)
        yield from _limits(con, facts)


def _facts(facts: Mapping[str, Any]) -> RenderableType:
    """What was recorded, in a few lines."""
    lines = [
        ("ranks", _ranks(facts)),
        ("parallel", _parallel(facts)),
        ("steps", ", ".join(str(step) for step in facts["steps"] or []) or "not marked"),
        ("recorded", _recorded(facts)),
        ("window", _window(facts)),
    ]
    width = max(len(name) for name, _ in lines)
    text = Text()
    for name, value in lines:
        if value:
            text.append(f"{name:<{width}}  ", style="bright_black")
            text.append(f"{value}\n")
    return text


def _ranks(facts: Mapping[str, Any]) -> str:
    listed = query.numbers(facts["ranks"])
    size = facts["world_size"]
    told = f"{facts['rank_count']}" + (f" of {size}" if size else "")
    return f"{told} ({listed})" + (" on " + ", ".join(facts["chips"]) if facts["chips"] else "")


def _parallel(facts: Mapping[str, Any]) -> str:
    sizes = [(kind, facts[f"{kind}_size"]) for kind in ("tp", "pp", "dp", "cp", "ep")]
    return " ".join(f"{kind.upper()}{size}" for kind, size in sizes if size)


def _recorded(facts: Mapping[str, Any]) -> str:
    parts = [
        *(facts["frameworks"] or []),
        *(facts["framework_versions"] or []),
        *(f"CANN {version}" for version in facts["cann_versions"] or []),
        *(facts["profiler_levels"] or []),
        *(f"{form} export" for form in facts["source_formats"] or []),
    ]
    return ", ".join(parts)


def _window(facts: Mapping[str, Any]) -> str:
    start, end = facts["window_start_ns"], facts["window_end_ns"]
    if start is None or end is None:
        return ""
    if start < EPOCH_FROM_NS:
        return f"{(end - start) / 1e9:.3f} s on a device clock"
    moment = datetime.fromtimestamp(start // 10**9, tz=timezone.utc)
    return f"{(end - start) / 1e9:.3f} s from {moment:%Y-%m-%d %H:%M:%S} UTC"


def _steps(frame: pl.DataFrame) -> Iterator[RenderableType]:
    shown = frame
    caption = ""
    if frame.height > _MAX_STEP_ROWS:
        # The slowest say most; every rank is in the spread below.
        shown = (
            frame.sort("stage_ns", descending=True, nulls_last=True)
            .head(_MAX_STEP_ROWS)
            .sort("rank", "step")
        )
        caption = f"the {_MAX_STEP_ROWS} longest of {frame.height} rows: `npuscope steps` gives all"
    table = steps_table(shown, title="Where each step goes")
    table.caption = caption or None
    yield table
    yield Padding(_verdict(frame), (0, 0, 1, 0))


def _verdict(frame: pl.DataFrame) -> Text:
    """The mean step in one sentence: shares of its length."""
    sums = {
        name: frame[f"{name}_ns"].sum()
        for name in ("computing", "communication", "overlapped", "exposed_communication", "free")
        if frame[f"{name}_ns"].null_count() < frame.height
    }
    known = frame.drop_nulls(["computing_ns", "exposed_communication_ns", "free_ns"])
    total = sum(
        int(known[name].sum()) for name in ("computing_ns", "exposed_communication_ns", "free_ns")
    )
    if not total:
        return Text("no step has computing, communication and free time all known")
    text = Text("of all steps: ")
    for part, name in (
        ("computing", "computing"),
        ("exposed communication", "exposed_communication"),
        ("free", "free"),
    ):
        text.append(f"{part} {percent(int(known[f'{name}_ns'].sum()) / total)}, ")
    masked = (
        sums["overlapped"] / sums["communication"]
        if sums.get("communication") and "overlapped" in sums
        else None
    )
    text.append("no communication" if masked is None else f"communication masked {percent(masked)}")
    return text


def _spread(con: duckdb.DuckDBPyConnection, here: Mapping[str, Any]) -> Iterator[RenderableType]:
    frame = query.spread(
        con, run=here["run"], capture=here["capture"], step=here.get("step")
    ).filter(pl.col("rank_count") > 1)
    if frame.is_empty() or here.get("rank") is not None:
        return
    columns = [
        ("step", "step", plain),
        ("measure", "measure", None),
        ("ranks", "rank_count", plain),
        ("min ms", "min_ns", ms),
        ("median ms", "median_ns", ms),
        ("max ms", "max_ns", ms),
        ("at rank", "max_rank", plain),
        ("(max-min)/mean", "spread_ratio", percent),
    ]
    yield table_of(frame.to_dicts(), columns, title="Spread across ranks")


def _kernels(
    con: duckdb.DuckDBPyConnection, here: Mapping[str, Any], steps: pl.DataFrame, top: int
) -> Iterator[RenderableType]:
    frame = query.kernels(con, by="type", **here)
    if frame.is_empty():
        return
    key = "type"
    if frame["type"].null_count() == frame.height:
        frame, key = query.kernels(con, by="name", **here), "name"
    computing_ns = int(steps["computing_ns"].sum())
    summed = (
        frame.group_by(key, maintain_order=True)
        .agg(
            pl.when(pl.col("core").n_unique() == 1)
            .then(pl.col("core").first())
            .otherwise(None)
            .alias("core"),
            pl.col("count").sum(),
            pl.col("total_ns").sum(),
            pl.col("max_ns").max(),
        )
        .with_columns(
            (pl.col("total_ns") / pl.col("count")).alias("mean_ns"),
            (pl.col("total_ns") / max(computing_ns, 1)).alias("share"),
        )
        .sort("total_ns", key, descending=[True, False])
    )
    columns = [
        (key, key, None),
        ("core", "core", None),
        ("count", "count", number),
        ("total ms", "total_ns", ms),
        ("of computing", "share", percent),
        ("mean us", "mean_ns", us),
        ("max us", "max_ns", us),
    ]
    more = summed.height - top
    table = table_of(
        summed.head(top).to_dicts(), columns, title=f"Top kernels by {key} (all ranks and steps)"
    )
    if more > 0:
        table.caption = f"and {more} more: `npuscope kernels --by {key}`"
    yield table


def _communication(
    con: duckdb.DuckDBPyConnection, here: Mapping[str, Any], top: int
) -> Iterator[RenderableType]:
    frame = query.comm(con, **here)
    if here.get("step") is None:
        frame = frame.filter(
            pl.col("step").is_not_null() | (pl.col("step").null_count() == pl.len())
        )
    if frame.is_empty():
        return
    summed = (
        frame.group_by("parallel_kind", "op_type", maintain_order=True)
        .agg(
            pl.col("group_hash").n_unique().alias("groups"),
            pl.col("count").sum(),
            pl.col("total_ns").sum(),
            pl.col("union_ns").sum(),
            pl.col("masked_ns").sum(),
            pl.col("exposed_ns").sum(),
            pl.col("size_bytes").sum(),
            pl.col("size_bytes").null_count().alias("unsized"),
            pl.col("masked_ns").null_count().alias("unmasked"),
        )
        .with_columns(
            pl.when(pl.col("unmasked") == 0)
            .then(pl.col("masked_ns") / pl.col("union_ns"))
            .alias("masking_ratio"),
            pl.when(pl.col("unmasked") == 0).then(pl.col("exposed_ns")).alias("exposed_ns"),
            pl.when(pl.col("unsized") == 0).then(pl.col("size_bytes") / 1e6).alias("size_mb"),
        )
        .sort("total_ns", descending=True)
    )
    columns = [
        ("group", "parallel_kind", None),
        ("operation", "op_type", None),
        ("groups", "groups", plain),
        ("count", "count", number),
        ("total ms", "total_ns", ms),
        ("exposed ms", "exposed_ns", ms),
        ("masked", "masking_ratio", percent),
        ("MB", "size_mb", lambda value: "-" if value is None else f"{value:,.1f}"),
    ]
    table = table_of(
        summed.head(top).to_dicts(), columns, title="Communication by group and operation"
    )
    if summed.height > top:
        table.caption = f"and {summed.height - top} more"
    yield table


def _limits(con: duckdb.DuckDBPyConnection, facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What this capture cannot tell, and what would make it."""
    told = query.notes(con, run=facts["run"], capture=facts["capture"])
    told += query.limits(con, run=facts["run"], capture=facts["capture"])
    if told:
        yield Text("What to know about these figures", style="bold")
        for line in told:
            yield Text(f"  • {line}")
    yield Text()
