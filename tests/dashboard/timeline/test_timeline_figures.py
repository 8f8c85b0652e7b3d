"""Figures of the timeline hold the figures of its frames."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.dashboard.figures import timeline as figures

EPOCH_NS = 1_736_405_443_862_052_130
MS = 1_000_000


@pytest.mark.parametrize(
    ("length_ns", "unit"), [(3_600 * 10**9, "s"), (2 * MS, "ms"), (1_999_999, "us"), (5, "us")]
)
def test_units_fit_the_window(length_ns: int, unit: str) -> None:
    assert figures.unit_of(length_ns)[0] == unit


def test_events_that_overlap_lie_under_each_other() -> None:
    row = {"rank": 0, "kind": "compute", "lane": "stream 2", "type": None, "detail": None}
    rows = pl.DataFrame(
        [
            {**row, "name": "before", "start_ns": EPOCH_NS - 10_000, "dur_ns": 30_000},
            {**row, "name": "inside", "start_ns": EPOCH_NS + 10_000, "dur_ns": 5_000},
            {**row, "name": "inside", "start_ns": EPOCH_NS + 10_000, "dur_ns": 5_000},
            {**row, "name": "after", "start_ns": EPOCH_NS + 90_000, "dur_ns": 50_000},
            {**row, "kind": "overlap", "lane": "overlap", "name": "exposed communication",
             "start_ns": EPOCH_NS, "dur_ns": 7_000},
        ],
        schema_overrides={"type": pl.String, "detail": pl.String},
    )  # fmt: skip
    figure = figures.lanes_figure(rows, (EPOCH_NS, EPOCH_NS + 100_000), str)
    kernels, exposed = figure.data
    bars = sorted(zip(kernels.base, kernels.x, kernels.y, strict=True))
    assert bars == [(0, 20, 0), (10, 5, 1), (10, 5, 1), (90, 10, 0)]
    assert (exposed.name, exposed.x, exposed.y) == ("exposed communication", (7,), (2,))
    assert list(figure.layout.yaxis.ticktext) == ["stream 2", "stream 2 (2)", "overlap"]
    assert "before" in kernels.text
