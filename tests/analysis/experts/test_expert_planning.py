"""Plans keep what they promise on steps they have not seen, and say what they do not know."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.experts.load.load import tables_of
from npuscope.analysis.experts.plan import placement as placed
from npuscope.analysis.experts.plan import plan_frames
from npuscope.analysis.experts.plan.forecast import proportions
from npuscope.analysis.experts.plan.placement import deployment_json, permutation_json
from npuscope.analysis.experts.plan.placement_search import search
from npuscope.analysis.experts.plan.plan_inputs import known_loads
from npuscope.analysis.experts.plan.plan_moves import Plan, plan
from npuscope.analysis.experts.plan.step_time import Cost, layer_times
from npuscope.collector.readers.expert_load.deployment_json import read_deployment
from npuscope.errors import TraceFormatError, UsageError
from tests.analysis.experts.expert_matrices import Floats, read_back, uniform, zipf

COST = Cost(1400.0, 200_000.0, 0.0, 61_440.0, 137e9, 17.5e9)
LAYERS, EXPERTS, TOKENS = 6, 32, 131_072.0
WEIGHTS = 94_400_000
NODES = 2
planned = partial(plan, devices=8, nodes=NODES, slots=5)


def job(steps: int, *, drift: float, noise: float, seed: int = 4) -> Floats:
    """Tokens [steps, layers, experts]: one distribution turning into another, with noise."""
    rng = np.random.default_rng(seed)
    first, last = rng.dirichlet(np.full(EXPERTS, 1.5), (2, LAYERS))
    at = np.linspace(0, drift, steps)[:, None, None]
    wobble = np.exp(rng.normal(0, noise, (steps, LAYERS, EXPERTS)))
    loads: Floats = (proportions((first * (1 - at) + last * at) * wobble) * TOKENS).round()
    return loads


def realise(found: Plan, loads: Floats) -> Floats:
    """What the plan gains in each of these steps, ns."""
    before, after = (
        layer_times(one, loads, COST, NODES) for one in (found.before, found.placement)
    )
    gain: Floats = (before - after).sum(axis=1)
    return gain


def test_without_slots_there_are_no_replicas() -> None:
    """Three devices have six slots for four experts: two stay empty."""
    found = plan(zipf(3, 4), devices=3)
    for layer in found.placement:
        held = layer[layer >= 0]
        assert sorted(held) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match=r"64 devices hold the 4 experts .* --devices 4 at most"):
        plan(zipf(3, 4), devices=64)
    assert (plan(zipf(3, 4), devices=64, slots=1).placement >= 0).all()


@pytest.mark.parametrize(("drift", "noise"), [(0.0, 0.05), (0.5, 0.1), (1.0, 0.05)])
def test_held_out_half_of_a_drifting_job(drift: float, noise: float) -> None:
    """Planned on the first half; the second, which the plan never saw, gains what was promised."""
    horizon = 20
    loads = job(120, drift=drift, noise=noise)
    found = planned(loads[:60], cost=COST, expert_bytes=WEIGHTS, horizon=horizon)
    gains = realise(found, loads[60 : 60 + horizon])
    total = found.total
    assert total.gain_ns is not None and total.trigger
    assert total.gain_low_ns is not None and total.gain_high_ns is not None
    assert total.gain_ns == pytest.approx(gains.mean(), rel=0.1)
    assert total.gain_low_ns * 0.95 < gains.mean() < total.gain_high_ns * 1.05
    assert found.error_ratio is not None and found.back_test is not None
    assert found.error_ratio == min(found.back_test.errors.values())
    if drift == 1:
        assert found.method == "trend"


def test_rows_add_up_to_the_total() -> None:
    loads = job(60, drift=0.5, noise=0.1)
    found = planned(loads, cost=COST, expert_bytes=WEIGHTS, layers=range(3, 9))
    total = found.total
    assert found.rows.columns == [
        "layer", "max_over_mean_before", "max_over_mean_after", "predicted_gain_ns",
        "moved_experts_count", "migration_bytes",
    ]  # fmt: skip
    assert found.rows["layer"].to_list() == list(range(3, 9))
    assert found.rows["predicted_gain_ns"].sum() == pytest.approx(total.gain_ns)
    assert found.rows["moved_experts_count"].sum() == total.moved_experts_count
    assert found.rows["migration_bytes"].sum() == total.migration_bytes
    assert total.before_ns is not None and total.after_ns is not None
    assert total.before_ns - total.after_ns == pytest.approx(total.gain_ns)
    assert (found.rows["max_over_mean_after"] < found.rows["max_over_mean_before"]).all()
    assert (placed.replicas(found.placement, EXPERTS) > 0).all()
    assert found.horizon == 50 and "tested up to 30 steps ahead, not 50" in found.notes[1]


def test_stages_work_at_the_same_time() -> None:
    """The slower of two stages is what a step takes, and what a plan can shorten."""
    loads = job(12, drift=0.0, noise=0.05)
    one = planned(loads, cost=COST)
    two = planned(loads, cost=COST, stages=[0, 0, 0, 0, 0, 1])
    assert one.total.gain_ns is not None and two.total.gain_ns is not None
    first = one.rows["predicted_gain_ns"][:5].sum()
    assert two.total.gain_ns == pytest.approx(first)
    assert two.total.gain_ns < one.total.gain_ns
    assert (two.placement == one.placement).all()


def test_nothing_moves_where_moving_does_not_pay() -> None:
    loads = job(40, drift=0.0, noise=0.05)
    heavy = planned(loads, cost=COST, expert_bytes=10**12, horizon=5)
    assert heavy.total.trigger is False and heavy.total.moved_experts_count == 0
    assert (heavy.placement == heavy.before).all()
    settled = planned(loads, cost=COST, expert_bytes=WEIGHTS, horizon=20)
    again = planned(loads, cost=COST, expert_bytes=WEIGHTS, horizon=20, current=settled.placement)
    assert settled.total.trigger
    assert again.total.moved_experts_count < settled.total.moved_experts_count / 10


def test_without_a_cost_no_layer_becomes_less_even() -> None:
    """Replicas may pay for what forecasts miss: that is no gain that such a plan tells."""
    dice = np.random.default_rng(94)
    found = plan(dice.poisson(dice.pareto(1.2, (1, 4)) * 1000, (12, 1, 4)), devices=2, slots=3)
    told = found.rows.row(0, named=True)
    assert told["max_over_mean_after"] <= told["max_over_mean_before"] == pytest.approx(1.0250590)
    assert told["moved_experts_count"] == 0


def test_moves_are_limited() -> None:
    loads = job(40, drift=0.3, noise=0.05)
    free = planned(loads, cost=COST)
    few = planned(loads, cost=COST, max_moved=3, max_replicas=2)
    assert few.rows["moved_experts_count"].max() == 3
    assert placed.replicas(few.placement, EXPERTS).max() <= 2
    assert few.total.gain_ns is not None and free.total.gain_ns is not None
    assert 0 < few.total.gain_ns < free.total.gain_ns


def test_what_is_unknown_is_null_and_said() -> None:
    loads = job(40, drift=0.3, noise=0.05)
    found = planned(loads)
    total = found.total
    assert (total.before_ns, total.gain_ns, total.gain_low_ns, total.migration_ns) == (None,) * 4
    assert (total.migration_bytes, total.break_even_steps, total.trigger) == (None,) * 3
    assert found.rows["predicted_gain_ns"].null_count() == LAYERS
    assert found.rows["migration_bytes"].null_count() == LAYERS
    assert (found.rows["max_over_mean_after"] < found.rows["max_over_mean_before"]).all()
    assert len([note for note in found.notes if "unknown" in note or "is recorded" in note]) == 3


def test_one_step_is_planned_for_without_a_range() -> None:
    found = plan(zipf(3, 32), devices=8, cost=COST)
    assert found.back_test is None and found.error_ratio is None
    assert found.total.gain_ns is not None and found.total.gain_low_ns is None
    assert found.placement.shape == (3, 8, 4)
    assert any("too few for a back-test" in note for note in found.notes)


def test_a_capture_of_few_steps_leaves_the_others_their_test() -> None:
    key = {"run": "r", "rank": 0, "phase": "train", "layer": 0, "ep_rank": None}
    load = pl.DataFrame(
        [{**key, "capture": name, "step": step, "expert": expert, "tokens": 5 * step + expert}
         for name, steps in (("few", 2), ("many", 6)) for step in range(steps) for expert in (0, 1)]
    )  # fmt: skip
    rows, notes = plan_frames.backtest_rows(tables_of(load), 3)
    assert set(rows["capture"]) == {"many"} and rows.height == 4
    assert notes == ["r few train: a back-test needs three steps or more: there are 2"]
    with pytest.raises(UsageError, match="needs three steps"):
        plan_frames.backtest_rows(tables_of(load.filter(pl.col("capture") == "few")), 3)


def test_a_layer_without_tokens_stays() -> None:
    loads = job(10, drift=0.0, noise=0.05)
    loads[:, 2] = 0
    found = planned(loads, cost=COST)
    assert found.rows["max_over_mean_before"].is_null().to_list() == [at == 2 for at in range(6)]
    assert found.rows["moved_experts_count"][2] == 0
    assert any("1 layers have no tokens" in note for note in found.notes)


def test_gaps_are_left_out_and_stated() -> None:
    loads = job(10, drift=0.0, noise=0.05)
    loads[3, 1, 5] = np.nan
    loads[:, 4, 0] = np.nan
    known, rows, notes = known_loads(loads)
    assert known.shape == (9, 5, EXPERTS) and rows == [0, 1, 2, 3, 5]
    assert (known == np.delete(np.delete(loads, 3, axis=0), 4, axis=1)).all()
    assert notes == [
        "1 layers are left out: no step has counts for all of their experts",
        "1 of 10 steps are left out: layers or experts are missing in them",
    ]
    with pytest.raises(UsageError, match="no layer"):
        known_loads(np.full((2, 2, 2), np.nan))
    apart = np.full((2, 2, 2), np.nan)
    apart[0, 0] = apart[1, 1] = 1.0
    with pytest.raises(UsageError, match="no step"):
        known_loads(apart)


def test_impossible_plans_are_refused_with_their_numbers() -> None:
    loads = zipf(4, 32)
    with pytest.raises(UsageError, match=r"4 layers x 5 slots x 1073741824 bytes = 20.0 GiB"):
        planned(loads, expert_bytes=1 << 30, memory_bytes=19 << 30)
    with pytest.raises(UsageError, match=r"19.0 GiB: 4 slots do, 4 are the least"):
        planned(loads, expert_bytes=1 << 30, memory_bytes=19 << 30)
    with pytest.raises(UsageError, match="devices; give 16 devices"):
        planned(loads, expert_bytes=1 << 30, memory_bytes=9 << 30)
    with pytest.raises(UsageError, match=r"give 4\.0 GiB at least"):
        planned(loads, expert_bytes=1 << 30, memory_bytes=3 << 30)
    with pytest.raises(UsageError, match="8 devices x 3 slots = 24"):
        plan(loads, devices=8, slots=3)
    with pytest.raises(UsageError, match="devices, slots and nodes must be 1 or more"):
        plan(loads, devices=0)
    with pytest.raises(UsageError, match="has 4 devices, the plan 8"):
        planned(loads, current=placed.contiguous(4, 32, 4, 8))
    with pytest.raises(UsageError, match="has 6 slots per device, the plan 5: give 6 or more"):
        planned(loads, current=placed.contiguous(4, 32, 8, 6))
    with pytest.raises(UsageError, match="needs the bytes of an expert"):
        planned(loads, memory_bytes=1)
    with pytest.raises(UsageError, match="4 layers, 1 were named"):
        planned(loads, layers=[1])


def test_deployment_json_comes_back(tmp_path: Path) -> None:
    found = search(zipf(3, 16), devices=4, slots=5)
    text = deployment_json(found, [3, 4, 7])
    (tmp_path / "d.json").write_text(text)
    again, layers = read_back(tmp_path / "d.json")
    assert (again == found).all() and layers == [3, 4, 7]
    first = json.loads(text)
    assert first["moe_layer_count"] == 3
    assert first["layer_list"][0]["device_count"] == 4
    assert first["layer_list"][2]["device_list"][1]["device_expert"] == found[2, 1].tolist()


def test_empty_slots_come_back_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    found = np.array([[[-1, 0, 3], [1, 2, -1]]])
    path.write_text(deployment_json(found, [0]))
    again, _ = read_back(path)
    assert again.tolist() == [[[0, 3], [1, 2]]]
    told = deployment_json(np.array([[[7, 0, 3]]]), [0]).replace("7", "-2")
    path.write_text(told)
    assert read_back(path)[0].tolist() == [[[-1, 0, 3]]]


def test_permutation_and_its_inverse() -> None:
    plain = placed.equal_count(uniform(2, 12), devices=4, slots=3)
    told = json.loads(permutation_json(plain, [0, 1], 12))["layers"]
    for layer in told:
        order = layer["physical_to_logical"]
        assert sorted(order) == list(range(12))
        assert [order[at] for (at,) in layer["logical_to_physical"]] == list(range(12))
    holes = np.array([[[2, 0, -1], [1, 2, -1]]])
    (layer,) = json.loads(permutation_json(holes, [5], 3))["layers"]
    assert layer["layer_id"] == 5
    assert layer["logical_to_physical"] == [[1], [3], [0, 4]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "deployment"),
        ('{"layer_list": []}', "no device has an expert"),
        ('{"layer_list": [{"layer_id": 0}]}', "device_list"),
        (
            '{"layer_list": [{"layer_id": 0, "device_list": [{"device_id": 0, "device_expert": '
            "[3000000000]}]}]}",
            "32 bits",
        ),
        (
            '{"layer_list": [{"layer_id": 0, "device_list": []}, {"layer_id": 0, "device_list": []}'
            "]}",
            "twice",
        ),
    ],
)
def test_what_is_no_deployment_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(TraceFormatError, match=said):
        read_deployment(tmp_path / "d.json")
