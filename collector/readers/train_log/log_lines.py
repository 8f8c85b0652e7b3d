"""One line of a trainer's log: its step, and the figures that have a place in `train_log`.

    iteration  10/ 500 | elapsed time per iteration (ms): 5123.4 | ... |    Megatron, MindSpeed-LLM
    [titan] step: 10  loss: 8.1  tps: 1,234  tflops: 56.7  mfu: 18.3%       torchtitan and alike
    {'loss': 8.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}   Hugging Face's Trainer

What stands before (times, `[rank0]:`, `(Worker pid=1)`, colours) does not matter, nor do fields
that nobody asks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Scope = Literal["job", "device"]

# A line with a figure has one of these in it: whatever has none is never looked at.
MARKS = (b"iteration", b"loss", b"seq_length", b"world_size", b"world size", b"global_batch_size")

# A field's name, in lower case and without blanks at its ends -> column, and what to divide by.
_COLUMNS: dict[str, tuple[str, float]] = {
    "elapsed time per iteration (ms)": ("elapsed_s", 1e3),
    "elapsed time per iteration (s)": ("elapsed_s", 1.0),
    "throughput per gpu (tflop/s/gpu)": ("tflops_per_s", 1.0),
    "throughput per npu (tflop/s/npu)": ("tflops_per_s", 1.0),
    "tflops": ("tflops_per_s", 1.0),
    "tokens/s": ("tokens_per_s", 1.0),
    "tokens per second": ("tokens_per_s", 1.0),
    "tokens_per_second": ("tokens_per_s", 1.0),
    "tps": ("tokens_per_s", 1.0),
    "lm loss": ("loss", 1.0),
    "loss": ("loss", 1.0),
    "grad norm": ("grad_norm", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "learning rate": ("learning_rate", 1.0),
    "learning_rate": ("learning_rate", 1.0),
    "lr": ("learning_rate", 1.0),
    "mfu": ("mfu_ratio", 1.0),
}
COLUMNS = (
    "elapsed_s", "tokens_per_s", "loss", "grad_norm", "learning_rate", "mfu_ratio", "tflops_per_s",
)  # fmt: skip
_COUNTS = frozenset({"global batch size", "consumed samples", "consumed tokens"})
# Zero here is what a trainer prints that does not know.
_POSITIVE = frozenset({"elapsed_s", "tokens_per_s", "tflops_per_s", "mfu_ratio"})
_PER_DEVICE = "tps"

_GROUPED = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?"
_NUMBER = rf"[-+]?(?:{_GROUPED}|{_PLAIN}|nan|NaN|inf)"
_WHOLE_NUMBER = re.compile(rf"({_NUMBER})\s*(%?)")
_COUNT = re.compile(r"\d{1,18}")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ITERATION = re.compile(r"\biteration(?:\s+(\d{1,18})\s*/\s*\d{1,18}|:\s*(\d{1,18}))\s*\|")
_STEP = re.compile(r"(?<![\w/.-])step\s*:\s*(\d{1,18})(?![\w.])")
_PAIR = re.compile(rf"(?<![\w/.])([A-Za-z][\w/]*)\s*:\s*({_NUMBER}\s?%?)(?=[\s,;|]|$)")
_RECORD = re.compile(r"\{[^{}]*['\"]loss['\"]\s*:[^{}]*\}")
_MEMBER = re.compile(rf"['\"](\w+)['\"]\s*:\s*['\"]?({_NUMBER}\s?%?)['\"]?\s*(?=[,}}])")
_BESIDE_LOSS = frozenset({"step", "global_step", "epoch", "grad_norm", "learning_rate"})
_ARGUMENT = re.compile(r"(?<!\w)(seq_length|global_batch_size|world_size) \.{2,} (\d{1,18})(?!\S)")
_WORLD = re.compile(r"\busing world size: (\d{1,18})\b")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one line says: `values` by column, `counts` by the trainer's words, whose tokens."""

    step: int | None
    values: dict[str, float]
    counts: dict[str, int]
    tokens_of: Scope | None = None


def parse(line: bytes, *, is_ended: bool = True) -> Iterator[LogEntry]:
    """The steps that a line tells of: several where writers got in each other's way.

    Of a line that has not ended only what is certainly whole counts: it may still be written.
    """
    text = _COLOUR.sub("", line.decode("utf-8", "replace"))
    starts = list(_ITERATION.finditer(text))
    if starts:
        ends = [match.start() for match in starts[1:]] + [len(text)]
        for match, end in zip(starts, ends, strict=True):
            yield from _piped(int(match[1] or match[2]), text[match.end() : end])
        return
    record = _RECORD.search(text)
    if record:
        yield from _record(record[0])
    elif is_ended and (step := _STEP.search(text)):
        pairs = [(key.lower(), value) for key, value in _PAIR.findall(text[step.end() :])]
        if "loss" in dict(pairs):
            yield from _told(int(step[1]), pairs, is_percent=False)


def arguments(line: bytes) -> Iterator[tuple[str, int]]:
    """What a line of the list of arguments that Megatron prints at its start says."""
    text = _COLOUR.sub("", line.decode("utf-8", "replace"))
    for name, value in _ARGUMENT.findall(text):
        yield name, int(value)
    for value in _WORLD.findall(text):
        yield "world_size", int(value)


def _piped(step: int, text: str) -> Iterator[LogEntry]:
    """Fields that end with a bar: one that does not was cut off."""
    pieces = (piece.rpartition(":") for piece in text.split("|")[:-1])
    pairs = [(" ".join(key.split()).lower(), value.strip()) for key, _, value in pieces]
    yield from _told(step, pairs, is_percent=True)


def _record(text: str) -> Iterator[LogEntry]:
    pairs: list[tuple[str, str]] = [(key.lower(), value) for key, value in _MEMBER.findall(text)]
    found = dict(pairs)
    if not _BESIDE_LOSS & found.keys():
        return
    step = found.get("step", found.get("global_step", ""))
    yield from _told(int(step) if _COUNT.fullmatch(step) else None, pairs, is_percent=False)


def _told(
    step: int | None, pairs: Iterable[tuple[str, str]], *, is_percent: bool
) -> Iterator[LogEntry]:
    """`is_percent`: how a bare `mfu` is meant; elsewhere one above 1 must be percent too."""
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    tokens_of: Scope | None = None
    for key, text in pairs:
        number = _WHOLE_NUMBER.fullmatch(text)
        value = float(number[1].replace(",", "")) if number else math.nan
        if not number or not math.isfinite(value):
            continue
        if key in _COUNTS and value > 0:
            counts[key] = int(value)
        if key not in _COLUMNS:
            continue
        column, divisor = _COLUMNS[key]
        if column == "mfu_ratio" and (number[2] or is_percent or value > 1):
            divisor = 100.0
        if value > 0 or column not in _POSITIVE:
            values[column] = value / divisor
            if key == _PER_DEVICE:
                tokens_of = "device"
    if values:
        yield LogEntry(step, values, counts, tokens_of)
