"""`npuscope experts plan` and `npuscope experts backtest`: what moving experts would gain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Out, Request, command
from npuscope.console import say
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    import duckdb
    import polars as pl

    from npuscope.analysis.experts.load.load import ExpertTables

Present = Annotated[
    bool,
    typer.Option("--from-ranks-present", help="Accept missing ranks."),
]
Horizon = Annotated[
    int, typer.Option("--horizon", min=1, metavar="STEPS", help="Steps until the next plan.")
]


@command("run", "capture")
def plan_command(
    request: Request,
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=1, metavar="N", help="Of one expert-parallel group."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of hosts.")] = 1,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, help="Experts a device holds.  [default: no replicas]"),
    ] = None,
    groups: Annotated[
        int, typer.Option("--groups", min=1, help="Expert groups used by group-limited routing.")
    ] = 1,
    expert_bytes: Annotated[
        str | None,
        typer.Option(
            "--expert-bytes", metavar="SIZE", help=("Weights and optimizer states of an expert.")
        ),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option("--device-memory", metavar="SIZE", help="Memory of a device for experts."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="SIZE",
            help="Bytes/s of a device's link: 20GB.  [default: as measured]",
        ),
    ] = None,
    token_bytes: Annotated[
        int | None,
        typer.Option(
            "--token-bytes",
            min=0,
            help="Bytes sent per token and expert in a step.  [default: as measured]",
        ),
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option("--max-replicas", min=1, help="Most slots of one expert.")
    ] = None,
    max_moved: Annotated[
        int | None, typer.Option("--max-moved", min=0, help="Experts moved per layer at most.")
    ] = None,
    horizon: Horizon = 50,
    present: Present = False,
    out: Out = None,
    permutation: Annotated[
        Path | None,
        typer.Option("--permutation", metavar="OUT", help=("Write slots and experts as JSON.")),
    ] = None,
) -> None:
    """Where to put experts, what that gains, and whether to move now.

    -o writes the plan as deployment JSON, which MindIE and vllm-ascend read.

    \b
    Examples:
      npuscope experts plan ./profiles --devices 64 --nodes 8 --slots 5
      npuscope experts plan ./dumps --devices 64 --slots 5 -o deployment.json
    """
    from npuscope.analysis.experts.plan import plan_frames
    from npuscope.analysis.experts.plan.placement import deployment_json, permutation_json
    from npuscope.dashboard.terminal.experts.expert_tables import plan_table
    from npuscope.dashboard.whole_files import write_text
    from npuscope.profile import parse_size

    if devices is None:
        raise UsageError("experts plan needs --devices N: how many hold the experts of a layer")
    wish = plan_frames.Wish(
        devices, nodes, slots, groups,
        None if expert_bytes is None else parse_size(expert_bytes, "--expert-bytes"),
        None if device_memory is None else parse_size(device_memory, "--device-memory"),
        token_bytes, None if link is None else parse_size(link, "--link"),
        horizon, max_replicas, max_moved,
    )  # fmt: skip
    with _tables(request, present=present, compared=True) as (tables, notes, con):
        plans = plan_frames.plans(tables, wish, *_costs(con, tables, request.scope))
        if (out or permutation) and len(plans) != 1:
            raise UsageError(
                f"{len(plans)} plans, one for each capture and phase, do not go into one file:"
                " choose with --run and --capture"
            )
        if out is not None:
            write_text(deployment_json(plans[0].placement(), plans[0].plan.layers), out)
            say(f"wrote {out}")
        if permutation is not None:
            experts = max(plans[0].experts) + 1
            text = permutation_json(plans[0].placement(), plans[0].plan.layers, experts)
            write_text(text, permutation)
            say(f"wrote {permutation}")
        rows = plan_frames.plan_rows(plans)
        notes_here = plan_frames.plan_notes(plans) + notes
        request.answer("experts_plan", rows, notes_here, plan_table)


@command("run", "capture")
def backtest_command(request: Request, horizon: Horizon = 50, present: Present = False) -> None:
    """How well each forecast of expert load would have done on these steps.

    \b
    Examples:
      npuscope experts backtest ./profiles --horizon 100
    """
    from npuscope.analysis.experts.plan.plan_frames import backtest_rows
    from npuscope.dashboard.terminal.experts.expert_tables import backtest_table

    with _tables(request, present=present) as (tables, notes, _):
        rows, more = backtest_rows(tables, horizon)
        request.answer("experts_backtest", rows, more + notes, backtest_table)


@contextmanager
def _tables(
    request: Request, *, present: bool, compared: bool = False
) -> Iterator[tuple[ExpertTables, list[str], duckdb.DuckDBPyConnection | None]]:
    """Expert load of a store, profile or dump, notes on it, and the connection of all but a dump.
    present: even of some ranks; compared: with what all ranks tell together.

    Raises TraceNotFound where no load is told, or not that of all ranks.
    """
    from npuscope.analysis.experts.load.counted_ranks import require_all_ranks
    from npuscope.analysis.experts.load.load import expert_rows
    from npuscope.commands.plan.experts import dump_of
    from npuscope.profile import compare_ranks

    if dump := dump_of(request.source.path, request.scope):
        if not present:
            require_all_ranks(dump[0], None)
        yield *dump, None
        return
    with request.tables(need_steps=False) as (data, scope):
        tables = expert_rows(data.con, scope)
        if tables.load.is_empty():
            raise TraceNotFound(
                f"{request.source.path}: no load of single experts to plan with: the training hook"
                " (tokens_per_expert/rank*.jsonl) or the inference server (decode_*.csv,"
                " prefill_*.csv) records it. The trace gives tokens per device only: `npuscope"
                " experts --by device`"
            )
        if not present:
            require_all_ranks(tables, (data.con, data.target))
        if compared:
            compare_ranks(data)
        yield tables, data.warnings, data.con


def _costs(
    con: duckdb.DuckDBPyConnection | None,
    tables: ExpertTables,
    scope: Scope,
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """What a token takes, and a device's link, from the capture's own events; None for a dump."""
    from npuscope.analysis.experts.cost.cost_answer import plan_costs

    return (None, None) if con is None else plan_costs(con, tables, scope)
