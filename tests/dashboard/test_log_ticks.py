"""Logarithmic axes say their values in full, however near or far these are."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.dashboard.figures.layout import log_ticks


@pytest.mark.parametrize(
    ("least", "most", "told"),
    [
        (1.0, 60.0, ["1", "2", "5", "10", "20", "50"]),
        (0.97, 1.03, ["0.98", "1", "1.02"]),
        (1.05, 2.95, ["1.5", "2", "2.5"]),
        (10.0, 12.1, ["10", "10.5", "11", "11.5", "12"]),
        (5.0, 5.0, ["5"]),
        (3.0, 41_000.0, ["10", "100", "1,000", "10,000"]),
    ],
)
def test_ticks_in_sight(least: float, most: float, told: list[str]) -> None:
    ticks = log_ticks(pl.Series([most, None, least, float("nan"), 0.0]))
    places = [float(one) for one in ticks["tickvals"]]
    assert places == sorted(places)
    inside = [
        text for at, text in zip(places, ticks["ticktext"], strict=True) if least <= at <= most
    ]
    assert inside == told


def test_of_nothing_there_are_none() -> None:
    assert log_ticks(pl.Series([None, 0], dtype=pl.Int64)) == {}
