"""steps and comm stay fast: nothing in them grows with kernels times operations."""

from __future__ import annotations

import time

import pytest

from tests.analysis.tables import answer, connect

KERNELS, OPS, STEPS = 1_000_000, 100_000, 10
LIMIT_S = 20  # measured well below 2 s on two cores; kernels x operations would take hours


@pytest.mark.slow
def test_a_million_kernels_under_a_hundred_thousand_operations() -> None:
    con = connect()
    keys = "'job' as run, 'c' as capture, 0 as rank"
    # A kernel of 10 ns every 20 ns; an operation of 100 ns every 200 ns, so 50 ns of it covered.
    con.execute(
        f"insert into kernels by name select {keys}, i * {STEPS} // {KERNELS} as step,"
        f" true as is_compute, 'k' || i % 100 as name, i * 20 as start_ns, 10 as dur_ns"
        f" from range({KERNELS}) t(i) order by hash(i)"
    )
    con.execute(
        f"insert into comm_ops by name select {keys}, i * {STEPS} // {OPS} as step,"
        f" 'allReduce' as op_type, i * 200 as start_ns, 100 as dur_ns"
        f" from range({OPS}) t(i) order by hash(i)"
    )
    began = time.monotonic()
    rows = answer(con, "steps")
    by_type = [row for row in answer(con, "comm") if row["by_key"] == "type"]
    assert time.monotonic() - began < LIMIT_S
    assert len(rows) == len(by_type) == STEPS
    for row, group in zip(rows, by_type, strict=True):
        assert row["computing_ns"] == KERNELS // STEPS * 10
        assert row["communication_ns"] == group["union_ns"] == OPS // STEPS * 100
        assert row["overlapped_ns"] == group["masked_ns"] == OPS // STEPS * 50
        assert row["free_ns"] == OPS // STEPS * 50 - 10
