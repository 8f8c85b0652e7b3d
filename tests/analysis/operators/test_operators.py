"""Classes of operators add up to the computing time; headroom against the like and the chip."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.operators.classes import class_of, operator_classes, operator_steps
from npuscope.analysis.operators.headroom import (
    learnt,
    merge_references,
    operator_headroom,
    operator_pmu,
)
from npuscope.analysis.views import frame
from npuscope.collector.store import store as stores
from npuscope.profile import summary_versions
from npuscope.sample_traces.generate import Form, small
from tests.analysis.tables import connect, fill, kernel
from tests.conftest import WrittenJob


def check_sums(con: duckdb.DuckDBPyConnection) -> None:
    truth = frame(con, "select rank, step, computing_ns from step_summary"
                       " where basis = 'events' and computing_ns is not null")  # fmt: skip
    found = operator_steps(con).group_by("rank", "step").agg(pl.col("computing_ns").sum())
    assert truth.height
    assert {row[:2]: row[2] for row in truth.iter_rows()} == {
        row[:2]: row[2] for row in found.iter_rows()
        if row[:2] in {one[:2] for one in truth.iter_rows()}
    }  # fmt: skip


@pytest.mark.parametrize("form", ["text", "db"])
def test_classes_of_a_generated_job_add_up(stored_job: WrittenJob, form: Form) -> None:
    with stores.open(stored_job(small(steps=3), form), summaries=summary_versions()) as con:
        check_sums(con)
        shares = operator_classes(con)
        assert shares["share_ratio"].sum() == pytest.approx(1)
        assert {"matmul", "matmul_grouped", "attention_forward", "attention_backward", "vector",
                "ai_cpu", "dsa"} == {*shares["class"]}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet_ddp_db_level0", "alexnet_ddp_db_level1",
    "alexnet_ddp_text_level0", "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2",
    "msprof_timeline_2023"])  # fmt: skip
def test_classes_of_real_profiles_add_up(real_stores: Callable[[str], Path], name: str) -> None:
    with stores.open(real_stores(name), summaries=summary_versions()) as con:
        check_sums(con)


@pytest.mark.slow
def test_shares_of_a_real_rank_are_those_of_its_table(
    real_stores: Callable[[str], Path], real_data: Path
) -> None:
    """Sums of kernel_details.csv by hand: FlashAttention, matmul and what runs on vector cores."""
    name = "qwen3_pp2_dp2_text_level2"
    (table,) = (real_data / name / "rank_0_ascend_pt").rglob("kernel_details.csv")
    sums: Counter[str] = Counter()
    with table.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            type_, core = row["Type"], row["Accelerator Core"]
            if core in ("HCCL", "COMMUNICATION") or row["Name"].startswith("hcom_"):
                continue
            part = ("attention" if type_.startswith("FlashAttention") else "matmul"
                    if "MatMul" in type_ else "vector")  # fmt: skip
            sums[part] += round(float(row["Duration(us)"]) * 1000)
    with stores.open(real_stores(name), summaries=summary_versions()) as con:
        shares = operator_classes(con)
    for part, ns in sums.items():
        mine = shares.filter(pl.col("class").str.starts_with(part))["total_share_ratio"].sum()
        assert mine == pytest.approx(ns / sums.total(), abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("qwen3_pp2_dp2_text_level2", 13), ("alexnet_ddp_text_level1", 12)]
)
def test_each_matrix_kernel_with_counters_is_held_against_them(
    real_stores: Callable[[str], Path], name: str, least: int
) -> None:
    with stores.open(real_stores(name), summaries=summary_versions()) as con:
        rows = operator_pmu(con)
    assert rows.height >= least
    known = rows.drop_nulls("flops_over_mac_ratio")
    # FLOPs of the shapes are never more than the counters saw, but for the clock.
    assert (known["flops_over_mac_ratio"] < 1.02).all()
    plain = known.filter((pl.col("class") == "matmul") & (pl.col("type") == "MatMulV3"))
    assert (plain["flops_over_mac_ratio"] > 0.97).all()


@pytest.mark.parametrize(
    ("type_", "core", "family", "expected"),
    [
        ("MatMulV3", "AI_CORE", "matmul", "matmul"),
        ("BatchMatMulV2", "AI_CORE", "matmul", "matmul_batched"),
        ("GroupedMatmul", "MIX_AIC", "matmul", "matmul_grouped"),
        ("AllGatherMatmul", "MIX_AIC", "matmul", "communication_fused"),
        ("MatmulReduceScatter", "MIX_AIC", "matmul", "communication_fused"),
        ("GroupedMatMulAlltoAllv", "MIX_AIC", "matmul", "communication_fused"),
        ("MoeDistributeDispatch", "MIX_AIV", None, "communication_fused"),
        ("FlashAttentionScoreGrad", "MIX_AIC", "attention", "attention_backward"),
        ("FlashAttentionScore", "MIX_AIC", "attention", "attention_forward"),
        ("MatMulV3", "AI_CPU", "matmul", "ai_cpu"),
        ("Add", "AI_VECTOR_CORE", None, "vector"),
        (None, None, None, "other"),
    ],
)
def test_the_class_of_an_operator(
    type_: str | None, core: str | None, family: str | None, expected: str
) -> None:
    assert class_of(type_, core, family) == expected


def with_matmuls() -> duckdb.DuckDBPyConnection:
    """Two shapes with as many FLOPs: one takes 100 us, the other 150; the first adds less to the
    union, as the second runs beside it."""
    con = connect()
    product: dict[str, Any] = {
        "type": "MatMulV3", "core": "AI_CORE", "input_dtypes": "DT_BF16;DT_BF16",
        "output_dtypes": "DT_BF16", "input_formats": "ND;ND", "output_formats": "ND",
    }  # fmt: skip
    fill(con, "ranks", [{"chip_name": "Ascend910B3"}])
    wide = {"input_shapes": "1024,2048;2048,4096", "output_shapes": "1024,4096"}
    tall = {"input_shapes": "4096,2048;2048,1024", "output_shapes": "4096,1024"}
    fill(con, "kernels", [
        kernel(0, 100_000, 1, **product, **wide), kernel(50_000, 150_000, 1, **product, **tall),
    ])  # fmt: skip
    return con


def test_headroom_is_what_the_best_of_the_like_would_leave() -> None:
    con = with_matmuls()
    rows = {row["output_shapes"]: row for row in operator_headroom(con).to_dicts()}
    assert rows["1024,4096"]["headroom_low_ns"] == 0
    assert rows["4096,1024"]["headroom_low_ns"] == pytest.approx(50_000)
    assert all("capture" in row["basis"] for row in rows.values())
    assert operator_steps(con)["computing_ns"].sum() == 200_000
    # One in 10 us would be 5 times the peak: nobody's best, here or in a table for others.
    con.execute("update kernels set dur_ns = 10_000 where output_shapes = '1024,4096'")
    rows = {row["output_shapes"]: row for row in operator_headroom(con).to_dicts()}
    assert rows["1024,4096"]["flops_ratio"] > 4
    assert rows["1024,4096"]["basis"] == rows["4096,1024"]["basis"] == "roofline"
    assert rows["1024,4096"]["headroom_high_ns"] == rows["4096,1024"]["headroom_low_ns"] == 0
    assert learnt(con)["rate"].to_list() == [pytest.approx(2 * 1024 * 2048 * 4096 / 150_000)]
    # What a mask leaves of more keys than queries is unknown here as in `mfu --by kernel`.
    fill(con, "kernels", [kernel(300_000, 9_000, 1, type="FlashAttentionScore", core="MIX_AIC",
        input_shapes="1,64,1024;1,128,1024;1,128,1024;;;;2048,2048",
        output_shapes="1,8,64,8;1,8,64,8;;1,64,1024")])  # fmt: skip
    attention = operator_headroom(con).filter(type="FlashAttentionScore")
    assert attention["flops"].to_list() == [None] == attention["flops_ratio"].to_list()


def test_a_table_of_better_captures_raises_the_headroom_and_merges_in_any_order() -> None:
    con = with_matmuls()
    own = learnt(con)
    better = own.with_columns(rate=2 * pl.col("rate"), run=pl.lit("other"))
    for table in (
        merge_references(own, better),
        merge_references(better, own),
        merge_references(merge_references(own, better), own),
    ):
        assert table.equals(merge_references(own, better))
    rows = operator_headroom(con, reference=better)
    found = dict(rows.select("output_shapes", "headroom_high_ns").iter_rows())
    assert found["1024,4096"] >= 50_000 and found["4096,1024"] >= 100_000
    assert rows["basis"].str.contains("reference").all()
