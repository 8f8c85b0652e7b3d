"""What real trainers write: Hugging Face's Trainer, torch's SummaryWriter."""

from __future__ import annotations

import importlib
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from npuscope.collector.readers.train_log.event_files import event_files, read_events
from npuscope.collector.readers.train_log.train_log import read_lines, read_log, require_logged
from npuscope.errors import TraceFormatError, UsageError

STEPS = 12


def test_without_the_reader_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"x")
    for name in [one for one in sys.modules if one.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'npuscope\[tensorboard\]'"):
        read_lines(tmp_path)


def writer(folder: Path, name: str = "") -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    return made(str(folder), filename_suffix=name)


@pytest.mark.slow
def test_event_files_of_a_summary_writer(tmp_path: Path) -> None:
    with writer(tmp_path) as first:
        for step in range(1, 51):
            loss = math.nan if step == 7 else 9.0 - step / 64
            first.add_scalar("lm loss", loss, step, walltime=1000 + step)
            first.add_scalar("grad-norm", 0.5, step, walltime=1000 + step, new_style=True)
            first.add_scalar("iteration-time", 2.5, step, walltime=1000 + step)
            first.add_scalar("lm loss vs samples", loss, step * 64)
            first.add_scalar("validation/loss", 5.0, step)
            first.add_text("note", "text", step)
    with writer(tmp_path, ".again") as second:  # after a crash: goes back to step 41
        for step in range(41, 61):
            second.add_scalar("lm loss", 8.0, step, walltime=2000 + step)
            second.add_scalar("throughput(tps)", 1000.0, step, walltime=2000 + step)
    lines, _ = read_lines(tmp_path)
    assert lines["step"].to_list() == [*range(1, 51), *range(41, 61)]
    row = lines.row(2, named=True)
    told = {name: value for name, value in row.items() if value is not None}
    assert told == {
        "step": 3, "loss": pytest.approx(9 - 3 / 64), "grad_norm": 0.5, "elapsed_s": 2.5,
        "at_s": 1003.0,
    }  # fmt: skip
    assert lines.filter(pl.col("not_finite_count") > 0)["step"].to_list() == [7]
    assert lines.row(-1, named=True)["per_device"] == 1.0
    assert read_log(tmp_path).rows["step"].to_list() == list(range(1, 61))


@pytest.mark.slow
def test_torn_event_files_tell_what_is_whole(tmp_path: Path) -> None:
    with writer(tmp_path) as made:
        for step in range(20):
            made.add_scalar("train/loss", float(step), step)
    (path,) = event_files(tmp_path)
    whole = path.read_bytes()
    for end in range(0, len(whole), 37):
        path.write_bytes(whole[:end])
        losses = read_events([path])["loss"].to_list()
        assert losses == [float(step) for step in range(len(losses))]
        assert end // 80 - 3 <= len(losses) <= end // 40
    path.write_bytes(b"no event file at all, but a name like one")
    with pytest.raises(TraceFormatError, match="no logged step"):
        require_logged(path)


@pytest.mark.slow
def test_a_real_trainer_writes_its_state_and_events(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=31, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.randint(0, 31, (64, 8))
    data = [{"input_ids": row, "labels": row} for row in ids]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=4,
            logging_steps=1, save_steps=STEPS, use_cpu=True, report_to=["tensorboard"],
            disable_tqdm=True, seed=0,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        transformers.Trainer(model=model, args=options, train_dataset=data).train()
    state = tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json"
    history = [one for one in json.loads(state.read_text())["log_history"] if "loss" in one]
    assert len(history) == STEPS
    lines, _ = read_lines(state)
    for column in ("loss", "grad_norm", "learning_rate"):
        assert lines[column].to_list() == [one[column] for one in history]
    written, _ = read_lines(tmp_path / "runs")
    assert written["step"].to_list() == list(range(1, STEPS + 1))
    for column in ("loss", "grad_norm", "learning_rate"):
        assert written[column].to_list() == pytest.approx(lines[column].to_list(), rel=1e-6)
