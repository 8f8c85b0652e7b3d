"""Outlets select and draw: what is added up or averaged is a metric of the analysis room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DASHBOARD = Path(__file__).parents[2] / "dashboard"
METHODS = {
    "agg", "cum_sum", "group_by", "group_by_dynamic", "mean", "mean_horizontal", "median",
    "product", "quantile", "rolling", "rolling_mean", "rolling_sum", "std", "sum", "sum_horizontal",
    "value_counts", "var",
}  # fmt: skip
FUNCTIONS = {"average", "fmean", "mean", "median", "nanmean", "nansum", "quantiles", "stdev"}
IN_SQL = re.compile(r"\b(sum|avg|mean|median|quantile\w*|stddev\w*)\s*\(", re.IGNORECASE)
# file: (function, why it may).
MAY = {
    "perfetto/slice_rows.sql": ("", "a running count places slices that overlap into tracks"),
}


def aggregations(module: str) -> list[tuple[str, str]]:
    """(function, what) of each aggregation in a module."""
    found: list[tuple[str, str]] = []

    def visit(node: ast.AST, within: str) -> None:
        if isinstance(node, ast.FunctionDef):
            within = node.name
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in METHODS | FUNCTIONS:
            found.append((within, called.attr))
        if isinstance(called, ast.Name) and called.id in FUNCTIONS:
            found.append((within, called.id))
        text = node.value if isinstance(node, ast.Constant) else None
        if (
            isinstance(text, str)
            and re.search(r"\bselect\b.*\bfrom\b", text, re.I | re.S)
            and IN_SQL.search(text)
        ):
            found.append((within, "SQL"))
        for child in ast.iter_child_nodes(node):
            visit(child, within)

    visit(ast.parse(module), "")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "frame.group_by('rank').agg(pl.col('x').sum())",
        "def f(rows): return rows['x'].mean()",
        "from statistics import fmean\nfmean(rows['x'])",
        "con.execute('select sum(x) from steps')",
    ],
)
def test_what_is_looked_for_is_found(text: str) -> None:
    assert aggregations(text)


@pytest.mark.parametrize("text", ["'from the sum of it'", "rows['x'].max()", "sum([1, 2])"])
def test_words_and_axes_are_no_aggregations(text: str) -> None:
    assert not aggregations(text)


def test_the_dashboard_adds_nothing_up() -> None:
    found = {}
    for file in sorted(DASHBOARD.rglob("*.py")):
        name = str(file.relative_to(DASHBOARD))
        allowed = MAY.get(name, ("", ""))[0]
        more = [one for one in aggregations(file.read_text()) if one[0] != allowed or not allowed]
        if more:
            found[name] = more
    for file in sorted(DASHBOARD.rglob("*.sql")):
        name = str(file.relative_to(DASHBOARD))
        if IN_SQL.search(file.read_text()) and name not in MAY:
            found[name] = [("", "SQL")]
    assert not found, "make it a metric in analysis/ and select it here"


@pytest.mark.parametrize("name", MAY)
def test_exceptions_are_still_needed(name: str) -> None:
    text = (DASHBOARD / name).read_text()
    allowed, reason = MAY[name]
    assert reason
    if name.endswith(".sql"):
        assert IN_SQL.search(text)
    else:
        assert [one for one in aggregations(text) if one[0] == allowed]
