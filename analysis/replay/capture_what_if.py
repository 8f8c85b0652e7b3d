"""What the steps of a capture would take after changes, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import polars as pl

from npuscope.messages import Message

from ..pipeline.tries_notes import work_note
from ..scope import Scope
from ..wording import ms, numbers, percent
from .capture_changes import apply_change
from .captures import CaptureJob, Other, Ratios, capture_job, replay, replay_notes
from .changes import Change, parse_change
from .critical_path import time_by_part
from .points import Flags, Integers
from .timetable import Timetable, span_of
from .variants.ideal import contributions

Part = tuple[str, str | None]  # of a step, and its parallel kind

_LEAST_ERROR = 0.005  # of a step that changes at all
_UNKNOWN_CONTENTION = 0.1  # of a change, where kernels beside traffic cannot be compared
_LONG, _LONG_DISTANCES, _LEAST_STEPS = 1.2, 5, 4  # as job_steps tells warm-up steps
_ROUNDS = 2  # what is stretched moves what is beside it
_MOST_FOR_PATHS = 5_000_000  # operations: both critical paths of more take too long


# metric: whatif_steps
# What would the steps of a capture take with other times of kernels, communication, or the host?
#
# Replayed from what waits for what, gaps that nothing explains kept as recorded, and kernels that
# lose as much beside transfers as was measured, wherever these then are. The last row is the mean
# over steps that are no warm-up; its step is NULL. The range holds the error of the replay, half a
# per cent of the step, what the change differs from step to step, the change times the share of
# time that nothing explains, that such gaps, and operations whose other members are not known
# (beyond half a per cent of a step), wait for what changes and are shorter or longer with it, the
# step with kernels that lose what they lost (a tenth of the change where nothing tells that), and
# what members that were not captured may or may not do; where transfers are hidden, it goes on to
# behind all computing of their step. Where factors alone change durations of operations, it goes no
# further from the measured step than by what these take less, or more, on one way through the graph
# or on one rank, whichever is the most, and the error of the replay; the prediction lies within.
#
# title: What if, of a capture
# meaning: Each step of a job as measured, replayed and with changes, and the mean of them.
# command: whatif PATH CHANGE
# table: whatif_steps
# figure: whatif_saved
#
#   run               varchar  run of the training job
#   capture           varchar  ranks profiled at the same time
#   step              bigint   producer's step number; NULL: the mean of the steps
#   measured_step_ns  bigint   latest start over ranks to the next step's, or to the end
#   replayed_step_ns  bigint   the same replayed with nothing changed
#   predicted_step_ns bigint   the same replayed with the changes
#   predicted_low_ns  bigint   low end of the range
#   predicted_high_ns bigint   high end of the range
#   saved             struct[] part, kind, saved_ns: sum is replayed - predicted; NULL: > 5 M ops
#   contributions     struct[] kind, name, slowdown: S_x, of the mean, of the ideal step; else NULL
def whatif_steps(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, changes: Sequence[Change]
) -> pl.DataFrame:
    """Rows of the metric. Raises UsageError and CannotAnswer."""
    times, other = _steps(job, apply_change(con, job, changes))
    is_short = len(job.ops.rank) <= _MOST_FOR_PATHS
    before, after = (
        time_by_part(job, waits) if is_short else None for waits in (job.waits, other.waits)
    )
    if after is not None and np.any(other.added_ns):
        added = np.broadcast_to(other.added_ns, len(after)).tolist()
        after = [{**one, (other.added_as, None): ns} for one, ns in zip(after, added, strict=True)]
    every = range(len(job.ops.steps))
    saved = [_mean_savings(before, after, [at]) for at in every]
    saved.append(_mean_savings(before, after, job.usual))
    schema = pl.List(pl.Struct({"part": pl.String, "kind": pl.String, "saved_ns": pl.Int64}))
    alone: list[list[dict[str, str | float | None]] | None] = [None] * (len(every) + 1)
    if [one.target for one in changes] == ["ideal"]:
        alone[-1] = contributions(con, job, other, job.usual)
    named = pl.List(pl.Struct({"kind": pl.String, "name": pl.String, "slowdown": pl.Float64}))
    return times.select(
        pl.lit(job.run).alias("run"), pl.lit(job.capture).alias("capture"), pl.all(),
        pl.Series("saved", saved, dtype=schema), pl.Series("contributions", alone, dtype=named),
    )  # fmt: skip


def whatif_answer(
    con: duckdb.DuckDBPyConnection, scope: Scope, words: Sequence[str]
) -> tuple[pl.DataFrame, list[str]]:
    """Rows of the metric for changes in words, and what to know beside them: that steps hold other
    work, and how far a replay can be trusted. Raises as `whatif_steps` and `capture_job` do."""
    changes = [parse_change(word) for word in words]
    job = capture_job(con, scope)
    rows = whatif_steps(con, job, changes)
    return rows, changed_work(con, job, changes, rows) + whatif_notes(job, changes)


def predicted_steps(job: CaptureJob, other: Other) -> pl.DataFrame:
    """`whatif_steps` without its keys and `saved`, which takes most of its time."""
    return _steps(job, other)[0]


def _steps(job: CaptureJob, other: Other) -> tuple[pl.DataFrame, Other]:
    """The rows, and what they are predicted from: with kernels that lose as much beside transfers
    as was measured."""
    measured = job.measured.lengths()
    replayed = job.replay.lengths()
    times = job.times(other.waits)
    alone = predicted = span_of(job.ops, times).lengths() + other.added_ns
    crowded = crowded_by(job, other, times)
    del times  # of all operations, twice: too much at once of a large job
    if crowded is not other:
        predicted = job.span(crowded.waits).lengths() + other.added_ns
    variants = [alone, predicted]
    if job.ops.exogenous.any():
        outside = replace(other.waits, transfer=other.outside)
        variants.append(job.span(outside).lengths() + other.added_ns)
        variants.append(_waiting_for_others(job, alone, replayed))
    change = alone - replayed
    lost = job.contention.lost_ratio
    share = job.residue.max(axis=1) + (_UNKNOWN_CONTENTION if lost is None else 0)
    margin = np.abs(replayed - measured) + np.abs(change) * share
    differs = (change - other.added_ns).astype(float)  # what is added is known of each step
    # Evaluations differ from steps of training by what they are, not by chance.
    kinds = np.array([step in job.forward for step in job.ops.steps], np.int64)
    counts = np.bincount(kinds)
    differs -= (np.bincount(kinds, weights=differs) / np.maximum(counts, 1))[kinds]
    if freedom := len(differs) - np.count_nonzero(counts):
        margin = margin + 2 * np.sqrt(differs @ differs / freedom / len(differs))
    margin = margin + np.where(change != 0, _LEAST_ERROR * replayed, 0)
    unsure = (job.residue + job.exogenous).max(axis=1)
    gaps = np.maximum(np.minimum(unsure, 1.0) * measured - _LEAST_ERROR * replayed, 0)
    if other.added_as == "schedule":  # whoever executed the passes tells the whole range
        variants, margin, gaps = [predicted], np.zeros(len(change)), np.zeros(len(change))
    low = np.min(variants, axis=0) - margin - other.unsure_ns[0]
    high = np.max(variants, axis=0) + margin + other.unsure_ns[1]
    if other.is_told or gaps.any():
        removed, added = _most_changed(job, other)
        # What nothing explains, or whose members are not known, may wait for what changes.
        low = low - np.clip(removed - np.abs(change), 0, gaps)
        high = high + np.clip(added - np.abs(change), 0, gaps)
    low = np.maximum(low, 0)
    if other.is_told:
        if lost is None and (job.ops.is_communication & _differs(job, other)).any():
            removed = removed + np.abs(change) * _UNKNOWN_CONTENTION
        error = np.abs(replayed - measured)
        low = np.maximum(low, np.minimum(measured - removed - error, np.min(variants, axis=0)))
        high = np.minimum(high, np.maximum(measured + added + error, np.max(variants, axis=0)))
    columns = [measured, replayed, predicted, low, high]
    rows = [
        (step, *(round(float(one[at])) for one in columns)) for at, step in enumerate(job.ops.steps)
    ]
    rows.append((None, *(round(float(one[job.usual].mean())) for one in columns)))
    names = ("step", "measured_step_ns", "replayed_step_ns", "predicted_step_ns",
             "predicted_low_ns", "predicted_high_ns")  # fmt: skip
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row"), crowded


def _most_changed(job: CaptureJob, other: Other) -> tuple[Ratios, Ratios]:
    """What operations of each step take less, and what they take more, where that is the most: on
    one way through the graph, which no step gains or loses more than, or on one rank, as the graph
    may lack an edge."""
    before = job.waits.transfer
    shorter = before - np.minimum(other.waits.transfer, other.outside)
    longer = np.maximum(other.waits.transfer, other.outside) - before
    return _most_of(job, np.maximum(shorter, 0)), _most_of(job, np.maximum(longer, 0))


def _most_of(job: CaptureJob, spent: Integers) -> Ratios:
    """Of times of operations, those of each step that most lie after another or on one rank."""
    ops, waits = job.ops, job.waits
    shape = (len(ops.steps), len(ops.ranks))
    if not spent.any():
        return np.zeros(shape[0])
    inside = ops.step >= 0
    cell = ops.step[inside].astype(np.int64) * shape[1] + ops.rank[inside]
    weights = spent[:-1][inside].astype(np.float64)
    of_rank = np.bincount(cell, weights=weights, minlength=shape[0] * shape[1]).reshape(shape)
    # Where all else takes no time, an operation ends at the sum of the longest way to its end.
    alone = replace(
        waits, transfer=spent, lag=np.zeros_like(waits.lag), gap=np.zeros_like(waits.gap),
        host=np.zeros_like(waits.host),
    )  # fmt: skip
    ends = np.maximum.accumulate(job.span(alone).ends.max(axis=1))
    ratios: Ratios = np.maximum(np.diff(ends, prepend=0), of_rank.max(axis=1))
    return ratios


def _differs(job: CaptureJob, other: Other) -> Flags:
    """Operations that last longer or shorter."""
    differs: Flags = (other.waits.transfer != job.waits.transfer)[:-1]
    return differs


def crowded_by(job: CaptureJob, other: Other, times: Timetable) -> Other:
    """The same with kernels that lose as much beside transfers as was measured, wherever they now
    are (`times`: without that); what nothing changes stays as it is."""
    waits = other.waits
    for _ in range(_ROUNDS if job.contention.lost_ratio else 0):
        durations = job.contention.stretch(job.ops, other.waits, times, other.hidden_ns)
        waits = replace(other.waits, transfer=durations)
        times = job.times(waits)
    return other if waits is other.waits else replace(other, waits=waits)


def _mean_savings(
    before: Sequence[Mapping[Part, int]] | None,
    after: Sequence[Mapping[Part, int]] | None,
    steps: Sequence[int],
) -> list[dict[str, str | int | None]] | None:
    """Means over steps, the largest first; what comes out at 0 is left out."""
    if before is None or after is None:
        return None
    parts = sorted({part for at in steps for part in (*before[at], *after[at])}, key=str)
    means = [
        (part, sum(before[at].get(part, 0) - after[at].get(part, 0) for at in steps) / len(steps))
        for part in parts
    ]
    means.sort(key=lambda one: -abs(one[1]))
    return [{"part": part, "kind": kind, "saved_ns": round(ns)} for (part, kind), ns in means if ns]


def _waiting_for_others(job: CaptureJob, predicted: Integers, replayed: Integers) -> Integers:
    """Members that were not captured do not get faster: what is saved may all become waiting for
    them, in the steps that have such operations."""
    ops = job.ops
    has_others = np.zeros(len(ops.steps), bool)
    has_others[ops.step[ops.exogenous & (ops.step >= 0)]] = True
    return np.where(has_others, np.maximum(predicted, replayed), predicted)


def whatif_notes(job: CaptureJob, changes: Sequence[Change] = ()) -> list[str]:
    """The trust statement of the replay, and what a range is made of."""
    notes = replay_notes(job, replay(job))
    lost = job.contention.lost_ratio
    basis = (
        Message("a tenth of the change, as too few kernels beside transfers can be compared")
        if lost is None
        else Message(
            "what kernels lose beside transfers ({lost} of that time, measured here)",
            lost=percent(lost),
        )
    )
    notes.append(
        Message(
            "a range holds the error of the replay, half a per cent of the step, what the change"
            " differs from step to step, the share of time that nothing explains, and {contention}",
            contention=basis,
        )
    )
    if job.ops.exogenous.any():
        notes.append(
            Message(
                "members that were not captured may wait or not: the range goes from their changing"
                " alike to their changing nothing"
            )
        )
    if any(one.target == "hide" for one in changes):
        notes.append(
            Message(
                "what else can run beside hidden transfers is not told by a capture: the range goes"
                " from the kernel that follows each to all computing of its step"
            )
        )
    if job.forward and any(one.target in ("micro_batches", "schedule") for one in changes):
        notes.append(
            Message(
                "steps without gradients ({steps}) are taken as they ran: the mean holds them, too,"
                " and changes by less than a step of training",
                steps=numbers([one for one in job.forward if one is not None]),
            )
        )
    if any(one.value == "median" for one in changes) and job.ops.names["shapes"].is_null().all():
        notes.append(
            Message(
                "no shapes were recorded: kernels whose work differs between ranks became alike,"
                " too, so that the gain may be that of balanced work"
            )
        )
    return notes + _long_steps(job)


def _long_steps(job: CaptureJob) -> list[str]:
    """Steps in the mean that are as long as warm-up steps would be: a step that is the mean of a
    checkpoint's and of usual ones never ran."""
    lengths = job.measured.lengths()[job.usual]
    # Beside many short evaluations a step of training is none of these.
    trained = job.measured.lengths()[job.trained]
    median = float(np.median(trained)) if len(trained) else 0.0
    distance = float(np.median(np.abs(trained - median))) if len(trained) else 0.0
    is_long = (lengths > _LONG * median) & (lengths > median + _LONG_DISTANCES * distance)
    if len(trained) < _LEAST_STEPS or not is_long.any():
        return []
    return [
        Message(
            "the mean holds long steps ({steps}: up to {longest} ms, usually {usual} ms), as all"
            " means do: without them {without} ms were measured, of which a gain is a larger share",
            steps=numbers(np.array(job.ops.steps)[job.usual][is_long].tolist()),
            longest=ms(float(lengths.max())), usual=ms(median),
            without=ms(float(lengths[~is_long].mean())),
        )
    ]  # fmt: skip


def changed_work(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, changes: Sequence[Change],
    steps: pl.DataFrame, step: int | None = None,
) -> list[str]:  # fmt: skip
    """That steps of training in the mean of `whatif_steps`, or one step, hold other work with the
    changes, where they do."""
    if not any(one.target == "micro_batches" for one in changes) or step in job.forward:
        return []
    counts = apply_change(con, job, changes).micro_batches
    if counts is None:
        return []
    rows = steps[job.trained] if step is None else steps.filter(pl.col("step") == step)
    before, after = rows.select(pl.col("measured_step_ns", "predicted_step_ns").mean()).row(0)
    return [work_note(*counts, before, after)]


@dataclass(frozen=True, slots=True)
class Gain:
    """ns that a step gets shorter by, and between what; of a step that takes `measured_ns`.
    `lacks_members`: members of its operations were not captured."""

    gain_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    lacks_members: bool

    @property
    def is_unknown(self) -> bool:
        """Whether what other members do meanwhile decides if anything is gained: what takes less
        time costs none by itself."""
        return self.lacks_members and self.gain_ns < 0 < self.high_ns


def gain_of(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, words: Sequence[str],
    *, beside: Sequence[str] = (), step: int | None = None, is_estimated: bool = False,
) -> Gain:  # fmt: skip
    """Of the mean step, or of one: what the changes gain beyond those beside them, which are made
    in both. `is_estimated`: factors come from the capture, so what they leave may be less. Raises
    CannotAnswer and UsageError."""
    row = _predict(con, job, [*beside, *words], step, is_estimated)
    replayed, measured = row["replayed_step_ns"], row["measured_step_ns"]
    others = 0
    if beside:
        others = replayed - _predict(con, job, beside, step)["predicted_step_ns"]
    return Gain(
        replayed - row["predicted_step_ns"] - others,
        measured - row["predicted_high_ns"] - others,
        measured - row["predicted_low_ns"] - others, measured, bool(job.ops.exogenous.any()),
    )  # fmt: skip


def _predict(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, words: Sequence[str], step: int | None,
    is_estimated: bool = False,
) -> dict[str, int]:  # fmt: skip
    other = apply_change(con, job, [parse_change(word) for word in words])
    times = predicted_steps(job, replace(other, is_told=other.is_told and not is_estimated))
    row = times.row(-1, named=True)
    for own in times.filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64))).to_dicts():
        row = own
    return row
