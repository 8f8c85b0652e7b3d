"""Memory peaks of real profiles, text and DB, and who holds what, exact to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store

TEXT = ["alexnet_ddp_text_level0", "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2"]
DB = ["alexnet_ddp_db_level0", "alexnet_ddp_db_level1"]
QWEN3 = TEXT[-1]
RANKS = [(name, rank) for name in TEXT + DB for rank in (0, 1) if (name, rank) != (QWEN3, 1)]
MIB = 1 << 20

Opened = dict[str, duckdb.DuckDBPyConnection]
Figures = dict[str, tuple[int | None, ...]]


@pytest.fixture(scope="module")
def stores(real_stores: Callable[[str], Path]) -> Iterator[Opened]:
    cons: Opened = {name: store.open(real_stores(name)) for name in TEXT + DB}
    yield cons
    for con in cons.values():
        con.close()


def golden(goldens: dict[str, Any], name: str, rank: int) -> Figures:
    """Component -> records, peak, peak allocated and peak active in bytes."""
    known = goldens[name][str(rank)]["memory"]
    if name in DB:
        return {
            component: (
                row["rows"], row["peak_reserved_bytes"], row["peak_allocated_bytes"],
                row["peak_active_bytes"] or None,  # the export writes 0 where GE has none
            )
            for component, row in known.items() if "rows" in row
        }  # fmt: skip
    peaks: Figures = {}
    for component, row in known["memory_record"].items():
        mib = [row[f"peak_{figure}_mb"] for figure in ("reserved", "allocated", "active")]
        reserved, allocated, active = (None if size is None else round(size * MIB) for size in mib)
        peaks[component] = (row["rows"], reserved, allocated, active)
    return peaks


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_peaks(stores: Opened, goldens: dict[str, Any], name: str, rank: int) -> None:
    frame = query.memory(stores[name], Scope(rank=rank))
    own = frame.filter(frame["source"] == "record")

    names = ("sample_count", "peak_bytes", "peak_allocated_bytes", "peak_active_bytes")
    found = {row["component"]: tuple(row[n] for n in names) for row in own.to_dicts()}

    expected = golden(goldens, name, rank)
    assert {component: found[component] for component in expected} == expected
    known = goldens[name][str(rank)]["memory"]
    if name in DB:
        assert found["APP"][1] == known["NPU_MEM/app"]["peak_hbm_bytes"]
        assert found["DEVICE"][1] == known["NPU_MEM/device"]["peak_hbm_bytes"]
        assert found.keys() == expected.keys() | {"APP", "DEVICE"}
    else:
        assert found.keys() == expected.keys()
        modules = dict(known["npu_module_mem_peak"])
        module_rows = frame.filter(frame["source"] == "module")
        assert module_rows["sample_count"].sum() == modules.pop("rows")
        peaks = dict(module_rows.select("component", "peak_bytes").rows())
        assert {component: peaks[component] / MIB for component in modules} == modules


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_a_peak_is_where_the_curve_first_reaches_it(stores: Opened, name: str, rank: int) -> None:
    for row in query.memory(stores[name], Scope(rank=rank)).to_dicts():
        curve = stores[name].execute(
            "select timestamp_ns, allocated_bytes, reserved_bytes from memory where rank = ? and"
            " source = ? and component = ? order by timestamp_ns",
            [rank, row["source"], row["component"]],
        ).fetchall()  # fmt: skip
        reserved = [(t, r) for t, _, r in curve if r is not None]
        assert row["peak_ns"] == next(t for t, r in reserved if r == row["peak_bytes"])
        if row["peak_allocated_ns"] is not None:
            moment = next(x for x in curve if x[1] == row["peak_allocated_bytes"])
            assert row["peak_allocated_ns"] == moment[0]
            assert row["fragmentation_bytes"] == moment[2] - moment[1]


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_the_whole_curve_and_the_only_step_reach_the_same_peak(
    stores: Opened, name: str, rank: int
) -> None:
    steps = {
        row["component"]: row["peak_bytes"]
        for row in query.memory_steps(stores[name], Scope(rank=rank)).to_dicts()
        if row["source"] == "record" and row["level"] == "allocated"
    }
    curve = query.memory_curve(stores[name], Scope(rank=rank), source="record", bins=50)

    peaks = {
        row["component"]: row["peak_allocated_bytes"]
        for row in query.memory(stores[name], Scope(rank=rank)).to_dicts()
        if row["peak_allocated_bytes"] is not None
    }
    assert {"PTA", "PTA+GE"} <= peaks.keys()
    assert steps == peaks
    for component, most in peaks.items():
        points = curve.filter(curve["component"] == component)
        assert points["allocated_max_bytes"].max() == most
    assert query.memory_growth(stores[name], Scope(rank=rank))["is_steady"].null_count() > 0


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_holders_add_up_to_the_peak(stores: Opened, name: str, rank: int) -> None:
    holders = query.memory_holders(stores[name], Scope(rank=rank))
    (main,) = query.memory_facts(stores[name], Scope(rank=rank)).main.to_dicts()

    assert holders["component"].unique().to_list() == ["PTA+GE"] == [main["component"]]
    assert holders["held_bytes"].sum() == main["peak_allocated_bytes"]
    assert holders["peak_ns"].unique().to_list() == [main["peak_allocated_ns"]]
    assert holders["holder"].to_list()[0] == "unexplained"
    blocks = query.memory_blocks(stores[name], Scope(rank=rank))
    assert blocks["size_bytes"].sum() == holders["held_bytes"][1:].sum()


def test_text_and_db_of_the_same_program_name_the_same_holders(stores: Opened) -> None:
    """Parameters and optimizer states, then the gradients, whichever way they are exported."""
    answers = []
    for name in (TEXT[0], DB[0]):
        frame = query.memory_holders(stores[name], Scope(rank=0))
        answers.append(frame.select("holder", "name", "held_bytes", "block_count").rows())
    assert answers[0] == answers[1]
    assert answers[0][:3] == [
        ("unexplained", None, 735_623_680, None),
        ("operator", "aten::_foreach_add", 245_276_160, 17),
        ("operator", "aten::mm", 234_489_344, 3),
    ]


def test_what_qwen3_does_not_explain_is_what_it_began_with(stores: Opened) -> None:
    """Weights and optimizer states are older than the capture: the level before its first block."""
    (first_level, first_block) = stores[QWEN3].execute(
        "select arg_min(allocated_bytes, timestamp_ns), (select arg_min(size_bytes,"
        " allocated_at_ns) from operator_memory) from memory where component = 'PTA'"
    ).fetchall()[0]  # fmt: skip
    holders = query.memory_holders(stores[QWEN3], Scope(rank=0))

    assert holders["held_bytes"][0] == first_level - first_block == 4_514_074_624
    assert holders["name"][1] == "aten::matmul"
    assert (holders["held_bytes"][1], holders["block_count"][1]) == (2_315_284_480, 56)
