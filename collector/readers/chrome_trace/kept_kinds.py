"""What of a producer's timelines is kept: said in words, for a compiled pass to be planned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class KeptEvents:
    """What is kept of a kind's events.

    `args`: how they are typed (None: they are not looked at). `columns`: places, and attributes of
    args. `only` events of these names; none of `bare` names that have no args. `choices`: it is
    another kind if that attribute is there. `or_null`: columns that may miss their field.
    """

    columns: Sequence[str]
    args: type[Struct] | None = None
    only: Iterable[str] = ()
    bare: Iterable[str] = ()
    choices: Sequence[tuple[str, str]] = ()
    or_null: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class WantedKinds:
    """The kinds, and which of them events are.

    `of`: category -> phase -> kind; None stands for no category, "" for any other one. Phases that
    are not named are passed over; with "*" the present reader takes them. Instants count
    from `base_ns`. Kind "counter" is one row per series.
    """

    kinds: Mapping[str, KeptEvents]
    of: Mapping[str | None, Mapping[str, str]]
    base_ns: int = 0
