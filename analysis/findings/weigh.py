"""How much time is at stake, and whether that is worth a line."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from .finding import EVIDENCE_ROWS, Certainty, Finding
from .material import Material

WORTH_RATIO = 0.01  # of a step's length


def mean(rows: pl.DataFrame, column: str) -> float | None:
    """Mean of the known values; None where there is none."""
    values = rows[column].drop_nulls()
    return float(values.sum()) / len(values) if len(values) else None


def share(stake_ns: float | None, material: Material) -> float | None:
    """Of the mean length of a step on a rank: computing, exposed communication and free time. None
    where that is unknown."""
    return stake_ns / material.length_ns if stake_ns is not None and material.length_ns else None


def is_worth(stake_ns: float | None, material: Material) -> bool:
    """Whether so much per step is worth a line: at least 1 % of a step."""
    part = share(stake_ns, material)
    return part is not None and part >= WORTH_RATIO


def state(
    material: Material,
    name: str,
    statement: str,
    stake_ns: float | None,
    certainty: Certainty,
    reason: str,
    advice: str,
    evidence: pl.DataFrame,
    command: str,
    *,
    changes: Sequence[str] = (),
    no_gain: str | None = None,
    beside: Sequence[str] = (),
    of_ns: float | None = None,
) -> Finding:
    """A finding about what was seen, with the first rows of its evidence, and the changes that
    would end it, or why there is none to replay. `of_ns`: what its stake is a share of, where that
    is not the mean length of a step."""
    return Finding(
        name=name,
        run=material.run,
        capture=material.capture,
        statement=statement,
        at_stake_ns=None if stake_ns is None else round(stake_ns),
        step_share_ratio=stake_ns / of_ns
        if stake_ns is not None and of_ns
        else share(stake_ns, material),
        certainty=certainty,
        reason=reason,
        advice=advice,
        evidence=evidence.head(EVIDENCE_ROWS),
        command=command,
        changes=tuple(changes),
        no_gain_reason=no_gain,
        beside=tuple(beside),
    )
