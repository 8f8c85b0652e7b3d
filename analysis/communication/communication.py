"""Communication gathered by parallel kind, type or operation, and what of it compute hides."""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from npuscope.errors import UsageError

from ..memo import memoize
from ..scope import ALL, PLACE, Scope
from ..views import open_views, select

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


@memoize
def comm(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    by: CommKey = "kind",
    top: int | None = None,
) -> pl.DataFrame:
    """Communication by `by`, longest total first; `top` keeps that many per rank and step.

    Columns of the metric `comm`: run, capture, rank, step; kind (by kind), op_type (by type), or
    kind, op_type and group_hash (by op); op_count, total_ns, union_ns, masked_ns, masking_ratio,
    exposed_ns, exposed_attributed_ns, transit_ns, wait_ns, size_bytes; and share_ratio, of all that
    its rank and step expose. Raises UsageError for another key.
    """
    if by not in _NAMES:
        raise UsageError(f"comm by {by!r}: choose one of {', '.join(_NAMES)}")
    open_views(con, ("comm",))
    names = _NAMES[by]
    order = ", ".join(["total_ns desc nulls last", *(f"{name} nulls last" for name in names)])
    columns = ", ".join([*PLACE, *names, *_FIGURES, _SHARE])
    return select(con, "comm_summary", scope, order, top=top, columns=columns, by_key=by)


@memoize
def compute_stretch(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """What overlap costs kernels and gains: columns of the metric `compute_stretch`."""
    return select(con, "compute_stretch", scope)
