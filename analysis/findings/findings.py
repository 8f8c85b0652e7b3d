"""What is worth changing first in the open captures, as outlets ask for it.

What the rules found is kept with the store: who reads it there loads none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl

from .. import query
from ..memo import memoize
from ..scope import ALL, Scope
from ..views import frame
from ..wording import shell_word
from .finding import Finding, by_gain, with_commands

if TYPE_CHECKING:
    from ..experts.cost.load_overview import Overview


def findings(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    path: str = "PATH",
    experts: Overview | None = None,
) -> list[Finding]:
    """What is worth changing in the chosen captures, the most predicted gain first.

    `path` stands in the commands that show more of the capture; `experts` are of the one capture
    chosen, where they are known already.
    """
    findings_here: list[Finding] = []
    places: dict[tuple[str, str], str] = {}
    for one in query.capture_facts(con, scope).to_dicts():
        here = replace(scope, run=one["run"], capture=one["capture"])
        findings_here += _findings_of(con, here, known=experts)
        places[one["run"], one["capture"]] = capture_place(con, here, path)
    return with_commands(by_gain(findings_here), places, scope)


def capture_place(con: duckdb.DuckDBPyConnection, scope: Scope, path: str) -> str:
    """A path as commands take it, with the options that choose the scope's run and capture where
    the open tables have others."""
    runs = _captures(con)
    words = [shell_word(path)]
    if runs["run"].n_unique() > 1:
        words += ["--run", shell_word(scope.run or "")]
    if runs.filter(run=scope.run).height > 1:
        words += ["--capture", shell_word(scope.capture or "")]
    return " ".join(words)


@memoize
def _captures(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    return frame(con, "select distinct run, capture from ranks")


@memoize
def _findings_of(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, known: Overview | None
) -> list[Finding]:
    """Of one capture."""
    from .list_findings import found_in

    return found_in(con, scope, known)


# metric: findings
# What should be changed first?
#
# By the predicted gain, the most first, then by the time at stake; each has the rows it rests on.
# A gain is what a replay of the mean step answers (`npuscope whatif` with the same changes);
# what has nothing to be alike takes a fifth less. Gains do not add up: findings with the same
# changes have one gain, which the later ones say.
#
# title: Findings
# meaning: What is worth changing first: time at stake, evidence, how sure that is, what to try.
# by: run, capture
# command: findings
# gauge: npuscope_predicted_gain_seconds{finding} = predicted_gain_ns: What a replay says a mean
#     step would be shorter by without what the finding names.
#
#   finding           varchar   name of the rule
#   statement         varchar   what is the matter
#   at_stake_ns       bigint    time that it takes of a mean rank's step; NULL where not known
#   predicted_gain_ns  bigint    what a mean step is shorter by with the changes; NULL: see
#     no_gain_reason
#   predicted_gain_low_ns  bigint  low end of its range; below 0: it may gain nothing
#   predicted_gain_high_ns  bigint  high end of its range
#   within_gain_of    varchar   finding before it with all these changes: its gain holds this one
#   changes           varchar[] words of the what-if that was replayed
#   no_gain_reason    varchar   why there is no predicted gain
#   step_share_ratio  double    time at stake over a mean rank's step; time between steps: with it
#   certainty         varchar   measured, estimated or hint
#   reason            varchar   why it is no surer
#   advice            varchar   what to try
#   evidence          struct[]  rows it rests on, the most telling first
#   command           varchar   what shows more
def finding_rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as JSON can hold them; `evidence` is a list of rows."""
    return [
        {
            "finding": one.name,
            "run": one.run,
            "capture": one.capture,
            "statement": one.statement,
            "at_stake_ns": one.at_stake_ns,
            "predicted_gain_ns": one.predicted_gain_ns,
            "predicted_gain_low_ns": one.predicted_gain_low_ns,
            "predicted_gain_high_ns": one.predicted_gain_high_ns,
            "within_gain_of": one.within_gain_of,
            "changes": list(one.changes),
            "no_gain_reason": one.no_gain_reason,
            "step_share_ratio": one.step_share_ratio,
            "certainty": one.certainty,
            "reason": one.reason,
            "advice": one.advice,
            "evidence": query.rows(one.evidence),
            "command": one.command,
        }
        for one in findings
    ]
