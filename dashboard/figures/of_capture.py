"""The figures of pages by name, as a page shows them on arrival: for who asks in Python.

A page that lets its visitor choose shows what it chooses at first: the mean of all kinds, the
fullest rank, the first phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import duckdb
import plotly.graph_objects as go
import polars as pl

from npuscope.analysis import means, query, trends
from npuscope.analysis.communication import volume
from npuscope.analysis.flops.kernels.roofline import points as points_of
from npuscope.analysis.flops.kernels.roofline import under_roofline
from npuscope.analysis.health import run_health
from npuscope.analysis.health.token_drops import health_dropped
from npuscope.analysis.host import free_time
from npuscope.analysis.operators import causes, classes, headroom
from npuscope.analysis.pipeline.blocks import pipeline_view
from npuscope.analysis.ranks.answers import mean_waits
from npuscope.analysis.ranks.stragglers import blame
from npuscope.analysis.scope import Scope

from ..answers import expert_answers, overview_answers, quality_answers, rank_answers
from ..locale.language import Say
from . import communication, experts, health, host, memory, operators, ranks, steps
from . import pipeline as passes
from . import trends as over_time

MaybeFigure: TypeAlias = "go.Figure | None"


@dataclass(frozen=True, slots=True)
class FigureRequest:
    """Of what: a connection compared across ranks, one run and capture, its first rank, where its
    store is, and the language."""

    con: duckdb.DuckDBPyConnection
    scope: Scope
    first_rank: int
    path: Path
    say: Say

    @property
    def run(self) -> Scope:
        """The run with all of its captures."""
        return Scope(self.scope.run)

    @property
    def one_rank(self) -> Scope:
        """Of its first rank."""
        return replace(self.scope, rank=self.first_rank)


def _mfu(of: FigureRequest) -> MaybeFigure:
    ratio = overview_answers.job_use(of.con, of.scope).kernel_mfu_ratio
    return None if ratio is None else steps.mfu_gauge(ratio, of.say)


def _masking(of: FigureRequest) -> MaybeFigure:
    mean = means.mean_steps(of.con, of.scope)
    ratio = mean["masking_ratio"][0] if mean.height else None
    return None if ratio is None else steps.masking_gauge(ratio, of.say)


def _waterfall(of: FigureRequest) -> MaybeFigure:
    rows = overview_answers.job_use(of.con, of.scope).waterfall
    is_known = "achieved" in rows["term"]
    return steps.waterfall_figure(rows, of.say) if is_known else None


def _ranks(of: FigureRequest) -> MaybeFigure:
    bars = means.mean_step_bars(of.con, of.scope)
    return (
        None
        if bars.is_empty()
        else steps.ranks_figure(
            bars,
            of.say,
            overview_answers.stage_of_ranks(of.con, of.scope),
            rank_answers.silent(of.con, of.scope),
            height_px=300,
        )
    )


def _parts(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_parts(of.con, of.scope)
    return None if rows.is_empty() else steps.parts_figure(rows, of.say)


def _rank_parts(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_parts(of.con, of.scope, by="rank")
    return None if rows.is_empty() else steps.parts_figure(rows, of.say)


def _rank_steps(of: FigureRequest) -> MaybeFigure:
    rows = query.steps(of.con, of.scope)
    if rows["stage_ns"].null_count() == rows.height:
        return None
    return ranks.steps_figure(
        rows, of.say, "stage_ns", is_deviation=rows["rank"].n_unique() > 1,
        hosts=rank_answers.hosts(of.con, of.scope), stages=rank_answers.stages(of.con, of.scope),
    )  # fmt: skip


def _culprits(of: FigureRequest) -> MaybeFigure:
    rows = blame.suspects(of.con, of.scope)
    if rows.is_empty():
        return None
    silent = rank_answers.silent(of.con, of.scope)
    return ranks.culprits_figure(rows, silent, of.say)


def _hosts(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_steps(of.con, of.scope, by="rank")
    hosts = rank_answers.hosts(of.con, of.scope)
    is_one = ranks.by_host(rows, hosts)["host_name"].n_unique() < 2
    return None if is_one else ranks.hosts_figure(rows, hosts, of.say)


def _communication(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_comm(of.con, of.scope, by="kind")
    is_unknown = rows["masked_ns"].null_count() == rows.height
    return None if is_unknown else communication.masking_figure(rows, of.say)


def _waits(of: FigureRequest) -> MaybeFigure:
    rows = mean_waits(of.con, of.scope)
    return None if rows.is_empty() else communication.waiting_figure(rows, of.say)


def _links(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_links(of.con, of.scope)
    is_unknown = rows["bandwidth_bytes_per_s"].null_count() == rows.height
    return None if is_unknown else communication.links_figure(rows, of.say)


def _contention(of: FigureRequest) -> MaybeFigure:
    rows = volume.mean_contention(of.con, of.scope)
    is_unknown = rows.is_empty() or _links(of) is None
    return None if is_unknown else communication.contention_figure(rows, of.say)


def _matrix(of: FigureRequest) -> MaybeFigure:
    rows = volume.mean_pairs(of.con, of.scope).drop_nulls(["src_rank", "dst_rank"])
    return None if rows.is_empty() else communication.matrix_figure(rows, of.say, "size", None)


def _kernels(of: FigureRequest) -> MaybeFigure:
    rows = means.mean_kernels(of.con, of.scope, by="type")
    if rows.is_empty():
        return None
    if rows["type"].null_count() == rows.height:
        rows = means.mean_kernels(of.con, of.scope, by="name")
    return operators.top_figure(rows, of.say)


def _operator_classes(of: FigureRequest) -> MaybeFigure:
    rows = classes.operator_classes(of.con, of.scope)
    return None if rows.is_empty() else operators.classes_figure(rows, of.say)


def _operator_headroom(of: FigureRequest) -> MaybeFigure:
    rows = headroom.operator_headroom(of.con, of.scope)
    is_unknown = rows["headroom_high_ns"].null_count() == rows.height
    return None if is_unknown else operators.headroom_figure(rows, of.say)


def _operator_causes(of: FigureRequest) -> MaybeFigure:
    rows, _ = causes.causes_of(of.con, of.scope)
    return operators.causes_figure(rows, of.say) if (rows["headroom_high_ns"] > 0).any() else None


def _roofline(of: FigureRequest) -> MaybeFigure:
    roofline = under_roofline(of.con, of.scope)
    points = points_of(roofline.kernels)
    return None if points.is_empty() else operators.roofline_figure(points, roofline.peaks, of.say)


def _cores(of: FigureRequest) -> MaybeFigure:
    rows = query.core_use(of.con, of.one_rank)
    is_unknown = rows["timed_ns"].null_count() == rows.height
    return None if is_unknown else operators.cores_figure(rows, of.say)


def _free_time(of: FigureRequest) -> MaybeFigure:
    rows = free_time.mean_free_time(of.con, of.scope, by="rank")
    return None if rows.is_empty() else host.free_figure(rows, of.say)


def _host_lead(of: FigureRequest) -> MaybeFigure:
    rows = free_time.host_lead(of.con, of.one_rank)
    return None if rows.is_empty() else host.lead_figure(rows, of.say)


_DEVICE = ["rank", "source", "device_id", "component"]


def _memory_curve(of: FigureRequest) -> MaybeFigure:
    main = query.memory_facts(of.con, of.scope).main
    if main.is_empty():
        return None
    place = replace(of.scope, rank=int(main["rank"][0]))
    own = main.filter(pl.col("rank") == place.rank).select(_DEVICE)
    curve = query.memory_curve(of.con, place)
    curve = curve.join(own, on=_DEVICE, how="semi", nulls_equal=True)
    marked = query.memory_steps(of.con, place)
    return None if curve.is_empty() else memory.curve_figure(curve, of.say, marked)


def _holders(of: FigureRequest) -> MaybeFigure:
    facts = query.memory_facts(of.con, of.scope)
    if facts.main.is_empty():
        return None
    rows = facts.holders.filter(pl.col("rank") == int(facts.main["rank"][0]))
    return None if rows.is_empty() else memory.holders_figure(rows, of.say)


def _peaks(of: FigureRequest) -> MaybeFigure:
    main = query.memory_facts(of.con, of.scope).main
    return memory.peaks_figure(main, of.say) if main["rank"].n_unique() > 1 else None


def _growth(of: FigureRequest) -> MaybeFigure:
    facts = query.memory_facts(of.con, of.scope)
    main = facts.main.select(_DEVICE)
    every = query.memory_steps(of.con, of.scope)
    every = every.join(main, on=_DEVICE, how="semi", nulls_equal=True)
    growth = facts.growth.join(main, on=_DEVICE, how="semi", nulls_equal=True)
    return None if every.is_empty() else memory.growth_figure(every, growth, of.say)


def _pipeline_chart(of: FigureRequest) -> MaybeFigure:
    view = pipeline_view(of.con, of.scope, words=None, micro_batches=None)
    titles = passes.schedule_titles(view.tries, of.say)
    figure: MaybeFigure = passes.pipeline_figure(view.blocks, titles, of.say)[0]
    return figure


def _of_phase(frame: pl.DataFrame, load: expert_answers.Load) -> pl.DataFrame:
    phase = load.tables.load["phase"].unique().sort(nulls_last=True).to_list()[0]
    return frame.filter(pl.col("phase").eq_missing(pl.lit(phase, pl.String)))


def _load(of: FigureRequest) -> MaybeFigure:
    load = expert_answers.loads(of.con, of.scope)
    rows = load.experts
    return experts.load_figure(_of_phase(rows, load), of.say) if load.is_of_experts else None


def _devices(of: FigureRequest) -> MaybeFigure:
    load = expert_answers.loads(of.con, of.scope)
    rows = load.devices if load.devices.is_empty() else _of_phase(load.devices, load)
    is_unknown = rows["layer"].null_count() == rows.height
    return None if is_unknown else experts.load_figure(rows, of.say, "device")


def _device_tokens(of: FigureRequest) -> MaybeFigure:
    load = expert_answers.loads(of.con, of.scope)
    if load.devices.is_empty():
        return None
    return experts.devices_figure(_of_phase(load.devices, load), of.say)


def _times(of: FigureRequest) -> MaybeFigure:
    load = expert_answers.loads(of.con, of.scope)
    rows = load.times
    return experts.time_figure(_of_phase(rows, load), of.say) if load.is_of_experts else None


def _cost(of: FigureRequest) -> MaybeFigure:
    load = expert_answers.loads(of.con, of.scope)
    if load.tables.load.is_empty():
        return None
    rows = _of_phase(expert_answers.costs(of.con, of.scope)[1], load)
    return None if rows.is_empty() else experts.cost_figure(rows, of.say)


def _plans(of: FigureRequest) -> tuple[expert_answers.Load, expert_answers.Plans] | None:
    """As the page's form offers it: on the devices of a group, without replicas, on one host."""
    load = expert_answers.loads(of.con, of.scope)
    if not load.is_of_experts:
        return None
    devices = expert_answers.told_devices(load.tables)
    place = str(of.path)
    return load, expert_answers.plans(
        of.con, of.scope, path=place, devices=devices, nodes=1, slots=None
    )


def _plan(of: FigureRequest) -> MaybeFigure:
    plan = _plans(of)
    return plan and experts.plan_figure(_of_phase(plan[1].devices, plan[0]), of.say)


def _plan_gain(of: FigureRequest) -> MaybeFigure:
    plan = _plans(of)
    return plan and experts.plan_gain_figure(_of_phase(plan[1].rows, plan[0]), of.say)


def _trends(of: FigureRequest) -> MaybeFigure:
    history = trends.trends(of.con, of.run)
    if history.captures.height < 2 or not history.captures["step_ns"].count():
        return None
    return over_time.trends_figure(history.captures, history.exposed, history.changes, of.say)


def _trends_log(of: FigureRequest) -> MaybeFigure:
    history = trends.trends(of.con, of.run)
    if history.log.is_empty() or not history.captures["step_ns"].count():
        return None
    return over_time.log_figure(trends.log_points(history.log), history.changes, of.say)


def _health(of: FigureRequest) -> MaybeFigure:
    run = run_health.run_health(of.con, of.run)
    points = None if run is None else run_health.health_points(run.steps)
    if run is None or points is None or points.is_empty():
        return None
    captures = run_health.health_captures(of.con, of.run, is_across=True)
    return health.health_figure(points, run.events, captures, of.say)


def _health_dropped(of: FigureRequest) -> MaybeFigure:
    if run_health.run_health(of.con, of.run) is None:
        return None
    rows, _ = health_dropped(of.con, of.run, target=of.path)
    return health.dropped_figure(rows, of.say) if rows["dropped_ratio"].count() else None


def _support(of: FigureRequest) -> MaybeFigure:
    quality = quality_answers.quality(of.con, of.scope, path=str(of.path))
    return quality and ranks.support_figure(quality.support, of.say)


# By the names that pages give them and heads of metrics tell.
FIGURES: dict[str, Callable[[FigureRequest], MaybeFigure]] = {
    "mfu": _mfu, "masking": _masking, "waterfall": _waterfall, "ranks": _ranks,
    "communication": _communication, "parts": _parts, "waiting": _waits, "links": _links,
    "contention": _contention, "matrix": _matrix,
    "load": _load, "devices": _devices, "device_tokens": _device_tokens, "times": _times,
    "cost": _cost, "plan": _plan, "plan_gain": _plan_gain,
    "kernels": _kernels, "operator_classes": _operator_classes,
    "operator_headroom": _operator_headroom, "operator_causes": _operator_causes,
    "roofline": _roofline, "cores": _cores,
    "free_time": _free_time, "host_lead": _host_lead,
    "rank_steps": _rank_steps, "rank_parts": _rank_parts, "culprits": _culprits, "hosts": _hosts,
    "memory_curve": _memory_curve, "holders": _holders, "peaks": _peaks, "growth": _growth,
    "pipeline_chart": _pipeline_chart, "trends": _trends, "trends_log": _trends_log,
    "health": _health, "health_dropped": _health_dropped, "support": _support,
}  # fmt: skip
