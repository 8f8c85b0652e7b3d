"""Memory plans are the cheapest there are: by trying all."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from npuscope.analysis.strategy.memory_plan import Choice, cheapest, memory_plan
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
        best = lost if best is None else min(best, lost)
    return best


def _assert_cheapest(seeds: range) -> None:
    for seed in seeds:
        choices, needed = _case(seed)
        found, best = cheapest(choices, needed), _by_trying_all(choices, needed)
        if best is None:
            assert found is None
            continue
        assert found is not None
        lost = sum(one.lost_s * count for one, count in zip(choices, found, strict=True))
        assert lost == pytest.approx(best, rel=1e-6, abs=1e-12), seed


def test_no_other_plan_is_cheaper() -> None:
    _assert_cheapest(range(20))


@pytest.mark.slow
def test_no_other_plan_is_cheaper_in_300_cases() -> None:
    _assert_cheapest(range(1000, 1300))


def test_a_plan_meets_its_budget() -> None:
    job = replace(JOB, sequence_length=16384, micro_batch=2)
    peak = predict(job).peak_bytes.predicted
    rows = memory_plan(job, 0.9 * peak).filter(stage=0).to_dicts()
    assert rows[0]["action"] in ("recompute", "swap")
    assert all(row["peak_bytes"] <= 0.9 * peak for row in rows)
    assert memory_plan(job, 2 * peak)["action"].to_list() == ["none", "none"]
    assert memory_plan(job, 1e6)["action"].to_list() == ["impossible", "impossible"]
