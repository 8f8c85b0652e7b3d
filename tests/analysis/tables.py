"""Small canonical tables for tests, and the brute-force twins of what SQL computes from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from npuscope.analysis.catalog import metric
from npuscope.analysis.memo import forget
from npuscope.collector import schema

Row = Mapping[str, object]
KEYS: Row = {"run": "job", "capture": "c", "rank": 0}


def connect(path: str | Path = ":memory:") -> duckdb.DuckDBPyConnection:
    """A database with every canonical table, empty, with key columns."""
    con = duckdb.connect(path, config={"threads": 2})
    con.execute(";".join(schema.create_sql(one, keys=True) for one in schema.tables().values()))
    return con


def clear(con: duckdb.DuckDBPyConnection) -> None:
    """Empty the tables that `insert` fills."""
    con.execute("delete from kernels")
    con.execute("delete from comm_ops")


def put(con: duckdb.DuckDBPyConnection, frames: Mapping[str, pl.DataFrame]) -> None:
    """Append frames to the canonical tables of their names, without counters of kernels (`pmu`)."""
    for name, frame in frames.items():
        con.register("_frame", frame.drop("pmu", strict=False).to_arrow())
        con.execute(f'insert into "{name}" by name from _frame')
        con.unregister("_frame")


def keep_summaries(con: duckdb.DuckDBPyConnection) -> None:
    """Put the summaries that most questions read beside the tables, as a store has them: else each
    question computes them anew, which is most of its time. Again where tables changed since."""
    forget(con)
    for known in map(metric, ("steps", "comm", "kernels")):
        con.execute(f'create or replace table "_kept_{known.view}" as {known.sql}')
        con.execute(f'create or replace view "{known.view}" as from "_kept_{known.view}"')


def fill(con: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Row]) -> None:
    """Insert rows; `KEYS` where they do not say otherwise."""
    whole = [{**KEYS, **row} for row in rows]
    if not whole:
        return
    names = list(dict.fromkeys(name for row in whole for name in row))
    listed = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" for _ in names)
    every = ", ".join(f"({marks})" for _ in whole)
    values = [row.get(name) for row in whole for name in names]
    con.execute(f'insert into "{table}" ({listed}) values {every}', values)


def kernel(start_ns: int, dur_ns: int | None, step: int | None = None, **more: object) -> Row:
    """A compute kernel."""
    return {"start_ns": start_ns, "dur_ns": dur_ns, "step": step, "is_compute": True, **more}


def op(start_ns: int, dur_ns: int | None, step: int | None = None, **more: object) -> Row:
    """A communication operation, an allReduce unless `op_type` says otherwise."""
    return {"op_type": "allReduce", "start_ns": start_ns, "dur_ns": dur_ns, "step": step, **more}


def answer(con: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    """Rows of a metric, straight from its SQL."""
    return select(con, metric(name).sql)


def select(con: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """Rows of a query as dictionaries."""
    found = con.execute(query)
    names = [column[0] for column in found.description or []]
    return [dict(zip(names, values, strict=True)) for values in found.fetchall()]


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel (`kind` compute) or an operation (`kind` its type) of a rank."""

    rank: int
    step: int | None
    kind: str
    start_ns: int
    dur_ns: int


def grid(events: Iterable[Event]) -> set[int]:
    """Every nanosecond that one of the events covers."""
    return {t for event in events for t in range(event.start_ns, event.start_ns + event.dur_ns)}


def insert(con: duckdb.DuckDBPyConnection, events: Iterable[Event], *, shift_ns: int = 0) -> None:
    """Put events into `kernels` and `comm_ops`, `shift_ns` later."""
    kernels, ops = [], []
    for event in events:
        at = event.start_ns + shift_ns
        if event.kind == "compute":
            kernels.append(kernel(at, event.dur_ns, event.step, rank=event.rank))
        else:
            ops.append(op(at, event.dur_ns, event.step, rank=event.rank, op_type=event.kind))
    fill(con, "kernels", kernels)
    fill(con, "comm_ops", ops)
