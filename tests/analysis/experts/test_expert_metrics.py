"""Expert load figures beside loops that spell the definitions out."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.experts.load import device_load, imbalance, load, load_notes, load_rows
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from npuscope.sample_traces.truth import expert_load

SCHEMA = {
    "run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64, "phase": pl.String,
    "layer": pl.Int32, "expert": pl.Int32, "ep_rank": pl.Int32, "tokens": pl.Int64,
}  # fmt: skip
LOADS = st.lists(st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 10**7)), min_size=1,
                 max_size=12)  # fmt: skip


def rows(*told: dict[str, Any]) -> pl.DataFrame:
    plain = {"run": "r", "capture": "c", "rank": 0, "step": 1, "phase": "train", "layer": 0}
    return pl.DataFrame([{**dict.fromkeys(SCHEMA), **plain, **row} for row in told], schema=SCHEMA)


def row_of(tokens: list[int], **more: Any) -> pl.DataFrame:
    return rows(*({"expert": e, "tokens": t, **more} for e, t in enumerate(tokens)))


@settings(max_examples=30)
@given(LOADS)
def test_figures_are_as_defined(tokens: list[int]) -> None:
    found = imbalance.expert_metrics(imbalance.expert_loads(row_of(tokens))).to_dicts()[0]
    n, total = len(tokens), sum(tokens)
    assert (found["experts_count"], found["tokens"]) == (n, total)
    assert found["dead_count"] == tokens.count(0)
    if total == 0:
        assert found["cold_count"] == n
        assert all(
            found[name] is None
            for name in ("max_over_mean", "max_vio", "cv", "gini", "entropy_ratio",
                         "hottest_expert", "balance_loss")
        )  # fmt: skip
        return
    mean = total / n
    pairs = sum(abs(a - b) for a in tokens for b in tokens)
    entropy = -sum(t / total * math.log(t / total) for t in tokens if t)
    assert found["max_over_mean"] == pytest.approx(max(tokens) / mean, rel=1e-9, abs=1e-9)
    assert found["max_vio"] == pytest.approx(max(tokens) / mean - 1, rel=1e-9, abs=1e-9)
    spread = math.sqrt(sum((t - mean) ** 2 for t in tokens) / n)
    assert found["cv"] == pytest.approx(spread / mean, rel=1e-9, abs=1e-9)
    assert found["gini"] == pytest.approx(pairs / (2 * n * n * mean), rel=1e-9, abs=1e-9)
    if n == 1:
        assert found["entropy_ratio"] is None
    else:
        assert found["entropy_ratio"] == pytest.approx(entropy / math.log(n), rel=1e-9, abs=1e-9)
    assert found["cold_count"] == sum(t < imbalance.COLD_BELOW_RATIO * mean for t in tokens)
    assert found["hottest_expert"] == tokens.index(max(tokens))
    loss = n * sum((t / total) ** 2 for t in tokens)
    assert found["balance_loss"] == pytest.approx(loss, rel=1e-9, abs=1e-9)


def test_parts_add_up_and_global_counts_do_not() -> None:
    parts = rows(
        *({"expert": 0, "ep_rank": 0, "tokens": t, "rank": r} for r, t in enumerate((3, 4)))
    )
    assert imbalance.expert_loads(parts)["tokens"].to_list() == [7]
    told = rows(*({"expert": 0, "tokens": 9, "rank": r} for r in range(3)))
    assert imbalance.expert_loads(told)["tokens"].to_list() == [9]
    both = imbalance.expert_loads(pl.concat([parts, told]))
    assert both["tokens"].to_list() == [9]
    unknown = rows({"expert": None, "tokens": 5}, {"expert": 1, "tokens": None})
    assert imbalance.expert_loads(unknown).is_empty()


def test_a_step_that_is_not_told_is_a_place_of_its_own() -> None:
    found = imbalance.expert_metrics(
        imbalance.expert_loads(pl.concat([row_of([1, 3], step=None), row_of([2, 2], step=4)]))
    )
    assert found["step"].to_list() == [4, None]
    assert found["max_over_mean"].to_list() == [1.0, 1.5]


def test_planted_load() -> None:
    job = Job(experts=16, ep=4)
    frames = canonical_frames(job, tables=("expert_load", "expert_placement"))
    loads = imbalance.expert_loads(frames["expert_load"])
    found = [tuple(row) for row in loads.select("step", "layer", "expert", "tokens").rows()]
    assert found == expert_load(job)
    assert set(imbalance.expert_metrics(loads)["tokens"]) == {
        job.sequence * job.top_k * job.micro_batches * job.dp
    }
    measured = device_load.device_loads(frames["expert_load"])
    counted = loads.with_columns(rank=pl.lit(0, pl.Int32), ep_rank=pl.lit(None, pl.Int32))
    for other in (
        device_load.device_loads(counted, frames["expert_placement"]),
        device_load.device_loads(counted, devices=4),
    ):
        assert other.drop("basis").equals(measured.drop("basis"))
    assert device_load.device_loads(counted).is_empty()
    matrix = load.load_matrix(loads)
    assert matrix.tokens.shape == (2, 4, 16)
    assert matrix.tokens[1, 2, 3] == {row[:3]: row[3] for row in found}[(13, 2, 3)]


PLACED = st.lists(st.lists(st.integers(-1, 4), min_size=2, max_size=2), min_size=1, max_size=4)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 1000), min_size=5, max_size=5), PLACED)
def test_replicas_share_evenly(tokens: list[int], placed: list[list[int]]) -> None:
    placement = pl.DataFrame(
        [
            {
                "run": "r",
                "capture": "c",
                "rank": rank,
                "layer": 0,
                "device": d,
                "slot": s,
                "expert": e,
            }
            for rank in (0, 1)
            for d, slots in enumerate(placed)
            for s, e in enumerate(slots)
        ]
    )
    found = device_load.placed_loads(imbalance.expert_loads(row_of(tokens)), placement)
    every = [e for slots in placed for e in slots]
    if any(t and e not in every for e, t in enumerate(tokens)) or set(every) == {-1}:
        assert found.is_empty()
        return
    expected = {
        d: sum(tokens[e] / every.count(e) for e in slots if e >= 0)
        for d, slots in enumerate(placed)
        if any(e >= 0 for e in slots)
    }
    assert dict(found.select("device", "tokens").rows()) == pytest.approx(expected)
    assert found["tokens"].sum() == pytest.approx(sum(tokens))


def test_devices_and_nodes() -> None:
    told = rows(
        *({"expert": e, "ep_rank": e // 2, "tokens": t} for e, t in enumerate((1, 2, 3, 6, 5, 1)))
    )
    found = device_load.device_loads(told)
    assert found["tokens"].to_list() == [3, 9, 6]
    assert device_load.with_imbalance(found)["device_max_over_mean"].to_list() == [1.5, 1.5, 1.5]
    by_node = device_load.node_loads(found, load.even_nodes(found, 2))
    assert by_node["tokens"].to_list() == [12, 6]
    assert by_node["devices_count"].to_list() == [2, 1]
    none = ({"expert": e, "ep_rank": e, "tokens": 0} for e in (0, 1))
    idle = device_load.device_loads(rows(*none))
    assert device_load.with_imbalance(idle)["device_max_over_mean"].to_list() == [None, None]
    alone = device_load.device_loads(rows({"expert": 0, "ep_rank": 0, "tokens": 5}))
    assert device_load.with_imbalance(alone)["device_max_over_mean"].to_list() == [None]


def test_devices_of_different_groups_are_not_compared() -> None:
    """Of two groups of two devices: all, one without a device, one of each."""
    ranks = pl.DataFrame(
        [{"run": "r", "capture": "c", "rank": rank, "ep_group": group, "ep_size": 2,
          "device": rank % 2, "host": f"h{rank % 2}"}
         for rank, group in enumerate(("a", "a", "b", "b"))],
        schema=load.tables_of(rows()).ranks.schema,
    )  # fmt: skip
    told = rows(*({"rank": r, "ep_rank": r % 2, "tokens": t} for r, t in enumerate((1, 3, 2, 2))))

    def of(*kept: int) -> load.ExpertTables:
        return load.ExpertTables(told.filter(pl.col("rank").is_in(kept)), pl.DataFrame(), ranks)

    whole = of(0, 1, 2, 3)
    assert load_rows.by_device(whole)["device_max_over_mean"].to_list() == [1.25, 1.25]
    assert load_rows.by_node(whole)["node_max_over_mean"].to_list() == [1.25, 1.25]
    assert load_rows.unseen_notes(whole) == []
    for kept in ((0, 1, 2), (0, 3)):
        part = of(*kept)
        assert load_rows.by_device(part)["tokens"].sum() == sum((1, 3, 2, 2)[r] for r in kept)
        assert load_rows.by_device(part)["device_max_over_mean"].to_list() == [None, None]
        assert load_rows.by_node(part)["node_max_over_mean"].to_list() == [None, None]
        short, apart = load_rows.unseen_notes(part)
        assert "incomplete (1 of 2 devices)" in short and "not compared" in apart
    (short,) = load_rows.unseen_notes(of(2))
    assert short.startswith("1 of 1 expert-parallel groups")


def test_tokens_of_a_device_without_experts() -> None:
    told = rows(*({"ep_rank": d, "tokens": t} for d, t in enumerate((4, 8))))
    assert device_load.device_loads(told)["tokens"].to_list() == [4, 8]
    assert imbalance.expert_loads(told).is_empty()


@settings(max_examples=20)
@given(st.integers(1, 20).flatmap(lambda n: st.lists(
    st.lists(st.integers(0, 6), min_size=n, max_size=n), min_size=2, max_size=3)))  # fmt: skip
def test_steadiness(steps: list[list[int]]) -> None:
    told = pl.concat([row_of(tokens, step=10 * at) for at, tokens in enumerate(steps)])
    found = load_rows.steadiness(imbalance.expert_loads(told)).to_dicts()
    assert [(f["previous_step"], f["step"]) for f in found] == [
        (10 * at, 10 * at + 10) for at in range(len(steps) - 1)
    ]
    for one, (before, after) in zip(found, pairwise(steps), strict=True):
        count = math.ceil(len(after) * load_rows.HOT_SHARE_RATIO)
        hot = [
            set(sorted(range(len(x)), key=lambda e: (-x[e], e))[:count]) for x in (before, after)
        ]
        assert one["hot_count"] == count
        assert one["hot_overlap_ratio"] == pytest.approx(len(hot[0] & hot[1]) / count)
        expected = _spearman(before, after)
        if expected is None:
            assert one["rank_correlation"] is None
        else:
            assert one["rank_correlation"] == pytest.approx(expected)


def _spearman(one: list[int], other: list[int]) -> float | None:
    a, b = ([sum((y < x) + (y == x) / 2 for y in of) for x in of] for of in (one, other))
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    scale = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return both / math.sqrt(scale) if scale else None


def test_notes() -> None:
    def told(frame: pl.DataFrame) -> str:
        return "; ".join(load_notes.load_notes(frame))

    assert told(row_of([5, 6, 7])) == ""
    assert "same number of tokens" in told(row_of([5, 5, 5]))
    assert "padding" in told(row_of([500, 5, 6], phase="prefill"))
    assert "padding" not in told(row_of([500, 5, 6], phase="decode"))
    assert "1 experts of layers 0 received no tokens" in told(row_of([0, 5, 6]))
    assert "experts 0 are not in the source" in told(rows({"expert": 1, "tokens": 4}))
    both = pl.concat([row_of([5, 6]), row_of([5, 8], layer=2)])
    assert "layers 1 have no expert load" in told(both)
    assert "3 to 2 experts" not in told(both)
    assert "2 to 3 experts" in told(pl.concat([row_of([5, 6]), row_of([5, 8, 1], layer=1)]))
    assert "1 of 2 counts" in told(pl.concat([row_of([5, 6]), row_of([5, 8], rank=1)]))
    assert told(rows()) == ""
    later = [row_of([5, 0], layer=9, capture="d", rank=1, step=step) for step in (1, 2)]
    apart = pl.concat([row_of([5, 6, 7]), *later])
    assert told(apart) == "d: 1 experts of layers 9 received no tokens in any step: dead experts"


def test_notes_on_one_step_claim_nothing_of_others() -> None:
    (dead,) = load_notes.load_notes(row_of([0, 5, 6], step=13))
    assert dead == "1 experts of layers 0 received no tokens in step 13"
    (even,) = load_notes.load_notes(row_of([5, 5, 5], step=0))
    assert "in step 0, as with forced" in even
    (whole,) = load_notes.load_notes(row_of([0, 5, 6], step=None))
    assert "in any step" in whole
