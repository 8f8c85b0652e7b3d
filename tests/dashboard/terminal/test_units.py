"""Columns in units that people read."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.dashboard.units import Readable, readable


def display(name: str, *values: object) -> Readable:
    return readable(pl.DataFrame({name: list(values)}))[0]


@pytest.mark.parametrize(
    ("column", "values", "label", "first"),
    [
        ("computing_ns", (812, 3), "computing (ns)", 812),
        ("computing_ns", (149_600, 20), "computing (us)", 149.6),
        ("computing_ns", (17_764_724, 1), "computing (ms)", 17.764724),
        ("stage_ns", (5_800_000_000, 1), "stage (ms)", 5800.0),
        ("stage_ns", (90_000_000_000, 1), "stage (s)", 90.0),
        ("size_bytes", (73_400_320,), "size (MB)", 73.40032),
        ("peak_allocated_bytes", (73_400_320,), "peak allocated (MiB)", 70.0),
        ("growth_per_step_bytes", (73_400_320,), "growth per step (MiB)", 70.0),
        ("size_bytes", (99,), "size (B)", 99),
        ("achieved_flops_per_s", (2.5e14,), "achieved (TFLOP/s)", 250.0),
        ("matmul_flops", (7.2e12,), "matmul (GFLOP)", 7200.0),
        ("masking_ratio", (0.246, None), "masking (%)", 24.6),
        ("share", (0.5,), "share (%)", 50.0),
        ("mfu_points", (0.195, -0.01), "mfu points ()", 19.5),
        ("rank_count", (8,), "rank count ()", 8),
    ],
)
def test_a_unit_suits_the_largest_value(
    column: str, values: tuple[float, ...], label: str, first: float
) -> None:
    one = display(column, *values)
    assert f"{one.words} ({one.unit})" == label
    assert one.values[0] == pytest.approx(first, rel=1e-12)


def test_moments_count_from_the_first_in_the_table() -> None:
    start = 1_764_246_877_000_000_000
    one, other = readable(
        pl.DataFrame({"start_ns": [start, start + 2_000_000], "end_ns": [None, start + 3_500_000]})
    )
    assert (one.words, one.unit) == ("start since the first", "ms")
    assert one.values.to_list() == [0.0, 2.0]
    assert other.values.to_list() == [None, 3.5]


def test_what_is_unknown_stays_unknown_and_names_are_no_quantities() -> None:
    assert display("free_ns", None, None).values.to_list() == [None, None]
    assert not display("rank", 12_345).is_grouped
    assert display("op_count", 12_345).is_grouped
    assert display("ranks", [0, 1]).values.to_list() == ["0, 1"]
    assert display("is_compute", True).values.to_list() == [True]
