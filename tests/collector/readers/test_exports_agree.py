"""Text and DB exports of one run give the same rows, where both formats carry the figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Form

pytestmark = pytest.mark.slow

# What only one of the formats carries: text has no host or chip, schema 1.0.0 of the DB no op
# state, wait, HF32 or cube utilisation; PMU names and digits differ.
ONE_SIDED = {
    "ranks": {"host_name", "host_uid", "chip_name", "ai_core_frequency_mhz", "source_format"},
    "kernels": {"op_state", "wait_ns", "hf32_eligible", "cube_utilization_ratio", "pmu"},
    "comm_tasks": {"rdma_type"},
}
# Counters and memory have other units and components; a launch begins with the flow in text,
# with the call in the DB; the producers' own step tables follow two rules.
OTHERWISE = {"counters", "memory", "launches", "profiler_steps"}
COMPARED = sorted(schema.tables().keys() - OTHERWISE)


@pytest.fixture(scope="module")
def both(
    agreeing_stores: Callable[[Form], Path],
) -> Iterator[tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]]:
    text, db = store.open(agreeing_stores("text")), store.open(agreeing_stores("db"))
    yield text, db
    text.close()
    db.close()


@pytest.mark.parametrize("table", COMPARED)
def test_same_rows(
    both: tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection], table: str
) -> None:
    columns = ", ".join(
        f'"{column.name}"'
        for column in schema.tables()[table].columns
        if column.name not in ONE_SIDED.get(table, ())
    )
    text, db = (
        con.execute(f"select run, rank, {columns} from {table} order by all").fetchall()
        for con in both
    )
    assert len(text) == len(db)
    differing = [(one, other) for one, other in zip(text, db, strict=True) if one != other]
    assert not differing[:3]
