"""Which ranks stand for all others: one of each stage, the slowest, the median."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.collector import schema
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.ingest.representatives import Candidate, Representative, choose
from npuscope.collector.selection import Selection
from npuscope.sample_traces.generate import Job, write_job
from tests.analysis.tables import Row, connect, fill, select


def choice(*candidates: tuple[int, int, float | None]) -> dict[int, str]:
    found = choose([Candidate(*one) for one in candidates])
    assert found == tuple(sorted(found, key=lambda one: one.rank))
    return {one.rank: one.reason for one in found}


def test_one_stage_has_its_slowest_and_its_median() -> None:
    assert choice((0, 0, 10), (1, 0, 30), (2, 0, 12), (3, 0, 11), (4, 0, 9)) == {
        1: "slowest", 3: "median"
    }  # fmt: skip


def test_every_stage_has_its_median_beside_them() -> None:
    assert choice(
        (0, 0, 10), (1, 0, 12), (2, 0, 11), (3, 1, 40), (4, 1, 42), (5, 1, 41), (6, 2, 5)
    ) == {1: "median", 2: "stage 0", 4: "slowest", 5: "stage 1", 6: "stage 2"}


def test_of_equals_the_lowest_and_without_times_the_lowest_of_each_stage() -> None:
    assert choice((0, 0, 7), (1, 0, 7), (2, 0, 7)) == {0: "slowest", 1: "median"}
    assert choice((2, 0, None), (3, 0, None), (4, 1, None)) == {2: "stage 0", 4: "stage 1"}
    assert choice((0, 0, None), (1, 0, 5)) == {1: "slowest"}
    assert choose([]) == ()


def candidates(tables: dict[str, list[Row]]) -> list[tuple[object, ...]]:
    con = connect()
    for table, rows in tables.items():
        fill(con, table, rows)
    return [tuple(row.values()) for row in select(con, schema.sql("ingest/representatives.sql"))]


def times(
    rank: int, step: int | None, computing: float | None, free: float, device: int = 0
) -> Row:
    return {"rank": rank, "step": step, "device_id": device, "computing_ns": computing,
            "free_ns": free}  # fmt: skip


def test_own_time_is_computing_and_free_over_the_steps_all_have() -> None:
    assert candidates({
        "ranks": [{"rank": 0, "device_id": 0}, {"rank": 1, "device_id": 0}, {"rank": 2}],
        "profiler_steps": [
            times(0, 1, 10, 1), times(0, 2, 20, 1), times(0, 3, 900, 0),
            times(1, 1, 30, 1), times(1, 2, 40, 1), times(1, 2, 999, 0, device=1),
        ],
    }) == [(0, 0, 16.0), (1, 0, 36.0), (2, 0, None)]  # fmt: skip


def test_ranks_without_common_steps_are_compared_by_their_own() -> None:
    assert candidates({
        "ranks": [{"rank": 0}, {"rank": 1}],
        "profiler_steps": [times(0, 1, 10, 0), times(1, 2, 20, 0), times(1, 3, None, 0)],
    }) == [(0, 0, 10.0), (1, 0, 20.0)]  # fmt: skip
    assert candidates({
        "ranks": [{"rank": 0}], "profiler_steps": [times(0, None, 10, 5)]
    }) == [(0, 0, 15.0)]  # fmt: skip


def test_a_stage_is_the_coordinate_or_the_place_in_the_largest_pipeline_group() -> None:
    def group(rank: int, place: int | None, members: list[int], kind: str = "pp") -> Row:
        return {"rank": rank, "parallel_kind": kind, "group_rank": place, "global_ranks": members}

    assert candidates({
        "ranks": [{"rank": 0, "pp_rank": 3}, {"rank": 1}, {"rank": 2}, {"rank": 3}],
        "groups": [
            group(0, 0, [0, 1, 2]), group(1, 0, [1, 2]), group(1, 1, [0, 1, 2]),
            group(2, 2, [0, 1, 2]), group(3, 1, [2, 3], "dp"), group(3, None, [2, 3]),
        ],
    }) == [(0, 3, None), (1, 1, None), (2, 2, None), (3, 0, None)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slow", [1, 2])
def test_a_planted_slow_rank_is_read_in_full(tmp_path: Path, slow: int) -> None:
    job = Job(name="slow", layers=2, dp=2, pp=2, ep=2, experts=4, slow_rank=slow, slow_factor=2.0)
    write_job(job, tmp_path / "source", forms={0: ("db",), 1: ("text",), 2: ("db",), 3: ("text",)})

    result = ingest(tmp_path / "source", tmp_path / "store", selection=Selection(light=True))

    assert Representative(slow, "slowest") in result.representatives
    assert len({one.rank // 2 for one in result.representatives}) == 2, "both stages"
