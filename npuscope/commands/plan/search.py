"""`npuscope search` and `npuscope memory-plan`: which strategy, and what to recompute in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import (
    CaptureName,
    Json,
    Out,
    Request,
    Run,
    leave_where_partial,
    notes_of,
    say_notes,
    source_of,
)
from npuscope.console import print_json, say, show
from npuscope.errors import UsageError

from .constants import Calibrate, calibration_of
from .predict import ChipName

if TYPE_CHECKING:
    from npuscope.profile import OpenTables

PlanCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NODESxNPUS", help="8x8; of a MODEL.")
]
MaybeNamed = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="As `npuscope model` takes it; a script has its own."),
]
MaybeCluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NODESxNPUS", help="8x8; --from has its own."),
]
Start = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="PATH",
        help="Begin with the strategy that runs: a launch script, profiles or a store.",
    ),
]  # fmt: skip
Engine = Annotated[str, typer.Option("--engine", metavar="NAME", help="local, or ray.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Of the Ray cluster.")
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="KEY=N+N,...",
        help="gbs and seq, and sizes to try of tp, pp, vpp, cp, ep, mbs, recompute: all others are"
        " tried; and switches that all have, as fb_overlap=1.",
        show_default=False,
    ),
]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="The N best.")]
Strategy = Annotated[
    str | None,
    typer.Option("--strategy", metavar="KEY=N,...", help="Of a MODEL, as `npuscope predict`."),
]
NoSwap = Annotated[bool, typer.Option("--no-swap", help="Of a capture: recompute alone.")]
ModelOrCapture = Annotated[
    str,
    typer.Argument(metavar="MODEL|PATH", help="As `npuscope model` takes it; or a capture of it."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget", metavar="GIB", min=0.001, help="Of a rank.  [default: 90 % of the chip's]"
    ),
]


def search(
    what: MaybeNamed = None,
    cluster: MaybeCluster = None,
    only: Only = "",
    start: Start = None,
    chip: ChipName = "910B2",
    top: Top = 20,
    calibrate: Calibrate = None,
    engine: Engine = "local",
    address: Address = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """All strategies of a model on a cluster: which fit, which are fast, what limits each.

    \b
    Examples:
      npuscope search llama3-70b --cluster 8x8 --only gbs=512,seq=8192
      npuscope search deepseek-v3 --cluster 64x8 --only gbs=4096,seq=4096,tp=1+2,ep=32+64
      npuscope search llama3-70b --cluster 8x8 --only gbs=512,seq=8192 -o strategies.parquet
      npuscope search --from ./pretrain_llama3_70b.sh
      npuscope search llama3-70b --from ./profiles --only gbs=512,seq=8192
    """
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.analysis.strategy import describe, running
    from npuscope.analysis.strategy import search as searching
    from npuscope.analysis.strategy.notes import search_notes
    from npuscope.analysis.strategy.results import SearchResult, found_parquet
    from npuscope.dashboard.terminal import strategy_tables

    machine = describe.machine_of(chip)
    size = None if cluster is None else describe.cluster_of(cluster)
    job, sizes, running_at = None, None, None
    if start is not None and _is_script(start):
        if what is not None:
            raise UsageError("--from a launch script has its own model: leave MODEL out")
        job, space = running.space_of_script(start, machine, size, only)
        model, machine, world = job.model, job.machine, int(job.world)
        remarks = {"cluster": cluster or f"{world} in all", "only": only}
    else:
        if what is None:
            raise UsageError("give a MODEL, or --from a launch script")
        model, space = model_of(what), describe.space_of(only)
        if start is not None:
            sizes, running_at = _sizes_at(start)
            cluster = cluster or running.cluster_of_sizes(sizes)
        if cluster is None:
            raise UsageError("give --cluster NODESxNPUS, or --from captures")
        nodes, devices = describe.cluster_of(cluster)
        machine, world = replace(machine, node_devices=devices), nodes * devices
        remarks = {"cluster": cluster, "only": only}
    measured, constants, places = calibration_of(calibrate)
    places += [] if running_at is None else [running_at]
    strategies = searching.search(
        model, machine, world, space, constants, spread=_spread(engine, address)
    )
    changes = searching.sensitivity(model, machine, world, space, strategies, constants)
    notes = search_notes(strategies, changes)
    allowed = machine.memory_bytes * (1 - space.spare_ratio)
    beside = None
    if job is not None:
        beside = running.running_row(strategies, job, allowed, constants)
    elif sizes is not None:
        beside = running.running_row_of_sizes(strategies, sizes, allowed)
    if out is not None:
        remarks = {"model": model.name, "chip": chip, **remarks}
        from npuscope.dashboard.whole_files import write_bytes

        write_bytes(found_parquet(SearchResult(strategies, changes, remarks, int(allowed))), out)
        say(f"{len(strategies)} strategies: {out}")
    best = strategies.head(top)
    if json:
        print_json(
            "search", best.to_dicts(), notes, sensitivity=changes.to_dicts(),
            running=None if beside is None else beside.to_dicts()[0],
        )  # fmt: skip
        leave_where_partial(*places)
        return
    show(strategy_tables.strategies_table(best))
    if beside is not None:
        show(strategy_tables.running_table(beside))
    if measured is not None:
        show(strategy_tables.calibration_table(measured))
    say_notes(notes)
    leave_where_partial(*places)


def _is_script(path: Path) -> bool:
    from npuscope.profile import is_ingested

    return path.is_file() and not is_ingested(path)


def _sizes_at(path: Path) -> tuple[dict[str, int], OpenTables]:
    from npuscope.analysis.strategy.running import sizes_of_captures
    from npuscope.profile import Source, open_tables

    with open_tables(Source(path)) as data:
        for message in data.messages:
            say(message)
        return sizes_of_captures(data.con), data


def _spread(engine: str, address: str | None) -> Callable[..., Any]:
    if engine not in ("local", "ray"):
        raise UsageError(f"--engine {engine}: give local or ray")
    if engine == "local":
        if address is not None:
            raise UsageError("--address is of --engine ray")
        return map
    from npuscope.collector.engines.ray_cluster import spread

    return partial(spread, address=address)


def memory_plan(
    what: ModelOrCapture,
    cluster: PlanCluster = None,
    strategy: Strategy = None,
    chip: ChipName = "910B2",
    budget: Budget = None,
    no_swap: NoSwap = False,
    calibrate: Calibrate = None,
    run: Run = None,
    capture: CaptureName = None,
    json: Json = False,
) -> None:
    """The cheapest recompute and swap of each pipeline stage that fits a budget of memory.

    Of a capture (profiles, a store) times and bytes are measured, and the step is predicted.

    \b
    Examples:
      npuscope memory-plan ./profiles --budget 48
      npuscope memory-plan llama3-70b --cluster 8x8 --strategy tp=4,pp=8,mbs=1,gbs=512,seq=8192
      npuscope memory-plan llama3-70b --cluster 8x8 --budget 40 \\
          --strategy tp=8,pp=8,mbs=1,gbs=512,seq=8192 --json
    """
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.analysis.strategy import describe

    if strategy is None:
        if cluster is not None:
            raise UsageError("--cluster is of a MODEL: give --strategy, too")
        allowed = _allowed_bytes(describe.machine_of(chip).memory_bytes, budget)
        request = Request(source_of(Path(what), None, None, run, None, None),
                      Scope(run=run, capture=capture), json)  # fmt: skip
        _measured_plan(request, allowed, calibrate, swaps=not no_swap)
        return
    if cluster is None:
        raise UsageError("give --cluster NODESxNPUS with --strategy")
    if no_swap or run is not None or capture is not None:
        raise UsageError("--no-swap, --run and --capture are of a capture: leave --strategy out")
    from npuscope.analysis.strategy import memory_plan as planning
    from npuscope.analysis.strategy.notes import plan_notes
    from npuscope.dashboard.terminal import strategy_tables

    job = describe.job_of_strategy(
        model_of(what), describe.machine_of(chip), describe.cluster_of(cluster), strategy
    )
    if job.recompute.full_layers is None or job.recompute.full_layers:
        raise UsageError("--strategy recomputes already: plan from recompute=none")
    allowed = _allowed_bytes(job.machine.memory_bytes, budget)
    measured, constants, places = calibration_of(calibrate)
    plans = planning.memory_plan(job, allowed, constants)
    notes = plan_notes(plans)
    if json:
        print_json("memory_plan", plans.to_dicts(), notes)
        leave_where_partial(*places)
        return
    show(strategy_tables.plan_table(plans))
    if measured is not None:
        show(strategy_tables.calibration_table(measured))
    say_notes(notes)
    leave_where_partial(*places)


def _allowed_bytes(memory_bytes: float, budget_gib: float | None) -> float:
    return 0.9 * memory_bytes if budget_gib is None else budget_gib * 2.0**30


def _measured_plan(
    request: Request, budget_bytes: float, calibrate: Path | None, *, swaps: bool
) -> None:
    from npuscope.analysis.pipeline.answer import recognise
    from npuscope.analysis.replay.captures import one_capture
    from npuscope.analysis.strategy import measured_plan as planning
    from npuscope.analysis.strategy.constants import default_constants
    from npuscope.dashboard.terminal.strategy_tables import measured_plan_table
    from npuscope.profile import compare_ranks

    if calibrate is not None:
        raise UsageError("--calibrate is of a MODEL: a capture has its own times")
    with request.tables() as (data, scope):
        compare_ranks(data)
        job = planning.plannable(data.con, recognise(data.con, *one_capture(data.con, scope)))
        plans = planning.measured_plan(job, budget_bytes, default_constants(), swaps=swaps)
        request.answer(
            "measured_memory_plan", plans, planning.plan_notes(plans) + notes_of(data, scope),
            measured_plan_table,
        )  # fmt: skip
