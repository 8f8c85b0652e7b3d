"""Arguments and options that commands share, so that a flag means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Profile = Annotated[
    Path | None,
    typer.Argument(metavar="PATH", help="Profile folder (any depth), store, or .duckdb export."),
]
Folder = Annotated[Path | None, typer.Option("-d", metavar="DIR", help="Same as PATH.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Keep tables here, not in the user cache."),
]
Run = Annotated[str | None, typer.Option("--run", help="This run; names it when ingesting.")]
Capture = Annotated[str | None, typer.Option("--capture", help="Only this capture.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only this global rank.")]
Step = Annotated[int | None, typer.Option("--step", help="Only this step.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Reading processes.  [default: one per CPU]")
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory all readers share, e.g. 512MB.")
]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows of each ranking.")]
TopOrAll = Annotated[int | None, typer.Option("--top", min=1, help="Only the N largest.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="Where to write.")]
