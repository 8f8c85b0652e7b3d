"""What is peculiar to a rank: how it differs from its peers, whoever waits for whom.

From summaries alone: kernels by shape (the same kernels slower?), frequency, pace of the host,
bytes of all-to-alls and time of grouped matmuls. Ratios are of the rank over its peers, 1 where
nothing is different, medians over steps.
"""

from __future__ import annotations

import duckdb
import polars as pl

from ...views import frame, where
from .straggler_tests import peers_value

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
_GROUPED = """
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
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Traits of the ranks of one capture, a row per rank; and the trials of its kernels, on cube
    cores and on others.

    stages: rank, stage; hosts: rank, host. Columns of the first: rank, stage, host, and, NULL where
    unknown, `x_ratio` with `x` (the rank's figure) and `x_peers` for kernel (cube and other cores),
    frequency, launch, gap, bytes, grouped; idle_ratio (idle time over that of the peers, in
    steps), cube_excess_ns and other_excess_ns per step. The second: part, trial, rank, value.
    """
    clause, values = where({"run": run, "capture": capture})
    ranks = stages.join(hosts, on="rank", how="left")
    kernels = _same_kernels(frame(con, _KERNELS.format(where=clause), values), stages)
    work = frame(con, _WORK.format(where=clause), values).join(ranks, on="rank")
    found = (
        ranks.join(_kernel_ratios(kernels), on="rank", how="left")
        .join(_paces(work), on="rank", how="left")
        .join(
            _loads(
                frame(con, _BYTES.format(where=clause), values),
                frame(con, _GROUPED.format(where=clause), values),
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
    return found, trials


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
    steps = kernels["step"].n_unique()
    by_part = (
        kernels.with_columns(_PART)
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
    both = sizes.join(grouped, on=["rank", "step"], how="left").filter(
        pl.len().over("group_hash", "step") > 1
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
