"""Instants as people write them, every digit kept."""

from __future__ import annotations

from datetime import datetime, timezone

from npuscope.collector.wall_clock import EPOCH_FROM_NS


def utc(instant_ns: int) -> str | None:
    """An instant as `2025-11-27T12:34:37.072865720Z`; None where it is none since the epoch."""
    if not EPOCH_FROM_NS <= instant_ns < 5 * EPOCH_FROM_NS:
        return None
    whole = datetime.fromtimestamp(instant_ns // 10**9, timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{instant_ns % 10**9:09}Z"


def ms_after_start(instant_ns: int, start_ns: int | None) -> str | None:
    """From a capture's start to an instant, every digit; None where the start is unknown."""
    if start_ns is None:
        return None
    apart_ns = instant_ns - start_ns
    sign = "-" if apart_ns < 0 else ""
    return f"{sign}{abs(apart_ns) // 10**6}.{abs(apart_ns) % 10**6:06}"
