"""`npuscope experts`: how tokens fall on experts, devices and nodes, and what imbalance costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer
from typer.core import TyperGroup

from npuscope.analysis.scope import JOB, Scope
from npuscope.commands.command import Request, TopK, TopOrAll, command, say_notes
from npuscope.console import show
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from npuscope.analysis.experts.load.dropped_tokens import RoutedBy
    from npuscope.analysis.experts.load.load import ExpertTables
    from npuscope.analysis.experts.load.scopes import PartName
    from npuscope.profile import OpenTables

Key = Literal["layer", "expert", "device", "node", "time", "cost"]
By = Annotated[Key, typer.Option("--by", metavar="KEY", help="|".join(get_args(Key)))]
Heat = Annotated[
    bool, typer.Option("--heatmap", help="Draw layers by experts, or by devices (--by device).")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="N", min=1, help="Equal blocks of devices: by node, layer or time."
    ),
]
Within = Annotated[
    Literal["micro_batch", "ep_group", "dp_group", "global"],
    typer.Option(
        "--scope", metavar="SCOPE", help="micro_batch|ep_group|dp_group|global: by layer or time."
    ),
]
TokensPerStep = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-step", metavar="N", min=1, help="Of the whole job, to find dropped tokens."
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="FILE|PRESET", help="Model config: gives top-k and tokens per step."
    ),
]
_MOST = 20  # rows of each step for people, where there is one for each expert or device
_NONE = (
    "no expert load here: the profiler does not record it; the training hook"
    " (tokens_per_expert/rank*.jsonl) or the inference server (decode_*.csv, prefill_*.csv) does."
    " The trace gives tokens per device: --by device"
)


class ShownUnlessNamed(TyperGroup):
    """`experts PATH` is `experts show PATH`; only a subcommand's name in front means another."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args[:1] and args[0] in self.commands
        return super().parse_args(ctx, args if named else ["show", *args])


@command("run", "capture", "rank", "step")
def experts(
    request: Request,
    by: By = "layer",
    scope: Within = "global",
    heatmap: Heat = False,
    nodes: Nodes = None,
    top_k: TopK = None,
    tokens_per_step: TokensPerStep = None,
    model: ModelName = None,
    *,
    top: TopOrAll = None,
) -> None:
    """Which experts are hot, how uneven layers and devices are, and what that costs.

    \b
    Examples:
      npuscope experts ./profiles
      npuscope experts ./profiles --by device --step 13 --json
      npuscope experts ./profiles --by cost
      npuscope experts ./profiles --by time --scope micro_batch
      npuscope experts ./profiles --tokens-per-step 65536 --top-k 8    dropped tokens
      npuscope experts ./dumps --heatmap
      npuscope experts plan ./dumps --devices 64 --slots 5     where to put them: plan --help
      npuscope experts backtest ./profiles                     which forecast is best
    """
    rank = request.scope.rank
    _check_options(by, scope, heatmap=heatmap, json=request.json, nodes=nodes, rank=rank)
    show_rows = partial(_answer, request, by, heatmap=heatmap, nodes=nodes, top=top, within=scope)
    dump = dump_of(request.source.path, request.scope)
    if dump is not None:
        if by == "cost":
            raise UsageError(
                "--by cost needs kernel durations, which a dump of token counts does not have"
            )
        tables, notes = dump
        show_rows(tables, notes, routed=_sent_tokens(None, tables, model, top_k, tokens_per_step))
        return
    from npuscope.analysis import query
    from npuscope.analysis.experts.load.load import expert_rows

    with request.tables(need_steps=False) as (data, capture_scope):
        tables = expert_rows(data.con, capture_scope)
        notes = list(data.warnings)
        is_by_trace = tables.load.is_empty()
        if is_by_trace:
            needs_experts = by not in ("device", "node", "cost")
            _require_load(request, data, capture_scope, needs_experts=needs_experts)
            from npuscope.analysis.experts.load.from_trace import device_loads

            tables, remarks = device_loads(data.con, tables, capture_scope.all_ranks)
            notes += remarks
        if is_by_trace or by == "cost":
            notes = query.notes(data.con, capture_scope) + notes
        if by == "cost":
            _cost(request, data, tables, notes, capture_scope, top=top)
            return
        from npuscope.analysis.experts.load.dropped_tokens import kernel_notes
        from npuscope.analysis.experts.load.scopes import with_counts

        if scope != "global":
            tables = with_counts(tables, data.con, capture_scope)
        routed = None
        if by == "layer" and rank is None:
            routed = _sent_tokens(data, tables, model, top_k, tokens_per_step)
            notes += kernel_notes(data.con, tables)
        show_rows(tables, notes, routed=routed)


def _check_options(
    by: Key, within: PartName, *, heatmap: bool, json: bool, nodes: int | None, rank: int | None
) -> None:
    """Raises UsageError where options contradict each other."""
    if heatmap and json:
        raise UsageError("--heatmap is a drawing: for figures give --by expert --json")
    if heatmap and by not in ("layer", "expert", "device"):
        raise UsageError(f"--heatmap is of experts or of devices, not by {by}")
    if nodes is not None and by not in ("node", "layer", "time"):
        raise UsageError("--nodes is for --by node, layer and time")
    if within != "global" and (heatmap or by not in ("layer", "time")):
        raise UsageError("--scope is for figures by layer and by time")
    if within != "global" and rank is not None:
        raise UsageError("--scope: of a part of the ranks: leave --rank out")
    if rank is not None and by not in ("layer", "expert"):
        raise UsageError(f"by {by}, all ranks are compared with each other: leave --rank out")


def dump_of(path: Path, scope: Scope) -> tuple[ExpertTables, list[str]] | None:
    """Rows of a dump without a profile, a folder or one file, and notes on them; None for anything
    else. Raises UsageError where several folders below count tokens."""
    from npuscope.profile import is_ingested

    if not path.exists() or is_ingested(path):
        return None
    from npuscope.collector.discover.expert_folders import expert_source, folder_files, own_folder
    from npuscope.collector.discover.search import discover, lone_loads

    folder = path
    # Looking for profiles may take long: not before there is something else to take.
    if not path.is_dir():
        pass
    elif folder_files(path) or own_folder(path) is not None:
        with contextlib.suppress(TraceNotFound):
            discover(path)
            return None
    elif below := lone_loads(path):
        if len(below) > 1:
            raise UsageError(
                f"{path}: {len(below)} folders below it count tokens per expert: give one of them,"
                f" such as {below[0]}"
            )
        folder = below[0]
    source = expert_source(folder)
    if source is None:
        return None
    import polars as pl

    from npuscope.analysis.experts.load.load import tables_of

    keys = {"run": path.resolve().name, "capture": path.resolve().name}
    for name, value in scope.values(JOB).items():
        if value != keys[name]:
            raise UsageError(f"no {name} {value} here: there is {keys[name]}")
    columns = [pl.lit(value).alias(name) for name, value in keys.items()]
    load = source.load.select(
        *columns, pl.coalesce("ep_rank", pl.lit(0)).cast(pl.Int32).alias("rank"), pl.all()
    )
    rows = load.filter(**scope.values(("rank", "step")))
    if rows.is_empty():
        raise UsageError(f"{path}: nothing here is of that rank and step")
    placement = source.placement.select(*columns, pl.lit(0, pl.Int32).alias("rank"), pl.all())
    counts = source.counts.select(*columns, pl.all())
    counts = counts.filter(**scope.values(("step",)))
    facts = source.facts
    counted = (facts.ranks_count, facts.ranks_expected)
    return replace(tables_of(rows, placement), counts=counts, of_ranks=counted), list(source.notes)


def _sent_tokens(
    data: OpenTables | None,
    tables: ExpertTables,
    model: str | None,
    top_k: int | None,
    tokens_per_step: int | None,
) -> RoutedBy:
    from npuscope.analysis.experts.load.counted_ranks import sent_tokens

    return sent_tokens(
        None if data is None else (data.con, data.target), tables,
        model=model, top_k=top_k, tokens_per_step=tokens_per_step,
    )  # fmt: skip


def _require_load(request: Request, data: OpenTables, scope: Scope, *, needs_experts: bool) -> None:
    """Whether no rows may be: the trace tells devices, no experts.

    Raises UsageError where a choice leaves none, TraceNotFound where experts are asked for.
    """
    from npuscope.analysis.experts.load.load import expert_rows

    if str(request.scope) and not expert_rows(data.con).load.is_empty():
        raise UsageError("no expert load of that run, capture, rank and step is here")
    if str(request.scope):
        request.require_steps(data, scope)
    if needs_experts:
        raise TraceNotFound(f"{request.source.path}: {_NONE}")


def _answer(
    request: Request,
    by: Key,
    tables: ExpertTables,
    warnings: list[str],
    *,
    heatmap: bool,
    nodes: int | None,
    top: int | None,
    within: PartName,
    routed: RoutedBy | None,
) -> None:
    """Rows by a key, or the heat map, with their notes."""
    from npuscope.analysis.experts.load import load_rows
    from npuscope.analysis.experts.load.dropped_tokens import sum_notes
    from npuscope.analysis.experts.load.imbalance import expert_loads
    from npuscope.analysis.experts.load.load_notes import load_notes
    from npuscope.analysis.experts.load.scopes import scope_notes

    notes = [*load_notes(tables.load), *scope_notes(tables, within)]
    if routed is not None:
        notes += sum_notes(expert_loads(tables.load), routed)
    notes += warnings
    if heatmap:
        _draw(tables, "device" if by == "device" else "expert")
        say_notes(notes)
        return
    key = cast("load_rows.By", by)
    rows = load_rows.view(tables, key, top=top, nodes=nodes, scope=within, routing=routed)
    notes = load_rows.view_notes(tables, key, rows) + notes
    is_many = by in ("expert", "device") or (by == "layer" and within != "global")
    if is_many and not request.json and top is None:
        fullest = load_rows.fullest(rows, key, _MOST)
        if fullest.height < rows.height:
            notes.append(
                f"{rows.height - fullest.height} more rows: --json shows all, --top N more"
            )
            rows = fullest
    request.answer(f"experts_{by}", rows.drop("basis", strict=False), notes, _table(by))


def _table(by: Key) -> Callable[[pl.DataFrame], RenderableType]:
    from npuscope.dashboard.terminal.experts import expert_tables as tables

    return {
        "layer": tables.layer_table,
        "expert": tables.expert_table,
        "device": tables.device_table,
        "node": tables.node_table,
        "time": tables.time_table,
        "cost": tables.cost_table,
    }[by]


def _draw(tables: ExpertTables, item: Literal["expert", "device"]) -> None:
    """A heat map for each run, capture and phase."""
    from npuscope.analysis.experts.load.imbalance import expert_loads
    from npuscope.analysis.experts.load.load_rows import devices_of
    from npuscope.dashboard.terminal.experts.expert_tables import Heatmap

    loads = expert_loads(tables.load) if item == "expert" else devices_of(tables)
    if loads.is_empty():
        raise UsageError(f"--heatmap: the load of single {item}s is not recorded")
    for (_, _, phase), one in loads.group_by("run", "capture", "phase", maintain_order=True):
        show(Heatmap(one, item, f"Tokens on {item}s, {phase or 'all steps'}"))


def _cost(
    request: Request,
    data: OpenTables,
    tables: ExpertTables,
    remarks: list[str],
    scope: Scope,
    *,
    top: int | None,
) -> None:
    """What imbalance costs in each layer; `top`: the costliest of each step."""
    from npuscope.analysis.experts.cost.cost_answer import cost_rows
    from npuscope.analysis.experts.load.load_rows import largest
    from npuscope.profile import compare_ranks

    compare_ranks(data)
    rows, notes = cost_rows(data.con, tables, scope)
    notes += remarks
    rows = largest(rows, "excess_ns", top)
    request.answer("experts_cost", rows, notes, _table("cost"))
