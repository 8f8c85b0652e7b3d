"""What the cores do inside kernels: shares of the kernels' own time, unknown where not measured."""

from __future__ import annotations

import pytest

from npuscope.analysis.query import core_use
from npuscope.analysis.scope import Scope
from tests.analysis.tables import connect

_ROWS = """
insert into kernels by name
select * from (values
    ('r', 'c', 0, 1, 'MatMul', 'AI_CORE', true, 100, 80.0, 0.0, map {'aic_mac_time': 60.0}),
    ('r', 'c', 0, 1, 'MatMul', 'MIX_AIC', true, 300, 240.0, 150.0, map {'aic_mac_ratio': 0.5}),
    ('r', 'c', 0, 1, 'MatMul', 'AI_CORE', true, 600, null, null, null),
    ('r', 'c', 0, 1, 'Index', 'AI_CPU', true, 50, null, null, null),
    ('r', 'c', 0, 1, null, 'SDMA', false, 50, 9.0, 9.0, null),
    ('r', 'c', 1, 1, 'MatMul', 'AI_CORE', true, 100, 10.0, 0.0, null)
) as t(run, capture, rank, step, type, core, is_compute, dur_ns, aic_time_ns, aiv_time_ns, pmu)
"""


def test_shares_are_of_what_was_measured() -> None:
    with connect() as con:
        con.execute(_ROWS)
        rows = core_use(con, Scope("r", "c", 0, 1)).to_dicts()
        assert core_use(con, Scope(rank=7)).is_empty()
    assert [row["type"] for row in rows] == ["MatMul", "Index"]
    matmul, index = rows
    assert (matmul["core"], matmul["count"], matmul["total_ns"]) == (None, 3, 1000)
    assert matmul["timed_ns"] == 400
    assert matmul["cube_busy_ratio"] == pytest.approx(320 / 400)
    assert matmul["vector_busy_ratio"] == pytest.approx(150 / 400)
    assert matmul["aic_mac_ratio"] == pytest.approx((60 + 120) / 400)
    assert matmul["aiv_vec_ratio"] is None
    assert index["timed_ns"] is None and index["cube_busy_ratio"] is None
