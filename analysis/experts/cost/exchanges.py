"""Expert-parallel all-to-alls: their time by the bytes of the fullest device, and who waited.

    start of the last member ── transfer: as long for all ──▶ end
    |~~~ waiting of the early ~~~|=== by bytes of the fullest ===|

An operation takes its shortest member's time to transfer: that member waits for nobody. Of each
dispatch and combine one moves what a rank's own tokens are sent as, whatever the load, the other
what its experts got: that counts for both, as the fullest device receives in one what it sends in
the other. Bytes are HCCL's, with what stays on the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import polars as pl

from ...scope import ALL, Scope
from ...views import frame, has_view, open_views
from ..load.load import ExpertTables
from .token_times import CAPTURE, Floats, curve

SHORTEST, TRANSIT, WHOLE = "shortest duration", "transit by HCCL", "mean time over mean bytes"
_RANK = (*CAPTURE, "rank")
_LEAST_COUNT = 8  # operations, for a line
# What takes at least as long does so for its bytes, but for some 10 % at most.
_LONG_NS, _LATENCY_RATIO = 100_000, 0.1
_TIMES: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "ns_per_byte": pl.Float64,
    "error_ns_per_byte": pl.Float64, "operations_count": pl.Int64, "basis": pl.String,
}  # fmt: skip
_ROWS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "instance": pl.Int64, "group_hash": pl.String,
    "step": pl.Int64, "rank": pl.Int32, "host": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64,
    "aligned_start_ns": pl.Int64, "size_bytes": pl.Int64, "group_size": pl.Int32,
    "is_complete": pl.Boolean, "transit_ns": pl.Float64, "exposed_ns": pl.Int64,
    "load_bytes": pl.Int64,
}  # fmt: skip
_RANK_WAITS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "rank": pl.Int32,
    "by_least": pl.Int64, "by_last": pl.Int64, "is_complete": pl.Float64,
}  # fmt: skip
# Names are compared by their hashes, of one rank, and sorted by their places: millions of them take
# seconds as text.
_QUERY = """
with _transits as (
    select rank, hash(run, capture, group_hash, name) as op, min(transit_ns) as transit_ns
    from comm_times {where} {also} group_hash is not null and name is not null
    group by all having count(*) = 1
),
_progress as (
    select rank, hash(run, capture, group_hash, name) as op, start_ns,
        min(exposed_ns) as exposed_ns
    from comm_progress
    {where} {also} op_type in ('allToAll', 'allToAllV') and group_hash is not null
        and name is not null
    group by all
),
_meetings as (
    select *, hash(run, capture, group_hash, name) as op
    from arrivals
    {where} {also} kind in ('ep', 'tp_ep', 'mp_ep') and op_type in ('allToAll', 'allToAllV')
        and end_ns >= start_ns
),
_places as (
    select *, dense_rank() over (order by run, capture) as capture_place,
        row_number() over (order by run, capture, group_hash) as place
    from (select distinct run, capture, group_hash from _meetings)
)
select a.run, a.capture, a.instance, a.group_hash, a.step, a.rank, a.host, a.start_ns,
    a.end_ns - a.start_ns as dur_ns, a.aligned_start_ns, a.size_bytes, a.group_size,
    coalesce(a.is_complete, false) as is_complete, t.transit_ns,
    cast(p.exposed_ns as bigint) as exposed_ns
from _meetings a
left join _transits t using (rank, op)
left join _progress p using (rank, op, start_ns)
left join _places s on s.run = a.run and s.capture = a.capture
    and s.group_hash is not distinct from a.group_hash
order by s.capture_place, a.rank, s.place, a.step nulls last, a.start_ns, a.instance"""


def exchanges(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Every expert-parallel all-to-all of each rank, on a connection that `open_across` prepared;
    none on another.

    run, capture, instance, group_hash, step, rank, host, start_ns, dur_ns, aligned_start_ns,
    size_bytes, group_size, is_complete, transit_ns (HCCL's, NULL where not recorded), exposed_ns
    (without compute beside), load_bytes (what moves for the rank's experts: of it, or of the other
    one of dispatch and combine).
    """
    if not has_view(con, "arrivals"):
        return pl.DataFrame(schema=_ROWS)
    clause, values = scope.all_ranks.where()
    open_views(con, ["comm_progress"])
    also = "and" if clause else "where"
    return _with_load(frame(con, _QUERY.format(where=clause, also=also), [*values] * 3))


def exchange_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Time of an all-to-all by the load_bytes of its fullest member, _TIMES: a row per capture.

    By complete operations; where there are too few of them, by HCCL's transit and the bytes of each
    rank alone. Where bytes hardly differ, or noise hides the line, it is the mean time over the
    mean bytes, less 5 % for what an operation takes without bytes: only of operations so long that
    it is between 0 and 10 % (basis WHOLE). Captures whose time does not follow bytes have no row.
    """
    time_rows: list[dict[str, Any]] = []
    for key, part in of_captures(rows.filter(pl.col("load_bytes") > 0)):
        met = (
            part.filter("is_complete")
            .group_by("instance", maintain_order=True)
            .agg(pl.col("load_bytes").max(), time_ns=pl.col("dur_ns").min(), members=pl.len())
            .filter(pl.col("members") > 1)
        )
        basis = SHORTEST
        if met.height < _LEAST_COUNT:
            met = part.select("load_bytes", time_ns="transit_ns").drop_nulls()
            basis = TRANSIT
        if met.height < _LEAST_COUNT:
            continue
        sizes, times = met.select(pl.col("load_bytes", "time_ns").cast(pl.Float64)).to_numpy().T
        rate = _per_byte(sizes, times)
        if rate is not None:
            slope, error, is_line = rate
            values = (slope, error, met.height, basis if is_line else WHOLE)
            time_rows.append(dict(zip(_TIMES, (*key, *values), strict=True)))
    return pl.DataFrame(time_rows, schema=_TIMES)


def _per_byte(sizes: Floats, times: Floats) -> tuple[float, float, bool] | None:
    """ns per byte, its standard error, and whether it is a line's slope; None where not known."""
    line = curve(sizes, times, np.ones_like(sizes))
    slope, error = line["ns_per_token"], line["error_ns_per_token"]
    # What takes no time without bytes takes no more by bytes than in all.
    most = float(np.median(times) / np.median(sizes))
    if slope is not None and error is not None:
        if slope > 2 * error:
            return (min(slope, most) if slope <= most + 2 * error else slope), error, True
        if abs(slope - most) > 2 * error:
            return None
    is_long = float(np.median(times)) >= _LONG_NS
    half = _LATENCY_RATIO / 2
    return ((1 - half) * most, half * most, False) if is_long else None


def rank_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """run, capture, rank, step, size_bytes: what all these operations of a step move of a rank."""
    return rows.group_by(*_RANK, "step", maintain_order=True).agg(pl.col("size_bytes").sum())


def links(rows: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """run, capture, bytes_per_s of a device's link, is_far, operations_count.

    Over all its peers at once, without what stays on the device: (n - 1) / n of the bytes of a
    group of n. is_far: the groups span hosts, so that it is the slowest of its links that is seen.
    """
    size = pl.coalesce("group_size", pl.col("rank").n_unique().over(*CAPTURE, "group_hash"))
    groups = rows.with_columns(members=size).group_by(CAPTURE).agg(pl.col("members").max())
    hosts = rows.group_by(*CAPTURE, "group_hash").agg(pl.col("host").n_unique() > 1)
    far = hosts.group_by(CAPTURE).agg(is_far=pl.col("host").any())
    away = (pl.col("members") - 1) / pl.col("members")
    return (
        times.join(groups, on=CAPTURE)
        .join(far, on=CAPTURE)
        .filter(pl.col("members") > 1)
        .select(
            *CAPTURE, "is_far", "operations_count", bytes_per_s=away / pl.col("ns_per_byte") * 1e9
        )
    )


def waits(rows: pl.DataFrame, tables: ExpertTables) -> pl.DataFrame:
    """What ranks really waited in these operations, mean over the ranks of a pipeline stage.

    run, capture, step, stage, ep_wait_min_duration_ns, ep_wait_last_arrival_ns (NULL where clocks
    are not joined), coverage_ratio (operations that all members recorded: the ones measured). A row
    of stage NULL has all stages added up. Two estimates of one thing, as in metric `comm_waits`.
    """
    stages = tables.ranks.select(*_RANK, stage=pl.col("pp_rank").fill_null(0).cast(pl.Int32))
    frames = [_rank_waits(part, *key) for key, part in of_captures(rows)]
    of_ranks = pl.concat([pl.DataFrame(schema=_RANK_WAITS), *frames]).join(stages, on=_RANK)
    names = {
        "ep_wait_min_duration_ns": pl.col("by_least"),
        "ep_wait_last_arrival_ns": pl.col("by_last"),
        "coverage_ratio": pl.col("is_complete"),
    }
    by_stage = of_ranks.group_by(*CAPTURE, "step", "stage").agg(
        one.mean().alias(name) for name, one in names.items()
    )
    whole = by_stage.group_by(*CAPTURE, "step").agg(
        pl.lit(None, pl.Int32).alias("stage"),
        *(
            pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()).alias(name)
            for name in list(names)[:2]
        ),
        pl.col("coverage_ratio").mean(),
    )
    return pl.concat([by_stage, whole.select(by_stage.columns)])


def of_captures(rows: pl.DataFrame) -> Iterator[tuple[tuple[str, str], pl.DataFrame]]:
    """Run and capture with their rows; without comparing names row by row where there is one."""
    if rows.is_empty():
        return
    names = [(one.min(), one.max()) for one in (rows["run"], rows["capture"])]
    if all(least == most for least, most in names):
        yield (str(names[0][0]), str(names[1][0])), rows
        return
    for (run, capture), part in rows.group_by(CAPTURE, maintain_order=True):
        yield (str(run), str(capture)), part


def _rank_waits(part: pl.DataFrame, run: str, capture: str) -> pl.DataFrame:
    """_RANK_WAITS of one capture: what each rank waited in a step, and how much of its operations
    that rests on."""
    together = part.group_by("instance").agg(
        shortest_ns=pl.col("dur_ns").min(),
        last_ns=pl.when(pl.col("aligned_start_ns").is_not_null().all()).then(
            pl.col("aligned_start_ns").max()
        ),
    )
    waited = part.join(together, on="instance").with_columns(
        by_least=pl.when("is_complete").then(pl.col("dur_ns") - pl.col("shortest_ns")),
        by_last=pl.when(pl.col("is_complete") & pl.col("last_ns").is_not_null()).then(
            pl.min_horizontal("dur_ns", pl.col("last_ns") - pl.col("aligned_start_ns"))
        ),
    )
    return (
        waited.group_by("step", "rank")
        .agg(
            *(
                pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
                for name in ("by_least", "by_last")
            ),
            pl.col("is_complete").mean(),
        )
        .with_columns(run=pl.lit(run), capture=pl.lit(capture))
        .select(pl.col(name).cast(kind) for name, kind in _RANK_WAITS.items())
    )


def _with_load(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in order of each rank, group and step with load_bytes."""
    of_rank = (*_RANK, "group_hash")
    at = pl.int_range(pl.len())
    is_next = pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(name).shift(1)) for name in (*of_rank, "step")
    )
    paired = (
        rows.with_columns(first=pl.when((at == 0) | is_next.not_()).then(at).forward_fill())
        .with_columns(nth=at - pl.col("first"))
        .with_columns(side=pl.col("nth") % 2)
    )
    # Which side never changes, whatever a rank's experts get.
    size = pl.col("size_bytes")
    steps = paired.group_by("first", "side").agg(
        pl.col(*of_rank).first(), least=size.min(), most=size.max(),
        unknown=size.is_null().any(), known=size.is_not_null().any(),
    )  # fmt: skip
    is_same = pl.when(pl.col("known").any()).then(
        ~pl.col("unknown").any() & (pl.col("least").min() == pl.col("most").max())
    ).otherwise(pl.lit(True))  # fmt: skip
    sides = (
        steps.group_by(*of_rank, "side")
        .agg(is_same.alias("size_bytes"))
        .group_by(*CAPTURE, "side")
        .agg(pl.col("size_bytes").all())
        .pivot("side", index=CAPTURE, values="size_bytes")
    )
    if {"0", "1"} <= set(sides.columns):
        varying = sides.filter(pl.col("0") != pl.col("1")).select(
            *CAPTURE, varying=pl.when(pl.col("0")).then(1).otherwise(0).cast(pl.Int64)
        )
    else:
        varying = pl.DataFrame(schema={"run": pl.String, "capture": pl.String, "varying": pl.Int64})
    # Both of a pair stand beside each other; the last of an odd number stands alone.
    follows = pl.when(pl.col("first").shift(-1) == pl.col("first")).then(size.shift(-1))
    partner = pl.when(pl.col("side") == 1).then(size.shift(1)).otherwise(follows)
    return (
        paired.join(varying, on=CAPTURE, how="left", maintain_order="left")
        .with_columns(
            load_bytes=pl.when(pl.col("varying").is_null() | (pl.col("side") == pl.col("varying")))
            .then(size)
            .otherwise(partner)
        )
        .drop("first", "nth", "side", "varying")
    )
