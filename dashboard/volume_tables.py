"""What communication moves, as terminal tables: links, pairs of ranks, bandwidths, all-to-alls."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from .tables import Column, FittedTable, place_columns

_MOST_ROWS = 50  # of single ranks and steps
_MOST_PAIRS = 30
_MOST_RANKS = 16  # whose matrix fits into a terminal
_PLACE = ("run", "capture", "rank", "step")


def gigabytes_per_s(value: float | None) -> str:
    """Bytes per second as GB/s."""
    return UNKNOWN if value is None else f"{value / 1e9:.2f}"


def links_table(frame: pl.DataFrame, top: int | None = None) -> RenderableType:
    """Rows of `link_traffic`: means of a rank's step, then single ranks and steps where few."""
    single = FittedTable(
        [*place_columns(frame), *_link_columns(), Column("basis", "basis", None, 6)],
        frame.to_dicts(),
        "Traffic of each rank and step by link",
        "GB/s of a single link; small: time in packets below 32 MB (RDMA: 0.5 MB)",
    )
    if frame.select(_PLACE).n_unique() < 2:
        return single
    over = frame.select("run", "capture", "rank", "step").n_unique()
    speed = pl.col("bandwidth_bytes_per_s")
    means = (
        frame.group_by("kind", "op_type", "link", maintain_order=True)
        .agg(
            *(pl.col(name).sum() / over for name in ("size_bytes", "packet_count", "op_count")),
            pl.when(pl.col("time_ns").count() > 0).then(pl.col("time_ns").sum() / over),
            _mean("peak_ratio", "size_bytes"),
            _mean("small_time_ratio", "time_ns"),
            pl.when(pl.col("unaligned_count").count() > 0).then(pl.col("unaligned_count").sum()),
            worst_rank=pl.col("rank").sort_by(speed, nulls_last=True).first(),
            worst_bytes_per_s=speed.min(),
            timed_bytes=pl.col("size_bytes").filter(pl.col("time_ns") > 0).sum() / over,
        )
        .with_columns(bandwidth_bytes_per_s=pl.col("timed_bytes") * 1e9 / pl.col("time_ns"))
        .sort("size_bytes", descending=True)
    )
    ranks = frame["rank"].n_unique()
    columns = _link_columns()
    if ranks > 1:
        columns += [
            Column("slowest rank", "worst_rank", plain, 2),
            Column("its GB/s", "worst_bytes_per_s", gigabytes_per_s, 2),
        ]
    table = FittedTable(
        columns,
        means.head(top or means.height).to_dicts(),
        f"Traffic by link: of a rank's step (mean of {_counted(frame)})",
        "GB/s of a single link; small: time in packets below 32 MB (RDMA: 0.5 MB)",
    )
    if frame.height > _MOST_ROWS:
        return Group(table, "of one rank or step: --rank N, --step N; all rows: --json")
    return Group(table, "", single)


def _link_columns() -> list[Column]:
    return [
        Column("kind", "kind"),
        Column("operation", "op_type"),
        Column("link", "link"),
        Column("MB", "size_bytes", megabytes),
        Column("ms", "time_ns", ms),
        Column("GB/s", "bandwidth_bytes_per_s", gigabytes_per_s),
        Column("of peak", "peak_ratio", percent, 1),
        Column(
            "packets",
            "packet_count",
            lambda value: UNKNOWN if value is None else f"{value:,.0f}",
            3,
        ),
        Column("small", "small_time_ratio", percent, 4),
        Column("unaligned", "unaligned_count", number, 5),
    ]


def matrix_table(frame: pl.DataFrame, top: int | None = None) -> RenderableType:
    """Rows of `rank_matrix`: bytes from rank to rank as a square where it fits, then pairs."""
    steps = max(frame["step"].n_unique(), 1)
    keys = [
        "kind",
        "src_rank",
        "dst_rank",
        "link",
        "is_between_hosts",
        "src_group_rank",
        "dst_group_rank",
    ]
    pairs = (
        frame.group_by(keys, maintain_order=True)
        .agg(
            pl.col("size_bytes").sum() / steps,
            pl.when(pl.col("time_ns").count() > 0).then(pl.col("time_ns").sum() / steps),
            timed_bytes=pl.col("size_bytes").filter(pl.col("time_ns") > 0).sum() / steps,
        )
        .with_columns(bandwidth_bytes_per_s=pl.col("timed_bytes") * 1e9 / pl.col("time_ns"))
        .sort("size_bytes", descending=True)
    )
    columns = [
        Column("kind", "kind"),
        *_ends(frame),
        Column("link", "link"),
        Column("hosts", "hosts", None, 2, is_word=True),
        Column("MB", "size_bytes", megabytes),
        Column("ms", "time_ns", ms),
        Column("GB/s", "bandwidth_bytes_per_s", gigabytes_per_s),
    ]
    hosts = (
        pl.when("is_between_hosts")
        .then(pl.lit("between"))
        .when(pl.col("is_between_hosts").not_())
        .then(pl.lit("inside"))
    )
    shown = pairs.with_columns(hosts=hosts).head(top or _MOST_PAIRS)
    caption = (
        f"and {pairs.height - shown.height} more: --json" if pairs.height > shown.height else None
    )
    table = FittedTable(
        columns, shown.to_dicts(), "Pairs of ranks that exchange most (per step)", caption
    )
    square = _square(pairs)
    return table if square is None else Group(square, "", table)


def _ends(frame: pl.DataFrame) -> list[Column]:
    if frame["src_rank"].null_count() == 0 and frame["dst_rank"].null_count() == 0:
        return [Column("from", "src_rank", plain), Column("to", "dst_rank", plain)]
    return [
        Column("from", "src_rank", plain),
        Column("to", "dst_rank", plain),
        Column("from place", "src_group_rank", plain, 1),
        Column("to place", "dst_group_rank", plain, 1),
    ]


def _square(pairs: pl.DataFrame) -> FittedTable | None:
    known = pairs.drop_nulls(["src_rank", "dst_rank"])
    ranks = sorted({*known["src_rank"], *known["dst_rank"]})
    if len(ranks) < 2 or len(ranks) > _MOST_RANKS:
        return None
    sums = known.group_by("src_rank", "dst_rank").agg(pl.col("size_bytes").sum())
    size = {(src, dst): value for src, dst, value in sums.iter_rows()}
    rows = [{"from": src, **{str(dst): size.get((src, dst)) for dst in ranks}} for src in ranks]
    columns = [
        Column("from \\ to", "from", plain),
        *(Column(str(rank), str(rank), _whole_megabytes) for rank in ranks),
    ]
    return FittedTable(columns, rows, "MB from rank to rank (per step, all kinds and links)")


def _whole_megabytes(value: float | None) -> str:
    return "·" if value is None else f"{value / 1e6:,.1f}"


def bandwidth_table(frame: pl.DataFrame, top: int | None = None) -> FittedTable:
    """Rows of `bandwidth`."""
    columns = [
        *place_columns(frame),
        Column("kind", "kind"),
        Column("operation", "op_type"),
        Column("ops", "op_count", number, 2),
        Column("MB", "size_bytes", megabytes),
        Column("MB on links", "link_bytes", megabytes),
        Column("transfer ms", "transit_ns", ms),
        Column("algorithm GB/s", "algorithm_bandwidth_bytes_per_s", gigabytes_per_s),
        Column("bus GB/s", "bus_bandwidth_bytes_per_s", gigabytes_per_s),
    ]
    caption = "algorithm: MB / transfer; bus: MB on links / transfer, as HCCL measured them"
    rows = frame if top is None else frame.group_by(_PLACE, maintain_order=True).head(top)
    return FittedTable(columns, rows.to_dicts(), "Bandwidth of operations", caption)


def contention_table(frame: pl.DataFrame, top: int | None = None) -> FittedTable:
    """Rows of `contention` that have both sides."""
    columns = [
        *place_columns(frame),
        Column("operation", "op_type"),
        Column("link", "link"),
        Column("ops beside", "beside_count", number, 2),
        Column("GB/s beside", "beside_bandwidth_bytes_per_s", gigabytes_per_s),
        Column("ops alone", "alone_count", number, 2),
        Column("GB/s alone", "alone_bandwidth_bytes_per_s", gigabytes_per_s),
        Column("slowdown", "slowdown_ratio", lambda value: f"{value:.3f}"),
    ]
    rows = frame.drop_nulls("slowdown_ratio").sort("slowdown_ratio", descending=True)
    shown = rows.head(top or _MOST_ROWS)
    left = f"and {rows.height - shown.height} more; " if rows.height > shown.height else ""
    caption = f"{left}beside: compute covers half of it or more; alone: less than a tenth"
    title = "Bandwidth of links beside compute and without it"
    return FittedTable(columns, shown.to_dicts(), title, caption)


def hierarchy_table(frame: pl.DataFrame, top: int | None = None) -> FittedTable:
    """Rows of `hierarchy`."""
    columns = [
        Column("kind", "kind"),
        Column("group", "group_hash", None, 3),
        Column("ranks", "group_size", number),
        Column("recorded", "rank_count", number, 1),
        Column("hosts", "host_count", number),
        Column("MB", "size_bytes", megabytes),
        Column("between hosts", "between_hosts_bytes", megabytes),
        Column("all-gather", "all_gather_bytes", megabytes),
        Column("once per host", "host_deduplicated_bytes", megabytes),
        Column("once per rank", "rank_deduplicated_bytes", megabytes),
    ]
    caption = "the last three: MB between hosts of other schemes, for uniform routing"
    rows = frame.head(top or frame.height)
    return FittedTable(columns, rows.to_dicts(), "All-to-all of a step (MB)", caption)


def _mean(name: str, weight: str) -> pl.Expr:
    known = pl.col(name).is_not_null()
    sums = (pl.col(name) * pl.col(weight)).sum() / pl.col(weight).filter(known).sum()
    return pl.when(known.any()).then(sums).alias(name)


def _counted(frame: pl.DataFrame) -> str:
    found: Sequence[tuple[int, str]] = (
        (frame["rank"].n_unique(), "rank"), (frame["step"].n_unique(), "step"),
    )  # fmt: skip
    return ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in found)
