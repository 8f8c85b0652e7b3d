"""MFU figures: real profiles to the digit, generated ones, and what is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from npuscope.analysis.catalog import column_names
from npuscope.analysis.flops.chips import peaks
from npuscope.analysis.flops.job_mfu import gather_figures, mean_use
from npuscope.analysis.flops.kernels import roofline
from npuscope.analysis.flops.kernels.count import counted_kernels, kernel_work
from npuscope.analysis.flops.lengths import ACTIVITY, TO_NEXT, WINDOW, step_lengths
from npuscope.analysis.flops.mfu import Figures, ModelUse, mfu, why_unknown
from npuscope.analysis.flops.model.architecture import GroupedQueries, Model
from npuscope.analysis.flops.model.model import count
from npuscope.analysis.means import job_steps
from npuscope.analysis.scope import PLACE, Scope
from npuscope.analysis.summaries import summarise
from npuscope.analysis.trends import trends
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.dashboard.terminal.mfu_tables import mfu_table
from npuscope.messages import Message
from npuscope.profile import summary_versions
from npuscope.sample_traces.generate import small, write_job
from tests.analysis.tables import connect, fill, kernel, op

TINY = Model("tiny", layers=2, hidden_size=64, vocabulary_size=100, ffn_size=128,
             attention=GroupedQueries(4, 4, 16))  # fmt: skip
MATMUL = {
    "type": "MatMulV3", "core": "AI_CORE", "block_count": 20, "input_shapes": "64,32;32,16",
    "input_dtypes": "DT_BF16;DT_BF16", "output_shapes": "64,16", "output_dtypes": "DT_BF16",
    "aic_time_ns": 100.0, "aic_cycles": 100.0 * 20 * 1.5,
}  # fmt: skip
FLOPS = 2 * 64 * 32 * 16
PEAK = 20 * 1500e6 * 8192
GRADIENT = {
    **MATMUL, "type": "FlashAttentionScoreGrad", "core": "MIX_AIC",
    "input_shapes": "1,64,1024;1,64,1024;1,64,1024;1,64,1024;;1,8,64,8;1,8,64,8",
    "input_dtypes": "", "output_shapes": "1,64,1024;1,64,1024;1,64,1024",
}  # fmt: skip


def open_profile(path: Path) -> Any:
    return store.open(path, summaries=summary_versions())


@pytest.fixture(scope="module")
def qwen(real_stores: Callable[[str], Path]) -> Figures:
    con = open_profile(real_stores("qwen3_pp2_dp2_text_level2"))
    return mfu(con)


def test_a_real_training_step(qwen: Figures, goldens: dict[str, Any]) -> None:
    golden = goldens["qwen3_pp2_dp2_text_level2_mfu"]["0"]
    (row,) = qwen.rows.filter(pl.col("rank") == 0).to_dicts()
    assert row["matmul_flops"] == golden["matmul_flops"] == 10823317585920
    assert row["attention_flops_full"] == golden["fa_fwd_full"] + golden["fa_bwd_full_2.5x"]
    assert row["attention_flops_causal"] * 2 == row["attention_flops_full"]
    assert (row["other_flops"], row["unresolved_kernel_ns"]) == (0, 0)
    assert row["step_ns"] == golden["e2e_ns"]
    assert row["peak_flops_per_s"] == golden["peak_flops"] == 270.336e12
    for name, expected in (
        ("kernel_mfu_causal_ratio", golden["mfu_causal"]),
        ("kernel_mfu_full_ratio", golden["mfu_full"]),
        ("matmul_mfu_ratio", golden["mfu_matmul_only"]),
    ):
        assert row[name] == pytest.approx(expected, abs=1e-12)
    assert "inferred" in row["peak_source"] and ACTIVITY in row["conventions"]
    assert row["frequency_ratio"] == pytest.approx(1, abs=1e-6)


def test_ranks_read_lightly_have_no_figures(qwen: Figures) -> None:
    (row,) = qwen.rows.filter(pl.col("rank") == 1).to_dicts()
    unknown = set(column_names("mfu")) - {*PLACE, "peak_flops_per_s", "peak_source", "conventions"}
    assert {name for name in unknown if row[name] is not None} == set()
    assert any("without kernels" in note for note in qwen.notes)


def test_kernels_of_a_real_step(
    real_stores: Callable[[str], Path], goldens: dict[str, Any]
) -> None:
    by_type = goldens["qwen3_pp2_dp2_text_level2"]["0"]["flops"]["by_type"]
    con = open_profile(real_stores("qwen3_pp2_dp2_text_level2"))
    work = kernel_work(counted_kernels(con), attention="full").filter("is_cube")
    assert sorted(work["type"]) == sorted(by_type)
    for row in work.to_dicts():
        assert row["total_ns"] == by_type[row["type"]]["dur_ns"]
        assert row["flops"] == by_type[row["type"]].get("flops", row["flops"])
    assert work["flops"].sum() == 24292335026176


@pytest.mark.parametrize("name", ["alexnet_ddp_text_level1", "alexnet_ddp_db_level1"])
def test_convolutions_in_single_precision(
    name: str, real_stores: Callable[[str], Path], goldens: dict[str, Any]
) -> None:
    """Text and database agree; the peak of FP32 is not known of a chip without a name."""
    con = open_profile(real_stores(name))
    found = mfu(con)
    expected = goldens["alexnet_ddp_text_level1"]["0"]["flops"]["matmul_flops"]
    assert found.rows["matmul_flops"].to_list() == [expected] * 2
    assert found.rows["other_flops"].to_list() == [112375627776] * 2
    assert (found.rows["unresolved_kernel_ns"] > 600_000).all()
    assert found.rows["peak_flops_per_s"].null_count() == 2
    assert any("--peak fp32" in note for note in found.notes)
    assert any("at most one block" in note for note in found.notes)
    given = mfu(con, given_peaks={"fp32": 83e12}).rows
    of_ranks = goldens[name]
    for row in given.to_dicts():
        (one,) = of_ranks[str(row["rank"])]["steps"].values()
        assert row["step_ns"] == one["kernel_details" if "text" in name else "db"]["e2e_ns"]
        executed = row["matmul_flops"] + row["other_flops"]
        assert row["kernel_mfu_full_ratio"] == pytest.approx(
            executed / (row["step_ns"] * 1e-9 * 83e12)
        )
        assert row["frequency_ratio"] is None


def test_level_0_has_neither_shapes_nor_a_peak(real_stores: Callable[[str], Path]) -> None:
    found = mfu(
        open_profile(real_stores("alexnet_ddp_text_level0")), given_peaks={"bf16": 353.9e12}
    )
    for row in found.rows.to_dicts():
        assert row["matmul_flops"] is row["attention_flops_full"] is row["other_flops"] is None
        assert row["kernel_mfu_causal_ratio"] is row["kernel_mfu_full_ratio"] is None
        assert row["unresolved_kernel_ns"] > 8_000_000 and row["peak_flops_per_s"] == 353.9e12
    assert any("Level1" in note for note in found.notes)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figures]:
    """A job whose first rank is slow, as text and as databases."""
    folder = tmp_path_factory.mktemp("mfu")
    described = small(slow_clock=1, slow_clock_factor=1.25, memory=False, comm_tasks=False)
    write_job(described, folder / "text", forms=("text",))
    write_job(described, folder / "db", forms=("db",))
    found = {}
    for form in ("text", "db"):
        assert ingest(folder / form, folder / f"{form}-store", summarise=summarise, jobs=1)
        found[form] = mfu(open_profile(folder / f"{form}-store"))
    return found


@pytest.mark.slow
def test_text_and_database_agree(job: dict[str, Figures]) -> None:
    text, database = (job[form].rows for form in ("text", "db"))
    same = [
        name
        for name in column_names("mfu")
        if name not in ("run", "capture", "peak_source", "step_ns")
    ]
    counts = [name for name in same if name.endswith(("flops", "causal", "full"))]
    assert text.select(counts).equals(database.select(counts))
    assert text["peak_flops_per_s"].unique().to_list() == [20 * 1800e6 * 8192]
    assert database["peak_flops_per_s"].unique().to_list() == [20 * 1800e6 * 8192]
    assert (text["kernel_mfu_full_ratio"] > 0.01).all()
    assert (text["unresolved_kernel_ns"] == 0).all() and job["text"].notes == []


@pytest.mark.slow
def test_a_slow_clock_is_seen(job: dict[str, Figures]) -> None:
    for figures in job.values():
        ratios = figures.rows.group_by("rank").agg(pl.col("frequency_ratio").mean()).sort("rank")
        slow = dict(ratios.iter_rows())
        assert slow[0] == pytest.approx(1, abs=1e-3) and slow[1] == pytest.approx(0.8, abs=1e-3)


@pytest.mark.slow
def test_the_sample_has_figures(sample_store: Path) -> None:
    """Eight ranks, as text, as databases and as both."""
    found = mfu(open_profile(sample_store), use=ModelUse(TINY, 2048, 8192, recompute="none"))
    assert found.rows.height == 16
    known = found.rows
    assert known.drop_nulls().height == 16 and (known["unresolved_kernel_ns"] == 0).all()
    assert known["peak_flops_per_s"].unique().to_list() == [20 * 1800e6 * 8192]
    assert known["attention_flops_full"].n_unique() == 1
    assert known["kernel_mfu_full_ratio"].is_between(0.1, 0.5).all()


def step_times(con: Any) -> list[tuple[int | None, int]]:
    return job_steps(con).sort("step", nulls_last=True).select("step", "step_ns").rows()


def test_lengths_of_steps() -> None:
    """From start to start on the device; of the last, to its own end; where operations were left
    out and so nothing tells when its work begins, by the host's windows."""
    con = connect()
    fill(con, "kernels", [kernel(10 + 101 * n, 20, step=n) for n in (1, 2, 4)])
    fill(con, "kernels", [kernel(5, 20, rank=1)])
    fill(con, "kernels", [kernel(10 + 100 * n, 20, step=n, rank=2) for n in (1, 2, 4)])
    windows = [(1, 100, 190), (2, 205, 300), (4, 400, 460)]
    fill(con, "steps", [{"rank": rank, "step": s, "window_start_ns": a, "window_end_ns": b}
                        for s, a, b in windows for rank in (0, 2)])  # fmt: skip
    fill(con, "ranks", [
        {"rank": 0}, {"rank": 1}, {"rank": 2, "left_out_tables": ["comm_ops"]},
    ])  # fmt: skip
    rows = step_lengths(con).select("rank", "step", "step_ns", "length_basis").rows()
    assert rows == [
        (0, 1, 101, TO_NEXT), (0, 2, 20, ACTIVITY), (0, 4, 20, ACTIVITY), (1, None, 20, ACTIVITY),
        (2, 1, 105, WINDOW), (2, 2, 95, WINDOW), (2, 4, 60, WINDOW),
    ]  # fmt: skip
    assert step_lengths(con, Scope(step=1)).rows() == [
        *step_lengths(con, Scope(rank=0)).rows()[:1], *step_lengths(con, Scope(rank=2)).rows()[:1],
    ]  # fmt: skip
    # The job's: the latest starts, of rank 0; where only windows tell, the longest of these.
    assert step_times(con) == [(1, 101), (2, 20), (4, 20), (None, 20)]
    con.execute("delete from ranks where rank < 2")
    con.execute("delete from kernels where rank < 2")
    assert step_times(con) == [(1, 105), (2, 95), (4, 60)]


def one_rank(*kernels: dict[str, object], **facts: object) -> Any:
    con = connect()
    fill(con, "ranks", [{"world_size": 1, "tp_size": 1, "cp_size": 1, "dp_size": 1, **facts}])
    fill(con, "kernels", [kernel(200 * n, 100, step=7, **one) for n, one in enumerate(kernels)])
    return con


def test_unknown_is_null_and_nothing_is_zero() -> None:
    unread = {**MATMUL, "input_shapes": None}
    (row,) = mfu(one_rank(MATMUL, {"type": "Add", "core": "AI_VECTOR_CORE"})).rows.to_dicts()
    assert (row["matmul_flops"], row["attention_flops_full"], row["other_flops"]) == (FLOPS, 0, 0)
    assert row["kernel_mfu_full_ratio"] == pytest.approx(FLOPS / (300e-9 * PEAK))
    found = mfu(one_rank(MATMUL, unread))
    (row,) = found.rows.to_dicts()
    assert (row["matmul_flops"], row["unresolved_kernel_ns"]) == (FLOPS, 100)
    assert "unresolved" in row["conventions"] and "shapes were not recorded" in found.notes[0]
    (row,) = mfu(one_rank(unread)).rows.to_dicts()
    assert (row["matmul_flops"], row["attention_flops_full"]) == (None, 0)
    assert row["kernel_mfu_full_ratio"] is None and row["matmul_mfu_ratio"] is None
    (row,) = mfu(one_rank(MATMUL, {"core": "AI_CORE"})).rows.to_dicts()  # one without a type
    assert (row["matmul_flops"], row["attention_flops_full"]) == (FLOPS, 0)
    assert row["unresolved_kernel_ns"] == 100


def test_what_keeps_mfu_from_being_known_is_told_as_such() -> None:
    """With FLOPs of some kernels it is the peak that is missing, though others have none."""
    unread = {**MATMUL, "input_shapes": None}
    single = {**MATMUL, "input_dtypes": "FLOAT;FLOAT", "output_dtypes": "FLOAT"}
    found = mfu(one_rank(single, unread))
    assert found.rows["kernel_mfu_causal_ratio"].null_count() == 1
    assert "FLOPs" in found.notes[0] and "--peak fp32" in why_unknown(found)
    assert found.rows["peak_flops_per_s"].null_count() == 1
    found = mfu(one_rank(unread))
    assert why_unknown(found) == found.notes[0]


def test_clocks_without_cycles_are_the_counter_s() -> None:
    plain = {**MATMUL, "aic_time_ns": None, "aic_cycles": None}
    con = one_rank(plain, ai_core_count=20, ai_core_frequency_mhz=1800.0)
    assert mfu(con).rows["frequency_ratio"].to_list() == [None]
    readings = [{"name": "AI Core Freq", "series": "MHz", "timestamp_ns": t, "value": 1350.0}
                for t in (0, 50)]  # fmt: skip
    fill(con, "counters", readings)
    found = mfu(con)
    assert found.rows["frequency_ratio"].to_list() == [0.75]
    assert found.rows["peak_flops_per_s"].to_list() == [20 * 1800e6 * 8192]


def test_keys_beside_queries_leave_causal_unknown() -> None:
    """What a mask leaves is not in its shape. Without one no pair is left out."""
    shapes = "1,64,1024;1,32,1024;1,32,1024;1,64,1024;{};1,8,64,8;1,8,64,8"
    ring = {**GRADIENT, "input_shapes": shapes.format("")}
    found = mfu(one_rank(MATMUL, ring))
    (row,) = found.rows.to_dicts()
    assert row["attention_flops_causal"] == row["attention_flops_full"] == 5 * 64 * 32 * 2048
    assert row["kernel_mfu_causal_ratio"] == row["kernel_mfu_full_ratio"]
    assert not any("mask" in note for note in found.notes)
    found = mfu(one_rank(MATMUL, {**ring, "input_shapes": shapes.format("2048,2048")}))
    (row,) = found.rows.to_dicts()
    assert row["attention_flops_full"] == 5 * 64 * 32 * 2048
    assert row["attention_flops_causal"] is row["kernel_mfu_causal_ratio"] is None
    assert row["kernel_mfu_full_ratio"] and row["unresolved_kernel_ns"] == 0
    assert any("mask" in note for note in found.notes)


def test_a_gpu_has_no_kernel_flops() -> None:
    found = mfu(one_rank({**MATMUL, "type": "aten::mm"}, framework="kineto"))
    (row,) = found.rows.to_dicts()
    assert (row["matmul_flops"], row["peak_flops_per_s"]) == (None, None)
    assert row["unresolved_kernel_ns"] == 100
    assert any("GPU" in note for note in found.notes)


def test_kernels_above_the_peak_are_told() -> None:
    con, reached = one_rank(MATMUL), FLOPS / 100e-9
    for share, is_told in ((0.99, False), (1.5, True)):
        found = mfu(con, given_peaks={"bf16": reached / share, "fp16": reached / share})
        assert any("150.0 % of the peak" in note for note in found.notes) == is_told
        assert any("cannot be" in note for note in found.notes) == is_told


def test_model_figures() -> None:
    con = one_rank(MATMUL, world_size=4)
    use = ModelUse(TINY, sequence_length=32, tokens_per_step=1000, recompute="full")
    (row,) = mfu(con, use=use).rows.to_dicts()
    per_token = float(count(TINY, sequence_length=32).train_flops)
    assert row["model_flops"] == 1000 * per_token
    assert row["model_mfu_ratio"] == pytest.approx(1000 * per_token / (100e-9 * 4 * PEAK))
    assert row["hfu_ratio"] == pytest.approx(row["model_mfu_ratio"] * 4 / 3)
    assert "tiny" in row["conventions"] and "1000 tokens per step" in row["conventions"]
    full = ModelUse(TINY, sequence_length=32, tokens_per_step=1000, attention="full")
    (other,) = mfu(con, use=full).rows.to_dicts()
    assert other["model_flops"] > row["model_flops"] and other["hfu_ratio"] is None


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (ModelUse(TINY, tokens_per_step=10), "--sequence-length"),
        (ModelUse(TINY, sequence_length=32), "--tokens-per-step"),
        (ModelUse(TINY, sequence_length=32, tokens_per_step="auto"), "--tokens-per-step"),
        (ModelUse(TINY, sequence_length=32, tokens_per_step=10), "--recompute"),
        (ModelUse(TINY, sequence_length=32, tokens_per_step=10**9), "would exceed 1"),
    ],
)
def test_what_is_missing_is_said(use: ModelUse, remedy: str) -> None:
    assert any(remedy in note for note in mfu(one_rank(MATMUL), use=use).notes)


def test_ranks_of_the_job_not_known() -> None:
    use = ModelUse(TINY, sequence_length=32, tokens_per_step=10)
    con = one_rank(MATMUL, world_size=None)
    found = mfu(con, use=use)
    assert found.rows["model_mfu_ratio"].null_count() == 1
    assert any("number of ranks" in note for note in found.notes)
    fill(con, "groups", [{"parallel_kind": "world", "global_ranks": [0, 1]}])
    assert mfu(con, use=use).rows["world_size"].to_list() == [2]


def test_tokens_from_gradients_of_attention() -> None:
    """Two layers, three micro batches of 64 tokens; the length is the shapes' own."""
    use = ModelUse(TINY, tokens_per_step="auto")
    (row,) = mfu(one_rank(*[GRADIENT] * 6), use=use).rows.to_dicts()
    assert row["model_flops"] == 3 * 64 * float(count(TINY, sequence_length=64).train_flops)
    for con in (
        one_rank(*[GRADIENT] * 5),
        one_rank(*[GRADIENT] * 6, world_size=2),
        one_rank(*[GRADIENT] * 6, cp_size=2),
        one_rank(*[GRADIENT] * 6, {**GRADIENT, "input_shapes": None}),
    ):
        found = mfu(con, use=use)
        assert found.rows["model_flops"].null_count() == 1
        assert any("--tokens-per-step N" in note for note in found.notes)


CAUSAL = "kernel_mfu_causal_ratio"


def test_stages_and_the_job() -> None:
    """Two stages of one rank, the second twice as long: sums over sums, tokens over the longest."""
    large = {**MATMUL, "input_shapes": "640,320;320,160", "output_shapes": "640,160"}
    con, flops = one_rank(large, world_size=2, pp_rank=0), 2 * 640 * 320 * 160
    fill(con, "ranks", [{"rank": 1, "world_size": 2, "pp_rank": 1}, {"rank": 2, "pp_rank": 1}])
    fill(con, "kernels", [kernel(0, 200, rank=1, step=7, **{**large, "aic_cycles": 2000.0})])
    use = ModelUse(TINY, sequence_length=32, tokens_per_step=10, recompute="full")
    rows = mfu(con, use=use).rows
    (job,) = gather_figures(con, rows, "job").to_dicts()
    assert (job["rank_count"], job["step_ns"], job["matmul_flops"]) == (2, 200, 2 * flops)
    assert job["kernel_mfu_full_ratio"] == pytest.approx(2 * flops / (300e-9 * PEAK))
    assert job["tokens_per_s"] == pytest.approx(10 / 200e-9)
    assert job["tokens_per_s_per_rank"] == pytest.approx(5 / 200e-9)
    train = 10 * float(count(TINY, sequence_length=32).train_flops)
    assert job["model_mfu_ratio"] == pytest.approx(train / (200e-9 * 2 * PEAK))
    assert job["hfu_ratio"] == pytest.approx(job["model_mfu_ratio"] * 4 / 3)
    stages = gather_figures(con, rows, "stage")
    assert stages["stage"].to_list() == [0, 1] and "model_flops" not in stages.columns
    assert stages["matmul_mfu_ratio"].to_list() == pytest.approx(
        [flops / (100e-9 * PEAK), flops / (200e-9 * PEAK)]
    )
    # A step that one rank alone recorded weighs as that rank's time in it, not as a step of both.
    fill(con, "kernels", [kernel(400, 100, step=8, **{**large, "aic_cycles": 1000.0})])
    # Rank 1's chip could do twice as much.
    is_fast = pl.col("rank") == 1
    rows = mfu(con, use=use).rows.with_columns(
        pl.col("peak_flops_per_s") * pl.when(is_fast).then(2).otherwise(1),
        pl.col("kernel_mfu_full_ratio") / pl.when(is_fast).then(2).otherwise(1),
    )
    figures = dict(mean_use(con, rows, ["run", "capture"]).select("figure", "value").rows())
    assert figures["kernel_mfu_full_ratio"] == pytest.approx(
        3 * flops / ((400 + 100 + 2 * 200) * 1e-9 * PEAK)
    )
    assert figures["model_mfu_ratio"] == pytest.approx(figures["hfu_ratio"] * 3 / 4)
    here = mean_use(con, mfu(con).rows, ["run", "capture"]).filter(figure=CAUSAL)["value"]
    assert trends(con).captures[CAUSAL].to_list() == pytest.approx(here.to_list())


def test_rooflines() -> None:
    con = one_rank(MATMUL, MATMUL, {**MATMUL, "input_shapes": None})
    given = {"hbm": 1e12}
    table = roofline.kernel_table(counted_kernels(con), peaks(con, given))
    known, unknown = sorted(table.to_dicts(), key=lambda row: row["flops"] is None)
    moved = 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert (known["count"], known["total_ns"], known["flops"]) == (2, 200, FLOPS)
    assert known["moved_bytes"] == moved and known["bound"] == "memory"
    assert known["achieved_flops_per_s"] == pytest.approx(FLOPS / 100e-9)
    assert known["roofline_flops_per_s"] == pytest.approx(FLOPS / (moved / 1e12))
    assert known["roofline_share_ratio"] == pytest.approx(moved / 1e12 / 100e-9)
    assert known["peak_share_ratio"] == pytest.approx(FLOPS / 100e-9 / PEAK)
    assert unknown["reason"] and unknown["achieved_flops_per_s"] is None
    plain = roofline.kernel_table(counted_kernels(con), peaks(con), top=1)
    assert plain.height == 1 and plain["roofline_flops_per_s"].null_count() == 1


def test_communication_alone_has_no_kernel_figures() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0}])
    fill(con, "comm_ops", [op(0, 10, step=1)])
    (row,) = mfu(con).rows.to_dicts()
    assert row["matmul_flops"] is None and row["kernel_mfu_full_ratio"] is None
    assert mfu(connect()).rows.is_empty()


def test_parts_of_conventions_are_kept_as_parts(job: dict[str, Figures]) -> None:
    found = job["text"]
    texts = found.rows["conventions"].unique().to_list()
    assert texts and {*texts} == found.conventions.keys()
    for text, parts in found.conventions.items():
        assert "; ".join(parts) == text and len(parts) > 2
        (peak,) = [part for part in parts if isinstance(part, Message)]
        assert peak.template == "peak of {dtype}"
    caption = str(mfu_table(found.rows, dict.fromkeys(texts, ("a; b", "c"))).caption)
    assert caption.startswith("a; b; c; peak: ")
