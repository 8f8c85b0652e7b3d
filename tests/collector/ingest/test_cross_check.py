"""Tables of one rank that cannot be true together, and those that can."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pytest

from npuscope.collector.ingest.link import cross_check, link
from npuscope.collector.model import RankSource, ReadLog, Role, SourceFile

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
Kernels = Sequence[tuple[int | None, int, int]]
Steps = Sequence[tuple[int, float]]


def warnings(
    con: duckdb.DuckDBPyConnection,
    kernels: Kernels,
    told: Steps,
    *,
    window: tuple[int, int] | None = None,
    role: Role = "kernels",
) -> list[str]:
    """kernels: step, start and duration in ns; told: step and computing in ns."""
    for step, start, dur in kernels:
        con.execute(
            "insert into kernels (step, start_ns, dur_ns, is_compute) values (?, ?, ?, true)",
            [step, T0 + start, dur],
        )
    con.executemany("insert into profiler_steps (step, computing_ns) values (?, ?)", told)
    if window:
        con.execute(
            "insert into steps (step, window_start_ns, window_end_ns) values (7, ?, ?)",
            [T0 + window[0], T0 + window[1]],
        )
    source = RankSource("job", "pytorch", 0, "test", {role: (SourceFile("k", 1, 0),)})
    log = ReadLog()
    cross_check(con, source, log)
    return log.warnings


WHOLE = [(7, 0, 500_000), (7, 600_000, 500_000)]


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        (WHOLE, [(7, 1_000_000.0)]),
        (WHOLE, [(7, 1_000_050.0)]),  # rounded rows
        ([*WHOLE, (7, 0, 400_000)], [(7, 1_000_000.0)]),  # two at once
        ([*WHOLE, (8, 5_000_000, 9)], [(7, 1_000_000.0)]),  # no word on step 8
        (WHOLE, [(7, 5e6), (7, 1e6)]),  # two devices: nobody knows which
        (WHOLE, []),
        ([(None, 0, 500_000)], [(7, 1_000_000.0)]),  # nobody says which step
    ],
)
def test_what_fits(
    staging: duckdb.DuckDBPyConnection,
    kernels: Kernels,
    told: Steps,
) -> None:
    if not told:
        staging.execute("insert into profiler_steps (step) values (7)")
        told = [(8, 0.0)]
    assert warnings(staging, kernels, told) == []


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        (WHOLE[:1], [(7, 1_000_000.0)]),
        ([(7, 0, 900_000), (7, 600_000, 900_000)], [(7, 1_000_000.0)]),
        (WHOLE, [(7, 1_000_000.0), (8, 300_000.0)]),
    ],
    ids=["a row is missing", "another rank's", "a step is missing"],
)
def test_what_does_not_fit(
    staging: duckdb.DuckDBPyConnection,
    kernels: Kernels,
    told: Steps,
) -> None:
    [warning] = warnings(staging, kernels, told)
    assert "does not fit the profiler's table of steps in 1 step(s)" in warning


def test_databases_are_whole_or_not_read(staging: duckdb.DuckDBPyConnection) -> None:
    assert warnings(staging, WHOLE[:1], [(7, 1_000_000.0)], role="main_db") == []


def test_a_step_far_from_its_kernels(staging: duckdb.DuckDBPyConnection) -> None:
    [warning] = warnings(staging, WHOLE, [(7, 1e6)], window=(-3600 * S, -3599 * S))
    assert "in step 7 by 3600 s" in warning


def test_a_step_whose_kernels_come_late(staging: duckdb.DuckDBPyConnection) -> None:
    assert warnings(staging, WHOLE, [(7, 1e6)], window=(-30 * S, -29 * S)) == []
    # Step 9 begins within step 8: the profiler counts a stretch of kernels where it begins.
    staging.executemany(
        "insert into steps (step, device_start_ns, device_end_ns) values (?, ?, ?)",
        [(8, T0 + 5_000_000, T0 + 7_000_000), (9, T0 + 6_900_000, T0 + 9_000_000)],
    )
    kernels = [(8, 5_000_000, 500_000), (8, 6_000_000, 950_000), (9, 6_900_000, 300_000),
               (9, 8_000_000, 100_000)]  # fmt: skip
    assert warnings(staging, kernels, [(8, 1.7e6), (9, 1e5)]) == []
    [warning] = warnings(staging, [(9, 8_500_000, 100_000)], [(99, 0.0)])
    assert "in step 9 kernels run for 0.500 ms" in warning


def test_what_stands_there_twice_is_told(staging: duckdb.DuckDBPyConnection) -> None:
    """By hand: of two kernels one is there twice; the third begins with it on another stream."""
    for stream, start, dur in [(1, 0, 5), (1, 0, 5), (2, 0, 5), (1, 9, 7)]:
        staging.execute(
            "insert into kernels (name, stream_id, start_ns, dur_ns) values ('a', ?, ?, ?)",
            [stream, T0 + start, dur],
        )
    for name in ("hcom_x", "hcom_x", "hcom_y"):
        staging.execute(
            "insert into comm_ops (name, start_ns, dur_ns) values (?, ?, 8)", [name, T0]
        )
    for variant, size_bytes in (("top1", 8), ("top1", 8), ("total", 8), ("op", None), ("op", None)):
        staging.execute(
            "insert into comm_matrix (variant, src_group_rank, size_bytes) values (?, 0, ?)",
            [variant, size_bytes],
        )
    for start_ns in (T0, T0, T0 + 1, None, None):
        staging.execute("insert into comm_times (name, start_ns) values ('hcom_x', ?)", [start_ns])
    log = ReadLog()
    link(staging, RankSource("job", "pytorch", 0, "test", {}), log)
    kernels, operations, times, matrix, *_ = log.warnings
    assert times.startswith("comm_times: 1 rows stand there twice: counts, bytes and times")
    assert matrix.startswith("comm_matrix: 1 rows stand there twice: counts, bytes and times")
    assert kernels.startswith("kernels: 1 rows stand there twice: counts and sums")
    assert operations.startswith("comm_ops: 1 rows stand there twice: counts and sums")
