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
# Memory has other components; a launch begins with the flow in text, with the call in the DB; the
# producers' own step tables follow two rules.
OTHERWISE = {"memory", "launches", "profiler_steps"}
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


# Schema 1.0.0 of the DB has no QoS, and text of one device does not say which it is.
_COUNTED = """
    select distinct name, series from counters where not starts_with(name, 'QoS') order by all"""
# What moved between two readings is whole bytes, where a second's bytes are not cut by much.
_PACKETS = """
    select abs(moved - round(moved)) as off, ns from (
        select value * ns / 1e9 as moved, ns from (
            select value, timestamp_ns - lag(timestamp_ns) over (
                partition by rank, name, series order by timestamp_ns) as ns
            from counters where starts_with(name, 'HBM')))
    where moved > 0"""


@pytest.mark.parametrize("level", [0, 1])
def test_real_counters_have_the_same_names_and_units(
    real_stores: Callable[[str], Path], level: int
) -> None:
    counted = []
    for form in ("text", "db"):
        with store.open(real_stores(f"alexnet_ddp_{form}_level{level}")) as con:
            counted.append(con.execute(_COUNTED).fetchall())
            rates = "select min(value), max(value) from counters where series = 'Hit Rate(%)'"
            [(least, most)] = con.execute(rates).fetchall()
            assert least == 0 and 90 < most <= 100
            packets = con.execute(_PACKETS).fetchall()
            assert len(packets) > 100
            assert all(off <= ns / 1e9 + 1e-3 for off, ns in packets)
    assert counted[0] == counted[1]
    assert ("HBM 0/Read", "Read(B/s)") in counted[0] and ("Device/Memory", "B") in counted[0]
