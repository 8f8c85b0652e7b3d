"""Communication gathered by parallel kind, type or operation, and what of it compute hides."""

from __future__ import annotations

from typing import Literal, cast, get_args

import duckdb
import polars as pl

from npuscope.errors import UsageError

from ..views import first_of_each, frame, open_views, where

CommKey = Literal["kind", "type", "op"]
_NAMES: dict[CommKey, tuple[str, ...]] = {
    "kind": ("kind",),
    "type": ("op_type",),
    "op": ("kind", "op_type", "group_hash"),
}
_FIGURES = (
    "op_count", "total_ns", "union_ns", "masked_ns", "masking_ratio", "exposed_ns",
    "exposed_attributed_ns", "transit_ns", "wait_ns", "size_bytes",
)  # fmt: skip

_SHARE = (
    "exposed_attributed_ns / nullif(cast(sum(exposed_attributed_ns)"
    " over (partition by run, capture, rank, step) as double), 0) as share_ratio"
)


def comm_key(text: str) -> CommKey:
    """`text` as a key of `comm`. Raises UsageError."""
    for key in get_args(CommKey):
        if text == key:
            return cast(CommKey, key)
    raise UsageError(f"comm by {text!r}: choose one of {', '.join(get_args(CommKey))}")


def comm(
    con: duckdb.DuckDBPyConnection,
    *,
    by: CommKey = "kind",
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
    top: int | None = None,
) -> pl.DataFrame:
    """Communication by `by`, longest total first; `top` keeps that many per rank and step.

    Columns of the metric `comm`: run, capture, rank, step; kind (by kind), op_type (by type), or
    kind, op_type and group_hash (by op); op_count, total_ns, union_ns, masked_ns, masking_ratio,
    exposed_ns, exposed_attributed_ns, transit_ns, wait_ns, size_bytes; and share_ratio, of all that
    its rank and step expose. Raises UsageError for another key.
    """
    key = comm_key(by)
    open_views(con, ("comm",))
    clause, values = where(
        {"by_key": key, "run": run, "capture": capture, "rank": rank, "step": step}
    )
    names = _NAMES[key]
    order = ", ".join(["total_ns desc nulls last", *(f"{name} nulls last" for name in names)])
    best, kept = first_of_each("run, capture, rank, step", order, top)
    columns = ", ".join(["run", "capture", "rank", "step", *names, *_FIGURES, _SHARE])
    return frame(
        con,
        f"select {columns} from comm_summary {clause} {best}"
        f" order by run, capture, rank, step nulls last, {order}",
        [*values, *kept],
    )


def compute_stretch(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """What overlap costs kernels and gains: columns of the metric `compute_stretch`."""
    clause, values = where({"run": run, "capture": capture, "rank": rank, "step": step})
    order = "order by run, capture, rank, step nulls last"
    return frame(con, f"select * from compute_stretch {clause} {order}", values)
