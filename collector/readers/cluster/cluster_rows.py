"""What results of msprof-analyze become before they are a rank's: canonical rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ... import schema
from ...model import ReadLog

# Tables that every rank takes its rows from, and their columns in SQL: `rank`, then those of the
# canonical table. `places` is what is known of the ranks themselves.
TABLES = {
    name: ", ".join(
        ["rank integer", *(f"{c.name} {c.type}" for c in schema.tables()[canonical].columns)]
    )
    for name, canonical in (
        ("comm_times", "comm_times"), ("comm_links", "comm_links"), ("comm_matrix", "comm_matrix"),
        ("profiler_steps", "profiler_steps"), ("places", "ranks"),
    )
}  # fmt: skip


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
