"""What commands share: one decorator gives it source, scope, format and progress.

PATH, -d, its own options, --store, --run ... --step --> Asked --> open tables, answer, exit code
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npuscope.analysis.scope import Scope
from npuscope.console import print_json, say, show
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from npuscope.collector.ingest.ingest import IngestResult
    from npuscope.profile import OpenTables, Source

Profile = Annotated[
    Path | None,
    typer.Argument(metavar="PATH", help="Profile folder (any depth), store, or .duckdb export."),
]
Folder = Annotated[Path | None, typer.Option("-d", metavar="DIR", help="Same as PATH.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Store tables here instead of the user cache."),
]
Run = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Run to read; its name when ingesting.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", min=1, help="Reading processes.  [default: one per CPU]"),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help=(
            "Memory limit of all readers, e.g. 2GB.  [default: 400MB for each, 800MB for databases]"
        ),
    ),
]
ExpertLoad = Annotated[
    Path | None,
    typer.Option(
        "--expert-load", metavar="DIR", help="Tokens per expert: a hook's files, or MindIE's dumps."
    ),
]
CaptureName = Annotated[
    str | None, typer.Option("--capture", metavar="NAME", help="Only this capture.")
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", metavar="K", min=1, help="Experts per token, to find dropped tokens."),
]
TopOrAll = Annotated[
    int | None, typer.Option("--top", metavar="N", min=1, help="Only the N largest.")
]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="Where to write.")]
_SCOPE: dict[str, Any] = {
    "run": Run,
    "capture": CaptureName,
    "rank": Annotated[
        int | None, typer.Option("--rank", metavar="N", min=0, help="Only this global rank.")
    ],
    "step": Annotated[int | None, typer.Option("--step", metavar="N", help="Only this step.")],
}


@dataclass(frozen=True, slots=True)
class Request:
    """What every command is asked for: what to open, which rows of it, and JSON or a table."""

    source: Source
    scope: Scope
    json: bool = False

    @contextlib.contextmanager
    def tables(self, *, need_steps: bool = True) -> Iterator[tuple[OpenTables, Scope]]:
        """Open the tables, say what reading did; at the end, leave with 4 where it was partial or
        a capture asked for is left out.

        The scope is the one asked for, of the run that was read where one was. Raises as
        `require_steps` where steps are needed.
        """
        from npuscope.profile import open_tables

        with open_tables(self.source, scope=self.scope) as data:
            scope = self.scope_of(data)
            if need_steps:
                self.require_steps(data, scope)
            yield data, scope
        leave_where_partial(data)

    def scope_of(self, data: OpenTables) -> Scope:
        """The scope asked for, of the run that was read where one was; says what reading did."""
        for message in data.messages:
            say(message)
        return replace(self.scope, run=data.result.run) if data.result else self.scope

    def require_steps(self, data: OpenTables, scope: Scope) -> None:
        """Raises UsageError where no step with figures is of the scope, TraceNotFound where there
        is none at all."""
        from npuscope.analysis import query

        if query.steps(data.con, scope).is_empty():
            reason = query.nothing_matches(data.con, scope)
            raise UsageError(reason) if str(self.scope) else TraceNotFound(reason)

    def answer(
        self,
        metric: str,
        frame: pl.DataFrame,
        notes: list[str],
        table: Callable[[pl.DataFrame], RenderableType],
    ) -> None:
        """An analysis's answer: JSON, or a table with its notes."""
        from npuscope.analysis import query

        if self.json:
            print_json(metric, query.rows(frame), notes)
            return
        show(table(frame))
        say_notes(notes)


def command(*of: str, json: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes what is `Asked` and options of its own.

    It gets the function's own arguments, PATH and -d, the function's own options, --store, what
    the scope is chosen by (`of`), the function's keyword-only options, --json, --jobs and
    --memory, in this order; keyword-only arguments come after PATH.
    """

    def make(body: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(body, eval_str=True).parameters.values()
        last = [one for one in own if one.kind is Parameter.KEYWORD_ONLY]
        arguments = [one for one in own if _is_argument(one)]
        options = [
            *(one for one in arguments if one not in last),
            _option("path", Profile),
            *(one for one in arguments if one in last),
            _option("folder", Folder),
            *(one for one in own if one not in (*arguments, *last)),
            _option("store", Store),
            *(_option(name, _SCOPE[name]) for name in of),
            *(one for one in last if one not in arguments),
            *([_option("json", Json, False)] if json else []),
            _option("jobs", Jobs),
            _option("memory", Memory),
        ]

        def run(**values: Any) -> None:
            names = ("path", "folder", "store", "jobs", "memory")
            scope = Scope(**{name: values.pop(name) for name in of})
            source = source_of(**{name: values.pop(name) for name in names}, run=scope.run)
            body(Request(source, scope, values.pop("json", False)), **values)

        run.__name__, run.__doc__, run.__module__ = body.__name__, body.__doc__, body.__module__
        parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in options]
        run.__dict__["__signature__"] = inspect.Signature(parameters)  # what inspect looks for
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return make


def _is_argument(one: Parameter) -> bool:
    metadata = getattr(one.annotation, "__metadata__", ())
    return any(isinstance(info, typer.models.ArgumentInfo) for info in metadata)


def _option(name: str, annotation: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def source_of(
    path: Path | None,
    folder: Path | None,
    store: Path | None,
    run: str | None,
    jobs: int | None,
    memory: str | None,
) -> Source:
    """What the user points at. Raises UsageError."""
    from npuscope.profile import Source, parse_size

    if path is not None and folder is not None and path != folder:
        raise UsageError("PATH and -d are two different inputs: give only one")
    place = path or folder
    if place is None:
        raise UsageError("no profile given: give PATH, the folder the profiler wrote to")
    return Source(place, store, run, jobs, parse_size(memory) if memory else None)


def largest(frame: pl.DataFrame, most: int | None, by: str | None = None) -> pl.DataFrame:
    """Of each capture the first `most` rows, or the largest by a column; None: all."""
    import polars as pl

    if most is None:
        return frame
    place = pl.int_range(1, pl.len() + 1)
    if by is not None:
        place = pl.col(by).fill_null(-1).rank("ordinal", descending=True)
    return frame.filter(place.over("run", "capture") <= most)


def notes_of(data: OpenTables, scope: Scope) -> list[str]:
    """What to know beside the figures of a scope: limits of the capture, reading losses."""
    from npuscope.analysis import query

    return query.notes(data.con, scope) + data.warnings


def say_notes(notes: list[str]) -> None:
    """Notes beside a table."""
    for note in notes:
        say(f"note: {note}")


def leave_where_partial(*places: OpenTables) -> None:
    """List what was not read; leave with 4 where an ingest was partial, or a capture that was asked
    for is left out."""
    for data in places:
        if data.result is not None:
            list_failures(data.result)
    if any(data.is_partial or (data.result and not data.result.is_complete) for data in places):
        raise typer.Exit(4)


def list_failures(result: IngestResult) -> None:
    """What an ingest could not read, on stderr."""
    if not result.is_complete:
        from npuscope.dashboard.results import failures_table

        show(failures_table(result), to_stderr=True)
