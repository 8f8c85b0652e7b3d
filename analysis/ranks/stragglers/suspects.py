"""Who is a suspect, and of what: traits, tests and links made into a verdict with its evidence.

A rank is named only where it is slower than its peers more often than chance would have it *and*
by an amount that matters; then the trait that explains it is the verdict.

    frequency       cube cores run at a lower frequency, kernels are slower accordingly
    compute         the same kernels take longer at the same frequency
    alltoall_bytes  more bytes in its all-to-alls, longer grouped matmuls
    host            launches come further apart and the device idles; kernels are as fast
    link            transfers of the same size take longer; others do not wait at the start
    unknown         slower than its peers, and none of these

What is peculiar to a rank: how it differs from its peers, whoever waits for whom.

From summaries alone: kernels by shape (the same kernels slower?), frequency, pace of the host,
bytes of all-to-alls and time of grouped matmuls. Ratios are of the rank over its peers, 1 where
nothing is different, medians over steps.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Literal

import duckdb
import polars as pl

from npuscope.messages import Message

from ...scope import Scope
from ...views import frame
from .straggler_tests import SURE, WITHIN_STEPS, peers_value

Verdict = Literal["host", "compute", "frequency", "alltoall_bytes", "link", "unknown"]

MATTERS = 0.02  # of a rank's own time, or of a step
_RESIDUE = 0.04
# From half of what makes kernels "slower": less is in the steps of clock readings. And beyond what
# the clocks of the others scatter, as readings by cycles do, in standard deviations.
_LOWER_FREQUENCY = 0.985
_SCATTER = 3.0
_READING = 0.003  # relative error of a clock reading at least
_SCATTER_KNOWN = 4  # other ranks, for their scatter to tell how sure a low clock is
_IN_PROPORTION = 0.4  # slower by at least so much of what the frequency explains, and the reverse
_SLOWER_KERNELS = 1.03
_EXPLAINS = 0.4  # of its lateness, by slower kernels
_CONSISTENT = 0.1
_MORE_BYTES = 1.05
_SLOWER_LAUNCHES = 1.3
_WIDER_GAPS = 2.0
_LOAD_MATTERS = 0.01  # longer grouped matmuls, of its own time
_LINK_MATTERS = 0.005
_HOST_MATTERS = 0.01  # idle, of a step, where a whole host is late: waiting hides much of it
_LOAD_SURE = 0.01  # bytes are counted, not measured: they have no noise to mistake
_HOST_SURE = 0.01  # two steps of four ranks of eight have a smaller chance, one has none
_MOST_RANKS = 0.5  # of a host, for the host to be named
_SCORE_AT_MOST = 99.0

Evidence = list[dict[str, Any]]


def judge_ranks(
    ranks: pl.DataFrame, links: pl.DataFrame, *, step_count: int
) -> list[dict[str, Any]]:
    """A verdict per rank: rank, score, verdict (None: no suspect), evidence.

    ranks: traits with the results of the tests: own_p, cube_p, other_p, load_p, host_p, trial_count
    and slowest_count of the own work, own_ns, peers_ns, excess_ratio, late_steps_ratio. links: as
    `blame_ends` gives them. `score` is -log10 of the smallest corrected p-value, at most 99.
    """
    rows = ranks.to_dicts()
    hosts = _slow_hosts(rows)
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for link in links.to_dicts():
        by_rank.setdefault(link["rank"], []).append(link)
    rows_of_ranks: list[dict[str, Any]] = []
    for row in rows:
        scatter = _clock_scatter(row, rows)
        verdict, evidence, p_value = _judge(
            row, hosts, by_rank.get(row["rank"], []), step_count, scatter
        )
        score = _SCORE_AT_MOST if p_value <= 0 else min(_SCORE_AT_MOST, -math.log10(p_value))
        rows_of_ranks.append(
            {
                "rank": row["rank"],
                "score": max(0.0, score),
                "verdict": verdict,
                "evidence": evidence,
            }
        )
    return rows_of_ranks


def _judge(
    row: dict[str, Any],
    hosts: dict[str, Evidence],
    links: list[dict[str, Any]],
    step_count: int,
    clock_scatter: tuple[float, float],
) -> tuple[Verdict | None, Evidence, float]:
    own_p = _or_else(row["own_p"], 1.0)
    kernel_p = min(_or_else(row["cube_p"], 1.0), _or_else(row["other_p"], 1.0))
    excess = _or_else(row["excess_ratio"], 0.0)
    is_late = own_p <= SURE and excess >= MATTERS
    p_value = min(own_p, kernel_p)
    length_ns = _or_else(row["length_ns"], 0.0)
    own_ns = _or_else(row["own_ns"], length_ns)
    own = [
        _line("own time per step", row["own_ns"], row["peers_ns"], "ns"),
        {**_line("work items in which it was the slowest", row["slowest_count"], None, "pieces"),
         "of": row["trial_count"]},
    ] if row["own_ns"] is not None else []  # fmt: skip
    kernels = [
        _line("same kernels on cube cores, duration over peers", row["cube_ratio"], 1.0, "ratio"),
        _line("same kernels on other cores, duration over peers", row["other_ratio"], 1.0, "ratio"),
    ]
    frequency = _line("AI core frequency", row["frequency_mhz"], row["frequency_mhz_peers"], "MHz")
    slowest_kernels = max(_or_else(row["cube_ratio"], 1.0), _or_else(row["other_ratio"], 1.0))
    frequency_ratio = _or_else(row["frequency_ratio"], 1.0)
    scatter, clock_p = clock_scatter
    slower_clock, slower_kernels = 1 / frequency_ratio - 1, slowest_kernels - 1
    if (
        frequency_ratio <= min(_LOWER_FREQUENCY, 1 - _SCATTER * scatter)
        and slower_kernels >= _IN_PROPORTION * slower_clock
        and slower_clock >= _IN_PROPORTION * slower_kernels
        and (kernel_p <= SURE or is_late or clock_p <= SURE)
    ):
        chance = p_value if p_value <= SURE else min(p_value, clock_p)
        return "frequency", _present([frequency, *kernels, *own]), chance
    if any(_is_slower(row, part, is_late=is_late) for part in ("cube", "other")):
        return "compute", _present([*kernels, frequency, *own]), p_value
    load_p = _or_else(row["load_p"], 1.0)
    grouped_ns = _or_else(row["grouped_ns"], 0.0) - _or_else(row["grouped_peers_ns"], 0.0)
    if (
        (is_late or (load_p <= _LOAD_SURE and grouped_ns >= _LOAD_MATTERS * own_ns))
        and _or_else(row["bytes_ratio"], 1.0) >= _MORE_BYTES
        and _or_else(row["grouped_ratio"], 1.0) >= _MORE_BYTES
    ):
        load = [
            _line("bytes of all-to-alls per step", row["size_bytes"], row["bytes_peers"], "bytes"),
            _line("grouped matmuls per step", row["grouped_ns"], row["grouped_peers_ns"], "ns"),
        ]
        return "alltoall_bytes", _present([*load, *own, *kernels]), min(p_value, load_p)
    pace = [
        _line("from launch to launch", row["launch_interval_ns"], row["launch_peers_ns"], "ns"),
        _line("gap between kernels", row["kernel_gap_ns"], row["gap_peers_ns"], "ns"),
        _line("idle per step", row["free_ns"], row["free_peers_ns"], "ns"),
    ]
    if row["host"] in hosts and launches_late(row):
        evidence = [*hosts[row["host"]], *pace, *kernels, *own]
        return "host", _present(evidence), min(p_value, _or_else(row["host_p"], 1.0))
    if is_late and launches_late(row) and _or_else(row["idle_ratio"], 0.0) >= MATTERS:
        return "host", _present([*pace, *kernels, *own]), p_value
    named = [
        link for link in links
        if link["p_value"] <= SURE
        and link["excess_ns"] / step_count >= _LINK_MATTERS * max(length_ns, 1.0)
    ]  # fmt: skip
    if named:
        lines = [line for link in named for line in _link_lines(link, step_count)]
        return "link", _present([*lines, *own]), min(p_value, *(link["p_value"] for link in named))
    if is_late and excess >= _RESIDUE:
        return "unknown", _present([*own, *kernels, frequency, *pace]), p_value
    return None, [], p_value


def _clock_scatter(row: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Standard deviation of the other ranks' clocks, relative, by their median deviation; and the
    chance of a clock as low as this rank's among them all, 1 where they are too few to tell."""
    others = [
        one["frequency_ratio"] for one in rows
        if one is not row and one["frequency_ratio"] is not None
    ]  # fmt: skip
    if row["frequency_ratio"] is None or not others:
        return 0.0, 1.0
    middle = statistics.median(others)
    scatter = max(1.4826 * statistics.median(abs(one - middle) for one in others), _READING)
    if len(others) < _SCATTER_KNOWN:
        return scatter, 1.0
    tail = 0.5 * math.erfc((middle - row["frequency_ratio"]) / scatter / math.sqrt(2))
    return scatter, min(1.0, tail * len(rows))


def _is_slower(row: dict[str, Any], part: str, *, is_late: bool) -> bool:
    """Whether the same kernels on these cores take longer, surely and by what matters: by their own
    test, or by a weaker one where the rank is late and they explain much of it."""
    excess_ns = _or_else(row[f"{part}_excess_ns"], 0.0)
    share = excess_ns / max(_or_else(row["compared_ns"], 1.0), 1.0)
    if _or_else(row[f"{part}_ratio"], 1.0) < _SLOWER_KERNELS or share < MATTERS:
        return False
    p_value = _or_else(row[f"{part}_p"], 1.0)
    late_ns = _or_else(row["own_ns"], 0.0) - _or_else(row["peers_ns"], 0.0)
    explains = excess_ns >= _EXPLAINS * late_ns
    return p_value <= SURE or (is_late and explains and p_value <= _CONSISTENT)


def launches_late(row: dict[str, Any]) -> bool:
    """Whether launches come further apart than elsewhere; by gaps where launches are unknown."""
    if row["launch_ratio"] is not None:
        return bool(row["launch_ratio"] >= _SLOWER_LAUNCHES)
    return _or_else(row["gap_ratio"], 1.0) >= _WIDER_GAPS


def _slow_hosts(rows: list[dict[str, Any]]) -> dict[str, Evidence]:
    """Hosts of which most ranks launch late, surely, and idle for it: on average, as a rank that
    waits for others anyway has time to be late."""
    hosts: dict[str, Evidence] = {}
    for host in sorted({row["host"] for row in rows if row["host"] is not None}):
        mine = [row for row in rows if row["host"] == host]
        bound = [row for row in mine if launches_late(row)]
        is_sure = any(_or_else(row["host_p"], 1.0) <= _HOST_SURE for row in bound)
        idle = sum(_or_else(row["idle_ratio"], 0.0) for row in bound)
        is_idle = idle >= _HOST_MATTERS * len(bound)
        if bound and is_sure and is_idle and len(bound) >= _MOST_RANKS * len(mine):
            hosts[host] = [
                _line(
                    Message("ranks of host {host} that launch late", host=host),
                    len(bound),
                    len(mine),
                    "ranks",
                )
            ]
    return hosts


def _link_lines(link: dict[str, Any], step_count: int) -> Evidence:
    ends = Message("all its links")
    if link["other"] is not None:
        ends = Message("the link with rank {rank}", rank=link["other"])
    place = {"link": link["link"], "ends": ends}
    rate = Message("{link}, {ends}: rate", **place)
    slow = Message("{link}, {ends}: slow pairs", **place)
    over = Message("{link}, {ends}: transfer time over the others' rate per step", **place)
    return [
        _line(rate, link["bandwidth_bytes_per_s"], link["usual_bytes_per_s"], "bytes/s"),
        _line(slow, link["slow_pair_count"], link["pair_count"], "pairs"),
        _line(over, link["excess_ns"] / step_count, 0.0, "ns"),
    ]


def _line(what: str, value: float | None, peers: float | None, unit: str) -> dict[str, Any]:
    return {"what": what, "value": value, "peers": peers, "unit": unit}


def _present(lines: Evidence) -> Evidence:
    """Lines with a value; figures as floats."""
    return [
        {**line, "value": float(line["value"]),
         "peers": None if line["peers"] is None else float(line["peers"])}
        for line in lines if line["value"] is not None
    ]  # fmt: skip


def _or_else(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


_CUBE = ("AI_CORE", "MIX_AIC")
_OFF_CORES = ("AI_CPU", "DSA_SQE")
_PART = (
    pl.when(pl.col("core").is_in(_CUBE).fill_null(False))
    .then(pl.lit("cube"))
    .otherwise(pl.lit("other"))
    .alias("part")
)
_KERNELS = """
select rank, coalesce(step, -1) as step, by_key, key, core, count, total_ns, mean_ns
from kernel_summary {where} and by_key in ('shape', 'name') and key is not null"""
_GROUPS = """
select rank, coalesce(step, -1) as step, sum(total_ns)::bigint as grouped_ns from kernel_summary
{where} and by_key = 'type' and key ilike '%groupedmatmul%' group by all"""
_BYTES = """
select rank, coalesce(step, -1) as step, group_hash, sum(size_bytes)::bigint as size_bytes
from comm_summary {where} and by_key = 'op' and op_type in ('allToAll', 'allToAllV') group by all"""
_WORK = """
select w.rank, coalesce(w.step, -1) as step, kernel_gap_ns, launch_interval_ns, kernel_count,
    coalesce(frequency_mhz, cycles_mhz) as frequency_mhz, s.free_ns, s.computing_ns,
    s.end_ns - s.start_ns as length_ns
from (select * from rank_work {where}) as w
left join step_summary as s on s.run = w.run and s.capture = w.capture and s.rank = w.rank
    and s.step is not distinct from w.step"""


def traits(
    con: duckdb.DuckDBPyConnection,
    stages: pl.DataFrame,
    hosts: pl.DataFrame,
    *,
    run: str,
    capture: str,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Traits of the ranks of one capture, a row per rank; the trials of its kernels, on cube cores
    and on others; and how far apart a rank's launches are in each step (rank, host, step, pace_ns;
    by gaps between kernels where launches are unknown).

    stages: rank, stage; hosts: rank, host. Columns of the first: rank, stage, host, and, NULL where
    unknown, `x_ratio` with `x` (the rank's figure) and `x_peers` for kernel (cube and other cores),
    frequency, launch, gap, bytes, grouped; idle_ratio (idle time over that of the peers, in
    steps), cube_excess_ns and other_excess_ns per step. The second: part, trial, rank, value.
    """
    clause, values = Scope(run, capture).where()
    ranks = stages.join(hosts, on="rank", how="left")
    kernels = _same_kernels(frame(con, _KERNELS.format(where=clause), values), stages)
    work = frame(con, _WORK.format(where=clause), values).filter(WITHIN_STEPS)
    work = work.join(ranks, on="rank")
    rows = (
        ranks.join(_kernel_ratios(kernels), on="rank", how="left")
        .join(_paces(work), on="rank", how="left")
        .join(
            _loads(
                frame(con, _BYTES.format(where=clause), values),
                frame(con, _GROUPS.format(where=clause), values),
            ),
            on="rank",
            how="left",
        )
    )
    trials = kernels.select(
        _PART,
        pl.struct("peer_set", "step", "key", "core", "count").rank("dense").alias("trial"),
        "rank", pl.col("mean_ns").alias("value"),
    )  # fmt: skip
    pace = pl.coalesce("launch_interval_ns", "kernel_gap_ns").alias("pace_ns")
    return rows, trials, work.select("rank", "host", "step", pace)


def _same_kernels(kernels: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Kernels that several ranks ran alike, with the mean duration of the peers."""
    by = "shape" if (kernels["by_key"] == "shape").any() else "name"
    stage_size = pl.len().over("stage")
    # Stages of one rank have peers in the others: a kernel of one shape is the same everywhere.
    sets = stages.select(
        "rank", pl.when(stage_size.max() > 1).then("stage").otherwise(-1).alias("peer_set")
    )
    alike = ["peer_set", "step", "key", "core", "count"]
    return (
        kernels.filter(pl.col("by_key") == by, ~pl.col("core").is_in(_OFF_CORES).fill_null(False))
        .join(sets, on="rank")
        .filter(pl.len().over(alike) > 1)
        .with_columns(peers_value("mean_ns", *alike).alias("peers_ns"))
        .with_columns((pl.col("mean_ns") / pl.col("peers_ns")).alias("ratio"))
    )


def _kernel_ratios(kernels: pl.DataFrame) -> pl.DataFrame:
    """rank, cube_ratio, other_ratio (medians weighted by time), the time per step of the kernels
    compared (compared_ns), and how much more than the peers' it is by these ratios (cube_excess_ns,
    other_excess_ns: a hiccup in one kernel is none)."""
    within = kernels.filter(WITHIN_STEPS)
    steps = within["step"].n_unique()
    by_part = (
        within.with_columns(_PART)
        .sort("rank", "part", "ratio")
        .with_columns(
            pl.col("total_ns").cum_sum().over("rank", "part").alias("upto_ns"),
            pl.col("total_ns").sum().over("rank", "part").alias("part_ns"),
        )
        .filter(pl.col("upto_ns") * 2 >= pl.col("part_ns"))
        .group_by("rank", "part", maintain_order=True)
        .agg(pl.col("ratio").first(), pl.col("part_ns").first() / steps)
    )
    excess_ns = (pl.col("ratio") - 1).clip(lower_bound=0) * pl.col("part_ns") / pl.col("ratio")
    own = {name: pl.col("part") == name for name in ("cube", "other")}
    return by_part.group_by("rank").agg(
        *(
            pl.col("ratio").filter(mine).first().alias(f"{name}_ratio")
            for name, mine in own.items()
        ),
        *(excess_ns.filter(mine).sum().alias(f"{name}_excess_ns") for name, mine in own.items()),
        pl.col("part_ns").sum().alias("compared_ns"),
    )


def _paces(work: pl.DataFrame) -> pl.DataFrame:
    """Frequency against all ranks; pace of the host against the ranks of other hosts, where there
    are some, else against all others."""
    by_rank = work.group_by("rank", "stage", "host").agg(
        pl.col("frequency_mhz", "launch_interval_ns", "kernel_gap_ns", "free_ns", "length_ns")
        .median()
    )  # fmt: skip
    rows = [
        _elsewhere(by_rank, host, stage)
        for host, stage in by_rank.select("host", "stage")
        .unique()
        .sort("host", "stage")
        .iter_rows()
    ]
    others = pl.concat(rows) if rows else pl.DataFrame(schema=_ELSEWHERE)
    return (
        by_rank.join(others, on=["host", "stage"], how="left", nulls_equal=True)
        .with_columns(pl.lit(0).alias("all"))
        .with_columns(peers_value("frequency_mhz", "all").alias("frequency_mhz_peers"))
        .select(
            "rank", "frequency_mhz", "frequency_mhz_peers",
            (pl.col("frequency_mhz") / pl.col("frequency_mhz_peers")).alias("frequency_ratio"),
            "launch_interval_ns", "launch_peers_ns",
            (pl.col("launch_interval_ns") / pl.col("launch_peers_ns")).alias("launch_ratio"),
            "kernel_gap_ns", "gap_peers_ns",
            (pl.col("kernel_gap_ns") / pl.max_horizontal("gap_peers_ns", 1.0)).alias("gap_ratio"),
            "free_ns", "free_peers_ns", "length_ns",
            ((pl.col("free_ns") - pl.col("free_peers_ns")) / pl.col("length_ns"))
            .alias("idle_ratio"),
        )
    )  # fmt: skip


_ELSEWHERE = {
    "host": pl.String, "stage": pl.Int64, "launch_peers_ns": pl.Float64,
    "gap_peers_ns": pl.Float64, "free_peers_ns": pl.Float64,
}  # fmt: skip


def _elsewhere(by_rank: pl.DataFrame, host: str | None, stage: int) -> pl.DataFrame:
    """What the ranks of other hosts have, those of the stage where there are some."""
    others = by_rank.filter(~pl.col("host").eq_missing(pl.lit(host)))
    others = others if others.height else by_rank
    same_stage = others.filter(pl.col("stage") == stage)
    idle = same_stage if same_stage.height else others
    return pl.DataFrame(
        {
            "host": [host], "stage": [stage],
            "launch_peers_ns": [others["launch_interval_ns"].median()],
            "gap_peers_ns": [others["kernel_gap_ns"].median()],
            "free_peers_ns": [idle["free_ns"].median()],
        },
        schema=_ELSEWHERE,
    )  # fmt: skip


def _loads(sizes: pl.DataFrame, grouped: pl.DataFrame) -> pl.DataFrame:
    """Bytes of all-to-alls against the other members of the group, and time of grouped matmuls."""
    both = (
        sizes.filter(WITHIN_STEPS)
        .join(grouped, on=["rank", "step"], how="left")
        .filter(pl.len().over("group_hash", "step") > 1)
    )
    key = ("group_hash", "step")
    return (
        both.with_columns(
            peers_value("size_bytes", *key).alias("bytes_peers"),
            peers_value("grouped_ns", *key).alias("grouped_peers_ns"),
        )
        .group_by("rank")
        .agg(
            pl.col("size_bytes").median(),
            pl.col("bytes_peers").median(),
            (pl.col("size_bytes") / pl.col("bytes_peers")).median().alias("bytes_ratio"),
            pl.col("grouped_ns").median(),
            pl.col("grouped_peers_ns").median(),
            (pl.col("grouped_ns") / pl.col("grouped_peers_ns")).median().alias("grouped_ratio"),
        )
    )
