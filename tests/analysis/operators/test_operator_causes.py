"""Causes of slow operators: on kernels made for each, and planted jobs against their truth."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from bench.operators.causes_bench import MOST, PLANTS, case, causes_of_job, clean, false_share
from npuscope.analysis.memo import remember
from npuscope.analysis.operators.causes import CAUSE_WORDS, causes_of
from npuscope.analysis.operators.launch_order import POINTWISE, fused_operators
from npuscope.analysis.operators.pace import pace
from npuscope.analysis.replay.changes import parse_change
from tests.analysis.tables import Row, connect, fill, kernel

VECTOR: dict[str, Any] = {"core": "AI_VECTOR_CORE", "block_count": 40, "stream_id": 2}
CUBE: dict[str, Any] = {"type": "MatMulV3", "core": "AI_CORE", "block_count": 20, "stream_id": 2}


def form(given: str, made: str, dtype: str = "DT_BF16") -> Row:
    """Tensors of one type, in plain layout."""
    return {
        f"{side}_{what}": shapes if what == "shapes" else ";".join([value] * len(shapes.split(";")))
        for side, shapes in (("input", given), ("output", made))
        for what, value in (("shapes", ""), ("dtypes", dtype), ("formats", "ND"))
    }  # fmt: skip


def product(rows: int, inner: int, columns: int, dur_ns: int) -> Row:
    tensors = form(f"{rows},{inner};{inner},{columns}", f"{rows},{columns}")
    return {**CUBE, **tensors, "dur_ns": dur_ns}


def wise(type_: str, rows: int, dur_ns: int, **more: object) -> Row:
    shape = f"{rows},1024"
    return {**VECTOR, "type": type_, **form(shape, shape), "dur_ns": dur_ns, **more}


def causes(
    *kernels: Row, launches: tuple[Row, ...] = (), mhz: tuple[int, ...] = (), **rank: object
) -> dict[str, dict[str, Any]]:
    """By cause the row of the metric, with its evidence as `rows`; kernels one after the other."""
    con: duckdb.DuckDBPyConnection = connect()
    fill(con, "ranks", [{"chip_name": "Ascend910B3", **rank}])
    fill(con, "steps", [{"step": 1}])
    at, rows = 0, list[Row]()
    for number, one in enumerate(kernels):
        rows.append({**kernel(at, None, 1), "connection_id": str(number), **one})
        at += int(str(one["dur_ns"])) + 500
    fill(con, "kernels", rows)
    fill(con, "launches", launches)
    fill(con, "counters", [{"name": "AI Core Freq", "series": "MHz", "value": one} for one in mhz])
    remember(con)
    summed, evidence = causes_of(con)
    assert {*summed["cause"]} == {*CAUSE_WORDS}
    return {
        row["cause"]: {**row, "rows": evidence.filter(pl.col("cause") == row["cause"]).to_dicts()}
        for row in summed.to_dicts()
    }


# Start 4 us, then 1,000 bytes per ns; 2,048 bytes a row read, as many written.
PLAIN = [wise("Gelu", rows, 4_000 + rows * 4_096 // 1_000) for rows in (1_000, 4_000, 16_000)]
# Start 6 us, then 100 FLOPs per ps.
EVEN = [product(1024, 1024, n, 6_000 + 2 * 1024 * 1024 * n // 100_000) for n in (512, 1024, 4096)]


def test_a_line_is_found_though_some_kernels_lie_far_off() -> None:
    work = np.array([1e6, 2e6, 4e6, 8e6, 16e6, 1e6, 1e9])
    line = pace(work, np.where(np.arange(7) < 5, 4_000 + work / 1_000, 90_000.0), np.ones(7))
    assert line is not None
    assert line.start_ns == pytest.approx(4_000, rel=0.02)
    assert line.ns_per_work == pytest.approx(1e-3, rel=0.02)
    assert pace(np.array([1e6, 1e6, 1e6]), np.array([5e3, 5e3, 5e3]), np.ones(3)) is None


def test_odd_products_are_held_against_even_ones() -> None:
    slow_ns = 2 * (6_000 + 2 * 1024 * 1024 * 1040 // 100_000)
    found = causes(*EVEN, product(1024, 1024, 1027, slow_ns))["padding"]
    assert found["headroom_ns"] == pytest.approx(slow_ns / 2, rel=0.02)
    assert found["rows"][0]["evidence"] == "N = 1027, 2054 B"
    # Three columns less would be even, and a little less work.
    cut_ns = 6_000 + 2 * 1024 * 1024 * 1024 // 100_000
    assert found["headroom_high_ns"] == pytest.approx(slow_ns - cut_ns, rel=0.01)
    # An odd one that is as fast is none.
    even_ns = 5_900 + 2 * 1024 * 1024 * 1040 // 100_000
    assert causes(*EVEN, product(1024, 1024, 1027, even_ns))["padding"]["headroom_ns"] == 0


@pytest.mark.slow
def test_few_cores_count_where_the_result_has_work_for_all() -> None:
    tall = {**product(4096, 1024, 1024, 100_000), "block_count": 12}
    thin = {**product(256, 1024, 1024, 50_000), "block_count": 12}
    found = causes(tall, thin)["blocks"]
    assert [row["evidence"] for row in found["rows"]] == ["12 / 20"]
    assert found["headroom_ns"] == pytest.approx(40_000)


@pytest.mark.slow
def test_a_run_of_small_kernels_gives_back_starts_and_idle_time() -> None:
    found = causes(*PLAIN, *[wise("Mul", 100, 4_400)] * 8)["small"]
    assert found["headroom_ns"] == pytest.approx(7 * (4_000 + 500), rel=0.03)


def test_of_equally_common_shapes_the_first_is_told() -> None:
    shapes = [wise("Mul", rows, 4_400) for rows in range(1_800, 0, -100)]
    assert causes(*PLAIN, *shapes)["small"]["rows"][0]["input_shapes"] == "100,1024"


@pytest.mark.slow
def test_what_goes_there_and_back_is_the_least_of_changes_of_layout() -> None:
    there = {**wise("TransData", 1024, 9_000), "output_shapes": "64,64,16,16"}
    back = {**there, "input_shapes": "64,64,16,16", "output_shapes": "1024,1024"}
    only = {**wise("TransData", 2048, 7_000), "output_shapes": "64,128,16,16"}
    asked = {"connection_id": "0", "operator_name": "aten::matmul", "target": "kernel"}
    found = causes(there, back, only, launches=(asked,))["layout"]
    assert (found["headroom_low_ns"], found["headroom_high_ns"]) == (18_000, 25_000)
    assert "aten::matmul" in {row["asked_by"] for row in found["rows"]}


@pytest.mark.slow
def test_the_ai_cpu_is_held_against_vector_cores() -> None:
    slow = {**wise("Sort", 4_000, 300_000), "core": "AI_CPU"}
    found = causes(*PLAIN, slow)["ai_cpu"]
    assert found["headroom_ns"] == pytest.approx(300_000 - 20_384, rel=0.02)
    assert causes(slow)["ai_cpu"]["headroom_ns"] is None
    [change] = causes(*PLAIN, {**slow, "type": "my_ops::Sort@v1"})["ai_cpu"]["changes"]
    assert parse_change(change).kernel() == ("my_ops::Sort@v1", "")
    # A short kernel beneath it takes nothing from it; what runs beneath a longer one gives nothing.
    beneath = {**wise("Mul", 1_000, 8_096), "stream_id": 3}
    at_ns = sum(int(str(one["dur_ns"])) + 500 for one in PLAIN)
    found = causes(*PLAIN, {**beneath, "start_ns": at_ns - 50}, {**slow, "start_ns": at_ns})
    assert found["ai_cpu"]["headroom_ns"] == pytest.approx(300_000 - 20_384, rel=0.02)
    long = {**beneath, "dur_ns": 400_000, "start_ns": at_ns - 50}
    assert causes(*PLAIN, long, {**slow, "start_ns": at_ns})["ai_cpu"]["headroom_ns"] == 0


def test_a_range_allows_for_how_much_steps_differ() -> None:
    con = connect()
    fill(con, "ranks", [{"chip_name": "Ascend910B3"}])
    fill(con, "steps", [{"step": number} for number in (1, 2, 3, 4)])
    there = {**wise("TransData", 1024, 0), "output_shapes": "64,64,16,16"}
    fill(con, "kernels", [
        {**there, **kernel(number * 1_000_000, dur_ns, number)}
        for number, dur_ns in enumerate((9_000, 11_000, 9_000, 11_000), 1)
    ])  # fmt: skip
    (row,) = causes_of(con)[0].filter(pl.col("cause") == "layout").to_dicts()
    error_ns = float(np.std([9_000, 11_000, 9_000, 11_000], ddof=1)) / 2
    assert row["headroom_ns"] == 10_000
    assert row["headroom_high_ns"] == pytest.approx(10_000 + 2 * error_ns, abs=1)


def test_a_chain_gives_back_starts_and_what_passes_between() -> None:
    chain = [wise(name, 4_000, 20_384) for name in ("Muls", "Exp", "Adds")]
    found = causes(*PLAIN, *chain * 2)
    # Six in a row are one chain: of six starts one stays, of six tensors twice one each way.
    assert found["fusion"]["headroom_ns"] == pytest.approx(5 * 20_384, rel=0.05)
    assert found["fusion"]["rows"][0]["evidence"].startswith("Muls > Exp > Adds > Muls")


@pytest.mark.slow
def test_a_known_sequence_names_its_replacement() -> None:
    gate = [wise("Sigmoid", 4_000, 20_384), wise("Mul", 4_000, 24_000), wise("Mul", 4_000, 24_000)]
    (row,) = causes(*PLAIN, *gate)["replacement"]["rows"]
    assert row["replacement"] == "torch_npu.npu_swiglu" and row["condition"] and row["source"]


@pytest.mark.slow
def test_forward_kernels_beyond_their_gradients_ran_twice() -> None:
    forward, backward = wise("SwiGlu", 64, 5_000), wise("SwiGluGrad", 64, 8_000)
    found = causes(forward, forward, backward, *[wise("Cos", 64, 3_000)] * 3)["recompute"]
    assert found["headroom_ns"] == pytest.approx(5_000 + 6_000)
    # Of a step without gradients, an evaluation, nothing ran again.
    found = causes(forward, backward, {**forward, "step": 2})["recompute"]
    assert (found["headroom_ns"], found["rows"]) == (0, [])


def test_compilations_and_modes_have_no_headroom_but_a_reason() -> None:
    compiled = {"connection_id": "0", "api_name": "aclopCompileAndExecute", "target": "kernel",
                "operator_name": "aten::topk", "api_start_ns": 0, "api_end_ns": 9_000}  # fmt: skip
    modes = json.dumps({"ASCEND_LAUNCH_BLOCKING": "1", "TASK_QUEUE_ENABLE": "2"})
    # One call: it has a row for each kernel that it launches.
    launches = (compiled, {**compiled, "device_start_ns": 500})
    found = causes(wise("TopKV2", 64, 5_000), launches=launches, environment=modes)
    assert found["dynamic"]["headroom_ns"] is None
    assert found["dynamic"]["headroom_high_ns"] == 9_000 and found["dynamic"]["reason"]
    assert [row["evidence"] for row in found["mode"]["rows"]] == ["ASCEND_LAUNCH_BLOCKING=1"]
    assert found["mode"]["reason"]
    assert "no environment" in causes(wise("TopKV2", 64, 5_000))["mode"]["reason"]
    empty = causes(wise("TopKV2", 64, 5_000), environment="{}")["mode"]
    assert empty["headroom_ns"] is None and "all of them are empty" in empty["reason"]


def test_launches_of_kernels_without_types_are_not_said_to_be_missing() -> None:
    plain = {"dur_ns": 5_000, "type": None}
    launch = {"connection_id": "0", "target": "kernel", "api_start_ns": 0, "api_end_ns": 9_000}
    assert causes(plain)["dynamic"]["reason"] == "no launches were recorded"
    assert "operator types" in causes(plain, launches=(launch,))["dynamic"]["reason"]


def test_what_no_kernel_tells_is_not_known() -> None:
    """Of cores given to kernels, or of the kinds of core."""
    gemm = {**product(4096, 4096, 4096, 50_000), "block_count": None}
    few = causes(gemm)["blocks"]
    assert (few["headroom_ns"], few["count"]) == (None, None)
    assert few["reason"] == "on how many cores kernels run was not recorded"
    moved = {**wise("TransData", 64, 5_000), "core": None}
    found = causes(moved, ai_core_frequency_mhz=900.0)
    for cause in ("ai_cpu", "layout", "clock"):
        assert found[cause]["headroom_ns"] is None
        assert found[cause]["reason"] == "the cores of kernels were not recorded"
    # A clock without cycles is that of the counter of a timeline: low before the first kernel.
    timed = wise("Gelu", 64, 5_000)
    assert causes(timed)["clock"]["reason"] == "no frequency and no cycles were recorded"
    told = [causes(timed, mhz=mhz)["clock"]["headroom_ns"] for mhz in ((800, 1800), (800, 900))]
    assert told == [0, 2_500]


def test_lists_of_tensors_are_handed_on_though_their_results_are_flat() -> None:
    """SGD with momentum: of 11 lists that four kernels read and write five remain."""
    one, two = "64,3,11,11;192,64", "23232;12288"
    lists = {
        "ForeachAddList": form(f"{one};{one}", two), "ForeachMulScalar": form(one, two),
    }  # fmt: skip
    steps = ["ForeachAddList", "ForeachMulScalar", "ForeachAddList", "ForeachAddList"]
    sgd = [{**VECTOR, "type": name, **lists[name], "dur_ns": 30_000} for name in steps]
    (row,) = causes(*PLAIN, *sgd)["replacement"]["rows"]
    assert row["replacement"] == "torch_npu.optim.NpuFusedSGD"
    assert row["evidence"] == " > ".join(steps) + f": -{6 * 35_520 * 2 / 1e6:.1f} MB"
    # How many kernels the optimizer then runs is not documented.
    assert row["headroom_low_ns"] == 0 < row["headroom_ns"]


def test_fused_operators_are_documented_ones() -> None:
    known = fused_operators()
    for one in (*known["sequences"], *known["repeated"]):
        assert one["replacement"].startswith("torch_npu.") and one["condition"] and one["source"]
    assert "MatMul" not in POINTWISE


@pytest.mark.slow
@pytest.mark.parametrize("cause", [*PLANTS])
def test_a_planted_cause_is_the_first_with_its_headroom(cause: str) -> None:
    found = case(clean(2, 90), cause, 90)
    assert found.first == cause
    assert found.error < 0.1


@pytest.mark.slow
def test_a_clean_job_has_no_cause() -> None:
    assert false_share(causes_of_job(clean(2, 90))) < MOST
