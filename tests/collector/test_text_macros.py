"""How text becomes values: exactly, and NULL for every way of saying nothing."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def value(con: duckdb.DuckDBPyConnection, expression: str, *args: object) -> object:
    row = con.execute(f"select {expression}", list(args)).fetchone()
    assert row is not None
    return row[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(us=st.decimals(-(10**15), 9 * 10**15, places=6, allow_nan=False))
def test_microseconds_become_ns_exactly(staging: duckdb.DuckDBPyConnection, us: Decimal) -> None:
    expected = int((us * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))
    assert value(staging, "us_ns(?)", f"{us}\t") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1736405443881410.320\t", 1736405443881410320),
        ("0.0005", 0), ("0.0015", 2), ("0.0025", 2), ("-0.0015", -2), ("-0.0005", 0),
        ("828.33653125", 828337), ("7", 7000), ("1.69512E+15", 1695120000000000000),
        ("", None), ("N/A", None), ("inf", None), ("nan", None), ("9" * 20, None), ("1e300", None),
        (None, None),
    ],
)  # fmt: skip
def test_microsecond_text(
    staging: duckdb.DuckDBPyConnection, text: str | None, expected: int | None
) -> None:
    assert value(staging, "us_ns(?)", text) == expected


@pytest.mark.parametrize("text", ["N/A", "NA", "None", "null", "nan", "inf", "", " \t", '""'])
def test_unknown_cells_are_null(staging: duckdb.DuckDBPyConnection, text: str) -> None:
    assert value(staging, "cell(?)", text) is None
    assert value(staging, "number(?)", text) is None
    assert value(staging, "whole(?)", text) is None
    assert value(staging, "scaled(?, 1000)", text) is None


def test_digits_survive_scaling(staging: duckdb.DuckDBPyConnection) -> None:
    assert value(staging, "scaled('4001.281999999992', 1000)") == 4001281.999999992
    assert value(staging, "whole('9007199254740993')") == 9007199254740993
    assert value(staging, "cell(e' \"32,9216\"\t')") == "32,9216"


@pytest.mark.parametrize(
    ("text", "step"), [("13", 13), ("step13", 13), ("step", None), ("", None), (None, None)]
)
def test_step_spellings(
    staging: duckdb.DuckDBPyConnection, text: str | None, step: int | None
) -> None:
    assert value(staging, "step_number(?)", text) == step
