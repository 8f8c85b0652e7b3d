"""Lengths of sequences: what the hook writes is what the reader reads, and training goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from npuscope.collector.readers.train_log.sequence_lengths import read_lengths
from npuscope.collector.training import sequence_length_recorder
from npuscope.errors import TraceFormatError, TraceNotFound


def test_what_is_recorded_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        monkeypatch.chdir(tmp_path)
        with sequence_length_recorder(
            ".", rank=rank, dp=rank // 2, every=2, start_step=7, rotate_bytes=1
        ) as recorder:
            monkeypatch.chdir("/")
            for step in range(7, 11):
                recorder.record([step, 10 * rank + 5])
                recorder.record(cu_seqlens=np.array([0, 3, 103]))
                recorder.step()
    found = read_lengths(tmp_path)
    assert found["rank"].unique().sort().to_list() == [0, 2]  # 1 and 3 have the same sequences
    assert found["step"].unique().sort().to_list() == [8, 10]
    eighth = found.filter((pl.col("step") == 8) & (pl.col("rank") == 2))
    assert eighth.select("micro_batch", "length").rows() == [(0, 8), (0, 25), (1, 3), (1, 100)]


def test_ends_of_packed_sequences_as_attention_takes_them(tmp_path: Path) -> None:
    with sequence_length_recorder(tmp_path, rank=0) as recorder:
        recorder.record(actual_seq_len=[512, 2560, 2656])
        recorder.step()
    assert read_lengths(tmp_path)["length"].to_list() == [512, 2048, 96]


@pytest.mark.parametrize(
    "given", [object(), ["many"], [-1], SimpleNamespace(device=SimpleNamespace(type="npu"))]
)
def test_what_fails_is_told_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: object
) -> None:
    with caplog.at_level(logging.WARNING), sequence_length_recorder(tmp_path, rank=0) as recorder:
        for _ in range(3):
            recorder.record(given)
            recorder.step()
    assert len(caplog.records) == 1 and "sequence lengths is off" in caplog.text
    unknown: Any = None  # as of a checkpoint that has no iteration
    with sequence_length_recorder(tmp_path, rank=0, start_step=unknown) as recorder:
        recorder.record([1])
        recorder.step()
    assert "start_step=None: give an integer" in caplog.records[-1].getMessage()


def test_the_environment_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSCOPE", "0")
    with sequence_length_recorder(tmp_path / "none", rank=0) as recorder:
        recorder.record([1])
        recorder.step()
    assert not (tmp_path / "none").exists()


def test_bad_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound, match="sequence_length_recorder"):
        read_lengths(tmp_path)
    path = tmp_path / "lengths_rank0.jsonl"
    path.write_text('{"iter": 1, "lengths": [4]}\n{"iter": 2, "lengths": [5]}\n{"iter": 3, "le')
    assert read_lengths(tmp_path)["length"].to_list() == [4, 5]
    path.write_text('{"iter": 1, "lengths": [4]}\n{"iter": 2, "lengths": "no"}\n')
    with pytest.raises(TraceFormatError, match="line 2"):
        read_lengths(tmp_path)
