"""Means over ranks and steps: one denominator each, warm-up apart, the same in every outlet."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import duckdb
import pytest

from npuscope.analysis import means, query
from npuscope.analysis.communication.volume import mean_pairs
from npuscope.analysis.findings.findings import findings
from npuscope.analysis.scope import Scope
from npuscope.analysis.views import frame
from npuscope.dashboard.exporter.gauges import metric_gauges
from tests.analysis.tables import Row, connect, fill, keep_summaries, kernel, op

MS = 1_000_000


@pytest.fixture(scope="module")
def one_operation() -> duckdb.DuckDBPyConnection:
    """Two ranks of two steps, and one operation of 6 ms in one step of one rank."""
    con = connect()
    fill(con, "ranks", [{"rank": 0}, {"rank": 1}])
    fill(con, "kernels", [kernel(step * 20 * MS, 2 * MS, step, rank=rank, type="MatMul")
                          for rank in (0, 1) for step in (1, 2)])  # fmt: skip
    fill(con, "comm_ops", [op(25 * MS, 6 * MS, 1, rank=0, group_hash="1")])
    keep_summaries(con)
    return con


@pytest.mark.slow
def test_one_operation_is_the_same_wherever_it_is_told(
    one_operation: duckdb.DuckDBPyConnection,
) -> None:
    con = one_operation
    for by in get_args(means.CommMeanKey):
        (row,) = means.mean_comm(con, by=by).to_dicts()
        assert (row["rank_count"], row["step_count"], row["rank_step_count"]) == (2, 2, 4)
        assert row["exposed_attributed_ns"] == row["total_ns"] == 1.5 * MS
        assert (row["op_count"], row["share_ratio"]) == (0.25, 1.0)
        assert (row["worst_rank"], row["worst_exposed_attributed_ns"]) == (0, 3.0 * MS)
    (step,) = means.mean_steps(con).to_dicts()
    assert step["exposed_communication_ns"] == 1.5 * MS
    gauges = metric_gauges(con, ["run", "capture"])
    assert gauges["npuscope_exposed_seconds"]["value"].to_list() == [0.0015]
    told = next(one for one in findings(con) if one.name == "exposed_communication")
    assert told.at_stake_ns == 1.5 * MS
    assert "Most of it: allReduce, 1.500 ms." in told.statement and "6.000" not in told.statement


def test_what_is_chosen_is_what_means_are_over(one_operation: duckdb.DuckDBPyConnection) -> None:
    con = one_operation
    for chosen, expected in (
        (Scope(rank=0), 3.0),
        (Scope(rank=0, step=1), 6.0),
        (Scope(step=1), 3.0),
    ):
        (row,) = means.mean_comm(con, chosen).to_dicts()
        assert row["exposed_attributed_ns"] == expected * MS
    assert means.mean_comm(con, Scope(rank=1)).is_empty()
    (kernels,) = means.mean_kernels(con, Scope(rank=1)).to_dicts()
    assert (kernels["type"], kernels["total_ns"], kernels["share_ratio"]) == ("MatMul", 2 * MS, 1)


@pytest.mark.slow
def test_kinds_add_up_to_the_exposed_part_of_the_step() -> None:
    con = connect()
    for rank in range(3):
        for step in (1, 2, 3):
            at = step * 100 * MS
            fill(con, "kernels", [kernel(at, (10 + rank) * MS, step, rank=rank)])
            if rank < 2:
                fill(con, "comm_ops", [
                    op(at + 5 * MS, 20 * MS, step, rank=rank, group_hash="1"),
                    op(at + 15 * MS, 21 * MS + step, step, rank=rank, group_hash="2",
                       op_type="send"),
                ])  # fmt: skip
    (mean,) = means.mean_steps(con).to_dicts()
    for by in get_args(means.CommMeanKey):
        rows = means.mean_comm(con, by=by)
        assert rows["exposed_attributed_ns"].sum() == pytest.approx(
            mean["exposed_communication_ns"], abs=1e-6
        )
    parts = [mean[name] for name in ("computing_ns", "exposed_communication_ns", "free_ns")]
    assert sum(parts) == pytest.approx(mean["length_ns"])


def test_ranks_of_the_producers_table_do_not_thin_out_what_events_tell() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10 * MS, 1)])
    fill(con, "comm_ops", [op(10 * MS, 4 * MS, 1, group_hash="1")])
    fill(con, "profiler_steps", [
        {"rank": 1, "step": 1, "computing_ns": 10.0 * MS, "communication_ns": 4.0 * MS,
         "overlapped_ns": 0.0, "communication_not_overlapped_ns": 4.0 * MS, "free_ns": 0.0}
    ])  # fmt: skip
    (row,) = means.mean_comm(con).to_dicts()
    assert (row["rank_count"], row["exposed_attributed_ns"]) == (1, 4.0 * MS)
    # Of ranks of which nothing else is known, the table tells the job's step, everywhere the same.
    con.execute("delete from kernels; delete from comm_ops")
    mean = means.mean_steps(con).row(0, named=True)
    assert mean["job_step_ns"] == means.job_steps(con)["step_ns"].item() == 14 * MS


def job(
    lengths_ms: list[int], ranks: int = 2, evaluations: Collection[int] = ()
) -> duckdb.DuckDBPyConnection:
    """Steps that follow one another, of one kernel and one operation each."""
    con = connect()
    for rank in range(ranks):
        at = rank * MS
        for step, length in enumerate(lengths_ms, 1):
            kind = "SwiGlu" if step in evaluations else "SwiGluGrad"
            fill(con, "kernels", [kernel(at, (length - 2) * MS, step, rank=rank, type=kind)])
            fill(con, "comm_ops", [
                op(at + (length - 2) * MS, 2 * MS, step, rank=rank, group_hash="1")
            ])  # fmt: skip
            at += length * MS
    return con


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths_ms", "evaluations", "warm_up"),
    [
        ([100, 10, 10, 10], [], [1]),
        ([100, 10, 10], [], []),  # too few to tell
        ([100, 50, 10, 11, 10, 9, 10, 10], [], [1, 2]),
        ([10, 100, 10, 10, 10, 10, 10, 10], [], []),  # not the first
        ([11, 10, 10, 10, 10], [], []),  # a tenth more
        ([30, 10, 20, 30, 10, 20, 30, 25], [], []),  # no more than steps differ anyway
        ([10, 10, 10, 10, 90], [], []),
        ([10, 3, 3, 3, 3], [2, 3, 4, 5], []),  # a training step before evaluations
        ([10, 3, 3, 10, 3, 3, 10, 10], [2, 3, 5, 6], []),
        ([12, 3, 3, 10, 3, 10], [2, 3, 5], []),  # two of its kind are too few to tell
        ([14, 3, 3, 10, 3, 3, 3, 10, 10], [2, 3, 5, 6, 7], [1]),
        ([3, 30, 10, 3, 10, 10, 10, 3, 3], [1, 4, 8, 9], [2]),  # an evaluation goes before
        ([9, 30, 10, 3, 10, 10, 10, 3, 3], [1, 4, 8, 9], [1, 2]),  # the first of either kind
    ],
)
def test_first_steps_that_stand_out_are_warm_up(
    lengths_ms: list[int], evaluations: list[int], warm_up: list[int]
) -> None:
    con = job(lengths_ms, evaluations=evaluations)
    steps = means.job_steps(con)
    assert steps["step_ns"].to_list() == [length * MS for length in lengths_ms]
    assert steps.filter("is_warm_up")["step"].to_list() == warm_up
    kept = [length for step, length in enumerate(lengths_ms, 1) if step not in warm_up]
    (mean,) = means.mean_steps(con).to_dicts()
    assert mean["length_ns"] == pytest.approx(sum(kept) / len(kept) * MS)
    assert mean["job_step_ns"] == pytest.approx(sum(kept) / len(kept) * MS)
    assert (mean["step_count"], mean["warm_up_count"]) == (len(kept), len(warm_up))
    assert query.steps(con, Scope(rank=0)).filter("is_warm_up")["step"].to_list() == warm_up
    assert query.steps(con).height == 2 * len(lengths_ms)
    assert any("warm-up" in note for note in query.notes(con)) == bool(warm_up)


@pytest.mark.slow
def test_a_warm_up_step_that_is_asked_for_is_told() -> None:
    con = job([100, 10, 10, 10])
    assert means.mean_steps(con, Scope(step=1))["length_ns"].to_list() == [100.0 * MS]
    assert means.mean_comm(con, Scope(step=1))["exposed_ns"].to_list() == [2.0 * MS]
    by_step = means.mean_steps(con, by="step")
    assert by_step["length_ns"].to_list() == [100.0 * MS, 10 * MS, 10 * MS, 10 * MS]
    assert "step 1 is warm-up (100.0 ms, later steps 10.0 ms): excluded from means." in query.notes(
        con
    )


def test_links_are_named_once_with_their_slowest_rank() -> None:
    con = job([10, 10])
    fill(con, "comm_links", [
        {"rank": rank, "step": step, "op_type": "allReduce", "name": "a", "group_hash": "1",
         "link": "HCCS", "size_bytes": 8e6, "time_ns": time_ns}
        for rank, step, time_ns in ((0, 1, 400_000.0), (0, 2, 100_000.0), (1, 1, 300_000.0))
    ])  # fmt: skip
    (row,) = means.mean_links(con).to_dicts()
    # Rank 0 has the slowest single step, but is the faster over both: 16 MB in 0.5 ms.
    assert (row["slowest_rank"], row["slowest_bytes_per_s"]) == (1, pytest.approx(8e15 / 3e5))
    # In its second step rank 1 communicates, and nothing tells over which links.
    assert (row["rank_count"], row["step_count"], row["rank_step_count"]) == (2, 2, 3)
    assert row["size_bytes"] == pytest.approx(24e6 / 3)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(24e6 / 0.8e-3)


def test_pairs_of_ranks_are_of_a_mean_step() -> None:
    con = job([100, 10, 10, 10])
    fill(con, "comm_matrix", [
        {"rank": 0, "step": step, "variant": "total", "op_type": "send", "link": "HCCS",
         "src_rank": 0, "dst_rank": 1, "size_bytes": 6e6 * step, "time_ns": 1e6}
        for step in (1, 2, 3, 4)
    ])  # fmt: skip
    (row,) = mean_pairs(con).to_dicts()
    assert (row["size_bytes"], row["time_ns"]) == (18e6, 1e6)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(18e9)

    # Rank 1 sends in steps 2 and 3; its step 4 communicates, and nothing tells from whom to whom.
    # What a rank without steps of its own sends to it is of every step.
    fill(con, "kernels", [kernel(100 * MS * step, 10 * MS, step, rank=1) for step in (2, 3, 4)])
    fill(con, "comm_ops", [op(400 * MS, MS, 4, rank=1, name="a", group_hash="1")])
    fill(con, "comm_matrix", [
        {"rank": 1, "step": step, "variant": "total", "op_type": "send", "link": "HCCS",
         "src_rank": src, "dst_rank": dst, "size_bytes": 6e6, "time_ns": 1e6}
        for step, src, dst in ((2, 1, 0), (3, 1, 0), (2, 7, 1))
    ])  # fmt: skip
    sent = {row["src_rank"]: row["size_bytes"] for row in mean_pairs(con).to_dicts()}
    assert sent == {0: 18e6, 1: 6e6, 7: 2e6}

    # Of another capture: a mean step of its own, not one more step of the first.
    fill(con, "comm_matrix", [
        {"capture": "later", "rank": 0, "variant": "total", "op_type": "send", "link": "HCCS",
         "src_rank": 0, "dst_rank": 1, "size_bytes": 6e6, "time_ns": 1e6}
    ])  # fmt: skip
    pairs = mean_pairs(con).to_dicts()
    sent = {(row["capture"], row["src_rank"]): row["size_bytes"] for row in pairs}
    assert sent == {("c", 0): 18e6, ("c", 1): 6e6, ("c", 7): 2e6, ("later", 0): 6e6}


@pytest.mark.parametrize("measured", ["times", "nothing ran"])
def test_a_step_that_moved_nothing_over_a_link_counts_as_nothing(measured: str) -> None:
    con = connect()
    for step in (1, 2):
        fill(con, "kernels", [kernel(step * 20 * MS, 2 * MS, step)])
        if step == 1 or measured == "times":
            fill(con, "comm_ops", [op(step * 20 * MS, MS, step, name="a", group_hash="1")])
            fill(con, "comm_times", [{"step": step, "name": "a", "group_hash": "1"}])
    fill(con, "comm_links", [{"step": 1, "op_type": "allReduce", "name": "a", "group_hash": "1",
                              "link": "HCCS", "size_bytes": 8e6, "time_ns": 1e5}])  # fmt: skip
    (row,) = means.mean_links(con).to_dicts()
    assert (row["rank_step_count"], row["size_bytes"]) == (2, 4e6)


TABLE = {"computing_ns": 9.0 * MS, "communication_ns": 5.0 * MS, "overlapped_ns": 0.0,
         "communication_not_overlapped_ns": 5.0 * MS, "free_ns": 0.0}  # fmt: skip


def times(rank: int, step: int, op_type: str, **more: object) -> Row:
    """HCCL's: 2 ms of 3 move bytes."""
    return {"rank": rank, "step": step, "op_type": op_type, "name": op_type, "group_hash": "1",
            "elapse_ns": 3.0 * MS, "transit_ns": 2.0 * MS, "wait_ns": 1.0 * MS, **more}  # fmt: skip


def test_ranks_that_hccl_did_not_measure_do_not_thin_out_those_it_did() -> None:
    con = connect()
    fill(con, "profiler_steps", [
        {"rank": rank, "step": step, **TABLE, "communication_ns": 5.0 * MS if step < 3 else 0.0}
        for rank in range(4) for step in (1, 2, 3)
    ])  # fmt: skip
    # Rank 0 was measured in step 1 alone, rank 1 in 1 and 2; in step 3 nobody communicates.
    fill(con, "comm_times", [
        times(0, 1, "send"), times(1, 1, "broadcast"), times(1, 2, "send"), times(1, 2, "broadcast")
    ])  # fmt: skip
    rows = {row["op_type"]: row for row in means.mean_comm(con, by="type").to_dicts()}
    for name in ("send", "broadcast"):
        row = rows[name]
        assert (row["rank_count"], row["step_count"], row["rank_step_count"]) == (2, 3, 5)
        assert [row[f"{figure}_rank_step_count"] for figure in ("transit", "wait", "size")] == [
            5, 5, 0,
        ]  # fmt: skip
        assert (row["op_count"], row["total_ns"]) == (2 / 5, 6 * MS / 5)
        assert (row["transit_ns"], row["wait_ns"], row["size_bytes"]) == (4e6 / 5, 2e6 / 5, None)
    # As the history for Prometheus has it, and who chose a step.
    each = frame(con, "from mean_comm where by_step and by_key = 'type' and op_type = 'send'")
    by_step = [(1, 2, 0.5), (2, 1, 1.0)]
    assert each.sort("step").select("step", "rank_count", "op_count").rows() == by_step
    for step, rank_count, op_count in by_step:
        of_step = means.mean_comm(con, Scope(step=step), by="type").filter(op_type="send")
        assert of_step.select("rank_count", "op_count").rows() == [(rank_count, op_count)]


def test_each_figure_is_the_mean_of_those_who_know_it() -> None:
    con = connect()
    for rank in range(4):
        fill(con, "kernels", [kernel(0, MS, 1, rank=rank)])
    # Rank 0 knows all; of 1 no sizes are known, nothing of 2 was measured; 3 never communicates.
    fill(con, "comm_ops", [
        op(MS, 3 * MS, 1, rank=rank, name="allReduce", group_hash="1",
           size_bytes=None if rank == 1 else 12_000_000)
        for rank in range(3)
    ])  # fmt: skip
    fill(con, "comm_times", [times(0, 1, "allReduce"), times(1, 1, "allReduce", wait_ns=None)])
    for by in get_args(means.CommMeanKey):
        (row,) = means.mean_comm(con, by=by).to_dicts()
        assert (row["rank_step_count"], row["op_count"], row["total_ns"]) == (4, 0.75, 2.25 * MS)
        assert (row["transit_ns"], row["transit_rank_step_count"]) == (pytest.approx(4e6 / 3), 3)
        assert (row["wait_ns"], row["wait_rank_step_count"]) == (0.5 * MS, 2)
        assert (row["size_bytes"], row["size_rank_step_count"]) == (8e6, 3)
    fewer = means.means_of_fewer(
        means.mean_comm(con), {"transit": "transfer", "wait": "wait", "size": "MB"}
    )
    assert fewer == "transfer, MB: mean of 3 of 4 ranks; wait: mean of 2 of 4 ranks"
    assert means.means_of_fewer(means.mean_comm(con, Scope(rank=0)), {"transit": "x"}) is None


def test_what_is_unknown_of_one_type_does_not_count_as_none_of_it() -> None:
    con = connect()
    for rank in (0, 1):
        fill(con, "kernels", [kernel(0, MS, 1, rank=rank)])
        fill(con, "comm_ops", [
            op(MS, MS, 1, rank=rank, name="a", group_hash="1", size_bytes=6_000_000),
            op(3 * MS, MS, 1, rank=rank, name="b", group_hash="1", op_type="send",
               size_bytes=2_000_000 if rank == 0 else None),
        ])  # fmt: skip
    rows = {row["op_type"]: row for row in means.mean_comm(con, by="type").to_dicts()}
    assert (rows["allReduce"]["size_bytes"], rows["allReduce"]["size_rank_step_count"]) == (6e6, 2)
    assert (rows["send"]["size_bytes"], rows["send"]["size_rank_step_count"]) == (2e6, 1)
