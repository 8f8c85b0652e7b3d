"""`npuscope host`: rows that add up to the free time of `npuscope steps`."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.catalog import column_names
from tests.cli.command import Run


def test_rows_by_step_add_up_to_the_free_time_of_steps(run: Run, sample_store: Path) -> None:
    steps = run("steps", sample_store, "--json").rows
    free = run("host", sample_store, "--by", "step", "--top", "100000", "--json").rows
    largest = run("host", sample_store, "--by", "step", "--top", "3", "--json").rows
    lengths = sorted((row["free_ns"] for row in free), reverse=True)
    assert sorted((row["free_ns"] for row in largest), reverse=True) == lengths[:3]
    assert {(row["rank"], row["step"]): row["free_ns"] for row in steps} == {
        key: sum(row["free_ns"] for row in free if (row["rank"], row["step"]) == key)
        for key in {(row["rank"], row["step"]) for row in steps}
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "metric"),
    [("cause", "mean_free_time"), ("operator", "mean_free_time"), ("thread", "mean_free_time"),
     ("rank", "mean_free_time"), ("episode", "host_episodes"), ("pace", "host_pace"),
     ("lead", "host_lead")],
)  # fmt: skip
def test_each_key_has_the_columns_of_its_metric(
    run: Run, sample_store: Path, by: str, metric: str
) -> None:
    told = run("host", sample_store, "--by", by, "--json").json()
    assert told["metric"] == metric
    assert {*told["rows"][0]} <= {*column_names(metric)}
    assert {*column_names(metric)} - {*told["rows"][0]} <= {"rank"}
    assert run("host", sample_store, "--by", by).out
