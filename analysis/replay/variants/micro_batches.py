"""Steps of more or fewer micro-batches: their schedule, with the blocks that were measured.

Ranks that meet within a micro-batch (tensor, expert, context parallel) make a block together: it
begins with the last of their inputs and ends with the last of their outputs. What blocks vary by
makes more micro-batches take longer than their means do: the slowest stage of the moment counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import duckdb
import numpy as np

from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message

from ...pipeline.tries import Ready
from ...ranks.stages import rank_stages
from ..captures import CaptureJob, Other
from ..changes import Change
from ..operations import replicas
from ..points import Integers
from ..waits import computed_before
from .pipeline import Picks, Pipeline, Times
from .schedules import execute_order, recognise_schedule, refuse_beside

_MOST = 10_000  # micro-batches
_DRAWS, _MOST_DRAWN = 256, 100_000  # steps; micro-batches of all of them
_LEAST_DRAWS = 8
_PASSES = ("send", "receive", "recv")


class _Lane(NamedTuple):
    """Transfers of one kind of a stage, by step and micro-batch: when the block before has been
    computed, and their times."""

    ready: Integers
    start: Integers
    end: Integers
    meet: Integers


def micro_batches(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change
) -> Other:
    """`micro_batches=16`: steps take as much longer as the schedule with the measured blocks."""
    if change.name or not change.value.isdigit() or not 0 < int(change.value) <= _MOST:
        raise UsageError(
            Message(
                "{change}: give a number of micro-batches, such as micro_batches=16",
                change=change.word,
            )
        )
    stages = rank_stages(con, job.run, job.capture)
    usual, count = np.array(job.usual), int(change.value)
    steps = len(usual)
    passes = _passes(con, job)
    if passes is not None and passes.measured.places > passes.measured.devices:
        # Transfers of two stages look the same whether these are chunks or micro-batches.
        return _by_passes(job, own, change, passes)
    try:
        recorded, pipelines = measured_pipelines(job, own, stages, change)
    except CannotAnswer:
        if passes is None:
            raise
        return _by_passes(job, own, change, passes)
    place = np.arange(recorded)[:, None]
    old = _longest(pipelines, np.tile(usual, (recorded, 1)), np.repeat(place, steps, axis=1))
    if count == recorded:
        return own
    new = _longest(pipelines, *_draw(usual, recorded, count))
    rest = job.replay.lengths()[usual] - old
    # Another run draws anew, as what was measured was drawn once.
    noise = new.var() * (1 / steps + count / ((recorded - 1) * steps))
    if steps > 1:
        noise += 2 * rest.var(ddof=1) / steps
    longer, unsure = new.mean() - old.mean(), 2 * float(np.sqrt(noise))
    return replace(
        own.unsure_by(unsure, unsure), added_ns=own.added_ns + round(float(longer)),
        micro_batches=(recorded, count),
    )  # fmt: skip


def _passes(con: duckdb.DuckDBPyConnection, job: CaptureJob) -> Ready | None:
    """The pipeline as kernels and operators tell it; None: they do not."""
    try:
        return recognise_schedule(con, job)
    except CannotAnswer:
        return None


def _by_passes(job: CaptureJob, own: Other, change: Change, passes: Ready) -> Other:
    """The schedule that was recognised, with other micro-batches: for where transfers do not tell
    these apart."""
    refuse_beside(job, own, change)
    ops = job.ops
    stages, recorded = passes.measured.devices, passes.measured.micro_batches
    batches = [at for at, name in enumerate(ops.types) if name.lower() == "batchsendrecv"]
    least = 2 * (stages - 1)  # passes until the first stage has its first backward
    if recorded < least and np.isin(ops.type, batches).any():
        raise change.refusal(
            "with batchSendRecv, {recorded} micro-batches on {stages} stages do not show how stages"
            " wait for each other in turn: record steps of {least} or more",
            recorded=recorded, stages=stages, least=least,
        )  # fmt: skip
    return execute_order(job, passes, own, None, int(change.value))


def _longest(pipelines: list[Pipeline], step: Picks, micro_batch: Picks) -> Times:
    longest: Times = np.max([one.lengths(step, micro_batch) for one in pipelines], axis=0)
    return longest


def _draw(steps: Picks, recorded: int, count: int) -> tuple[Picks, Picks]:
    """Recorded micro-batches of which many steps are made, each drawn with all its stages and
    passes. The last one of a step also reduces gradients: it is drawn from last ones."""
    chance = np.random.default_rng(0)
    shape = (count, max(min(_DRAWS, _MOST_DRAWN // count), _LEAST_DRAWS))
    place = chance.integers(0, recorded - 1, shape)
    place[-1] = recorded - 1
    return steps[chance.integers(0, len(steps), shape)], place


def measured_pipelines(
    job: CaptureJob, own: Other, stages: dict[int, int], change: Change
) -> tuple[int, list[Pipeline]]:
    """Micro-batches that were recorded, and the pipelines side by side. Raises CannotAnswer where
    the capture is no such job."""
    ops = job.ops

    stage_of = np.array([stages.get(rank, -1) for rank in ops.ranks])
    count = int(stage_of.max(initial=-1)) + 1
    if count < 2 or {*stage_of.tolist()} != {*range(count)}:
        raise change.refusal(
            "without transfers between all stages of a pipeline, micro-batches are not told"
        )
    passes = [at for at, name in enumerate(ops.types) if name.lower() in _PASSES]
    pp = [at for at, name in enumerate(ops.kinds) if name == "pp"]
    operations = np.flatnonzero(np.isin(ops.type, passes) & np.isin(ops.kind, pp) & (ops.step >= 0))
    types = {ops.types[at].lower() for at in np.unique(ops.type[np.isin(ops.kind, pp)]).tolist()}
    if not len(operations) and "batchsendrecv" in types:
        raise change.refusal(
            "batches of sends and receives (batchSendRecv) do not tell micro-batches apart"
        )
    if not len(operations) or ops.exogenous[operations].any():
        raise change.refusal(
            "sends and receives of all stages are needed, and which of them are one (chunks of a"
            " model on two stages do not tell): record all ranks of the job"
        )
    stage, instance = stage_of[ops.rank[operations]], ops.instance[operations]
    members = np.bincount(instance)[instance]
    other = np.bincount(instance, weights=stage)[instance] - stage
    if (members != 2).any() or (np.abs(other - stage) != 1).any():
        raise change.refusal("stages hold several chunks of the model, whose schedule is not known")
    starts, ends = job.times(own.waits)(slice(None))
    is_send = np.isin(
        ops.type[operations], [at for at in passes if ops.types[at].lower() == "send"]
    )
    key = ops.rank[operations] * 4 + np.where(is_send == (other > stage), 0, 2) + is_send
    order = np.lexsort((starts[operations], ops.step[operations], key))
    lane, steps = key[order], len(ops.steps)
    sizes = np.diff(np.append(np.flatnonzero(np.diff(lane, prepend=-1)), len(lane)))
    recorded, rest = divmod(int(sizes[0]), steps)
    rows = np.zeros((0, steps, 1), np.int64)
    if (sizes == sizes[0]).all() and not rest:
        rows = operations[order].reshape(-1, steps, recorded)
    if recorded < 2 or not len(rows) or (ops.step[rows] != np.arange(steps)[:, None]).any():
        raise change.refusal(
            "each stage must send and receive as often in every step, at least twice"
        )
    keys = lane.reshape(len(rows), -1)[:, 0]
    met = ends - own.waits.transfer[:-1]
    computed = starts.copy()
    after, before = computed_before(ops, ops.start + ops.dur)
    computed[after] = ends[before]
    replica = replicas(ops)
    pipelines = []
    for one in np.unique(replica).tolist():
        others = np.zeros((4, count))
        blocks: tuple[list[Times], list[Times]] = ([], [])
        for at in range(count):
            ranks = np.flatnonzero((replica == one) & (stage_of == at))
            lanes: list[_Lane | None] = []
            for number in range(4):
                its = rows[np.isin(keys, ranks * 4 + number)]
                times = (computed, starts, ends, met)
                lanes.append(_Lane(*(one[its].max(axis=0) for one in times)) if len(its) else None)
            measures = _blocks(lanes, count - at - 1) if len(ranks) else None
            if measures is None:
                raise change.refusal(
                    "forwards and backwards do not follow each other as in the schedule 1F1B"
                )
            blocks[0].append(measures[0])
            blocks[1].append(measures[1])
            others[:, at] = measures[2:]
        moved, ready = (others[0], others[1]), (others[2], others[3])
        pipelines.append(Pipeline(blocks, moved, ready))
    return recorded, pipelines


def _blocks(
    lanes: list[_Lane | None], warm_up: int
) -> tuple[Times, Times, float, float, float, float] | None:
    """Of a stage: forward, backward, transfers and readiness as in `Pipeline`; None where its order
    is another. `lanes`: receives and sends forward, then backward; None where it has none."""
    receive, send, receive_back, send_back = lanes
    both = (receive, receive_back)
    moved = [0.0 if one is None else float(np.mean(one.end - one.meet)) for one in both]
    # Where a stream is busy a transfer starts later than it could.
    ready = [0.0 if one is None else float(np.min(one.start - one.ready)) for one in both]
    if receive_back is None:  # the last stage
        if receive is None or send_back is None:
            return None
        whole = (send_back.ready - receive.end).astype(float)
        return whole, whole, moved[0], moved[1], ready[0], ready[1]
    if send is None:
        return None
    sent, ended = send.ready, receive_back.end
    count = sent.shape[1]
    last = min(warm_up, count - 1)  # the forward before the first backward
    if (sent[:, last] > ended[:, 0]).any() or (sent[:, last + 1 :] < ended[:, :1]).any():
        return None
    if receive is not None:
        if send_back is None:
            return None
        pair = (sent - receive.end).astype(float), (send_back.ready - ended).astype(float)
        return *pair, moved[0], moved[1], ready[0], ready[1]
    # The first stage receives no input: a forward follows another one, or a backward.
    forward = np.zeros(sent.shape)
    forward[:, 1 : last + 1] = np.diff(sent[:, : last + 1], axis=1)
    forward[:, 0] = forward[:, last + 1 :] = forward[:, 1 : last + 1].mean()
    backward = np.zeros(sent.shape)
    backward[:, :-1] = receive_back.ready[:, 1:] - ended[:, :-1]
    backward[:, : count - last - 1] = (
        sent[:, last + 1 :] - ended[:, : count - last - 1] - forward[:, :1]
    )
    backward[:, -1] = backward[:, :-1].mean()
    return forward, backward, moved[0], moved[1], ready[0], ready[1]
