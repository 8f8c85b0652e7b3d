"""What a measured job should recompute or swap to fit a budget of memory, and what its step takes
then.

passes of the pipeline --> halves of layers: forward times, kept bytes --> integer program by stage
--> backward passes longer by what they run again --> the same order, executed with these
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ..pipeline.execution import Span, Times, held_at_most
from ..pipeline.model_parts import looks
from ..pipeline.passes import Pipeline
from ..pipeline.schedules import schedule
from ..pipeline.tries import Ready, ready, ready_in
from ..views import frame
from .constants import Constants
from .layer_halves import Half, called_ns, layer_halves
from .memory_plan import Choice, cheapest, lost_s, most_back_bytes, swap_lost_s

_LEAST_ERROR = 0.005  # of a step that changes at all
_ROUNDS = 12  # of a plan, as what runs again takes memory too
_FULLEST = 8  # ranks of a stage that are looked at: experts keep what tokens come, by rank
_LEVELS = """
    select m.rank,
        max(allocated_bytes) filter (where timestamp_ns <= end_ns) as inside_bytes,
        max(allocated_bytes) filter (where end_ns is null or timestamp_ns > end_ns)
            as outside_bytes,
        arg_max(reserved_bytes - allocated_bytes, allocated_bytes) as unused_bytes
    from (
        select rank, timestamp_ns, allocated_bytes, reserved_bytes from memory
        where source = 'record' and component = 'PTA' and allocated_bytes is not null
            and run = ? and capture = ?
    ) as m asof left join pass_windows as w
        on m.rank = w.rank and m.timestamp_ns >= w.start_ns
    group by m.rank"""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done to one half of so many layers of a place, the first ones."""

    place: int
    half: str
    action: str
    layers: int


@dataclass(frozen=True, slots=True)
class Holding:
    """One rank of each stage: the most that was allocated on it while passes were launched, and
    what the halves of its layers keep."""

    inside_bytes: tuple[float, ...]
    halves: tuple[Half, ...]


@dataclass(frozen=True, slots=True)
class Plannable:
    """A measured job with all that a memory plan needs.

    holdings: the fullest ranks of each stage, these first. outside_bytes: by stage the most that
    was allocated on a rank before and after passes were launched. unused_bytes: what the allocator
    of the fullest one held at its peak and nothing used; None where reservations were not recorded.
    """

    job: Ready
    holdings: tuple[Holding, ...]
    outside_bytes: tuple[float, ...]
    unused_bytes: tuple[int | None, ...]

    @property
    def halves(self) -> tuple[Half, ...]:
        """Of the fullest ranks; what they take stands for all."""
        return self.holdings[0].halves

    @property
    def peaks(self) -> tuple[float, ...]:
        """The most that was allocated, by stage."""
        return tuple(map(max, self.holdings[0].inside_bytes, self.outside_bytes))


def plannable(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> Plannable:
    """Of a recognised pipeline, or of a job with one stage. Raises CannotAnswer."""
    job = ready(con, pipeline) if pipeline.stages > 1 else _one_stage(con, pipeline)
    ops, run, capture = pipeline.ops, pipeline.run, pipeline.capture
    measures = job.measured
    route = measures.graph.schedule.routes[0]
    passes = pipeline.passes if pipeline.stages > 1 else _number_passes(pipeline)
    levels, outside, unused = _levels(con, pipeline, job)
    held = list[Holding]()
    for at in range(min(_FULLEST, max(map(len, levels)))):
        ranks = [own[min(at, len(own) - 1)] for own in levels]
        kernels_of_passes = looks(
            ops, passes.filter(pl.col("rank").is_in([rank for rank, _ in ranks])), route
        )
        try:
            halves = tuple(layer_halves(con, run, capture, ops, kernels_of_passes, measures.places))
        except CannotAnswer:
            if not held:
                raise
            continue  # fuller ranks stand for one that recorded less
        if not held or [one.key for one in halves] == [one.key for one in held[0].halves]:
            held.append(Holding(tuple(inside for _, inside in ranks), halves))
    return Plannable(job, tuple(held), outside, unused)


def _one_stage(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> Ready:
    count = pipeline.schedule.micro_batches
    if not count:
        raise CannotAnswer(
            Message("forward and backward passes were not told apart: record the host's operators")
        )
    return ready_in(con, pipeline, _number_passes(pipeline), schedule("1f1b", 1, count))


def _number_passes(pipeline: Pipeline) -> pl.DataFrame:
    """Passes of a job with one stage: one chunk, micro-batches by their order."""
    number = pl.col("start_ns").rank("ordinal").over("rank", "step", "kind") - 1
    return pipeline.passes.with_columns(
        stage=pl.lit(0, pl.Int32), chunk=pl.lit(0, pl.Int32), micro_batch=number.cast(pl.Int32)
    )


def _levels(
    con: duckdb.DuckDBPyConnection, pipeline: Pipeline, job: Ready
) -> tuple[list[list[tuple[int, float]]], tuple[float, ...], tuple[int | None, ...]]:
    """By stage its ranks and the most that was allocated on each while passes were launched, the
    fullest first; the most on any before and after; what the fullest's allocator left unused."""
    ops = pipeline.ops
    at = pipeline.work.filter(pl.col("piece").is_not_null())["at"].to_numpy()
    calls = called_ns(con, pipeline.run, pipeline.capture, ops)[at]
    windows = (
        pl.DataFrame({
            "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank[at]], "step": ops.step[at],
            "called_ns": calls,
        })
        .filter(pl.col("called_ns") >= 0)
        .group_by("rank", "step")
        .agg(start_ns=pl.col("called_ns").min(), end_ns=pl.col("called_ns").max())
        .select("rank", "start_ns", "end_ns")
    )  # fmt: skip
    con.register("pass_windows", windows.to_arrow())
    try:
        rows = frame(con, _LEVELS, [pipeline.run, pipeline.capture]).rows()
    finally:
        con.unregister("pass_windows")
    by_rank = {rank: (inside or 0, outside or 0) for rank, inside, outside, _ in rows}
    unused = {rank: unused_bytes for rank, _, _, unused_bytes in rows}
    levels, every_outside, every_unused = list[list[tuple[int, float]]](), [], []
    for device in range(job.measured.devices):
        own = {ranks[device]: by_rank[ranks[device]] for ranks in job.measured.ranks
               if ranks[device] in by_rank}  # fmt: skip
        if not any(inside for inside, _ in own.values()):
            raise CannotAnswer(
                Message(
                    "stage {stage} has no memory curve: record profile_memory=True on a rank of"
                    " every stage",
                    stage=device,
                )
            )
        insides = [(rank, float(inside)) for rank, (inside, _) in own.items() if inside]
        levels.append(sorted(insides, key=lambda one: (-one[1], one[0])))
        every_outside.append(float(max(outside for _, outside in own.values())))
        every_unused.append(unused[max(own, key=lambda rank: (max(own[rank]), own[rank]))])
    return levels, tuple(every_outside), tuple(every_unused)


def plan_notes(rows: pl.DataFrame) -> list[str]:
    """What to know beside the rows of the metric."""
    notes: list[str] = [
        Message(
            "the peak is what the framework allocates: what its allocator leaves unused and HCCL's"
            " buffers come on top; layers that are not told apart as repeated stay as they are"
        )
    ]
    if "swap" in rows["action"].to_list():
        notes.append(
            Message(
                "swaps are priced by a usual speed of the way to the host, not by a measured one:"
                " --no-swap leaves them out"
            )
        )
    if stages := rows.filter(action="impossible")["stage"].to_list():
        notes.append(
            Message(
                "stages {stages} do not fit with all layers recomputed or swapped: cut the job into"
                " more pieces",
                stages=", ".join(map(str, stages)),
            )
        )
    return notes


def cheapest_decisions(
    plannable: Plannable, budget_bytes: float, constants: Constants, *, swaps: bool = True
) -> list[list[Decision] | None]:
    """By stage the cheapest decisions that fit; None where all together do not."""
    passes = plannable.job.measured
    routes = passes.graph.schedule.routes
    return [
        _of_device(plannable, device, budget_bytes, constants, swaps=swaps,
                   places=[at for at, (on, _) in enumerate(routes[0]) if on == device])
        for device in range(passes.devices)
    ]  # fmt: skip


def _of_device(
    plannable: Plannable, device: int, budget_bytes: float, constants: Constants, *, swaps: bool,
    places: Sequence[int],
) -> list[Decision] | None:  # fmt: skip
    peak = plannable.peaks[device]
    if peak <= budget_bytes:
        return []
    if plannable.outside_bytes[device] > budget_bytes:
        return None
    flight = _in_flight(plannable, device)
    halves = [one for one in plannable.halves if one.place in places]
    decisions, choices = list[Decision](), list[Choice]()
    for half in halves:
        saved = half.away_bytes(half.layers) / half.layers * flight[half.place]
        for action in ("recompute", "swap") if swaps else ("recompute",):
            decisions.append(Decision(half.place, half.name, action, 0))
            choices.append(_choice(plannable, half, action, constants, saved))
    needed = peak - budget_bytes
    for _ in range(_ROUNDS):
        layers = cheapest(choices, needed)
        if layers is None:
            return None
        plan = [Decision(one.place, one.half, one.action, count)
                for one, count in zip(decisions, layers, strict=True) if count]  # fmt: skip
        over = peak_bytes(plannable, device, plan) - budget_bytes
        if over <= 0:
            return plan
        needed += over
    return None


def _choice(
    plannable: Plannable, half: Half, action: str, constants: Constants, saved_bytes: float = 0.0
) -> Choice:
    """What an action does to each layer, for each micro-batch."""
    held = (f"{half.place} {half.name}",)
    if action == "recompute":
        return Choice(half.name, action, held, half.layers, saved_bytes, half.forward_ns * 1e-9)
    layer_ns = half.backward_ns + sum(
        one.forward_ns for one in plannable.halves if one.place == half.place
    )
    moved_bytes = 2 * half.away_bytes(half.layers) / half.layers
    moved_s, hidden_s = moved_bytes / constants["host_bytes_per_s"], layer_ns * 1e-9
    return Choice(
        half.name, action, held, half.layers, saved_bytes, swap_lost_s(moved_s, hidden_s),
        str(half.place), moved_s, hidden_s,
    )  # fmt: skip


def _lost_ns(
    plannable: Plannable, plan: Sequence[Decision], constants: Constants
) -> list[tuple[Decision, Half, float]]:
    """Each decision with what it is about and what it costs on its layers, for each micro-batch."""
    halves = [
        next(h for h in plannable.halves if (h.place, h.name) == (one.place, one.half))
        for one in plan
    ]
    choices = [
        _choice(plannable, half, one.action, constants)
        for one, half in zip(plan, halves, strict=True)
    ]
    lost = lost_s(choices, [one.layers for one in plan])
    return [(one, h, ns * 1e9) for one, h, ns in zip(plan, halves, lost, strict=True)]


def _in_flight(plannable: Plannable, device: int) -> dict[int, int]:
    """Micro-batches that each place of a device holds when it holds most."""
    route = plannable.job.measured.graph.schedule.routes[0]
    sizes = _sizes(plannable, plannable.halves, ())
    counts = {}
    for place, (on, chunk) in enumerate(route):
        if on == device:
            alone = {one: 1 if one == chunk else 0 for one in sizes[device]}
            counts[place] = int(held_at_most(_spans(plannable)[device], alone))
    return counts


def _spans(plannable: Plannable) -> list[list[Span]]:
    return plannable.job.factual.spans()


def _sizes(
    plannable: Plannable, halves: Sequence[Half], plan: Sequence[Decision]
) -> list[dict[int, float]]:
    """By device and chunk what a micro-batch keeps of its layers."""
    route = plannable.job.measured.graph.schedule.routes[0]
    sizes: list[dict[int, float]] = [{} for _ in range(plannable.job.measured.devices)]
    for half in halves:
        device, chunk = route[half.place]
        away = sum(one.layers for one in plan if (one.place, one.half) == (half.place, half.name))
        bytes_here = sum(half.kept_bytes) - half.away_bytes(away)
        sizes[device][chunk] = sizes[device].get(chunk, 0.0) + bytes_here
    return sizes


def peak_bytes(plannable: Plannable, device: int, plan: Sequence[Decision]) -> float:
    """The most that a rank of a stage allocates with a plan: what it keeps less, and what the part
    that backward runs again takes beside what its micro-batch still holds. Which rank is the
    fullest may change, as experts of another rank keep more of what is left."""
    spans = _spans(plannable)[device]
    route = plannable.job.measured.graph.schedule.routes[0]
    places = [at for at, (on, _) in enumerate(route) if on == device]
    most = plannable.outside_bytes[device]
    for one in plannable.holdings:
        before, after = (
            held_at_most(spans, _sizes(plannable, one.halves, decision)[device])
            for decision in ((), plan)
        )
        again = max((_again_bytes(one.halves, place, plan) for place in places), default=0.0)
        most = max(most, one.inside_bytes[device] - float(before - after) + again)
    return most


def _again_bytes(every: Sequence[Half], place: int, plan: Sequence[Decision]) -> float:
    """What comes back at most while a backward pass goes through the layers of a place, the last
    one first, beyond what it has released by then."""
    halves = [one for one in every if one.place == place]
    away = {(one.half, layer) for one in plan if one.place == place for layer in range(one.layers)}
    parts = []
    for layer in reversed(range(halves[0].layers)):
        for half in reversed(halves):
            bytes_here, stays = half.kept_bytes[layer], half.stays_bytes[layer]
            is_away = (half.name, layer) in away
            parts.append((bytes_here - stays, stays) if is_away else (0.0, bytes_here))
    return most_back_bytes(parts)


def longer(
    plannable: Plannable, plan: Sequence[Decision], constants: Constants
) -> tuple[Times, Times]:
    """Lengths of the pipelines of each step as they ran and with a plan, both executed."""
    job = plannable.job
    passes, graph = job.measured, job.measured.graph
    forward = passes.alone_ns["F"]
    by_place = np.zeros((passes.places, forward.shape[2]))
    for one, half, lost_ns in _lost_ns(plannable, plan, constants):
        ratio = np.nanmean(forward[one.place], axis=0) / half.pass_ns
        if one.action != "recompute":
            ratio = np.ones_like(ratio)
        by_place[one.place] += lost_ns * ratio
    place_of = {place: at for route in graph.schedule.routes for at, place in enumerate(route)}
    usual = job.factual.durations_ns.copy()
    for at, (device, entry) in enumerate(graph.entries):
        for part in entry:
            if part.kind in ("B", "BW"):
                usual[at] += by_place[place_of[device, part.chunk]]
    lengths = passes.lengths(graph, usual)[1]
    return passes.by_step(job.factual.lengths_ns), passes.by_step(lengths)


# metric: measured_memory_plan
# What is the least that a measured job should recompute or swap so that it fits?
#
# Layers are told by kernels that repeat, their attention and feed-forward network (ffn) by the
# first norm behind the attention. Each costs what its forward took, communication in it as well; it
# saves the blocks of memory that its operators allocated and that outlived the forward pass, but
# the last one, which the next half begins with, for all micro-batches in flight. The passes then
# run in the same order with backwards that are as much longer. The range holds what the same
# execution is off for what ran, half a per cent of the step, and what steps differ.
#
# title: Memory plan of a measured job
# meaning: The cheapest recompute and swap of each stage of a capture that fits a budget.
# command: memory-plan PATH
#
#   run                varchar  run of the training job
#   capture            varchar  ranks profiled at the same time
#   stage              bigint   pipeline stage
#   chunk              bigint   chunk of the model on the stage; NULL: nothing is done
#   kind               varchar  attention, ffn or layer; NULL: nothing fits, or nothing is needed
#   action             varchar  recompute, swap, none (it fits as it is) or impossible
#   layers             bigint   layers of the chunk that do so, the first ones
#   of_layers          bigint   layers of the chunk
#   lost_ns            bigint   of a step on the stage
#   measured_peak_bytes  bigint  most that was allocated on a rank of the stage
#   unused_bytes       bigint   what its allocator held unused at that peak; NULL: not recorded
#   peak_bytes         bigint   most that is allocated with all of the plan
#   budget_bytes       bigint   what it may be
#   measured_step_ns   double   mean of the job's steps of training, without warm-up
#   predicted_step_ns  double   the same with the plan of all stages
#   predicted_low_ns   double   low end of the range
#   predicted_high_ns  double   high end of the range
def measured_plan(
    plannable: Plannable, budget_bytes: float, constants: Constants, *, swaps: bool = True
) -> pl.DataFrame:
    """Rows of the metric, in the order of stages."""
    job = plannable.job
    route = job.measured.graph.schedule.routes[0]
    plans = cheapest_decisions(plannable, budget_bytes, constants, swaps=swaps)
    every = [one for plan in plans if plan for one in plan]
    before, after = longer(plannable, every, constants)
    change = after - before
    predicted = job.step_ns + float(change.mean())
    margin = float(np.abs(before - job.spans_ns).mean())
    if every:
        margin += _LEAST_ERROR * job.step_ns
        if len(change) > 1:
            margin += 2 * float(change.std(ddof=1)) / len(change) ** 0.5
    rows: list[dict[str, object]] = []
    for stage, plan in enumerate(plans):
        base: dict[str, object] = {
            "run": job.pipeline.run, "capture": job.pipeline.capture, "stage": stage,
            "measured_peak_bytes": int(plannable.peaks[stage]),
            "unused_bytes": plannable.unused_bytes[stage],
            "peak_bytes": int(peak_bytes(plannable, stage, plan or ())),
            "budget_bytes": int(budget_bytes), "measured_step_ns": job.step_ns,
            "predicted_step_ns": predicted, "predicted_low_ns": max(predicted - margin, 0.0),
            "predicted_high_ns": predicted + margin,
        }  # fmt: skip
        if not plan:
            action = "impossible" if plan is None else "none"
            rows.append(base | {"action": action, "layers": 0, "lost_ns": 0})
            continue
        for one, half, lost_ns in _lost_ns(plannable, plan, constants):
            rows.append(base | {
                "chunk": route[one.place][1], "kind": one.half, "action": one.action,
                "layers": one.layers, "of_layers": half.layers,
                "lost_ns": int(lost_ns * job.measured.micro_batches),
            })  # fmt: skip
    return pl.DataFrame(rows, schema=_SCHEMA)


_SCHEMA: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "stage": pl.Int64, "chunk": pl.Int64,
    "kind": pl.String, "action": pl.String, "layers": pl.Int64, "of_layers": pl.Int64,
    "lost_ns": pl.Int64, "measured_peak_bytes": pl.Int64, "unused_bytes": pl.Int64,
    "peak_bytes": pl.Int64, "budget_bytes": pl.Int64, "measured_step_ns": pl.Float64,
    "predicted_step_ns": pl.Float64, "predicted_low_ns": pl.Float64,
    "predicted_high_ns": pl.Float64,
}  # fmt: skip
