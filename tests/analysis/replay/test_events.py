"""Waits of streams for each other, as recorded: on real streams and planted ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.captures import capture_job, replay
from npuscope.analysis.replay.waiting.edges import RULE
from npuscope.analysis.scope import ALL
from npuscope.collector.store import store
from npuscope.sample_traces import simulate
from tests.analysis.replay.replayed_jobs import (
    SLOW_LINK,
    SLOW_RANK,
    SMALL,
    check_factual,
    check_pair,
    compare_ranks,
    mean_of,
    replay_of,
)
from tests.analysis.tables import connect

# Communication waits for the kernel that ended last before it, if that was just before.
EVENTS = """
    insert into device_tasks by name
    with _met as (
        select o.run, o.capture, o.rank, o.start_ns, o.stream_id, k.stream_id as from_stream,
            k.start_ns + k.dur_ns as ended_ns
        from comm_ops o asof join (select *, start_ns + dur_ns as until_ns from kernels) k
            on k.run = o.run and k.rank = o.rank and k.until_ns <= o.start_ns - 600
        where o.start_ns - k.until_ns < 700
    )
    select run, capture, rank, from_stream as stream_id, 'EVENT_RECORD' as type,
        ended_ns + 100 as start_ns, 20 as dur_ns from _met
    union all by name
    select run, capture, rank, stream_id, 'EVENT_WAIT' as type, ended_ns - 5000 as start_ns,
        5520 as dur_ns from _met"""
HALF = "delete from device_tasks where hash(rank, type, start_ns) % 2 = 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"alexnet_ddp_{form}_level{level}" for form in ("db", "text") for level in (0, 1)]
)
def test_real_steps_are_found_back_without_gaps(
    real_stores: Callable[[str], Path], name: str
) -> None:
    with closing(store.open(real_stores(name))) as con:
        open_across(None, con)
        job = capture_job(con, ALL)
    for row in replay(job).iter_rows(named=True):
        off = abs(row["without_gaps_ns"] - row["measured_ns"])
        assert off < 0.01 * row["measured_ns"]
        assert off < 0.03 * row["measured_ns"] * (1 - row["exogenous_ratio"])
        assert 0.6 < row["exogenous_ratio"] < 0.8 and row["without_gaps_ns"] != row["measured_ns"]
        assert row["unexplained_ratio"] < 0.03 and row["inferred_edge_ratio"] < 0.03


@pytest.mark.slow
def test_recorded_events_take_the_place_of_rules() -> None:
    con = compare_ranks(connect(), SMALL, EVENTS)
    job, plain = capture_job(con, ALL), replay_of(SMALL)
    assert con.sql("select count(*) > 100 from device_tasks").fetchall() == [(True,)]
    rules = [(one.waits.origin == RULE).sum() for one in (job, plain)]
    assert rules[0] < 0.8 * rules[1]
    assert (job.measured.lengths() == plain.measured.lengths()).all()  # tasks are no step's work
    rows = replay(job)
    assert (rows["without_gaps_error_ratio"].abs() < 0.005).all()


@pytest.mark.slow
@pytest.mark.parametrize("gone", [(), (HALF,)], ids=["all", "half"])
def test_with_all_or_some_events_a_change_comes_as_predicted(gone: tuple[str, ...]) -> None:
    check_factual(SMALL)
    con = compare_ranks(connect(), SMALL, EVENTS, *gone)
    for word in ("kernel:*=0.5", "comm:all=2", "host=2"):
        row = mean_of(con, capture_job(con, ALL), word)
        rules = mean_of(compare_ranks(connect(), SMALL), replay_of(SMALL), word)
        assert row["predicted_step_ns"] == pytest.approx(rules["predicted_step_ns"], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("event_ns", [6_400, 40_000])
def test_streams_that_wait_longer_than_what_is_near(
    monkeypatch: pytest.MonkeyPatch, event_ns: int
) -> None:
    monkeypatch.setattr(simulate, "_EVENT_NS", event_ns)
    monkeypatch.setattr(simulate, "_KERNEL_GAP_NS", 12_000)
    job = replace(SMALL, name=f"events of {event_ns}")
    check_pair(replace(job, **SLOW_RANK), job, "rank:3=median")
    check_pair(replace(job, **SLOW_LINK), job, f"link:0-1={1 / 6}")
    other = replace(job, slow_kernel="GroupedMatmul", slow_kernel_factor=4.0)
    check_pair(job, other, "kernel:GroupedMatmul=4")
