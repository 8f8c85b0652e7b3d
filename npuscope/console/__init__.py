"""What the commands say: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any

import typer

from npuscope.console.printable import json_text, printable
from npuscope.console.waiting import quiet, tell

if TYPE_CHECKING:
    from rich.console import RenderableType


_BLANKS = re.compile(r" +$", re.MULTILINE)  # tables fill their lines with blanks


def print_json(metric: str, rows: list[dict[str, Any]], notes: list[str], **more: object) -> None:
    """One JSON object on stdout, the same shape for every metric; `more` is said beside the rows of
    what is no table alone."""
    answer = {"schema_version": 1, "metric": metric, **more, "rows": rows, "notes": notes}
    with reader_may_leave():
        sys.stdout.write(json_text(answer, sys.stdout.encoding) + "\n")
        sys.stdout.flush()


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
    except OSError as error:  # a full disk, which does not say of what
        error.filename = error.filename or "stdout"
        raise


def show(renderable: RenderableType, *, to_stderr: bool = False) -> None:
    """Draw a table or text."""
    from npuscope.console.screen import Screen

    console = Screen(stderr=to_stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Into a file or pipe there is no width to keep to, and paths in messages stay whole.
        width = 4000 if to_stderr else max(160, console.width)
        console = Screen(stderr=to_stderr, width=width)
    if to_stderr and not console.is_terminal:
        console.file = StringIO()  # while it captures rich writes to its file, too
    with contextlib.nullcontext() if to_stderr else reader_may_leave(), console.capture() as image:
        console.print(renderable)
    # Written here: rich would turn a reader that left into its own exit with 1.
    text = image.get() if console.is_terminal else _BLANKS.sub("", image.get())
    if to_stderr:
        quiet()
        tell(text)
        return
    with reader_may_leave():
        console.file.write(text)
        console.file.flush()


def say(message: str) -> None:
    """A message for the user, on stderr."""
    quiet()
    tell(printable(message) + "\n")
