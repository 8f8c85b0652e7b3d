"""A capture's pipeline as it ran, and under other orders of its passes or with its layers placed
otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl

from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message

from ..replay.operations import replicas
from ..views import frame
from . import model_parts
from .execution import Times
from .measurement import MeasuredPasses, measure_passes
from .orders.gradients import reduced_shares
from .orders.order_file import read_order
from .orders.other_orders import ExecutedOrder, Facts, held_micro_batches, needed_overlap, run
from .orders.pairs import pair_ratios
from .passes import Pipeline
from .placement import layer_costs, layer_times, place_layers, settle_cuts
from .schedules import Schedule, schedule
from .slowness import slow_shares

MEASURED, PLACEMENT = "measured", "layers"
_LEAST_ERROR = 0.005  # of a step that changes at all
_MOST_TRIES = 32
_MOST_CHUNKS = 256
_MOST_CUTS = 256  # of layers, that are executed
_STEPS = """
    select step, step_ns from job_steps where run = ? and capture = ?"""
_HOSTS = """
    select rank, coalesce(host_uid, host_name) from ranks
    where run = ? and capture = ? and coalesce(host_uid, host_name) is not null"""
_LEVELS = """
    select rank, cast(median(end_bytes) as double) as end_bytes,
        cast(median(peak_bytes - end_bytes) as double) as kept_bytes
    from memory_steps
    where component = 'PTA' and level = 'allocated' and run = ? and capture = ?
    group by rank"""


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """An order to try: how it was asked for, the order, and how many layers its places get (None:
    as measured, else as even as can be)."""

    name: str
    order: Schedule
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A pipeline with all that other orders of it need.

    factual: the order that ran with the times of its own entries; again_ns: how long it takes by
    column executed as others are, which their passes are held against: what has its place in the
    entries that ran alone is in neither. spans_ns: from the first pass to the last one, by step,
    without what these wait for the step before on its devices.
    step_ns: mean of the job's steps that have passes, with all that is no pass. end_bytes:
    memory by stage at the end of a step; empty: unknown.
    """

    pipeline: Pipeline
    measured: MeasuredPasses
    facts: Facts
    factual: ExecutedOrder
    again_ns: Times
    spans_ns: Times
    step_ns: float
    end_bytes: tuple[float, ...]


def parse_tries(
    words: str, passes: MeasuredPasses, micro_batches: int | None
) -> list[OrderRequest]:
    """`vpp:2,zb-h1`: names of schedules, with chunks after a colon. Raises UsageError."""
    words_given = [word.strip() for word in words.split(",") if word.strip()]
    if not words_given or len(words_given) > _MOST_TRIES:
        raise UsageError(
            Message(
                "--try takes 1 to {most} names with commas between, such as vpp:2,zb-h1",
                most=_MOST_TRIES,
            )
        )
    tries = []
    for word in words_given:
        name, _, chunks = word.partition(":")
        if chunks and not (chunks.isdecimal() and 0 < int(chunks) <= _MOST_CHUNKS):
            raise UsageError(
                Message(
                    "{schedule}: after the colon stands a number of chunks, such as vpp:2",
                    schedule=word,
                )
            )
        m = micro_batches or passes.micro_batches
        order = schedule(name, passes.devices, m, int(chunks) if chunks else None)
        tries.append(OrderRequest(word, order))
    return tries


def ready(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> Ready:
    """What other orders need of a recognised pipeline. Raises CannotAnswer where its schedule or
    its passes are not known."""
    if pipeline.stages <= 1:
        raise CannotAnswer(Message("the job has one pipeline stage: there is no order to change"))
    return ready_in(con, pipeline, pipeline.passes, pipeline.schedule.order)


def ready_in(
    con: duckdb.DuckDBPyConnection,
    pipeline: Pipeline,
    passes: pl.DataFrame,
    order: Schedule | None,
) -> Ready:
    """The same for passes with numbers of chunks and micro-batches, in an order (None: unknown)."""
    if order is None:
        raise CannotAnswer(
            Message(
                "no known schedule was recognised in the passes, so their order cannot be changed:"
                " record all stages and the operators of the host"
            )
        )
    missing = sorted(set(range(pipeline.stages)) - set(pipeline.present))
    if missing:
        raise CannotAnswer(
            Message(
                "stage {missing} of {stages} was not captured: record a rank of every pipeline"
                " stage to try other orders",
                missing=", ".join(map(str, missing[:8])), stages=pipeline.stages,
            )
        )  # fmt: skip
    parameters = [pipeline.run, pipeline.capture]
    lengths = dict(frame(con, _STEPS, parameters).rows())
    hosts = dict(con.execute(_HOSTS, parameters).fetchall())
    together = dict(zip(pipeline.ops.ranks, replicas(pipeline.ops).tolist(), strict=True))
    measures = measure_passes(passes, order, hosts, together)
    lengths_ns = measures.ends_ns.max(axis=0) - measures.starts_ns.min(axis=0)
    lengths_of_steps = [lengths.get(step) for step in dict.fromkeys(measures.steps)]
    step_ns = float(np.mean([
        float(span) if length is None else max(float(length), float(span))
        for length, span in zip(lengths_of_steps, measures.by_step(lengths_ns), strict=True)
    ]))  # fmt: skip
    looks = model_parts.looks(pipeline.ops, passes, order.routes[0])
    parts = model_parts.parts(pipeline.ops, looks, measures.places)
    weights = model_parts.weight_shares(pipeline.ops, looks, measures.places)
    pairs = pair_ratios(pipeline.ops, model_parts.spans_of(looks, measures.places))
    ratio, least = pairs or (None, None)
    slow = slow_shares(pipeline.ops, passes, measures.ranks, together) or (None, None)
    facts = Facts(
        parts,
        weights,
        ratio,
        least,
        reduced=reduced_shares(pipeline.ops, passes, measures.steps, measures.ranks),
        slow_share=slow[0],
        slow_least=slow[1],
    )
    factual = run(measures, facts, order)
    late = measures.lengths(factual.graph, factual.durations_ns, late_ns=measures.late_ns())[1]
    spans_ns = measures.by_step(lengths_ns - (late - factual.lengths_ns))
    levels = frame(con, _LEVELS, parameters).rows()
    bytes_by_place, ends = _memory(measures, levels, factual)
    facts = replace(facts, kept_bytes=bytes_by_place)
    again_ns = run(measures, facts, replace(order)).lengths_ns  # a copy is executed as others are
    return Ready(pipeline, measures, facts, factual, again_ns, spans_ns, step_ns, ends)


def _memory(
    measures: MeasuredPasses, levels: Sequence[tuple[int, float, float]], factual: ExecutedOrder
) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
    """Bytes of a micro-batch by place, and by stage at the end of a step."""
    by_rank = {rank: (end, bytes_by_place) for rank, end, bytes_by_place in levels}
    its = [[by_rank[ranks[at]] for ranks in dict.fromkeys(measures.ranks) if ranks[at] in by_rank]
           for at in range(measures.devices)]  # fmt: skip
    if not all(its):
        return None, ()
    order = factual.graph.schedule
    counts, _ = held_micro_batches(measures, Facts(), factual)
    chunks = [count / float(order.share) for count in counts]
    bytes_by_place = [float(np.median([one[1] for one in own])) / max(most, 1.0)
            for own, most in zip(its, chunks, strict=True)]  # fmt: skip
    ends = tuple(float(np.median([one[0] for one in own])) for own in its)
    if min(bytes_by_place) <= 0:
        return None, ends
    return tuple(bytes_by_place[device] for device, _ in order.routes[0]), ends


def placed_layers(job: Ready, limit_bytes: float | None) -> OrderRequest:
    """The recognised order with layers placed so that its executed step is as short as can be, near
    to the cut of the shortest longest place or to what ran.

    limit_bytes: of a device, for what it holds at the end of a step (its layers' share of that) and
    what it keeps of micro-batches. Raises CannotAnswer.
    """
    passes, facts = job.measured, job.facts
    order = passes.graph.schedule
    if facts.parts is None:
        raise CannotAnswer(Message("the layers of the model were not told apart in the passes"))
    bytes_by_place = facts.kept_bytes or (0.0,) * passes.places
    _, bytes_ = layer_costs(
        facts.parts, [np.zeros(passes.places)] * 2, bytes_by_place, job.end_bytes
    )
    means = [np.nanmean(passes.alone_ns[kind], axis=1) for kind in ("F", "BW")]
    devices = [device for device, _ in order.routes[0]]
    slow = None if facts.slow_share is None else facts.slow_share[:, devices]
    times = layer_times(facts.parts, means, slow)
    needed = limits = None
    if limit_bytes is not None:
        if not job.end_bytes or facts.kept_bytes is None:
            raise CannotAnswer(
                Message("no memory was recorded on every stage: place layers without a limit")
            )
        if passes.places != passes.devices:
            raise CannotAnswer(Message("a memory limit is heeded where each device has one chunk"))
        counts, _ = held_micro_batches(passes, facts, job.factual)
        needed = [[stays + count * keeps for stays, keeps in bytes_] for count in counts]
        limits = [limit_bytes] * passes.places
    layers = place_layers(times, passes.places, needed, limits)
    if layers is None:
        raise CannotAnswer(
            Message(
                "{layers} layers do not fit on {places} places within that memory",
                layers=times.shape[-1], places=passes.places,
            )
        )  # fmt: skip

    def length_ns(cut: tuple[int, ...]) -> float:
        done = run(passes, facts, order, cut)
        return float(passes.by_step(done.lengths_ns + done.behind_ns).mean())

    each = Counter(one.place for one in facts.parts if one.is_layer)
    cuts = [tuple(layers), tuple(each[at] for at in range(passes.places))]
    return OrderRequest(PLACEMENT, order, settle_cuts(cuts, length_ns, _MOST_CUTS, needed, limits))


def asked_tries(
    job: Ready,
    words: str | None,
    micro_batches: int | None,
    files: Sequence[Path] = (),
    *,
    places_layers: bool = False,
    limit_bytes: float | None = None,
) -> list[OrderRequest]:
    """What is to be tried; the recognised schedule where only its micro-batches change. Raises
    UsageError and CannotAnswer."""
    tries = parse_tries(words, job.measured, micro_batches) if words is not None else []
    tries += [OrderRequest(path.name, read_order(path)) for path in files]
    if places_layers:
        tries.append(placed_layers(job, limit_bytes))
    if not tries and micro_batches is not None:
        named = job.pipeline.schedule
        order = schedule(named.name, job.measured.devices, micro_batches, named.chunks)
        tries.append(OrderRequest(named.name, order))
    return tries


def those_that_go(
    job: Ready, words: str, micro_batches: int | None
) -> tuple[str | None, list[str]]:
    """Of several names those that this pipeline can have, and a note for each other. Raises what
    the first is refused for where none goes; one name is left as it is."""
    words_given = [word.strip() for word in words.split(",") if word.strip()]
    if not 1 < len(words_given) <= _MOST_TRIES:
        return words, []
    words_here: list[str] = []
    notes: list[str] = []
    refused: list[UsageError | CannotAnswer] = []
    for word in words_given:
        try:
            for one in parse_tries(word, job.measured, micro_batches):
                try_order(job, one)
        except (UsageError, CannotAnswer) as error:
            refused.append(error)
            why = error.args[0] if error.args else str(error)
            notes.append(Message("{name} is left out: {why}", name=word, why=why))
        else:
            words_here.append(word)
    if not words_here:
        raise refused[0]
    return ",".join(words_here), notes


# metric: pipeline_tries
# What would a step take under another schedule of the pipeline?
#
# The first row is the order that ran (`measured`), executed with the measured times of its passes,
# the usual gaps of its devices and the usual lags of the links of each pipeline: how far its step
# lies from the measured one is the error of what follows. Where ranks of several pipelines exchange
# within passes, these begin when all are there, so that what one waits for the slow link of another
# is the link's. Links that nothing went over take what others usually do. The others are executed
# alike: of their passes each takes its share of what the same layers took, but what slow ranks make
# of it stays with these; the step takes as much longer or shorter as they do than the order that
# ran executed so, of which the distance to the measured step is in the range. 1F1B alone sends
# before it receives as it fills and drains.
# Where gradients of weights are made in passes of their own, and were not, or the other way round,
# chunks are more or fewer, or layers move, what reducing them then takes longer or shorter behind
# the last pass counts, too: with each reduction of as many layers as long as measured and ready at
# the same share of these passes.
# Further micro-batches repeat the measured ones. The range holds that error, half a per cent of the
# step, a per cent of the predicted step for the share of micro-batches that repeat, what steps
# differ, a quarter of the time of weight gradients where they were not measured apart, a quarter of
# what slow ranks and links make of passes where layers move (and that exchanges hide of slow
# kernels what they hide here), that links that nothing went over are as slow as the slowest (of a
# host, or between hosts), that reductions that come or go then are the first or the last ones, that
# gradients are ready for reducing with the first or the last kernel of these passes (with more
# chunks the first, with fewer the last), and, where forward and backward are to run beside each
# other and did not, that nothing is hidden, or all that can be.
#
# title: Other schedules of a pipeline
# meaning: Step, bubble and memory under other orders of the passes, executed with measured times.
# command: pipeline PATH --try
# table: pipeline_tries
#
#   run                  varchar   run of the training job
#   capture              varchar   ranks profiled at the same time
#   name                 varchar   measured, as it was asked for, or layers: placed otherwise
#   schedule             varchar   name of the schedule, or of the file
#   chunks               bigint    chunks of the model on a device
#   micro_batches        bigint    how many a step has
#   measured_step_ns     double    mean of the job's steps of training, without warm-up
#   predicted_step_ns    double    the same under this order; NULL: other copies of the model
#   predicted_low_ns     double    low end of the range
#   predicted_high_ns    double    high end of the range
#   pipeline_ns          double    from the first start of a pass to the last end
#   bubble_ratio         double    of it, what devices do not work, mean of them
#   needed_overlap_ratio double    of the shorter of two passes beside each other that must be
#                                   hidden to be as fast as what ran; NULL: none are, or never
#   layers               bigint[]  layers of each place; NULL: as measured, or as even as can be
#   devices              struct[]  device, bubble_ns, bubble_ratio, live_activations, kept_bytes
def pipeline_tries(job: Ready, orders: Sequence[OrderRequest]) -> pl.DataFrame:
    """Rows of the metric. Raises CannotAnswer and UsageError."""
    ran = job.measured.graph.schedule
    rows = [_row(job, OrderRequest(MEASURED, ran), job.factual)]
    rows += [_row(job, one, try_order(job, one)) for one in orders]
    return pl.DataFrame(rows, schema=_SCHEMA)


def try_order(job: Ready, order: OrderRequest) -> ExecutedOrder:
    """One order executed. Raises CannotAnswer and UsageError."""
    return run(job.measured, job.facts, order.order, order.layers)


_DEVICE: dict[str, type[pl.DataType]] = {
    "device": pl.Int64, "bubble_ns": pl.Float64, "bubble_ratio": pl.Float64,
    "live_activations": pl.Float64, "kept_bytes": pl.Float64,
}  # fmt: skip
_SCHEMA: dict[str, type[pl.DataType] | pl.DataType] = {
    "run": pl.String, "capture": pl.String, "name": pl.String, "schedule": pl.String,
    "chunks": pl.Int64, "micro_batches": pl.Int64, "measured_step_ns": pl.Float64,
    "predicted_step_ns": pl.Float64, "predicted_low_ns": pl.Float64,
    "predicted_high_ns": pl.Float64, "pipeline_ns": pl.Float64, "bubble_ratio": pl.Float64,
    "needed_overlap_ratio": pl.Float64, "layers": pl.List(pl.Int64),
    "devices": pl.List(pl.Struct(_DEVICE)),
}  # fmt: skip


def _row(job: Ready, request: OrderRequest, done: ExecutedOrder) -> dict[str, object]:
    passes = job.measured
    factual, again, lengths, low, high = (
        passes.by_step(one)
        for one in (
            job.factual.lengths_ns, job.again_ns, done.lengths_ns + done.behind_ns, done.low_ns,
            done.high_ns,
        )
    )  # fmt: skip
    order = request.order
    numbers = {(r, one.micro_batch) for r, route in enumerate(order.routes)
               for device, chunk in route[:1] for entry in order.orders[device] for one in entry
               if one.chunk == chunk}  # fmt: skip
    error_ns = max(float(np.abs(one - job.spans_ns).mean()) for one in (factual, again))
    if request.name == MEASURED:
        predicted = job.step_ns + float((factual - job.spans_ns).mean())
        margin = error_ns
    else:
        change = lengths - again
        predicted = job.step_ns + float(change.mean())
        # Passes beyond those that ran repeat these, and may be off by twice as much.
        repeated = max(1 - passes.micro_batches / len(numbers), 0.0)
        margin = error_ns + _LEAST_ERROR * (job.step_ns + 2 * repeated * predicted)
        if len(change) > 1:
            margin += 2 * float(change.std(ddof=1)) / len(change) ** 0.5
    ends = [predicted + float((end - lengths).mean()) + margin * way
            for end, way in ((low, -1), (high, 1))]  # fmt: skip
    counts, bytes_by_place = held_micro_batches(passes, job.facts, done)
    length_ns = float(done.lengths_ns.mean())
    bubbles = done.bubbles_ns()
    devices = [
        {"device": at, "bubble_ns": float(bubble), "bubble_ratio": float(bubble) / length_ns,
         "live_activations": counts[at], "kept_bytes": bytes_by_place[at]}
        for at, bubble in enumerate(bubbles)
    ]  # fmt: skip
    is_priced = len(order.routes) == len(passes.graph.schedule.routes)  # others' gradients are not
    has_pairs = any(len(entry) > 1 for one in order.orders for entry in one)
    limit = _same_work_ns(job, len(numbers)) if has_pairs else None
    return {
        "run": job.pipeline.run, "capture": job.pipeline.capture, "name": request.name,
        "schedule": order.name, "chunks": sum(map(len, order.routes)) // len(order.orders),
        "micro_batches": len(numbers), "measured_step_ns": job.step_ns,
        "predicted_step_ns": predicted if is_priced else None,
        "predicted_low_ns": max(ends[0], 0.0) if is_priced else None,
        "predicted_high_ns": ends[1] if is_priced else None,
        "pipeline_ns": length_ns, "bubble_ratio": float(bubbles.mean()) / length_ns,
        "needed_overlap_ratio": None if limit is None else needed_overlap(
            passes, job.facts, done, limit
        ),
        "layers": request.layers, "devices": devices,
    }  # fmt: skip


def _same_work_ns(job: Ready, micro_batches: int) -> float | None:
    """What the schedule that ran takes with so many micro-batches; None: it cannot have these."""
    if micro_batches == job.measured.micro_batches:
        return float(job.again_ns.mean())
    named = job.pipeline.schedule
    try:
        order = schedule(named.name, job.measured.devices, micro_batches, named.chunks)
    except UsageError:
        return None
    return float(run(job.measured, job.facts, order).lengths_ns.mean())
