"""No experts are planned from some ranks' counts: neither by the page nor by the command."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.experts.load.counted_ranks import require_all_ranks
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.scope import Scope
from npuscope.collector import schema
from npuscope.dashboard.app.answers import expert_answers
from npuscope.errors import TraceNotFound


def test_plans_from_some_ranks_are_refused() -> None:
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
    with pytest.raises(TraceNotFound, match="1 of 64 ranks"):
        require_all_ranks(expert_rows(con), (con, Path("an-export.duckdb")))
    with pytest.raises(TraceNotFound, match="1 of 64 ranks"):
        expert_answers.plans(con, Scope(), path="", devices=2, nodes=1, slots=None)
