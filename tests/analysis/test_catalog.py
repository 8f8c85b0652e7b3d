"""The catalog, its SQL files and its documentation agree."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import get_args

import duckdb
import pytest

from npuscope.analysis.catalog import (
    Metric,
    drawn_in,
    metric,
    metrics,
    metrics_markdown,
    shown_in,
    write_docs,
)
from npuscope.analysis.ranks.derive import derive
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.views import open_views
from npuscope.collector import schema
from npuscope.dashboard.report.blocks import ChartName
from tests.analysis.tables import answer, connect, fill

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {file.name: file for file in sorted((REPOSITORY / "analysis" / "sql").glob("*/*.sql"))}
NAMES = [known.name for known in metrics()]
# In the unit of another column, or as the trainer has it.
UNITLESS = {
    "printed", "ours", "loss", "grad_norm", "a", "b", "before", "after", "delta", "low", "high",
    "learning_rate", "loss_scale", "value", "usual", "head_loss",
}  # fmt: skip
VIEWS = [known for known in metrics() if known.view]
TABLES = {one for known in metrics() for one in known.tables}
every_view = pytest.mark.parametrize("known", VIEWS, ids=lambda known: known.name)


@pytest.fixture(scope="module")
def empty() -> duckdb.DuckDBPyConnection:
    """Every table, empty, and the metrics as views; only to be read."""
    con = connect()
    open_views(con)
    return con


@pytest.fixture(scope="module")
def empty_across() -> duckdb.DuckDBPyConnection:
    """The same, with what all ranks tell together."""
    con = connect()
    open_views(con)
    open_across(None, con)
    return con


@every_view
def test_columns_are_as_documented(known: Metric, empty: duckdb.DuckDBPyConnection) -> None:
    con, asked = empty, f'from "{known.view}"'
    if known.over:
        con = connect()
        asked = next(table.query for table in derive(con) if table.name == known.view)
    described = con.execute(f"describe {asked}").fetchall()
    found = [(name, kind.lower()) for name, kind, *_ in described]
    assert found == [(column.name, column.type) for column in known.columns]


@every_view
def test_an_empty_capture_has_no_rows(
    known: Metric, empty_across: duckdb.DuckDBPyConnection
) -> None:
    assert empty_across.execute(f'from "{known.view}"').fetchall() == []


def test_everything_is_said() -> None:
    for known in metrics():
        assert known.question.endswith("?"), known.name
        assert known.rules and known.meaning and known.title, known.name
        assert all(column.meaning for column in known.columns), known.name
        assert len({one.name for one in known.columns}) == len(known.columns) > 0, known.name


@every_view
def test_inputs_are_what_the_query_reads(known: Metric) -> None:
    names = {other.view for other in VIEWS} | schema.tables().keys()
    assert set(known.inputs) <= names
    if known.over:
        return  # its file is the last of several steps
    body = known.sql.partition("\nwith\n")[2]
    assert {name for name in names if _reads(body, name)} == set(known.inputs)


def test_functions_are_there() -> None:
    named = [known.function for known in metrics() if known.function]
    assert named
    for function in named:
        module, _, name = f"npuscope.analysis.{function}".rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), function
        assert name[0] != "_", function


def test_who_shows_a_metric() -> None:
    shown = shown_in("communication_waits")
    assert shown is not None and shown.name == "mean_waits"
    assert shown_in("nowhere") is None
    for every in (
        [one for known in metrics() for one in known.commands],
        [one for known in metrics() for one in known.tables],
        [one.name for known in metrics() for one in known.gauges],
    ):
        assert len(set(every)) == len(every) > 0


def test_every_figure_and_table_of_pages_and_reports_has_its_metric() -> None:
    """Also those that no capture of these tests fills; and no metric names what nobody draws."""
    found: dict[str, set[str]] = {"figure": set(get_args(ChartName)), "table": set()}
    for path in (REPOSITORY / "dashboard" / "app" / "pages").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            given = {one.arg: one.value for one in node.keywords}
            name = given.get("name", given.get("key"))
            kind = {"click": "figure", "tile": "figure", "sources": "figure"}.get(
                node.func.attr, node.func.attr
            )
            if ast.unparse(node.func.value) != "page" or kind not in found:
                continue
            assert isinstance(name, (ast.Constant, ast.JoinedStr)), ast.unparse(node)
            if isinstance(name, ast.Constant):
                found[kind].add(str(name.value))
            else:  # communication_by_{by}
                begins = ast.unparse(name.values[0])[1:-1]
                found[kind] |= {one for one in TABLES if one.startswith(begins)}
    assert found["figure"] == {one for known in metrics() for one in known.figures}
    assert all(drawn_in(one) for one in found["figure"]) and not drawn_in("nowhere")
    assert found["table"] == TABLES


def _reads(sql: str, table: str) -> bool:
    return re.search(rf"\b(from|join)\s+{table}\b", sql) is not None


def test_measured_columns_end_in_their_unit() -> None:
    for known in metrics():
        for column in known.columns:
            if column.type == "double" or column.name.endswith(("_ns", "_bytes", "count")):
                place = f"{known.name}.{column.name}"
                assert column.unit or column.name in UNITLESS, place


def test_names_are_given_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({known.view for known in VIEWS}) == len(VIEWS)
    assert metric("steps").view == "step_summary"
    assert not {known.view for known in VIEWS} & schema.tables().keys()


def test_sql_is_lower_case_and_one_query() -> None:
    assert FILES
    for name, file in FILES.items():
        text = file.read_text(encoding="utf-8")
        assert text.startswith("-- "), name
        code = re.sub(r"--[^\n]*|'[^']*'", "", text)
        assert code == code.lower(), name
        assert ";" not in code, name


def test_the_page_is_current() -> None:
    committed = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert committed == metrics_markdown(), "run npuscope.analysis.catalog.write_docs"


def test_the_page_names_every_column(tmp_path: Path) -> None:
    write_docs(tmp_path / "metrics.md")
    page = (tmp_path / "metrics.md").read_text(encoding="utf-8")
    for known in metrics():
        assert f"## {known.name}\n" in page
        assert all(f"| `{column.name}` |" in page for column in known.columns)


@pytest.mark.parametrize("known", [m for m in metrics() if m.rows_from], ids=lambda m: m.name)
def test_a_summary_has_rows_only_from_the_tables_it_names(known: Metric) -> None:
    con = connect()
    for table in schema.tables().keys() - set(known.rows_from):
        columns = {column.name for column in schema.tables()[table].columns}
        row: dict[str, object] = {"step": 1} if "step" in columns else {}
        if {"start_ns", "dur_ns"} <= columns:
            row |= {"start_ns": 5, "dur_ns": 10}
        fill(con, table, [{**row, **({"is_compute": True} if table == "kernels" else {})}])
    assert known.rows_from
    assert answer(con, known.name) == []
