"""Strategies that are refused rather than answered as another one; skew of experts."""

from __future__ import annotations

import numpy as np
import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.peaks import CHIPS
from npuscope.analysis.strategy.constants import default_constants
from npuscope.analysis.strategy.cost import step_parts
from npuscope.analysis.strategy.describe import job_of_strategy, machine_of, space_of
from npuscope.analysis.strategy.job import Job
from npuscope.analysis.strategy.search import search
from npuscope.errors import UsageError

LLAMA = "tp=8,mbs=1,seq=8192,"


def job(strategy: str, model: str = "llama3-70b", nodes: int = 8) -> Job:
    return job_of_strategy(model_of(model), machine_of("910B2"), (nodes, 8), strategy)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("pp=4,gbs=512,schedule=foo", "schedule foo is not predicted: known are 1f1b"),
        ("pp=4,gbs=512,schedule=zb-h1", "schedule zb-h1 is not predicted"),
        ("pp=4,gbs=512,schedule=dualpipe", "schedule dualpipe is not predicted"),
        ("pp=4,gbs=512,schedule=interleaved", "give vpp"),
        ("pp=4,gbs=12,vpp=4", "6 are no multiple of 4"),
        ("pp=8,gbs=512,vpp=3", "vpp 3 does not divide the layers of a stage: 80 over pp 8"),
        ("pp=4,gbs=14,schedule=dualpipev", "two micro-batches for each stage: 8, not 7"),
        ("pp=4,gbs=512,schedule=dualpipev,vpp=2", "leave vpp out"),
        ("pp=4,gbs=512,cp_kind=nonsense", "cp_kind nonsense is not predicted"),
        ("cp=2,gbs=512,cp_kind=adaptive_cp_algo", "cp_kind adaptive_cp_algo is not"),
    ],
)
def test_what_is_not_priced_is_refused(strategy: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        job(LLAMA + strategy)


@pytest.mark.parametrize(
    "strategy",
    [
        "pp=4,gbs=512,schedule=1f1b", "pp=4,gbs=512,schedule=vpp,vpp=5", "pp=4,gbs=16,vpp=4",
        "pp=4,gbs=16,schedule=dualpipev", "cp=2,gbs=512,cp_kind=ulysses_cp_algo",
        "pp=4,gbs=512,cp_kind=adaptive_cp_algo",  # without cp it says nothing
        f"pp=8,gbs=512,vpp=3,layers={'+'.join(['4'] * 8 + ['3'] * 16)}",
    ],
)  # fmt: skip
def test_what_is_priced_is_answered(strategy: str) -> None:
    assert job(LLAMA + strategy).pp in (1, 4, 8)


def test_search_has_the_same_rule_for_chunks() -> None:
    model, machine = model_of("llama3-70b"), machine_of("910B2")
    with pytest.raises(UsageError, match="no strategy divides"):
        search(model, machine, 64, space_of("gbs=512,seq=8192,tp=8,pp=8,vpp=3"))
    assert search(model, machine, 64, space_of("gbs=512,seq=8192,tp=8,pp=8,vpp=5")).height


def test_chips_have_the_memory_that_they_have() -> None:
    held = {name: machine_of(name).memory_bytes / 2**30 for name in CHIPS}
    assert {name for name, gib in held.items() if gib == 32} == {"910A", "910B4"}
    assert set(held.values()) == {32, 64}


def test_skew_takes_the_place_of_the_constant() -> None:
    constants = default_constants()
    usual = constants["expert_skew"]

    def parts(more: str) -> dict[str, float]:
        made = job("pp=8,ep=8,mbs=1,gbs=512,seq=4096,sp=0" + more, "mixtral-8x7b")
        return {name: float(np.asarray(one)) for name, one in step_parts(made, constants).items()}

    plain = parts("")
    assert parts(f",skew={usual}") == pytest.approx(plain)
    even, full = parts(",skew=1"), parts(",skew=2.63")
    assert sum(even.values()) < sum(plain.values()) < sum(full.values())
    for name in ("ep_comm", "experts"):
        assert even[name] < plain[name] < full[name]
    # Two exchanges of which one moves twice as much: but for what each takes whatever it moves.
    moved = full["ep_comm"] - plain["ep_comm"], plain["ep_comm"] - even["ep_comm"]
    assert moved[0] / moved[1] == pytest.approx((2.63 - usual) / (usual - 1))
