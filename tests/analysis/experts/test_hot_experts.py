"""The experts that a verdict of more tokens names, by counts, by the trace, and by neither."""

from __future__ import annotations

import json
from io import StringIO

import duckdb
import polars as pl
import pytest
from rich.console import Console

from npuscope.analysis.ranks.stragglers.hot_experts import COLLECT, STAGES, hot_lines
from npuscope.dashboard.terminal.straggler_tables import hottest, ranks_table
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, groups, local_experts, routed_tokens
from tests.analysis.tables import connect, put

JOB = Job(
    layers=2, pp=2, dp=2, ep=2, experts=4, steps=1, overloaded=3, expert_skew=0.3, memory=False
)
TABLES = ("ranks", "groups", "steps", "kernels", "expert_load", "expert_placement")


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = connect()
    put(con, canonical_frames(JOB, tables=TABLES))
    return con


def lines(con: duckdb.DuckDBPyConnection) -> list[dict[str, object]]:
    ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
    return hot_lines(con, [3], run=run, capture=capture)[3]


def hot_pairs() -> list[tuple[int, int]]:
    """Tokens and experts of rank 3, most first: layer 1, the second half of four experts."""
    ((_, group),) = [one for one in groups(JOB) if one[0] == "ep" and 3 in one[1].ranks]
    held = {
        expert: sum(
            routed_tokens(JOB, JOB.first_step, micro_batch, 1, source)[expert]
            for source in group.ranks
            for micro_batch in range(JOB.micro_batches)
        )
        for expert in local_experts(JOB, 1)
    }
    return sorted(((tokens, expert) for expert, tokens in held.items()), reverse=True)


def test_experts_by_counts_and_by_the_trace(con: duckdb.DuckDBPyConnection) -> None:
    found = lines(con)
    most, expert = hot_pairs()[0]
    everywhere = JOB.sequence * JOB.top_k * JOB.micro_batches * JOB.dp
    assert found[0] == {
        "layer": 1, "expert": expert,
        "what": f"layer 1, expert {expert}: tokens per step,"
        f" {most / sum(t for t, _ in hot_pairs()) * 100:.0f} % of the rank's",
        "value": float(most), "peers": everywhere / JOB.experts, "unit": "tokens",
    }  # fmt: skip
    assert [line["value"] for line in found] == [float(tokens) for tokens, _ in hot_pairs()]
    # Counted over all ranks, as a hook does: the trace tells which layers the stage has.
    con.execute("update expert_load set ep_rank = null")
    assert lines(con) == found
    con.execute("update kernels set input_shapes = null")
    assert [line["what"] for line in lines(con)] == [STAGES]


def test_what_to_collect(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("delete from expert_load")
    *layers, last = lines(con)
    (layer,) = layers
    held = sum(tokens for tokens, _ in hot_pairs())
    assert layer["what"] == "layer 1: tokens per step, 100 % of the rank's"
    assert layer["value"] == held
    assert layer["peers"] == JOB.sequence * JOB.top_k * JOB.micro_batches
    assert last["what"] == COLLECT and last["value"] is None


def test_the_table_names_them() -> None:
    told = [
        {"layer": layer, "expert": expert, "value": 1.0, "peers": 1.0, "unit": "tokens",
         "what": f"layer {layer}, expert {expert}: tokens per step, 9 % of the rank's"}
        for layer, expert in ((3, 17), (5, 9), (3, 4))
    ]  # fmt: skip
    evidence = json.dumps(
        [{"what": "own time per step", "value": 1, "peers": 1, "unit": "ns"}, *told]
    )
    assert hottest(evidence) == "layer 3: expert 17, 4; layer 5: expert 9"
    assert hottest("[]") is None
    row = {
        "run": "r", "capture": "c", "rank": 3, "step": 1, "last_arrivals_count": 1,
        "caused_wait_ns": 5, "score": 9.0, "verdict": "alltoall_bytes", "evidence": evidence,
    }  # fmt: skip
    table = ranks_table(pl.DataFrame([row]))
    assert any(column.heading == "most tokens" for column in table.columns)
    plain = ranks_table(pl.DataFrame([row | {"verdict": None, "evidence": "[]"}]))
    assert not any(column.heading == "most tokens" for column in plain.columns)


def test_the_score_that_the_caption_explains_stays_in_a_narrow_table() -> None:
    row = {
        "run": "r", "capture": "c", "rank": 3, "step": 1, "last_arrivals_count": 1,
        "caused_wait_ns": 5, "score": 9.0, "verdict": "alltoall_bytes", "evidence": "[]",
    }  # fmt: skip
    waits = ("peer_wait_ns", "pipeline_wait_ns", "absent_wait_ns", "unknown_communication_ns")
    own = {"run": "r", "capture": "c", "rank": 3, **dict.fromkeys(waits, 5)}
    told = StringIO()
    table = ranks_table(pl.DataFrame([row]), waits=pl.DataFrame([own]))
    Console(file=told, width=80).print(table)
    assert "waits ms  score  verdict" in told.getvalue()
