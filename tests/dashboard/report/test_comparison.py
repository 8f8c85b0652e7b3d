"""What a comparison's tables hold."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from npuscope.analysis.compare.difference import compare
from npuscope.dashboard.report.comparison import where_from
from tests.analysis.compare.test_compare import steps_only


def test_a_difference_of_counts_has_no_time_of_its_own() -> None:
    """Its zero and its negative time would read as measured; the sum holds them all the same."""
    found = compare(steps_only([9e6, 9e6]), steps_only([6e6, 6e6]))
    columns = ["part", "name", "change", "a_ns", "b_ns", "delta_ns"]
    added = [
        ("computing", "Add", "duration", 9_000_000, 8_000_000, -1_000_000),
        ("computing", "Add", "count", 0, -2_000_000, -2_000_000),
    ]
    rows = pl.DataFrame(added, columns, orient="row").with_columns(
        a_ns_per_token=pl.lit(None, pl.Float64), b_ns_per_token=pl.lit(None, pl.Float64)
    )
    table = where_from(replace(found, rows=rows))
    shown = [[column.text(row).plain for column in table.columns[-3:]] for row in table.rows]
    assert shown == [
        ["-", "-", "-2.000"],
        ["9.000", "8.000", "-1.000"],
        ["9.000", "6.000", "-3.000"],
    ]
