"""Findings about exposed communication: who waits for whom comes before bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.findings.finding import Finding
from npuscope.analysis.findings.findings import findings
from npuscope.analysis.parts import exposed_parts, step_parts
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.ranks.stragglers.blame import by_rank, rank_blame
from npuscope.collector.store import store
from npuscope.dashboard.locale.language import language_of
from npuscope.dashboard.terminal.straggler_tables import ranks_table
from tests.analysis.steps.test_step_parts import JOB, STAGE_0, capture
from tests.analysis.tables import keep_summaries

chinese = language_of("zh")


def found_in(con: duckdb.DuckDBPyConnection, path: Path | None = None) -> list[Finding]:
    with closing(con):
        if path is None:
            keep_summaries(con)
        open_across(path, con)
        return findings(con)


@cache
def found_of(ranks: tuple[int, ...] = ()) -> list[Finding]:
    """Of the job's own captures, which tests ask more than once."""
    return found_in(capture(ranks=ranks))


def test_uneven_stages_come_first_and_name_the_heavy_one() -> None:
    first, *others = found_of()
    assert first.name == "uneven_stages"
    assert "stage 1" in first.statement.split(",")[0] and "most on stage 0." in first.statement
    assert first.evidence["stage"].to_list() == [1, 0]
    assert "pipeline_bubble" not in [one.name for one in others]
    # Waiting in the pipeline is no straggler's: it is not to be looked for.
    (moving,) = (one for one in others if one.name == "exposed_communication")
    assert moving.advice.startswith("First shorten the waiting, which has findings of its own")


@pytest.mark.slow
def test_stages_are_known_by_the_groups_where_ranks_do_not_tell() -> None:
    con = capture()
    con.execute("update ranks set pp_rank = null")
    assert found_in(con)[0].name == "uneven_stages"


@pytest.mark.slow
def test_even_stages_have_bubbles_of_their_schedule_only() -> None:
    names = [one.name for one in found_in(capture(replace(JOB, layers_by_stage=(2, 2))))]
    assert "uneven_stages" not in names and "pipeline_bubble" in names


@pytest.mark.slow
def test_one_stage_alone_waits_for_one_that_was_not_captured() -> None:
    first = found_of(STAGE_0)[0]
    assert first.name == "uncaptured_ranks"
    assert first.statement.endswith("ms of it for a pipeline stage (ranks 2-3).")
    assert first.evidence["kind"][0] == "pp"


def test_most_of_a_real_pipelines_waiting_is_for_the_stage_that_was_not_captured(
    real_stores: Callable[[str], Path],
) -> None:
    path = real_stores("qwen3_pp2_dp2_text_level2")
    found = found_in(store.open(path), path)
    assert found[0].statement == (
        "322.329 of 430.941 ms of exposed communication per step (74.8 %) are waiting for ranks"
        " that were not captured, 317.526 ms of it for a pipeline stage (ranks 2-3)."
    )
    assert not any("bucket" in one.advice for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(), STAGE_0, (0, 1, 3)])
def test_they_are_told_in_chinese(ranks: tuple[int, ...]) -> None:
    for one in found_of(ranks):
        for text in (one.statement, one.reason, one.advice):
            assert chinese(text) != text, text


def test_what_a_rank_caused_is_unknown_where_its_work_has_no_peer_to_compare_with(
    real_stores: Callable[[str], Path],
) -> None:
    """Rank 1 waited for rank 0, but recorded no kernels: 0.000 would say nobody waited."""
    path = real_stores("qwen3_pp2_dp2_text_level2")
    with closing(store.open(path)) as con:
        open_across(path, con)
        ranks = by_rank(rank_blame(con))
        waits = exposed_parts(step_parts(con), ("rank",)).sort("rank")
        table = ranks_table(
            rank_blame(con), waits=exposed_parts(step_parts(con), ("run", "capture", "rank"))
        )
    assert ranks["caused_wait_ns"].to_list() == [None, None]
    assert waits["absent_wait_ns"].to_list() == [318_151_740, 326_506_160]
    assert waits["pipeline_wait_ns"].to_list() == [None, None]
    [caused] = [column for column in table.columns if column.key == "caused_wait_ns"]
    assert [caused.text(row).plain for row in table.rows] == ["-", "-"]
