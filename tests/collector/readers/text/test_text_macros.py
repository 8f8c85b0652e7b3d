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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        ("1.\t", 1000), (".0005", 0), (".0015", 2), ("+1.5", 1500), ("2.5e-1", 250), ("..5", None),
        ("0.99949999999", 999), ("0.9995", 1000), ("1.9999", 2000), ("1.2345678901234567", 1235),
        ("9223372036854775.807", 2**63 - 1), ("9223372036854775.8075", None), ("5 .5", None),
        ("5. 5", None), ("0x1f.5", None), ("1.2.3", None), (".", None), ("9" * 20 + ".5", None),
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


UNKNOWN = {"", "n/a", "na", "none", "null", "nan", "inf", "-inf", "not known"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    inner=st.sampled_from([*UNKNOWN, "N/A", "None", "ND", "64,3;2", "0", "a b", 'x"y', "é", "#"])
    | st.text('ab9é!# \t"', max_size=14),
    around=st.tuples(*[st.text(' \t\r\n"', max_size=2)] * 2),
)
def test_cells_lose_blanks_and_quotes_around_them(
    staging: duckdb.DuckDBPyConnection, inner: str, around: tuple[str, str]
) -> None:
    text = around[0] + inner + around[1]
    bare = text.strip(' \t\r\n"')
    expected = None if bare.lower() in UNKNOWN else bare
    assert value(staging, "cell(?)", text) == value(staging, "plain_cell(?)", text) == expected


def test_digits_survive_scaling(staging: duckdb.DuckDBPyConnection) -> None:
    assert value(staging, "scaled('4001.281999999992', 1000)") == 4001281.999999992
    assert value(staging, "whole('9007199254740993')") == 9007199254740993
    assert value(staging, "cell(e' \"32,9216\"\t')") == "32,9216"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("13", 13),
        ("step13", 13),
        ("13.0", 13),
        ("13.5", None),
        ("step", None),
        ("", None),
        (None, None),
    ],
)
def test_step_spellings(
    staging: duckdb.DuckDBPyConnection, text: str | None, step: int | None
) -> None:
    assert value(staging, "step_number(?)", text) == step
    assert value(staging, "step_number(?)", text and f' "{text}\r\n') == step
