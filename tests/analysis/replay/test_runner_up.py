"""The runner-up path: exact on a graph, and of a job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.catalog import metric
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.captures import capture_job
from npuscope.analysis.replay.critical_path import (
    bindings,
    critical_path,
    gap_notes,
    runner_up_path,
    second_longest,
)
from npuscope.analysis.replay.points import points
from npuscope.analysis.scope import ALL
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Job
from tests.analysis.replay.replayed_jobs import SMALL, compare_ranks, replay_of
from tests.analysis.tables import connect


@settings(max_examples=80)
@given(st.data())
def test_the_second_longest_way_is_that_of_all_ways(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = sorted(data.draw(st.sets(pairs.filter(lambda two: two[0] < two[1]), max_size=24)))
    number = st.integers(-20, 400)
    delays = data.draw(st.lists(number, min_size=len(edges), max_size=len(edges)))
    gaps = data.draw(st.lists(number, min_size=count, max_size=count))
    source = np.array([one for one, _ in edges], np.int32)
    target = np.array([one for _, one in edges], np.int32)
    made, _ = points(count, source, target)
    delay = np.array(delays, np.int64)[made.edge]
    at = made.times(delay, np.array(gaps, np.int64))
    point_at = np.argsort(made.place)
    arrived = delay + at[point_at[made.source]]
    found = second_longest(made, at, arrived, bindings(made, arrived), count - 1, -(10**9))

    def ways(point: int) -> list[int]:
        """Lengths of all ways to a point from one that waits for nothing."""
        before = [(a, d) for (a, b), d in zip(edges, delays, strict=True) if b == point]
        longer = [gaps[point] + d + way for a, d in before for way in ways(a)]
        return longer if before else [gaps[point]]

    every = sorted(ways(count - 1), reverse=True)
    assert every[0] == at[count - 1]
    assert (found is None) == (len(every) == 1)
    if found is not None:
        assert found.behind_ns == every[0] - every[1]


@pytest.mark.parametrize("job", [SMALL, replace(SMALL, noise=0.05, host_op_ns=150_000)])
def test_the_runner_up_of_a_job_is_as_long_as_it_says(job: Job) -> None:
    made = replay_of(job)
    found, critical = runner_up_path(made), critical_path(made)
    assert list(found.columns) == [one.name for one in metric("runner_up_path").columns]
    sums = found.group_by("step").agg(pl.col("path_ns").sum(), pl.col("behind_ns").first())
    sums = sums.sort("step")
    lengths = made.measured.lengths()
    assert (sums["path_ns"] + sums["behind_ns"]).to_list() == lengths.tolist()
    assert (sums["behind_ns"] >= 0).all() and (sums["behind_ns"] < 0.05 * lengths).all()
    assert found.drop("behind_ns").rows() != critical.rows()


def test_nothing_but_gaps_is_below_0() -> None:
    """Calls of communication return 300 us after their operations began, as real ones may."""
    slow = replace(SMALL, noise=0.05, host_op_ns=150_000)
    late = """
        update launches l set api_end_ns = o.start_ns + 300_000 from comm_ops o
        where l.target = 'communication' and l.run = o.run and l.rank = o.rank
            and l.connection_id = o.connection_id"""
    job = capture_job(compare_ranks(connect(), slow, late), ALL)
    launches = job.waits.lag[job.waits.work < 0]
    assert (launches < -100_000).any()
    for found in (critical_path(job), runner_up_path(job)):
        assert (found.filter(pl.col("part") != "gap")["path_ns"] > 0).all()
    sums = critical_path(job).group_by("step").agg(pl.col("path_ns").sum()).sort("step")
    assert sums["path_ns"].to_list() == job.measured.lengths().tolist()


def test_recorded_transfers_in_gaps_are_named(real_stores: Callable[[str], Path]) -> None:
    """Two receives of a stage that was not captured end more than a ms before what follows."""
    path = real_stores("qwen3_pp2_dp2_text_level2")
    with closing(store.open(path)) as con:
        open_across(path, con)
        job = capture_job(con, ALL)
        [note] = gap_notes(job)
        gap_ns = critical_path(job).filter(part="gap")["path_ns"].sum()
        (received_ns,) = con.execute("""
            select sum(dur_ns) from comm_ops
            where rank = 0 and step = 13 and op_type = 'batchSendRecv'""").fetchone() or (0,)
    assert "batchSendRecv of the rank" in note
    assert f"{received_ns / 1e6:,.3f} ms lie beside" in note and received_ns < gap_ns
    assert not gap_notes(replay_of(SMALL))
