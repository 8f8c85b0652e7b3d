"""Tokens per expert that a hook wrote while a model trained, one file a rank, one object a line.

    tokens_per_expert/rank0.jsonl   {"iter": 100, "block": "decoder", "layer": 3, "n_micro": 2,
                                     "tpe": [[5, 0, 3, 8], [4, 1, 2, 9]]}
    tokens_per_expert/rank1.jsonl   ...          or aggregated: "tpe": [9, 1, 5, 17]

Megatron's schema. Every rank counts the tokens that it routes to all experts, so a step and layer
is the sum over the ranks that hold the layer, and where experts sit is not known. A file that grew
long is followed by others: rank0.jsonl, rank0.1.jsonl, rank0.2.jsonl, ... in this order. Lines are
read one by one: memory follows what was counted (steps x layers x experts), not the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.messages import Message

from ...model import SourceFile
from ...small_files import open_regular
from .load_files import ExpertFacts, part_of
from .load_frames import ExpertLoad, as_load, few_numbers, no_placement
from .routed_detail import Counts, Detail, Key, counts_frame

# One layer's counts of many micro-batches, with room to spare.
_LINE_BYTES = 64 << 20
# Sums over ranks and micro-batches stay below 63 bits, numbers of layers below 31.
_MOST_TOKENS, _LAST_STEP, _LAST_LAYER = 1 << 40, 1 << 62, 1 << 29
# 512 MiB of counts.
_COUNTS_AT_MOST = 1 << 26


class _Line(msgspec.Struct):
    iter: int
    layer: int
    tpe: msgspec.Raw
    block: str = "decoder"
    n_micro: int | None = None
    mtp_idx: int | None = None


_LINES = msgspec.json.Decoder(_Line)
_LISTS = msgspec.json.Decoder(list[list[int]])
_LIST = msgspec.json.Decoder(list[int])
# Counts that went through a floating-point reduction.
_FLOAT_LISTS = msgspec.json.Decoder(list[list[float]])
_FLOAT_LIST = msgspec.json.Decoder(list[float])


@dataclass(slots=True)
class _HookSums:
    """What the files told until now; a step and layer has its sum and how many ranks told it."""

    sums: dict[Key, dict[int, Counts]] = field(default_factory=dict)
    ranks: dict[Key, dict[int, int]] = field(default_factory=dict)
    experts_count: int | None = None
    micro_batches: set[int] = field(default_factory=set)
    counts: int = 0
    notes: list[str] = field(default_factory=list)
    detail: Detail = field(default_factory=Detail)


def read_hook(
    files: Sequence[SourceFile],
    *,
    advance: Callable[[int], None] = lambda n_bytes: None,
) -> ExpertLoad:
    """Sum the files of all ranks, each as long as it was when it was found.

    `phase` is train and `ep_rank` NULL: counted globally. Layers are numbered as in the files, the
    multi-token-prediction blocks after the last of them. Of a step that a file tells twice (the
    run started again) the last line counts. A step that not all ranks of a layer told is left out
    of that layer. `counts` are of single ranks and micro-batches, see `expert_detail`. Raises
    TraceNotFound where there is no file, TraceFormatError where none tells anything or where they
    tell of different numbers of experts.
    """
    if not files:
        raise TraceNotFound("no rank*.jsonl: give the folder written by the hook")
    counted = Counter(part_of(file.path) for file in files)
    if twice := sorted({rank for (rank, _), count in counted.items() if count > 1}):
        raise TraceFormatError(
            Path(files[0].path).parent,
            "tokens per expert",
            f"two files of ranks {few_numbers(twice)}",
        )
    lines = _HookSums()
    in_order = sorted(files, key=lambda one: part_of(one.path))
    for _, parts in groupby(in_order, key=lambda one: rank_of(one.path)):
        by_key: dict[Key, dict[int, Counts]] = {}
        for file in parts:
            _one_file(file, lines, by_key)
            advance(file.size_bytes)
        _add(lines, by_key, file.path)
    if not lines.sums:
        why = lines.notes[0] if lines.notes else "they are empty"
        raise TraceFormatError(Path(files[0].path).parent, "tokens per expert", why)
    ranks = sorted({rank_of(file.path) for file in files})
    absent = sorted(set(range(ranks[-1] + 1)) - set(ranks))
    if absent:
        lines.notes.append(
            Message(
                "no file of rank(s) {absent}: the tokens they routed are missing",
                absent=few_numbers(absent),
            )
        )
    layers, whole = _layers(lines), _whole(lines)
    load = _frame(lines, layers, whole)
    if load.is_empty():
        raise TraceFormatError(
            Path(files[0].path).parent,
            "tokens per expert",
            ("no step was recorded by all of its ranks"),
        )
    facts = ExpertFacts(
        "hook",
        ranks_count=len(ranks),
        ranks_expected=ranks[-1] + 1,
        experts_count=lines.experts_count,
        micro_batches=lines.micro_batches.pop() if len(lines.micro_batches) == 1 else None,
    )
    notes = (*lines.notes, *lines.detail.notes())
    counts = counts_frame(lines.detail, layers, whole)
    return ExpertLoad(load, no_placement(), facts, notes, counts)


def rank_of(path: str) -> int:
    """The rank in a file's name. Raises ValueError where there is none."""
    return part_of(path)[0]


def _one_file(file: SourceFile, lines: _HookSums, counts: dict[Key, dict[int, Counts]]) -> None:
    """Add to `counts` the last counts of each layer and step in a file of a rank."""
    rank = rank_of(file.path)
    unreadable: list[str] = []
    again, strangers = 0, set[str]()
    for number, line, is_ended in _lines(file):
        try:
            entry = _LINES.decode(line)
            values, is_together = _counts(entry, lines)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            if is_ended or number == 1:  # else it is still being written
                unreadable.append(f"line {number}: {error}")
            continue
        if entry.block not in ("decoder", "mtp") and entry.mtp_idx is None:
            strangers.add(entry.block)
            continue
        width = values.shape[1]
        if lines.experts_count not in (None, width):
            raise TraceFormatError(
                file.path,
                f"line {number}",
                f"{width} experts, but earlier lines have {lines.experts_count}",
            )
        lines.experts_count = width
        is_mtp = entry.mtp_idx is not None or entry.block == "mtp"
        key = (is_mtp, entry.layer if entry.mtp_idx is None else entry.mtp_idx)
        steps = counts.setdefault(key, {})
        again += entry.iter in steps
        steps[entry.iter] = values.sum(axis=0)
        lines.detail.add(rank, key, entry.iter, values, is_together=is_together)
    name = Path(file.path).name
    if unreadable:
        lines.notes.append(
            Message(
                "{file}: {count} line(s) cannot be read, the first is {unreadable}",
                file=name,
                count=len(unreadable),
                unreadable=unreadable[0],
            )
        )
    if again:
        lines.notes.append(
            Message(
                "{file}: {again} line(s) repeat a layer and step (a restart): the last one is used",
                file=name,
                again=again,
            )
        )
    if strangers:
        lines.notes.append(
            Message(
                "{file}: not read: block(s) {strangers}",
                file=name,
                strangers=", ".join(sorted(strangers)),
            )
        )


def _counts(entry: _Line, lines: _HookSums) -> tuple[Counts, bool]:
    """Tokens [micro-batches, experts], and whether one row has several micro-batches together.

    Raises ValueError, MsgspecError.
    """
    text = bytes(entry.tpe)
    is_nested = text[1:].lstrip().startswith(b"[")
    lists: list[list[int]] | list[list[float]]
    try:
        lists = _LISTS.decode(text) if is_nested else [_LIST.decode(text)]
    except msgspec.ValidationError:
        lists = _FLOAT_LISTS.decode(text) if is_nested else [_FLOAT_LIST.decode(text)]
    if not lists or not lists[0]:
        raise ValueError("no experts in tpe")
    if len({len(one) for one in lists}) > 1:
        raise ValueError("micro-batches of different numbers of experts in tpe")
    if is_nested and entry.n_micro not in (None, len(lists)):
        raise ValueError(f"{len(lists)} micro-batches in tpe, n_micro says {entry.n_micro}")
    values = np.asarray(lists)
    if values.dtype.kind == "f":
        if not np.all(np.isfinite(values)) or np.any(values != np.rint(values)):
            raise ValueError("a count in tpe is not a whole number")
    elif values.dtype.kind != "i":
        raise ValueError("a count in tpe beyond 63 bits")
    if values.min() < 0 or values.max() > _MOST_TOKENS:
        raise ValueError("a count is negative or implausibly large")
    if not (0 <= entry.iter <= _LAST_STEP and all(
        0 <= number <= _LAST_LAYER for number in (entry.layer, entry.mtp_idx or 0)
    )):  # fmt: skip
        raise ValueError("a step or layer is negative or implausibly large")
    micro = entry.n_micro if entry.n_micro is not None else len(lists) if is_nested else None
    if micro is not None and len(lines.micro_batches) < 2:
        lines.micro_batches.add(micro)
    counts: Counts = values.astype(np.int64)
    return counts, not is_nested and entry.n_micro != 1


def _add(lines: _HookSums, by_key: dict[Key, dict[int, Counts]], path: str) -> None:
    for key, steps in by_key.items():
        sums = lines.sums.setdefault(key, {})
        ranks = lines.ranks.setdefault(key, {})
        for step, counts in steps.items():
            if step in sums:
                sums[step] += counts
            else:
                sums[step] = counts
                lines.counts += len(counts)
            ranks[step] = ranks.get(step, 0) + 1
    if lines.counts > _COUNTS_AT_MOST:
        raise TraceFormatError(
            path,
            "tokens per expert",
            f"more than {_COUNTS_AT_MOST} counts (steps x layers x experts) in all files: have the"
            " hook write every 10th step, or give a folder with fewer steps",
        )


def _layers(lines: _HookSums) -> dict[Key, int]:
    """Numbers of layers by block: those of multi-token prediction after all others."""
    after = max((layer for is_mtp, layer in lines.sums if not is_mtp), default=-1) + 1
    return {key: after + key[1] if key[0] else key[1] for key in lines.sums}


def _whole(lines: _HookSums) -> dict[Key, frozenset[int]]:
    """Steps of each block that all of its ranks told."""
    return {
        key: frozenset(step for step, count in ranks.items() if count == max(ranks.values()))
        for key, ranks in lines.ranks.items()
    }


def _frame(
    lines: _HookSums, layers: Mapping[Key, int], layers_of: Mapping[Key, frozenset[int]]
) -> pl.DataFrame:
    everywhere = {step for steps in lines.sums.values() for step in steps}
    parts: list[pl.DataFrame] = []
    incomplete: dict[int, list[int]] = {}
    for (is_mtp, number), sums in sorted(lines.sums.items()):
        layer = layers[is_mtp, number]
        if is_mtp:
            lines.notes.append(
                Message(
                    "layer {layer} is multi-token prediction block {number}",
                    layer=layer,
                    number=number,
                )
            )
        whole = sorted(layers_of[is_mtp, number])
        for step in everywhere - set(whole):
            incomplete.setdefault(step, []).append(layer)
        values = np.stack([sums[step] for step in whole])
        count, width = values.shape
        columns = {
            "step": np.repeat(np.asarray(whole, np.int64), width),
            "expert": np.tile(np.arange(width, dtype=np.int32), count),
            "tokens": values.reshape(-1),
        }
        parts.append(
            pl.DataFrame(columns).select(
                "step",
                pl.lit("train").alias("phase"),
                pl.lit(layer, pl.Int32).alias("layer"),
                "expert",
                pl.lit(None, pl.Int32).alias("ep_rank"),
                "tokens",
            )
        )
    if incomplete:
        short = sorted({layer for layers_here in incomplete.values() for layer in layers_here})
        lines.notes.append(
            Message(
                "step(s) {incomplete}: layer(s) {short} were not recorded by all of their "
                "ranks and are left out",
                incomplete=few_numbers(sorted(incomplete)),
                short=few_numbers(short),
            )
        )
    return as_load(pl.concat(parts)).sort("step", "layer", "expert")


def _lines(file: SourceFile) -> Iterator[tuple[int, bytes, bool]]:
    """Number, line, and whether it has ended; empty lines are passed over."""
    left, number = file.size_bytes, 0
    with open_regular(file.path) as opened:
        while left > 0 and (line := opened.readline(min(left, _LINE_BYTES))):
            left -= len(line)
            number += 1
            if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
                raise TraceFormatError(
                    file.path, f"line {number}", ("the line is too long for a line of counts")
                )
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, line, line.endswith(b"\n")
