"""What a job would gain: its steps replayed with other durations, and what makes them long.

S, M_s and M_w are those of the published straggler analysis; docs/whatif.md says how they are
defined and what they leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..wording import percent
from .changes import Change
from .graph import Times
from .phases import GATHER, RECEIVES, SCATTER, SENDS, PhaseJob

Mask = NDArray[np.bool_]  # by node and DP rank, each axis possibly of length one
Rescale = Callable[[Times], Times]  # durations of some steps, from those as they were

_PASSES = {
    "forward-pp-comm": (SENDS[0], RECEIVES[0]),
    "backward-pp-comm": (SENDS[1], RECEIVES[1]),
}
_COMM = {"pp": (*SENDS, *RECEIVES), "dp": (GATHER, SCATTER)}
TARGETS = ("ideal", "optype", "comm", "stage", "dp_rank", "worker", "rank")
_WORST_SHARE = 0.03
_LONGEST_S = 9e9  # more is no integer of ns
_CELLS = 4_000_000  # durations that are replayed at once


@dataclass(frozen=True, slots=True)
class Alone:
    """Steps where only one optype, stage, DP rank or worker takes its own time and everything else
    the ideal: seconds by step."""

    kind: str
    name: str
    lengths_s: Times


# metric: whatif
# What would a training step take, were some of its phases faster or all workers alike?
#
# Of a phase-level trace: the structure of a step is replayed with durations as they were, ideal, or
# changed. Means over steps; launch delays are left out of every replay. Errors are of single steps.
#
# title: What if
# meaning: A job's step as measured, replayed, ideal and changed, and what makes it longer.
# command: whatif
#
#   steps_count          bigint   steps of the trace
#   measured_ns          bigint   from the first start to the last end of a step
#   replayed_ns          bigint   the same replayed, without launch delays
#   ideal_ns             bigint   if all phases of a type took the same time
#   predicted_ns         bigint   replayed with the changes asked for; NULL: none was
#   slowdown             double   S: replayed / ideal
#   launch_slowdown      double   measured / replayed
#   last_stage_share     double   M_s: of replayed - ideal, what an ideal last stage saves
#   worst_workers_share  double   M_w: the same of the 3 % of workers that slow most
#   worst_workers        bigint[] these workers: [DP rank, stage]
#   replay_error_median_ratio          double  |replayed - measured| / measured of a step
#   replay_error_p90_ratio             double  the same, of the worst tenth at least
#   replay_error_max_ratio             double  the same, at most
#   scaled_error_median_ratio          double  the same after launch_slowdown is made good
#   scaled_error_p90_ratio             double  the same, of the worst tenth at least
#   scaled_error_max_ratio             double  the same, at most
#   nothing_changes_error_median_ratio double  the same if the mean step is taken for every step
#   nothing_changes_error_p90_ratio    double  the same, of the worst tenth at least
#   nothing_changes_error_max_ratio    double  the same, at most
#   steps                struct[] step, measured_ns, replayed_ns, ideal_ns, predicted_ns, slowdown
#   contributions        struct[] kind, name, slowdown: S_x, if only x took its own time
def what_if(job: PhaseJob, changes: Sequence[Change] = ()) -> pl.DataFrame:
    """The row of the metric. Raises UsageError where a change is of nothing here."""
    changed = _apply_changes(job, changes)
    ideal = float(job.graph.lengths(job.ideal_s[:, None, None])[0])
    replayed = _lengths(job, lambda own: own)
    with np.errstate(over="ignore", invalid="ignore"):
        predicted = _lengths(job, changed) if changes else None
    if predicted is not None and not predicted.max() < _LONGEST_S:
        raise UsageError(
            Message(
                "with {changes} a step would last centuries",
                changes=" ".join(one.word for one in changes),
            )
        )
    alone = contributions(job)
    worst = _worst_workers(job, alone)
    measured = job.measured_s
    last_stage: Mask = (job.stages == job.stages_count - 1)[:, None]
    mean, mean_replayed = float(measured.mean()), float(replayed.mean())
    launch_slowdown = _ratio(mean, mean_replayed)
    errors = {"replay": replayed / measured}
    if len(job.steps) > 1 and launch_slowdown is not None:  # of one step, a mean is the step itself
        errors["scaled"] = replayed * launch_slowdown / measured
        errors["nothing_changes"] = mean / measured
    by_step = (measured, replayed, replayed if predicted is None else predicted)
    return pl.DataFrame([{
        "steps_count": len(job.steps),
        "measured_ns": _ns(mean), "replayed_ns": _ns(mean_replayed), "ideal_ns": _ns(ideal),
        "predicted_ns": None if predicted is None else _ns(float(predicted.mean())),
        "slowdown": _ratio(mean_replayed, ideal), "launch_slowdown": launch_slowdown,
        "last_stage_share": _saved_share(job, last_stage, replayed, ideal),
        "worst_workers_share": _saved_share(job, _of_workers(job, worst), replayed, ideal),
        "worst_workers": worst,
        **{f"{name}_error_{rank}_ratio":
               float(np.quantile(np.abs(errors[name] - 1), share)) if name in errors else None
           for name in ("replay", "scaled", "nothing_changes")
           for rank, share in (("median", 0.5), ("p90", 0.9), ("max", 1.0))},
        "steps": [
            {"step": step, "measured_ns": _ns(one), "replayed_ns": _ns(two),
             "ideal_ns": _ns(ideal), "predicted_ns": None if predicted is None else _ns(three),
             "slowdown": _ratio(two, ideal)}
            for step, one, two, three in zip(job.steps, *by_step, strict=True)
        ],
        "contributions": [
            {"kind": one.kind, "name": one.name,
             "slowdown": _ratio(float(one.lengths_s.mean()), ideal)}
            for one in alone
        ],
    }], schema_overrides={"predicted_ns": pl.Int64})  # fmt: skip


def contributions(job: PhaseJob) -> list[Alone]:
    """What each optype, stage, DP rank and worker alone makes of an ideal step. Both ends of a
    transfer in the pipeline count as one optype, as published."""
    grouped = {part: name for name, parts in _PASSES.items() for part in parts}
    of_node = np.array([grouped.get(name, name) for name in job.optypes.tolist()])
    rows = []
    for kind, names, values in (
        ("optype", of_node, sorted({*of_node.tolist()})),
        ("stage", job.stages, range(job.stages_count)),
    ):
        rows += [Alone(kind, str(one), _lengths_of(job, (names == one)[:, None])) for one in values]
    every = _alone_by_peer(job, np.ones(len(job.stages), bool))
    rows += [Alone("dp_rank", str(peer), every[:, at]) for at, peer in enumerate(job.dp_ranks)]
    for stage in range(job.stages_count):
        worker = _alone_by_peer(job, job.stages == stage)
        rows += [Alone("worker", f"{peer},{stage}", worker[:, at])
                  for at, peer in enumerate(job.dp_ranks)]  # fmt: skip
    return rows


def trust_notes(row: dict[str, Any], job: PhaseJob) -> list[str]:
    """How far the replay of a row of the metric can be trusted, and what it leaves out."""
    error, most = (percent(row[f"replay_error_{one}_ratio"]) for one in ("median", "max"))
    notes: list[str] = [
        Message(
            "the replay misses the measured steps by {error} (median; at most {most}): launch"
            " delays are left out of it, and of every prediction",
            error=error, most=most,
        )
    ]  # fmt: skip
    if row["scaled_error_median_ratio"] is None:
        note = Message("one step: nothing shows whether the replay tells steps apart")
    else:
        note = Message(
            "with an equal share of launch delays in every step the replay misses by {scaled}; the"
            " mean step, taken for every step, misses by {constant} (medians): only where the first"
            " is well below the second does the replay tell steps apart",
            scaled=percent(row["scaled_error_median_ratio"]),
            constant=percent(row["nothing_changes_error_median_ratio"]),
        )  # fmt: skip
    notes.append(note)
    if job.left_out:
        note = Message("left out of the replay, which has no rule for them: {optypes}",
                       optypes=", ".join(job.left_out))  # fmt: skip
        notes.append(note)
    return notes


def _lengths(job: PhaseJob, changed: Rescale) -> Times:
    """Seconds of each step with changed durations; where they are the same in all, of one step."""
    nodes, steps, peers = job.own_s.shape
    at_once = max(1, _CELLS // (nodes * peers))
    parts = [job.own_s[:, at : at + at_once] for at in range(0, steps, at_once)]
    return np.concatenate([job.graph.lengths(changed(part)) for part in parts])


def _lengths_of(job: PhaseJob, mask: Mask) -> Times:
    """The same with own durations where the mask says so, ideal ones elsewhere."""
    choice, ideal = mask[:, None, :], job.ideal_s[:, None, None]
    return _lengths(job, lambda own: np.where(choice, own, ideal))


def _alone_by_peer(job: PhaseJob, nodes: Mask) -> Times:
    """Seconds by step and DP rank of steps where only that rank takes its own time, at some nodes.

    All others being alike, one of them stands for all: two columns for each DP rank.
    """
    steps, peers = job.own_s.shape[1:]
    times = np.empty((steps, peers))
    at_once = max(1, _CELLS // (2 * len(nodes) * peers))
    for at in range(0, steps, at_once):
        own = job.own_s[:, at : at + at_once].reshape(len(nodes), -1)
        pair = np.broadcast_to(job.ideal_s[:, None, None], (*own.shape, min(2, peers))).copy()
        pair[nodes, :, 0] = own[nodes]
        times[at : at + at_once] = job.graph.lengths(pair).reshape(-1, peers)
    return times


def _worst_workers(job: PhaseJob, alone: Iterable[Alone]) -> list[list[int]]:
    """The 3 % of workers (DP rank, stage) whose DP rank and stage both slow most, as published."""
    means = {(one.kind, one.name): float(one.lengths_s.mean()) for one in alone}
    # Rounded, lest the order of a sum decides between equals.
    scores = {
        (stage, peer): round(min(means["dp_rank", str(peer)], means["stage", str(stage)]), 12)
        for stage in range(job.stages_count)
        for peer in job.dp_ranks
    }
    ranked = sorted(scores, key=lambda one: (-scores[one], one))
    return [[peer, stage] for stage, peer in ranked[: math.ceil(len(ranked) * _WORST_SHARE)]]


def _saved_share(job: PhaseJob, mask: Mask, replayed: Times, ideal: float) -> float | None:
    """Of what is lost to an ideal step, the share that ideal durations of some save."""
    lost = float(replayed.mean()) - ideal
    without = _lengths_of(job, ~mask)
    return _ratio(float(replayed.mean()) - float(without.mean()), lost)


def _of_workers(job: PhaseJob, workers: Iterable[Sequence[int]]) -> Mask:
    mask = np.zeros((len(job.stages), len(job.dp_ranks)), bool)
    for peer, stage in workers:
        mask[job.stages == stage, job.dp_ranks.index(peer)] = True
    return mask


def _apply_changes(job: PhaseJob, changes: Sequence[Change]) -> Rescale:
    """Durations after all changes, numbers on what others left, whichever was written first. Raises
    UsageError."""
    steps = [(one.word, _mask_of(job, one), _value(one)) for one in changes]
    steps.sort(key=lambda one: (not isinstance(one[2], str), one[0]))

    def change(own: Times) -> Times:
        for _, mask, value in steps:
            new: Times = np.broadcast_to(job.ideal_s[:, None, None], own.shape)
            if value == "median":
                new = np.median(own, axis=2, keepdims=True)
            elif not isinstance(value, str):
                new = own * value
            own = np.where(mask[:, None, :], new, own)
        return own

    return change


def _value(change: Change) -> float | str:
    if change.target != "ideal":
        return change.factor("median", "ideal")
    if change.name or change.value:
        raise UsageError(Message("{change}: ideal stands alone", change=change.word))
    return "ideal"


def _mask_of(job: PhaseJob, change: Change) -> Mask:
    """What a change is of. Raises UsageError."""
    everything = np.ones((1, 1), bool)
    target, name = change.target, change.name
    if target not in TARGETS:
        raise UsageError(
            Message(
                "{change}: of a phase-level trace, change one of {targets}",
                change=change.word, targets=", ".join(TARGETS),
            )
        )  # fmt: skip
    if target == "ideal" or (name == "all" and target != "optype"):
        return everything
    if target in ("optype", "comm"):
        optypes = {**_PASSES} if target == "optype" else _COMM
        there = {*job.optypes.tolist()}
        names = optypes.get(name, ()) if target == "comm" or name in optypes else [
            one for one in there if fnmatchcase(one, name)
        ]  # fmt: skip
        mask: Mask = np.isin(job.optypes, [*names])[:, None]
        if not names or (target == "optype" and not mask.any()):
            raise change.no_such(optypes if target == "comm" else sorted(there))
        return mask
    workers = [(peer, stage) for stage in range(job.stages_count) for peer in job.dp_ranks]
    by_name: dict[str, list[tuple[int, int]]] = {}
    for peer, stage in workers:
        key = {"stage": str(stage), "dp_rank": str(peer)}.get(target, f"{peer},{stage}")
        by_name.setdefault(key, []).append((peer, stage))
    if target == "rank":
        by_name = {str(rank): [worker] for rank, worker in job.ranks.items()}
    if name not in by_name:
        raise change.no_such(by_name)
    return _of_workers(job, by_name[name])


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _ns(seconds: float) -> int:
    """The trace has seconds as floating-point numbers; whole ns are what leaves."""
    return round(seconds * 1e9)
