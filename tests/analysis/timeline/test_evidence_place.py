"""Evidence of findings is where the longest event or the longest time without kernels is."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.timeline.evidence_place import EvidencePlace, evidence_place
from npuscope.analysis.timeline.shared_axis import Extent
from tests.analysis.tables import connect, fill, kernel, op

ZERO_NS, AHEAD_NS = 1_000, 50
# Rank 1 runs by a clock that is ahead.
AT = Extent(
    "run", "capture", "true",
    pl.DataFrame({
        "rank": [0, 1], "first_ns": [ZERO_NS, ZERO_NS + AHEAD_NS], "last_ns": [2_000, 2_000],
        "ahead_ns": [0, AHEAD_NS],
    }), (),
)  # fmt: skip


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    made = connect()
    fill(made, "kernels", [
        kernel(1_000, 100, 1, type="MatMul", stream_id=2, rank=0),
        kernel(1_050, 150, 1, type="MatMul", stream_id=3, rank=0),  # overlaps: no gap before it
        kernel(1_240, 20, 1, type="Cast", stream_id=2, rank=0),
        kernel(1_300, 40, 2, type="MatMul", stream_id=2, rank=0),
        kernel(1_100, 90, 1, type="MatMul", stream_id=2, rank=1),
    ])  # fmt: skip
    fill(made, "comm_ops", [
        op(1_300, 300, 1, op_type="send", group_hash="g", rank=1),
        op(1_350, 200, 2, op_type="send", group_hash="h", rank=0),
    ])  # fmt: skip
    return made


def place(con: duckdb.DuckDBPyConnection, **asked: Any) -> EvidencePlace | None:
    none = dict.fromkeys(("of_rank", "of_step", "kernel", "operation"))
    return evidence_place(con, AT, **{**none, **asked})


def test_the_longest_event_of_a_type(con: duckdb.DuckDBPyConnection) -> None:
    found = place(con, kernel="MatMul")
    assert found == EvidencePlace(0, 50, 200, "stream", "3", "MatMul")
    assert place(con, kernel="MatMul", of_step=2) == EvidencePlace(
        0, 300, 340, "stream", "2", "MatMul"
    )
    # On the shown clock.
    assert place(con, kernel="MatMul", of_rank=1) == EvidencePlace(
        1, 50, 140, "stream", "2", "MatMul"
    )
    assert place(con, operation="send") == EvidencePlace(1, 250, 550, "group", "g", "send")
    assert place(con, operation="' or 1=1 --") is None


def test_the_longest_time_without_kernels(con: duckdb.DuckDBPyConnection) -> None:
    assert place(con, of_rank=0) == EvidencePlace(0, 200, 240)  # the first of equal ones
    assert place(con, of_rank=1) is None
    assert place(con) is None
