"""Memory is told in MiB, traffic and files in MB, whichever way out."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.analysis.catalog import metrics
from npuscope.analysis.wording import is_memory
from npuscope.dashboard.terminal.tables import frame_table
from npuscope.dashboard.units import fitting_unit, readable, size_text

SIZES = [
    (known.name, column.name) for known in metrics() for column in known.columns
    if column.name.endswith("_bytes")
]  # fmt: skip
MEMORY = (
    "memory",
    "predict_memory",
    "search",
    "measured_memory_plan",
)  # tables of device memory, measured and predicted
MOVED = ("size_bytes", "link_bytes", "between_hosts_bytes", "migration_bytes", "read_bytes")


@pytest.mark.parametrize(("metric", "column"), SIZES)
def test_every_size_of_the_catalog_has_one_unit(metric: str, column: str) -> None:
    """A block's size, which is named like a message's, is told by its table."""
    of_memory = metric.startswith(MEMORY) or column == "memory_bytes"
    (shown,) = readable(pl.DataFrame({column: [73_400_320]}), of_memory=of_memory)
    assert shown.unit == ("MiB" if of_memory else "MB")
    if column != "size_bytes":
        assert is_memory(column) is of_memory


@pytest.mark.parametrize("column", MOVED)
def test_what_moves_is_no_memory(column: str) -> None:
    assert not is_memory(column)


def test_evidence_and_figures() -> None:
    frame = pl.DataFrame({"peak_bytes": [73_400_320], "size_bytes": [73_400_320]})
    table = frame_table(frame)
    assert [column.heading for column in table.columns] == ["peak MiB", "size MB"]
    cells = [column.text(table.rows[0]).plain for column in table.columns]
    assert cells == ["70.0", "73.4"]
    assert fitting_unit(73_400_320, "memory") == (2**20, "MiB")
    assert fitting_unit(73_400_320, "bytes") == (1e6, "MB")
    assert [size_text(one) for one in (None, 12, 73_400_320)] == ["-", "12 B", "73.4 MB"]


def test_moments_of_memory_are_times_since_the_first() -> None:
    """The peak of a block's rank is no length of 1,764,246,877 s."""
    began = 1_764_246_877_000_000_000
    frame = pl.DataFrame({
        "since_ns": [began], "peak_ns": [began + 3_000_000], "released_ns": [began + 5_000_000],
        "peak_allocated_ns": [began],
    })  # fmt: skip
    assert [one.values[0] for one in readable(frame)] == [0, 3.0, 5.0, 0]
    assert readable(frame)[1].words == "peak since the first"
