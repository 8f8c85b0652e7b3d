"""Parts of a step: they add up, and planted waiting is found for whom it was planted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import duckdb
import polars as pl
import pytest

from npuscope.analysis.parts import step_parts
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.ranks.across_tables import across
from tests.analysis.tables import answer, connect, fill, kernel, op, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks")
JOB = Job(
    name="parts", layers=4, tp=1, pp=2, dp=2, ep=1, experts=0, steps=2, micro_batches=4, seed=3,
    overlap=0.0, memory=False, layers_by_stage=(1, 3),
)  # fmt: skip
STAGE_0, STAGE_1 = (0, 1), (2, 3)
MS = 1_000_000


@lru_cache(maxsize=4)
def frames(job: Job) -> dict[str, pl.DataFrame]:
    return canonical_frames(job, tables=TABLES)


def capture(
    job: Job = JOB, ranks: Collection[int] = (), *, without: Collection[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Tables of the job as if only these of its ranks had been profiled (none: all)."""
    con = connect()
    put(con, {
        name: frame.filter(pl.col("rank").is_in(list(ranks))) if ranks else frame
        for name, frame in frames(job).items() if name not in without
    })  # fmt: skip
    return con


def parts(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Rows of the metric; each step adds up to what `steps` says of it, to the ns."""
    found = pl.DataFrame(across(con, "step_parts"), infer_schema_length=None)
    sums = {
        (rank, step): ns
        for rank, step, ns in found.group_by("rank", "step").agg(pl.col("ns").sum()).iter_rows()
    }
    names = ("computing_ns", "exposed_communication_ns", "free_ns")
    steps = answer(con, "steps")
    assert sums == {(row["rank"], row["step"]): sum(row[name] for name in names) for row in steps}
    assert (found["ns"].drop_nulls() > 0).all()
    return found


def ms(found: pl.DataFrame, part: str, ranks: Collection[int], kind: str | None = None) -> float:
    """Of a mean rank and step."""
    mine = found.filter(pl.col("rank").is_in(list(ranks)))
    rows = mine.filter(pl.col("part") == part)
    rows = rows if kind is None else rows.filter(pl.col("kind") == kind)
    over = mine.select("rank", "step").n_unique()
    return float(rows["ns"].sum()) / over / MS


@pytest.fixture(scope="module")
def whole() -> pl.DataFrame:
    with closing(capture()) as con:
        return parts(con)


@pytest.mark.slow
def test_the_lighter_stage_waits_in_the_pipeline(whole: pl.DataFrame) -> None:
    assert ms(whole, "computing", STAGE_1) > 1.4 * ms(whole, "computing", STAGE_0)
    assert ms(whole, "pipeline_wait", STAGE_0, "pp") > 2 * ms(whole, "pipeline_wait", STAGE_1)
    assert ms(whole, "pipeline_wait", STAGE_0) > 3 * ms(whole, "transfer", STAGE_0)
    assert not whole["part"].is_in(["absent_wait", "unknown_communication"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), ("comm_tasks",)])
def test_waiting_for_a_stage_that_was_not_captured_is_a_part_of_its_own(
    whole: pl.DataFrame, without: tuple[str, ...]
) -> None:
    with closing(capture(ranks=STAGE_0, without=without)) as con:
        found = parts(con)
    assert not (found["part"] == "pipeline_wait").any()
    planted = ms(whole, "pipeline_wait", STAGE_0)
    assert ms(found, "absent_wait", STAGE_0, "pp") == pytest.approx(planted, rel=0.05)


@pytest.mark.slow
def test_a_late_peer_is_waited_for_whether_it_was_captured_or_not() -> None:
    late = Job(
        name="late", layers=2, tp=1, pp=1, dp=4, ep=1, experts=0, steps=1, micro_batches=1,
        seed=3, overlap=0.0, memory=False, slow_rank=3, slow_factor=2.0,
    )  # fmt: skip
    with closing(capture(late)) as con:
        seen = ms(parts(con), "peer_wait", (0, 1, 2))
    with closing(capture(late, (0, 1, 2))) as con:
        found = parts(con)
    assert seen > 1.0
    assert ms(found, "absent_wait", (0, 1, 2)) == pytest.approx(seen, rel=0.05)
    assert ms(found, "peer_wait", (0, 1, 2)) < 0.1 * seen


def _two_ranks(**more: object) -> duckdb.DuckDBPyConnection:
    """Rank 0 comes 30 ms before rank 1 to an operation that takes 10 ms."""
    con = connect()
    fill(con, "ranks", [{"rank": 0}, {"rank": 1}])
    for rank, began in ((0, 10 * MS), (1, 40 * MS)):
        fill(con, "kernels", [kernel(0, began, 1, rank=rank)])
        dur_ns = 50 * MS - began
        fill(con, "comm_ops", [
            op(began, dur_ns, 1, rank=rank, name="hcom_allReduce__001_0_1", group_hash="1")
        ])  # fmt: skip
        if more:
            fill(con, "groups", [
                {"rank": rank, "group_hash": "1", "parallel_kind": "dp", **more}
            ])  # fmt: skip
    return con


def test_waiting_and_moving_bytes_are_exact_where_all_members_were_captured() -> None:
    found = parts(_two_ranks(global_ranks=[0, 1])).filter(pl.col("rank") == 0)
    assert set(found.select("part", "kind", "ns").iter_rows()) == {
        ("computing", None, 10 * MS), ("peer_wait", "dp", 30 * MS), ("transfer", "dp", 10 * MS),
    }  # fmt: skip


def test_what_nothing_tells_is_unknown_and_not_bytes() -> None:
    """A third member was not captured: it may have come last, and how much last, nothing tells."""
    found = parts(_two_ranks(global_ranks=[0, 1, 2])).filter(pl.col("rank") == 0)
    rows = dict(found.select("part", "ns").iter_rows())
    assert rows == {
        "computing": 10 * MS, "peer_wait": 30 * MS, "unknown_communication": 10 * MS,
    }  # fmt: skip


def test_the_length_of_unknown_communication_is_unknown_not_0() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0}])
    fill(con, "comm_ops", [op(0, 5 * MS, 1, rank=0, name="a", group_hash="1")])
    rows = across(con, "step_parts")
    assert [(row["part"], row["ns"]) for row in rows if row["part"].startswith("unknown")] == [
        ("unknown_communication", None)
    ]


def test_without_all_ranks_together_only_receiving_is_known_to_wait() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0}])
    fill(con, "kernels", [kernel(0, 40 * MS, 1)])
    fill(con, "comm_ops", [op(35 * MS, 15 * MS, 1), op(50 * MS, 5 * MS, 1, op_type="receive")])
    fill(con, "comm_ops", [op(90 * MS, 15 * MS)])  # outside of every step
    rows = step_parts(con).select("step", "part", "op_type", "ns").rows()
    assert rows == [
        (1, "computing", None, 40 * MS), (1, "pipeline_wait", "receive", 5 * MS),
        (1, "unknown_communication", "allReduce", 10 * MS),
    ]  # fmt: skip


def test_what_hccl_measured_is_of_the_step_it_names() -> None:
    """It tells nothing of the first of three steps, whose only operation has the others' name."""
    con = connect()
    fill(con, "ranks", [{"rank": 0, "world_size": 2}])
    fill(con, "groups", [{"group_hash": "1", "parallel_kind": "dp", "global_ranks": [0, 1]}])
    for step in (1, 2, 3):
        fill(con, "kernels", [kernel(step * 100 * MS, 10 * MS, step)])
        fill(con, "comm_ops", [
            op(step * 100 * MS + 10 * MS, 8 * MS, step, name="a", group_hash="1")
        ])  # fmt: skip
    fill(con, "comm_times", [
        {"step": step, "name": "a", "op_type": "allReduce", "group_hash": "1",
         "transit_ns": step * 1.0 * MS, "wait_ns": 0.0, "synchronization_ns": 0.0}
        for step in (2, 3)
    ])  # fmt: skip
    moved = parts(con).filter(pl.col("part") == "transfer").sort("step").select("step", "ns")
    assert moved.rows() == [(2, 2 * MS), (3, 3 * MS)]


def test_nothing_waits_longer_than_it_was_measured_to_last(
    real_stores: Callable[[str], Path],
) -> None:
    """HCCL measured a twentieth of the communication that the profiler's table tells of."""
    path = real_stores("cluster16_pp2")
    with closing(store.open(path)) as con:
        open_across(path, con)
        parts = con.execute("""
            select rank, sum(ns) filter (part in ('transfer', 'peer_wait', 'pipeline_wait')),
                sum(ns) filter (part not in ('computing', 'free'))
            from step_parts group by rank order by rank""").fetchall()
        measured = dict(
            con.execute("""
            select rank, sum(elapse_ns) from comm_times where lower(name) not like 'total%'
            group by rank""").fetchall()
        )
        exposed = dict(
            con.execute("select rank, exposed_communication_ns from step_summary").fetchall()
        )
        kinds = con.execute("""
            select distinct kind from resolved_comm where by_key = 'op' and op_type = 'send'
        """).fetchall()
    assert len(parts) == 16
    for rank, told_ns, all_ns in parts:
        assert (told_ns or 0) <= measured.get(rank, 0) + 1
        assert all_ns == exposed[rank]
    rank_0 = next(told_ns for rank, told_ns, _ in parts if rank == 0)
    assert rank_0 == pytest.approx(6.27e6, rel=0.02)  # two broadcasts and a send
    assert kinds == [("pp",)]
