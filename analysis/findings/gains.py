"""What findings are worth: the changes that would end each, replayed on one graph of the capture.

A change brings a cause to what its peers do (a rank, a link, a host, a stage), takes away what no
step needs (the time between two), or runs the pipeline's passes in another order where that is sure
to gain; what has none of these takes a fifth less (`LESS`). All are what `npuscope whatif` answers
for the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import duckdb
import polars as pl

from npuscope.errors import CannotAnswer, TraceNotFound, UsageError
from npuscope.messages import Message, join

from ..parts import is_told
from ..replay import captures
from ..replay.capture_what_if import gain_of
from ..replay.captures import LESS, CaptureJob
from ..replay.changes import parse_change
from ..replay.critical_path import types_on_path
from ..scope import Scope
from ..wording import ms, number, percent
from .finding import Finding
from .operator_rules import is_of_kernels, on_path
from .weigh import WORTH_RATIO

_NO_GAIN_RATIO = 0.0005  # of a step: reads as 0.0 %
_MOST_FOR_EXPERTS = 60_000  # to share out tokens anew takes as long for so many
_TOLD_THERE = Message("`npuscope whatif` with the same changes says why it cannot answer")
# What a capture lacks where a change of this target is refused, in the reader's language.
_REFUSALS = {
    "between_steps": Message("what the first operation of a step waits for was not recorded"),
    "cause": Message("no launches were recorded, so the host's time is not known"),
    "comm": Message("no operation of this kind was recorded with its times on all its members"),
    "experts": Message(
        "all ranks of expert-parallel groups, with shapes, were not recorded, or their all-to-alls"
        " go in stages over hosts"
    ),
    "host": Message("no launches were recorded, so the host's time is not known"),
    "rank": Message("no other rank ran the same kernels in the same order"),
    "schedule": Message("the schedule of the pipeline, or one of its stages, was not recognised"),
    "stage": Message("kernels of one pipeline stage at most were recorded"),
}
_WITHOUT_MEMBERS = Message(
    "members of its operations that were not captured decide whether anything is gained: record all"
    " ranks of their groups"
)


def with_gains(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    findings: Sequence[Finding],
    kernels: pl.DataFrame,
) -> Iterator[Finding]:
    """Findings of one capture with their gains, or why they have none; `kernels`: rows of
    `mean_kernels` by type. What is worth a line neither by its stake nor by its gain is left
    out, and slow links that cost a step nothing."""
    job = _job(con, scope) if any(one.changes for one in findings) else None
    step_ns = (
        float(job.measured.lengths()[job.usual].mean()) if isinstance(job, CaptureJob) else 0.0
    )
    path: pl.DataFrame | None = None  # takes as long as a few gains: once, where it is asked for
    for one in findings:
        finding, gain_ratio = one, None
        if isinstance(job, str) and one.changes:
            finding = replace(one, no_gain_reason=job)
        elif isinstance(job, CaptureJob) and one.changes:
            if is_of_kernels(one):
                path = types_on_path(job, scope.step) if path is None else path
                finding = on_path(one, kernels, path, step_ns)
            finding = replace(finding, no_gain_reason=None)
            gained = _with_gain(con, job, scope.step, finding)
            if gained is None:
                continue
            finding, gain_ratio = _beyond_stake(gained[0]), gained[1]
        stake_ratio = finding.step_share_ratio
        if stake_ratio is None or stake_ratio >= WORTH_RATIO:
            yield finding
        elif gain_ratio is not None and gain_ratio >= WORTH_RATIO:
            why = Message("It stands here for its gain, {share} of a step.",
                          share=percent(gain_ratio))  # fmt: skip
            yield replace(finding, statement=join((finding.statement, why), " "))


def _beyond_stake(one: Finding) -> Finding:
    """With why its gain exceeds its stake, where it does."""
    gain_ns, stake_ns = one.predicted_gain_ns, one.at_stake_ns
    if gain_ns is None or stake_ns is None or gain_ns <= stake_ns:
        return one
    why = Message(
        "A step gains more than the time at stake: what waits for it, on the same rank or on"
        " others, comes earlier, too."
    )
    return replace(one, reason=join((one.reason, why), " "))


def why_refused(word: str) -> str:
    """What a capture lacks that refuses to answer a change, by its target."""
    return _REFUSALS.get(word.partition(":")[0].partition("=")[0], _TOLD_THERE)


def _is_estimated(word: str) -> bool:
    """Whether its factor comes from the capture: none that is the same for all, and not 0."""
    try:
        return parse_change(word).factor() not in (0, LESS)
    except UsageError:
        return False


def _job(con: duckdb.DuckDBPyConnection, scope: Scope) -> CaptureJob | str:
    """The capture as a graph, or why there is none."""
    if scope.rank is not None:
        return Message("gains are of the whole job: leave the rank out")
    if not is_told(con):
        return Message("the ranks were not compared with each other")
    count = captures.operation_count(con, scope)
    if count > captures.MOST_OPERATIONS:
        return _too_many(count, captures.MOST_OPERATIONS)
    try:
        return captures.capture_job(con, scope.job)
    except TraceNotFound:
        return Message("no single operations with times were recorded: nothing to replay")


def _too_many(count: int, most: int) -> str:
    return Message(
        "{count} operations: gains are worked out here up to {most}; `npuscope whatif` takes more"
        " time and works them out",
        count=number(count),
        most=number(most),
    )


def _with_gain(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, step: int | None, one: Finding
) -> tuple[Finding, float | None] | None:
    """With its gain, and what that is of the job's step. None of slow links whose transfers nobody
    waits for."""
    count = len(job.ops.rank)
    if count > _MOST_FOR_EXPERTS and any(word.startswith("experts") for word in one.changes):
        return replace(one, no_gain_reason=_too_many(count, _MOST_FOR_EXPERTS)), None
    try:
        gain = gain_of(
            con, job, one.changes, beside=one.beside, step=step,
            is_estimated=any(_is_estimated(word) for word in one.changes),
        )  # fmt: skip
    except (CannotAnswer, UsageError):
        return replace(one, no_gain_reason=why_refused(one.changes[0])), None
    if gain.is_unknown:
        return replace(one, no_gain_reason=_WITHOUT_MEMBERS), None
    gain_ratio = gain.gain_ns / gain.measured_ns if gain.measured_ns > 0 else None
    if one.name == "slow_links" and gain_ratio is not None and gain_ratio < _NO_GAIN_RATIO:
        return None
    is_cause = not one.changes[0].startswith(("rank:", "schedule="))
    if gain.gain_ns < 0 or (not is_cause and gain.low_ns <= 0):
        # No advice that its own figure does not bear out: a schedule is a remedy of something else,
        # and a rank that is slowest for a hiccup or its tokens has nothing to mend.
        why = Message(
            "{change} is not sure to make a step shorter here ({gain} ms: {low} to {high})",
            change=shlex.join(one.changes),
            gain=ms(gain.gain_ns),
            low=ms(gain.low_ns),
            high=ms(gain.high_ns),
        )
        return replace(one, changes=(), no_gain_reason=why), None
    finding = replace(
        one,
        predicted_gain_ns=gain.gain_ns,
        predicted_gain_low_ns=gain.low_ns,
        predicted_gain_high_ns=gain.high_ns,
    )
    return finding, gain_ratio
