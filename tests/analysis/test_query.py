"""Filters, order and columns of the Python answers."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import polars as pl
import pytest

from npuscope.analysis import query
from npuscope.analysis.catalog import metric
from npuscope.analysis.scope import ALL, RANK, Scope
from npuscope.analysis.views import select
from npuscope.errors import UsageError
from tests.analysis.tables import connect, fill, kernel, op

HOSTILE = "x' or 1=1 --"


def con() -> Any:
    made = connect()
    for run in (HOSTILE, "b"):
        for rank in (10, 9):
            more = {"run": run, "rank": rank}
            fill(made, "kernels", [kernel(0, 10, 2, type="A", core="AI_CORE", **more)])
            fill(made, "kernels", [kernel(20, 5, 1, type="B", **more)])
            fill(made, "kernels", [kernel(30, 5, 1, type="A", **more)])
            fill(made, "comm_ops", [op(20, 10, 2, **more)])
    return made


def test_filters_are_values_never_sql() -> None:
    made = con()
    assert query.steps(made, Scope(HOSTILE))["run"].unique().to_list() == [HOSTILE]
    assert query.steps(made, Scope("' or 1=1 --")).is_empty()
    assert query.kernels(made, Scope(HOSTILE, rank=9, step=1))["total_ns"].to_list() == [5, 5]
    assert query.comm(made, Scope("b", "c", 9, 2)).height == 1
    assert select(made, "outside_steps", Scope("b", rank=9), of=RANK).is_empty()
    assert query.capture_facts(made, Scope("b"))["rank_count"].to_list() == [2]


def test_rows_and_columns_have_a_fixed_order() -> None:
    made = con()
    steps = query.steps(made)
    of_steps = [column.name for column in metric("steps").columns]
    assert steps.columns == [*of_steps, "is_warm_up"]
    places = [(row["run"], row["rank"], row["step"]) for row in steps.to_dicts()]
    assert places == [(r, n, s) for r in ("b", HOSTILE) for n in (9, 10) for s in (1, 2)]
    for name, frame in {
        "outside_steps": select(made, "outside_steps", ALL, of=RANK),
        "spread": query.spread(made),
        "capture_facts": query.capture_facts(made),
    }.items():
        assert frame.columns == [column.name for column in metric(name).columns]


@pytest.mark.parametrize("by", ["type", "name", "shape"])
def test_the_key_is_called_by_its_name(by: query.KernelKey) -> None:
    assert (
        query.kernels(con(), by=by).columns
        == (
            f"run capture rank step {by} core count total_ns mean_ns p50_ns p99_ns max_ns"
            " computing_share_ratio"
        ).split()
    )


def test_core_as_a_key_stands_once() -> None:
    assert (
        query.kernels(con(), by="core").columns
        == (
            "run capture rank step core count total_ns mean_ns p50_ns p99_ns max_ns"
            " computing_share_ratio"
        ).split()
    )


def test_top_counts_per_rank_and_step() -> None:
    top = query.kernels(con(), Scope("b"), by="type", top=1)
    assert top.select("rank", "step", "type").rows() == [
        (9, 1, "A"), (9, 2, "A"), (10, 1, "A"), (10, 2, "A"),
    ]  # fmt: skip


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(UsageError, match="type, name, core, shape"):
        query.kernels(con(), by=cast(query.KernelKey, "rank"))


def test_rows_can_be_written_as_json() -> None:
    frame = pl.DataFrame({"b": [math.nan, math.inf, 1.5], "a": [2**60, None, 3]})
    assert query.rows(frame) == [
        {"b": None, "a": 2**60},
        {"b": None, "a": None},
        {"b": 1.5, "a": 3},
    ]
    everything = [query.rows(query.steps(con())), query.rows(query.capture_facts(con()))]
    assert json.loads(json.dumps(everything, allow_nan=False)) == everything


def test_answers_stay_typed_without_rows() -> None:
    empty = query.steps(connect())
    assert empty.height == 0
    assert empty.schema["computing_ns"] == pl.Int64
    assert empty.schema["rank"] == pl.Int32
    assert empty.schema["masking_ratio"] == pl.Float64


def test_a_view_that_is_there_is_used() -> None:
    made = con()
    kept = f"select * replace ('kept' as run) from ({metric('steps').sql})"
    made.execute(f"create view step_summary as {kept}")
    assert query.steps(made)["run"].unique().to_list() == ["kept"]
