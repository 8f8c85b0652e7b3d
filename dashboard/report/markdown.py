"""A report as Markdown: for an issue, a chat, a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import cycle

from npuscope.analysis.findings.finding import gain_words
from npuscope.analysis.wording import ms, percent
from npuscope.console.printable import printable
from npuscope.messages import join

from ..locale.language import Say, language_of
from ..terminal.tables import FittedTable
from .blocks import Block, Bullets, Chart, Facts, Findings, Heading, Sentence
from .html_page import cell, heading

_SPECIAL = re.compile(r"([\\`*\[\]<>|])")


def markdown(blocks: Iterable[Block], *, language: str = "en") -> str:
    """The report as text; `language` is en or zh."""
    say = language_of(language)
    paragraphs = ["\n".join(_lines(block, say)) for block in blocks]
    return printable("\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n")


def _lines(block: Block, say: Say) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"# {_plain(block.text)}"
    elif isinstance(block, Facts):
        yield from (f"* {say(name)}: {_plain(say(value))}" for name, value in block.lines)
    elif isinstance(block, Findings):
        yield f"## {say('What to look at first')}"
        yield ""
        for number, one in enumerate(block.items, 1):
            stake = say("time unknown")
            if one.at_stake_ns is not None:
                stake = f"{ms(one.at_stake_ns)} {say('ms per step at stake')}"
            share = f", {percent(one.step_share_ratio)}" if one.step_share_ratio else ""
            statement = _sentence(say(one.statement))
            yield f"{number}. **{stake}{share}** ({say(one.certainty)}): {statement}"
            yield f"   {say('predicted gain')}: {_sentence(say(gain_words(one)))}"
            yield f"   {_sentence(say(one.advice))} {say('more')}: `{one.command}`"
    elif isinstance(block, Sentence):
        yield _sentence(say(join((block.text, block.emphasis), "; ")))
    elif isinstance(block, Bullets):
        yield f"## {say(block.title)}"
        yield ""
        yield from (f"* {_sentence(say(line))}" for line in block.lines)
    elif isinstance(block, FittedTable):
        yield from _table(block, say)
    else:
        assert isinstance(block, Chart)


def _table(table: FittedTable, say: Say) -> Iterator[str]:
    columns = [column for column in table.columns if not column.is_drawing]
    if table.title:
        yield f"## {say(table.title)}"
        yield ""
    yield _row(_plain(heading(column, say)) for column in columns)
    yield _row("---:" if column.form else "---" for column in columns)
    for row in table.rows:
        yield _row(_plain(cell(column, row, say)) for column in columns)
    if table.caption:
        yield ""
        yield _sentence(say(table.caption))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(text: str) -> str:
    """Words with commands between backquotes, which stay."""
    return "`".join(
        part if odd else _plain(part) for part, odd in zip(text.split("`"), cycle((False, True)))
    )


def _plain(text: str) -> str:
    """Text that Markdown takes as it is."""
    return _SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", text))
