"""Forecasts of expert load: what each method says, and whether its back-test tells the truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.experts.plan.forecast import (
    KEEP,
    METHODS,
    WINDOW,
    backtest,
    expected_tokens,
    forecast,
    proportions,
    scenarios,
)
from npuscope.errors import UsageError

Floats = npt.NDArray[np.float64]


def drift(steps: int, layers: int = 3, experts: int = 8, noise: float = 0.0) -> Floats:
    """Proportions go straight from one distribution to another; 4096 tokens a layer."""
    rng = np.random.default_rng(5)
    first, last = rng.dirichlet(np.full(experts, 3.0), (2, layers))
    at = np.linspace(0, 1, steps)[:, None, None]
    shares = (first * (1 - at) + last * at) * np.exp(rng.normal(0, noise, (steps, layers, experts)))
    return proportions(shares) * 4096.0


def test_last_value_is_the_last_step() -> None:
    loads = drift(9)
    assert forecast(loads, "last") == pytest.approx(loads[-1])


def test_mean_is_over_the_window() -> None:
    loads = drift(12)
    assert forecast(loads, "mean", window=4) == pytest.approx(loads[-4:].mean(axis=0))


def test_ema_is_the_recursion() -> None:
    """Beside the recursion, started without a first value: weights of what is known add up to 1."""
    shares = proportions(drift(30))
    held, weight = np.zeros_like(shares[0]), 0.0
    for one in shares:
        held, weight = KEEP * held + (1 - KEEP) * one, KEEP * weight + (1 - KEEP)
    assert forecast(shares, "ema") == pytest.approx(held / weight)


@pytest.mark.parametrize("lead", [1, 4, 15])
def test_trend_continues_a_straight_line(lead: int) -> None:
    loads = drift(60)
    assert forecast(loads[:40], "trend", lead=lead) == pytest.approx(loads[39 + lead])


def test_trend_is_a_fitted_line() -> None:
    loads = drift(40, noise=0.2)
    shares = proportions(loads)[-WINDOW:].reshape(WINDOW, -1)
    fitted = np.polynomial.Polynomial.fit
    ahead = [fitted(range(WINDOW), one, 1)(WINDOW + 2) for one in shares.T]
    expected = proportions(np.reshape(ahead, loads.shape[1:])) * 4096.0
    assert forecast(loads, "trend", lead=3) == pytest.approx(expected)


def test_trend_stops_at_zero_and_keeps_the_tokens() -> None:
    down = np.linspace(50.0, 1.0, 20)
    loads = np.stack([down, 100.0 - down], axis=1)[:, None]
    found = forecast(loads, "trend", lead=10)
    assert found[0, 0] == 0
    assert found.sum() == pytest.approx(100)


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 5), st.integers(1, 30), st.integers(0, 99)
)
@settings(max_examples=40)
def test_every_forecast_is_a_load(
    steps: int, layers: int, experts: int, lead: int, seed: int
) -> None:
    loads = np.random.default_rng(seed).integers(0, 3, (steps, layers, experts)).astype(float)
    total = expected_tokens(loads)
    for method in METHODS:
        found = forecast(loads, method, lead=lead)
        assert found.shape == (layers, experts)
        assert (found >= 0).all()
        sums = found.sum(axis=1)
        assert ((sums == 0) | np.isclose(sums, total)).all()


def test_backtest_is_the_error_of_each_forecast_made() -> None:
    loads = drift(30, noise=0.3)
    shares, horizon, window = proportions(loads), 6, 10
    tested = backtest(loads, horizon, window=window)
    assert tested.leads[0] == 1 and tested.leads[-1] == horizon
    for method in METHODS:
        missed = [
            np.abs(
                proportions(forecast(loads[:origin], method, lead=lead, window=window))
                - shares[origin + lead - 1]
            ).mean()
            for origin in range(window, 30 - horizon + 1)
            for lead in tested.leads
        ]
        assert tested.errors[method] == pytest.approx(np.mean(missed) * loads.shape[2])


def test_the_best_method_follows_the_job() -> None:
    rng = np.random.default_rng(2)
    steady = rng.multinomial(2000, np.full(8, 1 / 8), (80, 2)).astype(float)
    assert backtest(drift(80), 20).best == "trend"
    tested = backtest(steady, 20)
    assert tested.best == "mean"
    assert tested.errors["mean"] < tested.errors["last"] / 1.2
    assert tested.quantiles("mean")[0] < 0 < tested.quantiles("mean")[2]


def test_a_short_job_is_tested_as_far_as_it_reaches() -> None:
    tested = backtest(drift(10), 50)
    assert (tested.horizon, tested.leads[-1]) == (50, 5)


def test_what_comes_later_changes_no_forecast_made_before() -> None:
    loads = drift(40, noise=0.1)
    changed = loads.copy()
    changed[-1] = changed[-1][:, ::-1]
    before, after = backtest(loads, 1), backtest(changed, 1)
    assert before.residuals["ema"][:-1] == pytest.approx(after.residuals["ema"][:-1])
    assert before.errors["ema"] != after.errors["ema"]


def test_scenarios_are_what_came_after_such_forecasts() -> None:
    """A job without noise is forecast without error: every scenario lies on its line."""
    loads = drift(60)
    tested = backtest(loads, 10)
    cases = scenarios(loads, "trend", tested, count=7)
    steps = np.abs(cases - forecast(loads, "trend", lead=1)).max(axis=(1, 2))
    per_step = np.abs(loads[1] - loads[0]).max()
    assert len(cases) == 7
    assert steps.max() <= 9 * per_step * (1 + 1e-9)
    assert cases.sum(axis=2) == pytest.approx(4096)


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        (np.ones(3), r"\[steps, layers, experts\]"),
        (np.ones((0, 2, 2)), "none empty"),
        (np.full((3, 2, 2), -1.0), "0 or more"),
        (np.full((3, 2, 2), np.nan), "unknown"),
    ],
)
def test_what_is_no_load_is_refused(loads: Floats, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        backtest(loads, 2)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="three steps or more: there are 2"):
        backtest(drift(2), 5)
    with pytest.raises(UsageError, match="horizon"):
        backtest(drift(9), 0)
    with pytest.raises(UsageError, match="last, mean, ema, trend"):
        forecast(drift(9), "oracle")
    with pytest.raises(UsageError, match="lead"):
        forecast(drift(9), "last", lead=0)
