"""Gaps on a device by HolisticTraceAnalysis's rule: from a GPU's trace itself, one after the other.

A gap lies before a kernel where the one before it, of the same line, has ended. It is the host's
where the kernel was launched after that; the kernel's where it is short; else neither's. HTA's
lines are streams; the device as a whole is one, too: then a gap is a stretch without any kernel.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

SHORT_NS = 30_000  # 30, said to be ns, of times in us
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Gap:
    """From the end of what ran before to the start of what runs next, launched at launch_ns."""

    stream_id: int
    step: int
    is_within_step: bool
    start_ns: int
    end_ns: int
    launch_ns: int

    @property
    def dur_ns(self) -> int:
        """How long it lasts."""
        return self.end_ns - self.start_ns

    @property
    def class_(self) -> str:
        """host_wait, kernel_wait or other."""
        if self.launch_ns > self.start_ns:
            return "host_wait"
        return "kernel_wait" if self.dur_ns < SHORT_NS else "other"


def gaps_of(
    trace: Path, *, by_stream: bool = True, categories: tuple[str, ...] = _ON_DEVICE
) -> list[Gap]:
    """Gaps of a trace in order of their ends, to the ns, each with the step that launched what ends
    it, and whether what ran before is of the same; with `by_stream` False those of the device."""
    content = json.loads(trace.read_text(encoding="utf-8"), parse_float=Decimal)
    zero_ns = int(content.get("baseTimeNanoseconds", 0))

    def ns(event: dict[str, Any], until: bool = False) -> int:
        us = Decimal(event["ts"]) + (Decimal(event["dur"]) if until else 0)
        return zero_ns + int((us * 1000).to_integral_value())

    events = [one for one in content["traceEvents"] if one.get("ph") == "X"]
    launches = {
        one["args"]["correlation"]: ns(one) for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver")
    }  # fmt: skip
    steps = sorted(
        (ns(one), int(one["name"].partition("#")[2])) for one in events
        if one.get("cat") == "user_annotation" and one["name"].startswith("ProfilerStep#")
    )  # fmt: skip

    def found() -> Iterator[Gap]:
        until: dict[int, tuple[int, int]] = {}
        for one in sorted((e for e in events if e.get("cat") in categories), key=ns):
            launch_ns = launches[one["args"]["correlation"]]
            stream = one["args"]["stream"] if by_stream else -1
            step = max((number for begin, number in steps if begin <= launch_ns), default=-1)
            free_ns, step_before = until.get(stream, (ns(one), step))
            if ns(one) > free_ns:
                yield Gap(stream, step, step == step_before, free_ns, ns(one), launch_ns)
            until[stream] = max(free_ns, ns(one, until=True)), step

    return list(found())


def classes(gaps: Collection[Gap]) -> dict[str, int]:
    """Length of each class, in ns."""
    names = ("host_wait", "kernel_wait", "other")
    return {name: sum(one.dur_ns for one in gaps if one.class_ == name) for name in names}
