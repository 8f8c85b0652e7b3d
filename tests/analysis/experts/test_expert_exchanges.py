"""All-to-alls of planted jobs: what their imbalance costs, the link they show, who waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from npuscope.analysis.experts.cost import cost_answer, exchanges
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.flops.lengths import step_lengths
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.sample_traces.calls import BYTES_PER_NS
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.tables import connect, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "expert_load", "expert_placement")
JOB = Job(layers=2, experts=16, ep=4, expert_skew=0.8, memory=False)


def tables_of(job: Job) -> duckdb.DuckDBPyConnection:
    con = connect()
    put(con, canonical_frames(job, tables=TABLES, pipes=False))
    return con


@pytest.fixture(scope="module")
def job() -> Iterator[duckdb.DuckDBPyConnection]:
    with tables_of(JOB) as con:
        open_across(None, con)
        yield con


def plant(count: int = 12, **changes: Any) -> pl.DataFrame:
    """Dispatches and combines of two ranks, in turns: 100 bytes each way and what the experts got,
    10 us and 2 ns a byte of the fullest; rank 0 comes 3 us early."""
    rows = []
    for nth in range(count):
        got = (100 + 5 * nth, 100 - 5 * nth)
        for rank in (0, 1):
            for side, size in enumerate((100, got[rank])):
                early = 3_000 if rank == 0 else 0
                rows.append({
                    "run": "r", "capture": "c", "instance": 2 * nth + side, "group_hash": "g",
                    "step": 1, "rank": rank, "host": "h", "start_ns": 100_000 * (2 * nth + side),
                    "dur_ns": 10_000 + 2 * got[0] + early, "aligned_start_ns": -early,
                    "size_bytes": size, "group_size": 2, "is_complete": True,
                    "transit_ns": None, "exposed_ns": None,
                } | changes)  # fmt: skip
    frame = pl.DataFrame(
        rows, schema_overrides={"rank": pl.Int32, "transit_ns": pl.Float64, "exposed_ns": pl.Int64}
    )
    return exchanges._with_load(frame.sort("rank", "start_ns"))


def test_both_sides_of_a_pair_move_the_load() -> None:
    rows = plant()
    loads = rows.filter(pl.col("rank") == 0)["load_bytes"].to_list()
    assert loads == [100 + 5 * (at // 2) for at in range(24)]
    (told,) = exchanges.exchange_times(rows).to_dicts()
    assert told["ns_per_byte"] == pytest.approx(2.0)
    assert (told["operations_count"], told["basis"]) == (24, exchanges.SHORTEST)
    (link,) = exchanges.links(rows, exchanges.exchange_times(rows)).to_dicts()
    assert link["bytes_per_s"] == pytest.approx(0.25e9) and not link["is_far"]


def test_transit_where_members_are_missing() -> None:
    rows = plant(is_complete=False)
    assert exchanges.exchange_times(rows).is_empty()
    timed = rows.with_columns(transit_ns=500.0 + 3.0 * pl.col("load_bytes"))
    (told,) = exchanges.exchange_times(timed).to_dicts()
    assert told["basis"] == exchanges.TRANSIT and told["ns_per_byte"] == pytest.approx(3.0)


def test_noise_tells_no_slope() -> None:
    chance = np.random.default_rng(4)
    rows = plant()
    noise = pl.Series(np.rint(chance.lognormal(9, 0.5, rows.height))).cast(pl.Int64)
    assert exchanges.exchange_times(rows.with_columns(dur_ns=noise)).is_empty()
    assert exchanges.exchange_times(plant(3)).is_empty()
    even = plant().with_columns(load_bytes=pl.lit(100))
    assert exchanges.exchange_times(even).is_empty()


def test_without_matched_operations_nothing_is_told() -> None:
    with duckdb.connect() as con:
        rows = exchanges.exchanges(con)
    assert rows.is_empty() and exchanges.exchange_times(rows).is_empty()


@pytest.mark.slow
def test_planted_exchanges(job: duckdb.DuckDBPyConnection) -> None:
    """The costliest pair moves a fourth of what the fullest device gets, in the time of its link;
    links vary by 2 %."""
    tables = expert_rows(job)
    rows, notes = cost_answer.cost_rows(job, tables)
    per_byte = 1.01 / JOB.ep / BYTES_PER_NS["HCCS"]
    token_bytes = 4 * 2 * JOB.hidden  # there and back, forward and backward, bf16
    expected = (rows["excess_tokens"] * per_byte * token_bytes).to_list()
    assert rows["exchange_excess_ns"].to_list() == pytest.approx(expected, rel=0.05)
    both = rows["grouped_excess_ns"] + rows["activation_excess_ns"] + rows["exchange_excess_ns"]
    assert rows["excess_ns"].to_list() == pytest.approx(both.to_list())
    _, links = cost_answer.plan_costs(job, tables)
    rate = (JOB.ep - 1) * BYTES_PER_NS["HCCS"] * 1e9
    assert links["bytes_per_s"].to_list() == pytest.approx([rate], rel=0.05)
    longest = step_lengths(job).group_by("step").agg(pl.col("step_ns").max())
    of_steps = dict(longest.iter_rows())
    assert (rows["step_ns"] <= rows["step"].replace_strict(of_steps)).all()
    assert set(of_steps.values()) <= set(rows["step_ns"])
    assert any("grouped matmuls" in note and "all-to-alls" in note for note in notes)
    [said] = [note for note in notes if note.startswith("shares are of")]
    bases = step_lengths(job)["length_basis"].unique()
    assert "the stage's longest step" in said and all(basis in said for basis in bases)


@pytest.mark.slow
def test_others_wait_for_what_is_predicted(job: duckdb.DuckDBPyConnection) -> None:
    """Grouped matmuls that take longer are what others wait for, with the activations between."""
    tables = expert_rows(job)
    rows, notes = cost_answer.cost_rows(job, tables)
    stages = rows.group_by("step", "stage").agg(
        pl.col("grouped_excess_ns").sum(), pl.col("ep_wait_min_duration_ns").first(),
        pl.col("ep_wait_last_arrival_ns").first(),
    )  # fmt: skip
    least = stages["ep_wait_min_duration_ns"].to_numpy()
    ratio = stages["grouped_excess_ns"].to_numpy() / least
    assert ((ratio > 0.7) & (ratio < 1.05)).all()
    assert stages["ep_wait_last_arrival_ns"].to_numpy() == pytest.approx(least, rel=0.02)
    assert any(
        "waited" in note and "imbalanced grouped matmuls and activations explain" in note
        for note in notes
    )
