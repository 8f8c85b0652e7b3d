"""The page plans no experts from some ranks' counts."""

from __future__ import annotations

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.dashboard.app.answers import expert_answers
from npuscope.errors import UsageError


def test_the_page_refuses_a_plan_from_some_ranks() -> None:
    con = duckdb.connect()
    for name, table in schema.tables().items():
        columns = [*schema.KEY_COLUMNS, *((c.name, c.type) for c in table.columns)]
        con.execute(f'create table "{name}" ({", ".join(f"{n} {t}" for n, t in columns)})')
    for expert in range(4):
        con.execute(
            "insert into expert_load by name select 'r' as run, 'c' as capture, 0 as rank,"
            f" 1 as step, 'train' as phase, 0 as layer, {expert} as expert, 9 as tokens"
        )
    con.execute(
        "insert into expert_counts by name select 'r' as run, 'c' as capture, 0 as rank,"
        " 1 as step, 'train' as phase, 0 as layer, 63 as counted_by, [9, 9, 9, 9] as tokens"
    )
    with pytest.raises(UsageError, match="1 of 64 ranks"):
        expert_answers.plans(con, run=None, capture=None, devices=2, nodes=1, slots=None)
