"""A stored log beside its captures, and the points of a picture."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.health.run_health import health_captures, health_points, run_health
from npuscope.analysis.scope import Scope
from tests.analysis.tables import connect, fill, kernel

STEPS = 300


def log(step: int) -> dict[str, Any]:
    """Step 150 has a spike; from 200 on steps take longer; each 50th writes a checkpoint."""
    elapsed_s = (1.2 if step >= 200 else 1.0) + step % 7 / 1000 + (5.0 if step % 50 == 0 else 0.0)
    return {
        "step": step,
        "elapsed_s": elapsed_s,
        "grad_norm": 90.0 if step == 150 else 1 + step % 3,
    }


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    """Captures of two steps each; the last one has the log of all steps, the others its start."""
    con = connect()
    for number, first in enumerate((60, 98, 149, 220, 260)):
        name = f"c{number}"
        fill(con, "kernels", [
            kernel(1000 * step, 500, step, capture=name) for step in (first, first + 1)
        ])  # fmt: skip
        count = STEPS if number == 4 else first
        fill(con, "train_log", [{**log(step), "capture": name} for step in range(count)])
    return con


def test_each_step_counts_once_as_logged_last(con: duckdb.DuckDBPyConnection) -> None:
    found = run_health(con)
    assert found is not None
    assert found.steps["step"].to_list() == list(range(STEPS))
    assert run_health(con, Scope("other")) is None


def test_captures_of_bad_stretches(con: duckdb.DuckDBPyConnection) -> None:
    rows = health_captures(con)
    told = {(row["capture"], row["kind"]) for row in rows.to_dicts()}
    assert told == {
        ("c0", None), ("c1", None), ("c2", "spike"), ("c2", "periodic"), ("c3", "change"),
        ("c4", "change"),
    }  # fmt: skip
    (third,) = rows.filter(pl.col("kind") == "spike").to_dicts()
    assert (third["event_step"], third["step"], third["end_step"]) == (150, 149, 150)
    assert third["usual_ns"] == pytest.approx(1.004e9, abs=2e6)
    slower = rows.filter(pl.col("capture") == "c3")["logged_ns"][0]
    assert slower == pytest.approx(1.2e9, rel=0.01)


def test_points_lose_no_spike(con: duckdb.DuckDBPyConnection) -> None:
    many = pl.DataFrame({
        "step": range(25_000), "elapsed_s": [1.0] * 25_000,
        "grad_norm": [50.0 if step == 7777 else 1.0 for step in range(25_000)],
    })  # fmt: skip
    found = run_health(con)
    assert found is not None
    steps = found.steps.clear().with_columns(pl.lit(None).alias("x")).drop("x")
    steps = pl.concat([steps, many.select("step", "grad_norm")], how="diagonal")
    points = health_points(steps)
    assert points.height == 1000
    assert points["grad_norm"].to_list().count(50.0) == 1
    assert points["step"][1] == 25
