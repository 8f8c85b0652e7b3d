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


def chinese(text: str) -> str:
    """The Chinese of an English sentence or word."""
    if text in TEMPLATES:
        return TEMPLATES[text]
    for pattern, template in _patterns():
        if found := pattern.fullmatch(text):
            told = {name: chinese(value) for name, value in found.groupdict(default="").items()}
            return template.format(**told)
    return text


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates with names in them; those with most fixed words are tried first."""
    listed = [(english, told) for english, told in TEMPLATES.items() if "{" in english]
    listed.sort(key=lambda pair: -len(re.sub(r"\{\w+\}", "", pair[0])))
    return tuple(
        (re.compile(_NAME.sub(r"(?P<\1>.+?)", re.escape(english)), re.DOTALL), told)
        for english, told in listed
    )
