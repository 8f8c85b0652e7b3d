"""Reports in the reader's language: English sentences, and their Chinese by template.

What analyses and readers say is English, some of it kept in stores. A template has the same words
with names in braces where a sentence has its own figures and names; these are put into the Chinese
one, themselves translated where they are words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from .chinese import TEMPLATES

Say = Callable[[str], str]

_NAME = re.compile(r"\\{(\w+)\\}")


def language_of(name: str) -> Say:
    """Puts English into the language `en` or `zh`; what has no template stays English."""
    return chinese if name == "zh" else str


def labelled(name: str, words: str, say: Say) -> str:
    """What `name` is called: by itself where it has a template of its own, else by its words,
    which may mean something else elsewhere."""
    told = say(name)
    return say(words) if told == name else told


def chinese(text: str) -> str:
    """The Chinese of an English sentence or word."""
    if text in TEMPLATES:
        return TEMPLATES[text]
    for pattern, template in _patterns():
        if found := pattern.fullmatch(text):
            told = {name: chinese(value) for name, value in found.groupdict(default="").items()}
            return template.format(**told)
    parts = text.split("; ")  # sentences that were joined
    told_parts = [chinese(part) for part in parts] if len(parts) > 1 else parts
    return "；".join(told_parts) if told_parts != parts else text


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates with names in them; those with most fixed words are tried first."""
    listed = [(english, told) for english, told in TEMPLATES.items() if "{" in english]
    listed.sort(key=lambda pair: -len(re.sub(r"\{\w+\}", "", pair[0])))
    return tuple(
        (re.compile(_NAME.sub(r"(?P<\1>.+?)", re.escape(english)), re.DOTALL), told)
        for english, told in listed
    )
