"""Which kernels take the time, and could they be faster?"""

from typing import get_args

import polars as pl
import streamlit as st

from npuscope.analysis import means, query
from npuscope.analysis.flops.kernels.roofline import points as points_of
from npuscope.analysis.flops.kernels.roofline import under_roofline
from npuscope.analysis.operators import causes, classes, headroom
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import operators as figures
from npuscope.dashboard.terminal.operator_tables import CLASS_WORDS
from npuscope.messages import Message

POINT = (
    "type", "input_shapes", "dtype", "count", "total_ns", "moved_bytes", "intensity",
    "achieved_flops_per_s", "peak_share_ratio", "bound",
)  # fmt: skip

HEADROOM = (
    "class", "type", "input_shapes", "dtype", "count", "total_ns", "mean_ns", "flops_ratio",
    "aic_mac_ratio", "headroom_low_ns", "headroom_high_ns", "basis", "on_path_ratio",
    "gain_low_ns", "gain_high_ns",
)  # fmt: skip

EVIDENCE = (
    "cause", "type", "input_shapes", "dtype", "count", "total_ns", "headroom_ns",
    "headroom_low_ns", "headroom_high_ns", "evidence", "asked_by", "replacement", "condition",
    "source",
)  # fmt: skip

page = open_page("operators")
say = page.say
page.title("Which kernels take the time, and could they be faster?")
by_type = page.frame(means.mean_kernels, by="type")
if by_type.is_empty():
    page.empty("No compute kernel was recorded here.", how_to_collect(page, "kernels"))
    st.stop()
slot = page.slot()
longest, reserve, why, limits, busy = page.parts(
    "Which take the time?",
    "What could they give back?",
    "Why do they take longer than they need?",
    "How close are they to the chip's limits?",
    "How busy are the cores?",
)
with longest:
    is_typed = by_type["type"].null_count() < by_type.height
    by = st.segmented_control(
        say("by"), list(get_args(query.KernelKey)), default="type" if is_typed else "name",
        required=True, format_func=say, key="kernels_by",
    )  # fmt: skip
    rows = page.frame(means.mean_kernels, by=by)
    if not is_typed:
        page.empty("Kernels have names, but no types and shapes.", how_to_collect(page, "kernels"))
    page.figure(figures.top_figure(rows, say), key="kernels")
    page.text(
        "Mean of the ranks and steps chosen; % is of their computing time. Kernels that run at the"
        " same time count in full."
    )
    page.table(rows, name=f"kernels_by_{by}", titles={"total_ns": say("time per step and rank")})
    page.table(page.frame(query.kernels, by=by), name="kernels", title="Every rank and step")

class_words = pl.col("class").replace({key: say(words) for key, words in CLASS_WORDS.items()})
with reserve:
    by_class = page.frame(classes.operator_classes)
    page.figure(figures.classes_figure(by_class, say), key="operator_classes")
    page.table(by_class.with_columns(class_words), name="operator_classes")
    page.table(
        page.frame(classes.operator_steps).with_columns(class_words),
        name="operator_steps", title="Every rank and step",
    )  # fmt: skip
    room = page.later(headroom.operator_headroom)
    if room is not None:
        if room["headroom_high_ns"].null_count() == room.height:
            page.empty(
                "What operators could give back is unknown here.", how_to_collect(page, "mfu")
            )
        else:
            page.figure(figures.headroom_figure(room, say), key="operator_headroom")
            page.text(
                "Low: beyond the best of the like here: the same class or type, about as much"
                " data. High: beyond the chip's limits, which nothing attains. A step gains what of"
                " it lies on the critical path."
            )
            page.table(
                room.with_columns(class_words), name="operator_headroom",
                title="Headroom of operators", columns=HEADROOM,
            )  # fmt: skip

with why:
    answer = page.later(causes.causes_of)
    if answer is not None:
        sums, evidence = answer
        if (sums["headroom_high_ns"] > 0).any():
            page.figure(figures.causes_figure(sums, say), key="operator_causes")
        page.text(
            "Bars: what kernels of a mean step would give back without the cause; lines: from low"
            " to high. Causes may meet in one kernel and do not add up."
        )
        cause_words = pl.col("cause").replace(
            {key: say(words) for key, words in causes.CAUSE_WORDS.items()}
        )
        reasons = {text: say(text) for text in sums["reason"].drop_nulls()}
        page.table(
            sums.with_columns(cause_words, pl.col("reason").replace(reasons)),
            name="operator_causes",
        )
        if not evidence.is_empty():
            page.table(
                evidence.with_columns(cause_words), name="operator_cause_rows",
                title="What each cause rests on", columns=EVIDENCE,
            )  # fmt: skip

with limits:
    roofline = page.frame(under_roofline)
    points = points_of(roofline.kernels)
    if points.is_empty():
        page.empty("FLOPs of kernels are unknown here.", how_to_collect(page, "mfu"))
    else:
        page.figure(figures.roofline_figure(points, roofline.peaks, say), key="roofline")
        if roofline.peaks["hbm_bytes_per_s"].null_count() == roofline.peaks.height:
            page.text(
                "The memory bandwidth of this chip is unknown: only the peak of the cube cores is"
                " drawn."
            )
        page.text(
            "Matrix kernels; attention counted as causal; bytes: every input and output once; the"
            " area of a point is its duration."
        )
        peaks = roofline.peaks.filter(pl.col("dtype").is_in(points["dtype"].unique().implode()))
        for source in peaks["source"].drop_nulls().unique(maintain_order=True):
            page.text(f"{say('peak')}: {say(roofline.sources[source])}")
        page.table(points, name="roofline", columns=POINT)
        page.table(roofline.kernels, name="mfu_kernels", title="Every rank and step")

with busy:
    rank = page.view.rank if page.view.rank is not None else page.capture.ranks[0]
    cores = page.frame(query.core_use, rank=rank)
    if cores.is_empty() or cores["timed_ns"].null_count() == cores.height:
        page.empty("No core times were recorded here.", how_to_collect(page, "pmu"))
    else:
        page.figure(figures.cores_figure(cores, say), key="cores")
        page.text(
            Message(
                "Of rank {rank}: choose another above. Parts of a core work at the same time.",
                rank=rank,
            )
        )
        page.table(cores, name="core_use")
        beside = page.frame(headroom.operator_pmu)
        if not beside.is_empty():
            page.table(beside, name="operator_pmu", title="FLOPs over time beside PMU counters")

verdict_here(page, slot)
page.notes([*page.frame(query.notes, rank=None, step=None), *page.warnings])
