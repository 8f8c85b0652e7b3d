"""Trainers' logs: formats, what stands around the figures, damage, restarts, size."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.collector import schema
from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.readers.train_log.log_lines import parse
from npuscope.collector.readers.train_log.train_log import (
    TrainLog,
    read_log,
)
from npuscope.errors import TraceFormatError, TraceNotFound

MEGATRON = (
    " [2025-11-27 10:11:{step:02d}.123456] iteration {step:8d}/     500 | consumed samples:"
    " {samples:12d} | elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU):"
    " 142.3 | learning rate: 1.250000E-05 | global batch size:    64 | lm loss: 9.100000E+00 | loss"
    " scale: 1.0 | grad norm: 1.204 | number of skipped iterations:   0 | number of nan"
    " iterations:   0 |"
)
ARGUMENTS = (
    "using world size: 16, data-parallel size: 4, tensor-model-parallel size: 2\n"
    "------------------------ arguments ------------------------\n"
    "  global_batch_size ............................... 64\n"
    "  seq_length ...................................... 4096\n"
    "  world_size ...................................... 16\n"
)


def megatron(step: int, ms: object = 5123.5) -> str:
    return MEGATRON.format(step=step, samples=64 * step, ms=ms)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def log(text: str | bytes) -> TrainLog:
        path = tmp_path / "train.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)

    return log


def rows_of(log: TrainLog) -> list[dict[str, Any]]:
    """Rows, without what they do not tell."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in log.rows.to_dicts()
    ]


def only(log: TrainLog) -> dict[str, Any]:
    """The one row, without what it does not tell."""
    (row,) = rows_of(log)
    return row


def test_columns_are_those_of_the_table(read: Any, tmp_path: Path) -> None:
    assert read(megatron(3)).rows.columns == [c.name for c in schema.tables()["train_log"].columns]
    assert read_log(tmp_path / "train.log").rows.height == 1


def test_megatron(read: Any) -> None:
    log = read(ARGUMENTS + megatron(10) + "\n" + megatron(11, "5000.0") + "\n")
    assert rows_of(log)[0] == {
        "step": 10, "elapsed_s": 5.1235, "loss": 9.1, "grad_norm": 1.204,
        "learning_rate": 1.25e-5, "tflops_per_s": 142.3, "loss_scale": 1.0, "skipped_count": 0.0,
        "nan_count": 0.0, "at_s": 1764238270.123456, "global_batch_size": 64.0,
    }  # fmt: skip
    assert log.rows["elapsed_s"].to_list() == [5.1235, 5.0]
    assert log.facts == LogFacts(64, 4096, 16, 64 * 4096, None)
    assert log.notes == ()


def test_mindspeed_llm_tells_its_mfu_in_percent(read: Any) -> None:
    line = (
        "[rank15]: iteration {0}/ 200 | consumed samples: {1} | consumed tokens: {2} | elapsed time"
        " per iteration (ms): 800.5 | tokens/s: 20,480.5 | mfu: 38.11 | loss: 2.5 |\n"
    )
    log = read("".join(line.format(n, 32 * n, 32 * n * 512) for n in (4, 5, 7)))
    assert rows_of(log)[0] == {
        "step": 4, "elapsed_s": 0.8005, "tokens_per_s": 20480.5, "loss": 2.5, "mfu_ratio": 0.3811,
        "consumed_tokens": 65536.0,
    }  # fmt: skip
    assert log.facts == LogFacts(32, None, None, 32 * 512, None)
    older = read("iteration: 7 | loss: 1.5 | lr: 1e-4 | throughput(samples/s): 8.9 | \n")
    assert only(older) == {"step": 7, "loss": 1.5, "learning_rate": 1e-4}
    deepspeed = read(
        " iteration 10/ 500 | consumed samples: 640 | elapsed time per iteration (ms): 5120.0 | lm"
        " loss: 2.5 | tokens per gpu per second (tgs): 6400.125 | TFLOPs: 142.30 |\n"
    )
    assert only(deepspeed) == {
        "step": 10, "elapsed_s": 5.12, "loss": 2.5, "tokens_per_s": 6400.125, "per_device": 1.0,
        "tflops_per_s": 142.3,
    }  # fmt: skip
    assert deepspeed.facts.tokens_per_s_of == "device"
    # Of 2019, without colons; NeMo counts iterations within an epoch, and ends without a bar.
    told = only(
        read(" iteration 3/ 9 | elapsed time per iteration (ms): 512.5 | lm loss 9.3E+00 |")
    )
    assert told == {"step": 3, "elapsed_s": 0.5125, "loss": 9.3}
    nemo = (
        "Training epoch 1, iteration 9/99 | lr: 1.5e-05 | global_batch_size: 64 | global_step: 109"
        " | reduced_train_loss: 8.125 | train_step_timing in s: 1.25 | consumed_samples: 7040\n"
    )
    assert only(read(nemo)) == {
        "step": 109, "elapsed_s": 1.25, "loss": 8.125, "learning_rate": 1.5e-5,
        "global_batch_size": 64.0,
    }  # fmt: skip


def test_torchtitan_in_colours(read: Any) -> None:
    log = read(
        "[rank0]:[titan] 2025-11-27 10:11:12,345 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:"
        "  8.1234  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[33mmemory: 1.18GiB(1.24%)  "
        "\x1b[34mtps: 1,234  \x1b[36mtflops: 56.70  \x1b[35mmfu: 18.30%\x1b[39m\n"
    )
    assert only(log) == {
        "step": 10, "loss": 8.1234, "grad_norm": 1.5, "tokens_per_s": 1234.0,
        "tflops_per_s": 56.7, "mfu_ratio": 0.183, "at_s": 1764238272.345, "per_device": 1.0,
    }  # fmt: skip
    assert log.facts.tokens_per_s_of == "device"
    assert only(read("step: 3, loss: 2.0, mfu: 0.31, lr: 3e-4\n"))["mfu_ratio"] == 0.31
    assert only(read("step: 3, loss: 2.0, mfu: 31\n"))["mfu_ratio"] == 0.31
    # DeepSpeed's pipelines, and verl's fine-tuning of two versions.
    assert only(read("steps: 10 loss: 8.125 iter time (s): 1.25 samples/sec: 51.863\n")) == {
        "step": 10, "loss": 8.125, "elapsed_s": 1.25,
    }  # fmt: skip
    sft = read(
        "step:1 - train/loss:1.5 - train/lr(1e-3):0.0625 - train/time(s):2.25\n"
        "step:2 - train/loss:1.25 - train/grad_norm:2.0 - train/lr:1e-05 - train/mfu:0.31\n"
    )
    filed = read(
        '{"step": 0, "data": {"val-core/gsm8k/acc/mean@1": 0.5}}\n'
        '{"step": 3, "data": {"actor/pg_loss": 0.25, "timing_s/gen": 70.5, "timing_s/step": 120.5,'
        ' "perf/mfu/actor": 0.4, "actor/lr": 1e-06}}\n'
    )
    assert only(filed) == {
        "step": 3, "elapsed_s": 120.5, "loss": 0.25, "learning_rate": 1e-6, "generation_s": 70.5,
    }  # fmt: skip
    assert sft.rows.select("loss", "elapsed_s", "learning_rate", "mfu_ratio").rows() == [
        (1.5, 2.25, 6.25e-5, None), (1.25, None, 1e-5, 0.31),
    ]  # fmt: skip


def test_hugging_face(read: Any) -> None:
    log = read(
        " 10%|#         | 10/100 [00:12<01:52,  1.25s/it]\r"
        "{'loss': 1.25, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "{'loss': '1.125', 'grad_norm': 'nan', 'learning_rate': '9e-06', 'epoch': '0.2'}\n"
        "{'eval_loss': 3.0, 'epoch': 0.2}\n{'loss': 3.0, 'other': 1}\n"
        '{"step": 40, "loss": 1.0, "epoch": 0.4}\n'
        "{'train_runtime': 10.0, 'train_loss': 3.0, 'epoch': 1.0}\n"
    )
    assert log.rows.select("step", "loss", "grad_norm", "learning_rate").rows() == [
        (40, 1.0, None, None), (None, 1.25, 0.5, 1e-5), (None, 1.125, None, 9e-6),
    ]  # fmt: skip
    assert log.notes == ("train.log: 2 line(s) have no step number: their step is unknown",)
    state = read('{"log_history": [{"step": 5, "loss": 1.5, "grad_norm": Infinity, "epoch": 0.1}]}')
    assert only(state) == {"step": 5, "loss": 1.5, "not_finite_count": 1.0}


@pytest.mark.slow
def test_mmengine_and_verl_of_2024(read: Any) -> None:
    epochs = read(
        "2022/10/21 22:31:46 - mmengine - INFO - Epoch(train)  [2][ 100/7330]  lr: 2.0000e-03  eta:"
        " 1 day, 5:44:08  time: 0.5388  data_time: 0.0041  memory: 3456  grad_norm: 5.2401  loss:"
        " 1.5012  loss_cls: 0.9000\n"
        "2022/10/21 22:40:00 - mmengine - INFO - Epoch(val)  [2][10/10]  loss: 9.1  data_time: 0.1 "
        " time: 0.2\n"
    )
    assert only(epochs) == {
        "step": 7430, "elapsed_s": 0.5388, "learning_rate": 2e-3, "grad_norm": 5.2401,
        "loss": 1.5012,
    }  # fmt: skip
    steps = read(
        "10/21 22:31:46 - mmengine - INFO - Iter(train) [   50/80000]  base_lr: 1.0000e-02 lr:"
        " 1.0000e-02  eta: 11:12:13  time: 0.5043  data_time: 0.0098  memory: 5027  loss: 2.1250\n"
    )
    assert only(steps) == {
        "step": 50, "elapsed_s": 0.5043, "learning_rate": 0.01, "loss": 2.125
    }  # fmt: skip
    scalars = read(
        '{"lr": 0.01, "data_time": 0.0098, "loss": 2.125, "time": 0.5043, "iter": 50, "memory":'
        ' 5027, "step": 50}\n{"aAcc": 71.0, "data_time": 0.02, "time": 0.3, "step": 8000}\n'
    )
    assert only(scalars) == only(steps)
    verl = read(
        "step:0 - timing/gen:21.470 - timing/ref:4.360 - timing/values:5.800 - critic/kl:0.000 -"
        " timing/adv:0.109 - timing/update_critic:15.664 - critic/grad_norm:1023.278 -"
        " critic/lr(1e-4):0.100 - timing/update_actor:20.314 - actor/entropy_loss:0.433 -"
        " actor/pg_loss:-0.005 - actor/grad_norm:1.992 - actor/lr(1e-4):0.010 -"
        " response_length/mean:239.133\n"
    )
    assert only(verl) == {
        "step": 0, "generation_s": 21.47, "reference_s": 4.36, "advantage_s": 0.109,
        "update_critic_s": 15.664, "update_actor_s": 20.314, "loss": -0.005, "grad_norm": 1.992,
        "learning_rate": 1e-6,
    }  # fmt: skip


@pytest.mark.parametrize(
    "prefix",
    ["", "[default7]:", "(RayWorker pid=1, ip=10.0.0.1) ", "7: ", "\x1b[36m(W pid=2)\x1b[0m "],
)
def test_what_stands_before_and_how_lines_end_do_not_matter(read: Any, prefix: str) -> None:
    for end in ("\n", "\r\n"):
        lines = (ARGUMENTS + megatron(1) + "\n" + megatron(2) + "\n").splitlines()
        log = read("".join(prefix + line + end for line in lines))
        assert log.rows["elapsed_s"].to_list() == [5.1235, 5.1235]
        assert log.facts == LogFacts(64, 4096, 16, 64 * 4096, None)


@pytest.mark.parametrize(
    "line",
    [
        "validation loss at iteration 100 on validation set | lm loss value: 2.3E+00 | lm loss PPL:"
        " 9.9E+00 |",
        "  saved checkpoint at iteration      10 to ./ckpt in torch format",
        "[before the start of training step] datetime: 2025-11-27 10:11:12",
        "WARNING: loss became large, step by step",
        "step: 5 of 10 of the setup",
        "iteration 1/ 2 | consumed samples: 3 |",
        "{'loss': 1.0, 'epoch':",
    ],
)
def test_other_lines_are_passed_over(read: Any, line: str) -> None:
    assert read(f"{line}\n{megatron(1)}\n{line}\n").rows.height == 1
    with pytest.raises(TraceFormatError):
        read(line + "\n")


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "NaN", "0.0", "1e999", "5123.5.5", "", "x"]
)
def test_what_is_no_number_is_unknown(read: Any, value: str) -> None:
    row = only(read(megatron(1, value)))
    assert "elapsed_s" not in row and row["loss"] == 9.1


def test_a_line_that_was_cut_tells_what_is_whole(read: Any) -> None:
    # In the midst of a number: "5123.5" must not become "51".
    cut = megatron(12)[: megatron(12).index("5123.5") + 2]
    assert read(megatron(11) + "\n" + cut).rows["step"].to_list() == [11]
    glued = read(cut + megatron(12, 700) + "\n")
    assert (glued.rows["step"].to_list(), glued.rows["elapsed_s"].to_list()) == ([12], [0.7])
    torchtitan = "step: 1  loss: 8.5  tps: 900\nstep: 2  loss: 8.4  tps: 91"
    rows = read(torchtitan).rows
    assert rows["step"].to_list() == [1, 2] and rows["loss"].to_list() == [8.5, 8.4]
    assert rows["tokens_per_s"].to_list() == [900, None]
    formers = "{ Epoch:[  1/  2], step:[    3/ 500], loss: 8.1, per_step_time: 512ms, lr: 1e-"
    for end in range(len(formers)):
        for one in parse(formers[:end].encode(), is_ended=False):
            assert one.step == 3 and one.values.get("loss", 8.1) == 8.1
            assert one.values.get("elapsed_s", 0.512) == 0.512 and "learning_rate" not in one.values
    (one,) = parse(f"{formers}05, ".encode(), is_ended=False)
    assert one.values == {"loss": 8.1, "elapsed_s": 0.512, "learning_rate": 1e-05}
    two = read(megatron(3) + megatron(4) + "\n")
    assert two.rows["step"].to_list() == [3, 4]


def test_after_a_restart_the_last_counts_and_is_told(read: Any) -> None:
    steps = [(1, 10), (2, 20), (3, 30), (2, 21), (3, 31), (4, 41)]
    log = read("\n".join(megatron(step, ms) for step, ms in steps) + "\n")
    assert log.rows["step"].to_list() == [1, 2, 3, 4]
    assert log.rows["elapsed_s"].to_list() == [0.01, 0.021, 0.031, 0.041]
    assert len(log.notes) == 1 and log.notes[0].startswith("train.log: 2 line(s)")
    again = read("\n".join([megatron(1), megatron(1), megatron(2)]) + "\n")
    assert (again.rows.height, again.notes) == (2, ())  # several ranks that say the same


def test_facts_that_change_are_unknown(read: Any) -> None:
    line = "iteration {0}/ 9 | global batch size: {1} | consumed tokens: {2} | loss: 1.0 |\n"
    log = read("".join(line.format(*one) for one in [(1, 8, 80), (2, 8, 160), (3, 16, 320)]))
    assert log.facts == LogFacts()


def test_broken_bytes_and_endless_lines(read: Any) -> None:
    junk = (
        b"\xff\x00iteration 3/ \x80 | loss" + b"x" * 9_000_000 + b"iteration 5/ 9 | loss: 1.0 |\n"
    )
    log = read(megatron(1).encode() + b"\n" + junk + megatron(2).encode() + b"\n")
    assert log.rows["step"].to_list() == [1, 2]


def test_errors_say_what_to_do(tmp_path: Path, read: Any) -> None:
    for missing in (tmp_path / "no.log", tmp_path):
        with pytest.raises(TraceNotFound, match=r"no training log here: give the file"):
            read_log(missing)
    for text in ("", "hello\n", "iteration"):
        with pytest.raises(
            TraceFormatError, match=r"train\.log: no logged step: .* give the output"
        ):
            read(text)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 200))
def test_any_beginning_of_a_log_tells_a_beginning_of_its_steps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    lines = [megatron(step, 1000 + n) for n, step in enumerate(steps)]
    text = "\n".join(lines) + "\n"
    path.write_text(text)
    size_bytes = len(text) - min(cut, len(megatron(1)))
    last = {step: (1000 + n) / 1000 for n, step in enumerate(steps)}
    assert dict(read_log(path).rows.select("step", "elapsed_s").iter_rows()) == last
    if len(steps) == 1:
        return
    found = read_log(path, size_bytes=size_bytes).rows
    before = {step: (1000 + n) / 1000 for n, step in enumerate(steps[:-1])}
    for step, seconds in found.select("step", "elapsed_s").iter_rows():
        assert seconds in (None, before.get(step), last[step])


@pytest.mark.parametrize(
    "junk",
    ["1" * 60_000 + "x", "1,111" * 12_000 + "x", "a" * 60_000, "a:" * 30_000, "{'loss':" * 7_000,
     "{" * 60_000, " " * 60_000, "iteration " * 6_000, "1." * 30_000, "'" * 60_000],
)  # fmt: skip
def test_no_line_takes_long(read: Any, junk: str) -> None:
    began = time.process_time()
    for start in ("step: 1 loss: ", "iteration 1/ 2 | loss: ", "{'loss': ", "seq_length ", ""):
        read(f"{start}{junk}\n{megatron(2)}\n")
    assert time.process_time() - began < 1


MEASURED = """
import resource, sys, time
from npuscope.collector.readers.train_log.train_log import read_log
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
rows = read_log(sys.argv[1]).rows
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(rows.height, int(rows["step"].sum()), (after - before) >> 10, time.process_time() - began)
"""


@pytest.mark.slow
def test_a_large_log_needs_little_memory(tmp_path: Path) -> None:
    """200 MB with 40 000 steps: 100 MiB and a few seconds at most."""
    path = tmp_path / "train.log"
    other = "INFO 2025-11-27 10:11:12 [worker] data pipeline: shard 17 of 64 is being opened\n" * 60
    with path.open("w") as file:
        for step in range(40_000):
            file.write(other + megatron(step) + "\n")
    assert path.stat().st_size > 200_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    height, total, grown_mib, seconds = done.stdout.split()
    assert (int(height), int(total)) == (40_000, sum(range(40_000)))
    assert int(grown_mib) < 100, done.stdout
    assert float(seconds) < 20, done.stdout


def test_frames_are_typed_even_where_nothing_is_known(read: Any) -> None:
    rows = read("iteration 1/ 2 | mfu: 20.0 |\n").rows
    assert rows.dtypes == [pl.Int64, *[pl.Float64] * (rows.width - 1)]
