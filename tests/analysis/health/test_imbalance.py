"""Unequal sequences: planted costs and lengths, arrangements against every one there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.health.arrangement import greedy
from npuscope.analysis.health.imbalance import (
    SequenceCost,
    Sync,
    fitted_cost,
    sequence_balance,
)
from npuscope.errors import CannotAnswer
from tests.analysis.tables import answer, connect, fill, kernel

RANKS, MICRO_BATCHES = 8, 4


def slowest(costs: np.ndarray, places: np.ndarray, ranks: int) -> float:
    return float(np.bincount(places, costs, ranks).max())


def case(chance: np.random.Generator, most: int) -> tuple[np.ndarray, int]:
    lengths = np.clip(chance.lognormal(7.5, 0.8, int(chance.integers(5, most))), 64, 16384)
    return lengths + lengths**2 / 8192, int(chance.integers(2, 5))


def exact(cost: np.ndarray, ranks_count: int) -> np.ndarray:
    """The best places, of all but those that a better one or symmetry rules out; for a dozen
    sequences on a few ranks, as time grows with their power."""
    order = np.argsort(-cost, kind="stable")
    sizes = cost[order].tolist()
    best = greedy(cost, ranks_count)
    least = float(np.bincount(best, cost, ranks_count).max())
    bound = max(sum(sizes) / ranks_count, max(sizes, default=0.0))
    loads, chosen = [0.0] * ranks_count, [0] * len(sizes)

    def place(at: int) -> None:
        nonlocal least, best
        if at == len(sizes):
            if max(loads) < least:
                least = max(loads)
                best = np.empty(len(sizes), np.int64)
                best[order] = chosen
            return
        seen = set()
        for rank in range(ranks_count):
            if loads[rank] in seen or loads[rank] + sizes[at] >= least or least <= bound:
                continue
            seen.add(loads[rank])
            before = loads[rank]
            loads[rank], chosen[at] = before + sizes[at], rank
            place(at + 1)
            loads[rank] = before

    place(0)
    return best


def test_the_exact_arrangement_is_the_best_of_all() -> None:
    chance = np.random.default_rng(1)
    for _ in range(15):
        costs, ranks = case(chance, 8)
        every = (np.array(places) for places in product(range(ranks), repeat=len(costs)))
        least = min(slowest(costs, places, ranks) for places in every)
        assert slowest(costs, exact(costs, ranks), ranks) == pytest.approx(least)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_greedy_is_within_2_percent_of_exact(count: int) -> None:
    chance = np.random.default_rng(count)
    for _ in range(count):
        costs, ranks = case(chance, 15)
        best = slowest(costs, exact(costs, ranks), ranks)
        assert slowest(costs, greedy(costs, ranks), ranks) <= 1.02 * best


def plant(seed: int, steps: int = 12) -> tuple[pl.DataFrame, pl.DataFrame, SequenceCost]:
    """Lengths, and times of a rank's compute with 1 % of noise."""
    chance = np.random.default_rng(seed)
    truth = SequenceCost(8e6, 900.0, 0.11, 0.0, 0)
    rows, times = [], []
    for step in range(steps):
        for rank in range(RANKS):
            own = np.clip(chance.lognormal(7.0, 1.0, (MICRO_BATCHES, 3)), 32, 16384).astype(int)
            rows += [(step, micro, rank, int(one)) for micro in range(MICRO_BATCHES)
                     for one in own[micro]]  # fmt: skip
            exactly = truth.fixed_ns + truth.of(own.ravel().astype(float)).sum()
            times.append((step, rank, round(exactly * chance.normal(1, 0.01))))
    lengths = pl.DataFrame(rows, schema=["step", "micro_batch", "rank", "length"], orient="row")
    told = pl.DataFrame(times, schema=["step", "rank", "computing_ns"], orient="row")
    return lengths, told, truth


@pytest.mark.parametrize("sync", ["step", "micro-batch"])
@pytest.mark.parametrize("seed", range(3))
def test_planted_lengths(seed: int, sync: Sync) -> None:
    lengths, times, truth = plant(seed)
    cost = fitted_cost(lengths, times)
    assert cost.error_share < 0.02
    found = sequence_balance(lengths, cost, sync)
    own = lengths.with_columns(
        pl.Series("cost", truth.of(lengths["length"].cast(pl.Float64).to_numpy()))
    )
    by = ["step", "micro_batch"] if sync == "micro-batch" else ["step"]
    loads = own.group_by(*by, "rank").agg(pl.col("cost").sum())
    over = loads.group_by(by).agg(ns=pl.col("cost").max() - pl.col("cost").mean())
    really_ns = over.group_by("step").agg(pl.col("ns").sum()).sort("step")["ns"]
    assert found["imbalance_ns"].sum() == pytest.approx(really_ns.sum(), rel=0.05)
    assert found.filter(pl.col("saved_ns") < 0).is_empty()


def test_the_arrangement_saves_what_it_says_it_does() -> None:
    """By the true cost, beside leaving sequences where they are."""
    lengths, times, truth = plant(5, steps=4)
    cost = fitted_cost(lengths, times)
    told = sequence_balance(lengths, cost)
    for step in range(4):
        own = lengths.filter(pl.col("step") == step)
        values = own["length"].cast(pl.Float64).to_numpy()
        now = slowest(truth.of(values), own["rank"].to_numpy(), RANKS)
        then = slowest(truth.of(values), greedy(cost.of(values), RANKS), RANKS)
        assert told["saved_ns"][step] == pytest.approx(now - then, rel=0.05)
        assert then < now


def test_equal_lengths_cost_nothing() -> None:
    lengths = pl.DataFrame({"step": 0, "micro_batch": 0, "rank": range(4), "length": 4096})
    (row,) = sequence_balance(lengths, SequenceCost(0.0, 1.0, 0.0, 0.0, 0)).to_dicts()
    assert (row["imbalance_ns"], row["saved_ns"], row["tokens"]) == (0, 0, 4 * 4096)
    times = pl.DataFrame({"step": 0, "rank": range(4), "computing_ns": 10**9})
    with pytest.raises(CannotAnswer, match="4 steps of ranks"):
        fitted_cost(lengths, times)


def test_attention_of_ranks_beside_each_other() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank, "pp_rank": rank // 2} for rank in range(4)])
    fill(
        con, "kernels",
        [kernel(0, dur, 1, rank=rank, type="FlashAttentionScore", core="MIX_AIC")
         for rank, dur in enumerate((100, 300, 50, 50))]
        + [kernel(500, 999, 1, rank=0, type="MatMulV3", core="AI_CORE")],
    )  # fmt: skip
    from npuscope.analysis.views import open_views

    open_views(con, ("shapes", "rank_places"))
    first, second = answer(con, "attention_balance")
    assert (first["stage"], first["slowest_rank"], first["imbalance_ns"]) == (0, 1, 100)
    assert (second["imbalance_ns"], first["imbalance_share"]) == (0, pytest.approx(1 / 3))
