"""One line of a trainer's log: its step, and the figures that have a place in `train_log`.

    iteration  10/ 500 | elapsed time per iteration (ms): 5123.4 | ... |    Megatron, MindSpeed-LLM
    [titan] step: 10  loss: 8.1  tps: 1,234  tflops: 56.7  mfu: 18.3%       torchtitan and alike
    {'loss': 8.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}   Hugging Face's Trainer
    { Epoch:[  1/  2], step:[   10/ 500], loss: 8.1, per_step_time: 512ms   MindFormers
    step:3 - timing_s/gen:698.8 - timing_s/step:1268.4 - ...                verl
    {"step": 3, "data": {"timing_s/gen": 698.8, ...}}                       verl's file logger
    steps: 10 loss: 8.1 iter time (s): 1.234 samples/sec: 51.9              DeepSpeed's pipelines
    Training epoch 0, iteration 9/99 | global_step: 9 | reduced_train_loss: 8.1 | ...   NeMo
    iteration: 3 / 100 | timing/rollout : 71.2 | timing/all : 120.1 |       MindSpeed-RL
    Epoch(train)  [1][  10/7330]  lr: 2.0e-03  time: 0.3  data_time: 0.01  loss: 1.5   mmengine

What stands before (times, `[rank0]:`, `(Worker pid=1)`, colours) does not matter, nor do fields
that nobody asks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Literal

Scope = Literal["job", "device"]

# A line with a figure has one of these in it: whatever has none is never looked at.
MARKS = (
    b"iteration", b"loss", b"timing_s/", b"seq_length", b"world_size", b"world size",
    b"global_batch_size",
)  # fmt: skip

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
    "wps": ("tokens_per_s", 1.0),  # torchtitan until 2024
    "tokens per gpu per second (tgs)": ("tokens_per_s", 1.0),  # Megatron-DeepSpeed
    "lm loss": ("loss", 1.0),
    "reduced_train_loss": ("loss", 1.0),
    "loss": ("loss", 1.0),
    "grad norm": ("grad_norm", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "learning rate": ("learning_rate", 1.0),
    "learning_rate": ("learning_rate", 1.0),
    "lr": ("learning_rate", 1.0),
    "lr(1e-3)": ("learning_rate", 1e3),
    "mfu": ("mfu_ratio", 1.0),
    "per_step_time": ("elapsed_s", 1e3),
    "iter time (s)": ("elapsed_s", 1.0),
    "time(s)": ("elapsed_s", 1.0),
    "train_step_timing in s": ("elapsed_s", 1.0),
    "step_time": ("elapsed_s", 1.0),
    "step_time_s": ("elapsed_s", 1.0),
    "elapsed_s": ("elapsed_s", 1.0),
    "global_norm": ("grad_norm", 1.0),
    "train_throughput_per_npu": ("tflops_per_s", 1.0),
    "loss scale": ("loss_scale", 1.0),
    "loss_scale": ("loss_scale", 1.0),
    "number of skipped iterations": ("skipped_count", 1.0),
    "number of nan iterations": ("nan_count", 1.0),
    "mtp_1 loss": ("mtp_1_loss", 1.0),
    "mtp_2 loss": ("mtp_2_loss", 1.0),
    "mtp_3 loss": ("mtp_3_loss", 1.0),
    "mtp_1_loss": ("mtp_1_loss", 1.0),
    "mtp_2_loss": ("mtp_2_loss", 1.0),
    "mtp_3_loss": ("mtp_3_loss", 1.0),
    "mtp_loss": ("mtp_1_loss", 1.0),
    "mtp loss": ("mtp_1_loss", 1.0),
    "consumed tokens": ("consumed_tokens", 1.0),
    "global batch size": ("global_batch_size", 1.0),
    "global_batch_size": ("global_batch_size", 1.0),
    "iteration time": ("elapsed_s", 1.0),
    "mem max allocated bytes": ("memory_bytes", 1.0),
    "loss_metrics/global_avg_loss": ("loss", 1.0),
    "throughput(tps)": ("tokens_per_s", 1.0),
    "mfu(%)": ("mfu_ratio", 100.0),
    "time_metrics/end_to_end(s)": ("elapsed_s", 1.0),
    "memory/max_active(gib)": ("memory_bytes", 2.0**-30),
    # verl. MFU is of the actor's update alone: no MFU of the step.
    "timing_s/step": ("elapsed_s", 1.0),
    "timing_s/gen": ("generation_s", 1.0),
    "timing_s/old_log_prob": ("old_log_prob_s", 1.0),
    "timing_s/ref": ("reference_s", 1.0),
    "timing_s/reward": ("reward_s", 1.0),
    "timing_s/adv": ("advantage_s", 1.0),
    "timing_s/update_actor": ("update_actor_s", 1.0),
    "timing_s/update_critic": ("update_critic_s", 1.0),
    "timing_s/update_weights": ("weight_sync_s", 1.0),
    "timing_s/sync_rollout_weights": ("weight_sync_s", 1.0),
    "timing_s/reshard": ("resharding_s", 1.0),
    "perf/total_num_tokens": ("step_tokens", 1.0),
    "perf/throughput": ("tokens_per_s", 1.0),
    "perf/max_memory_allocated_gb": ("memory_bytes", 2.0**-30),
    "actor/pg_loss": ("loss", 1.0),
    "actor/grad_norm": ("grad_norm", 1.0),
    "actor/lr": ("learning_rate", 1.0),
    # verl of 2024, which tells phases and no step's time.
    "timing/gen": ("generation_s", 1.0),
    "timing/ref": ("reference_s", 1.0),
    "timing/update_actor": ("update_actor_s", 1.0),
    "timing/update_critic": ("update_critic_s", 1.0),
    "actor/lr(1e-4)": ("learning_rate", 1e4),
    # MindSpeed-RL. What runs beside generation counts as far as it does not.
    "timing/all": ("elapsed_s", 1.0),
    "timing/rollout": ("generation_s", 1.0),
    "timing/old_log_p": ("old_log_prob_s", 1.0),
    "timing/reference_model": ("reference_s", 1.0),
    "timing/rule_reward": ("reward_s", 1.0),
    "timing/adv": ("advantage_s", 1.0),
    "timing/update": ("update_actor_s", 1.0),
    "timing/resharding_to_train": ("resharding_s", 1.0),
    "timing/resharding_to_infer": ("resharding_s", 1.0),
    "timing/non_overlap_reference_model": ("reference_s", 1.0),
    "timing/non_overlap_rule_reward": ("reward_s", 1.0),
    "timing/non_overlap_adv": ("advantage_s", 1.0),
    "tokens/p/s": ("tokens_per_s", 1.0),
}
# In any key that ends so, as different versions begin it differently.
_ENDINGS = {
    "generate_sequences/min": "generation_min_s",
    "generate_sequences/max": "generation_max_s",
    "generate_sequences/mean": "generation_mean_s",
}
COLUMNS = (
    "elapsed_s", "tokens_per_s", "loss", "grad_norm", "learning_rate", "mfu_ratio", "tflops_per_s",
)  # fmt: skip
# The phases of a step of reinforcement learning, in its order; what else it takes is the rest.
PHASES = (
    "generation_s", "old_log_prob_s", "reference_s", "reward_s", "advantage_s", "update_actor_s",
    "update_critic_s",
)  # fmt: skip
MTP_LOSSES = ("mtp_1_loss", "mtp_2_loss", "mtp_3_loss")  # heads of multi-token prediction
# What `parse` tells beyond the columns of `train_log`.
MORE_COLUMNS = (
    "loss_scale", "skipped_count", "nan_count", "not_finite_count", "consumed_tokens",
    "step_tokens", "memory_bytes", *PHASES, "generation_min_s", "generation_mean_s",
    "generation_max_s", "weight_sync_s", "resharding_s", *MTP_LOSSES, "at_s", "per_device",
    "global_batch_size",
)  # fmt: skip
# Told too where they ran beside generation: what did not is another key, which counts.
WEAK = frozenset({"timing/reference_model", "timing/rule_reward", "timing/adv"})
SUMS = frozenset({"resharding_s"})  # told in two parts
_COUNTS = frozenset({"global batch size", "consumed samples", "consumed tokens"})
# Zero here is what a trainer prints that does not know.
_MAY_DIVERGE = frozenset({"loss", "grad_norm"})
POSITIVE = frozenset({"elapsed_s", "tokens_per_s", "tflops_per_s", "mfu_ratio"})
PER_DEVICE = frozenset({
    "tps", "wps", "throughput(tps)", "perf/throughput", "tokens/p/s",
    "tokens per gpu per second (tgs)",
})  # fmt: skip

_GROUPS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?"
_NUMBER = rf"[-+]?(?:{_GROUPS}|{_PLAIN}|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
_OPEN = re.compile(r"[\d.,eE+-]+$")
_WHOLE_NUMBER = re.compile(rf"({_NUMBER})\s*(%?)")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ITERATION = re.compile(r"\biteration(?::?\s+(\d{1,18})\s*/\s*\d{1,18}|:\s*(\d{1,18}))\s*\|")
# Of several steps only DeepSpeed's pipelines speak so; others tell how many there are.
_STEP = re.compile(r"(?<![\w/.-])step(?:s(?=: \d+ loss: ))?\s*:\s*(\d{1,18})(?![\w.])")
_KEY = r"iter time \(s\)|[A-Za-z][\w/]*(?:\((?:s|1e-[34])\))?"
_PAIR = re.compile(rf"(?<![\w/.])({_KEY})\s*:\s*({_NUMBER}\s?%?)(?=[\s,;|]|$)")
# A file logger's, which verl writes: keys are those of its lines.
_DATA = re.compile(r'\{\s*"step"\s*:\s*(\d{1,18})\s*,\s*"data"\s*:\s*(\{[^{}]*\})\s*\}')
_DATUM = re.compile(rf'"([A-Za-z][\w/]*)"\s*:\s*({_NUMBER})\s*(?=[,}}])')
_RECORD = re.compile(r"\{[^{}]*['\"]loss['\"]\s*:[^{}]*\}")
_MEMBER = re.compile(rf"['\"](\w+)['\"]\s*:\s*['\"]?({_NUMBER}\s?%?)['\"]?\s*(?=[,}}])")
# Of Hugging Face's Trainer, of LLaMA-Factory, of ms-swift (`10/500`).
_RECORD_STEP = re.compile(
    r"['\"](?:step|global_step|current_steps|global_step/max_steps)['\"]\s*:"
    r"\s*['\"]?(\d{1,18})(?=[/'\",\s}])"
)
_BESIDE_LOSS = frozenset({"step", "global_step", "epoch", "grad_norm", "learning_rate"})
_ARGUMENT = re.compile(r"(?<!\w)(seq_length|global_batch_size|world_size) \.{2,} (\d{1,18})(?!\S)")
MINDFORMERS = re.compile(r"\bEpoch:\[\s*(\d+)/\s*\d+\],\s*step:\[\s*(\d+)/\s*(\d+)\],(.*)")
MMENGINE = re.compile(r"\bEpoch\(train\)\s*\[(\d{1,9})\]\s*\[\s*(\d{1,9})/\s*(\d{1,9})\](\s.*)")
_MMENGINE_ITERATION = re.compile(r"\bIter\(train\)\s*\[\s*(\d{1,18})/\s*\d{1,18}\](\s.*)")
_MMENGINE_TIME = re.compile(r"(?<=\s)time:(?=\s+\S+\s+data_time:)")  # a step's mean, in s
# In 2023 `loss:[8.1/8.2], time:512.3 ms`: the step's and the mean loss.
_FORMERS_PAIR = re.compile(rf"(\w+):\s*\[?({_NUMBER})(?:/{_NUMBER})?\]?(?:ms|T)?(?=[,\s}}]|$)")
_FORMERS_TIME = re.compile(r"\btime:(?=\s*[-+\d.,eE]+\s*ms\b)")
_COUNT = re.compile(r"\d{1,18}", re.A)
_WRAPPER = re.compile(r"\b(?:np\.|numpy\.|tensor)\w*\(([^()]*?)(?:,[^()]*)?\)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
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

    Of a line that has not ended only what is certainly whole counts, as it may still be written or
    was cut off: no number that it ends with.
    """
    text = _plain(line) if is_ended else _OPEN.sub("", _plain(line))
    if "np." in text or "numpy." in text or "tensor(" in text:
        text = _WRAPPER.sub(r"\1", text)
    starts = list(_ITERATION.finditer(text)) if "iteration" in text else []
    if starts:
        ends = [match.start() for match in starts[1:]] + [len(text)]
        for match, end in zip(starts, ends, strict=True):
            piped = text[match.end() : end]
            yield from _piped_fields(int(match[1] or match[2]), piped, text[: match.start()])
        return
    record = _RECORD.search(text) if "{" in text else None
    if '"data"' in text and (data := _DATA.search(text)):
        yield from _steps_of(int(data[1]), _DATUM.findall(data[2]), text[: data.start()])
    elif record:
        yield from _record(record[0])
    elif "Epoch:[" in text and (epoch := MINDFORMERS.search(text)):
        # Steps begin again in each epoch.
        number = (int(epoch[1]) - 1) * int(epoch[3]) + int(epoch[2])
        pairs = _FORMERS_PAIR.findall(_FORMERS_TIME.sub("per_step_time:", epoch[4]))
        yield from _entries_of(number, pairs, text[: epoch.start()])
    elif "(train)" in text and (epoch := MMENGINE.search(text)):
        number = (int(epoch[1]) - 1) * int(epoch[3]) + int(epoch[2])
        yield from _entries_of(number, _of_mmengine(epoch[4]))
    elif "(train)" in text and (step := _MMENGINE_ITERATION.search(text)):
        yield from _entries_of(int(step[1]), _of_mmengine(step[2]))
    elif step := _STEP.search(text):
        found = _PAIR.findall(text[step.end() :])
        yield from _steps_of(int(step[1]), found, text[: step.start()])


def _plain(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return COLOUR.sub("", text) if "\x1b" in text else text


def arguments(line: bytes) -> Iterator[tuple[str, int]]:
    """What a line of the list of arguments that Megatron prints at its start says."""
    text = _plain(line)
    if " .." not in text and "using world size" not in text:
        return
    for name, value in _ARGUMENT.findall(text):
        yield name, int(value)
    for value in _WORLD.findall(text):
        yield "world_size", int(value)


def _piped_fields(step: int, text: str, before: str) -> Iterator[LogEntry]:
    """Fields that end with a bar: one that does not was cut off. Those of 2019 have no colon."""
    fields = (field.strip() for field in text.split("|")[:-1])
    pieces = (field.rpartition(":" if ":" in field else " ") for field in fields)
    pairs = [(" ".join(key.split()).lower(), value.strip()) for key, _, value in pieces]
    own = dict(pairs).get("global_step", "")  # NeMo's iterations begin again in each epoch
    step = int(own) if _COUNT.fullmatch(own) else step
    yield from _entries_of(step, pairs, before, is_percent=True)


def _of_mmengine(text: str) -> list[tuple[str, str]]:
    return _PAIR.findall(_MMENGINE_TIME.sub("elapsed_s:", text))


def _steps_of(step: int, found: list[tuple[str, str]], before: str) -> Iterator[LogEntry]:
    """Of a line of figures with their names, unless it tells of an evaluation alone."""
    pairs = [(key.lower().removeprefix("train/"), value) for key, value in found]
    if not {"loss", "timing_s/step", "timing_s/gen", "timing/gen"}.isdisjoint(dict(pairs)):
        yield from _entries_of(step, pairs, before)


def _record(text: str) -> Iterator[LogEntry]:
    pairs: list[tuple[str, str]] = [(key.lower(), value) for key, value in _MEMBER.findall(text)]
    names = dict(pairs).keys()
    if not _BESIDE_LOSS & names:
        return
    if "data_time" in names:  # mmengine's scalars.json
        pairs = [("elapsed_s" if key == "time" else key, value) for key, value in pairs]
    step = _RECORD_STEP.search(text)
    yield from _entries_of(int(step[1]) if step else None, pairs)


def _entries_of(
    step: int | None,
    pairs: Iterable[tuple[str, str]],
    before: str = "",
    *,
    is_percent: bool = False,
) -> Iterator[LogEntry]:
    """`is_percent`: how a bare `mfu` is meant; elsewhere one above 1 must be percent too. `before`:
    what stands before the figures, which may tell the time."""
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    tokens_of: Scope | None = None
    for key, text in pairs:
        column, divisor = column_of(key, is_percent=is_percent)
        if column is None and key not in _COUNTS:
            continue
        number = _WHOLE_NUMBER.fullmatch(text)
        value = float(number[1].replace(",", "")) if number else math.nan
        if not math.isfinite(value):
            if number and column in _MAY_DIVERGE:
                values["not_finite_count"] = values.get("not_finite_count", 0.0) + 1
            continue
        if key in _COUNTS and value > 0:
            counts[key] = int(value)
        if column is None or (value <= 0 and column in POSITIVE):
            continue
        if column == "mfu_ratio" and number and (number[2] or value > 1):
            divisor = 100.0
        if column in values and key in WEAK:
            continue
        former = values.get(column, 0.0) if column in SUMS else 0.0
        values[column] = former + value / divisor
        if key in PER_DEVICE:
            tokens_of = "device"
    if not values.keys().isdisjoint(COLUMNS):
        if tokens_of:
            values["per_device"] = 1.0
        if at := _TIME.search(before):
            values["at_s"] = _seconds(at[0])
        yield LogEntry(step, values, counts, tokens_of)


@lru_cache(maxsize=4096)  # a log has few names of figures
def column_of(key: str, *, is_percent: bool) -> tuple[str | None, float]:
    """Where a figure of that name belongs, None: nowhere, and what it is divided by."""
    plain = " ".join(key.split()).lower()
    if is_percent and plain == "mfu":
        return "mfu_ratio", 100.0
    return _COLUMNS.get(plain) or (_ENDINGS.get("/".join(plain.split("/")[-2:])), 1.0)


def _seconds(text: str) -> float:
    """Since 1970 on the clock of whoever wrote the line; NaN for what is no time."""
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return math.nan
    return moment.replace(tzinfo=timezone.utc).timestamp()
