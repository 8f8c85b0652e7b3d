"""Communication as terminal tables: what takes long, what of it is exposed, what waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.means import means_of_fewer
from npuscope.analysis.scope import PLACE
from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from .tables import Column, FittedTable, decimals, place_columns

_MOST_ROWS = 50  # of single ranks and steps
_KEYS = {"kind": "kind", "op_type": "operation", "group_hash": "group"}
_EXPOSED_NOTE = "exposed: outside compute, split evenly among simultaneous operations"
_HCCL_NOTE = "transfer, wait: HCCL's own"


def masking_table(
    frame: pl.DataFrame, means: pl.DataFrame, top: int | None = None
) -> RenderableType:
    """Rows of `comm`, and of `mean_comm` before them where there are several ranks or steps.

    `top` rows of each are shown (None: all). Single ranks and steps stand where they are few.
    """
    keys = [name for name in _KEYS if name in frame.columns]
    single = _single(frame, keys, top)
    return _after_means(frame, single, means, lambda rows, of: _means(rows, keys, top, of))


def _after_means(
    frame: pl.DataFrame,
    single: FittedTable,
    means: pl.DataFrame,
    table_of: Callable[[pl.DataFrame, str], FittedTable],
) -> RenderableType:
    """Tables of means, one per capture, then single ranks and steps where they are few; only these
    where there is one of them."""
    if frame.select(PLACE).n_unique() < 2:
        return single
    captures = means.partition_by("run", "capture", maintain_order=True)
    names = [", {} {}".format(*rows.row(0)) if len(captures) > 1 else "" for rows in captures]
    tables = [table_of(rows, of) for rows, of in zip(captures, names, strict=True)]
    if len(single.rows) > _MOST_ROWS:
        return Group(*tables, "of one rank or step: --rank N, --step N; all rows: --json")
    return Group(*(part for table in tables for part in (table, "")), single)


def _over(rows: pl.DataFrame) -> str:
    """What rows of a mean are of, and over. Without steps they are sums of the whole capture."""
    first = rows.row(0, named=True)
    ranks = f"mean of {count_words(first['rank_count'], 'rank')}"
    if not first["step_count"]:
        return f"a rank's whole capture ({ranks}, no steps)"
    return f"a rank's step ({ranks}, {count_words(first['step_count'], 'step')})"


def _single(frame: pl.DataFrame, keys: Sequence[str], top: int | None) -> FittedTable:
    rows = frame
    if top is not None:
        nth = pl.int_range(pl.len()).over(PLACE)
        rows = rows.filter(nth < top)
    columns = [
        *place_columns(frame),
        *_key_columns(keys),
        Column("ops", "op_count", number),
        *_time_columns(),
        Column("MB", "size_bytes", megabytes, 3),
    ]
    title = f"Communication of each rank and step by {_name_of(keys)} (ms)"
    return FittedTable(columns, rows.to_dicts(), title, f"{_EXPOSED_NOTE}; {_HCCL_NOTE}")


def _means(rows: pl.DataFrame, keys: Sequence[str], top: int | None, capture: str) -> FittedTable:
    """Ranks have groups of their own, so groups are only counted."""
    has_groups = "group_hash" in keys
    columns = [
        *_key_columns([name for name in keys if name != "group_hash"]),
        *([Column("groups", "group_count", number, 3)] if has_groups else []),
        Column("ops", "op_count", decimals("{:,.1f}")),
        *_time_columns(),
        Column("MB", "size_bytes", megabytes, 3),
    ]
    if rows["rank_count"][0] > 1:
        columns[-1:-1] = [
            Column("worst rank", "worst_rank", plain, 2),
            Column("its exposed", "worst_exposed_attributed_ns", ms, 1),
        ]
    title = f"Communication by {_name_of(keys)}{capture}: ms of {_over(rows)}"
    fewer = means_of_fewer(rows, {"transit": "transfer", "wait": "wait", "size": "MB"})
    caption = "; ".join(part for part in (fewer, _EXPOSED_NOTE, _HCCL_NOTE) if part)
    if top is not None and rows.height > top:
        caption = f"and {rows.height - top} more; {caption}"
    return FittedTable(columns, rows.head(top or rows.height).to_dicts(), title, caption)


def stretch_table(frame: pl.DataFrame) -> FittedTable:
    """Rows of `compute_stretch`."""
    columns = [
        *place_columns(frame),
        Column("kernels beside", "overlapped_kernel_count", number, 2),
        Column("their time", "overlapped_ns", ms),
        Column("compared", "compared_ns", ms, 1),
        Column("alone", "expected_ns", ms, 1),
        Column("stretch", "stretch_ratio", decimals("{:.3f}")),
        Column("extra", "extra_ns", ms),
        Column("masked", "masked_ns", ms),
        Column("net gain", "net_gain_ns", ms),
    ]
    caption = "alone: duration of the compared kernels without communication; net: masked - extra"
    title = "Kernels during communication, and what overlap gains (ms)"
    return FittedTable(columns, frame.to_dicts(), title, caption)


def _time_columns() -> list[Column]:
    return [
        Column("total", "total_ns", ms),
        Column("union", "union_ns", ms, 5),
        Column("masked", "masking_ratio", percent),
        Column("exposed", "exposed_attributed_ns", ms),
        Column("of exposed", "share_ratio", percent),
        Column("transfer", "transit_ns", ms, 4),
        Column("wait", "wait_ns", ms),
    ]


def _key_columns(keys: Sequence[str]) -> list[Column]:
    """Groups are long numbers: their names end where HCCL's names of operations have them."""
    return [Column(_KEYS[name], name, _group if name == "group_hash" else None) for name in keys]


def _group(value: str | None) -> str:
    return UNKNOWN if value is None else f"...{value[-3:]}" if len(value) > 6 else value


def _name_of(keys: Sequence[str]) -> str:
    return {"kind": "kind", "op_type": "type"}[keys[0]] if len(keys) == 1 else "operation"


def count_words(count: int, name: str) -> str:
    """`2 ranks`, `1 step`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


_MOST_PAIRS = 30
_MOST_RANKS = 16  # whose matrix fits into a terminal
_PACKETS = "GB/s of a single link; small: time in packets below 32 MB (RDMA: 0.5 MB)"


gigabytes_per_s = decimals("{:.2f}", 1e9)


def links_table(frame: pl.DataFrame, means: pl.DataFrame, top: int | None = None) -> RenderableType:
    """Rows of `link_traffic`, and of `mean_links` before them where there are several ranks or
    steps."""
    single = FittedTable(
        [*place_columns(frame), *_link_columns(), Column("basis", "basis", None, 6)],
        frame.to_dicts(),
        "Traffic of each rank and step by link",
        _PACKETS,
    )
    return _after_means(frame, single, means, lambda rows, of: _mean_links(rows, top, of))


def _mean_links(rows: pl.DataFrame, top: int | None, capture: str) -> FittedTable:
    columns = _link_columns()
    if rows["rank_count"][0] > 1:
        columns += [
            Column("slowest rank", "slowest_rank", plain, 2),
            Column("its GB/s", "slowest_bytes_per_s", gigabytes_per_s, 2),
        ]
    title = f"Traffic by link{capture}: of {_over(rows)}"
    return FittedTable(columns, rows.head(top or rows.height).to_dicts(), title, _PACKETS)


def _link_columns() -> list[Column]:
    return [
        Column("kind", "kind"),
        Column("operation", "op_type"),
        Column("link", "link"),
        Column("MB", "size_bytes", megabytes),
        Column("ms", "time_ns", ms),
        Column("GB/s", "bandwidth_bytes_per_s", gigabytes_per_s),
        Column("of peak", "peak_ratio", percent, 1),
        Column("packets", "packet_count", decimals("{:,.0f}"), 3),
        Column("small", "small_time_ratio", percent, 4),
        Column("unaligned", "unaligned_count", decimals("{:,.0f}"), 5),
    ]


def matrix_table(
    frame: pl.DataFrame, pairs: pl.DataFrame, top: int | None = None
) -> RenderableType:
    """Rows of `volume.mean_pairs`, of each capture: from rank to rank as a square where it fits,
    then pairs. Rows of `rank_matrix` tell whether there are steps that they are the mean of."""
    captures = frame.partition_by("run", "capture", maintain_order=True)
    if len(captures) > 1:
        parts: list[RenderableType] = []
        for rows in captures:
            run, capture = rows.row(0)[:2]
            here = pairs.filter(run=run, capture=capture)
            parts += [*_matrix_parts(rows, here, top, f", {run} {capture}"), ""]
        return Group(*parts[:-1])
    return Group(*_matrix_parts(frame, pairs, top, ""))


def _matrix_parts(
    frame: pl.DataFrame, pairs: pl.DataFrame, top: int | None, capture: str
) -> list[RenderableType]:
    of = "whole capture" if frame["step"].null_count() == frame.height else "per step"
    columns = [
        Column("kind", "kind"),
        *_ends(pairs),
        Column("link", "link"),
        Column("hosts", "hosts", None, 2, is_word=True),
        Column("MB", "size_bytes", megabytes),
        Column("ms", "time_ns", ms),
        Column("GB/s", "bandwidth_bytes_per_s", gigabytes_per_s),
    ]
    words = {True: "between", False: "inside", None: None}
    hosts = pl.col("is_between_hosts").replace_strict(words, return_dtype=pl.String)
    pairs_here = pairs.with_columns(hosts=hosts).head(top or _MOST_PAIRS)
    caption = (
        f"and {pairs.height - pairs_here.height} more: --json"
        if pairs.height > pairs_here.height
        else None
    )
    title = f"Pairs of ranks that exchange most{capture} ({of})"
    table = FittedTable(columns, pairs_here.to_dicts(), title, caption)
    square = _square(pairs, of, capture)
    return [table] if square is None else [square, "", table]


def _ends(frame: pl.DataFrame) -> list[Column]:
    ends = [Column("from", "src_rank", plain), Column("to", "dst_rank", plain)]
    if frame["src_rank"].null_count() or frame["dst_rank"].null_count():
        ends.append(Column("from place", "src_group_rank", plain, 1))
        ends.append(Column("to place", "dst_group_rank", plain, 1))
    return ends


def _square(pairs: pl.DataFrame, of: str, capture: str) -> FittedTable | None:
    whole = pairs.drop_nulls(["src_rank", "dst_rank"])
    ranks = sorted({*whole["src_rank"], *whole["dst_rank"]})
    if len(ranks) < 2 or len(ranks) > _MOST_RANKS:
        return None
    size: dict[tuple[int, int], float] = {}
    for src, dst, value in whole.select("src_rank", "dst_rank", "size_bytes").iter_rows():
        size[src, dst] = size.get((src, dst), 0.0) + value
    rows = [{"from": src, **{str(dst): size.get((src, dst)) for dst in ranks}} for src in ranks]
    columns = [
        Column("from \\ to", "from", plain),
        *(Column(str(rank), str(rank), _whole_megabytes) for rank in ranks),
    ]
    title = f"MB from rank to rank{capture} ({of}, all kinds and links)"
    return FittedTable(columns, rows, title)


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
    nth = pl.int_range(pl.len()).over(PLACE)
    rows = frame if top is None else frame.filter(nth < top)
    return FittedTable(columns, rows.to_dicts(), "Bandwidth of operations", caption)


def contention_table(frame: pl.DataFrame, top: int | None = None) -> FittedTable:
    """Rows of `contention` that have both sides."""
    columns = [
        *place_columns(frame),
        *_key_columns(["op_type", "group_hash"]),
        Column("link", "link"),
        Column("ops beside", "beside_count", number, 2),
        Column("GB/s beside", "beside_bandwidth_bytes_per_s", gigabytes_per_s),
        Column("ops alone", "alone_count", number, 2),
        Column("GB/s alone", "alone_bandwidth_bytes_per_s", gigabytes_per_s),
        Column("slowdown", "slowdown_ratio", decimals("{:.3f}")),
    ]
    rows = frame.drop_nulls("slowdown_ratio").sort("slowdown_ratio", descending=True)
    top_rows = rows.head(top or _MOST_ROWS)
    left = f"and {rows.height - top_rows.height} more; " if rows.height > top_rows.height else ""
    caption = f"{left}overlapped: computing covers half or more; alone: less than a tenth"
    title = "Bandwidth of links with and without overlapping computation"
    return FittedTable(columns, top_rows.to_dicts(), title, caption)


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
    caption = "last three columns: MB between hosts with other schemes, for uniform routing"
    rows = frame.head(top or frame.height)
    return FittedTable(columns, rows.to_dicts(), "All-to-all of a step (MB)", caption)
