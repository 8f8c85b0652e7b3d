"""What of a profile an ingest reads: which ranks, steps and tables, lightly or with stacks.

    --ranks 0,7,8-15  --steps 12-14  --tables kernels,comm_ops  --light  --stacks

A rank's manifest keeps the selection it was read with, so that an ingest knows whether what is
there covers what is asked for, and reads what is missing beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from npuscope.errors import UsageError

from . import schema

# First and last of each run of numbers, in order, neither touching nor overlapping the next.
Spans = tuple[tuple[int, int], ...]

# Tables that every rank keeps, whatever was selected: nothing else can be understood without them,
# and a trainer's log and counts of tokens per expert are named by who wants them.
ALWAYS = frozenset({
    "ranks", "groups", "profiler_steps", "train_log", "expert_load", "expert_counts",
    "expert_placement",
})  # fmt: skip
# What a light reading keeps. Steps count as read lightly where no trace has to be opened for them.
LIGHT = ALWAYS | {
    "steps", "comm_times", "comm_links", "comm_matrix",
}  # fmt: skip
# What has to be read to have a table right, itself apart.
_NEEDS: dict[str, frozenset[str]] = {
    "kernels": frozenset({"steps"}),
    # The group of an operation may stand in HCCL's times only, its times in its tasks only.
    "comm_ops": frozenset({"steps", "groups", "comm_times", "comm_tasks"}),
    "comm_tasks": frozenset({"comm_ops", "groups"}),
    "comm_matrix": frozenset({"groups"}),
    "launches": frozenset({"kernels"}),
}
_SPANS_NAMED = 5
_NUMBERS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """What to read. None means all; `tables` are canonical names, in order.

    `stacks`: the call stacks of host operations too. `light`: only what small files tell; asked of
    an ingest, the ranks that stand for all others are read as if without it. The selection a rank
    was read with has no `ranks`, and no `tables` where it is light.
    """

    ranks: Spans | None = None
    steps: Spans | None = None
    tables: tuple[str, ...] | None = None
    light: bool = False
    stacks: bool = False

    @property
    def outputs(self) -> frozenset[str]:
        """Canonical tables whose rows are kept."""
        if self.light:
            return LIGHT
        return ALWAYS | frozenset(schema.tables() if self.tables is None else self.tables)

    @property
    def inputs(self) -> frozenset[str]:
        """Canonical tables that must be read so that the kept ones are right."""
        if self.light:
            return LIGHT
        kinds = set(self.outputs)
        if self.steps is not None and not kinds <= LIGHT:
            # They tell from when to when a step lasted, and which kernels cover its communication.
            kinds |= {"kernels", "comm_ops", "steps"}
        pending = list(kinds)
        while pending:
            for needed in _NEEDS.get(pending.pop(), frozenset()) - kinds:
                kinds.add(needed)
                pending.append(needed)
        return frozenset(kinds)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of a rank is left out but, at most, its call stacks."""
        return self.steps is None and self.outputs >= frozenset(schema.tables())

    def has_rank(self, rank: int) -> bool:
        return self.ranks is None or contains(self.ranks, rank)

    def lightly(self) -> Selection:
        """How a light ingest reads every rank."""
        return Selection(steps=self.steps, light=True)

    def in_full(self) -> Selection:
        """How any other ingest reads a rank, and a light one those that stand for the others."""
        return replace(self, ranks=None, light=False)

    def covers(self, other: Selection) -> bool:
        """Whether all that `other` asks for is in a rank that was read with this."""
        return (
            _spans_cover(self.ranks, other.ranks)
            and _spans_cover(self.steps, other.steps)
            and self.outputs >= other.outputs
            and (not self._is_lighter(other))
            and (self.stacks or not other.stacks or "host_ops" not in other.outputs)
        )

    def _is_lighter(self, other: Selection) -> bool:
        """Whether tables of both were read in full for `other` only: light `steps` know less."""
        return self.light and not other.light and "steps" in other.inputs

    def union(self, other: Selection) -> Selection:
        """What covers both: an ingest adds to what is there and takes nothing away."""
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        tables = self.outputs | other.outputs
        light = self.light and other.light
        return Selection(
            _joined_spans(self.ranks, other.ranks),
            _joined_spans(self.steps, other.steps),
            None if light or tables >= frozenset(schema.tables()) else tuple(sorted(tables)),
            light,
            self.stacks or other.stacks,
        )


def parse_selection(
    *,
    ranks: str | None = None,
    steps: str | None = None,
    tables: str | None = None,
    light: bool = False,
    stacks: bool = False,
) -> Selection:
    """A selection from options as they are typed. Raises UsageError that names the option."""
    return Selection(
        parse_numbers("--ranks", ranks) if ranks is not None else None,
        parse_numbers("--steps", steps) if steps is not None else None,
        _parse_tables(tables) if tables is not None else None,
        light,
        stacks,
    )


def parse_numbers(option: str, text: str) -> Spans:
    """`0,7,8-15` as spans. Raises UsageError."""
    spans: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part.strip())
        if not match:
            raise UsageError(f"{option} {text}: give numbers and ranges such as 0,7,8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{option} {text}: {part.strip()} ends before it begins")
        spans.append((first, last))
    return merge_spans(spans)


def _parse_tables(text: str) -> tuple[str, ...]:
    names = sorted({part.strip() for part in text.split(",")})
    unknown = [name for name in names if name not in schema.tables()]
    if unknown:
        choices = ", ".join(schema.tables())
        raise UsageError(f"--tables {text}: no table {unknown[0]!r}; there are {choices}")
    return tuple(names)


def merge_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """Spans in order, with those that touch or overlap made one."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return tuple(result)


def spans_of(numbers: Iterable[int]) -> Spans:
    """Numbers, in any order, as spans."""
    return merge_spans((number, number) for number in numbers)


def spans_text(spans: Spans) -> str:
    """`0,7,8-15`, as an option takes it."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def some_spans(spans: Spans) -> str:
    """The first of many spans, for a message."""
    return spans_text(spans[:_SPANS_NAMED]) + (",..." if len(spans) > _SPANS_NAMED else "")


def contains(spans: Spans, number: int) -> bool:
    """Whether a number lies in one of the spans."""
    return any(first <= number <= last for first, last in spans)


def without(spans: Spans, numbers: Iterable[int]) -> Spans:
    """What is left of spans, which may be long, without these numbers."""
    left: list[tuple[int, int]] = []
    numbers_here = sorted(numbers)
    for first, last in spans:
        for number in numbers_here:
            if first <= number <= last:
                left += [(first, number - 1)] if first < number else []
                first = number + 1
        left += [(first, last)] if first <= last else []
    return tuple(left)


def _spans_cover(these: Spans | None, those: Spans | None) -> bool:
    if these is None:
        return True
    if those is None:
        return False
    return all(any(a <= first and last <= b for a, b in these) for first, last in those)


def _joined_spans(these: Spans | None, those: Spans | None) -> Spans | None:
    return None if these is None or those is None else merge_spans((*these, *those))
