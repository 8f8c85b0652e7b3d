"""How sentences and tables write ranks and figures."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

from npuscope.messages import Message

UNKNOWN = "-"
FREE_MEANS = "free: neither a kernel nor an operation of the step; another step's may run"
_MOST = 8
_NOTHING = re.compile("[^1-9]*0[^1-9]*")
# Words of names: what is held, and how its level stands and changes.
_MEMORY = frozenset({
    "memory", "allocated", "reserved", "active", "held", "fragmentation", "growth", "change",
    "peak", "block", "min", "median", "max", "end", "last", "saved", "budget", "free", "unused",
    "weights", "gradients", "optimizer", "activations", "logits", "buffers", "workspace",
})  # fmt: skip


def ranks_named(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-3, 7`."""
    numbers_here = sorted(set(ranks))
    text = numbers(numbers_here)
    return Message("ranks {numbers}" if len(numbers_here) > 1 else "rank {numbers}", numbers=text)


def numbers(values: Iterable[int]) -> str:
    """`0-3, 7`; a long list ends in how many more there are."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    spans_here = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:_MOST]]
    more = sum(b - a + 1 for a, b in spans[_MOST:])
    text = ", ".join(spans_here)
    return Message("{numbers} and {number} more", numbers=text, number=more) if more else text


def shell_word(path: str) -> str:
    r"""A path as a shell takes it, in characters that a terminal shows: `'two words'`,
    `$'caf\xe9\x0a'`."""
    if path.isprintable():
        return shlex.quote(path)
    return "$'" + "".join(map(_in_shell, path)) + "'"


def _in_shell(char: str) -> str:
    if char.isprintable() and char not in "'\\":
        return char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))


def figure(template: str, value: float) -> str:
    """A figure as the template writes it; what rounds to nothing has no sign."""
    text = template.format(value)
    return text.lstrip("+-") if _NOTHING.fullmatch(text) else text


def ms(value: int | float | None) -> str:
    """Nanoseconds as milliseconds with thousands separated."""
    return UNKNOWN if value is None else figure("{:,.3f}", value / 1e6)


def us(value: int | float | None) -> str:
    """Nanoseconds as microseconds."""
    return UNKNOWN if value is None else figure("{:,.1f}", value / 1e3)


def number(value: int | None) -> str:
    """A count, thousands separated."""
    return UNKNOWN if value is None else f"{value:,}"


def delta_ms(ns: float) -> str:
    """A difference as ms with its sign, which nothing that rounds to zero from below has."""
    text = f"{ns / 1e6:+,.3f}"
    return "0.000" if text == "-0.000" else text


def plain(value: int | None) -> str:
    """A number that is a name: a rank, a step."""
    return UNKNOWN if value is None else str(value)


def megabytes(value: float | None) -> str:
    """Bytes of traffic or files as MB (10^6)."""
    return UNKNOWN if value is None else f"{value / 1e6:,.1f}"


def mebibytes(value: float | None) -> str:
    """Bytes of memory as MiB (2^20), which the profiler's files call MB."""
    if value is None:
        return UNKNOWN
    return "<0.1" if 0 < value < 0.05 * 2**20 else figure("{:,.1f}", value / 2**20)


def is_memory(column: str) -> bool:
    """Whether a column's bytes are memory, told in MiB; of traffic and files they are MB (10^6)."""
    return column.endswith("_bytes") and not _MEMORY.isdisjoint(column.split("_"))


def percent(value: float | None) -> str:
    """A ratio as per cent: 100 only where it is all, 0 only where it is nothing."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.0005:
        return "<0.1 %"
    if 0.9995 <= value < 1:
        return ">99.9 %"
    return figure("{:.1f} %", value * 100)
