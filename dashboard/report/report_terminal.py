"""Blocks of a report as what a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from npuscope.analysis.findings.finding import Finding, gain_words
from npuscope.analysis.wording import ms, percent

from ..terminal.tables import FittedTable, frame_table
from .blocks import Block, Bullets, Chart, Facts, Findings, Heading, Sentence

FIRST = "What to look at first (ms per step: predicted gain, at stake, share of a step)"
_INDENT = (0, 0, 0, 3)
_MOST = 6  # findings: `npuscope findings` has all, with their evidence


def renderables(block: Block) -> Iterator[RenderableType]:
    """What stands on the screen for a block; charts are left to its tables."""
    if isinstance(block, Heading):
        yield Text(block.text, style="bold reverse")
    elif isinstance(block, Facts):
        yield _facts(block)
    elif isinstance(block, Findings):
        yield from _findings(block.items)
        yield Text()
    elif isinstance(block, Sentence):
        yield Text(f"{block.text}; " if block.emphasis else block.text).append(
            block.emphasis, style="bold"
        )
    elif isinstance(block, Bullets):
        yield Text(block.title, style="bold")
        yield from (Padding(Text(f"• {line}"), (0, 0, 0, 2)) for line in block.lines)
        yield Text()
    elif isinstance(block, FittedTable):
        yield block
        yield Text()
    else:
        assert isinstance(block, Chart)


def _facts(block: Facts) -> Text:
    width = max((len(name) for name, _ in block.lines), default=0)
    text = Text()
    for name, value in block.lines:
        text.append(f"{name:<{width}}  ", style="bright_black")
        text.append(f"{value}\n")
    return text


def _findings(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    yield Text(FIRST, style="bold")
    lines = Table.grid(padding=(0, 2, 0, 0))
    for column in ("right", "right", "right", "left"):
        lines.add_column(justify=column, no_wrap=column == "right")
    for one in findings[:_MOST]:
        text = Text(one.statement).append(f" ({one.certainty})", style="dim")
        share = Text(percent(one.step_share_ratio))
        gain = Text(ms(one.predicted_gain_ns), style="bold")
        lines.add_row(gain, Text(ms(one.at_stake_ns)), share, text)
    yield Padding(lines, (0, 0, 0, 2))
    more = len(findings) - _MOST
    rest = f"and {more} more; " if more > 0 else ""
    ending = f"{rest}evidence, how sure, what to try: `npuscope findings`"
    yield Padding(Text(ending, style="dim"), (0, 0, 0, 2))


def findings_in_full(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Each finding with its evidence, how sure it is, what to try and what shows more."""
    several = len({(one.run, one.capture) for one in findings}) > 1
    for number, one in enumerate(findings, 1):
        place = f"  {one.run} {one.capture}" if several else ""
        share = f" ({percent(one.step_share_ratio)})" if one.step_share_ratio is not None else ""
        stake = (
            f"{ms(one.at_stake_ns)} ms per step at stake{share}"
            if one.at_stake_ns is not None
            else "time unknown"
        )
        yield Text(f"{number}. {one.name.replace('_', ' ')}: {stake}{place}", style="bold")
        yield Padding(Text(one.statement), _INDENT)
        yield Padding(frame_table(one.evidence), (0, 0, 0, 5))
        for name, text in (
            ("gain", gain_words(one)),
            ("sure", f"{one.certainty}: {one.reason}"),
            ("try", one.advice),
            ("more", one.command),
        ):
            line = Table.grid(padding=(0, 1))
            line.add_column(width=4, style="bright_black")
            line.add_column()
            line.add_row(name, text)
            yield Padding(line, _INDENT)
        yield Text()
