"""`npuscope pipeline`: what schedules of pipeline parallelism cost."""

from __future__ import annotations

from math import isfinite
from typing import Annotated

import typer

from npuscope.commands.command import Json, say_notes
from npuscope.console import print_json, show
from npuscope.errors import UsageError

Formula = Annotated[
    str,
    typer.Option(
        "--formula",
        metavar="SCHEDULE",
        help="gpipe, 1f1b, interleaved (or vpp), zb-h1, zb-h2, zb-v, dualpipe, dualpipev,"
        " fb-overlap.",
        show_default=False,
    ),
]
Stages = Annotated[
    int, typer.Option("-p", metavar="P", min=1, max=4096, help="Stages.", show_default=False)
]
MicroBatches = Annotated[
    int,
    typer.Option("-m", metavar="M", min=1, max=65536, help="Micro-batches.", show_default=False),
]
Chunks = Annotated[
    int | None,
    typer.Option("-v", metavar="V", min=1, max=256, help="Chunks of each device (interleaved)."),
]
Forward = Annotated[
    float, typer.Option("--forward", metavar="F", min=0, help="ns of a stage's forward.")
]
Backward = Annotated[
    float,
    typer.Option("--backward", metavar="B", min=0, help="ns of its gradients of inputs alone."),
]
Weight = Annotated[
    float, typer.Option("--weight", metavar="W", min=0, help="ns of its gradients of weights.")
]
Pair = Annotated[
    float | None,
    typer.Option(
        "--pair",
        metavar="FB",
        min=0,
        help="ns of a forward and a whole backward beside each other.  [default: F + B + W]",
    ),
]


def pipeline(
    formula: Formula,
    stages: Stages,
    micro_batches: MicroBatches,
    chunks: Chunks = None,
    forward: Forward = 1.0,
    backward: Backward = 1.0,
    weight: Weight = 1.0,
    pair: Pair = None,
    json: Json = False,
) -> None:
    """Step, bubble and held activations of each device under a pipeline schedule.

    Times are of a whole stage and one micro-batch: a chunk takes its share.

    \b
    Examples:
      npuscope pipeline --formula 1f1b -p 8 -m 16
      npuscope pipeline --formula vpp -p 8 -m 16 -v 6 --forward 10e6 --backward 10e6 --weight 10e6
      npuscope pipeline --formula dualpipe -p 16 -m 64 --pair 2.4 --json
    """
    from npuscope.analysis.pipeline.execution import (
        FORMULA_NOTES,
        even_durations,
        execute,
        schedule_cost,
    )
    from npuscope.analysis.pipeline.schedules import schedule
    from npuscope.analysis.query import rows
    from npuscope.dashboard.terminal.pipeline_tables import formula_table

    if not all(map(isfinite, (forward, backward, weight, pair or 0.0))):
        raise UsageError("--forward, --backward, --weight and --pair are finite numbers of ns")
    chosen = schedule(formula, stages, micro_batches, chunks)
    times = even_durations(chosen, forward, backward, weight, pair)
    found = schedule_cost(chosen, execute(chosen, times))
    if json:
        print_json("pipeline_formula", rows(found), FORMULA_NOTES)
        return
    show(formula_table(found))
    say_notes(FORMULA_NOTES)
