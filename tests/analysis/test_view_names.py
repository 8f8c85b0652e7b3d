import duckdb
import pytest

from npuscope.analysis.views import view_names
from tests.analysis.tables import connect


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    return connect()


def test_a_query_names_views_however_it_spells_them(con: duckdb.DuckDBPyConnection) -> None:
    query = 'with Step_Summary as (select * from "Step_Lengths") select * from step_summary'
    assert view_names(con, query) == {"step_lengths", "steps"}


def test_a_query_of_recorded_tables_names_no_view(con: duckdb.DuckDBPyConnection) -> None:
    assert view_names(con, "select * from kernels join ranks using (rank)") == set()


@pytest.mark.parametrize(
    "query",
    [
        "show tables",
        "explain select * from step_lengths",
        "select * from (describe step_lengths)",
        "select view_name from duckdb_views()",
        "select * from information_schema.tables",
        "select * from query_table('step_lengths')",
        "select * from step_lenghts",
        "pivot step_lengths on rank",
        "selec",
    ],
)
def test_a_query_whose_tables_are_not_told_takes_all(
    con: duckdb.DuckDBPyConnection, query: str
) -> None:
    assert view_names(con, query) is None
