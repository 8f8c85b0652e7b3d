"""What the commands say: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from npuscope.dashboard.terminal.printable import json_text, printable
from npuscope.dashboard.terminal.waiting import quiet

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from npuscope.collector.ingest.ingest import IngestResult
    from npuscope.dashboard.opening import Opened


_FILLED = re.compile(r" +$", re.MULTILINE)  # tables fill their lines with blanks


def answer(
    metric: str,
    frame: pl.DataFrame,
    notes: list[str],
    *,
    json: bool,
    table: Callable[[pl.DataFrame], RenderableType],
) -> None:
    """An analysis's answer: JSON, or a table with its notes."""
    from npuscope.analysis import query

    if json:
        print_json(metric, query.rows(frame), notes)
        return
    show(table(frame))
    for note in notes:
        say(f"note: {note}")


def print_json(metric: str, rows: list[dict[str, Any]], notes: list[str]) -> None:
    """One JSON object on stdout, the same shape for every metric."""
    answer = {"schema_version": 1, "metric": metric, "rows": rows, "notes": notes}
    print_text(json_text(answer, sys.stdout.encoding) + "\n")


def print_text(text: str) -> None:
    """Text on stdout."""
    with reader_may_leave():
        sys.stdout.write(printable(text))
        sys.stdout.flush()


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Writing to a reader that left (`| head`) ends the command quietly."""
    quiet()
    try:
        yield
    except BrokenPipeError:
        # Whatever Python still wants to flush at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def leave(data: Opened) -> None:
    """End a command that read tables: with 4 where some of the profile was not read."""
    if data.result is not None:
        leave_with(data.result)


def leave_with(result: IngestResult) -> None:
    """List what was not read and leave with 4, where the ingest was partial."""
    if not result.is_complete:
        from npuscope.dashboard.results import failures_table

        show(failures_table(result), to_stderr=True)
        raise typer.Exit(4)


def show(renderable: RenderableType, *, to_stderr: bool = False) -> None:
    """Draw a table or text."""
    from npuscope.dashboard.terminal.screen import Screen

    console = Screen(stderr=to_stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Into a file or pipe there is no width to keep to, and paths in messages stay whole.
        width = 4000 if to_stderr else max(160, console.width)
        console = Screen(stderr=to_stderr, width=width)
    with console.capture() as drawn:
        console.print(renderable)
    with reader_may_leave():
        # Written here: rich would turn a reader that left into its own exit with 1.
        text = drawn.get()
        console.file.write(text if console.is_terminal else _FILLED.sub("", text))
        console.file.flush()


def say(message: str) -> None:
    """A message for the user, on stderr."""
    quiet()
    print(printable(message), file=sys.stderr)
