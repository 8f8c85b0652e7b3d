"""Parts of steps: the one decomposition that every outlet shows (metric `step_parts`)."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from .memo import latest, memoize
from .scope import ALL, PLACE, Scope
from .views import frame, has_view, select

PARTS = (
    "computing", "transfer", "peer_wait", "absent_wait", "pipeline_wait", "unknown_communication",
    "host", "idle", "free",
)  # fmt: skip
COMMUNICATION = PARTS[1:-3]
# Free time: what came next was not yet launched, was launched, or nothing tells.
FREE = PARTS[-3:]
# Without what all ranks tell together, only who receives from another stage (as steps have
# it) is known to wait.
_OWN_WAITS = """
with _steps as (select * from step_summary {where}),
_communication as (
    select c.run, c.capture, c.rank, c.step,
        case when op_type = 'receive' or op_type = 'batchSendRecv'
                and kind in ('pp', 'mp', 'mp_ep', 'embd', 'world', 'unknown')
            then 'pipeline_wait' else 'unknown_communication' end as part,
        kind, op_type, sum(exposed_attributed_ns) as ns
    from (select * from comm_summary {where}) as c
    join _steps as s on s.run = c.run and s.capture = c.capture and s.rank = c.rank
        and s.step is not distinct from c.step
    where by_key = 'op' and exposed_attributed_ns > 0
    group by all
),
_rows as (
    select run, capture, rank, step, 'computing' as part, null as kind, null as op_type,
        computing_ns as ns
    from _steps
    union all select * from _communication
    union all
    select run, capture, rank, step, 'unknown_communication', null, null, sum(ns)
    from (
        select run, capture, rank, step, exposed_communication_ns as ns from _steps
        union all select run, capture, rank, step, -ns from _communication
    )
    group by run, capture, rank, step
    union all
    select run, capture, rank, step, 'host', null, null, host_ns from _steps where host_ns > 0
    union all
    select run, capture, rank, step, 'idle', null, null, idle_ns from _steps where idle_ns > 0
    union all
    select run, capture, rank, step, 'free', null, null,
        free_ns - coalesce(host_ns, 0) - coalesce(idle_ns, 0)
    from _steps
)
select run, capture, rank, step, part, kind, op_type, cast(ns as bigint) as ns
from _rows where ns is null or ns <> 0 or part = 'computing'
order by run, capture, rank, step nulls last, part, kind nulls last, op_type nulls last"""


@memoize
def step_parts(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Parts of each step: columns of the metric `step_parts`.

    Who waits for whom only all ranks together tell (`ranks.rank_views`); without them, exposed
    communication is unknown but for what receives from another stage.
    """
    if is_told(con):
        return select(con, "step_parts", scope, "part, kind nulls last, op_type nulls last")
    clause, values = scope.where()
    return frame(con, _OWN_WAITS.format(where=clause), [*values, *values])


@latest
def is_told(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether what all ranks tell together is there."""
    return has_view(con, "step_parts")


def exposed_parts(parts: pl.DataFrame, by: Sequence[str] = PLACE) -> pl.DataFrame:
    """Rows of `step_parts` as one row per `by`: exposed_ns and share_ratio (of the step), and a
    column `<part>_ns` per part of communication, NULL where nothing is known of it."""
    ns, part = pl.col("ns"), pl.col("part")
    is_exposed = part.is_in(COMMUNICATION)

    def sum_of_known(which: pl.Expr) -> pl.Expr:
        mine = ns.filter(which)
        return pl.when((mine.len() > 0) & (mine.null_count() == 0)).then(mine.sum())

    all_ns = pl.when(ns.null_count() == 0).then(ns.sum())
    has_none = ~is_exposed.any()
    exposed_ns = pl.when(has_none).then(0).otherwise(sum_of_known(is_exposed))
    return (
        parts.group_by(list(by), maintain_order=True)
        .agg(
            exposed_ns.alias("exposed_ns"),
            all_ns.alias("_all_ns"),
            *(sum_of_known(part == name).alias(f"{name}_ns") for name in COMMUNICATION),
        )
        .with_columns(
            pl.when(pl.col("_all_ns") > 0)
            .then(pl.col("exposed_ns") / pl.col("_all_ns"))
            .alias("share_ratio")
        )
        .drop("_all_ns")
    )


def mean_of(parts: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """keys, part, ns, share_ratio: parts of a mean rank and step in the order of `PARTS`, over the
    steps where all of them are known."""
    keys = list(keys)
    whole = parts.filter(pl.col("ns").null_count().over(PLACE) == 0)
    over = whole.select(*dict.fromkeys([*keys, *PLACE])).unique().group_by(keys).len()
    order = pl.col("part").replace_strict({part: n for n, part in enumerate(PARTS)})
    return (
        whole.group_by(*keys, "part")
        .agg(pl.col("ns").sum())
        .join(over, on=keys, nulls_equal=True)
        .with_columns((pl.col("ns") / pl.col("len")).alias("ns"))
        .sort(*keys, order, nulls_last=True)
        .select(
            *keys, "part", "ns", (pl.col("ns") / pl.col("ns").sum().over(keys)).alias("share_ratio")
        )
    )
