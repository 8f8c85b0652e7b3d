"""Lines read as columns by their form, against each of them parsed."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import polars as pl
import pytest

from npuscope.collector.readers.train_log.alike_lines import Form, split_alike
from npuscope.collector.readers.train_log.log_lines import COLUMNS, MORE_COLUMNS, parse
from npuscope.collector.readers.train_log.train_log import read_lines
from tests.conftest import REAL_DATA

NAMES = (*COLUMNS, *MORE_COLUMNS)
FORMS = {
    "torchtitan": "[rank0]:[titan] 2025-11-27 10:11:{d:02d},345 - root - INFO - \x1b[31mstep: {i}"
    "  \x1b[32mloss:  {a}  grad_norm: {b}  memory: 1.18GiB({a}%)  tps: {c}  mfu: {b}%\x1b[39m",
    "bare mfu": "step: {i}, loss: {a}, mfu: {b}, lr: {c}",
    "json": '{{"step": {i}, "loss": {a}, "x": [{b}, {c}], "learning_rate": "{b}", "tokens/s": 1}}',
    "trainer": "{{'loss': {a}, 'grad_norm': '{b}', 'learning_rate': {c}, 'epoch': {d}}}",
    "mindformers": "INFO - {{ Epoch:[  {d}/  9], step:[{i:5d}/  700], loss: {a}, per_step_time:"
    " {b}ms, lr: {c}, global_norm: [{a}], train_throughput_per_npu: {b}T }}",
    "verl": "step:{i} - timing_s/gen:np.float64({a}) - timing_s/step:{b} - timing_s/reshard:{c}"
    " - perf/max_memory_allocated_gb:{a} - actor/lr:1e-06 - perf/throughput:{b}",
    "two of one": "iteration: {i} | timing/all : {a} | timing/resharding_to_train : {b} |"
    " timing/resharding_to_infer : {c} | timing/adv : {a} | timing/non_overlap_adv : {b} | ü |",
    "other text": "loss {a} of a line that tells no step: {b}",
}  # fmt: skip
OTHERS = {
    "nemo": "Training epoch {d}, iteration {i}/99 | global_step: {i} | reduced_train_loss: {a} |"
    " train_step_timing in s: {b} | consumed_samples: {c}",
    "2019": " iteration {i}/ 99999 | elapsed time per iteration (ms): {a} | lm loss {b} |",
    "pipeline": "steps: {i} loss: {a} iter time (s): {b} samples/sec: {c}",
    "filed": '{{"step": {i}, "data": {{"timing_s/step": {a}, "actor/lr": {b}, "x/y": {c}}}}}',
    "mmengine": "2023/02/01 10:11:12 - mmengine - INFO - Epoch(train)  [{d}][{i:5d}/99999]  lr: {c}"
    "  eta: 1 day, 2:03:04  time: {a}  data_time: 0.0100  memory: 3456  loss: {b}  loss_cls: {a}",
    "mmengine's iterations": "INFO - Iter(train) [{i:5d}/99999]  base_lr: {c} lr: {c}  eta: 2:03:04"
    "  time: {a}  data_time: {c}  memory: 3456  grad_norm: {b}  loss: {a}",
    "mmengine's scalars": '{{"lr": {c}, "data_time": {c}, "loss": {a}, "time": {b}, "iter": {i},'
    ' "memory": 3456, "step": {i}}}',
    "verl of 2024": "step:{i} - timing/gen:{a} - timing/ref:{b} - timing/values:{c} -"
    " timing/adv:{b} - timing/update_critic:{a} - critic/lr(1e-4):0.100 - timing/update_actor:{c} -"
    " actor/pg_loss:{b} - actor/lr(1e-4):{c} - actor/grad_norm:{a}",
    "sft": "step:{i} - train/loss:{a} - train/lr(1e-3):{b} - train/time(s):{c} - train/mfu:{a}",
}
VALUES = (
    "1", "0", "-2", "5.", ".5", "1.25E-05", "nan", "inf", "1,234.5", "12,34", "1e999", "0.31",
    "38.1", "1-2", "", "1e5x", "1_0", "٣",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_columns_equal_lines(form: str) -> None:
    dice = random.Random(form)
    for _ in range(6):
        check_equal(form, dice)


@pytest.mark.slow
def test_columns_of_other_forms_equal_lines() -> None:
    for form in OTHERS:
        test_columns_equal_lines(form)


def check_equal(form: str, dice: random.Random) -> None:
    """Lines of a form, most of them alike and some with odd values."""
    given = [("9.25", "0.5", "1.5")] * 4
    for _ in range(10):
        a, b, c = dice.choices(VALUES, k=3)
        given.append((a, b, c))
    lines = [
        {**FORMS, **OTHERS}[form].format(
            i=dice.randrange(99999), a=a, b=b, c=c, d=dice.randrange(1, 59)
        )
        for a, b, c in given
    ]
    rows, is_other = split_alike(pl.Series(lines), [])
    found: dict[int, tuple[int | None, dict[str, float]]] = {
        row["line"]: (row["step"], {key: row[key] for key in NAMES if row[key] is not None})
        for row in rows.to_dicts()
    }
    for number, line in enumerate(lines):
        if is_other[number]:
            assert number not in found
            continue
        told = [(one.step, one.values) for one in parse(line.encode())]
        if not told:
            assert number not in found, line
            continue
        ((step, values),) = told
        assert found[number][0] == step, line
        assert found[number][1].keys() == values.keys(), line
        for key, value in values.items():
            assert math.isclose(found[number][1][key], value, rel_tol=1e-12), (line, key)


@pytest.mark.parametrize("form", ["torchtitan", "json", "trainer", "mindformers", "verl"])
def test_most_lines_need_no_parsing(form: str) -> None:
    lines = [
        {**FORMS, **OTHERS}[form].format(i=i, a=9 - i / 64, b=i % 7, c=1 / (i + 1), d=i // 700 + 1)
        for i in range(200)
    ]
    forms: list[Form] = []
    rows, is_other = split_alike(pl.Series(lines), forms)
    assert is_other.sum() <= 10 and rows.height >= 190
    assert len(forms) <= 4


def test_a_real_line_among_others(real_data: Path, tmp_path: Path) -> None:
    real = (REAL_DATA / "verl_grpo_qwen3_8b" / "step3_baseline.log").read_text().strip()
    text = "".join(real.replace("step:3 ", f"step:{step} ", 1) + "\n" for step in range(3, 40))
    (tmp_path / "many.log").write_text(text)
    many, _ = read_lines(tmp_path / "many.log")
    once, _ = read_lines(REAL_DATA / "verl_grpo_qwen3_8b" / "step3_baseline.log")
    assert many["step"].to_list() == list(range(3, 40))
    assert many.row(0) == once.row(0)
    assert many.drop("step").unique().height == 1


def test_order_is_kept_where_formats_and_ranks_mix(tmp_path: Path) -> None:
    """Lines of two ranks, a torn one, and one with no form, as they stand in the file."""
    text = ""
    for step in range(1, 51):
        line = json.dumps({"step": step, "loss": 1.5, "rank": 0})
        text += f"[rank0]: {line}\n[rank1]: step: {step}  loss: 2.5  tps: 10\n"
        if step == 20:
            text += '[rank0]: {"step": 21, "loss": 1.\n'
        if step == 30:
            text += " iteration 30/ 50 | lm loss: 3.5 | lm lo\n"
    (tmp_path / "mixed.log").write_text(text)
    lines, _ = read_lines(tmp_path / "mixed.log")
    expected = []
    for step in range(1, 51):
        expected += [(step, 1.5), (step, 2.5)] + ([(30, 3.5)] if step == 30 else [])
    assert list(lines.select("step", "loss").iter_rows()) == expected
