"""Lengths of the sequences of each micro-batch, written where the batch is made.

    recorder = sequence_length_recorder("/data/profiles/lengths", dp=mpu.get_data_parallel_rank())
    for batch in loader:
        for micro_batch in batch:
            recorder.record(micro_batch.lengths)       # or cu_seqlens=[0, 512, 2560]
            ...
        recorder.step()

Numbers of the host only: lengths that lie on a device would have to be waited for.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from .guard import is_chosen, is_killed, rank_here, warn, whole
from .line_writer import LineWriter

_DEPTH = 64  # steps that may wait for the disk; more are dropped and counted
_CLOSE_SECONDS = 10.0


def sequence_length_recorder(
    dir: str | os.PathLike[str],
    *,
    dp: int | None = None,
    every: int = 1,
    ranks: str | int | Iterable[int] | None = None,
    rank: int | None = None,
    start_step: int = 0,
    rotate_bytes: int = 64 << 20,
    rotate_seconds: float = 600.0,
) -> SequenceLengthRecorder:
    """Write lengths of sequences of steps that are multiples of `every` to
    `dir`/lengths_rank<N>.jsonl; `start_step` is the number of the step that comes first, `dp` this
    process's data-parallel rank: processes of the same one train on the same sequences.

    Call `record()` for each micro-batch, `step()` after each step, `close()` at the end. Never
    raises: what fails is told once and disables the recorder. NPUSCOPE=0 switches it off.
    """
    recorder = SequenceLengthRecorder()
    if is_killed():
        return recorder
    try:
        here = rank_here() if rank is None else whole("rank", rank)
        every, start_step = whole("every", every, 1), whole("start_step", start_step)
        dp = None if dp is None else whole("dp", dp)
        if is_chosen(here, ranks):
            writer = LineWriter(
                Path(dir), f"lengths_rank{here}", bytes, lambda item: None, depth=_DEPTH,
                rotate_bytes=rotate_bytes, rotate_seconds=rotate_seconds,
                what="sequence lengths",
            )  # fmt: skip
            recorder.arm(writer, dp=dp, every=every, start_step=start_step)
    except Exception as error:
        recorder.disable(error)
    return recorder


class SequenceLengthRecorder:
    """What `sequence_length_recorder` returns; also a context manager that closes itself."""

    def __init__(self) -> None:
        self.is_active = False
        self._lines: list[bytes] = []

    def arm(self, writer: LineWriter, *, dp: int | None, every: int, start_step: int) -> None:
        """Make it do something: `sequence_length_recorder` does so."""
        self._writer, self._every, self._step = writer, every, start_step
        self._dp = {} if dp is None else {"dp": dp}
        self._process = os.getpid()
        self.is_active = True
        atexit.register(self.close)

    def __enter__(self) -> SequenceLengthRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def record(
        self, lengths: Any = None, *, cu_seqlens: Any = None, actual_seq_len: Any = None
    ) -> None:
        """Lengths of the sequences of the next micro-batch; or where they begin and the last ends;
        or where each ends, as `npu_fusion_attention` takes packed ones (`actual_seq_qlen`).

        Lists, arrays or tensors of the host.
        """
        if not self.is_active or self._step % self._every or os.getpid() != self._process:
            return
        try:
            ends = actual_seq_len if cu_seqlens is None else cu_seqlens
            ends_here = lengths if ends is None else ends
            device = getattr(getattr(ends_here, "device", None), "type", "cpu")
            if device != "cpu":
                raise ValueError(f"lengths on {device}: give numbers of the host, as a batch has")
            values = [
                int(one)
                for one in (ends_here.tolist() if hasattr(ends_here, "tolist") else ends_here)
            ]
            if ends is not None:
                values = [0, *values] if cu_seqlens is None else values
                values = [after - before for before, after in pairwise(values)]
            if min(values, default=0) < 0:
                raise ValueError("a length below 0")
            entry = {"iter": self._step, "micro": len(self._lines), **self._dp, "lengths": values}
            self._lines.append(json.dumps(entry).encode() + b"\n")
        except Exception as error:
            self.disable(error)

    def step(self) -> None:
        """A training step has ended: write what was recorded of it."""
        if not self.is_active or os.getpid() != self._process:
            return
        try:
            if self._lines:
                self._writer.offer(b"".join(self._lines))
                self._lines = []
            self._step += 1
            if self._writer.failure is not None:  # which it has told
                self.is_active = False
        except Exception as error:
            self.disable(error)

    def close(self) -> None:
        """Write what is on its way, and publish the file. Waits for the disk, 10 s at most."""
        if not self.is_active or os.getpid() != self._process:
            return
        self.is_active = False
        atexit.unregister(self.close)
        is_whole = self._writer.close(_CLOSE_SECONDS)
        if self._writer.failure is None and (self._writer.dropped or not is_whole):
            warn(f"sequence lengths: {self._writer.dropped} steps not written: the disk is slow")

    def disable(self, error: BaseException) -> None:
        """Warn, and record nothing any more."""
        warn(f"recording of sequence lengths is off: {str(error) or type(error).__name__}")
        if self.is_active:
            self.is_active = False
            atexit.unregister(self.close)
            self._writer.close(0.0)
