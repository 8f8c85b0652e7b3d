"""Published jobs lie within the intervals of their predictions: nothing was fitted to them.

What is not published is a range here: the card, the sequences of a step. Sources: arXiv 2505.04519
(718 B), 2504.07866 (135 B), "Insights into DeepSeek-V3" (ISCA 2025), table 4.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.strategy.constants import Constants, default_constants
from npuscope.analysis.strategy.cost import step_parts
from npuscope.analysis.strategy.describe import job_of_strategy, machine_of
from npuscope.analysis.strategy.job import Job, Machine
from npuscope.analysis.strategy.predict import Interval, Prediction, predict
from tests.analysis.strategy.jobs import JOB

# 61 layers and a block of multi-token prediction with its head are laid out as 64.
_LAYERS = "layers=" + "+".join(["4"] * 15 + ["1"])
_CHUNKS = "layers=" + "+".join(["2"] * 30 + ["1", "0"])
_MOE = "tp=8,pp=16,ep=32,etp=1,mbs=2,seq=8192,"
_OVERLAPPED = "fb_overlap=1,node_exchange=1,fused_permute=1,vpp=2," + _CHUNKS
_PLAIN = "fused_permute=0," + _LAYERS
_DENSE = "tp=8,pp=8,mbs=1,gbs=2048,seq=8192,mc2=1"


def _job(model: str, chip: str, nodes: int, strategy: str) -> Job:
    return job_of_strategy(model_of(model), machine_of(chip), (nodes, 8), strategy)


def _holds(found: Interval, told: float) -> bool:
    near = abs(log(found.predicted / told)) < 0.185  # nearer than jobs of the kind are held
    return near and found.low <= told <= found.high


@pytest.mark.parametrize(("nodes", "strategy", "tokens_per_s"), [
    (768, f"gbs=6144,{_OVERLAPPED}", 1.46e6),  # MFU 30.0 %
    (768, f"gbs=24576,{_OVERLAPPED}", 1.46e6),
    (512, f"gbs=4096,{_PLAIN}", 0.61e6),  # MFU 18.9 %: the same without the two changes
    (512, f"gbs=16384,{_PLAIN}", 0.61e6),
])  # fmt: skip
def test_718_billion_with_experts(nodes: int, strategy: str, tokens_per_s: float) -> None:
    found = predict(_job("pangu-ultra-moe-718b", "910B3", nodes, _MOE + strategy))
    assert _holds(found.tokens_per_s, tokens_per_s)


def _bubble(found: Prediction) -> float:
    """Of forward, backward and waiting."""
    once = ("dp_comm", "optimizer", "step")
    parts = {name: seconds for name, seconds in found.parts_s.items() if name not in once}
    return parts["bubble"] / sum(parts.values())


def test_135_billion_and_its_bubbles() -> None:
    plain = predict(_job("pangu-ultra-135b", "910B3", 1024, _DENSE))
    chunked = predict(_job("pangu-ultra-135b", "910B3", 1024, _DENSE + ",vpp=6"))
    assert _holds(chunked.mfu, 0.52)
    # Published of even stages; 94 layers and a head are not even.
    assert _bubble(plain) == pytest.approx(0.3045, abs=0.01)
    assert _bubble(chunked) == pytest.approx(0.068, abs=0.005)


def _h800() -> Constants:
    """Links and memory as published; products in FP8 at twice the BF16 rate; tokens go to 4 of 8
    nodes at most, there in FP8 and back in BF16: 3.5 of 7 copies of 1.5 of 2 bytes."""
    known = default_constants()
    return known | {
        "memory_bytes_per_s": 0.8 * 3.35e12, "hccs_link_bytes_per_s": 160e9 / 7,
        "roce_bytes_per_s": 40e9 / (3.5 / 7 * 1.5 / 2),
        "matmul_efficiency": 2 * known["matmul_efficiency"],
        "expert_efficiency": 2 * known["expert_efficiency"],
    }  # fmt: skip


def test_a_step_on_2048_h800() -> None:
    strategy = f"tp=1,pp=16,ep=64,mbs=1,gbs=15360,seq=4096,{_LAYERS},"
    strategy += "fb_overlap=1,node_exchange=1,fused_permute=1,mla_fa_without_pad=1"
    job = _job("deepseek-v3", "910B2", 256, strategy)
    found = predict(replace(job, machine=Machine(989e12, 80 * 2.0**30)), _h800())
    assert _holds(found.step_s, 19.926)
    assert found.parts_s["bubble"] / found.step_s.predicted == pytest.approx(0.1034, abs=0.02)


def test_a_part_with_a_fifth_more_cores_is_at_most_a_fifth_faster() -> None:
    """353.9 and 294.9 TFLOP/s: what is bound by the cube gains 1.20, links and vectors nothing."""
    fast, slow = (
        predict(replace(JOB, machine=Machine(peak))).parts_s for peak in (353.9e12, 294.9e12)
    )
    assert slow["matmul"] / fast["matmul"] == pytest.approx(1.20, rel=1e-3)
    assert slow["vector"] == fast["vector"]
    assert 1.0 < sum(slow.values()) / sum(fast.values()) < 1.20


def _exchange_s(job: Job) -> float:
    free = default_constants() | {"expert_sync_seconds": 0.0, "collective_seconds": 0.0}
    return float(step_parts(job, free | {"hccs_link_bytes_per_s": 1e30})["ep_comm"])


def test_four_nodes_exchange_half_when_each_gets_a_token_once() -> None:
    """8 copies, a quarter of which stay: 6 between nodes, against 3 (published: twice as fast)."""
    flat, once = (
        _job("pangu-ultra-moe-718b", "910B3", 768, f"{_MOE}gbs=6144,node_exchange={on}")
        for on in (0, 1)
    )
    skew = default_constants()["expert_skew"]
    assert _exchange_s(flat) / skew == pytest.approx(2 * _exchange_s(once))


def test_a_pair_of_micro_batches_hides_all_but_half_of_filling_and_draining() -> None:
    strategy = f"{_MOE}gbs=49152,node_exchange=1,fb_overlap="
    alone, paired = (_job("pangu-ultra-moe-718b", "910B3", 768, strategy + on) for on in "01")
    assert _exchange_s(paired) / _exchange_s(alone) == pytest.approx(0.5 * 7.5 / 512)
