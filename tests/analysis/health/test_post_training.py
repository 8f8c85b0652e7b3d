"""Reinforcement learning: the published figures, a real step, bounds against simulated jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.health.health import health
from npuscope.analysis.health.post_training import (
    Cards,
    cards_of,
    health_bounds,
    health_phases,
    health_scaling,
)
from npuscope.collector.readers.train_log.train_log import read_lines
from npuscope.errors import UsageError
from tests.conftest import REAL_DATA

from .test_health import of


def rl_steps(count: int = 1, **seconds: float) -> pl.DataFrame:
    told: dict[str, Any] = {name: [value] * count for name, value in seconds.items()}
    return of(range(count), **told).steps


def rate_steps(rates: Sequence[float | None], time_ns: int = 1) -> pl.DataFrame:
    told = pl.Series("tokens_per_second", rates, dtype=pl.Float64)
    return told.to_frame().with_columns(step_ns=pl.lit(time_ns, pl.Int64))


def bounds(steps: pl.DataFrame, cards: Cards | None = None) -> dict[Any, dict[str, Any]]:
    rows = health_bounds(steps, cards).to_dicts()
    return {row["stale_count"] or row["case"]: row for row in rows}


def test_published_rates_and_linearity() -> None:
    """14.0k, 25.0k fused and 35.0k stale tokens/s of a supernode; 127k of four."""
    logs = {1: rate_steps([35.0e3]), 4: rate_steps([127.0e3])}
    last = health_scaling(logs).row(1, named=True)
    assert round(last["linear_share"], 3) == 0.907
    assert last["supernode_tokens_per_s"] == 31_750
    # Rates of one supernode: steps whose tokens stay the same.
    for idle_s, faster, rate in ((1 - 1 / 1.785, 1.785, 25.0e3), (0.6, 2.5, 35.0e3)):
        steps = rl_steps(
            elapsed_s=1.0, generation_s=0.8, update_actor_s=0.2, generation_mean_s=0.8 - idle_s,
            generation_max_s=0.8, step_tokens=14.0e3,
        )  # fmt: skip
        fused = bounds(steps)["fused"]
        assert fused["speedup_ratio"] == pytest.approx(faster, abs=1e-6)
        assert fused["tokens_per_second"] == pytest.approx(rate, abs=15)


def test_a_tail_is_the_mean_of_the_steps_that_tell_it() -> None:
    """Steps that do not tell how long cards wait do not count as steps without waiting."""
    steps = rl_steps(
        2, elapsed_s=1.0, generation_s=0.8, generation_mean_s=0.6, generation_max_s=0.8
    )
    half = steps.with_columns(
        generation_tail_ns=pl.when(pl.int_range(pl.len()) == 0).then("generation_tail_ns")
    )
    assert half["generation_tail_ns"].null_count() == 1
    assert health_phases(half).to_dicts() == health_phases(steps).to_dicts()
    assert bounds(half) == bounds(steps)


def test_a_real_step(real_data: Path) -> None:
    steps = health(*read_lines(REAL_DATA / "verl_grpo_qwen3_8b" / "step3_baseline.log")).steps
    assert cards_of(steps) == 8
    phases = {row["phase"]: row for row in health_phases(steps).to_dicts()}
    assert sum(row["dur_ns"] for row in phases.values()) == steps["step_ns"][0]
    assert phases["generation"]["device_share"] == pytest.approx(0.551, abs=5e-4)
    assert phases["generation"]["idle_share"] == pytest.approx(0.153, abs=5e-4)
    assert phases["update_actor"]["idle_ns"] is None
    found = bounds(steps)
    assert found["fused"]["speedup_ratio"] == pytest.approx(
        1268.488 / (1268.488 - 193.711), rel=1e-5
    )
    assert found["now"]["tokens_per_second"] == pytest.approx(4195.9, abs=0.05)
    assert found[1]["tokens_per_second"] == found["fused"]["tokens_per_second"] > 4195.9


def test_cards_that_only_generate_are_idle_while_others_train() -> None:
    steps = rl_steps(
        elapsed_s=10.0, generation_s=6.0, update_actor_s=4.0, generation_mean_s=5.0,
        generation_max_s=6.0,
    )  # fmt: skip
    cards = Cards(8, 6)
    phases = {row["phase"]: row for row in health_phases(steps, cards).to_dicts()}
    assert phases["generation"]["device_share"] == pytest.approx(6 * 6 / 80)
    assert phases["generation"]["idle_ns"] == round((2 * 6 + 6 * 1) / 8 * 1e9)
    assert phases["update_actor"]["idle_ns"] == round(6 * 4 / 8 * 1e9)
    # Work: 6 cards x 5 s and 2 cards x 4 s on 8 cards.
    assert bounds(steps, cards)["fused"]["step_ns"] == round((6 * 5 + 2 * 4) / 8 * 1e9)
    # Generation without its tail, beside training.
    assert [bounds(steps, cards)[ahead]["step_ns"] for ahead in (1, 4)] == [5_000_000_000] * 2
    late = Cards(8, 2)
    long = rl_steps(
        elapsed_s=10.0, generation_s=6.0, update_actor_s=4.0, generation_mean_s=1.0,
        generation_max_s=6.0,
    )  # fmt: skip
    assert [bounds(long, late)[ahead]["step_ns"] for ahead in (1, 4)] == [5 * 10**9, 4 * 10**9]
    with pytest.raises(UsageError, match="8 of 8 cards generate"):
        Cards(8, 8)


@pytest.mark.parametrize("seed", range(3))
def test_no_simulated_job_beats_its_bounds(seed: int) -> None:
    """Workers that generate ahead of an update, in place of waiting for the slowest."""
    chance = np.random.default_rng(seed)
    generation_s = chance.lognormal(0, 0.4, (400, 16))
    update_s = 0.8

    def step_s(ahead: int, *, is_split: bool) -> float:
        free = np.zeros(16)  # when each worker may begin again
        trained = [0.0]
        for number, own in enumerate(generation_s):
            weights = trained[max(0, number - ahead)] if number > ahead else 0.0
            free = np.maximum(free, weights) + own
            begins = max(free.max(), trained[-1])
            trained.append(begins + update_s)
            if not is_split:
                free = free + update_s
        return trained[-1] / len(generation_s)

    for is_split in (False, True):
        now_s = step_s(0, is_split=is_split)
        longest, mean = generation_s.max(1).mean(), generation_s.mean()
        assert now_s == pytest.approx(longest + update_s, rel=0.01)
        steps = rl_steps(
            elapsed_s=longest + update_s, generation_s=longest, update_actor_s=update_s,
            generation_mean_s=mean, generation_max_s=longest,
        )  # fmt: skip
        found = bounds(steps, Cards(32, 16) if is_split else Cards(16))
        for ahead in (1, 2, 4):
            took_s = step_s(ahead, is_split=is_split)
            assert found[ahead]["step_ns"] / 1e9 <= took_s * 1.001
            assert took_s < now_s
        assert found["fused"]["step_ns"] / 1e9 <= step_s(4, is_split=is_split) * 1.001


def test_linearity_has_an_interval_that_covers() -> None:
    chance = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        logs = {
            n: rate_steps((35e3 * n * share * np.exp(0.05 * chance.standard_normal(20))).tolist())
            for n, share in ((1, 1.0), (2, 0.95), (4, 0.907))
        }
        last = health_scaling(logs).row(-1, named=True)
        covered += last["low"] <= 0.907 <= last["high"]
    assert 0.9 <= covered / 200 <= 0.99
    with pytest.raises(UsageError, match="4 supernode"):
        health_scaling({1: rate_steps([1.0]), 4: rate_steps([None])})
    # Steps of as many tokens, one three times as long: its rate counts for all of its time.
    even, uneven = (
        rate_steps([50.0, 50.0], 2),
        pl.concat([rate_steps([100.0], 1), rate_steps([100.0 / 3], 3)]),
    )
    rows = health_scaling({1: even, 2: uneven})
    assert rows["tokens_per_second"].to_list() == pytest.approx([50.0, 50.0])
    now = rl_steps(elapsed_s=1.0, generation_s=0.8, update_actor_s=0.2, step_tokens=100.0)
    slow = rl_steps(elapsed_s=3.0, generation_s=0.8, update_actor_s=0.2, step_tokens=100.0)
    both = pl.concat([now, slow])
    assert bounds(both)["now"]["tokens_per_second"] == pytest.approx(50.0)
    assert health_scaling({1: both})["tokens_per_second"].to_list() == pytest.approx([50.0])


def test_without_the_mean_generation_no_bound_is_told() -> None:
    steps = rl_steps(elapsed_s=10.0, generation_s=6.0, update_actor_s=4.0)
    assert set(bounds(steps)) == {"now"}
    assert health_phases(steps)["idle_ns"].null_count() == 3


def test_without_phases_nothing_is_told() -> None:
    steps = of([1, 2], elapsed_s=[1.0, 1.0]).steps
    assert health_phases(steps).is_empty()
    assert health_bounds(steps).is_empty()
