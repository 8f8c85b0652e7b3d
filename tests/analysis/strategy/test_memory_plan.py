"""Memory plans are the cheapest there are: by trying all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from npuscope.analysis.strategy.constants import default_constants
from npuscope.analysis.strategy.job import Job, Recompute
from npuscope.analysis.strategy.memory import kept_activations
from npuscope.analysis.strategy.memory_plan import (
    Choice,
    cheapest,
    choices_of_stage,
    lost_s,
    memory_plan,
    peak_bytes,
    swap_lost_s,
)
from npuscope.analysis.strategy.predict import predict
from tests.analysis.strategy.jobs import DENSE, JOB


def _case(seed: int) -> tuple[list[Choice], float]:
    rng = np.random.default_rng(seed)
    choices = []
    for held in range(int(rng.integers(1, 4))):
        layers = int(rng.integers(1, 5))
        choices += [
            Choice(str(held), action, (str(held),), layers, float(rng.uniform(1e8, 4e9)),
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
            Choice(half, "recompute", (half,), layers, 0.9 * saved, float(rng.uniform(1e-3, 0.3))),
            Choice(half, "swap", (half,), layers, saved, swap_lost_s(moved_s, hidden_s), "layer",
                   moved_s, hidden_s),
        ]  # fmt: skip
    total = sum(one.saved_bytes * one.layers for one in choices if one.action == "swap")
    both = [one for one in choices if one.action == "recompute"]
    choices.append(
        Choice("layer", "recompute", ("attention", "ffn"), layers,
               1.05 * sum(one.saved_bytes for one in both), sum(one.lost_s for one in both))
    )  # fmt: skip
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
            for held in one.names:
                by_held[held] = by_held.get(held, 0) + count
        if any(by_held[held] > one.layers for one in choices for held in one.names):
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
        Choice(half, "swap", (half,), 10, 1e9, swap_lost_s(moved_s, 2.0), "layer", moved_s, 2.0)
        for half, moved_s in (("attention", 1.5), ("ffn", 1.8))
    ]
    assert [one.lost_s for one in choices] == pytest.approx([0.075, 0.09])
    assert lost_s(choices, (4, 6)) == pytest.approx([0.3, 0.54])
    both = lost_s(choices, (9, 10))
    assert sum(both) == pytest.approx(9 * (1.5 + 1.8 - 2.0) + 0.09)


def test_what_stays_and_what_comes_back() -> None:
    """Attention, computed again, keeps what goes in and what the other half begins with; of all
    layers in a row only the last one's comes back beside what the others hold."""
    job = replace(JOB, sequence_length=8192)
    attention, ffn = map(float, kept_activations(job, False))
    choices = choices_of_stage(job, 0, default_constants())
    one = {(c.kind, c.action): c for c in choices}
    entry = 8192 * 1024 * 2
    again = one["dense attention", "recompute"]
    assert again.saved_bytes == pytest.approx(2 * (attention - 2 * entry))  # two in flight
    assert one["dense ffn", "recompute"].saved_bytes == pytest.approx(2 * ffn)
    assert one["dense layer", "recompute"].saved_bytes == pytest.approx(
        2 * (attention + ffn - entry)
    )
    memory = predict(job).stages[0]

    def left(kind: str, layers: int) -> float:
        counts = [layers * (c is one[kind, "recompute"]) for c in choices]
        saved = one[kind, "recompute"].saved_bytes * layers
        return peak_bytes(job, memory, choices, counts) - (float(memory.peak_bytes) - saved)

    assert left("dense ffn", 4) == pytest.approx(ffn)
    assert left("dense ffn", 3) == pytest.approx(0)  # what the fourth held has gone by then
    assert left("dense attention", 4) == pytest.approx(max(0, attention - 2 * entry - ffn))


@pytest.mark.slow
def test_no_other_plan_is_cheaper_in_300_cases() -> None:
    _assert_cheapest(range(1000, 1300), _case)
    _assert_cheapest(range(1000, 1300), _case_of_halves)


def _least_lost_s(job: Job, budget_bytes: float) -> float | None:
    """By trying all: of a stage with one kind of layers."""
    choices = choices_of_stage(job, 0, default_constants())
    memory = predict(job).stages[0]
    best = None
    for counts in product(*(range(one.layers + 1) for one in choices)):
        by_held = [
            sum(n for one, n in zip(choices, counts, strict=True) if held in one.names)
            for held in ("dense attention", "dense ffn")
        ]
        if max(by_held) > choices[0].layers:
            continue
        if peak_bytes(job, memory, choices, counts) <= budget_bytes:
            lost = sum(lost_s(choices, counts))
            best = lost if best is None else min(best, lost)
    return best


def _assert_all_again(job: Job) -> None:
    again = predict(replace(job, recompute=Recompute(full_layers=None)))
    for stage, memory in enumerate(again.stages):
        choices = choices_of_stage(job, stage, default_constants())
        counts = [one.layers if len(one.names) > 1 else 0 for one in choices]
        planned = peak_bytes(job, predict(job).stages[stage], choices, counts)
        assert 0 <= float(memory.peak_bytes) - planned <= 2 * 16384 * 1024 * 2


def test_a_plan_meets_its_budget() -> None:
    job = replace(JOB, sequence_length=16384, micro_batch=2)
    peak = predict(job).peak_bytes.predicted
    rows = memory_plan(job, 0.9 * peak).filter(stage=0).to_dicts()
    assert rows[0]["action"] in ("recompute", "swap")
    assert all(row["peak_bytes"] <= 0.9 * peak for row in rows)
    # All layers recomputed: as `predict` has it, but for the input, which it counts once more.
    again = predict(replace(job, recompute=Recompute(full_layers=None)))
    _assert_all_again(job)
    _assert_all_again(replace(job, model=replace(DENSE, mtp_depth=1)))
    whole, _ = (float(one.peak_bytes) for one in again.stages)
    for budget in (0.9 * peak, 0.7 * peak, whole, 0.97 * whole, 0.94 * whole):
        least = _least_lost_s(job, budget)
        plan = memory_plan(job, budget).filter(stage=0)
        assert ("impossible" in plan["action"]) == (least is None)
        if least is not None:
            assert plan["lost_ns"].sum() == pytest.approx(least * 1e9, rel=1e-6, abs=10)
    assert memory_plan(job, 2 * peak)["action"].to_list() == ["none", "none"]
    assert memory_plan(job, 1e6)["action"].to_list() == ["impossible", "impossible"]
