"""Changes of a series: found where they were planted, seldom where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from bench.analysis.trends_bench import (
    CHANGE,
    CORRELATED,
    COUNTS,
    NEAR,
    NOISE,
    Floats,
    alarms,
    alter,
    detection,
    noise,
)
from npuscope.analysis.compare.change_points import ChangePoint, change_points


@pytest.mark.slow
def test_noise_is_seldom_a_change() -> None:
    """1 % of series nominal, and as much again for the chance of the draw."""
    for count in (6, 12, 100):
        assert alarms(count, 0.0, 400) <= 0.02, count
    for count in (30, 200):
        assert alarms(count, CORRELATED, 400) <= 0.02, count


@pytest.mark.slow
def test_a_shift_is_found_where_it_began() -> None:
    for count in (60, 200, 2000):
        share, covered = detection(count, 60)
        assert share >= 0.9, count
        assert 0.9 <= covered <= 1.0, count


def test_a_shift_of_five_percent_among_thousands() -> None:
    dice = np.random.default_rng(5)
    values, at = alter(dice, 3000)
    values[::100] *= 3.0  # a checkpoint now and then is no change
    (one,) = change_points(values)
    assert abs(one.at - at) <= NEAR
    assert (one.count_before, one.count_after) == (one.at, 3000 - one.at)
    share, low, high = (one.share(end) for end in (one.delta, one.low, one.high))
    assert share is not None and low is not None and high is not None
    assert low < CHANGE < high and high - low < 0.01 and low < share < high


def test_there_and_back_and_again() -> None:
    dice = np.random.default_rng(8)
    values = noise(dice, 900, 0.0)
    values[300:330] *= 1.2
    values[600:] *= 0.9
    changes = change_points(1e9 * values)
    assert [one.at for one in changes] == [300, 330, 600]
    assert [round(one.delta / one.before, 2) for one in changes] == [0.2, -0.17, -0.1]
    assert changes[1].before == changes[0].after


def test_few_captures_with_little_noise() -> None:
    values = np.array([100.0, 100.2, 99.9, 100.1, 110.0, 110.3, 109.8, 110.1])
    (one,) = change_points(values)
    assert one.at == 4
    before, after = (np.exp(np.log(half).mean()) for half in (values[:4], values[4:]))
    assert one.before == pytest.approx(before) and one.after == pytest.approx(after)
    # Student's t of 6 degrees, of the pooled variance of logarithms.
    logs = np.log(values)
    spread = np.sqrt((logs[:4].var(ddof=1) + logs[4:].var(ddof=1)) / 2 * (1 / 4 + 1 / 4))
    half = 2.446912 * spread
    change = np.log(after / before)
    assert one.low == pytest.approx(before * np.expm1(change - half))
    assert one.high == pytest.approx(before * np.expm1(change + half))


@pytest.mark.parametrize(
    "values",
    [[], [1.0, 2.0, 1.0], [5.0] * 50, [1.0] * 12 + [9.0] + [1.0] * 12],
    ids=["none", "too few", "all alike", "a spike"],
)
def test_no_change(values: list[float]) -> None:
    assert change_points(np.array(values)) == []


def test_without_noise_the_size_is_exact_and_zero_is_a_value() -> None:
    assert change_points(np.array([0.0] * 30 + [5.0] * 30)) == [
        ChangePoint(30, 0.0, 5.0, None, None, 30, 30)
    ]
    (one,) = change_points(np.array([2.0] * 6 + [3.0] * 6))
    assert one.at == 6 and one.delta == pytest.approx(1.0)
    assert one.share(one.delta) == pytest.approx(0.5)
    assert ChangePoint(1, 0.0, 5.0, None, None, 1, 1).share(5.0) is None


def test_few_values_that_repeat() -> None:
    """Levels of one value each have no noise to tell; two that happen to be alike are rounded."""
    (one,) = change_points(np.array([10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 13.0, 13.0]))
    assert one.at == 4 and one.low is not None and one.high is not None
    for values in ([512.0, 512.0, 512.0, 513.0], [512.0, 512.0, 513.0, 513.0]):
        assert change_points(np.array(values)) == []
    dice = np.random.default_rng(3)
    rounded = [change_points(dice.normal(500.0, 1.0, 4).round()) for _ in range(300)]
    assert sum(map(bool, rounded)) <= 3 + 6


@pytest.mark.slow
def test_twenty_values_tell_what_twelve_do() -> None:
    """A shift is no correlation: it touches two of the differences of values two apart."""
    dice = np.random.default_rng(20)
    seen = 0
    for _ in range(200):
        values = noise(dice, 20, 0.0)
        values[dice.integers(5, 16) :] *= 1.1
        seen += bool(change_points(values))
    assert seen >= 0.65 * 200


def test_what_a_bench_measures() -> None:
    dice = np.random.default_rng(1)
    long: Floats = noise(dice, 50_000, CORRELATED)
    logs = np.log(long)
    assert logs.std() == pytest.approx(NOISE, rel=0.05)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(CORRELATED, abs=0.02)
    assert 10**6 in COUNTS
