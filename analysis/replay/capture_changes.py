"""What changes make of a capture: other durations of its operations, or another host.

Each change works on what those before it left, in an order of their own, not as they were written.
What a capture does not tell is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import duckdb
import numpy as np

from npuscope.errors import UsageError
from npuscope.messages import Message

from .captures import CaptureJob, Other, scale
from .changes import Change
from .operations import Operations, programs
from .points import Indices, Integers
from .stages import of_stages
from .variants import structure
from .variants.experts import experts
from .variants.hierarchy import hierarchical
from .variants.host_causes import host_cause
from .variants.ideal import ideal
from .variants.micro_batches import micro_batches
from .variants.payloads import payloads
from .variants.schedules import schedule

# Multiply durations of operations and leave all else; but for values that tell no factor.
_KINDS = ("comm", "kernel", "link", "rank", "stage")
_ESTIMATES = ("median", "mean")
_WITHIN_STEPS = "steps"  # of the host
_WHOLE = ("fuse", "hide", "hierarchical")  # take no value
_RARE, _RARE_NS = 1.0, 20_000  # beyond the usual pause of a place


def apply_change(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, changes: Sequence[Change]
) -> Other:
    """Raises UsageError where a change is of nothing here, CannotAnswer where the capture does not
    tell."""
    own = Other(job.waits, job.waits.transfer, np.ones(len(job.ops.rank)))
    for one in changes:
        if one.target == "schedule" and len(changes) > 1:
            raise UsageError(
                Message(
                    "{change}: passes run as measured here: this change stands alone",
                    change=one.word,
                )
            )
        if one.target not in TARGETS:
            raise UsageError(
                Message(
                    "{change}: of a capture, change one of {targets}",
                    change=one.word, targets=", ".join(TARGETS),
                )
            )  # fmt: skip
        if one.target in _WHOLE and one.value:
            raise UsageError(
                Message(
                    "{change}: there is no part of it: write {whole}",
                    change=one.word, whole=f"{one.target}:{one.name}",
                )
            )  # fmt: skip
    for one in sorted(changes, key=_turn):
        own = _CHANGES[one.target](con, job, own, one)
    return replace(own, is_told=all(map(_is_told, changes)))


def _is_told(change: Change) -> bool:
    return change.target in _KINDS and change.value not in _ESTIMATES


def _turn(change: Change) -> tuple[int, str]:
    """Place among changes, whichever was written first: numbers multiply what others estimate."""
    return TARGETS.index("kernel" if _is_told(change) else change.target), change.word


def _factor(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`comm:KIND` and `kernel:PATTERN`, `kernel:PATTERN@INPUT_SHAPES`."""
    ops = job.ops
    factor = change.factor()
    assert not isinstance(factor, str)
    mask = np.zeros(len(ops.rank) + 1, bool)
    if change.target == "comm":
        within = mask.copy()
        mask[:-1], within[:-1] = structure.communication_of(ops, change)
        pace = own.pace * np.where(mask[:-1], factor, 1.0)
        return replace(own.scale(within, factor, mask), pace=pace)
    names = ops.names["name"].fill_null("").unique().to_list()
    is_whole = change.name in ops.types or change.name in names
    pattern, shapes = (change.name, "") if is_whole else change.kernel()
    alike = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
    by_type = [
        at for at, name in enumerate(ops.types) if name == pattern or fnmatchcase(name, pattern)
    ]
    mask[:-1] = ops.is_kernel & (
        np.isin(ops.type, by_type) | ops.names["name"].is_in(alike).to_numpy()
    )
    if shapes:
        shapes_here = ops.names["shapes"].fill_null("").str.strip_chars('"')
        mask[:-1] &= shapes_here.eq(shapes).to_numpy()
    if not mask.any():
        raise change.no_such(sorted({ops.types[at] for at in ops.type[ops.is_kernel]}))
    return own.scale(mask, factor)


def _host(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`host`, `host:steps` without what lies between steps, or `host:NAME` of the ranks of one
    host; `host:free` is `host=0`."""
    ops = job.ops
    if not ops.has_launches:
        raise change.refusal(
            "no launches were recorded, so the host's time is not known: record"
            " CPU activities, too (`npuscope doctor`)"
        )
    is_free = change.name == "free" and not change.value
    factor = 0.0 if is_free else change.factor()
    assert not isinstance(factor, str)
    launched = job.waits.launches
    mask = np.ones(len(launched), bool)
    if change.name == _WITHIN_STEPS:
        mask[_begins(ops, launched)] = False
    elif change.name and not is_free:
        hosts = dict(con.execute(
            "select rank, host_name from ranks where run = ? and capture = ?",
            [job.run, job.capture],
        ).fetchall())  # fmt: skip
        of_rank = np.array([hosts.get(rank) == change.name for rank in ops.ranks])
        if not of_rank.any():
            raise change.no_such(sorted({name for name in hosts.values() if name}))
        mask = of_rank[ops.rank[launched]]
    pauses = own.waits.pauses()
    rare = np.where(factor, _hiccups(job, pauses), 0)
    return replace(own, waits=own.waits.with_pauses(scale(pauses - rare, mask, factor) + rare))


def _between_steps(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change
) -> Other:
    """`between_steps=0`: what a rank's host takes before the first launch of a step after another,
    and what nothing explains before its first operation."""
    factor = change.factor()
    assert not isinstance(factor, str)
    ops, waits = job.ops, own.waits
    first, launched = (_begins(ops, order) for order in (np.arange(len(ops.rank)), waits.launches))
    if not len(first):
        raise change.refusal(
            "one step was recorded, so nothing lies between steps"
            if len(ops.steps) == 1
            else "no step and the next one were recorded, so nothing lies between steps"
        )
    pauses, gap = waits.pauses(), waits.gap.copy()
    pauses[launched] = np.round(pauses[launched] * factor)
    is_root = np.diff(waits.points.first)[waits.points.place[first]] == 0
    if is_root.any():
        raise change.refusal("what begins a step on some rank waits for nothing that was recorded")
    gap[first] = np.round(np.maximum(gap[first], 0) * factor) + np.minimum(gap[first], 0)
    return replace(own, waits=replace(waits.with_pauses(pauses), gap=gap))


def _begins(ops: Operations, order: Indices | Integers) -> Integers:
    """Where in such an order a rank's step begins after the one before it: what lies between
    steps that do not follow each other holds others."""
    places = np.flatnonzero(ops.step[order] >= 0)
    rank = ops.rank[order[places]].astype(np.int64)
    latest = np.maximum.accumulate(rank * len(ops.steps) + ops.step[order[places]])
    is_first = (np.diff(latest, prepend=latest[:1]) == 1) & (np.diff(rank, prepend=rank[:1]) == 0)
    is_first[1:] &= ops.is_followed[latest[:-1] % len(ops.steps)]
    begins: Integers = places[is_first]
    return begins


def _hiccups(job: CaptureJob, pauses: Integers) -> Integers:
    """What of a pause between launches is much beyond what the host takes at this place of its
    program in other steps and on other ranks: a faster or slower host has it, too."""
    ops, launched = job.ops, job.waits.launches
    rank, step = ops.rank[launched], ops.step[launched]
    begins = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(step, prepend=-2) != 0))
    alike: dict[bytes, list[int]] = {}
    lengths = np.diff(np.append(begins, len(launched)))
    for at, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        alike.setdefault(ops.type[launched[at : at + length]].tobytes(), []).append(at)
    hiccups = np.zeros(len(pauses), np.int64)
    for program, places in alike.items():
        length = len(program) // ops.type.itemsize
        its = np.array(places)[:, None] + np.arange(length)
        usual = np.median(pauses[its], axis=0)
        usual = np.maximum(usual, np.median(usual))
        if len(places) > 2:
            beyond = pauses[its] - usual
            is_rare = (beyond > _RARE * usual) & (beyond > _RARE_NS)
            hiccups[its] = np.where(is_rare, np.round(beyond), 0)
    return hiccups


def _link(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`link:3-7` between two ranks, `link:3` of one, `link:HCCS` of a type, `link:all`: what moves
    bytes takes another time; an operation takes as long as its slowest transfer."""
    factor = change.factor()
    assert not isinstance(factor, str)
    ops = job.ops
    # Of links that change together, the slowest transfer is sought among what is left of all.
    moved = payloads(con, job, own, change)
    is_comm = ops.is_communication
    ends = moved.select("src_rank", "dst_rank").to_numpy()
    name = change.name
    parts = name.split("-")
    if all(part.isdigit() for part in parts) and len(parts) <= 2:
        ends_here = [int(part) for part in parts]
        hit = np.all([(ends == one).any(axis=1) for one in ends_here], axis=0)
    else:
        hit = np.array([name in ("all", link) for link in moved["link"].to_list()], bool)
    if not hit.any():
        pairs = sorted({f"{min(a, b)}-{max(a, b)}" for a, b in ends.tolist()})
        raise change.no_such([*moved["link"].drop_nulls().unique().sort(), *pairs])
    instance = ops.instance[moved["at"].to_numpy()]
    payload = moved["payload_ns"].cast(float).to_numpy().astype(np.int64)
    count = job.waits.meetings
    before, after = np.zeros(count, np.int64), np.zeros(count, np.int64)
    left = np.where(hit, np.round(payload * factor), payload).astype(np.int64)
    np.maximum.at(before, instance, payload)
    np.maximum.at(after, instance, left)
    shorter = np.where(is_comm, (before - after)[np.maximum(ops.instance, 0)], 0)
    shorter = np.round(shorter * own.pace).astype(np.int64)
    outside, durations = own.outside.copy(), own.waits.transfer.copy()
    outside[:-1] = np.maximum(outside[:-1] - shorter, np.minimum(outside[:-1], 0))
    durations[:-1] = np.where(ops.exogenous, durations[:-1], outside[:-1])
    if not (shorter[~ops.exogenous] != 0).any() and not (before == after).all():
        raise change.refusal(
            "no operation over this link was recorded with its times on all its"
            " members: record all ranks of its groups, with their operations"
        )
    moved = moved.with_columns(payload_ns=left)
    return replace(own.with_durations(durations, outside), payloads=moved)


def _stage(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`stage:all=mean`: stages compute as long as the mean of them."""
    durations, outside = (
        of_stages(con, job, one, change) for one in (own.waits.transfer, own.outside)
    )
    return own.with_durations(durations, outside)


def _rank(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`rank:5=median`, `rank:all=median`: each kernel takes the median of its peers, the ranks that
    run the same program; one whose work differs among them (other shapes) takes as much less as
    the rank's kernels of that core with like shapes do. `rank:5=0.5` multiplies its kernels."""
    ops = job.ops
    value = change.factor("median")
    kernels = ops.is_kernel
    number = {str(rank): at for at, rank in enumerate(ops.ranks)}
    if change.name != "all" and change.name not in number:
        raise change.no_such(ops.ranks)
    ranks = range(len(ops.ranks)) if change.name == "all" else [number[change.name]]
    if not isinstance(value, str):
        mask = np.append(kernels & np.isin(ops.rank, [*ranks]), False)
        return own.scale(mask, value)
    shapes = ops.names["shapes"].rank("dense").fill_null(0).to_numpy()
    cores = ops.names["core"].rank("dense").fill_null(0).to_numpy()
    durations, is_there = own.waits.transfer.copy(), False
    for at in programs(ops):
        peers = ops.rank[at[:, 0]].tolist() if at.shape[1] else []
        peers_here = [one for one in peers if one in ranks]
        if len(peers) < 2 or not peers_here:
            continue
        is_there = True
        dur = own.waits.transfer[at]
        alike = (shapes[at] == shapes[at][0]).all(axis=0)
        core = cores[at[0]]
        middle = np.median(dur, axis=0)
        for one in peers_here:
            row = peers.index(one)
            # Of one rank alone: what the others take; of all: what all do.
            usual = middle if change.name == "all" else np.median(np.delete(dur, row, 0), axis=0)
            new = usual.copy()
            for kind in np.unique(core[~alike]):
                like = alike & (core == kind) & (dur[row] > 0)
                other = ~alike & (core == kind)
                if like.any():
                    new[other] = dur[row, other] * np.median(usual[like] / dur[row, like])
            durations[at[row]] = np.round(new).astype(np.int64)
    if not is_there:
        raise change.refusal(
            "no other rank ran the same kernels in the same order, so there are no"
            " peers to be alike: record all ranks of a stage"
        )
    outside = own.outside.copy()
    outside[:-1][kernels] = durations[:-1][kernels]
    return own.with_durations(durations, outside)


# In the order in which they work: how long operations last, what they move and when, the host, what
# waits for what; and in the end steps of other micro-batches, made of those that all else left.
_CHANGES = {
    "rank": _rank, "stage": _stage, "experts": experts, "ideal": ideal,
    "kernel": _factor, "comm": _factor, "link": _link, "hierarchical": hierarchical,
    "cause": host_cause, "host": _host, "between_steps": _between_steps,
    "remove": structure.remove, "fuse": structure.fuse, "hide": structure.hide,
    "micro_batches": micro_batches, "schedule": schedule,
}  # fmt: skip
TARGETS = tuple(_CHANGES)
