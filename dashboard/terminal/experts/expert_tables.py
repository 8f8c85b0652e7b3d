"""Expert load as terminal tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from npuscope.analysis.experts.cost.load_overview import Overview
from npuscope.analysis.experts.load.mean_layers import over_mean
from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from ..tables import Column, FittedTable, decimals, several

_ratio = decimals("{:.3f}")


def layer_table(frame: pl.DataFrame) -> FittedTable:
    """Unevenness of each layer's experts."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        *_parts(frame),
        Column("experts", "experts_count", number, 2),
        Column("tokens", "tokens", number, 3),
        Column("max/mean", "max_over_mean", _ratio),
        Column("MaxVio", "max_vio", _ratio, 6),
        Column("CV", "cv", _ratio, 1),
        Column("Gini", "gini", _ratio, 4),
        Column("entropy", "entropy_ratio", _ratio, 5),
        Column("cold", "cold_count", number),
        Column("hottest", "hottest_expert", plain),
        *_known_column(frame, Column("balance loss", "balance_loss", _ratio, 7)),
        *_known_column(frame, Column("dropped", "dropped_ratio", percent, 8)),
        *_known_column(frame, Column("devices", "device_max_over_mean", _ratio, 9)),
        *_known_column(frame, Column("nodes", "node_max_over_mean", _ratio, 10)),
    ]
    caption = "of the experts in the source; cold: under a tenth of the mean"
    if {"devices", "nodes"} & {column.heading for column in columns}:
        caption += "; devices, nodes: their max/mean"
    return FittedTable(columns, frame.to_dicts(), "Tokens on experts", caption)


def expert_table(frame: pl.DataFrame) -> FittedTable:
    """Each expert's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("expert", "expert", plain),
        Column("tokens", "tokens", number),
        Column("of the layer", "share_ratio", percent, 1),
        Column("times the mean", "over_mean", _ratio),
    ]
    return FittedTable(columns, frame.to_dicts(), "Experts")


def device_table(frame: pl.DataFrame) -> FittedTable:
    """Each device's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("device", "device", plain),
        Column("tokens", "tokens", _tokens),
        Column("layer's max/mean", "device_max_over_mean", _ratio),
    ]
    caption = "device: position in the expert-parallel group; such groups are summed"
    return FittedTable(columns, frame.to_dicts(), "Tokens on devices", caption)


def node_table(frame: pl.DataFrame) -> FittedTable:
    """Each node's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("node", "node", plain),
        Column("devices", "devices_count", number, 1),
        Column("tokens", "tokens", _tokens),
        Column("layer's max/mean", "node_max_over_mean", _ratio),
    ]
    return FittedTable(columns, frame.to_dicts(), "Tokens on nodes")


def time_table(frame: pl.DataFrame) -> FittedTable:
    """Steps one after the other."""
    columns = [
        *_place(frame),
        Column("layers", "layers_count", number, 5),
        *([Column("parts", "parts_count", number)] if _scope_of(frame) != "global" else []),
        Column("tokens", "tokens", number, 4),
        Column("mean max/mean", "mean_max_over_mean", _ratio),
        Column("worst", "worst_max_over_mean", _ratio),
        Column("in layer", "worst_layer", plain),
        Column("devices", "device_max_over_mean", _ratio, 1),
        *_known_column(frame, Column("nodes", "node_max_over_mean", _ratio, 6)),
        Column("balance loss", "balance_loss", _ratio, 3),
        Column("order kept", "rank_correlation", _ratio, 2),
        Column("hot stay hot", "hot_overlap_ratio", percent),
    ]
    caption = "order kept: rank correlation with the previous step; balance loss: 1 is even"
    return FittedTable(columns, frame.to_dicts(), "Expert load over time", caption)


def cost_table(frame: pl.DataFrame) -> FittedTable:
    """What imbalance costs in each layer."""
    columns = [
        *_place(frame),
        Column("stage", "stage", plain, 2),
        Column("layer", "layer", plain),
        Column("max/mean", "device_max_over_mean", _ratio),
        Column("excess tokens", "excess_tokens", _tokens, 3),
        Column("ns per token", "ns_per_token", decimals("{:,.1f}"), 5),
        Column("matmuls ms", "grouped_excess_ns", ms),
        Column("activations ms", "activation_excess_ns", ms, 2),
        Column("all-to-alls ms", "exchange_exposed_ns", ms, 1),
        Column("sum ms", "excess_ns", ms),
        Column("±", "excess_error_ns", ms, 4),
        Column("of the step", "excess_share_ratio", percent),
    ]
    caption = (
        "excess tokens: on the most loaded device of a group, above the mean; all-to-alls: their"
        " exposed part; ±: standard error"
    )
    return FittedTable(columns, frame.to_dicts(), "Cost of the imbalance", caption)


_PARTS = {"ep_group": "EP group of rank", "dp_group": "DP group of rank", "micro_batch": "rank"}


def _parts(frame: pl.DataFrame) -> list[Column]:
    """Which part of the step a row is of, where it is not of the whole."""
    scope = _scope_of(frame)
    if scope == "global":
        return []
    columns = [Column(_PARTS[scope], "scope_index", plain)]
    return columns + [Column("micro-batch", "micro_batch", plain)] * (scope == "micro_batch")


def _scope_of(frame: pl.DataFrame) -> str:
    if "scope" not in frame.columns or frame.is_empty():
        return "global"
    return str(frame["scope"][0])


def _known_column(frame: pl.DataFrame, column: Column) -> list[Column]:
    """A column that some rows have a figure in."""
    has = column.key in frame.columns and frame[column.key].is_not_null().any()
    return [column] if has else []


def _tokens(value: float | None) -> str:
    """Tokens, of which replicas may share one."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _place(frame: pl.DataFrame) -> list[Column]:
    """Run, capture and phase where there are several, then the step where there are steps."""
    has_steps = frame["step"].is_not_null().any()
    return [*several(frame, "phase"), *([Column("step", "step", plain)] if has_steps else [])]


# From how many times the layer's mean on a block is drawn like this.
LEVELS = (
    (0.0, "·", "bright_black"),
    (0.1, "░", "blue"),
    (0.75, "▒", "green"),
    (1.25, "▓", "yellow"),
    (2.0, "█", "red"),
)
_UNKNOWN = (" ", "")
_MAX_COLUMNS, _MAX_LINES = 256, 64


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Loads of one run, capture and phase, all steps together: columns layer, `item`, tokens."""

    loads: pl.DataFrame
    item: str = "expert"
    title: str | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if self.loads.is_empty() or options.ascii_only:  # it would be question marks
            return
        items = _span(self.loads[self.item])
        layers = _span(self.loads["layer"])
        margin = len(str(layers[1])) + 2
        each = -(
            -(items[1] - items[0] + 1) // min(max(options.max_width - margin, 10), _MAX_COLUMNS)
        )
        lines_each = -(-(layers[1] - layers[0] + 1) // _MAX_LINES)
        cells = bin_maxima(self.loads, self.item, each, lines_each)
        if self.title:
            yield Text(self.title, style="bold")
        width = (items[1] - items[0]) // each + 1
        for at in range((layers[1] - layers[0]) // lines_each + 1):
            line = Text(f"{layers[0] + at * lines_each:>{margin - 2}} |")
            for column in range(width):
                line.append(*_level_block(cells.get((at, column))))
            yield line
        yield Text(" " * (margin - 1) + "+" + "-" * width)
        last = str(items[1])
        axis = f"{items[0]!s:<{max(width - len(last), len(str(items[0])) + 1)}}{last}"
        yield Text(f"{'':{margin}}{axis}  {self.item}s, layers down", style="bright_black")
        yield self._legend(each, lines_each)

    def _legend(self, each: int, lines_each: int) -> Text:
        text = Text("times the layer's mean:", style="bright_black")
        for least, block, colour in LEVELS:
            text.append(f" {block}", style=colour)
            text.append(f" {least:g}+" if least else " less")
        if each > 1 or lines_each > 1:
            lines = f" x {lines_each} layers" if lines_each > 1 else ""
            text.append(f"; a block is the maximum of {each} {self.item}s{lines}")
        return text


def bin_maxima(
    loads: pl.DataFrame, item: str, each: int, lines_each: int
) -> dict[tuple[int, int], float]:
    """The fullest of each block, in times its layer's mean, by (line, column) from the first."""
    first_layer, first = _span(loads["layer"])[0], _span(loads[item])[0]
    blocks: dict[tuple[int, int], float] = {}
    maxima = over_mean(loads, item).select("layer", item, "over_mean").drop_nulls()
    for layer, place, value in maxima.iter_rows():
        at = ((layer - first_layer) // lines_each, (place - first) // each)
        blocks[at] = max(value, blocks.get(at, 0.0))
    return blocks


def _level_block(value: float | None) -> tuple[str, str]:
    if value is None:
        return _UNKNOWN
    _, block, colour = next(level for level in reversed(LEVELS) if value >= level[0])
    return block, colour


def _span(column: pl.Series) -> tuple[int, int]:
    values = column.unique().sort().to_list()
    return int(values[0]), int(values[-1])


def plan_table(frame: pl.DataFrame) -> FittedTable:
    """Each layer's gain, and the total, whose layer is null."""
    columns = [
        *several(frame, "phase"),
        Column("layer", "layer", lambda layer: "all" if layer is None else plain(layer)),
        Column("max/mean now", "max_over_mean_before", _ratio),
        Column("planned", "max_over_mean_after", _ratio),
        Column("gain ms/step", "predicted_gain_ns", ms),
        Column("moved", "moved_experts_count", number),
        Column("MB", "migration_bytes", megabytes, 1),
        Column("low ms", "gain_low_ns", ms, 2),
        Column("high ms", "gain_high_ns", ms, 2),
        Column("now ms", "before_ns", ms, 4),
        Column("move ms", "migration_ns", ms, 3),
    ]
    caption = "tokens of the most loaded device over the mean; gain: expected, with forecast errors"
    return FittedTable(columns, frame.to_dicts(), "Plan for experts", caption)


def backtest_table(frame: pl.DataFrame) -> FittedTable:
    """What each forecast missed."""
    columns = [
        *several(frame, "phase"),
        Column("forecast", "method"),
        Column("best", "is_best", lambda best: "yes" if best else ""),
        Column("error", "error_ratio", percent),
        Column("5 %", "low_ratio", _signed_percent, 1),
        Column("95 %", "high_ratio", _signed_percent, 1),
        Column("steps ahead", "tested_steps", number, 2),
        Column("tests", "origins_count", number, 3),
    ]
    caption = "error: mean error of an expert's share of its layer, over the mean share"
    return FittedTable(columns, frame.to_dicts(), "Forecasts of expert load", caption)


def _signed_percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:+.1f} %"


def layer_columns(overview: Overview) -> list[Column]:
    """Of the layers of a report: those that are known."""
    of_experts = [
        Column("max/mean", "max_over_mean", _ratio),
        Column("worst", "worst_max_over_mean", _ratio, 3),
        Column("hottest expert", "hottest_expert", plain),
        Column("cold experts", "cold_count", decimals("{:.1f}"), 2),
    ]
    columns = [
        Column("layer", "layer", plain),
        *(of_experts if overview.item == "expert" else []),
        Column("device max/mean", "device_max_over_mean", _ratio),
        Column("fullest device", "hottest_device", plain, 1),
        Column("costs ms", "excess_ns", ms),
    ]
    if overview.layers["phase"].n_unique() > 1:
        columns.insert(0, Column("phase", "phase"))
    return [c for c in columns if c.key == "layer" or overview.layers[c.key].is_not_null().any()]
