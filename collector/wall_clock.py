"""Which instants are of a wall clock."""

from __future__ import annotations

import time

# Device clocks count from power-up; an epoch clock read after 2001 is past 10^18 ns.
EPOCH_FROM_NS = 10**18
_AHEAD_NS = 86_400 * 10**9


def wall_clock_ns(instant_ns: int | None) -> int | None:
    """An instant of a wall clock; None of one that counts from power-up, and of one that is more
    than a day ahead of ours: a host without a battery may believe to live in 2039."""
    if instant_ns is None or instant_ns < EPOCH_FROM_NS:
        return None
    return instant_ns if instant_ns <= time.time_ns() + _AHEAD_NS else None
