"""Communication as terminal tables: what takes long, what of it is exposed, what waits."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from .comm_means import SUMS, counted, known_sum, positive
from .tables import Column, FittedTable, place_columns

_MOST_ROWS = 50  # of single ranks and steps
_PLACE = ["run", "capture", "rank", "step"]
_KEYS = {"kind": "kind", "op_type": "operation", "group_hash": "group"}
_EXPOSED = "exposed: outside compute, split evenly among simultaneous operations"
_MEASURED = "transfer, wait: HCCL's own"


def masking_table(frame: pl.DataFrame, top: int | None = None) -> RenderableType:
    """Rows of `comm`: means of a rank's step, then single ranks and steps where they are few.

    `top` rows of each are shown (None: all); shares are of all rows.
    """
    keys = [name for name in _KEYS if name in frame.columns]
    places = frame.select(_PLACE).n_unique()
    single = _single(frame, keys, top)
    if places < 2:
        return single
    captures = frame.partition_by("run", "capture", maintain_order=True)
    means = [_means(rows, keys, top, several=len(captures) > 1) for rows in captures]
    if len(single.rows) > _MOST_ROWS:
        return Group(*means, "of one rank or step: --rank N, --step N; all rows: --json")
    return Group(*(part for table in means for part in (table, "")), single)


def _single(frame: pl.DataFrame, keys: Sequence[str], top: int | None) -> FittedTable:
    rows = frame.with_columns(
        (pl.col("exposed_attributed_ns") / positive(pl.col("exposed_attributed_ns").sum()))
        .over(_PLACE)
        .alias("share_ratio")
    )
    if top is not None:
        rows = rows.group_by(_PLACE, maintain_order=True).head(top)
    columns = [
        *place_columns(frame),
        *_key_columns(frame, keys),
        Column("ops", "op_count", number),
        *_time_columns(),
        Column("MB", "size_bytes", megabytes, 3),
    ]
    title = f"Communication of each rank and step by {_named(keys)} (ms)"
    return FittedTable(columns, rows.to_dicts(), title, f"{_EXPOSED}; {_MEASURED}")


def _means(
    frame: pl.DataFrame, keys: Sequence[str], top: int | None, *, several: bool
) -> FittedTable:
    """Means over the pairs of rank and step with events; without any, over all.

    Ranks have groups of their own, so groups are only counted.
    """
    named, has_groups = _named(keys), "group_hash" in keys
    keys = [name for name in keys if name != "group_hash"]
    frame = counted(frame)
    over = frame.select("rank", "step").n_unique()
    per_rank = frame.select("rank", "step").unique().group_by("rank").len("steps")
    worst = (
        frame.group_by("rank", *keys)
        .agg(pl.col("exposed_attributed_ns").sum())
        .join(per_rank, on="rank")
        .with_columns(worst_ns=pl.col("exposed_attributed_ns") / pl.col("steps"))
        .sort("worst_ns", "rank", descending=[True, False], nulls_last=True)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("rank").first().alias("worst_rank"), pl.col("worst_ns").first())
    )
    sums = [known_sum(name) / over for name in SUMS]
    rows = (
        frame.group_by(keys, maintain_order=True)
        .agg(*sums, *([pl.col("group_hash").n_unique().alias("groups")] if has_groups else []))
        .with_columns(
            masking_ratio=pl.col("masked_ns") / positive(pl.col("union_ns")),
            share_ratio=pl.col("exposed_attributed_ns")
            / positive(pl.col("exposed_attributed_ns").sum()),
        )
        .join(worst, on=keys, how="left", nulls_equal=True)
        .sort("exposed_attributed_ns", "total_ns", descending=True, nulls_last=True)
    )
    columns = [
        *_key_columns(frame, keys),
        *([Column("groups", "groups", number, 3)] if has_groups else []),
        Column("ops", "op_count", lambda value: f"{value:,.1f}"),
        *_time_columns(),
        Column("MB", "size_bytes", megabytes, 3),
    ]
    ranks, steps = frame["rank"].n_unique(), frame["step"].n_unique()
    if ranks > 1:
        columns[-1:-1] = [
            Column("worst rank", "worst_rank", plain, 2),
            Column("its exposed", "worst_ns", ms, 1),
        ]
    capture = f", {frame['run'][0]} {frame['capture'][0]}" if several else ""
    title = (
        f"Communication by {named}{capture}: ms of a rank's step"
        f" (mean of {_counted(ranks, 'rank')}, {_counted(steps, 'step')})"
    )
    caption = f"{_EXPOSED}; {_MEASURED}"
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
        Column("stretch", "stretch_ratio", _times),
        Column("extra", "extra_ns", ms),
        Column("masked", "masked_ns", ms),
        Column("net gain", "net_gain_ns", ms),
    ]
    caption = "alone: what the compared kernels take without communication; net: masked - extra"
    title = "Kernels beside communication, and what overlap gains (ms)"
    return FittedTable(columns, frame.to_dicts(), title, caption)


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


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


def _key_columns(frame: pl.DataFrame, keys: Sequence[str]) -> list[Column]:
    """Groups are long numbers: their names end where HCCL's names of operations have them."""
    return [Column(_KEYS[name], name, _group if name == "group_hash" else None) for name in keys]


def _group(value: str | None) -> str:
    return UNKNOWN if value is None else f"...{value[-3:]}" if len(value) > 6 else value


def _named(keys: Sequence[str]) -> str:
    return {"kind": "kind", "op_type": "type"}[keys[0]] if len(keys) == 1 else "operation"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' if count > 1 else ''}"
