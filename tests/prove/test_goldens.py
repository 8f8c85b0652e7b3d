"""Real profiles through the whole path: every step and kernel figure of goldens.json.

DB figures and qwen3 are equal to the ns. Text figures may differ by 1 ns per contributing row,
because the timeline and the kernel table round one operation's times apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store

SETS = [
    "alexnet_ddp_text_level0",
    "alexnet_ddp_text_level1",
    "alexnet_ddp_db_level0",
    "alexnet_ddp_db_level1",
    "qwen3_pp2_dp2_text_level2",
]
RANKS = [(name, rank) for name in SETS for rank in (0, 1) if (name, rank) != (SETS[-1], 1)]
GOLDEN_OF = {
    "computing_ns": "computing_ns",
    "communication_ns": "communication_ns",
    "overlapped_ns": "overlapped_ns",
    "exposed_communication_ns": "comm_not_overlapped_ns",
    "free_ns": "free_ns",
    "stage_ns": "stage_ns",
    "profiler_bubble_ns": "bubble_ns",
    "preparing_ns": "preparing_ns",
    "window_start_ns": "host_start",
    "window_end_ns": "host_end",
    "start_ns": "window_start",
}


@pytest.fixture(scope="module")
def stores(
    real_stores: Callable[[str], Path],
) -> Iterator[dict[str, duckdb.DuckDBPyConnection]]:
    cons = {name: store.open(real_stores(name)) for name in SETS}
    yield cons
    for con in cons.values():
        con.close()


def golden_step(goldens: dict[str, Any], name: str, rank: int) -> tuple[int, dict[str, Any], int]:
    """Step number, its golden figures, and the ns a figure may be off."""
    ((step, forms),) = goldens[name][str(rank)]["steps"].items()
    if "db" in forms:
        return int(step), forms["db"], 0
    figures = forms["kernel_details"]
    exact = "trace_view_own" not in forms
    return int(step), figures, 0 if exact else figures["n_compute"] + figures["n_comm"]


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_steps(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any], name: str, rank: int
) -> None:
    step, golden, off_ns = golden_step(goldens, name, rank)

    (row,) = query.steps(stores[name], Scope(rank=rank)).to_dicts()

    assert (row["step"], row["basis"]) == (step, "events")
    for ours, theirs in GOLDEN_OF.items():
        if theirs in golden:
            assert abs(row[ours] - golden[theirs]) <= off_ns, ours
    assert row["masking_ratio"] == pytest.approx(golden["masking_ratio"], abs=1e-6)


@pytest.mark.parametrize(("name", "rank"), [r for r in RANKS if "text" in r[0]])
def test_windows_of_text_come_from_the_step_mark(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any], name: str, rank: int
) -> None:
    ((_, forms),) = goldens[name][str(rank)]["steps"].items()

    (row,) = query.steps(stores[name], Scope(rank=rank)).to_dicts()

    if "profiler_step" in forms:
        (mark,) = forms["profiler_step"]
        assert row["window_start_ns"] == mark["start_ns"]
        assert row["window_end_ns"] == mark["start_ns"] + mark["dur_ns"]
        preparing_ns = forms["overlap_analysis_rows"]["preparing_ns"]
        assert abs(row["preparing_ns"] - preparing_ns) <= 1
        assert row["preparing_basis"] == "events"
    else:
        assert row["window_start_ns"] is row["window_end_ns"] is None
        assert row["preparing_basis"] == "profiler_table"
        assert abs(row["preparing_ns"] - float(forms["tool"]["Preparing"]) * 1000) <= 400


def test_qwen3_is_exact_where_floats_are_not(stores: dict[str, duckdb.DuckDBPyConnection]) -> None:
    (row,) = query.steps(stores[SETS[-1]], Scope(rank=0)).to_dicts()

    assert row["computing_ns"] == 231_290_100


def test_qwen3s_pipeline_has_bubbles(stores: dict[str, duckdb.DuckDBPyConnection]) -> None:
    """Its stages exchange by batch_isend_irecv alone; the profiler's own Bubble stays 0."""
    (row,) = query.steps(stores[SETS[-1]], Scope(rank=0)).to_dicts()

    assert (row["bubble_ns"], row["profiler_bubble_ns"]) == (313_877_800, 0)


def test_a_light_rank_answers_from_the_producers_table(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any]
) -> None:
    tool = goldens[SETS[-1]]["1"]["steps"]["13"]["tool"]

    (row,) = query.steps(stores[SETS[-1]], Scope(rank=1)).to_dicts()

    assert (row["basis"], row["step"]) == ("profiler_table", 13)
    assert row["computing_ns"] == round(float(tool["Computing"]) * 1000)
    assert row["communication_ns"] == round(float(tool["Communication"]) * 1000)
    assert row["free_ns"] == round(float(tool["Free"]) * 1000)
    # The text table's Stage and Preparing are doubles of 0.25 us; the DB's are exact.
    assert abs(row["stage_ns"] - float(tool["Stage"]) * 1000) <= 400
    assert abs(row["preparing_ns"] - float(tool["Preparing"]) * 1000) <= 400
    assert row["start_ns"] is row["window_start_ns"] is row["bubble_ns"] is None


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_kernels(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any], name: str, rank: int
) -> None:
    step, golden, _ = golden_step(goldens, name, rank)
    con = stores[name]

    for by in ("name", "type"):
        rows = query.kernels(con, Scope(rank=rank, step=step), by=by).to_dicts()
        assert sum(row["count"] for row in rows) == golden["n_compute"]
        assert sum(row["total_ns"] for row in rows) == golden["compute_sum_ns"]
        assert len(rows) == golden[f"distinct_{by}s"]
        for top in golden[f"top10_by_{by}"]:
            wanted = None if top["name"] == "N/A" else top["name"]
            (row,) = [row for row in rows if row[by] == wanted]
            assert (row["total_ns"], row["count"]) == (top["total_ns"], top["count"])
    cores = {row["core"]: row for row in query.kernels(con, Scope(rank=rank), by="core").to_dicts()}
    compute = {k: v for k, v in golden["by_core"].items() if k not in ("HCCL", "COMMUNICATION")}
    if set(compute) != {"N/A"}:
        assert {k: (v["count"], v["total_ns"]) for k, v in compute.items()} == {
            k: (v["count"], v["total_ns"]) for k, v in cores.items()
        }


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_percentiles_are_the_nearest_rank(
    stores: dict[str, duckdb.DuckDBPyConnection], name: str, rank: int
) -> None:
    durations: dict[str | None, list[int]] = defaultdict(list)
    found = stores[name].execute(
        "select name, dur_ns from kernels where rank = ? and is_compute and step is not null",
        [rank],
    )
    for kernel, dur_ns in found.fetchall():
        durations[kernel].append(dur_ns)

    rows = query.kernels(stores[name], Scope(rank=rank), by="name").to_dicts()

    assert len(rows) == len(durations)
    for row in rows:
        ordered = sorted(durations[row["name"]])
        count = len(ordered)
        assert row["p50_ns"] == ordered[-(-50 * count // 100) - 1]
        assert row["p99_ns"] == ordered[-(-99 * count // 100) - 1]
        assert row["max_ns"] == ordered[-1]
        assert row["mean_ns"] == pytest.approx(sum(ordered) / count)


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_communication_by_type(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any], name: str, rank: int
) -> None:
    step, golden, off_ns = golden_step(goldens, name, rank)
    totals: dict[str, list[int]] = {}
    rows = query.comm(stores[name], Scope(rank=rank, step=step), by="type").to_dicts()
    for row in rows:
        totals[row["op_type"]] = [row["op_count"], row["total_ns"]]

    assert set(totals) == set(golden["comm_by_type"])
    for kind, expected in golden["comm_by_type"].items():
        assert totals[kind][0] == expected["count"]
        assert abs(totals[kind][1] - expected["total_ns"]) <= off_ns
    unions = {"comm_p2p_union_ns": 0, "comm_collective_union_ns": 0}
    for row in rows:
        kind = "p2p" if row["op_type"] in ("send", "receive", "batchSendRecv") else "collective"
        unions[f"comm_{kind}_union_ns"] += row["union_ns"]
    known = unions.keys() & golden.keys()
    assert all(abs(unions[kind] - golden[kind]) <= off_ns for kind in known)
    [steps] = query.steps(stores[name], Scope(rank=rank, step=step)).to_dicts()
    for by in ("kind", "type", "op"):
        frame = query.comm(stores[name], Scope(rank=rank, step=step), by=by)
        assert frame["exposed_attributed_ns"].sum() == steps["exposed_communication_ns"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", [SETS[1], SETS[4]])
def test_what_hccl_measured(
    stores: dict[str, duckdb.DuckDBPyConnection], goldens: dict[str, Any], name: str, rank: int
) -> None:
    """Rank 1 of the last set has HCCL's measurements, but no operation of its own."""
    ((_, categories),) = goldens[name][str(rank)]["communication"].items()
    by_type = {kind: figures for c in categories.values() for kind, figures in c["by_type"].items()}
    rows = query.comm(stores[name], Scope(rank=rank), by="type").to_dicts()
    assert {row["op_type"] for row in rows} == set(by_type)
    for row in rows:
        golden = by_type[row["op_type"]]
        assert row["op_count"] == golden["count"]
        assert row["transit_ns"] == pytest.approx(golden["transit_ms"] * 1e6, abs=1e-3)
        assert row["wait_ns"] == pytest.approx(golden["wait_ms"] * 1e6, abs=1e-3)
        if row["union_ns"] is None:
            assert row["total_ns"] == round(golden["elapse_ms"] * 1e6)
    told = "synchronization_ns, idle_ns, measured_count, op_count"
    found = stores[name].execute(
        f"select {told} from comm_summary where by_key = 'op' and rank = ?", [rank]
    )
    synchronization, idle, measured, count = zip(*found.fetchall(), strict=True)
    totals = [category["total"] for category in categories.values()]
    assert sum(measured) == sum(count) == sum(total["ops"] for total in totals)
    for values, key in ((synchronization, "sync_ms"), (idle, "idle_ms")):
        expected = sum(total[key] for total in totals) * 1e6
        assert sum(values) == pytest.approx(expected, abs=1e-3)
