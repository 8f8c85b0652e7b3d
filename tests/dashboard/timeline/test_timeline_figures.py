"""Figures of the timeline hold the figures of its frames."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.timeline.bins import Overview
from npuscope.dashboard.figures import timeline as figures

EPOCH_NS = 1_736_405_443_862_052_130
MS = 1_000_000
BORDERS = pl.DataFrame({"step": [7, 8], "start_ns": [EPOCH_NS - MS, EPOCH_NS + 3 * MS],
                        "end_ns": [EPOCH_NS + 3 * MS, EPOCH_NS + 6 * MS]})  # fmt: skip


def shown(ranks: tuple[int, ...]) -> Overview:
    """Bins of 1 ms, four of them; of the last rank one is outside its time, and one unknown."""
    cells = [
        {
            "rank": rank,
            "bin_start_ns": EPOCH_NS + number * MS,
            "active_ns": MS // 2,
            "computing_ns": number * MS // 8,
            "exposed_communication_ns": None if (rank, number) == (ranks[-1], 1) else 100_000,
            "overlapped_ns": 0,
            "free_ns": 0,
        }
        for rank in ranks
        for number in range(4)
        if (rank, number) != (ranks[-1], 0)
    ]
    frame = pl.DataFrame(cells, schema_overrides={"rank": pl.Int32})
    return Overview(frame, ranks, EPOCH_NS, EPOCH_NS + 4 * MS, MS, 4)


def test_cells_are_shares_of_the_recorded_part() -> None:
    window_ns = (EPOCH_NS + MS // 2, EPOCH_NS + 4 * MS)
    figure = figures.heat_figure(shown((2, 3, 5)), "computing", BORDERS, window_ns, str)
    heat, points = figure.data
    assert (heat.y0, heat.dy, heat.dx, heat.x0) == (2, 1, 1.0, 0.0)
    expected = np.array([[0, 0.25, 0.5, 0.75]] * 2 + [[np.nan] * 4] + [[np.nan, 0.25, 0.5, 0.75]])
    np.testing.assert_allclose(heat.z, expected)
    assert (points.x[0], points.x[-1]) == (0, 3.5) and points.marker.opacity == 0
    assert figure.layout.xaxis.title.text == "ms from the start of the window"
    assert [note.text for note in figure.layout.annotations] == ["step 7", "step 8"]
    (line,) = figure.layout.shapes
    assert line.x0 == 2.5
    exposed = figures.heat_figure(
        shown((2, 3, 5)), "exposed communication", BORDERS, window_ns, str
    ).data[0]
    np.testing.assert_allclose(exposed.z[3], [np.nan, np.nan, 0.2, 0.2])


def test_ranks_far_apart_stand_close() -> None:
    window_ns = (EPOCH_NS, EPOCH_NS + 4 * MS)
    figure = figures.heat_figure(shown((2, 400, 9_000)), "computing", BORDERS, window_ns, str)
    assert figure.data[0].z.shape == (3, 4)
    assert list(figure.layout.yaxis.ticktext) == ["2", "400", "9000"]
    assert "rank" not in figure.data[0].hovertemplate


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
