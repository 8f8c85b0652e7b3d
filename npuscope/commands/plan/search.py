"""`npuscope search` and `npuscope memory-plan`: which strategy, and what to recompute in it."""

from __future__ import annotations

from typing import Annotated

import typer

from npuscope.commands.command import Json, Out, say_notes
from npuscope.console import print_json, say, show
from npuscope.errors import UsageError

from .constants import Calibrate, calibration_of
from .predict import ChipName

Named = Annotated[str, typer.Argument(metavar="MODEL", help="As `npuscope model` takes it.")]
Cluster = Annotated[
    str, typer.Option("--cluster", metavar="NODESxNPUS", help="8x8.", show_default=False)
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
Top = Annotated[int, typer.Option("--top", min=1, help="The N best.")]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy", metavar="KEY=N,...", help="As `npuscope predict` takes it.",
        show_default=False,
    ),
]  # fmt: skip
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget", metavar="GIB", min=0.001, help="Of a rank.  [default: 90 % of the chip's]"
    ),
]


def search(
    what: Named,
    cluster: Cluster,
    only: Only,
    chip: ChipName = "910B2",
    top: Top = 20,
    calibrate: Calibrate = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """All strategies of a model on a cluster: which fit, which are fast, what limits each.

    \b
    Examples:
      npuscope search llama3-70b --cluster 8x8 --only gbs=512,seq=8192
      npuscope search deepseek-v3 --cluster 64x8 --only gbs=4096,seq=4096,tp=1+2,ep=32+64
      npuscope search llama3-70b --cluster 8x8 --only gbs=512,seq=8192 -o strategies.parquet
    """
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.analysis.strategy import describe
    from npuscope.analysis.strategy import search as searching
    from npuscope.analysis.strategy.calibration import calibrated
    from npuscope.analysis.strategy.notes import search_notes
    from npuscope.analysis.strategy.results import Found, write_found
    from npuscope.dashboard.terminal import strategy_tables

    model, machine = model_of(what), describe.machine_of(chip)
    space, (nodes, devices) = describe.space_of(only), describe.cluster_of(cluster)
    machine = describe.on_nodes(machine, devices)
    measured = calibration_of(calibrate)
    constants = None if measured is None else calibrated(measured)
    found = searching.search(model, machine, nodes * devices, space, constants)
    changes = searching.sensitivity(model, machine, nodes * devices, space, found, constants)
    notes = search_notes(found, changes)
    if out is not None:
        asked = {"model": model.name, "chip": chip, "cluster": cluster, "only": only}
        allowed = int(machine.memory_bytes * (1 - space.spare_ratio))
        write_found(Found(found, changes, asked, allowed), out)
        say(f"{len(found)} strategies: {out}")
    best = found.head(top)
    if json:
        print_json("search", best.to_dicts(), notes, sensitivity=changes.to_dicts())
        return
    show(strategy_tables.strategies_table(best))
    if measured is not None:
        show(strategy_tables.calibration_table(measured))
    say_notes(notes)


def memory_plan(
    what: Named,
    cluster: Cluster,
    strategy: Strategy,
    chip: ChipName = "910B2",
    budget: Budget = None,
    calibrate: Calibrate = None,
    json: Json = False,
) -> None:
    """The cheapest recompute and swap of each pipeline stage that fits a budget of memory.

    \b
    Examples:
      npuscope memory-plan llama3-70b --cluster 8x8 --strategy tp=4,pp=8,mbs=1,gbs=512,seq=8192
      npuscope memory-plan llama3-70b --cluster 8x8 --budget 40 \\
          --strategy tp=8,pp=8,mbs=1,gbs=512,seq=8192 --json
    """
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.analysis.strategy import describe
    from npuscope.analysis.strategy import memory_plan as planning
    from npuscope.analysis.strategy.calibration import calibrated
    from npuscope.analysis.strategy.notes import plan_notes
    from npuscope.dashboard.terminal import strategy_tables

    job = describe.job_of_strategy(
        model_of(what), describe.machine_of(chip), describe.cluster_of(cluster), strategy
    )
    if job.recompute.full_layers is None or job.recompute.full_layers:
        raise UsageError("--strategy recomputes already: plan from recompute=none")
    allowed = 0.9 * job.machine.memory_bytes if budget is None else budget * 2.0**30
    measured = calibration_of(calibrate)
    constants = None if measured is None else calibrated(measured)
    found = planning.memory_plan(job, allowed, constants)
    notes = plan_notes(found)
    if json:
        print_json("memory_plan", found.to_dicts(), notes)
        return
    show(strategy_tables.plan_table(found))
    if measured is not None:
        show(strategy_tables.calibration_table(measured))
    say_notes(notes)
