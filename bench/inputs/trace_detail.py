"""What real timelines have beside a sample's: nested operators, counters, call stacks.

Shares follow real captures: a third of the events are counters, slices outnumber flows more than
two to one, and with stacks a tenth of the slices carry some 1.2 KB of call stack each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from npuscope.sample_traces.capture import Capture, Launch
from npuscope.sample_traces.forms.trace import microseconds

Event = dict[str, object]
_NESTED = ("aten::empty", "aten::as_strided", "aten::view", "aten::contiguous")
_DIMS = (
    ("2048,1024;\r\n1024,3072;\r\n", "c10::BFloat16;\r\nc10::BFloat16;\r\nScalar"),
    ("2048,1,1024;\r\n;\r\n;\r\n;\r\n;\r\n", "c10::BFloat16;\r\nScalar;\r\nScalar;\r\nNone"),
    ("4096,1024", "float"),
    (";\r\n;\r\n;\r\n;\r\n;\r\n", "ScalarList;\r\nScalar;\r\nScalar;\r\nNone;\r\nScalar;\r\nNone"),
)
_PYTHON_PER_LAUNCH = 4
_COUNTER_SHARE = 0.35
_SLICES_PER_STACK = 10
_FREQUENT = ("read_bandwidth", "write_band_width", "read_ost", "write_ost")
_PROCESSES = {"Acc PMU": 23, "QoS": 24, "HBM": 19, "NPU MEM": 21}
_LIBRARY = "/usr/local/lib/python3.11/site-packages"
_OUTER = (
    "megatron/core/transformer/transformer_layer.py(438): forward",
    "megatron/core/transformer/transformer_block.py(391): forward",
    "megatron/core/models/gpt/gpt_model.py(288): forward",
    "torch/nn/modules/module.py(1747): _call_impl",
    "torch/nn/modules/module.py(1736): _wrapped_call_impl",
    "megatron/core/distributed/data_parallel_base.py(22): forward",
    "megatron/core/pipeline_parallel/schedules.py(275): forward_step",
    "megatron/core/pipeline_parallel/schedules.py(1291): forward_backward_pipelining",
    "megatron/training/training.py(741): train_step",
    "megatron/training/training.py(350): pretrain",
)
_INNER = (
    "megatron/core/tensor_parallel/layers.py(911): forward",
    "megatron/core/transformer/moe/token_dispatcher.py(455): token_permutation",
    "megatron/core/transformer/moe/experts.py(231): forward",
    "megatron/core/transformer/attention.py(402): forward",
    "megatron/core/optimizer/distrib_optimizer.py(1893): step",
)


@dataclass(frozen=True, slots=True)
class Detail:
    """What to add, and from which seed."""

    stacks: bool
    seed: str


def with_detail(c: Capture, events: list[Event], detail: Detail) -> tuple[list[Event], int]:
    """Events with details added where the profiler would have put them, and how many Python ids
    there are."""
    chance = random.Random(f"detail/{detail.seed}")
    launches = c.launches()
    host = [event for x in launches for event in _nest(c, x, chance)]
    python = [*_python(c, launches)] if detail.stacks else []
    slices = sum(event["ph"] == "X" for event in (*events, *host, *python))
    if detail.stacks:
        _add_stacks([e for e in (*events, *host) if e.get("cat") == "cpu_op"], slices, chance)
    whole = len(events) + len(host) + len(python)
    counters = [*_counters(c, int(whole * _COUNTER_SHARE / (1 - _COUNTER_SHARE)), chance)]
    first_metadata = next(i for i, event in enumerate(events) if event["ph"] == "M")
    first_device = next(i for i, e in enumerate(events) if e["name"] == "PROFILING_ENABLE")
    return [
        *events[:first_metadata], *host, *python, *events[first_metadata:first_device],
        *_counter_metadata(c), events[first_device], *counters, *events[first_device + 1 :],
    ], len(python)  # fmt: skip


def _nest(c: Capture, launch: Launch, chance: random.Random) -> Iterator[Event]:
    """Operators inside a launching one, one inside the other."""
    start_ns, end_ns = launch.times.operator_start_ns, launch.times.enqueue_ns
    for depth, name in enumerate(_NESTED, 1):
        dims, types = chance.choice(_DIMS)
        yield {
            "ph": "X", "name": name, "pid": c.process_id,
            "tid": c.backward_thread if launch.backward else c.main_thread,
            "ts": microseconds(start_ns + 90 * depth),
            "dur": (end_ns - start_ns - 180 * depth) / 1000, "cat": "cpu_op",
            "args": {"Sequence number": -1, "Fwd thread id": 0, "Input Dims": dims,
                     "Input type": types},
        }  # fmt: skip


def _python(c: Capture, launches: list[Launch]) -> Iterator[Event]:
    """Python functions around each launch."""
    ids = count(1)
    for launch in launches:
        t, parent = launch.times, 0
        for depth in range(_PYTHON_PER_LAUNCH):
            id_, place = next(ids), _OUTER[(launch.connection_id + depth) % len(_OUTER)]
            yield {
                "ph": "X", "name": place, "pid": c.process_id,
                "tid": c.backward_thread if launch.backward else c.main_thread,
                "ts": microseconds(t.operator_start_ns - 40 + 10 * depth),
                "dur": (t.operator_end_ns - t.operator_start_ns + 80 - 20 * depth) / 1000,
                "cat": "python_function", "args": {"Python id": id_, "Python parent id": parent},
            }  # fmt: skip
            parent = id_


def _add_stacks(operators: list[Event], slices: int, chance: random.Random) -> None:
    wanted = min(len(operators), slices // _SLICES_PER_STACK)
    for operator in chance.sample(operators, wanted):
        inner = [chance.choice(_INNER), "torch/nn/modules/module.py(1747): _call_impl"]
        frames = [f"{_LIBRARY}/{frame}" for frame in (*inner, *_OUTER)]
        args = operator["args"]
        assert isinstance(args, dict)
        args["Call stack"] = ";\r\n".join([*frames, "pretrain_gpt.py(238): <module>"])


def _counter_pid(c: Capture, process: str) -> int:
    return (c.process_id << 10 | _PROCESSES[process] << 5 | c.device_id) & 0xFFFFFFFF


def _counter_metadata(c: Capture) -> Iterator[Event]:
    for process in _PROCESSES:
        pid = _counter_pid(c, process)
        yield {"name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}, "ph": "M"}


def _counters(c: Capture, wanted: int, chance: random.Random) -> Iterator[Event]:
    """Rounds of samples, evenly over the steps: mostly of bandwidths, now and then of memory."""
    begin_ns, end_ns = c.steps[0].window_start_ns, c.steps[-1].device_end_ns
    rounds = max(1, round(wanted / 6.5))

    def counter(process: str, name: str, ns: int, args: Event) -> Event:
        pid = _counter_pid(c, process)
        return {"name": name, "ts": microseconds(ns), "pid": pid, "tid": 0, "args": args, "ph": "C"}

    for number in range(rounds):
        ns = begin_ns + (end_ns - begin_ns) * number // rounds
        for name in _FREQUENT:
            yield counter("Acc PMU", name, ns, {"value": chance.randrange(4096), "acc_id": 0})
        for place in (1, 2):
            qos: Event = {"value": chance.randrange(40_000)}
            yield counter("QoS", "QoS OTHERS", ns + 70 * place, qos)
        if number % 8 == 0:
            for side in ("Read", "Write"):
                args: Event = {f"{side}(MB/s)": chance.randrange(10**9) / 1000}
                yield counter("HBM", f"HBM {number // 8 % 4}/{side}", ns + 210, args)
            held: Event = {"KB": float(chance.randrange(2_000_000, 30_000_000))}
            yield counter("NPU MEM", "APP/HBM", ns + 280, held)
            yield counter("NPU MEM", "Device/HBM", ns + 280, held)
