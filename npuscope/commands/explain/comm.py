"""`npuscope comm`: communication by kind, type or operation, and what of it compute hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Request, TopOrAll, command, notes_of
from npuscope.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    from rich.console import RenderableType

    from npuscope.analysis.query import CommKey


_RANKS = ("rank", "src_rank", "dst_rank")
_ONE_SIDE = "no operation of a type ran beside computing and another without: no slowdown to tell"


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at communication: its metric, its rows, and its table for people.

    `rows(con, scope, top)` takes how many rows to keep of each rank and step (None: all).
    `table(rows, means, top)` gets all rows and what `means(con, scope)` tells of a mean step, and
    shows `top` of each. `notes(rows)` are sentences beside them. `of`: analyses of doctor without
    which a rank has no row; `needs_traffic`: HCCL's own, of each operation.
    """

    metric: str
    rows: Callable[[duckdb.DuckDBPyConnection, Scope, int | None], pl.DataFrame]
    table: Callable[[pl.DataFrame, pl.DataFrame, int | None], RenderableType]
    notes: Callable[[pl.DataFrame], list[str]] = lambda rows: []
    means: Callable[[duckdb.DuckDBPyConnection, Scope], pl.DataFrame] | None = None
    of: tuple[str, ...] = ("peers",)
    needs_traffic: bool = False


def _masking(by: CommKey) -> View:
    from npuscope.analysis import means, query
    from npuscope.dashboard.terminal.comm_tables import masking_table

    return View(
        "comm",
        lambda con, scope, top: query.comm(con, scope, by=by, top=top),
        masking_table,
        means=lambda con, scope: means.mean_comm(con, scope, by=by),
    )


def _parts() -> View:
    from npuscope.analysis.parts import step_parts
    from npuscope.dashboard.terminal.parts_table import parts_table

    return View(
        "step_parts",
        lambda con, scope, _: step_parts(con, scope),
        lambda frame, _, __: parts_table(frame),
    )


def _stretch() -> View:
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.comm_tables import stretch_table

    return View(
        "compute_stretch",
        lambda con, scope, _: query.compute_stretch(con, scope),
        lambda frame, _, __: stretch_table(frame),
    )


def _volume(by: Literal["link_traffic", "rank_matrix", "bandwidth", "contention"]) -> View:
    from npuscope.analysis import means
    from npuscope.analysis.communication import volume
    from npuscope.dashboard.terminal import comm_tables as tables

    if by == "link_traffic":
        return View(
            by,
            lambda con, scope, top: volume.links(con, scope, top=top),
            tables.links_table,
            means=lambda con, scope: means.mean_links(con, scope),
            of=("links",),
        )
    if by == "rank_matrix":
        return View(
            by,
            lambda con, scope, top: volume.matrix(con, scope, top=top),
            tables.matrix_table,
            means=lambda con, scope: volume.mean_pairs(con, scope),
            of=("matrix",),
        )
    if by == "contention":
        return View(
            by,
            lambda con, scope, top: volume.contention(con, scope, top=top),
            lambda frame, _, top: tables.contention_table(frame, top),
            lambda rows: [_ONE_SIDE] if rows["slowdown_ratio"].count() == 0 < rows.height else [],
            of=("links", "peers"),
            needs_traffic=True,
        )
    return View(
        by,
        lambda con, scope, top: volume.bandwidth(con, scope, top=top),
        lambda frame, _, top: tables.bandwidth_table(frame, top),
    )


def _hierarchy(experts: int | None, top_k: int | None) -> View:
    from npuscope.analysis.communication import volume
    from npuscope.dashboard.terminal.comm_tables import hierarchy_table

    if experts is None or top_k is None:
        raise UsageError("--by hierarchy: give the routing, as in --experts 256 --top-k 8")
    return View(
        "all_to_all",
        lambda con, scope, _: volume.hierarchy(con, scope, experts=experts, top_k=top_k),
        lambda frame, _, top: hierarchy_table(frame, top),
        lambda rows: [
            f"group {row['group_hash']}: {row['rank_count']} of {row['group_size']} ranks were"
            " recorded, on as many of each host known to be one's: other schemes are left open"
            for row in rows.iter_rows(named=True)
            if not volume.is_whole(row)
        ],
    )


# What `--by` takes, each made only when it is asked for: imports cost start-up time.
_VIEWS: dict[str, Callable[[], View]] = {
    "kind": partial(_masking, "kind"),
    "type": partial(_masking, "type"),
    "op": partial(_masking, "op"),
    "part": _parts,
    "stretch": _stretch,
    "link": partial(_volume, "link_traffic"),
    "matrix": partial(_volume, "rank_matrix"),
    "bandwidth": partial(_volume, "bandwidth"),
    "contention": partial(_volume, "contention"),
}

Key = Literal[
    "kind", "type", "op", "part", "stretch", "link", "matrix", "bandwidth", "contention",
    "hierarchy",
]  # fmt: skip
By = Annotated[Key, typer.Option("--by", metavar="KEY", help="|".join(get_args(Key)))]
Experts = Annotated[
    int | None, typer.Option("--experts", metavar="N", min=1, help="By hierarchy: routed experts.")
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="N", min=1, help="By hierarchy: experts per token.")
]


@command("run", "capture", "rank", "step")
def comm(
    request: Request,
    by: By = "kind",
    *,
    top: TopOrAll = None,
    experts: Experts = None,
    top_k: TopK = None,
) -> None:
    """Communication by kind, type or operation: how long, how much masked; links; who to whom.

    \b
    Examples:
      npuscope comm ./profiles                            which group is exposed?
      npuscope comm ./profiles --by type --rank 0
      npuscope comm ./profiles --by op --top 10 --json
      npuscope comm ./profiles --by part                  moving bytes, or waiting for whom?
      npuscope comm ./profiles --by stretch               does overlap slow the kernels down?
      npuscope comm ./profiles --by link                  how fast is which kind of link?
      npuscope comm ./profiles --by matrix --step 12      who sends how much to whom?
      npuscope comm ./profiles --by hierarchy --experts 256 --top-k 8
    """
    from npuscope.profile import compare_ranks

    view = _hierarchy(experts, top_k) if by == "hierarchy" else _VIEWS[by]()
    with request.tables(need_steps=False) as (data, scope):
        compare_ranks(data, is_needed=False)  # all ranks together know what groups are for
        frame = view.rows(data.con, scope, top if request.json else None)
        if frame.is_empty():  # a lone file of traffic answers without steps
            request.require_steps(data, scope)
        notes = [*notes_of(data, scope), *view.notes(frame)]
        if frame.is_empty():
            notes += _why_nothing(view, data.con, scope)
        else:
            notes += _open_beside(view, frame, data.con, scope)
        means = frame if request.json or view.means is None else view.means(data.con, scope)
        request.answer(view.metric, frame, notes, lambda rows: view.table(rows, means, top))


def _open_beside(
    view: View, frame: pl.DataFrame, con: duckdb.DuckDBPyConnection, scope: Scope
) -> list[str]:
    """Sentences on ranks that have no row, and what would record it."""
    from npuscope.analysis.doctor.limits import open_questions
    from npuscope.analysis.notes import of_each_capture

    def sentences(here: Scope) -> list[str]:
        rows = frame.filter(run=here.run, capture=here.capture)
        ranks_of = {rank for name in _RANKS if name in rows.columns for rank in rows[name]}
        if None in ranks_of:  # of places in groups nobody knows whose they are
            return []
        return open_questions(con, here, view.of, beside=ranks_of)

    return of_each_capture(con, scope, sentences)


def _why_nothing(view: View, con: duckdb.DuckDBPyConnection, scope: Scope) -> list[str]:
    """Sentences: of all communication nothing was recorded, or what of it and what records it."""
    from npuscope.analysis import query
    from npuscope.analysis.doctor.limits import open_questions, ranks_with_communication
    from npuscope.analysis.notes import of_each_capture
    from npuscope.messages import Message

    if not ranks_with_communication(con, scope):
        return ["no communication was recorded here: see `npuscope doctor`"]
    only_time = query.only_time_of_communication(con, scope)
    told = of_each_capture(con, scope, lambda here: open_questions(con, here, view.of))
    reasons = [*([only_time] if only_time else []), *told]
    if reasons:
        return reasons
    if view.needs_traffic:
        return [
            Message(
                "HCCL's own traffic of each operation, which this needs, was not recorded"
                " (profiler_level=ProfilerLevel.Level1 does): see `npuscope doctor`"
            )
        ]
    return [
        Message(
            "communication was recorded here, but nothing that answers this: see `npuscope doctor`"
        )
    ]
