"""Options of `npuscope experts` beyond the key: a part of the step, and what routers sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    from npuscope.analysis.experts.load.dropped_tokens import RoutedBy
    from npuscope.analysis.experts.load.load import ExpertTables
    from npuscope.analysis.experts.load.scopes import Scope
    from npuscope.collector.store.manifest import Manifest
    from npuscope.profile import Opened

SCOPES = ("micro_batch", "ep_group", "dp_group", "global")
ScopeName = Annotated[
    str,
    typer.Option("--scope", metavar="SCOPE", help=f"{'|'.join(SCOPES)}: by layer or time."),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k", metavar="K", min=1, help=("Experts per token, to find dropped tokens.")
    ),
]
TokensPerStep = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-step", metavar="N", min=1, help="Of the whole job, to find dropped tokens."
    ),
]
Present = Annotated[
    bool,
    typer.Option("--from-ranks-present", help="Accept missing ranks."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="FILE|PRESET", help="Model config: gives top-k and tokens per step."
    ),
]


def scope_of(scope: str, key: str, *, heatmap: bool, rank: int | None) -> Scope:
    """What `--scope` says. Raises UsageError."""
    if scope not in SCOPES:
        raise UsageError(f"--scope {scope}: choose one of {', '.join(SCOPES)}")
    if scope != "global" and (heatmap or key not in ("layer", "time")):
        raise UsageError("--scope is for figures by layer and by time")
    if scope != "global" and rank is not None:
        raise UsageError("--scope: of a part of the ranks: leave --rank out")
    return cast("Scope", scope)


def routed_of(
    data: Opened | None,
    tables: ExpertTables,
    model: str | None,
    top_k: int | None,
    tokens_per_step: int | None,
) -> RoutedBy:
    """What routers sent in each capture, as options, a model, what the job told its profiler, and
    the files that counted tell it."""
    from npuscope.analysis.experts.load.dropped_tokens import Routed

    tokens: dict[tuple[str, str], set[int]] = {}
    if model is not None:
        from npuscope.analysis.flops.kernels.count import counted_kernels
        from npuscope.analysis.flops.model.describe import model_of
        from npuscope.analysis.flops.tokens import tokens_of_steps

        named = model_of(model)
        top_k = top_k or (named.experts.top_k if named.experts else None)
        if data is not None and tokens_per_step is None:
            counted = counted_kernels(data.con)
            for run, capture, _, seen, _ in tokens_of_steps(data.con, named, counted)[0].rows():
                tokens.setdefault((run, capture), set()).add(seen)
    held, worlds = _held(data), _worlds(tables)
    return {
        place: Routed(
            tokens_per_step or _only(tokens.get(place, set())),
            top_k or _told_top_k(held.get(place, [])),
            *_ranks(held.get(place, []), world),
        )
        for place, world in worlds.items()
    }


def require_all_ranks(data: Opened | None, tables: ExpertTables) -> None:
    """Raises TraceNotFound where some ranks' counts are missing: what is planned or forecast from
    the others' is of another load."""
    held = _held(data)
    for place, world in _worlds(tables).items():
        counted, expected = tables.counted if data is None else _ranks(held.get(place, []), world)
        if counted is not None and expected is not None and counted < expected:
            raise TraceNotFound(
                f"{' '.join(place)}: tokens of {counted} of {expected} ranks are here, and the"
                " missing counts may change any plan or forecast: put the files of all ranks"
                " (rank*.jsonl, decode_*.csv, prefill_*.csv) into one folder, or accept a partial"
                " result with --from-ranks-present"
            )


def _held(data: Opened | None) -> dict[tuple[str, str], list[Manifest]]:
    held: dict[tuple[str, str], list[Manifest]] = {}
    if data is not None:
        from npuscope.collector.store.manifest import is_store, manifests

        for one in manifests(data.target) if is_store(data.target) else ():
            held.setdefault((one.run, one.capture), []).append(one)
    return held


def _worlds(tables: ExpertTables) -> dict[tuple[str, str], int | None]:
    """Ranks of each capture's job, as they tell; None where none does."""
    worlds = dict.fromkeys(tables.load.select("run", "capture").unique().rows())
    for run, capture, world in tables.ranks.select("run", "capture", "world_size").rows():
        if (run, capture) in worlds:
            worlds[run, capture] = max(world or 0, worlds[run, capture] or 0) or None
    return worlds


def _ranks(held: list[Manifest], world: int | None) -> tuple[int | None, int | None]:
    """Ranks of a capture that counted, and that should have; None where not told."""
    from npuscope.collector.discover.expert_folders import expert_facts

    told = [one for one in map(expert_facts, held) if one is not None]
    sizes = [size for size in (world, *(one.ranks_expected for one in told)) if size is not None]
    return min((one.ranks_count for one in told), default=None), max(sizes, default=None)


def _told_top_k(held: list[Manifest]) -> int | None:
    """Experts of a token as all ranks' metadata tell it."""
    from npuscope.collector.readers.metadata.profiler_metadata import TOP_K_RULE

    return _only({int(one.rules[TOP_K_RULE]) for one in held if TOP_K_RULE in one.rules})


def _only(found: set[int]) -> int | None:
    return next(iter(found)) if len(found) == 1 else None
