"""What several answers of a command need is computed once for its connection."""

from __future__ import annotations

import subprocess
import sys

import duckdb
import polars as pl

from npuscope.analysis.means import job_steps, mean_kernels
from npuscope.analysis.memo import forget, latest, memoize, remember
from npuscope.analysis.query import capture_facts, steps
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.scope import Scope
from tests.analysis.tables import connect, fill, kernel

ASKED: list[object] = []


@memoize
def _count(con: duckdb.DuckDBPyConnection, of: object = 0, *, by: object = ()) -> pl.DataFrame:
    ASKED.append((of, by))
    return pl.DataFrame({"of": [str(of)]})


def test_a_frame_is_computed_once_for_a_connection_and_its_arguments() -> None:
    ASKED.clear()
    con, other = connect(), connect()
    remember(con)
    remember(other)
    for _ in range(2):
        assert _count(con).item() == "0"
        assert _count(con, 0).item() == "0"  # the same, as told and by default
        assert _count(con, of=0, by=()).item() == "0"
        assert _count(con, 1).item() == "1"
        assert _count(con, True).item() == "True"  # equals 1, and is another
        assert _count(con, 1, by=["a", {"b": [1]}]).item() == "1"
        assert _count(other, 1).item() == "1"
    assert ASKED == [(0, ()), (1, ()), (True, ()), (1, ["a", {"b": [1]}]), (1, ())]
    forget(con)
    _count(con, 1)
    _count(other, 1)
    assert len(ASKED) == 6


@latest
def _large(con: duckdb.DuckDBPyConnection, of: int) -> int:
    ASKED.append(of)
    return of


def test_of_what_is_large_the_last_two_stay() -> None:
    ASKED.clear()
    con = connect()
    remember(con)
    for of in (1, 2, 1, 2, 3, 3, 2, 1):
        assert _large(con, of) == of
    assert ASKED == [1, 2, 3, 1]


def test_only_who_says_so_is_told_what_was_computed_before() -> None:
    ASKED.clear()
    con = connect()
    for _ in range(2):
        _count(con)
    forget(con)
    _count(con)
    assert len(ASKED) == 3


def test_what_is_put_into_a_frame_is_not_in_the_next() -> None:
    con = connect()
    remember(con)
    first = _count(con)
    first.insert_column(1, pl.Series("more", [1]))
    assert _count(con).columns == ["of"]


def test_rows_that_come_later_are_seen_by_who_does_not_remember() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1)])
    assert steps(con)["computing_ns"].to_list() == [10]
    fill(con, "kernels", [kernel(20, 40, 1)])
    assert steps(con)["computing_ns"].to_list() == [50]


def test_answers_are_the_same_and_other_views_are_heeded() -> None:
    con, plain = connect(), connect()
    for one in (con, plain):
        fill(one, "kernels", [kernel(0, 10, 1), kernel(20, 50, 2)])
    remember(con)
    for _ in range(2):
        for here in (Scope(), Scope(step=None, rank=0)):
            assert mean_kernels(con, here).equals(mean_kernels(plain, here))
            assert job_steps(con, here).equals(job_steps(plain, here))
            assert capture_facts(con, here).equals(capture_facts(plain, here))
    ASKED.clear()
    _count(con)
    open_across(None, con)
    _count(con)
    assert len(ASKED) == 2


def test_who_reads_profiles_loads_no_frames() -> None:
    told = "import sys, npuscope.profile; print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
