"""What a what-if changes, in one word: `comm:pp=0.5`, `worker:1,3=median`, `ideal`.

TARGET[:NAME][=VALUE]; a number multiplies durations. Which targets there are, and what their names
and values mean, is said where they are applied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message, join

_ALONE = ("host", "micro_batches", "between_steps", "schedule")  # take a value without a name
# A kernel's type may hold an @ of its own, and shapes no letter.
_SHAPES = re.compile(r"(.+)@([^@A-Za-z]*)", re.S)
_WORD = re.compile(r"([a-z_]+)(?::(.+?))?(?:=([^=]*))?", re.S)


@dataclass(frozen=True, slots=True)
class Change:
    """`target` and `name` say what changes, `value` to what; `word` is how the user wrote it."""

    word: str
    target: str
    name: str
    value: str

    def factor(self, *words: str) -> float | str:
        """By what durations are multiplied, or one of `words`. Raises UsageError."""
        if self.value in words:
            return self.value
        try:
            factor = float(self.value)
        except ValueError:
            factor = math.nan
        if not 0 <= factor < math.inf:
            sentence = Message("a number from 0 on: 0.5 is half the time")
            raise UsageError(
                Message(
                    "{change}: the value is {values}",
                    # Words to write are the same in every language.
                    change=self.word, values=join((sentence, *(f"`{one}`" for one in words))),
                )
            )  # fmt: skip
        return factor

    def kernel(self) -> tuple[str, str]:
        """Type and input shapes of `kernel:TYPE@SHAPES`; no shapes: ''."""
        match = _SHAPES.fullmatch(self.name)
        return (match[1], match[2]) if match else (self.name, "")

    def no_such(self, there: Collection[object]) -> UsageError:
        """What to raise where nothing has that name."""
        names = ", ".join(map(str, [*there][:12])) + (", ..." if len(there) > 12 else "")
        return UsageError(
            Message(
                "{change}: no such {target} here: there is {shown}",
                change=self.word, target=self.target, shown=names or Message("none"),
            )
        )  # fmt: skip

    def refusal(self, template: str, **values: int) -> CannotAnswer:
        """What to raise where the capture does not tell what the change does: why, as a message."""
        why = Message(template, **values)
        return CannotAnswer(Message("{change}: {why}", change=self.word, why=why))


def changed_kernels(words: Iterable[str]) -> list[str]:
    """Types of kernels that changes are about; what may be one with shapes, both ways."""
    changes = [change for change in map(parse_change, words) if change.target == "kernel"]
    return [*dict.fromkeys(name for one in changes for name in (one.name, one.kernel()[0]))]


def parse_change(word: str) -> Change:
    """A change as it was written. Raises UsageError, also for what is no text."""
    if not isinstance(word, str):
        raise UsageError(f"change {word!r}: give a text such as rank:5=median")
    match = _WORD.fullmatch(word)
    if match is None or (match[2] is None and match[3] is not None and match[1] not in _ALONE):
        raise UsageError(
            Message(
                "{change}: a change is TARGET=VALUE, such as comm:pp=0.5, or ideal", change=word
            )
        )
    return Change(word, match[1], match[2] or "", "" if match[3] is None else match[3])
