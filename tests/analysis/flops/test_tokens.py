"""Tokens of a step from the repetition of layers, and models that need more than was executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from npuscope.analysis.flops.job_mfu import gather_figures
from npuscope.analysis.flops.mfu import Figures, ModelUse, mfu
from npuscope.analysis.flops.model.architecture import Experts, GroupedQueries, Model
from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.model.model import Recompute, count
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.tables import connect, fill, kernel, put

JOB = Job(name="job", layers=4, experts=0, tp=1, pp=2, dp=2, ep=1, steps=1, crossing=False,
          memory=False, comm_tasks=False)  # fmt: skip
# No more than what the job's kernels do.
MODEL = Model("dense", layers=4, hidden_size=1024, vocabulary_size=1000,
              attention=GroupedQueries(16, 16, 64), ffn_size=704)  # fmt: skip
AUTO = ModelUse(MODEL, tokens_per_step="auto")
SLOW = pytest.mark.slow
TABLES = ("ranks", "groups", "steps", "kernels")


def plant(job: Job) -> Any:
    con = connect()
    put(con, canonical_frames(job, capture="c", tables=TABLES, pipes=False))
    return con


def tokens(found: Figures) -> list[int | None]:
    return found.rows["tokens_per_step"].unique().to_list()


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "micro_batches", [1, pytest.param(2, marks=SLOW), pytest.param(4, marks=SLOW), 8]
)
def test_planted_micro_batches(micro_batches: int, recompute: Recompute) -> None:
    """Of the whole job, of one stage of it, and of one rank; counted as in the whole for one."""
    job = replace(JOB, micro_batches=micro_batches, recompute=recompute)
    con, expected = plant(job), micro_batches * job.sequence * job.dp
    for kept in ((0, 1, 2, 3), (2, 3), (3,)):
        listed = ", ".join(map(str, kept))
        con.execute(f"delete from kernels where rank not in ({listed})")
        found = mfu(con, use=replace(AUTO, recompute=recompute))
        rows = found.rows.filter(pl.col("rank").is_in(kept))
        assert rows["tokens_per_step"].unique().to_list() == [expected]
        assert rows["model_flops"].unique().to_list() == [
            expected * float(count(MODEL, sequence_length=job.sequence).train_flops)
        ]
        (why,) = rows["tokens_basis"].unique().to_list()
        number = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
        assert why.startswith(f"{number} x {job.sequence} tokens x {job.dp} data-parallel ranks")
        assert ("equal stages" in why) == (len(kept) < 4)
        twice = 1 if recompute == "none" else 2
        assert why.endswith(f"run forward {twice} x as often")
        assert f"tokens per step: {expected}, {why}" in found.notes
        assert rows["hfu_ratio"].null_count() == 0
    assert tokens(mfu(con, Scope(rank=3), use=AUTO)) == [expected]


def test_tensor_parallel_ranks_share_the_tokens() -> None:
    job = replace(JOB, tp=2, layers=2, pp=1)
    found = mfu(plant(job), use=replace(AUTO, model=replace(MODEL, layers=2)))
    assert tokens(found) == [2 * job.sequence * job.dp]
    assert found.rows["model_flops"].null_count() == 0


def test_a_real_stage_of_two_micro_batches(real_stores: Callable[[str], Path]) -> None:
    """28 gradients of attention on a stage of 14 of 28 layers, one of two stages captured."""
    con = store.open(real_stores("qwen3_pp2_dp2_text_level2"))
    found = mfu(con, use=ModelUse(model_of("qwen3-0.6b"), tokens_per_step="auto"))
    assert tokens(found) == [2 * 4096 * 2]
    (row,) = found.rows.filter(pl.col("rank") == 0).to_dicts()
    per_token = float(count(model_of("qwen3-0.6b"), sequence_length=4096).train_flops)
    possible = row["step_ns"] * 1e-9 * 4 * 270.336e12
    assert row["model_mfu_ratio"] == pytest.approx(16384 * per_token / possible, rel=1e-12)
    assert "28 gradients of attention on a rank of a stage of 14 layers" in row["tokens_basis"]
    (job,) = gather_figures(con, found.rows, "job").to_dicts()
    assert job["tokens_per_step"] == 16384

    other = mfu(con, use=ModelUse(model_of("qwen3-1.7b"), tokens_per_step="auto"))
    (told,) = [note for note in other.notes if "refused" in note]
    assert "40.41 TFLOP" in told and "17.56 TFLOP" in told and "1.05 x" in told
    assert other.rows["model_flops"].null_count() == 2 and tokens(other) == [16384]
    twice = mfu(con, use=ModelUse(model_of("qwen3-0.6b"), tokens_per_step=2 * 16384))
    assert twice.rows["model_mfu_ratio"].null_count() == 2
    assert any("33.19 TFLOP" in note and "17.56 TFLOP" in note for note in twice.notes)


MATMUL = {
    "type": "MatMulV3", "core": "AI_CORE", "block_count": 20, "input_shapes": "2048,1024;1024,1024",
    "input_dtypes": "DT_BF16;DT_BF16", "output_shapes": "2048,1024", "output_dtypes": "DT_BF16",
    "aic_time_ns": 100.0, "aic_cycles": 100.0 * 20 * 1.5,
}  # fmt: skip
SIZES = {"world_size": 2, "tp_size": 1, "pp_size": 2, "cp_size": 1, "dp_size": 1}
GRADIENT = {
    "type": "FlashAttentionScoreGrad", "core": "MIX_AIC", "block_count": 20,
    "input_shapes": "1,64,1024;1,64,1024;1,64,1024;1,64,1024;;1,8,64,8;1,8,64,8",
    "output_shapes": "1,64,1024;1,64,1024;1,64,1024",
}  # fmt: skip
FORWARD = {
    **GRADIENT, "type": "FlashAttentionScore", "input_shapes": "1,64,1024;1,64,1024;1,64,1024",
    "output_shapes": "1,8,64,8;1,8,64,8;;1,64,1024",
}  # fmt: skip
SMALL = Model("small", layers=4, hidden_size=64, vocabulary_size=100, ffn_size=128,
              attention=GroupedQueries(4, 4, 16))  # fmt: skip


def counts(
    gradients: dict[int, int],
    *,
    model: Model = SMALL,
    forwards: int = 0,
    gradient: dict[str, Any] = GRADIENT,
    other: dict[str, Any] | None = None,
    groups: dict[str, list[int]] | None = None,
    stages: dict[int, int | None] | None = None,
    **sizes: int | None,
) -> tuple[int | None, str]:
    """Tokens of a step by gradients on each rank, and what is said of them."""
    con = connect()
    told = {**SIZES, **sizes}
    place = stages or {rank: rank for rank in gradients}
    fill(con, "ranks", [{"rank": rank, "pp_rank": place[rank], **told} for rank in gradients])
    for kind, members in (groups or {}).items():
        fill(con, "groups", [{"rank": rank, "parallel_kind": kind, "global_ranks": members,
                              "group_rank": members.index(rank)}
                             for rank in gradients if rank in members])  # fmt: skip
    for rank, times in gradients.items():
        each = [gradient] * times + [FORWARD] * forwards + ([other] if other else [])
        fill(con, "kernels", [kernel(200 * n, 100, step=7, rank=rank, **one)
                              for n, one in enumerate(each)])  # fmt: skip
    found = mfu(con, use=ModelUse(model, sequence_length=64, tokens_per_step="auto"))
    (number,) = tokens(found)
    return number, " ".join(found.notes)


MTP = replace(SMALL, mtp_depth=1)
UNKNOWN_SIZES = dict.fromkeys(SIZES, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("micro_batches", "gradients", "options"),
    [
        (3, {0: 6}, {}),
        (3, {0: 9, 1: 3}, {}),  # stages of 3 layers and of 1
        (3, {0: 0, 1: 12}, {"other": MATMUL}),  # one without attention
        (3, {0: 6, 1: 9}, {"model": MTP}),
        (3, {0: 6}, {"model": MTP}),
        (3, {1: 9}, {"model": MTP}),
        (3, {0: 12, 1: 0}, {"pp_size": 1, "dp_size": 2, "dp_rank": None}),
        (3, {0: 6}, {"forwards": 6}),
        (3, {0: 6}, {"forwards": 12}),
        (3, {0: 6}, {"tp_size": None}),
        (3, {0: 6}, {"stages": {0: None}}),
        (3, {0: 6}, {"dp_size": None}),  # world / the others
        (3, {0: 6}, {"pp_size": None, "groups": {"pp": [0, 1]}}),
        (
            3, {0: 6},
            {**UNKNOWN_SIZES, "groups": {"world": [0, 1], "pp": [0, 1]}, "stages": {0: None}},
        ),
        (3, {0: 6, 1: 9}, {"model": MTP, "stages": {0: None, 1: None}, "groups": {"pp": [0, 1]}}),
    ],
)  # fmt: skip
def test_micro_batches_of_gradients(
    micro_batches: int, gradients: dict[int, int], options: dict[str, Any]
) -> None:
    replicas = options.get("dp_size") or 1
    options = {name: value for name, value in options.items() if name != "dp_rank"}
    number, notes = counts(gradients, **options)
    assert number == micro_batches * 64 * replicas
    assert f"{micro_batches} micro-batches x 64 tokens x {replicas} data" in notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gradients", "options", "reason"),
    [
        ({0: 5}, {}, "not those of equal micro-batches"),
        ({0: 6, 1: 5}, {}, "11 gradients"),
        ({0: 6}, {"model": replace(SMALL, layers=5)}, "5 layers are not split evenly"),
        ({0: 6}, {"model": replace(SMALL, noop_layers=(3,))}, "1 of 2 pipeline stages"),
        ({0: 6}, {"model": MTP, "stages": {0: None}}, "the pipeline stage of the MTP blocks"),
        ({0: 6, 1: 8}, {"stages": {0: 0, 1: 0}}, "of pipeline stage 0 ran 6 and 8"),
        ({0: 2, 2: 4}, {"pp_size": 4, "world_size": 4}, "pipeline stages ran 2 and 4"),
        ({0: 6}, {"forwards": 5}, "more backward than forward"),
        ({0: 6}, {"pp_size": None}, "parallel sizes are unknown"),
        ({0: 6}, UNKNOWN_SIZES, "parallel sizes are unknown"),
        ({0: 6}, {"world_size": 3}, "pp 2 x cp 1 x dp 1 are not 3 ranks"),
        ({0: 6}, {"cp_size": 2, "world_size": 4}, "context parallelism"),
        ({0: 6}, {"gradient": {**GRADIENT, "input_shapes": None}}, "some attention kernels"),
        ({0: 0}, {"forwards": 6}, "no backward of fused attention"),
    ],
)
def test_what_does_not_come_out_whole_is_not_known(
    gradients: dict[int, int], options: dict[str, Any], reason: str
) -> None:
    number, notes = counts(gradients, **options)
    assert number is None and reason in notes and "give --tokens-per-step N" in notes


def test_packed_sequences_tell_their_tokens() -> None:
    """Lengths are values and not recorded, so FLOPs are unknown; rows of queries are."""
    packed = {
        **GRADIENT, "input_shapes": "96,8,16;96,8,16;96,8,16;96,8,16;;96,8,8;96,8,8;3",
        "input_dtypes": "DT_BF16;DT_BF16;DT_BF16;DT_BF16;;FLOAT;FLOAT;INT64",
    }  # fmt: skip
    number, notes = counts({0: 6}, gradient=packed)
    assert number == 3 * 96 and "lengths of the sequences" in notes


EXECUTED = 2 * 2048 * 1024 * 1024
PER_TOKEN = float(count(SMALL, sequence_length=64).train_flops)


def need(*kernels: dict[str, object], factor: float, **told: Any) -> Figures:
    """A model that needs `factor` x what a matrix product takes, on one rank."""
    con = connect()
    use = {name: told.pop(name) for name in ("recompute", "model") if name in told}
    fill(con, "ranks", [{"world_size": 1, "tp_size": 1, "cp_size": 1, "dp_size": 1, **told}])
    fill(con, "kernels", [kernel(200 * n, 100, step=7, **one) for n, one in enumerate(kernels)])
    model = use.pop("model", SMALL)
    number = round(factor * EXECUTED / float(count(model, sequence_length=64).train_flops))
    return mfu(con, use=ModelUse(model, 64, number, **use))


def test_a_model_that_needs_more_than_was_executed_is_refused() -> None:
    assert need(MATMUL, factor=1.04).rows["model_flops"].null_count() == 0
    found = need(MATMUL, factor=1.06, recompute="none")
    (row,) = found.rows.to_dicts()
    assert row["model_flops"] is row["model_mfu_ratio"] is row["hfu_ratio"] is None
    assert row["tokens_per_step"] is not None and row["tokens_basis"] == "as given"
    (note,) = [note for note in found.notes if "refused" in note]
    assert note.startswith("model FLOPs refused: small needs 0.004553 TFLOP")
    assert "executed 0.004295 TFLOP" in note and "1.05 x" in note


def test_with_kernels_of_unknown_flops_it_is_a_note() -> None:
    unknown = {**MATMUL, "input_shapes": None}
    found = need(MATMUL, unknown, factor=3)
    assert found.rows["model_flops"].null_count() == 0
    assert any("kernels of unknown FLOPs" in note for note in found.notes)
    assert not any("kernels of unknown FLOPs" in note
                   for note in need(MATMUL, unknown, factor=0.9).notes)  # fmt: skip


def test_recomputed_work_that_was_not_executed_is_refused() -> None:
    """HFU alone: the model's own need is met."""
    found = need(MATMUL, factor=0.9, recompute="full")
    (row,) = found.rows.to_dicts()
    assert row["model_mfu_ratio"] is not None and row["hfu_ratio"] is None
    assert any(note.startswith("HFU refused: small needs") for note in found.notes)
    assert need(MATMUL, factor=0.7, recompute="full").rows["hfu_ratio"].null_count() == 0


def test_a_part_of_the_ranks_has_its_share() -> None:
    """One of four; nothing is said where stages are not known, and more is let pass where they
    may be uneven."""
    share = {"world_size": 4, "pp_size": 1, "dp_size": 4}
    assert need(MATMUL, factor=4.1, **share).rows["model_flops"].null_count() == 0
    assert need(MATMUL, factor=4.3, **share).rows["model_flops"].null_count() == 1
    assert need(MATMUL, factor=40, world_size=4).rows["model_flops"].null_count() == 0
    staged = {"world_size": 4, "pp_size": 4, "dp_size": 1}
    layers = 1 - 2 * 64 * 100 * 3 / PER_TOKEN  # a stage may be without the head
    assert need(MATMUL, factor=5.9 / layers, **staged).rows["model_flops"].null_count() == 0
    assert need(MATMUL, factor=6.1 / layers, **staged).rows["model_flops"].null_count() == 1
    # Experts of the ranks that were not recorded may have the tokens.
    routed = replace(SMALL, experts=Experts(routed=8, top_k=2, ffn_size=128))
    assert need(MATMUL, factor=4.5, model=routed, **share).rows["model_flops"].null_count() == 0
