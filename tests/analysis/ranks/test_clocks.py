"""Clocks: planted offsets and drifts come back, with errors that hold and reasons where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.ranks.answers import clock_notes, clocks
from npuscope.analysis.ranks.clocks.clocks import Spans, bounds
from npuscope.analysis.ranks.clocks.fit import Readings, components, fit
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.dashboard.locale.language import language_of
from npuscope.sample_traces.generate import Job
from tests.analysis.ranks.across_tables import across, job_tables, planted_clock
from tests.analysis.tables import connect, fill, op

OFFSETS = (0, 50_000_000, -31_415_927, 7)


def spread_job(**changes: Any) -> Job:
    """Eight ranks on four hosts that collectives and transfers join."""
    settings: dict[str, Any] = {
        "name": "clocks", "layers": 2, "pp": 2, "dp": 4, "ep": 4, "experts": 8, "steps": 2,
        "ranks_per_host": 2, "memory": False, "frequency": False,
        "clock_offsets_ns": tuple(OFFSETS[rank // 2] for rank in range(8)),
    }  # fmt: skip
    return Job(**{**settings, **changes})


def misses(job: Job, rows: list[dict[str, Any]]) -> list[tuple[float, float | None]]:
    """How far each row's offset and drift are from what was planted."""
    found = []
    for row in rows:
        host = row["ranks"][0] // job.ranks_per_host
        reference = row["reference_rank"] // job.ranks_per_host
        offset, drift = planted_clock(job, host, reference, row["reference_ns"])
        told = row["drift_ppm"]
        found.append((row["offset_ns"] - offset, None if told is None else told - drift))
    return found


def test_offsets_come_back_exactly() -> None:
    job = spread_job()
    rows = across(job_tables(job), "clocks", "ranks")
    assert [row["ranks"] for row in rows] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [row["basis"] for row in rows] == ["reference", *["collectives"] * 3]
    assert max(abs(offset) for offset, _ in misses(job, rows)) <= 1
    for row in rows[1:]:
        assert row["lower_ns"] <= row["offset_ns"] <= row["upper_ns"]
        assert 0 < row["error_ns"] < 100
        assert row["residual_ns"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("jitter_ns", [0, 20_000])
def test_offsets_and_drifts_come_back_within_the_jitter(jitter_ns: int) -> None:
    job = spread_job(steps=10, micro_batches=4, clock_drift_ppm=(3.0, -17.0, 0.0, 20.0))
    rows = across(job_tables(job, jitter_ns=jitter_ns), "clocks", "ranks")
    for row, (offset, drift) in zip(rows[1:], misses(job, rows)[1:], strict=True):
        assert abs(offset) <= min(row["error_ns"], max(2, jitter_ns / 4))
        if drift is None:
            assert "drift cannot be determined" in row["note"]
            assert row["drift_error_ppm"] > 1
        else:
            assert abs(drift) <= row["drift_error_ppm"]
    told = [row["drift_ppm"] is not None for row in rows[1:]]
    assert all(told) if jitter_ns == 0 else not any(told)


def test_aligned_ends_meet() -> None:
    job = spread_job(clock_drift_ppm=(0.0, 20.0, -20.0, 5.0))
    rows = across(job_tables(job), "arrivals")
    ends: dict[int, set[int]] = {}
    for row in rows:
        ends.setdefault(row["instance"], set()).add(row["aligned_end_ns"])
    assert all(max(times) - min(times) <= 4 for times in ends.values())
    assert {row["clock_error_ns"] for row in rows if row["kind"] == "world"} != {0}


@pytest.mark.parametrize("hit", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_what_lies_far_off_changes_nothing(hit: int) -> None:
    """Each twelfth reading is 30 ms late. The fourth choice hits one of the only two operations
    that join the stages: then nobody can know, and the error says so."""
    job = spread_job()
    con = job_tables(job)
    late = f"hash(rank, op_id) % 12 = {hit}"
    con.execute(f"update comm_ops set dur_ns = dur_ns + 30_000_000 where {late}")
    rows = across(con, "clocks", "ranks")
    for row, (offset, _) in zip(rows[1:], misses(job, rows)[1:], strict=True):
        assert abs(offset) <= row["error_ns"]
        assert row["error_ns"] < 100 or hit == 4


@pytest.mark.slow
def test_errors_hold() -> None:
    """95 % of errors hold what was planted: over twelve jobs, not more than every sixth fails."""
    outside = 0
    for seed in range(12):
        job = spread_job(steps=2)
        rows = across(job_tables(job, jitter_ns=30_000, seed=seed), "clocks", "ranks")
        outside += sum(
            abs(offset) > row["error_ns"]
            for row, (offset, _) in zip(rows[1:], misses(job, rows)[1:], strict=True)
        )
    assert outside <= 6


def test_few_operations_tell_no_drift() -> None:
    """The remark stays one English text; as a note, its parts are said in the reader's language."""
    job = spread_job(layers=1, pp=1, dp=2, ep=1, experts=0, steps=1, ranks_per_host=1,
                     micro_batches=1, clock_offsets_ns=(0, 9_000))  # fmt: skip
    con = job_tables(job)
    open_across(None, con)
    (_, other) = clocks(con).to_dicts()
    assert other["offset_ns"] == 9_000
    assert other["drift_ppm"] is None
    assert other["note"] == "drift cannot be determined: fewer than 8 common operations"
    (note,) = clock_notes(clocks(con))
    assert note == f"{other['host']}: {other['note']}"
    assert language_of("zh")(note) == f"{other['host']}：无法确定漂移：共同的通信算子少于 8 个"


@pytest.mark.slow
def test_unknown_hosts_have_a_clock_per_rank() -> None:
    job = spread_job()
    con = job_tables(job)
    con.execute("update ranks set host_name = null, host_uid = null")
    open_across(None, con)
    found = clocks(con)
    assert found["ranks"].to_list() == [[rank] for rank in range(8)]
    assert max(abs(offset) for offset, _ in misses(job, found.to_dicts())) <= 1
    assert "ranks 0-7: host unknown" in clock_notes(found)


@pytest.mark.slow
def test_machines_of_one_name_are_told_apart() -> None:
    con = job_tables(spread_job())
    con.execute("update ranks set host_name = 'localhost'")
    hosts = [row["host"] for row in across(con, "clocks", "ranks")]
    assert len(set(hosts)) == 4 and all(host.startswith("localhost (") for host in hosts)


def test_ranks_that_do_not_share_their_hosts_clock() -> None:
    offsets = (0, 0, 5_000_000, 5_000_000, 0, 900_000, 0, 0)
    job = spread_job(clock_offsets_ns=offsets)
    con = job_tables(job)
    open_across(None, con)
    found = clocks(con)
    assert found["ranks"].to_list() == [[0, 1], [2, 3], [4], [5], [6, 7]]
    assert found["offset_ns"].to_list() == [0, 5_000_000, 0, 900_000, 0]
    assert any("node02: ranks of this host do not share" in note for note in clock_notes(found))


def test_hosts_that_nothing_joins_stay_unknown() -> None:
    con = job_tables(spread_job())
    con.execute("delete from comm_ops where rank >= 6")
    rows = across(con, "clocks", "ranks")
    assert [row["basis"] for row in rows] == ["reference", "collectives", "collectives", "none"]
    assert rows[3]["offset_ns"] is None and rows[3]["error_ns"] is None
    assert "no operation shared with" in rows[3]["note"]


@pytest.mark.slow
def test_transfers_alone_bound_a_clock() -> None:
    job = spread_job(clock_offsets_ns=(0, 0, 0, 0, *[2_000_000] * 4), micro_batches=4)
    con = job_tables(job)
    con.execute("delete from comm_ops where op_type not in ('send', 'receive') and rank >= 4")
    con.execute("delete from comm_ops where group_hash in"
                " (select group_hash from groups where parallel_kind = 'world')")  # fmt: skip
    rows = across(con, "clocks", "ranks")
    assert [row["basis"] for row in rows] == ["reference", "collectives", "transfers", "transfers"]
    for row in rows[2:]:
        assert row["lower_ns"] <= 2_000_000 <= row["upper_ns"]
        assert abs(row["offset_ns"] - 2_000_000) <= row["error_ns"]


def test_causality_moves_an_offset() -> None:
    """Ends that lie: one rank always leaves long after the others."""
    con = connect()
    fill(con, "ranks", [{"rank": r, "host_name": f"h{r}", "world_size": 2} for r in (0, 1)])
    fill(con, "groups", [
        {"rank": rank, "group_hash": "7", "parallel_kind": "dp", "global_ranks": [0, 1]}
        for rank in (0, 1)
    ])  # fmt: skip
    rows = []
    for n in range(20):
        # Rank 1 starts just before rank 0 ends, so that its clock cannot be ahead.
        rows.append(op(n * 1000, 100, rank=0, name=f"a_{n}", group_hash="7", op_id=n))
        rows.append(op(n * 1000 + 99, 100, rank=1, name=f"a_{n}", group_hash="7", op_id=n))
    fill(con, "comm_ops", rows)
    (_, other) = across(con, "clocks", "ranks")
    assert other["upper_ns"] == 199 and other["lower_ns"] == -1
    assert other["offset_ns"] == 99
    con.execute("update comm_ops set dur_ns = 400 where rank = 1")
    con.execute("update comm_ops set dur_ns = 51 where rank = 1 and name = 'a_3'")
    (_, other) = across(con, "clocks", "ranks")
    assert (other["offset_ns"], other["upper_ns"]) == (150, 150)
    assert other["error_ns"] >= 249
    assert "moved by 249 ns" in other["note"]


def test_one_rank_has_one_clock() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 3, "host_name": "h"}])
    (row,) = across(con, "clocks")
    assert (row["host"], row["offset_ns"], row["error_ns"], row["basis"]) == (
        "h", None, None, "reference"
    )  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-50, 50), st.integers(0, 60)),
        max_size=12,
    )
)
def test_bounds_are_shortest_paths(pairs: list[tuple[int, int, int, int]]) -> None:
    """Against Floyd and Warshall over all pairs; contradictory readings are left out."""
    clock_count, far = 4, np.inf
    longest = np.full((clock_count, clock_count), far)
    np.fill_diagonal(longest, 0)
    rows: list[tuple[int, int, float, float]] = []
    for number, (a, b, start, dur) in enumerate(pairs):
        if a == b:
            continue
        # a starts at 0 and ends at dur; b starts at `start` and ends with its own 30 later.
        spans = {a: (0, dur), b: (start, start + 30)}
        rows += [(number, clock, float(s), float(e)) for clock, (s, e) in spans.items()]
        longest[a, b] = min(longest[a, b], spans[a][1] - spans[b][0])
        longest[b, a] = min(longest[b, a], spans[b][1] - spans[a][0])
    for via in range(clock_count):
        longest = np.minimum(longest, longest[:, [via]] + longest[[via], :])
    if (np.diag(longest) < 0).any():
        return
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    both = np.ones(len(rows), dtype=bool)
    spans_ = Spans(
        np.unique(table[:, 0], return_inverse=True)[1].astype(np.int64),
        table[:, 1].astype(np.int64), table[:, 2], table[:, 3], both, both, clock_count,
    )  # fmt: skip
    lower, upper = bounds(spans_, 0)
    assert upper.tolist() == longest[:, 0].tolist()
    assert lower.tolist() == (-longest[0, :]).tolist()


@settings(max_examples=40)
@given(st.data())
def test_the_fit_is_the_least_squares_solution(data: st.DataObject) -> None:
    """Against numpy's dense solution, where no reading lies far off."""
    clock_count = data.draw(st.integers(2, 5))
    dice = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    instants, clocks_, ends = [], [], []
    truth = dice.uniform(-1e6, 1e6, clock_count)
    for number in range(30):
        members = sorted({number % clock_count, *dice.integers(0, clock_count, 2).tolist()})
        if len(members) < 2:
            members = [number % clock_count, (number + 1) % clock_count]
        for member in members:
            instants.append(number)
            clocks_.append(member)
            ends.append(number * 1e6 + truth[member])
    readings = Readings(
        np.array(instants), np.array(clocks_), np.array(ends), clock_count
    )  # fmt: skip
    assert set(components(readings).tolist()) == {0}
    found = fit(readings, 0, np.zeros(clock_count, dtype=bool))
    assert np.abs(found.offset_ns - (truth - truth[0])).max() < 0.01
