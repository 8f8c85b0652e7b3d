"""`npuscope pipeline`: a capture's pipeline under other schedules, and what schedules cost."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import (
    CaptureName,
    Folder,
    Jobs,
    Json,
    Memory,
    Profile,
    Request,
    Run,
    Store,
    notes_of,
    say_notes,
    source_of,
)
from npuscope.console import print_json, show
from npuscope.errors import UsageError

Formula = Annotated[
    str | None,
    typer.Option(
        "--formula",
        metavar="SCHEDULE",
        help="gpipe, 1f1b, interleaved (or vpp), zb-h1, zb-h2, zb-v, dualpipe, dualpipev,"
        " fb-overlap.",
        show_default=False,
    ),
]
Stages = Annotated[
    int | None,
    typer.Option("-p", metavar="P", min=1, max=4096, help="With --formula: stages."),
]
MicroBatches = Annotated[
    int | None,
    typer.Option("-m", metavar="M", min=1, max=65536, help="With --formula: micro-batches."),
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


Try = Annotated[
    str | None,
    typer.Option(
        "--try",
        metavar="A,B,...",
        help="Schedules to execute with the measured times, chunks after a colon: vpp:2,zb-h1.",
    ),
]
TriedMicroBatches = Annotated[
    int | None,
    typer.Option(
        "--micro-batches", metavar="N", min=1, max=65536, help="Of a step, in what is tried."
    ),
]
Orders = Annotated[
    list[Path] | None,
    typer.Option("--order", metavar="FILE", help="An order of passes as text, to execute."),
]
PlaceLayers = Annotated[
    bool, typer.Option("--place-layers", help="The best layers for each stage, and their step.")
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        "--device-memory", metavar="SIZE", help="What a device may hold with --place-layers: 60GiB."
    ),
]


def pipeline(
    path: Profile = None,
    folder: Folder = None,
    try_: Try = None,
    tried_micro_batches: TriedMicroBatches = None,
    order: Orders = None,
    place_layers: PlaceLayers = False,
    device_memory: DeviceMemory = None,
    formula: Formula = None,
    stages: Stages = None,
    micro_batches: MicroBatches = None,
    chunks: Chunks = None,
    forward: Forward = 1.0,
    backward: Backward = 1.0,
    weight: Weight = 1.0,
    pair: Pair = None,
    store: Store = None,
    run: Run = None,
    capture: CaptureName = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Which pipeline schedule ran, why it has bubbles, and what another would give.

    Passes are recognised without instrumentation. --try executes other orders with the measured
    passes, gaps and transfers; the first row is then the order that ran. Without PATH, --formula
    says what a schedule costs on even stages.

    \b
    Examples:
      npuscope pipeline ./profiles                        schedule, phases, masking, bubbles
      npuscope pipeline ./profiles --json
      npuscope pipeline ./profiles --try vpp:2,zb-h1,dualpipev --micro-batches 32
      npuscope pipeline ./profiles --order mine.txt --json
      npuscope pipeline ./profiles --place-layers --device-memory 60GiB
      npuscope pipeline --formula vpp -p 8 -m 16 -v 6 --forward 10e6 --backward 10e6 --weight 10e6
    """
    if formula is not None:
        if path is not None or folder is not None:
            raise UsageError("--formula takes times, no profile: leave out PATH or --formula")
        if stages is None or micro_batches is None:
            raise UsageError("--formula needs stages and micro-batches: -p 8 -m 16")
        _formula(formula, stages, micro_batches, chunks, (forward, backward, weight, pair), json)
        return
    if (stages, micro_batches, chunks) != (None, None, None):
        raise UsageError(
            "-p, -m and -v are for --formula; with a profile: --try vpp:2 --micro-batches 32"
        )
    source = source_of(path, folder, store, run, jobs, memory)
    if device_memory is not None and not place_layers:
        raise UsageError("--device-memory is for --place-layers")
    from npuscope.profile import parse_size

    limit = None if device_memory is None else parse_size(device_memory, "--device-memory")
    request = Request(source, Scope(run=run, capture=capture), json)
    if not (try_ or tried_micro_batches or order or place_layers):
        _answer(request)
        return
    _tries(request, try_, tried_micro_batches, order or [], limit, places_layers=place_layers)


def _answer(request: Request) -> None:
    from npuscope.analysis.pipeline.answer import answer_rows, pipeline_answer
    from npuscope.analysis.replay.captures import one_capture
    from npuscope.dashboard.terminal.pipeline_tables import answer_tables
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        compare_ranks(data)
        answer = pipeline_answer(data.con, *one_capture(data.con, scope))
        notes = answer.notes + notes_of(data, scope)
        if request.json:
            record = answer_rows(answer)
            print_json("pipeline_phases", record.pop("phases"), notes, **record)
            return
        for table in answer_tables(answer):
            show(table)
        say_notes(notes)


def _tries(
    request: Request,
    words: str | None,
    micro_batches: int | None,
    files: list[Path],
    limit_bytes: int | None,
    *,
    places_layers: bool,
) -> None:
    from npuscope.analysis.pipeline.answer import recognise
    from npuscope.analysis.pipeline.tries import (
        asked_tries,
        pipeline_tries,
        ready,
        those_that_go,
    )
    from npuscope.analysis.pipeline.tries_notes import tries_notes, work_notes
    from npuscope.analysis.replay.captures import one_capture
    from npuscope.dashboard.terminal.pipeline_tables import tries_table
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        compare_ranks(data)
        job = ready(data.con, recognise(data.con, *one_capture(data.con, scope)))
        left_out: list[str] = []
        if words is not None:
            words, left_out = those_that_go(job, words, micro_batches)
        tries = asked_tries(
            job, words, micro_batches, files, places_layers=places_layers, limit_bytes=limit_bytes
        )
        rows = pipeline_tries(job, tries)
        notes = left_out + work_notes(rows) + tries_notes(job, tries) + notes_of(data, scope)
        request.answer("pipeline_tries", rows, notes, tries_table)


def _formula(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int | None,
    times_ns: tuple[float, float, float, float | None],
    json: bool,
) -> None:
    from npuscope.analysis.pipeline.execution import (
        FORMULA_NOTES,
        even_durations,
        execute,
        schedule_cost,
    )
    from npuscope.analysis.pipeline.schedules import schedule
    from npuscope.analysis.query import rows
    from npuscope.dashboard.terminal.pipeline_tables import formula_table

    if not all(isfinite(one or 0.0) for one in times_ns):
        raise UsageError("--forward, --backward, --weight and --pair are finite numbers of ns")
    order = schedule(name, stages, micro_batches, chunks)
    times = even_durations(order, *times_ns)
    cost = schedule_cost(order, execute(order, times))
    if json:
        print_json("pipeline_formula", rows(cost), FORMULA_NOTES)
        return
    show(formula_table(cost))
    say_notes(FORMULA_NOTES)
