"""A bound on the number of series: whole metrics go, those of least important detail first.

A metric is shown whole or not at all: a sum over half of its series would be a wrong number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .gauges import BY_NAME
from .snapshot import Sample

# Measured: rendering takes 6 us a series, and a scrape should take less than half a second.
MAX_SERIES = 30_000
Samples = Mapping[str, tuple[Sample, ...]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is shown, and how many series of which metrics are not."""

    samples: Samples
    dropped: Mapping[str, int]


def within(samples: Samples, max_series: int) -> Kept:
    """At most `max_series` series; of equal detail the largest metric goes first."""
    left = sum(map(len, samples.values()))
    dropped: dict[str, int] = {}
    order = sorted(
        (name for name in samples if samples[name]),
        key=lambda name: (-BY_NAME[name].detail, -len(samples[name]), name),
    )
    for name in order:
        if left <= max_series:
            break
        dropped[name] = len(samples[name])
        left -= dropped[name]
    return Kept({name: rows for name, rows in samples.items() if name not in dropped}, dropped)
