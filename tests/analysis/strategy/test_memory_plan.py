"""Memory plans are the cheapest there are: by trying all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from npuscope.analysis.strategy.memory_plan import (
    Choice,
    cheapest,
    lost_s,
    memory_plan,
    swap_lost_s,
)
from npuscope.analysis.strategy.predict import predict
from tests.analysis.strategy.jobs import JOB


def _case(seed: int) -> tuple[list[Choice], float]:
    rng = np.random.default_rng(seed)
    choices = []
    for held in range(int(rng.integers(1, 4))):
        layers = int(rng.integers(1, 5))
        choices += [
            Choice(str(held), action, str(held), layers, float(rng.uniform(1e8, 4e9)),
                   float(rng.uniform(1e-3, 1)))
            for action in ("recompute", "swap")
        ]  # fmt: skip
    total = sum(one.saved_bytes * one.layers for one in choices)
    return choices, float(rng.uniform(0, 0.7)) * total


def _case_of_halves(seed: int) -> tuple[list[Choice], float]:
    """Two halves of the same layers, whose swaps share what hides them."""
    rng = np.random.default_rng(seed)
    layers, hidden_s = int(rng.integers(1, 5)), float(rng.uniform(0, 1))
    choices = []
    for half in ("attention", "ffn"):
        saved, moved_s = float(rng.uniform(1e8, 4e9)), float(rng.uniform(0.05, 1))
        choices += [
            Choice(half, "recompute", half, layers, 0.9 * saved, float(rng.uniform(1e-3, 0.3))),
            Choice(half, "swap", half, layers, saved, swap_lost_s(moved_s, hidden_s), "layer",
                   moved_s, hidden_s),
        ]  # fmt: skip
    total = sum(one.saved_bytes * one.layers for one in choices if one.action == "swap")
    return choices, float(rng.uniform(0.1, 1)) * total


def _lost_by_layer(choices: list[Choice], counts: tuple[int, ...]) -> float:
    """Of swaps of two halves, whichever number of layers with both is the cheapest."""
    (one, n), (other, m) = ((c, k) for c, k in zip(choices, counts, strict=True) if c.layer)
    alone = (swap_lost_s(each.moved_s, one.hidden_s) for each in (one, other))
    a_s, b_s = alone
    both_s = max(0.05 * (one.moved_s + other.moved_s), one.moved_s + other.moved_s - one.hidden_s)
    return min(
        both * both_s + (n - both) * a_s + (m - both) * b_s
        for both in range(max(0, n + m - one.layers), min(n, m) + 1)
    ) + sum(c.lost_s * k for c, k in zip(choices, counts, strict=True) if not c.layer)


def _by_trying_all(choices: list[Choice], needed: float) -> float | None:
    best = None
    for counts in product(*(range(one.layers + 1) for one in choices)):
        by_held: dict[str, int] = {}
        for one, count in zip(choices, counts, strict=True):
            by_held[one.held] = by_held.get(one.held, 0) + count
        if any(by_held[one.held] > one.layers for one in choices):
            continue
        if sum(one.saved_bytes * n for one, n in zip(choices, counts, strict=True)) < needed:
            continue
        lost = sum(one.lost_s * n for one, n in zip(choices, counts, strict=True))
        if any(one.layer for one in choices):
            lost = _lost_by_layer(choices, counts)
        best = lost if best is None else min(best, lost)
    return best


def _assert_cheapest(seeds: range, case: Callable[[int], tuple[list[Choice], float]]) -> None:
    for seed in seeds:
        choices, needed = case(seed)
        found, best = cheapest(choices, needed), _by_trying_all(choices, needed)
        if best is None:
            assert found is None
            continue
        assert found is not None
        lost = sum(lost_s(choices, found))
        assert lost == pytest.approx(best, rel=1e-6, abs=1e-12), seed


def test_no_other_plan_is_cheaper() -> None:
    _assert_cheapest(range(20), _case)
    _assert_cheapest(range(40), _case_of_halves)


def test_a_layer_hides_what_it_moves_once() -> None:
    choices = [
        Choice(half, "swap", half, 10, 1e9, swap_lost_s(moved_s, 2.0), "layer", moved_s, 2.0)
        for half, moved_s in (("attention", 1.5), ("ffn", 1.8))
    ]
    assert [one.lost_s for one in choices] == pytest.approx([0.075, 0.09])
    assert lost_s(choices, (4, 6)) == pytest.approx([0.3, 0.54])
    both = lost_s(choices, (9, 10))
    assert sum(both) == pytest.approx(9 * (1.5 + 1.8 - 2.0) + 0.09)


@pytest.mark.slow
def test_no_other_plan_is_cheaper_in_300_cases() -> None:
    _assert_cheapest(range(1000, 1300), _case)
    _assert_cheapest(range(1000, 1300), _case_of_halves)


def test_a_plan_meets_its_budget() -> None:
    job = replace(JOB, sequence_length=16384, micro_batch=2)
    peak = predict(job).peak_bytes.predicted
    rows = memory_plan(job, 0.9 * peak).filter(stage=0).to_dicts()
    assert rows[0]["action"] in ("recompute", "swap")
    assert all(row["peak_bytes"] <= 0.9 * peak for row in rows)
    assert memory_plan(job, 2 * peak)["action"].to_list() == ["none", "none"]
    assert memory_plan(job, 1e6)["action"].to_list() == ["impossible", "impossible"]
