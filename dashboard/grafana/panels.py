"""Panels of the Grafana dashboards by what they show, and what frames them."""

from __future__ import annotations

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
    found = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(_SOURCE)
    if not instant:
        return found.range()
    return found.instant().format(prometheus_models.PromQueryFormat.TABLE)


def _queries(panel: Any, targets: tuple[tuple[str, str], ...], *, instant: bool = False) -> Any:
    for name, (expr, legend) in zip("ABCDEF", targets, strict=False):
        panel = panel.with_target(_query(expr, legend, instant=instant).ref_id(name))
    return panel.datasource(_SOURCE)


def lines(
    title: str,
    *targets: tuple[str, str],
    unit: str,
    told: str,
    width: int = 12,
    stacked: bool = False,
) -> timeseries.Panel:
    """Values over time; `targets` are (PromQL, legend)."""
    panel = (
        timeseries.Panel().title(title).description(told).unit(unit).span(width).height(8)
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
    if stacked:
        panel = panel.fill_opacity(60).stacking(
            common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        )
        for name, colour in _COLOURS.items():
            fixed = models.DynamicConfigValue(
                id_val="color", value={"mode": "fixed", "fixedColor": colour}
            )
            panel = panel.override_by_name(name, [fixed])
    found: timeseries.Panel = _queries(panel, targets)
    return found


def number(
    title: str,
    expr: str,
    *,
    unit: str,
    told: str,
    legend: str = "{{run}}",
    width: int = 4,
    steps: tuple[tuple[float | None, str], ...] = ((None, "blue"),),
) -> stat.Panel:
    """The value of now, with its course behind it; `steps` are (from, colour)."""
    thresholds = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    thresholds = thresholds.steps([models.Threshold(value, colour) for value, colour in steps])
    panel = (
        stat.Panel().title(title).description(told).unit(unit).span(width).height(4)
        .thresholds(thresholds).graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(_LAST)
    )  # fmt: skip
    found: stat.Panel = _queries(panel, ((expr, legend),))
    return found


def bars(title: str, expr: str, legend: str, *, unit: str, told: str) -> bargauge.Panel:
    """Values of now, one bar each."""
    panel = (
        bargauge.Panel().title(title).description(told).unit(unit).span(12).height(9).min(0)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(_LAST)
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_PU))
    )  # fmt: skip
    found: bargauge.Panel = _queries(panel, ((expr, legend),))
    return found


def rows(title: str, *exprs: str, told: str, hidden: tuple[str, ...] = ()) -> table.Panel:
    """Labels and values of now as a table."""
    drop: dict[str, object] = dict.fromkeys(["Time", "__name__", "instance", "job", *hidden], True)
    organized = models.DataTransformerConfig(id_val="organize", options={"excludeByName": drop})
    merged = models.DataTransformerConfig(id_val="merge", options={})
    panel = table.Panel().title(title).description(told).span(12).height(9)
    panel = panel.with_transformation(merged).with_transformation(organized)
    found: table.Panel = _queries(panel, tuple((expr, "") for expr in exprs), instant=True)
    return found


def _chosen(name: Literal["run", "rank"], query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name).label(name.capitalize()).datasource(_SOURCE)
        .query({"query": query, "refId": name}).multi(True).include_all(True).all_value(".*")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NUMERICAL_ASC)
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )  # fmt: skip


def titled(uid: str, title: str, told: str, panels: tuple[Panel, ...]) -> dashboard.Dashboard:
    """A dashboard of all panels, with the choice of source, run and rank on top."""
    found = (
        dashboard.Dashboard(title).uid(uid).description(told).tags(["npuscope", "ascend"])
        .refresh("1m").time("now-24h", "now").timezone("browser").editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("npuscope").type(models.DashboardLinkType.DASHBOARDS)
            .tags(["npuscope"]).as_dropdown(True).keep_time(True).include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("source").label("Source").type("prometheus"))
        .with_variable(_chosen("run", "label_values(npuscope_capture_info, run)"))
        .with_variable(_chosen("rank", 'label_values(npuscope_rank_info{run=~"$run"}, rank)'))
    )  # fmt: skip
    for panel in panels:
        found = found.with_panel(panel)
    return found
