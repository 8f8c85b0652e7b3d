"""What the figures of the pages hold: the values of the frames, scaled, and nothing left out
silently."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest

pytest.importorskip("plotly")

from npuscope.analysis.communication.volume import matrix_blocks
from npuscope.analysis.flops.kernels import roofline
from npuscope.dashboard import theme
from npuscope.dashboard.figures import communication, experts, memory, operators, ranks
from npuscope.dashboard.figures.layout import MOST_CELLS, numbered_names, visible_names
from npuscope.dashboard.locale.language import language_of
from npuscope.dashboard.terminal.operator_tables import CLASS_WORDS

chinese = language_of("zh")

MS = 1_000_000


def comm_rows() -> pl.DataFrame:
    """Rows of `mean_comm` of two kinds."""
    rows = [
        ("ep", 8.0, 50.0 * MS, 40.0 * MS, 10.0 * MS, 0.25, 30.0 * MS, 25.0 * MS),
        ("pp", 1.0, 5.0 * MS, 5.0 * MS, 0.0, 0.0, 5.0 * MS, 5.0 * MS),
    ]
    return pl.DataFrame(
        rows,
        schema=["kind", "op_count", "total_ns", "union_ns", "masked_ns", "masking_ratio",
                "exposed_ns", "exposed_attributed_ns"],
        orient="row",
    )  # fmt: skip


def trace(figure: Any, name: str) -> Any:
    return next(one for one in figure.data if one.name == name)


def test_masking_is_of_a_mean_step_of_a_rank() -> None:
    figure = communication.masking_figure(comm_rows(), str)
    assert list(trace(figure, "exposed").x) == [30.0, 5.0]
    assert list(trace(figure, "hidden").x) == [10.0, 0.0]
    assert list(figure.data[2].text) == [" 25.0 %", " 0.0 %"]


def test_masking_says_how_many_rows_it_leaves_out() -> None:
    many = pl.concat(
        comm_rows().filter(pl.col("kind") == "ep").with_columns(kind=pl.lit(f"kind{n:02}"))
        for n in range(communication.MOST_ROWS + 3)
    )
    figure = communication.masking_figure(many, str)
    assert len(figure.data[0].y) == communication.MOST_ROWS
    assert f"the {communication.MOST_ROWS} most exposed of {communication.MOST_ROWS + 3}" in (
        figure.layout.title.text
    )


def test_bars_of_names_that_look_alike_lie_apart() -> None:
    groups = [f"1035246118723908{n}1752" for n in range(3)]
    rows = pl.concat(
        comm_rows().filter(pl.col("kind") == "ep").with_columns(
            op_type=pl.lit("allReduce"), group_hash=pl.lit(one)
        )
        for one in groups
    )  # fmt: skip
    bars = communication.masking_figure(rows, str).data[0]
    assert list(bars.y) == [f"ep allReduce …1752{more}" for more in ("", " (2)", " (3)")]
    held = pl.DataFrame(
        {
            "holder": "operator", "name": ["a" * 40 + "x" + "b" * 40, "a" * 40 + "y" + "b" * 40],
            "held_bytes": [2 * 2**30, 2**30], "share_ratio": [2 / 3, 1 / 3], "block_count": [2, 1],
        }
    )  # fmt: skip
    bars = memory.holders_figure(held, str).data[0]
    assert len(set(bars.y)) == 2 and list(bars.x) == [2048.0, 1024.0]
    held = held.with_columns(held_bytes=pl.col("held_bytes") * 4)  # 12 GiB: the sentence says GiB
    figure = memory.holders_figure(held, str)
    assert list(figure.data[0].x) == [8.0, 4.0] and figure.layout.xaxis.title.text == "GiB"


def test_waiting_by_both_estimates_and_hccl() -> None:
    rows = pl.DataFrame(
        [("ep", "shortest duration", 15.0 * MS, 35.0 * MS), ("ep", "HCCL's own", 29.0 * MS, 16.0)],
        schema=["kind", "estimate", "wait_ns", "transfer_ns"], orient="row",
    )  # fmt: skip
    figure = communication.waiting_figure(rows, str)
    assert list(trace(figure, "wait").x) == [15.0, 29.0]


def test_links_beside_their_peak_and_the_slowest_rank() -> None:
    rates = pl.DataFrame(
        {
            "link": ["HCCS", "RDMA"], "kind": "ep", "op_type": "allToAllV",
            "bandwidth_bytes_per_s": [15e9, None], "peak_bytes_per_s": [28e9, None],
            "peak_ratio": [15 / 28, None], "slowest_rank": [1, None],
            "slowest_bytes_per_s": [10e9, None],
        }
    )  # fmt: skip
    figure = communication.links_figure(rates, str)
    assert list(trace(figure, "all ranks").x) == [
        pytest.approx(15.0)
    ]  # without a time there is no rate
    assert list(trace(figure, "slowest rank").x) == [10.0]
    assert list(trace(figure, "peak of the link").x) == [28.0]
    bare = rates.with_columns(pl.lit(None, pl.Float64).alias("peak_bytes_per_s"))
    assert "peak of the link" not in [
        one.name for one in communication.links_figure(bare, str).data
    ]


def matrix_rows(places: list[tuple[int, int, float, float | None]]) -> pl.DataFrame:
    return pl.DataFrame(
        [("ep", *place) for place in places],
        schema=["kind", "src_rank", "dst_rank", "size_bytes", "time_ns"],
        orient="row",
    ).with_columns(bandwidth_bytes_per_s=pl.col("size_bytes") / pl.col("time_ns") * 1e9)


def test_matrix_holds_every_pair_once_and_no_zero_for_unknown() -> None:
    rows = matrix_rows([(0, 1, 4e6, 1e6), (0, 1, 2e6, None), (2, 0, 3e6, 3e6)])
    z = np.asarray(communication.matrix_figure(rows, str, "size").data[0].z, dtype=float)
    assert z.shape == (3, 3) and (z[0, 1], z[2, 0]) == (6.0, 3.0)
    assert math.isnan(z[1, 0]) and math.isnan(z[0, 0])
    rates = np.asarray(communication.matrix_figure(rows, str, "bandwidth").data[0].z, dtype=float)
    assert rates[0, 1] == 4.0  # GB/s, of the bytes that have a time
    assert matrix_blocks(rows, "pp", most_cells=MOST_CELLS)[0].is_empty()


def test_matrix_of_a_thousand_ranks_keeps_to_the_cells_and_says_so() -> None:
    rows = matrix_rows([(rank, (rank + 1) % 1000, 1e6, 1e6) for rank in range(1000)])
    found, block = matrix_blocks(rows, most_cells=MOST_CELLS)
    assert block == 3 and found["size_bytes"].sum() == 1000e6
    figure = communication.matrix_figure(rows, str)
    z = np.asarray(figure.data[0].z, dtype=float)
    assert z.size <= MOST_CELLS
    assert "a cell is 3 by 3 ranks" in figure.layout.title.text
    assert np.nansum(z) == pytest.approx(1000.0)


def test_expert_load_over_the_mean_of_its_layer() -> None:
    loads = pl.DataFrame(
        {
            "step": [1, 1, 2, 2, 1, 1], "layer": [0, 0, 0, 0, 3, 3],
            "expert": [0, 1, 0, 1, 0, 1], "tokens": [30, 10, 30, 10, 0, 0],
        }
    )  # fmt: skip
    figure = experts.load_figure(loads, str)
    z = np.asarray(figure.data[0].z, dtype=float)
    assert z[0].tolist() == [1.5, 0.5]
    assert np.isnan(z[1]).all()  # no tokens: nothing to be compared
    assert list(figure.data[0].y) == ["0", "3"]


def test_a_plan_is_drawn_before_and_after_on_one_scale() -> None:
    devices = pl.DataFrame(
        {
            "layer": [0, 0], "device": [0, 1], "before_tokens": [3.0, 1.0],
            "after_tokens": [2.0, 2.0],
        }
    )  # fmt: skip
    before, after = experts.plan_figure(devices, str).data
    assert np.asarray(before.z).tolist() == [[1.5, 0.5]]
    assert np.asarray(after.z).tolist() == [[1.0, 1.0]]
    assert (before.zmin, before.zmax) == (after.zmin, after.zmax)
    rows = pl.DataFrame(
        {"layer": [0, None], "max_over_mean_before": [1.5, 1.5], "max_over_mean_after": [1.0, 1.0]}
    )
    figure = experts.plan_gain_figure(rows, str)
    assert list(trace(figure, "as it is").y) == [1.5]
    assert list(trace(figure, "as planned").y) == [1.0]


def test_cost_is_the_mean_over_steps_in_ms() -> None:
    rows = pl.DataFrame(
        {
            "step": [1, 2], "layer": [0, 0], "stage": [None, None],
            "device_max_over_mean": [2.0, 2.0], "grouped_excess_ns": [2.0 * MS, 4.0 * MS],
            "activation_excess_ns": [None, None], "exchange_exposed_ns": [None, None],
        },
        schema_overrides={
            "stage": pl.Int32, "activation_excess_ns": pl.Float64,
            "exchange_exposed_ns": pl.Float64,
        },
    )  # fmt: skip
    (bars,) = experts.cost_figure(rows, str).data
    assert list(bars.y) == [3.0]


def test_kernels_of_a_mean_step_and_their_share() -> None:
    rows = pl.DataFrame(
        {
            "type": ["MatMul", None], "core": ["AI_CORE", "AI_CPU"], "count": [2.0, 0.5],
            "total_ns": [5.0 * MS, MS / 2], "mean_ns": [2.5 * MS, 1.0 * MS],
            "share_ratio": [0.5, None],
        }
    )  # fmt: skip
    figure = operators.top_figure(rows, str)
    assert list(figure.data[0].x) == [5.0, 0.5]
    assert list(figure.data[0].text) == ["50.0 %", ""]
    assert list(figure.layout.yaxis.ticktext) == ["MatMul ", "- "]


def test_roofline_points_lie_under_both_limits() -> None:
    table = pl.DataFrame(
        {
            "type": ["MatMul", "MatMul", "Gemm"], "input_shapes": ["a", "a", "b"],
            "output_shapes": ["c", "c", "d"], "dtype": "bf16", "flops": [8_000, 8_000, None],
            "moved_bytes": [80, 80, 10], "count": [1, 1, 1], "total_ns": [10, 30, 5],
            "bound": "compute", "peak_flops_per_s": 300e12,
            "achieved_flops_per_s": [8e11, 2.7e11, None],
        },
        schema_overrides={"flops": pl.Int64},
    )  # fmt: skip
    points = roofline.points(table)
    assert points.height == 1 and points["intensity"][0] == 100
    assert points["achieved_flops_per_s"][0] == pytest.approx(16_000e9 / 40)
    peaks = pl.DataFrame(
        {"dtype": ["bf16", "int8"], "peak_flops_per_s": [300e12, 600e12],
         "hbm_bytes_per_s": [1.5e12, 1.5e12]}
    )  # fmt: skip
    figure = operators.roofline_figure(points, peaks, str)
    limit = trace(figure, "limit, bf16")
    assert list(limit.y)[1:] == [300.0, 300.0] and limit.x[1] == 200
    # Numbers in full at the axes; where points lie far apart powers of ten alone.
    assert {"10", "20", "50", "100", "1,000"} <= set(figure.layout.xaxis.ticktext)
    assert {"0.2", "0.5", "1"} <= set(figure.layout.yaxis.ticktext)
    far = points.vstack(points.with_columns(intensity=pl.col("intensity") * 10_000))
    told = operators.roofline_figure(far, peaks, str).layout.xaxis.ticktext
    assert "100,000" in told and "200" not in told
    flat = operators.roofline_figure(points, peaks.with_columns(hbm_bytes_per_s=None), str)
    assert list(trace(flat, "limit, bf16").y) == [300.0, 300.0]
    assert "limit, int8" not in [one.name for one in figure.data]


def test_a_class_of_operators_has_its_colour_in_whatever_order() -> None:
    def colours(*names: str) -> dict[str, str]:
        rows = pl.DataFrame({"class": names, "computing_ns": 1e6, "share_ratio": 0.5})
        return {one.name: one.marker.color for one in operators.classes_figure(rows, str).data}

    narrow = pl.DataFrame(
        {"class": ["matmul", "vector"], "computing_ns": [97e4, 3e4], "share_ratio": [0.97, 0.03]}
    )
    bars = operators.classes_figure(narrow, str).data
    assert [(one.text, one.customdata[0]) for one in bars] == [("97.0 %", "97.0 %"), ("", "3.0 %")]

    assert colours("matmul", "vector") == colours("vector", "matmul")
    assert len(set(colours(*CLASS_WORDS).values())) == len(CLASS_WORDS)


def step_rows() -> pl.DataFrame:
    return pl.DataFrame(
        [(rank, step, (10 + rank) * MS, 5 * MS, 1 * MS) for rank in range(3) for step in (12, 13)],
        schema=["rank", "step", "stage_ns", "computing_ns", "free_ns"],
        orient="row",
    ).with_columns(exposed_communication_ns=pl.lit(None, pl.Int64))


def test_ranks_by_step_beside_the_median_and_by_host() -> None:
    hosts = pl.DataFrame(
        {"rank": [0, 1, 2], "host": ["a", "b", "a"], "host_name": ["n0", "n1", "n0"]}
    )
    figure = ranks.steps_figure(step_rows(), str, hosts=hosts)
    heat = figure.data[0]
    assert list(heat.y) == ["0", "2", "1"]  # by host
    assert np.asarray(heat.z).tolist() == [[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]
    assert len(figure.layout.shapes) == 1  # where the second host begins
    whole = ranks.steps_figure(step_rows(), str, is_deviation=False)
    assert np.asarray(whole.data[0].z).tolist() == [[10.0, 10.0], [11.0, 11.0], [12.0, 12.0]]
    of_rank = step_rows().filter(pl.col("step") == 12)
    means_of = ranks.by_host(of_rank, hosts)
    assert means_of["stage_ns"].to_list() == [10 * MS, 12 * MS, 11 * MS]


@pytest.mark.parametrize(
    "stage_of, told, of_step",
    [
        ([0, 1, 1], "the median rank of step and stage", [0.0, -0.5, 0.5]),
        ([0, None, 1], "the median rank of the step", [-1.0, 0.0, 1.0]),
    ],
)
def test_the_title_says_which_median_ranks_are_measured_against(
    stage_of: list[int | None], told: str, of_step: list[float]
) -> None:
    stages = pl.DataFrame({"rank": [0, 1, 2], "pp_rank": stage_of})
    figure = ranks.steps_figure(step_rows(), str, stages=stages)
    title = "step without bubble: more or less than " + told
    assert figure.layout.title.text.startswith(title)
    assert np.asarray(figure.data[0].z)[:, 0].tolist() == of_step


def test_the_culprit_alone_has_the_strong_colour_and_its_name() -> None:
    rows = pl.DataFrame(
        {"rank": [5, 0], "caused_wait_per_step_ns": [2.0 * MS, MS / 2],
         "verdict": ["frequency", None]}
    )  # fmt: skip
    silent = pl.DataFrame({"rank": [6], "reason": ["not captured"]})
    figure = ranks.culprits_figure(rows, silent, str)
    suspect, others, grey = figure.data
    assert (list(suspect.x), list(suspect.y)) == ([5], [2.0])  # ms per step
    assert (list(others.x), list(others.y)) == ([0], [0.5])
    assert suspect.marker.color == theme.CULPRIT != others.marker.color
    assert [one.text for one in figure.layout.annotations] == [
        "<b>rank 5</b>: chip runs at a lower clock"
    ]
    several = pl.DataFrame(
        {"rank": [40, 90, 41], "caused_wait_per_step_ns": [100.0 * MS, 99.0 * MS, 98.0 * MS],
         "verdict": "frequency"}
    )  # fmt: skip
    names = ranks.culprits_figure(several, silent, str).layout.annotations
    # Those that stand close are one above the other.
    assert [(one.x, round(one.ay)) for one in names] == [(41, -18), (90, -18), (40, -33)]
    assert (list(grey.x), list(grey.customdata)) == ([6], ["not captured"])


def test_memory_curves_keep_the_most_and_say_what_is_left_out() -> None:
    count = memory.MOST_CURVES + 2
    curve = pl.DataFrame(
        {
            "rank": 3, "source": "record", "device_id": 0,
            "component": [f"C{n}" for n in range(count)],
            "start_ns": 1_764_246_877_000_000_000,
            "allocated_max_bytes": [(n + 1) * 2**30 for n in range(count)],
            "reserved_max_bytes": None,
        },
        schema_overrides={"reserved_max_bytes": pl.Int64},
    )  # fmt: skip
    steps = pl.DataFrame({"step": [12], "start_ns": [1_764_246_877_004_000_000]})
    figure = memory.curve_figure(curve, str, steps)
    assert [one.y[0] for one in figure.data] == [1024.0 * one for one in range(8, 2, -1)]  # MiB
    assert (
        f"rank 3 · Memory over time: the {memory.MOST_CURVES} largest of {count}"
        in figure.layout.title.text
    )
    assert figure.layout.shapes[0].x0 == 4.0  # ms: beyond 32 bits in ns


def test_memory_growth_marks_ranks_that_grow() -> None:
    keys = {"source": "record", "device_id": 0, "component": "PTA"}
    steps = pl.DataFrame(
        {"rank": [0, 0, 1, 1], **keys, "step": [1, 2, 1, 2],
         "end_bytes": [2**30, 2 * 2**30, 2**30, 2**30]}
    )  # fmt: skip
    growth = pl.DataFrame(
        {"rank": [0, 1], **keys, "is_steady": [True, None], "growth_per_step_bytes": [2.0**30, 0.0]}
    )
    figure = memory.growth_figure(steps, growth, str)
    assert [one.name for one in figure.data] == ["rank 0 grows", "rank 1"]
    assert list(figure.data[0].y) == [1024.0, 2048.0]
    other = growth.with_columns(growth_per_step_bytes=pl.Series([0.0, 2.0**30]))
    assert [one.name[:6] for one in memory.growth_figure(steps, other, str).data] == [
        "rank 0", "rank 1"
    ]  # fmt: skip


def test_titles_are_told_in_chinese() -> None:
    told = communication.masking_figure(comm_rows(), chinese).layout.title.text
    assert "通信" in told
    assert "内" not in communication.masking_figure(comm_rows(), str).layout.title.text
    for figure in (
        ranks.steps_figure(step_rows(), chinese),
        operators.roofline_figure(
            pl.DataFrame(schema={"type": pl.String, "total_ns": pl.Int64}), pl.DataFrame(), chinese
        ),
    ):
        assert not figure.layout.title.text.isascii()


def test_a_number_that_tells_names_apart_is_no_other_name() -> None:
    assert numbered_names(["a", "a (2)", "a", "a"]) == ["a", "a (2)", "a (3)", "a (4)"]


def test_names_do_not_steer_a_figure() -> None:
    """Texts of traces, arrays and titles; numbers and harmless texts stay what they are."""
    numbers = np.arange(6.0).reshape(2, 3)
    figure = go.Figure(go.Heatmap(z=numbers, y=np.array(["a\u202eb", None], dtype=object)))
    figure.add_bar(x=[1, 2], y=["c\x1b", "矩阵"], name="d\u2066", hovertemplate="%{y}\x07")
    figure.update_layout(title={"text": "e\u200f"})
    heat, bars = visible_names(figure).data
    assert list(heat.y) == ["a\\u202eb", None] and (heat.z == numbers).all()
    assert list(bars.y) == ["c\\u001b", "矩阵"] and list(bars.x) == [1, 2]
    assert (bars.name, bars.hovertemplate) == ("d\\u2066", "%{y}\\u0007")
    assert figure.layout.title.text == "e\\u200f"
