"""The tests behind a verdict: exact tails, correction, and chance where nobody is slow."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.ranks.stragglers.straggler_tests import (
    SURE,
    binomial_tail,
    holm,
    peers_value,
    slowest_more_often,
)


@given(st.integers(1, 60), st.data(), st.integers(2, 9))
def test_binomial_tail_is_the_sum_of_its_terms(trials: int, data: st.DataObject, n: int) -> None:
    hits = data.draw(st.integers(0, trials))
    chance = Fraction(1, n)
    exact = sum(
        math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        for k in range(hits, trials + 1)
    )
    assert binomial_tail(trials, hits, 1 / n) == pytest.approx(float(exact), rel=1e-9)


def test_tails_beyond_doubles_are_no_error() -> None:
    assert binomial_tail(3000, 3000, 0.001) == 0.0
    assert binomial_tail(10**6, 10, 0.5) == pytest.approx(1.0)
    assert binomial_tail(5, 5, 1.0) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def trials(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> pl.DataFrame:
    """A frame of trials from a matrix of trials x ranks."""
    count, ranks = values.shape
    return pl.DataFrame(
        {
            "trial": np.repeat(np.arange(count), ranks),
            "rank": np.tile(np.arange(ranks), count),
            "value": values.ravel(),
        }
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_slow_one_is_found_in_groups_of_any_size(ranks: int) -> None:
    dice = np.random.default_rng(1)
    values = dice.lognormal(0, 0.1, (40, ranks))
    values[:, 1] *= 1.3
    found = slowest_more_often(trials(values)).sort("p_value")
    assert found["rank"][0] == 1 and found["p_value"][0] < 1e-4
    assert (found["p_value"][1:] > 0.5).all()


def test_what_is_slow_in_a_part_of_its_work_is_found() -> None:
    dice = np.random.default_rng(2)
    values = dice.lognormal(0, 0.03, (32, 4))
    values[::4, 2] *= 1.5
    found = slowest_more_often(trials(values)).filter(pl.col("p_value") < 0.01)
    assert found["rank"].to_list() == [2]
    # Three of eight take turns at being the slowest.
    values = dice.lognormal(0, 0.03, (32, 8))
    values[:, 4:7] *= 1.2
    found = slowest_more_often(trials(values)).filter(pl.col("p_value") < SURE)
    assert found["rank"].to_list() == [4, 5, 6]


@pytest.mark.parametrize("ranks", [2, 3, 16, pytest.param(8, marks=pytest.mark.slow)])
def test_chance_names_nobody_more_often_than_it_says(ranks: int) -> None:
    dice = np.random.default_rng(ranks)
    named = 0
    for _ in range(60):
        # Heavy tails, and trials of very different spread.
        values = dice.lognormal(0, 0.5, (24, ranks)) * dice.lognormal(0, 2, (24, 1))
        named += int((slowest_more_often(trials(values))["p_value"] <= 0.05).any())
    assert named <= 9  # of 60 at 5 %: more than nine in less than one of 1,000 runs


def test_ties_and_lone_ranks_tell_nothing() -> None:
    same = pl.DataFrame({"trial": [1, 1, 2], "rank": [0, 1, 0], "value": [5.0, 5.0, 9.0]})
    found = slowest_more_often(same)
    assert found.rows() == [(0, 1, 0, 1.0), (1, 1, 0, 1.0)]


def test_peers_of_two_and_three_are_the_others() -> None:
    rows = pl.DataFrame(
        {"group": [1, 1, 2, 2, 2, 3, 3, 3, 3, 4], "x": [1.0, 5, 1, 2, 9, 1, 2, 4, 9, 7]}
    )
    found = rows.with_columns(peers_value("x", "group").alias("peers"))["peers"].to_list()
    assert found[:9] == [5.0, 1.0, 5.5, 5.0, 1.5, 3.0, 3.0, 3.0, 3.0]
    assert math.isnan(found[9])  # nobody to compare with


def test_peers_of_sums_that_come_as_decimals() -> None:
    rows = pl.DataFrame({"group": [1, 2, 2], "x": [7, 5, 2]}).cast({"x": pl.Decimal(38, 0)})
    found = rows.with_columns(peers_value("x", "group").alias("peers"))["peers"].to_list()
    assert math.isnan(found[0]) and found[1:] == [2.0, 5.0]
