"""Who is slow in a capture, what it costs the others, and why.

arrivals + comm_progress -> waits, followed back to their cause    caused_waits
comm_progress            -> own work against peers, sign test      straggler_tests
summaries                -> what is peculiar to each rank          suspects
link_transfers           -> slow links                             straggler_tests
expert load, kernels     -> experts of a rank with more tokens     hot_experts
all of them              -> verdicts with evidence                 suspects

Who made others wait: each wait is followed back to where the time was lost.

In every instance the members that came early wait for the last one. It may be late because it took
longer than its peers since the operation before (its own excess), because a slow link made that one
longer, or because that one was ready late; then what is left is followed back from the last one
there, and so on. What a link makes longer goes back to the rank whose end of it is slow, or to both
ranks of the pair: all of the group end together, and are late for others.

    stage 0, rank 0   |=== slow ===|S                       S send, R receive, A all-reduce
    stage 1, rank 2           R~~~~~~~|==|A                 rank 3 waits for rank 2 in A;
    stage 1, rank 3           R~|==|A~~~~~~~                rank 2 waited for rank 0 in R: rank 0

What none of these explains stays unattributed: the schedule itself (a pipeline fills), transfers
that differ otherwise, peers that are unknown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import msgspec
import numpy as np
import polars as pl

from npuscope.messages import store_text

from ...catalog import metric
from ...scope import Scope
from ...views import frame, open_views
from ..stages import ranks_apart
from . import hot_experts, straggler_tests, suspects
from .straggler_tests import SURE, binomial_tail, corrected_min, holm, slowest_more_often

SUMMARIES = (
    "steps", "kernels", "comm", "comm_progress", "rank_work", "link_transfers", "rank_hosts",
)  # fmt: skip
RANK_BLAME = {
    "run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64,
    "last_arrivals_count": pl.Int64, "caused_wait_ns": pl.Int64, "score": pl.Float64,
    "verdict": pl.String, "evidence": pl.String,
}  # fmt: skip
LAST_ARRIVALS = {
    "run": pl.String, "capture": pl.String, "instance": pl.Int64, "rank": pl.Int32,
    "step": pl.Int64, "margin_ns": pl.Int64, "clock_error_ns": pl.Int64, "is_evidence": pl.Boolean,
    "wait_ns": pl.Int64, "caused_ns": pl.Int64,
}  # fmt: skip
SLOW_PAIRS = {
    "run": pl.String, "capture": pl.String, "link": pl.String, "low_rank": pl.Int32,
    "high_rank": pl.Int32, "bandwidth_bytes_per_s": pl.Float64, "usual_bytes_per_s": pl.Float64,
    "slow_ratio": pl.Float64, "is_slow": pl.Boolean, "excess_ns": pl.Float64,
    "size_bytes": pl.Int64, "transfer_count": pl.Int64,
}  # fmt: skip
_OPS = """
select a.instance, a.group_hash, a.kind, a.op_type, a.name, coalesce(a.step, -1) as step, a.rank,
    a.start_ns, a.end_ns, a.size_bytes, a.aligned_start_ns, a.aligned_end_ns, a.clock_error_ns,
    coalesce(a.is_complete, false) and a.aligned_start_ns is not null
        and a.clock_error_ns is not null as is_complete,
    max(a.aligned_start_ns) over (partition by a.instance) as ready_ns,
    p.own_ns, p.exposed_ns
from (select * from {arrivals} {where}) as a
left join (
    select rank, group_hash, name, start_ns, any_value(own_ns) as own_ns,
        any_value(exposed_ns) as exposed_ns
    from comm_progress {where} group by all
) as p using (rank, group_hash, name, start_ns)"""
_RANKS = """
select rank, any_value(pp_rank) as stage, any_value(shown) as host
from (select * from ranks {where}) as r
left join (
    select run, capture, rank,
        case when min(host) over same_name <> max(host) over same_name
            then concat(host_name, ' (', host, ')') else host_name end as shown
    from rank_hosts
    window same_name as (partition by run, capture, host_name)
) as h using (run, capture, rank)
group by rank order by rank"""


@dataclass(frozen=True, slots=True)
class Result:
    """A table to keep: `query` holds on the connection that it was computed on."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class StragglerTables:
    """rank_blame: a row per rank and step, its verdict over all steps; columns RANK_BLAME.
    last_arrivals: a row per matched operation, who was last; columns LAST_ARRIVALS.
    slow_pairs: a row per link type and two ranks; columns SLOW_PAIRS."""

    rank_blame: pl.DataFrame
    last_arrivals: pl.DataFrame
    slow_pairs: pl.DataFrame


def results_of(con: duckdb.DuckDBPyConnection, *, arrivals: str) -> Iterator[Result]:
    """The tables of `stragglers` as results to keep, held by temporary tables `_<table>`."""
    results = stragglers(con, arrivals=arrivals)
    for name in ("rank_blame", "last_arrivals", "slow_pairs"):
        con.register("_straggler_rows", getattr(results, name).to_arrow())
        con.execute(f"create or replace temp table _{name} as from _straggler_rows")
        con.unregister("_straggler_rows")
        yield Result(name, metric(name).sql)


def stragglers(con: duckdb.DuckDBPyConnection, *, arrivals: str = "arrivals") -> StragglerTables:
    """Stragglers of every capture on a connection that has the canonical tables and `arrivals`,
    under that name or another one.

    Summaries that are not there are computed from the events.
    """
    open_views(con, SUMMARIES)
    captures = con.execute("select distinct run, capture from ranks order by all").fetchall()
    programs = [
        _of_program(con, arrivals, run, capture, mine)
        for run, capture in captures
        for mine in _programs(ranks_apart(con, run, capture))
    ]
    return StragglerTables(
        pl.concat([pl.DataFrame(schema=RANK_BLAME), *(one.rank_blame for one in programs)]),
        pl.concat([pl.DataFrame(schema=LAST_ARRIVALS), *(one.last_arrivals for one in programs)]),
        pl.concat([pl.DataFrame(schema=SLOW_PAIRS), *(one.slow_pairs for one in programs)]),
    )


def _programs(apart: list[int]) -> list[pl.Expr]:
    """Which ranks step together."""
    is_apart = pl.col("rank").is_in(apart)
    return [is_apart, ~is_apart] if apart else [pl.lit(True)]


def _of_program(
    con: duckdb.DuckDBPyConnection, arrivals: str, run: str, capture: str, mine: pl.Expr
) -> StragglerTables:
    """Stragglers among those ranks of a capture that step together."""
    clause, values = Scope(run, capture).where()
    ops = frame(con, _OPS.format(where=clause, arrivals=arrivals), [*values, *values]).filter(mine)
    transfers = frame(con, f"select * from link_transfers {clause}", values).filter(mine)
    pairs = straggler_tests.pair_rates(transfers)
    keys = (pl.lit(run).alias("run"), pl.lit(capture).alias("capture"))
    slow_pairs = _columns(pairs.with_columns(*keys), SLOW_PAIRS)
    if ops.is_empty():  # as of one rank alone: verdicts stand in rows of steps with operations
        blame, last = (pl.DataFrame(schema=one) for one in (RANK_BLAME, LAST_ARRIVALS))
        return StragglerTables(blame, last, slow_pairs)
    ranks = frame(con, _RANKS.format(where=clause), values).filter(mine)
    stages = _stages(ranks, ops)
    rows = straggler_tests.with_places(ops.drop_nulls("own_ns"), stages)
    when = pl.when("is_common")
    excess = rows.select(
        "instance", "rank", when.then("excess_ns").alias("excess_ns"),
        when.then("delay_ns").alias("delay_ns"),
    )  # fmt: skip
    ops = ops.join(excess, on=["instance", "rank"], how="left")
    links = straggler_tests.blame_ends(pairs)
    slow_ends = _link_delays(ops, links.filter(pl.col("p_value") <= SURE))
    last = waits_of(ops, slow_ends.select("instance", "link_ns").unique()).last
    steps = max(ops.filter(pl.col("step") >= 0)["step"].n_unique(), 1)
    features = _features(con, ops, rows, stages, ranks, run=run, capture=capture)
    judgement = suspects.judge_ranks(features, links, step_count=steps)
    full = [row for row in judgement if row["verdict"] == "alltoall_bytes"]
    if full:
        lines = hot_experts.hot_lines(con, [row["rank"] for row in full], run=run, capture=capture)
        for row in full:
            row["evidence"] += lines[row["rank"]]
    judged = pl.DataFrame(
        [
            {**row, "evidence": json.dumps([_with_message(one) for one in row["evidence"]])}
            for row in judgement
        ],
        schema={name: RANK_BLAME[name] for name in ("rank", "score", "verdict", "evidence")},
    )
    ends = slow_ends.join(last, on="instance").select(
        pl.col("end_rank").alias("rank"), "step", (pl.col("linked_ns") / pl.col("ends")).round()
        .cast(pl.Int64).alias("caused_ns"),
    )  # fmt: skip
    counted = (
        pl.concat([last.select("rank", "step", "caused_ns", "is_evidence"), ends], how="diagonal")
        .group_by("rank", "step")
        .agg(
            pl.col("is_evidence").sum().cast(pl.Int64).alias("last_arrivals_count"),
            pl.col("caused_ns").sum().alias("caused_wait_ns"),
        )
    )
    # Where no operation met all its members nobody knows who came last, and where what a rank took
    # itself has no peers to be compared with, what it caused: that is not 0.
    met = ops.filter(pl.col("is_complete") & (pl.len().over("instance") > 1))
    flags = met.group_by("rank", "step").agg(
        pl.lit(True).alias("is_met"), pl.col("excess_ns").is_not_null().any().alias("is_compared")
    )
    everywhere = ops.select("rank", "step").unique().sort("rank", "step")
    blame = (
        everywhere.join(flags, on=["rank", "step"], how="left")
        .join(counted, on=["rank", "step"], how="left")
        .join(judged, on="rank", how="left")
        .with_columns(
            *keys,
            pl.when("is_met").then(pl.col("last_arrivals_count").fill_null(0)),
            pl.when("is_compared").then(pl.col("caused_wait_ns").fill_null(0)),
        )
        .sort("rank", "step")
        .with_columns(_unknown_step())
    )
    return StragglerTables(
        _columns(blame, RANK_BLAME),
        _columns(last.with_columns(*keys, _unknown_step()), LAST_ARRIVALS),
        slow_pairs,
    )


def _columns(rows: pl.DataFrame, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _unknown_step() -> pl.Expr:
    return pl.when(pl.col("step") >= 0).then("step").alias("step")


def _stages(ranks: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """rank, stage: the pipeline stage; where it is not known, ranks that do the same operations
    (and begin the pipeline the same way) count as one."""
    if ranks["stage"].null_count() == 0:
        return ranks.select("rank", pl.col("stage").cast(pl.Int64))
    transfers = pl.col("op_type").is_in(["send", "receive"])
    alike = (
        ops.sort("rank", "end_ns")  # what waits may start early
        .group_by("rank", maintain_order=True)
        .agg(
            pl.concat_str("kind", "op_type", ignore_nulls=True).value_counts(sort=False)
            .struct.field("count").sort().alias("counts"),
            pl.col("op_type").filter(transfers).first().fill_null("").alias("first"),
        )
        .with_columns(pl.col("counts").cast(pl.List(pl.String)).list.join(","))
    )  # fmt: skip
    ranks_with_stages = ranks.select("rank").join(alike, on="rank", how="left")
    return ranks_with_stages.select(
        "rank", pl.struct("counts", "first").rank("dense").cast(pl.Int64).alias("stage")
    )


def _features(
    con: duckdb.DuckDBPyConnection,
    ops: pl.DataFrame,
    rows: pl.DataFrame,
    stages: pl.DataFrame,
    ranks: pl.DataFrame,
    *,
    run: str,
    capture: str,
) -> pl.DataFrame:
    """Traits of every rank with the results of the tests, as `suspects.judge_ranks` wants them."""
    pieces = straggler_tests.pieces(rows)
    hosts = ranks.select("rank", "host")
    traits, trials, paces = suspects.traits(con, stages, hosts, run=run, capture=capture)
    own = slowest_more_often(pieces.select("trial", "rank", "value")).rename({"p_value": "own_p"})
    cube, other = (
        slowest_more_often(trials.filter(pl.col("part") == part).drop("part")).select(
            "rank", (pl.col("p_value") * 2).clip(upper_bound=1.0).alias(f"{part}_p")
        )
        for part in ("cube", "other")
    )
    loads = corrected_min(*(slowest_more_often(kind) for kind in straggler_tests.load_trials(ops)))
    return (
        traits.join(own, on="rank", how="left")
        .join(cube, on="rank", how="left")
        .join(other, on="rank", how="left")
        .join(loads.rename({"p_value": "load_p"}), on="rank", how="left")
        .join(straggler_tests.excess_by_rank(pieces), on="rank", how="left")
        .join(_host_tests(paces), on="host", how="left")
        .sort("rank")
    )


def _host_tests(paces: pl.DataFrame) -> pl.DataFrame:
    """host, host_p: the chance that just its m ranks of n launch slower than all others (one in n
    over m permutations, where nothing tells ranks apart), or all of them slower than the median, as
    where other hosts are slow too, in as many steps; times two, corrected for the number of hosts.

    paces: rank, host, step, pace_ns, of a rank's launches in a step.
    """
    rows = paces.drop_nulls().with_columns(pl.col("pace_ns").median().over("step").alias("middle"))
    of_hosts = rows.group_by("step", "host").agg(
        pl.len().alias("m"), pl.col("middle").first(),
        pl.col("pace_ns").min().alias("least"), pl.col("pace_ns").max().alias("most"),
    )  # fmt: skip
    most, second = (pl.col("most").top_k(k).min().over("step") for k in (1, 2))
    others = pl.when(pl.col("most") < most).then(most).otherwise(second)
    trials = (
        of_hosts.with_columns(pl.col("m").sum().over("step").alias("n"), others.alias("others"))
        .filter(pl.col("m") < pl.col("n"))
        .group_by("host")
        .agg(
            pl.len().alias("steps"),
            (pl.col("least") > pl.col("others")).sum().alias("last"),
            (pl.col("least") > pl.col("middle")).sum().alias("slow"),
            pl.concat_list("n", "m").unique().alias("sizes"),
        )
        .sort("host")
    )
    p_values = []
    for row in trials.to_dicts():
        # Where ranks of steps differ, the likeliest outcome makes the test hard.
        last, slow = (
            max(math.comb(among, m) / math.comb(n, m) for n, m, among in sizes)
            for sizes in zip(*(((n, m, m), (n, m, n // 2)) for n, m in row["sizes"]), strict=True)
        )
        steps = row["steps"]
        tails = binomial_tail(steps, row["last"], last), binomial_tail(steps, row["slow"], slow)
        p_values.append(min(1.0, 2 * min(tails)))
    return trials.select("host", pl.Series("host_p", holm(p_values), pl.Float64))


_ROUNDS = 2000  # a wait is followed back over so many operations at most


@dataclass(frozen=True, slots=True)
class Waits:
    """last: a row per instance: instance, rank and step of the last one, by how much over the
    second (margin_ns), is_evidence (more than the clock error), wait_ns that all others waited with
    nothing else to do, caused_ns of all waits that ended up at it, linked_ns of those that end up
    at the operation itself, by a slow link. waits: instance, rank, wait_ns of the early members."""

    last: pl.DataFrame
    waits: pl.DataFrame


def waits_of(ops: pl.DataFrame, links: pl.DataFrame) -> Waits:
    """Waits of one capture.

    ops: a row per operation and rank: instance, rank, step, aligned_start_ns, aligned_end_ns,
    clock_error_ns, is_complete, exposed_ns, excess_ns, delay_ns (its operation was ready so much
    later than those at the same place of the program). links: instance, link_ns.
    """
    last_ns = pl.col("aligned_start_ns").max().over("instance")
    met = (
        ops.filter(pl.col("is_complete") & (pl.len().over("instance") > 1))
        .with_columns(last_ns.alias("last_ns"))
        .with_columns((pl.col("last_ns") - pl.col("aligned_start_ns")).alias("early_ns"))
    )
    last = (
        met.sort("instance", "early_ns", "rank")
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("rank").first(),
            pl.col("step").first(),
            pl.col("aligned_start_ns").first(),
            pl.col("excess_ns").first(),
            pl.col("early_ns").get(1).alias("margin_ns"),
            pl.col("clock_error_ns").max(),
        )
        .with_columns((pl.col("margin_ns") > pl.col("clock_error_ns")).alias("is_evidence"))
    )
    waits = _apart(met)
    return Waits(_followed_back(last, waits, ops, links), waits)


def _apart(met: pl.DataFrame) -> pl.DataFrame:
    """Waits of early members, each instant of a rank in one of them only, and none that a kernel
    of the rank fills."""
    begin, end = pl.col("aligned_start_ns"), pl.col("last_ns")
    reach = end.cum_max().shift(1).over("rank")
    return (
        met.filter(pl.col("early_ns") > pl.col("clock_error_ns"))
        .sort("rank", "aligned_start_ns", "instance")
        .with_columns((end - pl.max_horizontal(begin, reach)).clip(lower_bound=0).alias("wait_ns"))
        .with_columns(
            pl.min_horizontal("wait_ns", pl.col("exposed_ns").fill_null(pl.col("wait_ns")))
        )
        .select("instance", "rank", "step", "wait_ns")
        .filter(pl.col("wait_ns") > 0)
    )


def _followed_back(
    last: pl.DataFrame, waits: pl.DataFrame, ops: pl.DataFrame, links: pl.DataFrame
) -> pl.DataFrame:
    """`last` with wait_ns, caused_ns and linked_ns.

    Lateness of the last member is what it took longer than peers since the operation `before`
    (own_ns), what a slow link makes that one longer (link_ns, of `links`), and how late that one
    was ready: as long as the member waited in it, or by so much as it was ready later than at the
    same place of the program in other groups."""
    ended = (
        ops.filter(pl.col("exposed_ns").fill_null(1) > 0)
        .select("rank", "delay_ns", pl.col("instance").alias("before"), "aligned_end_ns",
                pl.col("excess_ns").alias("excess_before_ns"))
        .sort("aligned_end_ns", "before")
    )  # fmt: skip
    of_instance = waits.group_by("instance").agg(
        pl.col("wait_ns").sum(), pl.col("wait_ns").max().alias("late_ns")
    )
    waited = waits.select(
        pl.col("instance").alias("before"), "rank", pl.col("wait_ns").alias("waited_ns")
    )
    own_ns = pl.col("excess_ns") - pl.col("excess_before_ns").fill_null(0)
    table = (
        last.sort("aligned_start_ns")
        .join_asof(ended, left_on="aligned_start_ns", right_on="aligned_end_ns", by="rank",
                   strategy="backward", check_sortedness=False)
        .join(of_instance, on="instance", how="left")
        .join(waited, on=["before", "rank"], how="left")
        .join(links, on="instance", how="left")
        .with_columns(
            pl.max_horizontal("waited_ns", "delay_ns").fill_null(0).alias("ready_late_ns"),
            own_ns.clip(lower_bound=0).fill_null(0).alias("own_ns"),
            pl.col("wait_ns", "late_ns", "link_ns").fill_null(0),
        )
        .sort("instance")
    )  # fmt: skip
    number, before = table["instance"].to_numpy(), table["before"].fill_null(-1).to_numpy()
    place = np.searchsorted(number, before)
    place[place == len(number)] = 0
    is_known = number[place] == before if len(number) else np.zeros(0, bool)
    own, link, ready_late, wait, late = (
        table[name].to_numpy().astype(np.float64)
        for name in ("own_ns", "link_ns", "ready_late_ns", "wait_ns", "late_ns")
    )
    caused, linked = np.zeros(len(number)), np.zeros(len(number))
    at = np.flatnonzero(late > 0)
    left, each = late[at], wait[at] / late[at]  # of each wait; `each` of its ns stands for so many
    for _ in range(_ROUNDS):
        shares = np.minimum(own[at], left)
        np.add.at(caused, at, shares * each)
        left = left - shares
        going = is_known[at] & (left > 0)
        of, at, left, each = at[going], place[at[going]], left[going], each[going]
        shares = np.minimum(link[at], left)
        np.add.at(linked, at, shares * each)
        left = np.minimum(left - shares, ready_late[of])
        if not at.size:
            break
    return (
        table.with_columns(
            pl.Series("caused_ns", np.rint(caused).astype(np.int64)),
            pl.Series("linked_ns", np.rint(linked).astype(np.int64)),
        )
        .select(*last.columns, "wait_ns", "caused_ns", "linked_ns")
        .drop("excess_ns", "aligned_start_ns")
    )


def _link_delays(ops: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """instance, end_rank, ends, link_ns: by how much slow links of named ranks make an operation
    longer than those alike in groups without one, per byte; none where there are no such groups.
    `ends` is how many ranks share that."""
    named = links.select(
        pl.col("rank").alias("end_rank"), pl.col("other").fill_null(pl.col("rank"))
    ).unique()
    member = ops.filter("is_complete").select("instance", "rank").unique()
    hit = (
        named.join(member, left_on="end_rank", right_on="rank")
        .join(member, left_on=["instance", "other"], right_on=["instance", "rank"], how="semi")
        .select("instance", "end_rank")
        .unique()
        .with_columns(pl.len().over("instance").alias("ends"))
    )
    like = ("kind", "op_type", "rank_count")
    rated = (
        ops.filter("is_complete")
        .group_by("instance")
        .agg(
            pl.col("kind").first(),
            pl.col("op_type").min(),  # of the two sides of a transfer
            pl.len().alias("rank_count"),
            (pl.col("end_ns") - pl.col("start_ns")).min().alias("moving_ns"),
            pl.col("size_bytes").max().clip(lower_bound=1).fill_null(1),
        )
        .join(hit.select("instance").unique().with_columns(is_hit=True), on="instance", how="left")
        .with_columns((pl.col("moving_ns") / pl.col("size_bytes")).alias("per_byte_ns"))
        .with_columns(
            pl.col("per_byte_ns").filter(pl.col("is_hit").is_null()).median().over(like)
            .alias("usual_ns")
        )
        .with_columns(
            (pl.col("moving_ns") - pl.col("usual_ns") * pl.col("size_bytes"))
            .clip(lower_bound=0).alias("link_ns")
        )
    )  # fmt: skip
    return hit.join(rated.select("instance", "link_ns"), on="instance").drop_nulls("link_ns")


def _with_message(line: dict[str, Any]) -> dict[str, Any]:
    """A line of evidence with the message it is: what others say in their reader's language."""
    message = store_text(line["what"])
    return line if isinstance(message, str) else {**line, "message": msgspec.to_builtins(message)}
