"""Tokens that experts refused, step by step, from counts and what was routed."""

from __future__ import annotations

import duckdb
import pytest

from npuscope.analysis.health.token_drops import health_dropped
from npuscope.analysis.scope import Scope
from tests.analysis.tables import connect, fill

TOKENS, TOP_K = 1000, 2


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    """Layers 3 and 4 lose nothing in step 0; 100 and 300 of 2,000 in step 1, told by a later
    capture in place of a first one."""
    con = connect()
    for capture, step, layer, lost in (
        ("a", 0, 3, 0), ("a", 0, 4, 0), ("a", 1, 3, 0), ("a", 1, 4, 0), ("b", 1, 3, 100),
        ("b", 1, 4, 300),
    ):  # fmt: skip
        fill(con, "expert_load", [
            {"capture": capture, "step": step, "phase": "train", "layer": layer, "expert": expert,
             "tokens": tokens}
            for expert, tokens in enumerate((1500, 500 - lost))
        ])  # fmt: skip
    return con


def test_share_of_each_step(con: duckdb.DuckDBPyConnection) -> None:
    rows, notes = health_dropped(con, tokens_per_step=TOKENS, top_k=TOP_K)
    assert rows.select("step", "layers_count", "routed_tokens", "dropped_tokens").rows() == [
        (0, 2, 4000, 0), (1, 2, 4000, 400),
    ]  # fmt: skip
    assert rows.select("dropped_ratio", "worst_layer", "worst_ratio").row(1) == (0.1, 4, 0.15)
    assert "dropped" in notes[0]


def test_unknown_without_what_was_routed(con: duckdb.DuckDBPyConnection) -> None:
    rows, notes = health_dropped(con, tokens_per_step=TOKENS)
    assert rows["step"].to_list() == [0, 1]
    for name in ("routed_tokens", "dropped_tokens", "dropped_ratio", "worst_layer"):
        assert rows[name].null_count() == 2
    assert "missing top-k" in notes[0]
    assert health_dropped(con, Scope("other"), tokens_per_step=TOKENS, top_k=TOP_K)[0].is_empty()
