"""Communication as terminal tables: what takes long, what of it is exposed, what waits."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from .tables import Column, FittedTable, place_columns

_MOST_ROWS = 50  # of single ranks and steps
_PLACE = ["run", "capture", "rank", "step"]
_KEYS = {"kind": "kind", "op_type": "operation", "group_hash": "group"}
_EXPOSED = "exposed: outside compute, split evenly among simultaneous operations"
_MEASURED = "transfer, wait: HCCL's own"


def masking_table(
    frame: pl.DataFrame, means: pl.DataFrame, top: int | None = None
) -> RenderableType:
    """Rows of `comm`, and of `mean_comm` before them where there are several ranks or steps.

    `top` rows of each are shown (None: all). Single ranks and steps stand where they are few.
    """
    keys = [name for name in _KEYS if name in frame.columns]
    single = _single(frame, keys, top)
    if frame.select(_PLACE).n_unique() < 2:
        return single
    captures = means.partition_by("run", "capture", maintain_order=True)
    tables = [_means(rows, keys, top, several=len(captures) > 1) for rows in captures]
    if len(single.rows) > _MOST_ROWS:
        return Group(*tables, "of one rank or step: --rank N, --step N; all rows: --json")
    return Group(*(part for table in tables for part in (table, "")), single)


def _single(frame: pl.DataFrame, keys: Sequence[str], top: int | None) -> FittedTable:
    rows = frame
    if top is not None:
        nth = pl.int_range(pl.len()).over(_PLACE)
        rows = rows.filter(nth < top)
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
    rows: pl.DataFrame, keys: Sequence[str], top: int | None, *, several: bool
) -> FittedTable:
    """Ranks have groups of their own, so groups are only counted."""
    first = rows.row(0, named=True)
    has_groups = "group_hash" in keys
    columns = [
        *_key_columns(rows, [name for name in keys if name != "group_hash"]),
        *([Column("groups", "group_count", number, 3)] if has_groups else []),
        Column("ops", "op_count", lambda value: f"{value:,.1f}"),
        *_time_columns(),
        Column("MB", "size_bytes", megabytes, 3),
    ]
    if first["rank_count"] > 1:
        columns[-1:-1] = [
            Column("worst rank", "worst_rank", plain, 2),
            Column("its exposed", "worst_exposed_attributed_ns", ms, 1),
        ]
    capture = f", {first['run']} {first['capture']}" if several else ""
    title = (
        f"Communication by {_named(keys)}{capture}: ms of a rank's step (mean of"
        f" {counted(first['rank_count'], 'rank')}, {counted(first['step_count'], 'step')})"
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
    caption = "alone: duration of the compared kernels without communication; net: masked - extra"
    title = "Kernels during communication, and what overlap gains (ms)"
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


def counted(count: int, name: str) -> str:
    """`2 ranks`, `1 step`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"
