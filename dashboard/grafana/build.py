"""Writes the Grafana dashboards beside this file, from typed builders: nobody edits the JSON.

    .venv/bin/python dashboard/grafana/build.py

Needs grafana-foundation-sdk, which development alone has; nothing of the package imports this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
_LAST = common.ReduceDataOptions().calcs(["lastNotNull"])
RUN = 'run=~"$run"'
RANK = 'run=~"$run", rank=~"$rank"'
# Colour-blind safe; one colour for one meaning on all dashboards.
_COLOURS = {"computing": "#0072B2", "exposed_communication": "#D55E00", "free": "#999999"}
Panel = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel | barchart.Panel


def _query(expr: str, legend: str, *, instant: bool = False) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(_SOURCE)
    if not instant:
        return query.range()
    return query.instant().format(prometheus_models.PromQueryFormat.TABLE)


def _queries(panel: Any, targets: tuple[tuple[str, str], ...], *, instant: bool = False) -> Any:
    for name, (expr, legend) in zip("ABCDEF", targets, strict=False):
        panel = panel.with_target(_query(expr, legend, instant=instant).ref_id(name))
    return panel.datasource(_SOURCE)


def lines(
    title: str,
    *targets: tuple[str, str],
    unit: str,
    note: str,
    width: int = 12,
    is_stacked: bool = False,
) -> timeseries.Panel:
    """Values over time; `targets` are (PromQL, legend)."""
    panel = (
        timeseries.Panel().title(title).description(note).unit(unit).span(width).height(8)
        .line_width(2).fill_opacity(0).show_points(common_models.VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )  # fmt: skip
    if is_stacked:
        panel = panel.fill_opacity(60).stacking(
            common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        )
        for name, colour in _COLOURS.items():
            fixed = models.DynamicConfigValue(
                id_val="color", value={"mode": "fixed", "fixedColor": colour}
            )
            panel = panel.override_by_name(name, [fixed])
    lines_panel: timeseries.Panel = _queries(panel, targets)
    return lines_panel


def number(
    title: str,
    expr: str,
    *,
    unit: str,
    note: str,
    legend: str = "{{run}}",
    width: int = 4,
    steps: tuple[tuple[float | None, str], ...] = ((None, "blue"),),
) -> stat.Panel:
    """The value of now, with its course behind it; `steps` are (from, colour)."""
    thresholds = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    thresholds = thresholds.steps([models.Threshold(value, colour) for value, colour in steps])
    panel = (
        stat.Panel().title(title).description(note).unit(unit).span(width).height(4)
        .thresholds(thresholds).graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(_LAST)
    )  # fmt: skip
    result: stat.Panel = _queries(panel, ((expr, legend),))
    return result


def bars(title: str, expr: str, legend: str, *, unit: str, note: str) -> bargauge.Panel:
    """Values of now, one bar each."""
    panel = (
        bargauge.Panel().title(title).description(note).unit(unit).span(12).height(9).min(0)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(_LAST)
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_PU))
    )  # fmt: skip
    result: bargauge.Panel = _queries(panel, ((expr, legend),))
    return result


def rows(title: str, *exprs: str, note: str, hidden: tuple[str, ...] = ()) -> table.Panel:
    """Labels and values of now as a table."""
    drop: dict[str, object] = dict.fromkeys(["Time", "__name__", "instance", "job", *hidden], True)
    organized = models.DataTransformerConfig(id_val="organize", options={"excludeByName": drop})
    merged = models.DataTransformerConfig(id_val="merge", options={})
    panel = table.Panel().title(title).description(note).span(12).height(9)
    panel = panel.with_transformation(merged).with_transformation(organized)
    result: table.Panel = _queries(panel, tuple((expr, "") for expr in exprs), instant=True)
    return result


def _variable(name: Literal["run", "rank"], query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name).label(name.capitalize()).datasource(_SOURCE)
        .query({"query": query, "refId": name}).multi(True).include_all(True).all_value(".*")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NUMERICAL_ASC)
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )  # fmt: skip


def whole_dashboard(
    uid: str, title: str, note: str, panels: tuple[Panel, ...]
) -> dashboard.Dashboard:
    """A dashboard of all panels, with the choice of source, run and rank on top."""
    board = (
        dashboard.Dashboard(title).uid(uid).description(note).tags(["npuscope", "ascend"])
        .refresh("1m").time("now-24h", "now").timezone("browser").editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("npuscope").type(models.DashboardLinkType.DASHBOARDS)
            .tags(["npuscope"]).as_dropdown(True).keep_time(True).include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("source").label("Source").type("prometheus"))
        .with_variable(_variable("run", "label_values(npuscope_capture_info, run)"))
        .with_variable(_variable("rank", 'label_values(npuscope_rank_info{run=~"$run"}, rank)'))
    )  # fmt: skip
    for panel in panels:
        board = board.with_panel(panel)
    return board


FOLDER = Path(__file__).parent


def overview() -> dashboard.Dashboard:
    """Where each step's time goes."""
    return whole_dashboard(
        "npuscope-overview", "npuscope: training",
        "Where each training step's time goes: of the newest profile of every run.",
        (
            number(
                "MFU", f'npuscope_mfu_ratio{{{RUN}, convention="kernel_causal"}}',
                unit="percentunit",
                note="FLOPs of kernels by their shapes over the peak, attention as causal.",
            ),
            number(
                "Step", f"npuscope_step_seconds{{{RUN}}}", unit="s",
                note="Length of a step on the rank where it is longest.",
            ),
            number(
                "Masked communication", f"npuscope_job_masking_ratio{{{RUN}}}",
                unit="percentunit", note="Communication hidden behind compute, of all of it.",
                steps=((None, "red"), (0.3, "orange"), (0.6, "green")),
            ),
            number(
                "Exposed communication",
                f'npuscope_step_part_seconds{{{RUN}, part="exposed_communication"}}',
                unit="s", note="Communication of a mean rank and step that no compute hides.",
            ),
            number(
                "Suspected ranks",
                f"count by (run) (npuscope_rank_suspect_captures{{{RUN}}} > 0)"
                f" or 0 * npuscope_capture_ranks{{{RUN}}}",
                unit="short", note="Ranks that others wait for, by tests; see the table below.",
                steps=((None, "green"), (1, "orange")),
            ),
            number(
                "Age of the profile",
                f"time() - npuscope_last_ingest_timestamp_seconds{{{RUN}}}", unit="s",
                note="Since a rank of the newest capture was ingested.",
                steps=((None, "green"), (3600, "orange"), (7200, "red")),
            ),
            lines(
                "MFU by convention", (f"npuscope_mfu_ratio{{{RUN}}}", "{{run}} {{convention}}"),
                unit="percentunit", note="Which FLOPs are counted: see npuscope_mfu_ratio's help.",
            ),
            lines(
                "Beside the baseline",
                (f"npuscope_baseline_ratio{{{RUN}}}", "{{run}} {{measure}}"), unit="percentunit",
                note="Measures of the newest capture over those of the exporter's --baseline.",
            ),
            lines(
                "Parts of a step",
                (f"avg by (part) (npuscope_step_part_seconds{{{RUN}}})", "{{part}}"),
                unit="s", note="Of a mean rank and step, mean of the chosen runs.", is_stacked=True,
            ),
            bars(
                "From the peak to what is achieved",
                f"sort_desc(avg by (term) (npuscope_loss_ratio{{{RUN}}}))", "{{term}}",
                unit="percentunit",
                note="Share of the time that each loss takes; achieved is what is left: MFU.",
            ),
            bars(
                "What findings would gain",
                f"sort_desc(avg by (finding) (npuscope_predicted_gain_seconds{{{RUN}}} > 0))",
                "{{finding}}", unit="s",
                note="Predicted by a replay, per step; each alone: gains do not add up.",
            ),
            lines(
                "Exposed communication by kind",
                (f"npuscope_exposed_seconds{{{RUN}}}", "{{run}} {{kind}}"), unit="s",
                note="Per step of a mean rank; kinds add up.",
            ),
            lines(
                "Masking by kind", (f"npuscope_masking_ratio{{{RUN}}}", "{{run}} {{kind}}"),
                unit="percentunit", note="How much of a kind's communication compute hides.",
            ),
            lines(
                "Waiting of pipeline stages",
                (f"npuscope_pipeline_wait_ratio{{{RUN}}}", "{{run}} stage {{stage}}"),
                unit="percentunit", note="Waiting to receive, of the time of a step.",
            ),
            rows(
                "Slow ranks and where they run",
                f"npuscope_rank_suspect_info{{{RANK}}} * on (instance, run, rank)"
                f" group_left (node, device_id) npuscope_rank_info{{{RANK}}}",
                note="Who makes others wait, and why: host, compute, frequency, tokens or link.",
                hidden=("Value",),
            ),
            lines(
                "Waiting that a rank causes",
                (f"topk(10, npuscope_rank_caused_wait_seconds{{{RANK}}})", "{{run}} {{rank}}"),
                unit="s", note="Of all others together, per step.",
            ),
            lines(
                "Longest steps by rank",
                (f"topk(10, npuscope_rank_step_seconds{{{RANK}}})", "{{run}} {{rank}}"),
                unit="s", note="Mean of the capture's steps.",
            ),
            lines(
                "Least masked ranks",
                (f"bottomk(10, npuscope_rank_masking_ratio{{{RANK}}})", "{{run}} {{rank}}"),
                unit="percentunit", note="Communication hidden behind compute.",
            ),
        ),
    )  # fmt: skip


def experts() -> dashboard.Dashboard:
    """How tokens fall on experts."""
    load = "npuscope_expert_load"
    return whole_dashboard(
        "npuscope-experts", "npuscope: experts",
        "How unevenly tokens fall on experts, layer by layer.",
        (
            number(
                "Mean of layers", f"avg by (run, phase) ({load}_max_over_mean{{{RUN}}})",
                unit="short", legend="{{run}} {{phase}}", width=8,
                note="Tokens of the most loaded expert over the mean; 1 is even.",
                steps=((None, "green"), (1.5, "orange"), (2, "red")),
            ),
            number(
                "Worst layer", f"max by (run, phase) ({load}_max_over_mean{{{RUN}}})",
                unit="short", legend="{{run}} {{phase}}", width=8,
                note="The layer with the most uneven load.",
                steps=((None, "green"), (2, "orange"), (4, "red")),
            ),
            number(
                "Cold experts", f"sum by (run, phase) (npuscope_expert_cold_experts{{{RUN}}})",
                unit="short", legend="{{run}} {{phase}}", width=8,
                note="With less than a tenth of the mean load, all layers together.",
            ),
            lines(
                "Most loaded expert over the mean, by layer",
                (f"topk(12, {load}_max_over_mean{{{RUN}}})", "{{run}} {{phase}} layer {{layer}}"),
                unit="short", note="The twelve most uneven layers.", width=24,
            ),
            lines(
                "Coefficient of variation",
                (f"avg by (run, phase) ({load}_cv{{{RUN}}})", "{{run}} {{phase}} mean"),
                (f"max by (run, phase) ({load}_cv{{{RUN}}})", "{{run}} {{phase}} worst"),
                unit="short", note="Standard deviation of loads over their mean.",
            ),
            lines(
                "Gini coefficient",
                (f"avg by (run, phase) ({load}_gini{{{RUN}}})", "{{run}} {{phase}} mean"),
                (f"max by (run, phase) ({load}_gini{{{RUN}}})", "{{run}} {{phase}} worst"),
                unit="short", note="0 is even.",
            ),
            bars(
                "Most loaded experts: tokens",
                f"sort_desc(topk(16, npuscope_expert_top_tokens{{{RUN}, position=\"1\"}}))",
                "{{run}} {{phase}} layer {{layer}}", unit="short",
                note="Tokens per step of the most loaded expert of each layer.",
            ),
            rows(
                "Most loaded experts: which",
                f'npuscope_expert_top_expert{{{RUN}, position=~"1|2|3"}}',
                note="Value is the expert's number. Positions, not experts, are labels: a series"
                " does not end when another expert becomes the most loaded.",
            ),
        ),
    )  # fmt: skip


def platform() -> dashboard.Dashboard:
    """Whether profiles arrive and are read."""
    return whole_dashboard(
        "npuscope-platform", "npuscope: fleet and ingest",
        "Whether profiles arrive, are read and are served.",
        (
            number(
                "Stores that can be read", "sum(npuscope_up)", unit="short", legend="stores",
                note="Exporters whose last attempt succeeded.",
                steps=((None, "red"), (1, "green")),
            ),
            number(
                "Series", "sum(npuscope_exporter_series)", unit="short", legend="series",
                note="Of all runs.",
            ),
            number(
                "Series left out", "sum(npuscope_exporter_dropped_series)", unit="short",
                legend="left out", note="Beyond --max-series.",
                steps=((None, "green"), (1, "orange")),
            ),
            number(
                "Quarantined profiles", "sum(npuscope_watch_quarantined_captures)", unit="short",
                legend="profiles", note="They cannot be read; the watcher's log says why.",
                steps=((None, "green"), (1, "red")),
            ),
            number(
                "Waiting profiles", "sum(npuscope_watch_waiting_captures)", unit="short",
                legend="profiles", note="Found, and not finished or not ingested yet.",
            ),
            number(
                "Since the watcher looked",
                "max(time() - npuscope_watch_last_poll_timestamp_seconds)", unit="s",
                legend="seconds", note="It looks every few seconds.",
                steps=((None, "green"), (300, "orange"), (900, "red")),
            ),
            lines(
                "Ranks ingested", ("rate(npuscope_watch_ranks_ingested_total[15m])", "ranks"),
                unit="ops", note="Per second.",
            ),
            lines(
                "Errors",
                ("increase(npuscope_watch_errors_total[15m])", "watch"),
                ("increase(npuscope_exporter_errors_total[15m])", "exporter"),
                unit="short", note="In a quarter of an hour.",
            ),
            lines(
                "Bytes read", ("rate(npuscope_watch_read_bytes_total[15m])", "bytes"), unit="Bps",
                note="Of the files of profiles, per second.",
            ),
            lines(
                "Gathering samples", ("npuscope_exporter_refresh_seconds", "{{instance}}"),
                unit="s", note="Once for every version of the store, not for every scrape.",
            ),
            rows(
                "Runs", f"npuscope_capture_info{{{RUN}}}", note="Newest capture of each run.",
                hidden=("Value",),
            ),
            lines(
                "Ranks in the newest capture", (f"npuscope_capture_ranks{{{RUN}}}", "{{run}}"),
                unit="short", note="Fewer than before: some were not profiled, or not read.",
            ),
            rows(
                "Where ranks run", f"npuscope_rank_info{{{RANK}}}",
                note="Join with npu-exporter by node and chip.", hidden=("Value",),
            ),
            lines(
                "Trainer's log: loss", (f"npuscope_train_loss{{{RUN}}}", "{{run}}"), unit="short",
                note="Where watch or ingest has the log.",
            ),
        ),
    )  # fmt: skip


def training_health() -> dashboard.Dashboard:
    """How a training goes, by its own log."""
    return whole_dashboard(
        "npuscope-health", "npuscope: training health",
        "Loss, gradients, steps and goodput of a training, as its own log tells them.",
        (
            number(
                "Goodput", f"npuscope_health_goodput_ratio{{{RUN}}}", unit="percentunit",
                note="Time of steps, each once, of the time that passed; where the log has times.",
                steps=((None, "red"), (0.9, "orange"), (0.95, "green")),
            ),
            number(
                "Step", f"npuscope_train_step{{{RUN}}}", unit="short",
                note="The last that was logged.",
            ),
            number(
                "Spikes within an hour",
                f"delta(npuscope_health_grad_norm_spikes{{{RUN}}}[1h])", unit="short",
                note="Of the gradient norm: far above the median of the steps before.",
                steps=((None, "green"), (1, "orange"), (3, "red")),
            ),
            number(
                "Steps without a number", f"npuscope_health_not_finite_steps{{{RUN}}}",
                unit="short", note="Loss or gradients were no number, since the log began.",
                steps=((None, "green"), (1, "red")),
            ),
            number(
                "Skipped steps", f"npuscope_health_skipped_steps{{{RUN}}}", unit="short",
                note="Iterations whose update was skipped, since the log began.",
                steps=((None, "green"), (1, "orange")),
            ),
            number(
                "Steps in half an hour", f"delta(npuscope_train_step{{{RUN}}}[30m])",
                unit="short", note="0: the job has ended, hangs, or its log is not read.",
                steps=((None, "red"), (1, "green")),
            ),
            lines(
                "Loss", (f"npuscope_train_loss{{{RUN}}}", "{{run}}"), unit="short",
                note="Of the last logged step.",
            ),
            lines(
                "Gradient norm", (f"npuscope_train_grad_norm{{{RUN}}}", "{{run}}"), unit="short",
                note="Of the last logged step: scrapes see a spike only if they meet its step.",
            ),
            lines(
                "Spikes so far",
                (f"npuscope_health_grad_norm_spikes{{{RUN}}}", "{{run}} gradient norm"),
                (f"npuscope_health_loss_spikes{{{RUN}}}", "{{run}} loss"), unit="short",
                note="Counted over all logged steps, also those that no scrape met.",
            ),
            lines(
                "Time of a step", (f"npuscope_train_step_seconds{{{RUN}}}", "{{run}}"), unit="s",
                note="As logged.",
            ),
            lines(
                "Tokens per second",
                (f"npuscope_train_tokens_per_second{{{RUN}}}", "{{run}}"), unit="short",
                note="As logged: of the job or of one device.",
            ),
            lines(
                "Phases of reinforcement learning",
                (f"avg by (phase) (npuscope_health_phase_seconds{{{RUN}}})", "{{phase}}"),
                unit="s", is_stacked=True,
                note="Mean of all logged steps; phases add up to the step.",
            ),
        ),
    )  # fmt: skip


def dashboards() -> Iterator[tuple[str, str]]:
    """File name and text of each."""
    every = (
        ("overview", overview()), ("experts", experts()), ("fleet", platform()),
        ("health", training_health()),
    )  # fmt: skip
    for name, built in every:
        text = json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True)
        yield f"{name}.json", text + "\n"


def main() -> None:
    """Write them."""
    for name, text in dashboards():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
