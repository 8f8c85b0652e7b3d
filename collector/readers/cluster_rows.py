"""What results of msprof-analyze become before they are a rank's: rows with their rank, in files."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from ..model import ReadLog
from .communication_rows import MATRIX, PACKETS, TIMES

_SQL_TYPES = {pa.string(): "varchar", pa.float64(): "double"}
_STEP_FIGURES = (
    "computing_ns", "communication_not_overlapped_ns", "overlapped_ns", "communication_ns",
    "free_ns", "stage_ns", "bubble_ns", "communication_not_overlapped_and_exclude_receive_ns",
    "preparing_ns",
)  # fmt: skip


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} {_SQL_TYPES[one.type]}" for one in schema)


# Table -> its columns in SQL. times, packets and matrix: see communication_rows; in matrix `src`
# and `dst` are global ranks, and `rank` is the source.
TABLES = {
    "times": f"rank integer, {_columns(TIMES)}",
    "packets": f"rank integer, {_columns(PACKETS)}",
    "matrix": f"rank integer, {_columns(MATRIX)}",
    "steps": "rank integer, step bigint, " + ", ".join(f"{f} double" for f in _STEP_FIGURES),
    "places": "rank integer, framework varchar, device_id integer, host_uid varchar,"
    " host_name varchar, tp_rank integer, pp_rank integer, dp_rank integer",
}


@dataclass(slots=True)
class Group:
    """A group as its framework told it; `group_hash`, `name`, `label`: None or unknown where empty.

    Its ranks stand in order: the sets that msprof-analyze writes have none.
    """

    group_hash: str | None
    name: str | None
    label: str | None
    ranks: list[int]


@dataclass(slots=True)
class Told:
    """What concerns all ranks. `seen`: ranks that have operations of a group, by its hash;
    `args`: the job's sizes (distributed_args), as JSON."""

    groups: list[Group] = field(default_factory=list)
    seen: dict[str, list[int]] = field(default_factory=dict)
    args: str | None = None
    log: ReadLog = field(default_factory=ReadLog)
