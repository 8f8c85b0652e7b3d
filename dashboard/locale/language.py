"""Sentences and words in the reader's language, by catalogs in gettext's format.

`<language>/LC_MESSAGES/npuscope.po` beside this file translates what is said in English: words and
titles as they are, sentences by their template (npuscope.messages). A language is its file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from npuscope.errors import UsageError
from npuscope.messages import Message, fill

Say = Callable[[str], str]
# The heading of a column: words, and the unit behind them that no language puts otherwise.
_UNITS = frozenset({"ms", "us", "MiB", "MB", "GiB"})


@cache
def catalogs() -> dict[str, Path]:
    """The catalog of each language, by the language's code: `zh`."""
    files = Path(__file__).parent.glob("*/LC_MESSAGES/npuscope.po")
    return {path.parents[1].name.partition("_")[0]: path for path in sorted(files)}


@cache
def languages() -> dict[str, str]:
    """What languages there are, English first, by what they call themselves."""
    return {"en": "English"} | {code: language_of(code)("English") for code in catalogs()}


@cache
def language_of(code: str) -> Say:
    """Puts English into a language; what its catalog does not have stays English.

    Raises UsageError where there is no such language.
    """
    if code == "en":
        return str
    if code not in catalogs():
        raise UsageError(f"--lang {code}: choose one of {', '.join(('en', *catalogs()))}")
    words_of = catalog(catalogs()[code])

    def say(text: str) -> str:
        if isinstance(text, Message):
            return fill(words_of.get(text.template, text.template), text.values, say)
        words, _, unit = text.rpartition(" ")
        if text in words_of or unit not in _UNITS:
            return words_of.get(text, text)
        return f"{words_of.get(words, words)} {unit}"

    return say


def label_of(name: str, words: str, say: Say) -> str:
    """What `name` is called: by itself where it has a template of its own, else by its words,
    which may mean something else elsewhere."""
    label = say(name)
    return say(words) if label == name else label


@cache
def catalog(path: Path) -> dict[str, str]:
    """Translations by what they translate: those that are there and not marked as fuzzy.

    Babel writes these files, and they are read as they are: gettext's own module takes only their
    compiled form, which would be one more file to keep in step (docs/decisions).
    """
    by_text: dict[str, str] = {}
    for entry in path.read_text(encoding="utf-8").split("\n\n"):
        if re.search("^#(~|,.*fuzzy)", entry, re.MULTILINE):
            continue
        parts = re.findall(r'^(msgid|msgstr) ((?:".*"\n?)+)', entry, re.MULTILINE)
        texts = {
            kind: "".join(ast.literal_eval(line) for line in lines.splitlines())
            for kind, lines in parts
        }
        if texts.get("msgid") and texts["msgstr"]:
            by_text[texts["msgid"]] = texts["msgstr"]
    return by_text
