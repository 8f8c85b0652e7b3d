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
from npuscope.messages import Message, filled

Say = Callable[[str], str]

_HERE = Path(__file__).parent
_FILE = "LC_MESSAGES/npuscope.po"
_NAME = re.compile(r"\\{(\w+)\\}")


@cache
def languages() -> dict[str, str]:
    """What languages there are, `en` first, by what they call themselves."""
    found = {path.parents[1].name.partition("_")[0]: path for path in _HERE.glob(f"*/{_FILE}")}
    return {"en": "English"} | {
        name: catalog(path).get("English", name) for name, path in sorted(found.items())
    }


def language_of(name: str) -> Say:
    """Puts English into the language `name`; what its catalog does not have stays English.

    Raises UsageError where there is no such language.
    """
    if name not in languages():
        raise UsageError(f"--lang {name}: choose one of {', '.join(languages())}")
    return str if name == "en" else _say_in(name)


@cache
def _say_in(name: str) -> Say:
    [path] = list(_HERE.glob(f"{name}*/{_FILE}"))
    told = catalog(path)
    patterns = _patterns(told)

    def say(text: str) -> str:
        if isinstance(text, Message) and (template := told.get(text.template)):
            return filled(template, text.values, say)
        if text in told:
            return told[text]
        for pattern, template in patterns:
            if found := pattern.fullmatch(text):
                values = {name: say(value) for name, value in found.groupdict(default="").items()}
                return template.format(**values)
        parts = text.split("; ")  # sentences that were joined
        told_parts = [say(part) for part in parts] if len(parts) > 1 else parts
        return "；".join(told_parts) if told_parts != parts else text

    return say


def labelled(name: str, words: str, say: Say) -> str:
    """What `name` is called: by itself where it has a template of its own, else by its words,
    which may mean something else elsewhere."""
    told = say(name)
    return say(words) if told == name else told


@cache
def catalog(path: Path) -> dict[str, str]:
    """Translations by what they translate: those that are there and not marked as fuzzy.

    Babel writes these files, and they are read as they are: gettext's own module takes only their
    compiled form, which would be one more file to keep in step.
    """
    found: dict[str, str] = {}
    for entry in path.read_text(encoding="utf-8").split("\n\n"):
        if re.search("^#(~|,.*fuzzy)", entry, re.MULTILINE):
            continue
        parts = re.findall(r'^(msgid|msgstr) ((?:".*"\n?)+)', entry, re.MULTILINE)
        texts = {
            kind: "".join(ast.literal_eval(line) for line in lines.splitlines())
            for kind, lines in parts
        }
        if texts.get("msgid") and texts["msgstr"]:
            found[texts["msgid"]] = texts["msgstr"]
    return found


def _patterns(told: dict[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates with names in them; those with most fixed words are tried first."""
    listed = [(english, said) for english, said in told.items() if _is_plain(english)]
    listed.sort(key=lambda pair: -len(re.sub(r"\{\w+\}", "", pair[0])))
    return tuple(
        (re.compile(_NAME.sub(r"(?P<\1>.+?)", re.escape(english)), re.DOTALL), said)
        for english, said in listed
    )


def _is_plain(english: str) -> bool:
    names = re.findall(r"{\w+}", english)
    return (
        bool(names)
        and len(set(names)) == len(names)
        and bool(re.search("[a-z]{3}", re.sub(r"{\w+}", "", english)))
    )
