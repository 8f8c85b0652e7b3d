"""Health of trainings: planted events, phases of a real RL step, rates of spikes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.health.health import Health, health, health_verdict, spike_change
from npuscope.analysis.health.steps import PHASE_COLUMNS
from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.readers.train_log.log_lines import COLUMNS, MORE_COLUMNS
from npuscope.collector.readers.train_log.train_log import read_lines
from tests.conftest import REAL_DATA

EMPTY = dict.fromkeys((*COLUMNS, *MORE_COLUMNS))


def of(steps: Any, facts: LogFacts | None = None, **columns: Any) -> Health:
    """The health of a log of these steps and columns."""
    unknown = [pl.lit(None, pl.Float64).alias(name) for name in EMPTY if name not in columns]
    lines = pl.DataFrame({"step": steps, **columns}).with_columns(
        pl.col("step").cast(pl.Int64), *unknown
    )
    return health(lines.select("step", *EMPTY), facts or LogFacts())


def events(found: Health, kind: str) -> list[dict[str, Any]]:
    return found.events.filter(pl.col("kind") == kind).to_dicts()


def test_phases_of_a_real_step_add_up(real_data: Path) -> None:
    found = health(*read_lines(REAL_DATA / "verl_grpo_qwen3_8b" / "step3_baseline.log"))
    (row,) = found.steps.to_dicts()
    told_ms = {
        "step": 1_268_488, "generation": 698_880, "old_log_prob": 143_322, "reference": 98_136,
        "update_actor": 327_778, "reward": 0, "advantage": 34, "other": 338,
        "generation_tail": 193_711,
    }  # fmt: skip
    for name, ms in told_ms.items():
        assert round(row[f"{name}_ns"] / 1e6) == ms, name
    phases = [row[name] or 0 for name in (*PHASE_COLUMNS, "other_ns")]
    assert sum(phases) == row["step_ns"]
    assert row["tokens_per_second_per_card"] == pytest.approx(524.489, abs=1e-3)
    assert row["tokens_per_second"] == pytest.approx(4195.9, abs=0.05)
    assert row["generation_tail_ns"] / row["step_ns"] == pytest.approx(0.153, abs=5e-4)


def test_phases_beside_each_other_have_no_rest() -> None:
    found = of([1, 2], elapsed_s=[10.0, 10.0], generation_s=[8.0, 8.0], reference_s=[3.0, 1.0])
    assert found.steps["other_ns"].to_list() == [None, 1_000_000_000]


def test_whose_tokens() -> None:
    times = {"elapsed_s": [2.0, 2.0], "tokens_per_s": [100.0, 100.0]}
    cases = [
        (LogFacts(), {}, (100.0, None)),
        (LogFacts(world_size=4), {}, (100.0, 25.0)),
        (LogFacts(), {"per_device": [1.0, 1.0]}, (None, 100.0)),
        (LogFacts(world_size=4), {"per_device": [1.0, 1.0]}, (400.0, 100.0)),
        (LogFacts(sequence_length=8), {"global_batch_size": [64.0, 64.0]}, (256.0, None)),
        (LogFacts(), {"consumed_tokens": [1000.0, 1300.0]}, (150.0, None)),
    ]
    for facts, more, expected in cases:
        last = of([1, 2], facts, **times, **more).steps.row(1, named=True)
        assert (last["tokens_per_second"], last["tokens_per_second_per_card"]) == expected


@pytest.mark.parametrize("seed", range(5))
def test_planted_spikes(seed: int) -> None:
    """Precision and recall, on falling loss and noisy gradients; a plateau is no spike."""
    chance = np.random.default_rng(seed)
    count = 4000
    grad_norm = 1.2 * np.exp(0.05 * chance.standard_normal(count)) * np.linspace(2, 0.5, count)
    planted = np.sort(chance.choice(np.arange(100, count - 100, 7), 30, replace=False))
    for at in planted:
        grad_norm[at : at + chance.integers(1, 6)] *= chance.uniform(1.6, 30)
    found = events(of(range(1, count + 1), grad_norm=grad_norm), "spike")
    hit = {
        int(at) for at in planted for one in found if one["step"] - 6 <= at + 1 <= one["end_step"]
    }
    right = [one for one in found if any(0 <= one["step"] - 1 - at < 6 for at in planted)]
    assert len(hit) / len(planted) > 0.95
    assert len(right) / len(found) > 0.95


def test_the_verdict_counts_what_went_wrong() -> None:
    calm = of(range(100), elapsed_s=[1.0] * 100, loss=[2.0] * 100)
    assert health_verdict(calm) == "Nothing went wrong in 100 steps that the rules know."
    nan = [None, 1.0, None]
    lost = of(range(3), elapsed_s=[1.0] * 3, at_s=[1.0, 2.0, 5.0], not_finite_count=nan)
    assert health_verdict(lost) == "In 3 steps: stretches without a number: 1. Goodput is 60.0 %."


def test_the_first_steps_are_judged_by_their_own_spread() -> None:
    chance = np.random.default_rng(0)
    for around in (1.0, 0.0):  # a gradient norm, a policy's loss
        for _ in range(20):
            norm = around + 0.08 * chance.standard_normal(40)
            assert events(of(range(1, 41), grad_norm=norm), "spike") == []
            norm[19] = around + 3
            (spike,) = events(of(range(1, 41), grad_norm=norm), "spike")
            assert (spike["step"], spike["end_step"]) == (20, 20)
    # Without 16 steps before it none can be one: of so few it is unknown, and no 0.
    for count, told in ((1, None), (16, None), (17, 0)):
        short = of(range(count), grad_norm=[1.0, 9.0, 1.0, *[1.0] * 14][:count])
        assert events(short, "spike") == []
        assert short.summary["grad_norm_spikes_count"] == told
        assert short.summary["grad_norm_spikes_per_1000_steps"] == told
        is_said = "Steps are too few to tell spikes of grad_norm." in health_verdict(short)
        assert is_said is (told is None)
    rate = of(range(40), grad_norm=[1.0] * 39 + [30.0]).summary["grad_norm_spikes_per_1000_steps"]
    assert rate == pytest.approx(1000 / 24)


def test_spikes_of_steps_without_a_number_are_unknown() -> None:
    norm = [1.0] * 60
    norm[40] = 30.0
    found = of([None] * 60, grad_norm=norm, loss=norm)
    for name in ("grad_norm", "loss"):
        assert found.summary[f"{name}_spikes_count"] is None
        assert found.summary[f"{name}_spikes_per_1000_steps"] is None
    assert "no spikes to compare" in str(spike_change(found, of_steps(60), "grad_norm")["text"])
    told = "The log does not number its steps: spikes and changes are unknown."
    assert health_verdict(found) == told


def test_a_new_level_is_no_spike() -> None:
    chance = np.random.default_rng(1)
    loss = np.exp(0.02 * chance.standard_normal(1000))
    loss[500:] *= 2
    assert events(of(range(1000), loss=loss), "spike") == []


@pytest.mark.parametrize("seed", range(3))
def test_a_change_of_level_and_costs_that_come_again(seed: int) -> None:
    chance = np.random.default_rng(seed)
    elapsed = 5 * np.exp(0.02 * chance.standard_normal(1200))
    elapsed[700:] *= 1.05
    elapsed[19::20] += 1.0  # garbage collection
    elapsed[249::250] += 60.0  # checkpoints
    found = of(range(1, 1201), elapsed_s=elapsed)
    (change,) = events(found, "change")
    assert abs(change["step"] - 701) <= 5
    assert change["low"] < change["value"] - change["usual"] < change["high"]
    assert change["value"] / change["usual"] == pytest.approx(1.05, abs=0.01)
    periods = {one["period_steps"]: one for one in events(found, "periodic")}
    assert set(periods) == {20, 250}
    assert periods[20]["cost_ns"] == pytest.approx(1e9, rel=0.1)
    assert periods[250]["cost_ns"] == pytest.approx(60e9, rel=0.05)


@pytest.mark.parametrize(
    ("count", "slow", "starts"),
    [
        (100, slice(60, 100), [61]),
        (200, slice(170, 200), [171]),
        (300, slice(100, 140), [101, 141]),
    ],
)
def test_a_slow_stretch_is_no_cost_every_other_step(
    count: int, slow: slice, starts: list[int]
) -> None:
    """Near the ends of a log the median around a step follows a change late."""
    elapsed = np.exp(0.003 * np.random.default_rng(0).standard_normal(count))
    elapsed[slow] *= 1.1
    found = of(range(1, count + 1), elapsed_s=elapsed)
    assert events(found, "periodic") == []
    assert [one["step"] for one in events(found, "change")] == starts
    # Of a log with a line for every ten steps no line is more regular than another.
    ten = of(range(10, 10 * count + 1, 10), elapsed_s=elapsed)
    assert events(ten, "periodic") == []


@pytest.mark.slow
def test_changes_are_found_where_they_are() -> None:
    """5 % at 2 % noise: within 2 steps but for a few, which noise moves."""
    near = 0
    for seed in range(40):
        elapsed = np.exp(0.02 * np.random.default_rng(seed).standard_normal(600))
        elapsed[300:] *= 1.05
        changes = events(of(range(600), elapsed_s=elapsed), "change")
        near += min(abs(one["step"] - 300) for one in changes) <= 2
    assert near >= 38


@pytest.mark.slow
def test_noise_and_lone_outliers_are_no_period() -> None:
    for seed in range(20):
        chance = np.random.default_rng(seed)
        elapsed = np.exp(0.02 * chance.standard_normal(2000))
        elapsed[chance.choice(2000, 25, replace=False)] *= 1.5
        assert events(of(range(2000), elapsed_s=elapsed), "periodic") == []


def test_a_restart_tells_what_was_lost() -> None:
    steps = [*range(1, 51), *range(41, 81)]
    found = of(steps, elapsed_s=[2.0] * len(steps), at_s=[10 + 2.0 * n for n in range(len(steps))])
    (restart,) = events(found, "restart")
    assert (restart["step"], restart["end_step"], restart["count"]) == (41, 50, 10)
    assert restart["cost_ns"] == 20_000_000_000
    assert found.summary["useful_s"] == 160
    assert found.summary["goodput_ratio"] == pytest.approx(160 / 180)
    pairs = [step for step in steps for _ in range(2)]  # two ranks log
    assert events(of(pairs, elapsed_s=[2.0] * len(pairs)), "restart") == [restart]
    twice = [*range(1, 51), *range(41, 48), *range(44, 60)]
    both = events(of(twice, elapsed_s=[2.0] * len(twice)), "restart")
    assert [(one["step"], one["count"]) for one in both] == [(41, 10), (44, 4)]
    # Lines of several ranks, one of them a line behind.
    assert events(of([1, 1, 2, 2, 3, 2, 3, 4, 4]), "restart") == []
    assert events(of([1, 2, 1, 3, 2, 4, 3]), "restart") == []  # that line is the last
    (begun,) = events(of([1, 2, 3, 4, 2]), "restart")
    assert (begun["step"], begun["end_step"], begun["count"]) == (2, 4, 3)


def test_a_line_every_ten_steps_is_ten_steps() -> None:
    found = of(range(10, 110, 10), elapsed_s=[3.0] * 10)
    assert found.summary["useful_s"] == 300


def test_a_line_every_ten_steps_tells_the_same_training() -> None:
    """2,000 steps with checkpoints, a spike, a slower half and a restart, logged both ways."""
    steps = np.array([*range(1, 1101), *range(1051, 2001)])
    elapsed = np.where(steps > 1500, 1.2, 1.0) + 0.001 * np.random.default_rng(0).random(len(steps))
    elapsed[steps % 200 == 0] += 20.0
    norm, nan = np.ones(len(steps)), np.zeros(len(steps))
    norm[600:610], nan[[700, 703]] = 9.0, 1.0
    each = of(steps, elapsed_s=elapsed, grad_norm=norm, nan_count=nan)
    ten = of(
        steps[9::10], elapsed_s=elapsed.reshape(-1, 10).mean(1), grad_norm=norm[9::10],
        nan_count=nan.reshape(-1, 10).sum(1),
    )  # fmt: skip
    # A rate is of the steps that could be a spike: after 16 steps, or 16 lines of ten each.
    rate = "grad_norm_spikes_per_1000_steps"
    assert [1000 / (each.summary[rate] or 0), 1000 / (ten.summary[rate] or 0)] == [1984, 1840]
    assert {**ten.summary, rate: each.summary[rate]} == pytest.approx(each.summary, nan_ok=True)
    assert (each.summary["steps_count"], each.summary["not_finite_count"]) == (2000, 2)
    told = {
        "spike": {"count": 10, "value": 9.0}, "restart": {"count": 50, "cost_ns": 50e9},
        "periodic": {"count": 10, "period_steps": 200, "cost_ns": 20e9, "value": 21e9},
        "change": {"value": 1.2e9},
    }  # fmt: skip
    for kind, figures in told.items():
        for log in (each, ten):
            (event,) = events(log, kind)
            assert {name: event[name] for name in figures} == pytest.approx(figures, rel=0.03), kind
    # Without lines that hold a checkpoint: three steps, and three times ten.
    assert [events(log, "change")[0]["count"] for log in (each, ten)] == [497, 470]
    assert sum(one["count"] for one in events(ten, "not_finite")) == 2


def test_what_is_no_number() -> None:
    found = of(
        range(1, 7), not_finite_count=[None, 1.0, 1.0, None, None, None],
        skipped_count=[0.0, 1.0, 0.0, 0.0, 2.0, 0.0],
    )  # fmt: skip
    assert [(one["step"], one["end_step"]) for one in events(found, "not_finite")] == [(2, 3)]
    assert [(one["step"], one["count"]) for one in events(found, "skipped")] == [(2, 1), (5, 2)]


def test_a_step_without_any_number_is_one_step() -> None:
    found = of(range(1, 5), not_finite_count=[None, 2.0, 2.0, None], nan_count=[0.0, 1.0, 1.0, 0.0])
    (event,) = events(found, "not_finite")
    assert (event["step"], event["end_step"], event["count"]) == (2, 3, 2)
    assert found.summary["not_finite_count"] == event["count"]


@cache
def of_steps(count: int) -> Health:
    return of(range(count), grad_norm=[1.0] * count)


def with_spikes(count: int, steps: int) -> Health:
    one = of_steps(steps)
    return replace(one, summary={**one.summary, "grad_norm_spikes_count": count})


def test_fewer_spikes_is_said_only_where_it_is_so() -> None:
    fewer = spike_change(with_spikes(49, 10_000), with_spikes(100, 10_000), "grad_norm")
    assert fewer["change"] == pytest.approx(-0.51)
    assert str(fewer["text"]).startswith("grad_norm: 51.0 % fewer spikes per step")
    few = spike_change(with_spikes(5, 1000), with_spikes(10, 1000), "grad_norm")
    assert "not enough to tell" in str(few["text"])
    more = spike_change(with_spikes(60, 10_000), with_spikes(20, 10_000), "grad_norm")
    assert "200.0 % more" in str(more["text"])
    assert "at least" in str(
        spike_change(with_spikes(9, 99), with_spikes(0, 99), "grad_norm")["text"]
    )
    assert "no spikes" in str(spike_change(with_spikes(0, 9), with_spikes(0, 9), "loss")["text"])


def test_the_interval_of_the_change_covers() -> None:
    chance = np.random.default_rng(3)
    covered = 0
    for ours, theirs in zip(chance.poisson(30, 300), chance.poisson(60, 300), strict=True):
        found = spike_change(
            with_spikes(int(ours), 500), with_spikes(int(theirs), 500), "grad_norm"
        )
        low, high = found["low"], found["high"]
        assert isinstance(low, float) and isinstance(high, float)
        covered += low <= -0.5 <= high
    assert 0.92 <= covered / 300 <= 1


def test_what_is_unknown_is_not_made_up() -> None:
    """Steps without a line cost nobody knows what; without a loss none was no number."""
    found = of([10, 20, 30, 90], elapsed_s=[3.0] * 4, at_s=[0.0, 30.0, 60.0, 240.0])
    assert found.summary["useful_s"] == 120
    assert found.summary["goodput_ratio"] == pytest.approx(120 / 270)
    assert found.steps["not_finite_count"].to_list() == [None] * 4
    counts = ("not_finite", "skipped", "loss_spikes", "grad_norm_spikes")
    assert {found.summary[f"{name}_count"] for name in counts} == {None}
    lossy = of([1, 2, 3], loss=[3.0, 2.0, None], skipped_count=[None, 0.0, 0.0]).summary
    # Two losses: whether one is a spike nobody can tell.
    assert [lossy[f"{name}_count"] for name in counts] == [0, 0, None, None]
    partly = of([1, 2, 3], elapsed_s=[3.0, None, 3.0], at_s=[0.0, 3.0, 6.0])
    assert partly.summary["goodput_ratio"] is None
    # Ten steps of 3 s, and times of the last six, between which an hour passed: of the first four
    # nobody knows how long they took with what was between them.
    late = of(range(10), elapsed_s=[3.0] * 10, at_s=[None] * 4 + [0.0, 3.0, 6.0, 3606, 3609, 3612])
    assert (late.summary["wall_s"], late.summary["goodput_ratio"]) == (None, None)
    # An hour forth or back between two steps is the clock's; half an hour forth has passed, and
    # half an hour back nobody knows what has.
    for set_s, wall_s in ((0, 400), (3600, 400), (-3600, 400), (1800, 2200), (-1800, None)):
        at_s = [20.0 * step + (set_s if step > 12 else 0) for step in range(20)]
        shifted = of(range(20), elapsed_s=[20.0] * 20, at_s=at_s)
        assert shifted.summary["wall_s"] == wall_s
