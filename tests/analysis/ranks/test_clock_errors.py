"""Errors of clocks cover what is not known of them: drift that too few operations tell, most of
all; and what nothing tells is unknown, not 0."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

import duckdb
import pytest

from npuscope.dashboard.terminal.straggler_tables import clocks_table
from npuscope.sample_traces.job import small
from tests.analysis.ranks.across_tables import across, job_tables
from tests.analysis.tables import connect, fill, op

JOB = small(ranks_per_host=1, steps=3)
SECOND = 1_000_000_000


def plant(shared: int, offset_ns: int, ppm: float, seed: int) -> duckdb.DuckDBPyConnection:
    """Two hosts that share so many collectives in a second of ten; the second one's clock is ahead
    by an offset at the begin that grows by so many us each second."""
    con = connect()
    chance = random.Random(seed)
    fill(con, "ranks", [
        {"rank": rank, "host_uid": f"h{rank}", "host_name": f"h{rank}", "clock": "epoch"}
        for rank in (0, 1)
    ])  # fmt: skip
    fill(con, "groups", [
        {"rank": rank, "group_hash": "1", "parallel_kind": "dp", "global_ranks": [0, 1]}
        for rank in (0, 1)
    ])  # fmt: skip
    ends = sorted(chance.randrange(SECOND, 2 * SECOND) for _ in range(shared))
    for number, end_ns in enumerate(ends):
        for rank in (0, 1):
            late = 0 if rank == 0 else offset_ns + round(ppm * 1e-6 * end_ns)
            fill(con, "comm_ops", [op(
                end_ns - 50_000 + late, 50_000 + chance.randrange(-3, 4), 1, rank=rank,
                name=f"hcom_allReduce__001_{number}_1", group_hash="1",
            )])  # fmt: skip
    # What one rank alone recorded spans ten seconds.
    for at_ns in (0, 10 * SECOND):
        fill(con, "comm_ops", [op(at_ns, 1000, 1, name=f"hcom_send__002_{at_ns}_1")])
    return con


def is_covered(clock: dict[str, Any], offset_ns: int, ppm: float) -> bool:
    """Whether the true offset lies within the error at the begin and at the end of the capture."""
    return all(
        abs(
            clock["offset_ns"] + (clock["drift_ppm"] or 0) * 1e-6 * (at_ns - clock["reference_ns"])
            - offset_ns - ppm * 1e-6 * at_ns
        ) <= clock["error_ns"] + 1
        for at_ns in (0, 10 * SECOND)
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "shared", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 5, 12))]
)
def test_the_true_offset_lies_within_the_error(shared: int) -> None:
    chance = random.Random(shared)
    covered = []
    for seed in range(10):
        offset_ns, ppm = chance.randrange(-(10**7), 10**7), chance.uniform(-18, 18)
        with closing(plant(shared, offset_ns, ppm, seed)) as con:
            _, clock = across(con, "clocks", "ranks")
        assert clock["error_ns"] is not None
        covered.append(is_covered(clock, offset_ns, ppm))
    assert sum(covered) >= 0.95 * len(covered)


def test_the_only_clock_has_no_offset_and_no_error() -> None:
    with closing(job_tables(small(ranks_per_host=8))) as con:
        [clock] = across(con, "clocks")
    told = ("offset_ns", "drift_ppm", "drift_error_ppm", "error_ns")
    assert [clock[name] for name in told] == [None] * 4
    assert clock["note"] == "no other clock to compare it with"


def test_aligned_times_of_the_only_clock_are_its_own() -> None:
    with closing(job_tables(small(ranks_per_host=8))) as con:
        rows = across(con, "arrivals")
    assert rows and all(row["aligned_start_ns"] == row["start_ns"] for row in rows)
    assert {row["clock_error_ns"] for row in rows} == {0}


def test_devices_of_one_host_that_count_for_themselves_have_clocks_of_their_own() -> None:
    con = connect()
    fill(con, "ranks", [
        {"rank": rank, "host_uid": "h", "host_name": "h", "clock": "device"} for rank in (0, 1)
    ])  # fmt: skip
    fill(con, "comm_ops", [op(100 * rank, 50, rank=rank, name="a") for rank in (0, 1)])
    rows = across(con, "clocks", "ranks")
    assert [row["ranks"] for row in rows] == [[0], [1]]
    assert [row["offset_ns"] for row in rows] == [None, None]
    assert [row["error_ns"] for row in rows] == [None, None]


def test_unknown_is_a_dash() -> None:
    import polars as pl

    with closing(job_tables(small(ranks_per_host=8))) as con:
        rows = pl.DataFrame(across(con, "clocks"), infer_schema_length=None)
    table = clocks_table(rows)
    [row] = table.rows
    shown = {column.key: column.form(row[column.key]) for column in table.columns if column.form}
    assert (shown["offset_ns"], shown["error_ns"], shown["drift_ppm"]) == ("-", "-", "-")
