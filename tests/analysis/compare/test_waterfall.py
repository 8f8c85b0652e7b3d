"""Rows of a difference by stage, rank and operator, between layouts, and of a GPU and an NPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pytest

from npuscope.analysis.compare.difference import compare, remarks
from npuscope.analysis.compare.side import Key, Side, kernels_in_full, measure
from npuscope.analysis.compare.waterfall import needs_all
from npuscope.analysis.memo import remember
from npuscope.analysis.scope import ALL
from npuscope.collector.store import store
from npuscope.errors import UsageError
from npuscope.profile import summary_versions
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, small
from tests.analysis.compare.test_compare import TABLES, adds_up
from tests.analysis.tables import connect, keep_summaries, put

JOB = Job(name="two", layers=2, tp=1, pp=2, dp=2, ep=2, experts=4, steps=2, micro_batches=1)
_OPERATOR = (
    "(select any_value(operator_name) from launches as l where l.rank = kernels.rank and"
    " l.connection_id = kernels.connection_id)"
)
# As a GPU's trace is read: types are the framework's operators.
_AS_GPU = f"update ranks set framework = 'kineto'; update kernels set type = {_OPERATOR}"
_SPLIT = """
update kernels set type = case when task_id % 2 = 0 then 'Silu' else 'Mul' end
where type = 'SwiGlu'"""


def side(job: Job, by: Key | None = None, change: str = "", *, operators: bool = True) -> Side:
    with connect() as con:
        put(con, canonical_frames(job, tables=TABLES, pipes=False))
        if change:
            keep_summaries(con)
            con.execute(change)
        keep_summaries(con)
        remember(con)
        found = measure(con, ALL, by)
        return found.with_kernels(kernels_in_full(con, ALL, by)) if operators else found


@pytest.mark.slow
def test_each_stage_and_rank_adds_up_and_has_its_own_cause() -> None:
    slow = replace(JOB, slow_rank=2, slow_factor=1.5)
    keys: tuple[tuple[Key, int, int], ...] = (("stage", 1, 2), ("rank", 2, 4))
    for by, culprit, count in keys:
        found = compare(side(JOB, by), side(slow, by), by)
        adds_up(found)
        assert found.at is not None and found.alone == ((), ())
        sums = found.at.group_by(by).agg(pl.col("a_ns", "b_ns", "delta_ns").sum())
        assert sums.height == count
        assert set(sums.drop(by).rows()) == {(found.step_a_ns, found.step_b_ns, found.delta_ns)}
        longer = found.at.filter(part="computing", change="duration").group_by(by).agg(
            pl.col("delta_ns").sum()
        )  # fmt: skip
        most = longer.sort("delta_ns").row(-1)
        assert most[0] == culprit and most[1] > 0
        assert longer.filter(pl.col(by) == 0)["delta_ns"].item() == 0


# Rank 1 is read lightly: the profiler's table of its steps, without its kernels.
_LIGHT = """
insert into profiler_steps (run, capture, rank, step, computing_ns, communication_ns,
    overlapped_ns, communication_not_overlapped_ns, free_ns, stage_ns, bubble_ns)
select run, capture, rank, step, computing_ns + 40000, communication_ns, overlapped_ns,
    exposed_communication_ns, free_ns, stage_ns, 0
from step_summary where rank = 1;
delete from kernels where rank = 1"""


@pytest.mark.slow
def test_ranks_without_kernels_do_not_run_them_less_often() -> None:
    """The others of their stage stand for them; what they compute beyond is a row of its own."""
    whole, light = side(JOB, "stage"), side(JOB, "stage", _LIGHT)
    for ours, theirs, sign in ((whole, light, 1), (light, whole, -1)):
        found = compare(ours, theirs, "stage")
        adds_up(found)
        computing = found.rows.filter(part="computing")
        assert computing.filter(pl.col("change").is_in(["count", "new", "gone"])).is_empty()
        assert computing.filter(pl.col("change") == "at_once")["delta_ns"].abs().sum() < 99
        assert computing["delta_ns"].sum() == pytest.approx(sign * 40000 / 4, abs=9)
        assert found.at is not None
        apart = found.at.filter(pl.col("change") == "other_ranks")
        assert set(apart["stage"]) == {0}
        others = computing.filter(pl.col("change") == "other_ranks")
        assert others["delta_ns"].item() == pytest.approx(apart["delta_ns"].item() / 2, abs=1)
        assert not [note for note in remarks(found) if "tokens" in note]


@pytest.mark.slow
def test_what_one_side_alone_has_is_said() -> None:
    ours, theirs = side(JOB, "stage"), side(JOB, "stage")
    theirs = replace(theirs, at={0: theirs.at[0]})
    found = compare(ours, theirs, "stage")
    assert found.at is not None and set(found.at["stage"]) == {0}
    assert "of one side alone: 1 of A, - of B" in remarks(found)
    with pytest.raises(UsageError, match="no common stage"):
        compare(ours, replace(theirs, at={}), "stage")


@pytest.mark.slow
def test_a_fusion_is_one_row_of_its_operator() -> None:
    """What two types did, a third does; one of the two works elsewhere as well."""
    job = small(steps=3)
    before = _SPLIT + "; update kernels set type = 'Mul' where type = 'Add'"
    after = "update kernels set type = 'Mul' where type = 'Add'"
    ours, theirs = side(job, change=before), side(job, change=after)
    assert needs_all(ours, theirs)
    found = compare(ours, theirs)
    adds_up(found)
    assert set(found.rows["delta_ns"]) == {0} and found.verdict != "different"
    (row,) = found.rows.filter(change="kernels").to_dicts()
    assert row["name"] == "npu::npu_swiglu" and row["a_ns"] > 0
    assert found.rows.filter(pl.col("change").is_in(["new", "gone", "count"])).is_empty()
    # Where the host tells nothing, they are rows of their own.
    ours = side(job, change=before, operators=False)
    bare = compare(ours, side(job, change=after, operators=False))
    adds_up(bare)
    assert bare.rows.filter(change="gone")["name"].to_list() == ["Silu"]
    assert bare.rows.filter(change="new")["name"].to_list() == ["SwiGlu"]


@pytest.mark.slow
def test_the_same_kernels_on_other_cores() -> None:
    job = small(steps=3)
    theirs = side(job, change="update kernels set core = 'AI_CPU', dur_ns = 3 * dur_ns"
                              " where type = 'LogSoftmaxV2'")  # fmt: skip
    found = compare(side(job), theirs)
    adds_up(found)
    (row,) = found.rows.filter(change="core").to_dicts()
    assert row["name"] == "LogSoftmaxV2" and row["a_ns"] > 0
    assert row["b_ns"] == pytest.approx(3 * row["a_ns"], abs=3)
    assert found.rows.filter(pl.col("change").is_in(["shape", "new", "gone"])).is_empty()


@pytest.mark.slow
def test_a_gpu_and_an_npu_are_matched_by_operator() -> None:
    job = small(steps=3)
    gpu, npu = side(job, change=_AS_GPU), side(job)
    assert needs_all(gpu, npu) and not needs_all(npu, npu)
    for ours, theirs in ((gpu, npu), (npu, gpu)):
        found = compare(ours, theirs)
        adds_up(found)
        assert set(found.rows["delta_ns"]) == {0}
        computing = found.rows.filter(part="computing").filter(pl.col("name").is_not_null())
        assert set(computing["change"]) == {"kernels"}
        assert {"aten::matmul", "npu::npu_fusion_attention"} <= set(computing["name"])
        assert any("matched by the framework's operator" in note for note in remarks(found))


@pytest.mark.slow
def test_layouts_are_compared_by_token() -> None:
    wide = replace(JOB, pp=1, dp=4, ep=2)
    ours, theirs = side(JOB, "stage"), side(wide, "stage")
    found = compare(replace(ours, tokens=8192), replace(theirs, tokens=16384))
    adds_up(found)
    assert found.layouts == ("pp 2, dp 2", "pp 1, dp 4") and found.is_per_token
    notes = " ".join(remarks(found))
    assert "parallel layouts differ (A pp 2, dp 2; B pp 1, dp 4)" in notes
    assert "tokens per step differ (A 8,192, B 16,384)" in notes
    for name, step_ns, tokens in (("a", found.step_a_ns, 8192), ("b", found.step_b_ns, 16384)):
        each = step_ns * JOB.world_size / tokens
        assert found.rows[f"{name}_ns_per_token"].sum() == pytest.approx(each)
        figure = found.figures.row(
            by_predicate=pl.col("measure") == "rank_ns_per_token", named=True
        )
        assert figure[name] == pytest.approx(each, abs=0.01)
        assert figure["low"] < figure["delta"] < figure["high"]
    unknown = compare(ours, theirs)
    assert "--tokens-a" in " ".join(remarks(unknown)) and not unknown.is_per_token
    assert unknown.rows["a_ns_per_token"].null_count() == unknown.rows.height
    with pytest.raises(UsageError, match="a rank of A is none of B"):
        compare(side(JOB, "rank"), side(wide, "rank"), "rank")


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [
        ("alexnet_ddp_text_level0", "alexnet_ddp_text_level1"),
        ("alexnet_ddp_db_level0", "alexnet_ddp_text_level1"),
        ("alexnet_ddp_text_level1", "alexnet_ddp_db_level1"),
        ("alexnet_ddp_db_level1", "alexnet_ddp_db_level1"),
        ("qwen3_pp2_dp2_text_level2", "qwen3_pp2_dp2_text_level2"),
    ],
    ids="-".join,
)
def test_real_profiles_of_one_program(
    pair: tuple[str, str], real_stores: Callable[[str], Path]
) -> None:
    sides = []
    for name in pair:
        with store.open(real_stores(name), summaries=summary_versions()) as con:
            plain = measure(con, ALL, "rank")
            sides.append([plain, plain.with_kernels(kernels_in_full(con, ALL, "rank"))])
    for ours, theirs in zip(*sides, strict=True):
        found = compare(ours, theirs, "rank")
        adds_up(found)
        assert found.at is not None
        for _, rows in found.at.group_by("rank"):
            assert rows["delta_ns"].sum() == found.delta_ns
        is_level = {"level0" in name for name in pair} == {True, False}
        assert any("different levels" in note for note in remarks(found)) == is_level
        # One program: whatever it ran, it ran in both.
        assert found.rows.filter(pl.col("change").is_in(["new", "gone"])).is_empty()
        if pair[0] == pair[1]:
            assert set(found.rows["delta_ns"]) == set(found.at["delta_ns"]) == {0}


@pytest.mark.slow
def test_launches_without_connections_tell_no_operators() -> None:
    def nothing(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
        con.execute("update launches set connection_id = null")
        return kernels_in_full(con, ALL)[None]

    with connect() as con:
        put(con, canonical_frames(small(), tables=TABLES))
        assert nothing(con)["operator"].null_count() == nothing(con).height
