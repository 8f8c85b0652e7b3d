"""Sums of tokens against tokens x top-k, and layers of one source against another's."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.analysis.experts.load.dropped_tokens import (
    against_kernels,
    check_sums,
    doubts,
    matched_layers,
)
from npuscope.sample_traces.job import Job
from npuscope.sample_traces.truth import expert_load
from tests.analysis.tables import connect

JOB = Job(sequence=64)
TOKENS = JOB.sequence * JOB.dp * JOB.micro_batches


def plant(**factors: float) -> pl.DataFrame:
    """Planted rows; layer `l1` times a factor."""
    rows = pl.DataFrame(expert_load(JOB), ["step", "layer", "expert", "tokens"], orient="row")
    times = pl.lit(1.0)
    for name, factor in factors.items():
        times = pl.when(pl.col("layer") == int(name[1:])).then(factor).otherwise(times)
    return rows.with_columns((pl.col("tokens") * times).cast(pl.Int64))


def test_planted_sums_are_right() -> None:
    assert check_sums(plant(), tokens_per_step=TOKENS, top_k=JOB.top_k) == []
    assert check_sums(plant()) == check_sums(plant().clear()) == []


@pytest.mark.parametrize("known", [True, False])
def test_layers_that_count_twice_are_recognised(known: bool) -> None:
    sizes = {"tokens_per_step": TOKENS, "top_k": JOB.top_k} if known else {}
    (note,) = check_sums(plant(l1=2, l3=2), **sizes)
    assert "layers 1, 3 count twice as many" in note
    everywhere = check_sums(plant(l0=2, l1=2, l2=2, l3=2), **sizes)
    assert ["count twice as many" in note for note in everywhere] == [True] * known


def test_a_wrong_top_k_is_told() -> None:
    (wrong,) = check_sums(plant(), tokens_per_step=TOKENS, top_k=6)
    assert "as if top-k was 2, not 6" in wrong
    (dropped,) = check_sums(plant(l2=0.9), tokens_per_step=TOKENS, top_k=2)
    assert dropped.startswith("layers 2 count 0.") and "are missing" in dropped
    (more,) = check_sums(plant(l2=1.2), tokens_per_step=TOKENS, top_k=2)
    assert "more than were routed" in more


def test_layers_match_in_their_order() -> None:
    assert matched_layers([0, 1, 2], [6, 4, 5, 4]) == {0: 4, 1: 5, 2: 6}
    assert matched_layers([3, 4], [3, 4]) == {3: 3, 4: 4}
    assert matched_layers([0, 1], [0]) is None


def test_counts_beside_what_kernels_computed() -> None:
    """Layers are matched in their order; a source that counts twice is told."""
    counted = pl.DataFrame(expert_load(JOB), ["step", "layer", "expert", "tokens"], orient="row")
    kernels = counted.group_by("step", "layer").agg(pl.col("tokens").sum())
    later = counted.with_columns(pl.col("layer") + 3)
    assert against_kernels(later, kernels) == []
    twice = later.with_columns(pl.col("tokens") * 2)
    [note] = against_kernels(twice, kernels)
    assert "count twice as many tokens as their kernels computed: recomputation" in note
    first = min(later["layer"].to_list())
    half = later.with_columns(pl.when(pl.col("layer") != first).then("tokens").otherwise(5))
    [note] = against_kernels(half, kernels)
    assert note.startswith(f"layers {first} count 0.0")
    assert "not compared" in against_kernels(later, kernels.filter(pl.col("layer") == 0))[0]
    assert against_kernels(later, kernels.with_columns(pl.col("step") + 50)) == []


def test_counts_of_a_store_that_do_not_fit() -> None:
    """Without any options, and without kernels: layers beside each other."""
    with connect() as con:
        assert doubts(con, run="r", capture="c") == []
        con.execute(
            "insert into expert_load by name select 'r' as run, 'c' as capture, 0 as rank,"
            " 'train' as phase, 1 as step, l as layer, e as expert, if(l = 2, 20, 10) as tokens"
            " from range(4) s(l), range(8) t(e)"
        )
        (told,) = doubts(con, run="r", capture="c")
    assert told.startswith("expert load: layers 2 count twice as many tokens as the others")
