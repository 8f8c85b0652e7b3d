"""Predicted steps: parts add up, and what must not matter does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npuscope.analysis.flops.model.describe import model_of, presets
from npuscope.analysis.pipeline.execution import even_durations, execute
from npuscope.analysis.pipeline.schedules import schedule
from npuscope.analysis.strategy.constants import default_constants, described_constants
from npuscope.analysis.strategy.cost import step_parts
from npuscope.analysis.strategy.describe import job_of_strategy
from npuscope.analysis.strategy.job import Machine, Recompute, Software, even_stages
from npuscope.analysis.strategy.memory import stage_weights
from npuscope.analysis.strategy.notes import prediction_notes
from npuscope.analysis.strategy.predict import (
    memory_rows,
    part_rows,
    predict,
    predict_records,
    stratum,
)
from npuscope.analysis.strategy.run_records import job_of_record
from tests.analysis.strategy.jobs import DENSE, JOB

_RUNS = Path(__file__).parents[3] / "../shared/data/strategy_runs/runs.json"
EVEN = replace(JOB, model=replace(DENSE, vocabulary_size=8), stages=even_stages(8, 4), world=4)


def test_parts_add_up_to_the_step() -> None:
    found = predict(JOB)
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s.predicted, rel=1e-12)
    ns = sum(row["ns"] for row in part_rows(found).to_dicts())
    assert ns == pytest.approx(found.step_s.predicted * 1e9, abs=2)


def test_twice_the_sequences_take_twice_the_work() -> None:
    once, twice = predict(JOB).parts_s, predict(replace(JOB, global_batch=32)).parts_s
    assert twice["matmul"] == pytest.approx(2 * once["matmul"])
    assert twice["optimizer"] == pytest.approx(once["optimizer"])
    # A group is as slow as the one that nodes cut into the smallest parts.
    for devices, like in ((12, 4), (3, 1), (16, 8)):
        one, other = (
            predict(replace(JOB, world=48.0, tp=8.0, machine=replace(JOB.machine, node_devices=n)))
            for n in (devices, like)
        )
        assert one.parts_s["tp_comm"] == pytest.approx(other.parts_s["tp_comm"])


def test_recompute_adds_a_forward() -> None:
    plain = predict(JOB).parts_s
    again = predict(replace(JOB, recompute=Recompute(full_layers=None))).parts_s
    assert plain["recompute"] == 0
    assert again["recompute"] > (plain["matmul"] + plain["attention"]) / 4
    # A block of multi-token prediction is a layer that is computed again as well.
    full = replace(JOB, stages=even_stages(8, 1), recompute=Recompute(full_layers=None))
    alone, ahead = (
        predict(replace(full, model=replace(DENSE, mtp_depth=depth))).parts_s["recompute"]
        for depth in (0, 1)
    )
    assert ahead == pytest.approx(alone * 9 / 8)


def test_a_swapped_optimizer_goes_to_the_host_and_back_once() -> None:
    """FP32 weights and moments, 12 bytes, both ways, on the stage that has most of them."""
    constants = default_constants()
    kept, swapped = (
        float(
            step_parts(replace(JOB, software=Software(swap_optimizer=on)), constants)["optimizer"]
        )
        for on in (False, True)
    )
    heaviest = max(float(sum(stage_weights(JOB, stage)[:2])) for stage in (0, 1))
    moved_s = 24 * heaviest / constants["host_bytes_per_s"]
    assert swapped - kept == pytest.approx(moved_s, rel=1e-6)


@pytest.mark.parametrize(("chunks", "name"), [(1, "1f1b"), (2, "interleaved")])
def test_the_bubble_is_that_of_the_executed_schedule(chunks: int, name: str) -> None:
    job = replace(EVEN, stages=even_stages(8, 4, chunks), global_batch=8)
    parts = predict(job).parts_s
    work = sum(parts.values()) - sum(
        parts[part] for part in ("bubble", "dp_comm", "optimizer", "step")
    )
    chosen = schedule(name, 4, 8, chunks if chunks > 1 else None)
    times = even_durations(chosen, work / 8 / 3, work / 8 / 3, work / 8 / 3)
    executed = max(span.end_ns for span in execute(chosen, times))
    assert work + parts["bubble"] == pytest.approx(executed, rel=0.02)


def test_arrays_of_strategies_give_what_each_gives_alone() -> None:
    sizes = np.array([1.0, 2.0, 4.0])
    job = replace(JOB, tp=sizes, sequence_parallel=True)
    many = np.asarray(sum(step_parts(job, default_constants()).values()))
    for place, size in enumerate(sizes):
        one = predict(replace(JOB, tp=float(size), sequence_parallel=True))
        assert many[place] == pytest.approx(one.step_s.predicted)


def test_each_constant_says_what_it_is() -> None:
    described = described_constants()
    assert len(described) <= 27
    for constant in described.values():
        assert constant.meaning
        assert constant.source


def test_memory_of_each_stage_is_whole_bytes() -> None:
    rows = memory_rows(JOB, predict(JOB))
    assert rows["stage"].to_list() == [0, 1]
    assert all(row["peak_bytes"] > row["weights_bytes"] > 0 for row in rows.to_dicts())


_BARE = [
    {},
    {"id": "x", "model": None, "parallel": None, "train": {}},
    {"id": "y", "model": {"layers": 0, "heads": "?", "moe": {"experts": -1}}},
    {"id": "u", "model": {"layers": 1e12, "mla": {"q_lora": 0}}, "parallel": {"vpp": 1e9}},
    {"id": "z", "model": {"layers": 4, "noop_layers": "9,1"}, "parallel": {"pp": 8, "vpp": 3}},
]


@pytest.mark.parametrize("record", _BARE)
def test_a_record_of_almost_nothing_is_predicted(record: dict[str, object]) -> None:
    (found,) = predict_records([record]).values()
    assert all(np.isfinite(value) and value > 0 for value in found.values())


def test_every_known_model_is_predicted() -> None:
    """Some have no dense layers at all."""
    for name in presets():
        words = "tp=4,pp=4,mbs=1,gbs=64,seq=4096,etp=1"
        found = predict(job_of_strategy(model_of(name), Machine(353.9e12), (4, 8), words))
        assert all(np.isfinite(seconds) for seconds in found.parts_s.values()), name
        assert found.step_s.predicted > 0, name


def test_neither_what_is_measured_nor_the_name_is_read() -> None:
    if not _RUNS.is_file():
        pytest.skip("the runs are not here")
    runs = json.loads(_RUNS.read_text())
    hidden = ("measured", "flags", "usable_time", "usable_memory", "headline_time",
              "headline_memory", "family", "leak_group", "stratum")  # fmt: skip
    bare = [{key: value for key, value in run.items() if key not in hidden} for run in runs]
    for place, run in enumerate(bare):
        run["id"] = str(place)
    assert list(predict_records(bare).values()) == list(predict_records(runs).values())


@pytest.mark.slow
def test_intervals_hold_nine_of_ten_runs_of_each_kind() -> None:
    if not _RUNS.is_file():
        pytest.skip("the runs are not here")
    held: dict[str, list[bool]] = {}
    firsts: list[bool] = []
    for run in json.loads(_RUNS.read_text()):
        if run["headline_memory"] and "mb_peak" in run["measured"]:
            found = predict(job_of_record(run))
            first, told_bytes = found.first_peak_bytes, run["measured"]["mb_peak"] * 2**20
            firsts.append(first.low <= told_bytes <= first.high)
            # Later peaks were not measured: a note says whose interval they have.
            last = found.peak_bytes
            assert last.high / last.predicted == pytest.approx(first.high / first.predicted)
            (note, *_) = [one for one in prediction_notes(job_of_record(run), found)
                          if "intervals hold" in one]  # fmt: skip
            assert "that of later peaks is the one of first peaks" in note
        if run["headline_time"]:
            job = job_of_record(run)
            step, told = predict(job).step_s, run["measured"]["ms"] / 1e3
            held.setdefault(stratum(job), []).append(step.low <= told <= step.high)
    assert len(held) == 4 and len(firsts) == 31 and sum(firsts) >= 0.9 * 31
    assert all(sum(each) >= 0.9 * len(each) for each in held.values()), held
