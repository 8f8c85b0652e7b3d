"""How often noise is called a change, how near a change is found, and how long a log takes.

    .venv/bin/python -m bench.analysis.trends_bench [--full] [--runs N]

Generated series with fixed seeds, noise of 2 %: without any change, independent and with
correlation from value to value; and with a shift of 5 % somewhere in the middle. Limits: 2 % of
series without change (1 % nominal), 90 % of shifts within 2 values of where they began (of 60
values and more), a million values in 5 s.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.measure import arguments, commit, report, table
from npuscope.analysis.compare.change_points import change_points

Floats = NDArray[np.float64]
NOISE, CHANGE, NEAR = 0.02, 0.05, 2
CORRELATED = 0.3
COUNTS = (6, 12, 30, 60, 100, 200, 1000, 10_000, 10**6)
MOST_ALARMS, LEAST_FOUND, LIMIT_S = 0.02, 0.9, 5.0
_SETTLING = 50


def noise(dice: np.random.Generator, count: int, rho: float) -> Floats:
    """A level of 1 with noise, of which each value follows the one before."""
    values = dice.standard_normal(count + _SETTLING)
    if rho:
        from scipy.signal import lfilter  # takes 0.7 CPU-s of whoever imports this module

        values = lfilter([np.sqrt(1 - rho * rho)], [1, -rho], values)
    level: Floats = np.exp(NOISE * values[_SETTLING:])
    return level


def alarms(count: int, rho: float, series: int) -> float:
    """The share of series without any change in which one is found."""
    dice = np.random.default_rng(count)
    return sum(bool(change_points(noise(dice, count, rho))) for _ in range(series)) / series


def alter(dice: np.random.Generator, count: int) -> tuple[Floats, int]:
    """A series with a shift, and where it begins."""
    values = noise(dice, count, 0.0)
    at = int(count * dice.uniform(0.3, 0.7))
    values[at:] *= 1 + CHANGE
    return values, at


def detection(count: int, series: int) -> tuple[float, float]:
    """The share of shifts found near where they began, and of these, of intervals that hold it."""
    dice = np.random.default_rng(count)
    near = []
    for _ in range(series):
        values, at = alter(dice, count)
        near += [one for one in change_points(values) if abs(one.at - at) <= NEAR][:1]
    held = [
        one.low is not None and one.high is not None and one.low <= CHANGE * one.before <= one.high
        for one in near
    ]
    return len(near) / series, sum(held) / max(len(held), 1)


def main() -> int:
    """Measures each length, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    series = 1000 if chosen.full else 50
    rows, is_met = [], True
    for count in COUNTS:
        many = max(series * 1000 // max(count, 1000), 1)
        rhos = (0.0, CORRELATED, 0.5) if count >= 20 else (0.0,)
        false = [alarms(count, rho, many) for rho in rhos] if count <= 10_000 else []
        share, covered = detection(count, many)
        values, _ = alter(np.random.default_rng(1), count)
        took = []
        for _ in range(chosen.runs):
            began = time.perf_counter()
            change_points(values)
            took.append(time.perf_counter() - began)
        is_met &= all(one <= MOST_ALARMS for one in false[:2]) and median(took) <= LIMIT_S
        is_met &= share >= LEAST_FOUND or count < 60
        shown = [f"{one:.1%}" for one in false] + ["-"] * (3 - len(false))
        rows.append(
            (f"{count:,}", f"{many:,}", *shown, f"{share:.1%}", f"{covered:.1%}",
             f"{median(took):.3f}")
        )  # fmt: skip
    header = (
        "values", "series", "alarms", f"r {CORRELATED}", "r 0.5", f"shift within {NEAR}",
        "interval holds it", "s",
    )  # fmt: skip
    said = table(header, rows)
    said += (
        f"\n\nlimits: alarms (r 0 and {CORRELATED}) {MOST_ALARMS:.0%}, shifts {LEAST_FOUND:.0%} of"
        f" 60 values and more, {LIMIT_S:g} s: {'met' if is_met else 'NOT met'}"
        f"\n\nseeds: the number of values; commit {commit()}"
    )
    report("Changes over time: alarms, shifts found, speed", said)
    return 0 if is_met or not chosen.full else 1


if __name__ == "__main__":
    sys.exit(main())
