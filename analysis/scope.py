"""Which rows are asked for: of one run, capture, rank and step, or of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PLACE = ("run", "capture", "rank", "step")
RANK = PLACE[:3]
JOB = PLACE[:2]


@dataclass(frozen=True, slots=True)
class Scope:
    """A choice of rows; None: of all."""

    run: str | None = None
    capture: str | None = None
    rank: int | None = None
    step: int | None = None

    @property
    def job(self) -> Scope:
        """The same run and capture, of all ranks and steps."""
        return Scope(self.run, self.capture)

    @property
    def all_ranks(self) -> Scope:
        """The same, of all ranks."""
        return replace(self, rank=None)

    def has(self, run: str, capture: str | None = None) -> bool:
        """Whether rows of this run, and of this capture where one is given, may be asked for."""
        return self.run in (None, run) and (capture is None or self.capture in (None, capture))

    def values(self, of: Sequence[str] = PLACE) -> dict[str, str | int]:
        """What is chosen of these columns."""
        values = ((name, getattr(self, name)) for name in of)
        return {name: value for name, value in values if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values().items())

    def where(
        self, of: Sequence[str] = PLACE, **equal: str | int | None
    ) -> tuple[str, list[str | int]]:
        """`where` clause for what is chosen of these columns and for what others equal, where that
        is not None; and its parameters."""
        conditions = {name: value for name, value in equal.items() if value is not None}
        conditions |= self.values(of)
        clause = " and ".join(f"{column} = ?" for column in conditions)
        return (f"where {clause}" if conditions else ""), list(conditions.values())


ALL = Scope()
