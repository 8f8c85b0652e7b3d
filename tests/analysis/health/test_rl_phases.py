"""Phases of workers by their marks, against a brute-force count of nanoseconds."""

from __future__ import annotations

import random

import pytest

from tests.analysis.tables import answer, connect, fill, kernel, op


def test_what_of_a_phase_the_device_works() -> None:
    con = connect()
    fill(con, "kernels", [kernel(10, 20), kernel(25, 10), kernel(100, 5)])
    fill(con, "comm_ops", [op(30, 20)])
    fill(
        con, "marks",
        [
            {"kind": "mstx", "name": "generate_sequences", "start_ns": 0, "dur_ns": 40},
            {"kind": "mstx", "name": "vllm_rollout", "start_ns": 20, "dur_ns": 10},
            {"kind": "mstx", "name": "update_actor", "start_ns": 0, "dur_ns": 5,
             "device_start_ns": 45, "device_dur_ns": 60},
            {"kind": "mstx", "name": "anything", "start_ns": 0, "dur_ns": 500},
            {"kind": "profiler_step", "name": "update_actor", "start_ns": 0, "dur_ns": 500},
        ],
    )  # fmt: skip
    found = [(row["phase"], row["count"], row["dur_ns"], row["busy_ns"], row["idle_ns"])
             for row in answer(con, "rl_phases")]  # fmt: skip
    assert found == [("generation", 2, 40, 30, 10), ("update_actor", 1, 60, 10, 50)]
    # Colocated workers have several roles in their names: what they call tells the phase.
    calls = {
        "actor_rollout_update_actor": "update_actor", "rollout_generate": "generation",
        "actor_rollout_ref_compute_log_prob": "old_log_prob", "sync_rollout_weights": "weights",
        "actor_rollout_ref_compute_ref_log_prob": "reference", "ref_compute_log_prob": "reference",
    }  # fmt: skip
    con.execute("delete from marks")
    fill(con, "marks", [
        {"kind": "mstx", "name": name, "start_ns": 0, "dur_ns": 1, "rank": rank}
        for rank, name in enumerate(calls)
    ])  # fmt: skip
    assert [row["phase"] for row in answer(con, "rl_phases")] == [*calls.values()]


@pytest.mark.parametrize("seed", range(5))
def test_busy_is_what_counting_gives(seed: int) -> None:
    dice = random.Random(seed)
    con = connect()
    work = [(dice.randrange(300), dice.randrange(1, 30)) for _ in range(20)]
    marks = [(dice.randrange(300), dice.randrange(1, 60)) for _ in range(6)]
    fill(con, "kernels", [kernel(*one) for one in work[:10]])
    fill(con, "comm_ops", [op(*one) for one in work[10:]])
    fill(
        con, "marks",
        [{"kind": "mstx", "name": "compute_log_prob", "start_ns": start, "dur_ns": dur}
         for start, dur in marks],
    )  # fmt: skip
    busy = {ns for start, dur in work for ns in range(start, start + dur)}
    within = {ns for start, dur in marks for ns in range(start, start + dur)}
    (row,) = answer(con, "rl_phases")
    assert (row["phase"], row["count"]) == ("old_log_prob", 6)
    assert (row["dur_ns"], row["busy_ns"]) == (len(within), len(within & busy))
