"""Lines split as columns against lines parsed one by one, and forms only whole logs have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npuscope.collector.readers.train_log.bar_lines import split_bars
from npuscope.collector.readers.train_log.log_lines import COLUMNS, MORE_COLUMNS, parse
from npuscope.collector.readers.train_log.train_log import read_lines, read_log
from tests.conftest import REAL_DATA

NAMES = (*COLUMNS, *MORE_COLUMNS)
KEYS = st.sampled_from(
    ["lm loss", "grad  Norm", "elapsed time per iteration (ms)", "mfu", "tokens/s", "x", "loss(a)",
     "consumed tokens", "number of nan iterations", "timing/all", "loss scale", "iteration",
     "global batch size", "agent/generate_sequences/max", "ü", "tokens/p/s"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["1", "0", "-2", "5.", ".5", "1.250000E-05", "9e300", "nan", "inf", "1,234.5", "38.1%", "x", "",
     "1e9999", "3e4000", "1e999", "5 / 10", "2: 7"]
)  # fmt: skip
PIECES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)


@given(
    before=st.sampled_from(
        [
            "",
            " [2025-11-27 10:11:05.123456] ",
            "2025-13-01 99:00:00 ",
            "2026-01-02 03:04:05,5 r: ",
            "iteration 1/ 2 | ",
            "np.f(1) ",
            "\x1b[32m",
        ]
    ),
    step=st.sampled_from(["iteration 12/ 500 |", "iteration: 12 |", "iteration 12/500|", "it 3 |"]),
    pieces=PIECES,
    end=st.sampled_from(["", " ", " tail", "lm loss: 3.0", " iteration 4/ 5 | loss: 1 |"]),
)
@example("", "iteration 12/ 500 |", [("lm loss", "1"), ("tokens/p/s", "0")], "")
@example("", "iteration 12/ 500 |", [("lm loss", "1e999"), ("tokens/s", "1e999")], "")
def test_columns_equal_lines(
    before: str, step: str, pieces: list[tuple[str, str]], end: str
) -> None:
    line = before + step + "|".join(f" {key} : {value} " for key, value in pieces) + "|" + end
    rows, is_other = split_bars(pl.Series([line, "no line"]))
    assert is_other[1]
    if is_other[0]:
        assert rows.is_empty()
        return
    expected = [(0, one.step, one.values) for one in parse(line.encode())]
    found = [
        (row["line"], row["step"], {key: row[key] for key in NAMES if row[key] is not None})
        for row in rows.to_dicts()
    ]
    for _, _, values in expected:
        if math.isnan(values.get("at_s", 0.0)):
            del values["at_s"]
    assert found == expected


def test_plain_lines_are_split() -> None:
    """Else the speed is gone and the test above says nothing."""
    line = (
        " [2025-11-27 10:11:05] iteration  1/ 5 | elapsed time per iteration (ms): 5.5 | loss: 1 |"
    )
    assert not split_bars(pl.Series([line]))[1][0]


def lines_of(folder: Path, text: str) -> list[dict[str, float]]:
    (folder / "any.log").write_text(text)
    rows, _ = read_lines(folder / "any.log")
    return [
        {key: value for key, value in row.items() if value is not None} for row in rows.to_dicts()
    ]


def test_lines_keep_their_order(tmp_path: Path) -> None:
    text = (
        "step: 1  loss: 1.5  tps: 1,000\niteration 2/ 9 | loss: 2.5 |\n"
        "{'loss': 3.5, 'step': 3}\niteration 4/ 9 | loss: nan | grad norm: 1 |\n"
        "iteration 5/ 9 | loss: 1 | cut"
    )
    found = lines_of(tmp_path, text)
    assert [(row["step"], row.get("loss")) for row in found] == [
        (1, 1.5), (2, 2.5), (3, 3.5), (4, None), (5, 1.0)
    ]  # fmt: skip
    assert (found[0]["per_device"], found[3]["not_finite_count"]) == (1.0, 1.0)
    # Words of other versions and trainers: torchtitan's of 2024, LLaMA-Factory's, ms-swift's.
    text = (
        "step: 1  loss: 1.5  wps: 1,000\n"
        '{"current_steps": 2, "total_steps": 9, "loss": 2.5, "lr": 1e-05, "epoch": 0.1}\n'
        "{'loss': 3.5, 'learning_rate': 1e-05, 'epoch': 0.2, 'global_step/max_steps': '3/9'}\n"
    )
    found = lines_of(tmp_path, text)
    assert [(row["step"], row["loss"]) for row in found] == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert (found[0]["tokens_per_s"], found[0]["per_device"]) == (1000.0, 1.0)


def test_mindformers(tmp_path: Path) -> None:
    line = (
        "2025-06-01 10:00:00,123 - mindformers[core/callback.py:529] - INFO - {{ Epoch:[  {0}/  2],"
        " step:[   {1}/ 100], loss: 8.125, per_step_time: 13336ms, lr: 9.9e-08, overflow cond:"
        " False, loss_scale: 65536.0, global_norm: [1.89], train_throughput_per_npu: 38.5T }}\n"
    )
    found = lines_of(tmp_path, line.format(1, 10) + line.format(2, 10))
    assert [row["step"] for row in found] == [10, 110]
    assert found[0] | {"at_s": 0} == {
        "step": 10, "loss": 8.125, "elapsed_s": 13.336, "learning_rate": 9.9e-08,
        "loss_scale": 65536.0, "grad_norm": 1.89, "tflops_per_s": 38.5, "at_s": 0,
    }  # fmt: skip
    older = "Epoch:[  1/  3], step:[    2/ 1563], loss:[7.5/7.75], time:512.5 ms, lr:1e-05\n"
    assert lines_of(tmp_path, older) == [
        {"step": 2, "loss": 7.5, "elapsed_s": 0.5125, "learning_rate": 1e-05}
    ]


def test_mindspeed_rl(tmp_path: Path) -> None:
    line = (
        "iteration: 3 / 100 | timing/all : 120.5 | timing/rollout : 71.25 | timing/old_log_p : 9.5"
        " | timing/reference_model : 30.0 | timing/non_overlap_reference_model : 2.5 | timing/adv :"
        " 0.5 | timing/update : 31.0 | grad_norm : 0.25 | tokens/p/s : 512.0 |\n"
    )
    assert lines_of(tmp_path, line.replace(": 3 /", " 3 /")) == [{
        "step": 3, "elapsed_s": 120.5, "generation_s": 71.25, "old_log_prob_s": 9.5,
        "reference_s": 2.5, "advantage_s": 0.5, "update_actor_s": 31.0, "grad_norm": 0.25,
        "tokens_per_s": 512.0, "per_device": 1.0,
    }]  # fmt: skip


def test_verl_in_any_order_and_wrapped(tmp_path: Path, real_data: Path) -> None:
    text = (REAL_DATA / "verl_grpo_qwen3_8b" / "step3_baseline.log").read_text()
    (row,) = lines_of(tmp_path, text)
    step, *fields = text.strip().split(" - ")
    wrapped = [
        f"{key}:np.float64({value})"
        for key, _, value in (field.rpartition(":") for field in fields)
    ]
    (turned,) = lines_of(
        tmp_path, "(pid=7) " + " - ".join([step, *reversed(wrapped), "new/key:1"]) + "\n"
    )
    assert turned == row
    assert (row["step"], row["generation_s"], row["per_device"]) == (3, 698.8797343205661, 1.0)


def test_a_trainer_state(tmp_path: Path) -> None:
    state = {
        "epoch": 1.0, "global_step": 20, "stateful": {"a": 1}, "log_history": [
            {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-5, "loss": 2.25, "step": 10},
            {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 9e-6, "loss": 2.0, "step": 20},
            {"epoch": 1.0, "step": 20, "train_runtime": 12.5},
        ],
    }  # fmt: skip
    found = lines_of(tmp_path, json.dumps(state, indent=2))
    assert [(row["step"], row["loss"]) for row in found] == [(10, 2.25), (20, 2.0)]
    assert found[1]["not_finite_count"] == 1.0
    assert read_log(tmp_path / "any.log").rows["loss"].to_list() == [2.25, 2.0]
    (tmp_path / "any.log").write_text(json.dumps(state)[:-5])
    assert read_log(tmp_path / "any.log").rows["step"].to_list() == [10]


@pytest.mark.slow
def test_a_million_lines(tmp_path: Path) -> None:
    """In under 10 s on an idle machine; bounded by CPU time here, as others may use it too."""
    import time

    line = (
        " [2025-11-27 10:11:05.123456] iteration {0}/ 1000000 | consumed samples: 64 | elapsed"
        " time per iteration (ms): 5000.1 | throughput per GPU (TFLOP/s/GPU): 142.3 | learning"
        " rate: 1.25E-05 | global batch size: 64 | lm loss: 9.1E+00 | loss scale: 1.0 | grad"
        " norm: 1.204 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
    )
    with (tmp_path / "long.log").open("w") as file:
        file.writelines(line.format(step) for step in range(1_000_000))
    began = time.process_time()
    rows, _ = read_lines(tmp_path / "long.log")
    assert (rows.height, rows["step"][-1]) == (1_000_000, 999_999)
    assert time.process_time() - began < 20
