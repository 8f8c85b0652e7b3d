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
    typer.Option("--store", metavar="DIR", help="Store tables here instead of the user cache."),
]
Run = Annotated[str | None, typer.Option("--run", help="Run to read; its name when ingesting.")]
OnlyRun = Annotated[str | None, typer.Option("--run", help="Only this run.")]
Capture = Annotated[str | None, typer.Option("--capture", help="Only this capture.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only this global rank.")]
Step = Annotated[int | None, typer.Option("--step", help="Only this step.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Reading processes.  [default: one per CPU]")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help=(
            "Memory limit of all readers, e.g. 2GB.  [default: 544MB for each, 800MB for databases]"
        ),
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="I/N", help="Read shard I of N only, from 0: for mpirun and the like."
    ),
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Run readers as local processes or on ray.")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help=("Address of the Ray cluster.  [default: this node's]"),
    ),
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", metavar="LIST", help="Read these ranks only: 0,7,8-15.")
]
Steps = Annotated[
    str | None, typer.Option("--steps", metavar="LIST", help="Keep these steps only: 12-14.")
]
Tables = Annotated[
    str | None,
    typer.Option("--tables", metavar="LIST", help=("Keep these tables only: kernels,comm_ops.")),
]
Light = Annotated[
    bool,
    typer.Option(
        "--light", help=("Read small files of every rank, and representative ranks in full.")
    ),
]
TrainLog = Annotated[
    Path | None,
    typer.Option("--train-log", metavar="FILE", help="Training log: step times, tokens/s, MFU."),
]
ExpertLoad = Annotated[
    Path | None,
    typer.Option(
        "--expert-load", metavar="DIR", help="Tokens per expert: a hook's files, or MindIE's dumps."
    ),
]
Stacks = Annotated[bool, typer.Option("--stacks", help="Also keep host call stacks.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows of each ranking.")]
TopOrAll = Annotated[int | None, typer.Option("--top", min=1, help="Only the N largest.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="Where to write.")]
