"""The one place of colours: each has one meaning, on every page, figure and report.

Hues are told apart with the common kinds of colour blindness too, and stand on white as on dark.
"""

from __future__ import annotations

from typing import Any

# Parts of a step.
COMPUTING, EXPOSED, MASKED, FREE = "#2a7f9e", "#e4572e", "#9fd0e0", "#b9bec6"
# Communication as HCCL measures it: waiting for others, and moving bytes.
WAIT, TRANSFER = "#d9a441", "#4c9f70"
# Parts of a step (metric `step_parts`): what waits in the colours of waiting, free time in greys.
STEP_PART_COLOURS = {
    "computing": COMPUTING, "transfer": TRANSFER, "peer_wait": WAIT, "absent_wait": "#f0d9a8",
    "pipeline_wait": "#a8702a", "unknown_communication": EXPOSED, "host": "#66727f",
    "idle": "#8f98a3", "free": FREE,
}  # fmt: skip
# What free time was lost to: host in warm colours, device and unknown in greys.
FREE_CAUSES = {
    "dispatch": "#66727f", "synchronisation": "#e4572e", "garbage_collection": "#7a5195",
    "data_loading": "#b8860b", "checkpoint": "#4c9f70", "logging": "#cc79a7",
    "profiler": "#56b4e9", "device": "#a8b0b9", "unknown": "#dfe2e6",
}  # fmt: skip
# Passes of a pipeline, and why it pauses between them.
PASSES = {"F": COMPUTING, "BW": "#7a5195", "B": "#a27fb8", "W": "#b8860b"}
BUBBLES = {
    "schedule": FREE, "imbalance": EXPOSED, "slow rank": "#9b2d0e", "variation": WAIT,
    "transfers": TRANSFER, "host": "#66727f", "other": "#f0d9a8", "late start": "#cc79a7",
    "late end": "#e0a8c6",
}  # fmt: skip
# What was better or worse than before, and what deserves a look.
BETTER, WORSE, WARNING = "#2a7f9e", "#e4572e", "#d9a441"
CULPRIT = "#d1341b"  # who holds the others up: nothing else on a page is as strong
# A waterfall of what makes one step longer or shorter than another.
WATERFALL: dict[str, Any] = {
    "decreasing": {"marker": {"color": BETTER}},
    "increasing": {"marker": {"color": WORSE}},
    "totals": {"marker": {"color": FREE}},
    "connector": {"line": {"color": FREE, "width": 1}},
    "textposition": "outside", "cliponaxis": False, "showlegend": False,
}  # fmt: skip

# Parallel kinds: those that join two are shades of their first.
KINDS = {
    "tp": "#0072b2", "tp_cp": "#3a93c9", "tp_dp": "#6cb0da", "tp_dp_cp": "#94c6e5",
    "tp_ep": "#005582",
    "pp": "#cc79a7", "embd": "#e0a8c6",
    "dp": "#009e73", "dp_cp": "#4fbf9f", "dp_ep": "#00785a",
    "ep": "#e69f00", "mp_ep": "#b87f00",
    "cp": "#7a5195", "mp": "#56b4e9",
    "world": "#8a6d3b", "unknown": "#9aa1ab",
}  # fmt: skip

# What computing time is told by: classes of the metric `operator_classes`.
CLASSES = {
    "matmul": "#1f6f8b", "matmul_batched": "#6fb3a8", "matmul_grouped": "#3b5b92",
    "attention_forward": "#7a5195", "attention_backward": "#b08cc4", "convolution": "#b8860b",
    "communication_fused": "#e69f00", "vector": "#56b4e9", "ai_cpu": "#e4572e", "dsa": "#cc79a7",
    "other": "#8f98a3",
}  # fmt: skip

# Classes of operators (operator_classes.CLASSES), kinds of host calls, and curves.
OPERATORS = {
    "matmul": "#1f6f8b", "attention": "#7a5195", "norm": "#4c9f70", "routing": "#d98200",
    "optimizer": "#8a6d3b", "movement": "#cc79a7", "vector": "#56b4e9", "other": "#8f98a3",
}  # fmt: skip
HOST = {
    "operator": "#4c9f70", "python": "#b9bec6", "enqueue": "#d9a441", "dequeue": "#e8c98a",
    "api": "#6f8fb3", "gc": "#e4572e",
}  # fmt: skip
# Parts of a critical path, and steps as measured and as predicted.
PATH = {
    "computing": COMPUTING, "communication": EXPOSED, "exogenous": WAIT, "task": "#cc79a7",
    "host": "#66727f", "launch": "#8f98a3", "overhead": "#b9bec6", "gap": "#dfe2e6",
}  # fmt: skip
MEASURED, PREDICTED = FREE, "#4c9f70"
MEMORY, COUNTER = "#7a9cc6", "#8a6d3b"

# Where colours only tell things apart, in this order.
SERIES = ("#2a7f9e", "#e4572e", "#7a5195", "#4c9f70", "#b8860b", "#cc79a7", "#56b4e9", "#66727f")

# Small to large (Cividis: same order to every eye), and below to above a middle.
SEQUENTIAL = "Cividis"
DIVERGING = ((0.0, "#2a7f9e"), (0.5, "#f2f2f2"), (1.0, "#e4572e"))

FONT = "'Source Sans', system-ui, 'Noto Sans CJK SC', 'Microsoft YaHei', sans-serif"

# (text, background, panel, lines) of a page.
LIGHT = ("#22303a", "#ffffff", "#f3f5f7", "#e1e5ea")
DARK = ("#e6eaee", "#12181d", "#1c242b", "#343e47")
PRIMARY = {"light": "#1f6f8b", "dark": "#5cb3d1"}


def kind_colour(kind: str | None) -> str:
    """Colour of a parallel kind: `tp`, `dp_cp`, ...; grey where it is not known."""
    return KINDS.get(kind or "unknown", KINDS["unknown"])


def template(*, is_dark: bool) -> dict[str, Any]:
    """Plotly template of a page: text, lines and series; the page itself shows through."""
    text, _, panel, lines = DARK if is_dark else LIGHT
    axis = {
        "gridcolor": lines,
        "linecolor": lines,
        "zerolinecolor": lines,
        "automargin": True,
        "title": {"standoff": 8},
    }
    return {
        "layout": {
            "font": {"family": FONT, "color": text, "size": 13},
            "title": {"font": {"size": 15}},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(SERIES),
            "colorscale": {"diverging": [list(stop) for stop in DIVERGING]},
            "xaxis": axis,
            "yaxis": axis,
            "shapedefaults": {"line": {"color": text}},
            "hoverlabel": {"bgcolor": panel, "font": {"color": text, "family": FONT}},
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
        }
    }


def streamlit_options() -> dict[str, str]:
    """Theme options of the server, by name: both looks, the browser's setting chooses."""
    options: dict[str, str] = {}
    for name, (text, background, panel, lines) in (("light", LIGHT), ("dark", DARK)):
        options |= {
            f"theme.{name}.primaryColor": PRIMARY[name],
            f"theme.{name}.textColor": text,
            f"theme.{name}.backgroundColor": background,
            f"theme.{name}.secondaryBackgroundColor": panel,
            f"theme.{name}.borderColor": lines,
        }
    return options
