"""No experts are planned from some ranks' counts: neither by the page nor by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.experts.load.counted_ranks import require_all_ranks
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.scope import Scope
from npuscope.dashboard.answers import expert_answers
from npuscope.errors import TraceNotFound
from tests.analysis.tables import connect, fill


def test_plans_from_some_ranks_are_refused() -> None:
    con, layer = connect(), {"step": 1, "phase": "train", "layer": 0}
    fill(con, "expert_load", [{**layer, "expert": expert, "tokens": 9} for expert in range(4)])
    fill(con, "expert_counts", [{**layer, "counted_by": 63, "tokens": [9, 9, 9, 9]}])
    with pytest.raises(TraceNotFound, match="1 of 64 ranks"):
        require_all_ranks(expert_rows(con), (con, Path("an-export.duckdb")))
    with pytest.raises(TraceNotFound, match="1 of 64 ranks"):
        expert_answers.plans(con, Scope(), path="", devices=2, nodes=1, slots=None)
