"""Memory by the rules of Megatron: bytes of parameters counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuscope.analysis.flops.model.architecture import Experts
from npuscope.analysis.strategy.constants import default_constants
from npuscope.analysis.strategy.job import Job, Recompute, Software
from npuscope.analysis.strategy.memory import stage_memory
from tests.analysis.strategy.jobs import DENSE, JOB

_LAYER = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024
_TABLE = 32000 * 1024
_MASK = 2048**2


def _allocation(job: Job) -> list[float]:
    return [float(stage.allocated_bytes) for stage in stage_memory(job, default_constants())]


def test_eighteen_bytes_for_each_parameter() -> None:
    transfers = 2 * 2 * 2048 * 1024
    of_stage = 18 * (4 * _LAYER + _TABLE) + _MASK
    assert _allocation(JOB) == pytest.approx([of_stage, of_stage + transfers])


def test_a_distributed_optimizer_cuts_twelve_of_them_over_the_replicas() -> None:
    job = replace(JOB, distributed_optimizer=True)
    assert _allocation(job)[0] == pytest.approx((6 + 12 / 4) * (4 * _LAYER + _TABLE) + _MASK)


def test_weights_shared_with_their_fp32_save_two_of_the_share() -> None:
    job = replace(JOB, distributed_optimizer=True, software=Software(reuse_fp32=True))
    assert _allocation(job)[0] == pytest.approx((6 + 10 / 4) * (4 * _LAYER + _TABLE) + _MASK)


def test_fp16_keeps_gradients_small_and_their_copy_in_the_optimizer() -> None:
    job = replace(JOB, distributed_optimizer=True, software=Software(is_half=True))
    assert _allocation(job)[0] == pytest.approx((4 + 16 / 4) * (4 * _LAYER + _TABLE) + _MASK)


def test_experts_are_cut_over_their_own_replicas() -> None:
    model = replace(DENSE, experts=Experts(routed=8, top_k=2, ffn_size=512))
    job = replace(JOB, model=model, ep=2, distributed_optimizer=True)
    attention = 4 * 1024**2 + 2 * 1024 + 8 * 1024
    dense, experts = 4 * attention + _TABLE, 4 * 4 * 3 * 1024 * 512
    expected = (6 + 12 / 4) * dense + (6 + 12 / 2) * experts + _MASK
    assert _allocation(job)[0] == pytest.approx(expected)


def test_the_first_peak_lacks_the_moments_that_later_ones_have() -> None:
    long = replace(JOB, sequence_length=16384, micro_batch=2)
    stage = stage_memory(long, default_constants())[0]
    parameters = 4 * _LAYER + _TABLE
    assert float(stage.peak_bytes - stage.first_peak_bytes) == pytest.approx(8 * parameters)


def test_recompute_keeps_only_what_goes_into_a_layer() -> None:
    job = replace(JOB, recompute=Recompute(full_layers=None))
    stage = stage_memory(job, default_constants())[0]
    assert float(stage.activations) == pytest.approx(2 * 4 * 2 * 2048 * 1024)


def test_a_stage_holds_as_many_micro_batches_as_stages_follow() -> None:
    first, last = stage_memory(JOB, default_constants())
    assert float(first.activations) == pytest.approx(2 * float(last.activations))
