"""Sentences as a template and its values, so that each outlet says them in the reader's language.

    Message("{ranks}: no kernels were recorded", ranks=ranks_named([0, 3]))

A message is the English sentence itself, as any other text, and remembers what it was made of. The
template is what catalogs translate. Parts of a sentence that are words are messages, too; what
comes from a profile (names of kernels, groups, files) is a plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

Value = str | int | float | None  # a Message is a str; None is unknown

_LISTS = {
    ", ": "{one}, {other}",
    "; ": "{one}; {other}",
    " ": "{one} {other}",
    " and ": "{one} and {other}",
    " and no ": "{one} and no {other}",
}
_NAME = re.compile(r"\{(\w+)\}")
_MOST_DEEP = 8  # messages inside of messages, in files of others


class Message(str):
    """An English sentence, its `template` and its `values`."""

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, Value]

    def __new__(cls, template: str, /, **values: Value) -> Message:
        message = super().__new__(cls, fill(template, values))
        object.__setattr__(message, "template", template)
        object.__setattr__(message, "values", MappingProxyType(values))
        return message

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a message is not changed: {name}")

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[str, dict[str, Value]]]:
        return _make, (self.template, dict(self.values))


class StoredMessage(msgspec.Struct, frozen=True):
    """A message in a file: only texts, numbers and messages."""

    template: str
    values: dict[str, str | int | float | StoredMessage | None] = {}


StoredText = str | StoredMessage


def fill(
    template: str, values: Mapping[str, Value], say: Callable[[str], str] | None = None
) -> str:
    """The template with its values put in place of their names, each text said by `say`. Names
    only: nothing of a value can be reached from a template."""

    def put(name: re.Match[str]) -> str:
        value = values.get(name[1], name[0])
        if value is None:
            return "-"
        return say(value) if say and isinstance(value, str) else str(value)

    return _NAME.sub(put, template)


def join(parts: Iterable[str], between: str = ", ") -> str:
    """Parts of a list as one message; empty ones are left out. Raises KeyError where nothing says
    how parts are joined so."""
    first, *more = [part for part in parts if part] or [""]
    for part in more:
        first = Message(_LISTS[between], one=first, other=part)
    return first


def store_text(text: str, spell: Callable[[str], str] = str) -> StoredText:
    """How a text is kept in a file; `spell` makes names writable."""
    if not isinstance(text, Message):
        return spell(text)
    values = {
        name: store_text(value, spell) if isinstance(value, str) else value
        for name, value in text.values.items()
    }
    return StoredMessage(text.template, values)


def restore_text(text: StoredText) -> str:
    """The message that a file holds. Raises ValueError where messages lie too deep in another."""
    return _restore(text, _MOST_DEEP)


def _restore(text: StoredText, deep: int) -> str:
    if isinstance(text, str):
        return text
    if not deep:
        raise ValueError("messages lie too deep in each other")
    values = {
        name: _restore(value, deep - 1) if isinstance(value, (str, StoredMessage)) else value
        for name, value in text.values.items()
    }
    return _make(text.template, values)


def _make(template: str, values: Mapping[str, Value]) -> Message:
    return Message(template, **values)
