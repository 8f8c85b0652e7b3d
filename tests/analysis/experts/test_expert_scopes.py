"""Loads of groups and micro-batches beside loops that add the same counts up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import duckdb
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from npuscope.analysis.catalog import column_names
from npuscope.analysis.experts.load import (
    dropped_tokens,
    imbalance,
    load,
    load_notes,
    load_rows,
    scopes,
)
from npuscope.analysis.experts.load.dropped_tokens import RouterTokens
from npuscope.analysis.experts.load.scopes import PartName
from npuscope.sample_traces.job import Job, routed_tokens
from tests.analysis.tables import connect, fill

JOB = Job(layers=2, experts=6, dp=4, pp=1, ep=2, steps=2, micro_batches=3, sequence=96)
KEY = ("job", "c")
EP = ((0, 1), (2, 3))
DP = ((0, 1, 2, 3),)
COUNTS = {
    (step, layer, rank, micro): routed_tokens(JOB, step, micro, layer, rank)
    for step in (12, 13) for layer in range(2) for rank in range(4) for micro in range(3)
}  # fmt: skip


def totals(*, without: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Rows of `expert_load` as a hook's reader makes them."""
    total: dict[tuple[int, int, int], int] = defaultdict(int)
    for (step, layer, rank, _), tokens in COUNTS.items():
        for expert, count in enumerate(tokens if rank not in without else ()):
            total[step, layer, expert] += count
    return [
        {"step": s, "phase": "train", "layer": n, "expert": e, "tokens": t}
        for (s, n, e), t in total.items()
    ]


def plant(*, without: tuple[int, ...] = (), told: bool = True) -> duckdb.DuckDBPyConnection:
    con = connect()
    fill(con, "ranks", [
        {"rank": r, "dp_size": 4, "ep_size": 2, "world_size": 4, "host_name": f"h{r % 2}"}
        for r in range(4)
    ])  # fmt: skip
    groups = [("ep", group) for group in EP] + [("dp", group) for group in DP]
    fill(con, "groups", [
        {"rank": r, "group_hash": f"{kind}{group}", "parallel_kind": kind,
         "group_rank": group.index(r), "global_ranks": list(group)}
        for kind, group in groups if told for r in group
    ])  # fmt: skip
    fill(con, "expert_load", totals(without=without))
    fill(con, "expert_counts", [
        {"step": s, "phase": "train", "layer": n, "counted_by": r, "micro_batch": m, "tokens": t}
        for (s, n, r, m), t in COUNTS.items() if r not in without
    ])  # fmt: skip
    return con


def at(con: duckdb.DuckDBPyConnection) -> load.ExpertTables:
    return scopes.with_counts(load.expert_rows(con), con)


def parts_of(scope: scopes.PartName) -> Mapping[tuple[Any, ...], list[int]]:
    """By step, layer, index and micro-batch: tokens of each expert, added up in loops."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for (step, layer, rank, micro), tokens in COUNTS.items():
        index = {
            "micro_batch": (rank, micro), "global": (None, None), "dp_group": (0, None),
            "ep_group": (rank // 2 * 2, None),
        }[scope]  # fmt: skip
        key = (step, layer, *index)
        found[key] = [a + b for a, b in zip(found.get(key, [0] * 6), tokens, strict=True)]
    return found


@pytest.mark.parametrize("scope", ["micro_batch", "ep_group", "dp_group", "global"])
def test_figures_of_each_part(scope: scopes.PartName) -> None:
    tables = at(plant())
    assert scopes.scope_notes(tables, scope) == []
    rows = load_rows.by_layer(tables, scope)
    assert rows.columns == list(column_names("experts_layer"))
    expected = parts_of(scope)
    found = {
        (r["step"], r["layer"], r["scope_index"], r["micro_batch"]): r for r in rows.to_dicts()
    }
    assert found.keys() == expected.keys()
    for key, tokens in expected.items():
        row, mean = found[key], sum(tokens) / 6
        assert (row["scope"], row["tokens"]) == (scope, sum(tokens))
        assert row["max_over_mean"] == pytest.approx(max(tokens) / mean)
        assert row["hottest_expert"] == tokens.index(max(tokens))
        loss = 6 * sum((t / sum(tokens)) ** 2 for t in tokens)
        assert row["balance_loss"] == pytest.approx(loss)
        # Experts lie in two equal blocks, each on a node of its own.
        uneven = max(sum(tokens[:3]), sum(tokens[3:])) * 2 / sum(tokens)
        assert row["device_max_over_mean"] == pytest.approx(uneven)
        assert row["node_max_over_mean"] == pytest.approx(uneven)
    times = load_rows.by_time(tables, scope).to_dicts()
    assert [row["step"] for row in times] == [12, 13]
    for row in times:
        mine = [tokens for key, tokens in expected.items() if key[0] == row["step"]]
        over = [max(tokens) * 6 / sum(tokens) for tokens in mine]
        assert row["tokens"] == sum(map(sum, mine))
        assert row["mean_max_over_mean"] == pytest.approx(sum(over) / len(over))
        assert row["worst_max_over_mean"] == pytest.approx(max(over))
        assert row["parts_count"] * row["layers_count"] == len(mine)
        full = [max(sum(t[:3]), sum(t[3:])) * 2 / sum(t) for t in mine]
        assert row["device_max_over_mean"] == pytest.approx(sum(full) / len(full))
        assert row["node_max_over_mean"] == row["device_max_over_mean"]


def test_nodes_as_they_are_asked_for() -> None:
    tables = at(plant())
    assert set(load_rows.by_time(tables, "ep_group", nodes=1)["node_max_over_mean"]) == {None}
    unknown = replace(tables, ranks=tables.ranks.with_columns(host=pl.lit(None, pl.String)))
    assert set(load_rows.by_layer(unknown, "dp_group")["node_max_over_mean"]) == {None}
    asked = load_rows.by_layer(unknown, "dp_group", nodes=2)
    assert asked["node_max_over_mean"].equals(asked["device_max_over_mean"], check_names=False)


def test_narrower_scopes_pay_more() -> None:
    """Parts of equally many tokens: n sum f^2 is convex."""
    scopes: tuple[PartName, ...] = ("micro_batch", "ep_group", "dp_group", "global")
    found = {
        scope: load_rows.by_layer(at(plant()), scope)["balance_loss"].drop_nulls().to_numpy()
        for scope in scopes
    }
    means = {scope: losses.mean() for scope, losses in found.items()}
    assert means["micro_batch"] >= means["ep_group"] >= means["global"] - 1e-12
    assert means["dp_group"] == pytest.approx(means["global"])
    assert means["micro_batch"] > means["global"]


def test_what_is_missing_is_left_out_and_told() -> None:
    short = at(plant(without=(3,)))
    rows = load_rows.by_layer(short, "ep_group")
    assert rows["scope_index"].unique().to_list() == [0]
    assert scopes.scope_notes(short, "ep_group") == [
        "1 of 2 expert-parallel groups are left out: not all of their ranks counted"
    ]
    assert load_rows.by_layer(short, "dp_group").is_empty()
    untold = at(plant(told=False))
    assert load_rows.by_layer(untold, "dp_group").is_empty()
    assert scopes.scope_notes(untold, "dp_group") == [
        "the ranks of each data-parallel group are not recorded"
    ]
    con = plant()
    con.execute("update expert_counts set micro_batch = null where counted_by = 0")
    tables = at(con)
    assert set(load_rows.by_layer(tables, "micro_batch")["scope_index"]) == {1, 2, 3}
    assert "12 counts sum several micro-batches" in scopes.scope_notes(tables, "micro_batch")[0]
    con.execute("delete from expert_counts")
    for scope in ("micro_batch", "ep_group", "dp_group"):
        bare = at(con)
        assert load_rows.by_layer(bare, scope).is_empty()
        assert load_rows.by_time(bare, scope).is_empty()
        assert "are not recorded" in scopes.scope_notes(bare, scope)[0]


def test_each_rank_is_its_own_group_where_the_size_is_1() -> None:
    con = plant(told=False)
    con.execute("update ranks set dp_size = 1")
    rows = load_rows.by_layer(at(con), "dp_group")
    assert set(rows["scope_index"]) == {0, 1, 2, 3}
    assert rows.height == 2 * 2 * 4


def test_captures_do_not_mix() -> None:
    """Another run in the store, of other sizes, changes nothing of the first."""
    con = plant()
    alone = at(con)
    key = {"run": "other", "capture": "d"}
    fill(con, "ranks", [{**key, "rank": r, "ep_size": 3, "world_size": 3} for r in range(3)])
    fill(con, "expert_load", [
        {**key, "step": 1, "phase": "train", "layer": 7, "expert": e, "tokens": e} for e in range(9)
    ])  # fmt: skip
    both = at(con)
    mine = pl.col("run") == "job"
    for by in ("layer", "device", "time"):
        rows = load_rows.view(both, by)
        assert_frame_equal(rows.filter(mine), load_rows.view(alone, by))
        assert rows.filter(~mine)["device_max_over_mean"][0] == pytest.approx(21 / 12)
    # Nothing is missing of either; what one alone has is told with its name.
    (note,) = load_notes.load_notes(both.load)
    assert note.startswith("other d: 1 experts of layers 7 received no tokens")
    sent = JOB.sequence * JOB.micro_batches * 4
    routed = {KEY: RouterTokens(sent, JOB.top_k, 4, 4), ("other", "d"): RouterTokens(None, 2, 3, 3)}
    lost = load_rows.by_layer(both, routing=routed)["dropped_tokens"].to_list()
    assert lost == [0, 0, 0, 0, None]
    (unknown,) = dropped_tokens.sum_notes(imbalance.expert_loads(both.load), routed)
    assert unknown.startswith("other d: dropped tokens are unknown: missing tokens of a step")


def test_holders_of_one_capture_beside_counts_of_another() -> None:
    con = plant()
    key = {"run": "job", "capture": "d"}
    fill(con, "ranks", [{**key, "rank": r, "ep_size": 2} for r in range(2)])
    fill(con, "groups", [
        {**key, "rank": r, "group_hash": "x", "parallel_kind": "ep", "group_rank": r,
         "global_ranks": [0, 1]} for r in range(2)
    ])  # fmt: skip
    fill(con, "expert_load", [
        {**key, "rank": r, "step": 5, "phase": "train", "layer": 0, "expert": r, "ep_rank": r,
         "tokens": 10 + 20 * r} for r in range(2)
    ])  # fmt: skip
    rows = load_rows.by_layer(at(con), "ep_group")
    assert rows["capture"].value_counts().sort("capture").rows() == [("c", 8), ("d", 1)]
    assert rows.filter(pl.col("capture") == "d")["max_over_mean"].to_list() == [1.5]


def test_dropped_tokens() -> None:
    k, sent = JOB.top_k, JOB.sequence * JOB.micro_batches * 4
    tables = load.expert_rows(plant())
    loads = imbalance.expert_loads(tables.load)

    def layers(routed: RouterTokens) -> pl.DataFrame:
        return load_rows.by_layer(tables, "global", {KEY: routed})

    def notes(routed: RouterTokens) -> str:
        return "; ".join(dropped_tokens.sum_notes(loads, {KEY: routed}))

    assert set(layers(RouterTokens(sent, k))["dropped_tokens"]) == {0}
    assert notes(RouterTokens(sent, k)) == ""
    lost = layers(RouterTokens(sent + 100, k))
    assert set(lost["dropped_tokens"]) == {100 * k}
    assert lost["dropped_ratio"][0] == pytest.approx(100 / (sent + 100))
    assert "are missing: dropped" in notes(RouterTokens(sent + 100, k))
    # Another reason is likelier, or nothing can be said.
    for routed, said in (
        (RouterTokens(sent, k + 1), f"as if top-k was {k}, not {k + 1}"),
        (RouterTokens(sent // 2, k), "twice as many tokens"),
        (RouterTokens(sent, k, 3, 4), "3 of 4 ranks counted"),
        (RouterTokens(sent, None), "missing top-k"),
        (RouterTokens(None, k), "missing tokens of a step"),
    ):
        found = layers(routed)
        assert found["dropped_tokens"].null_count() == found["dropped_ratio"].null_count() == 4
        assert said in notes(routed)
