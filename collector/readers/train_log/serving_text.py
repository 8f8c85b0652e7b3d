"""What serving engines tell of speculative decoding: their metrics as text, or lines of their logs.

    vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 812.0      vLLM, vllm-ascend
    sglang:spec_accept_length{tp_rank="0"} 2.31                                 SGLang
    SpecDecoding metrics: Mean acceptance length: 2.35, ... Per-position acceptance rate: 0.8, 0.55
    Decode batch. ... accept len: 2.31, ... gen throughput (token/s): 123.4

Names count from their ends, so that another engine's prefix passes (MindIE's, or with `_` for `:`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from npuscope.errors import TraceNotFound

from ...small_files import open_regular

_BLOCK_BYTES = 4 << 20
# A block without one of them tells nothing; in one that has, lines with one of the others count.
_MARKS = (b"accepted_tokens", b"accept_length", b"acceptance_length", b"acceptance length",
          b"accept len")  # fmt: skip
_MORE_MARKS = (*_MARKS, b"num_draft", b"throughput")
_LINE_BYTES = 1 << 16
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(
    rf"^([A-Za-z]\w*?)[:_](\w+?)(?:_total)?(?:\{{([^}}]*)\}})? +({_NUMBER})(?: +\d+)?\s*$"
)
_POSITION = re.compile(r'\b(?:position|pos|head)="(\d{1,3})"')
_VLLM = re.compile(rf"Mean acceptance length: ({_NUMBER})")
_VLLM_COUNTS = re.compile(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens")
_VLLM_HEADS = re.compile(rf"Per-position acceptance rate: ((?:{_NUMBER}(?:, )?)+)")
_VLLM_RATE = re.compile(rf"Avg generation throughput: ({_NUMBER}) tokens/s")
_SGLANG = re.compile(rf"accept len: ({_NUMBER}).*?gen throughput \(token/s\): ({_NUMBER})")
# Ends of names: counters are added up over engines and ranks, the others averaged.
_COUNTERS = {
    "num_drafts": "drafts", "num_draft_tokens": "drafted", "num_accepted_tokens": "accepted",
}  # fmt: skip
_MEANS = {
    "accept_length": "length", "acceptance_length": "length", "gen_throughput": "rate",
    "avg_generation_throughput_toks_per_s": "rate",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speculation:
    """What an engine tells: counts since its start or over its lines, and means.

    `at_positions`: accepted tokens by position of the draft, from 0; `shares`: accepted of all
    drafts by position. `length`: tokens of a step, the engine's own count. `rate`: tokens per
    second. Unknown is None or empty.
    """

    engine: str
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    at_positions: dict[int, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    length: float | None = None
    rate: float | None = None


def read_serving(path: Path) -> list[Speculation]:
    """What a file tells of each engine; none where it is something else.

    Raises TraceNotFound where there is no such file.
    """
    lines: list[str] = []
    try:
        with open_regular(path) as file:
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                first, last = block.find(b"\n"), block.rfind(b"\n")
                if last < 0:
                    rest += block
                elif any(mark in block for mark in _MARKS):
                    lines += _lines_with_marks(rest + block[:last])
                    rest = block[last + 1 :]
                else:  # nearly all of a trainer's log: not copied
                    lines += _lines_with_marks(rest + block[:first])
                    rest = block[last + 1 :]
                rest = rest[-_LINE_BYTES:]
            lines += _lines_with_marks(rest)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise TraceNotFound(f"{path}: no metrics here: give the text of an engine") from error
    return [*_of_metrics(lines), *_of_log(lines)]


def _lines_with_marks(block: bytes) -> list[str]:
    if not any(mark in block for mark in _MARKS):
        return []
    return [
        line.decode("utf-8", "replace")
        for line in block.split(b"\n")
        if len(line) <= _LINE_BYTES and any(mark in line for mark in _MORE_MARKS)
    ]


def _of_metrics(lines: list[str]) -> list[Speculation]:
    sums: dict[tuple[str, str], float] = {}
    labels_of: dict[tuple[str, str], list[float]] = {}
    heads: dict[str, dict[int, float]] = {}
    for line in lines:
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        engine, name, labels, value = sample[1], sample[2], sample[3] or "", float(sample[4])
        plain = name.removeprefix("spec_decode_").removeprefix("spec_")
        if plain.endswith("num_accepted_tokens_per_pos"):
            if position := _POSITION.search(labels):
                own = heads.setdefault(engine, {})
                own[int(position[1])] = own.get(int(position[1]), 0.0) + value
        elif measure := _COUNTERS.get(plain):
            sums[engine, measure] = sums.get((engine, measure), 0.0) + value
        elif measure := _MEANS.get(plain):
            labels_of.setdefault((engine, measure), []).append(value)
    engines = dict.fromkeys([
        *(engine for engine, _ in sums), *heads,
        *(engine for engine, measure in labels_of if measure == "length"),
    ])  # fmt: skip
    return [
        Speculation(
            engine, sums.get((engine, "drafts")), sums.get((engine, "drafted")),
            sums.get((engine, "accepted")), heads.get(engine, {}),
            length=_mean(labels_of.get((engine, "length"), [])),
            # Each engine's ranks tell the rate of all of them.
            rate=max(labels_of.get((engine, "rate"), []), default=0.0) or None,
        )
        for engine in engines
    ]  # fmt: skip


def _of_log(lines: list[str]) -> list[Speculation]:
    rows = []
    lengths, counts, shares, rates = [], [], [], []
    sglang: list[tuple[float, float]] = []
    for line in lines:
        if "acceptance length" in line and (length := _VLLM.search(line)):
            lengths.append(float(length[1]))
            if both := _VLLM_COUNTS.search(line):
                counts.append((float(both[1]), float(both[2])))
            if heads := _VLLM_HEADS.search(line):
                shares.append([float(one) for one in heads[1].rstrip(", ").split(",")])
        elif "generation throughput" in line and (rate := _VLLM_RATE.search(line)):
            rates.append(float(rate[1]))
        elif "accept len" in line and (batch := _SGLANG.search(line)):
            sglang.append((float(batch[1]), float(batch[2])))
    if lengths:
        # A line is of one interval: those with more drafts count more.
        weights = [drafted for _, drafted in counts] if len(counts) == len(lengths) else []
        weights = weights if sum(weights) else [1.0] * len(lengths)
        width = min(map(len, shares)) if len(shares) == len(lengths) else 0
        rows.append(
            Speculation(
                "vllm",
                drafted=sum(drafted for _, drafted in counts) if counts else None,
                accepted=sum(accepted for accepted, _ in counts) if counts else None,
                shares={
                    at: _weighted_mean([one[at] for one in shares], weights) for at in range(width)
                },
                length=_weighted_mean(lengths, weights),
                rate=_mean([rate for rate in rates if rate > 0]),
            )
        )
    if sglang:  # a line is of as many steps as any other
        busy = [rate for _, rate in sglang if rate > 0]
        mean_length = _mean([length for length, _ in sglang])
        rows.append(Speculation("sglang", length=mean_length, rate=_mean(busy)))
    return rows


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    return sum(a * b for a, b in zip(values, weights, strict=True)) / sum(weights)
