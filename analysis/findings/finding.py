"""One finding: what is the matter, what it costs, how sure that is, and what shows more."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

Certainty = Literal["measured", "estimated", "hint"]
CERTAINTIES: dict[Certainty, str] = {
    "measured": "the profile shows this time",
    "estimated": "an upper bound, or valid under an assumption: the reason states which",
    "hint": "worth a look; its cost is not in the profile",
}
EVIDENCE_ROWS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one capture.

    `at_stake_ns`: time per step that the change could save at most, as a mean over steps and ranks;
    None where it is not known. `step_share_ratio`: the same over the mean length of a step.
    `reason`: why it is no surer. `advice`: what to try. `evidence`: the rows it rests on, the most
    telling first. `command`: shows more; PATH stands for what the user opened.
    """

    name: str
    run: str
    capture: str
    statement: str
    at_stake_ns: int | None
    step_share_ratio: float | None
    certainty: Certainty
    reason: str
    advice: str
    evidence: pl.DataFrame
    command: str


def addressed(found: Iterable[Finding], path: str) -> list[Finding]:
    """Findings whose commands name what the user opened."""
    place = shlex.quote(path)
    return [replace(one, command=one.command.replace("PATH", place)) for one in found]


def ranked(found: Iterable[Finding]) -> list[Finding]:
    """By the time at stake, the most first; what has none known comes last. Uneven stages lead:
    other waiting follows from them. Raises ValueError for a finding without evidence."""
    listed = list(found)
    for finding in listed:
        if finding.evidence.is_empty():
            raise ValueError(f"{finding.name}: no evidence")
    return sorted(
        listed,
        key=lambda one: (
            one.name != "uneven_stages", one.at_stake_ns is None, -(one.at_stake_ns or 0)
        ),
    )  # fmt: skip
