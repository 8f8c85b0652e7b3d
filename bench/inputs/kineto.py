"""The sample job as a GPU's profiler would have written it, scaled: input for other tools and ours.

Same events, same instants, with what real traces have beside a sample's: nested operators with
strides and inputs, Python functions. An event takes some 350 bytes, as in real ones.

    .venv/bin/python -m bench.inputs.kineto OUT --mb 200
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from bench.inputs.captures import job_of, period_ns_of
from bench.inputs.tiled_text import growths
from bench.inputs.tiling import Rule, tile
from npuscope.sample_traces.capture import Capture, Launch, captures
from npuscope.sample_traces.forms.kineto import (
    Event,
    event_text,
    events,
    file_name,
    head_text,
    slice_of,
)

_INSTANT = r'"ts": (\d+)(?=\.)'
_NESTED = ("aten::empty", "aten::as_strided", "aten::view", "aten::contiguous")
_DIMS: tuple[list[list[int]], ...] = (
    [[2048, 1024], [1024, 3072]],
    [[2048, 1, 1024], [], [], [], []],
    [[4096, 1024]],
    [[], []],
)
_FRAMES = (
    "torch/nn/modules/module.py(1747): _call_impl",
    "torch/nn/modules/module.py(1736): _wrapped_call_impl",
    "megatron/core/transformer/transformer_layer.py(438): forward",
    "megatron/core/transformer/transformer_block.py(391): forward",
)


def write_kineto(out: Path, size_bytes: int) -> int:
    """Writes one rank's trace of about `size_bytes`; returns its events."""
    c = captures(job_of(2))[0]
    grow = growths(c, period_ns_of([c]))
    metadata, body, ending = _parts(c)
    rules: list[Rule] = [
        (_INSTANT, grow.period_ns // 1000),
        (r"ProfilerStep#(\d+)", grow.steps),
        (r'"(?:correlation|External id)": (\d+)', grow.connections),
        (r'"id": (\d+)', grow.connections),
    ]
    cut = tile(",".join(event_text(event) for event in body), rules)
    repetitions = max(1, round(size_bytes / len(cut.text(0))))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        file.write(head_text(c))
        file.write(",".join(event_text(event) for event in metadata))
        file.writelines(f",{text}" for text in cut.texts(repetitions))
        lasting = tile(",".join(event_text(event) for event in ending), [
            (r'"dur": (\d+)(?=\.)', grow.period_ns // 1000),
            (r'"Record Window End"[^}]*"ts": (\d+)(?=\.)', grow.period_ns // 1000),
        ])  # fmt: skip
        file.write(f",{lasting.text(repetitions - 1)}\n  ],\n")
        file.write(f'  "traceName": "{file_name(c)}"\n}}')
    return len(metadata) + repetitions * len(body) + len(ending)


def _parts(c: Capture) -> tuple[list[Event], list[Event], list[Event]]:
    """Events that name things, those that repeat, and the profiler's own at the end."""
    found = events(c)
    chance = random.Random("kineto")
    detail = [event for launch in c.launches() for event in _detail(c, launch, chance)]
    once = [event for event in found if event["ph"] == "M"]
    ending = [event for event in found if event.get("pid") in ("Spans", "")]
    apart = {id(event) for event in (*once, *ending)}
    return once, [*detail, *(e for e in found if id(e) not in apart)], ending


def _detail(c: Capture, launch: Launch, chance: random.Random) -> Iterator[Event]:
    """Python functions around an operator, and operators inside it, one inside the other."""
    t = launch.times
    place = (c.process_id, c.backward_thread if launch.backward else c.main_thread)
    for depth, name in enumerate(_FRAMES):
        times = (t.operator_start_ns - 40 + 10 * depth, t.operator_end_ns + 40 - 10 * depth)
        args: Event = {"Python parent id": depth or None, "Python id": depth + 1, "Ev Idx": depth}
        yield slice_of(c, "python_function", name, place, times, args)
    for depth, name in enumerate(_NESTED, 1):
        times = (t.operator_start_ns + 90 * depth, t.enqueue_ns - 90 * depth)
        dims = chance.choice(_DIMS)
        args = {
            "External id": launch.connection_id + depth, "Record function id": 0,
            "Concrete Inputs": [""] * len(dims), "Input type": ["c10::BFloat16"] * len(dims),
            "Input Strides": [[1] * len(one) for one in dims], "Input Dims": dims, "Ev Idx": depth,
        }  # fmt: skip
        yield slice_of(c, "cpu_op", name, place, times, args)


def main() -> None:
    """Writes a trace of a size."""
    parser = argparse.ArgumentParser(description="one rank's trace of a GPU")
    parser.add_argument("out", type=Path, help="the file, *.pt.trace.json")
    parser.add_argument("--mb", type=float, default=200)
    chosen = parser.parse_args()
    print(f"{chosen.out}: {write_kineto(chosen.out, int(chosen.mb * 1e6)):,} events")


if __name__ == "__main__":
    main()
