"""How much longer steps take while the profiler watches, from what the trainer logged.

    step      10   11   12   13   14   15   16   17
    logged   1.0  1.0  1.1  1.3  1.3  1.6  1.0  1.0  s
             before .. warm-up profiled writing  after       (1.3 / 1.0) - 1 = 30 %

Steps of the profiler's warm-up and the step after the last one, in which it writes, count as
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

# Neighbours on each side: near enough to be the same work, enough for a median.
NEIGHBOURS = 10
_WRITING_STEPS = 1
_NO_LOG = "no step times from the training log: `npuscope ingest PATH --train-log FILE`"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Median seconds of profiled and of neighbouring steps, their ratio less one, or why not."""

    ratio: float | None = None
    profiled_s: float | None = None
    unprofiled_s: float | None = None
    profiled_count: int = 0
    unprofiled_count: int = 0
    reason: str | None = None


def profiler_overhead(
    logged_s: Mapping[int, float], profiled: Collection[int], *, warmup: int = 1
) -> Overhead:
    """The overhead, of seconds per logged step and the steps that were profiled.

    `warmup` steps before the first of a window are the profiler's own. Steps of the log and of the
    profiler must count alike.
    """
    if not logged_s:
        return Overhead(reason=_NO_LOG)
    if not profiled:
        return Overhead(reason="no profiled step has a number")
    known = {step: seconds for step, seconds in logged_s.items() if seconds > 0}
    watched = [known[step] for step in sorted(profiled) if step in known]
    if not watched:
        return Overhead(reason="the training log has no times for the profiled steps")
    touched = {step + near for step in profiled for near in range(-warmup, _WRITING_STEPS + 1)}
    free = sorted(step for step in known if step not in touched)
    before = [step for step in free if step < min(profiled)][-NEIGHBOURS:]
    after = [step for step in free if step > max(profiled)][:NEIGHBOURS]
    between = [step for step in free if min(profiled) < step < max(profiled)]
    beside = [known[step] for step in (*before, *between, *after)]
    if not beside:
        return Overhead(reason="the training log has only the profiled steps")
    profiled_s, unprofiled_s = median(watched), median(beside)
    return Overhead(
        profiled_s / unprofiled_s - 1, profiled_s, unprofiled_s, len(watched), len(beside)
    )
