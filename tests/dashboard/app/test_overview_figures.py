"""Figures of the overview, the trends and the data quality hold the values of their frames."""

from __future__ import annotations

from datetime import datetime, timezone

import polars as pl
import pytest

from npuscope.analysis.findings.list_findings import RULES
from npuscope.analysis.trends import log_points, trend_changes
from npuscope.dashboard import theme
from npuscope.dashboard.answers import overview_answers
from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.figures import ranks, steps, trends

START_NS = 1_764_246_877_000_000_000
HUGE_NS = 600 * 7_800_000  # beyond 32 bits
NO_LOG = pl.DataFrame(
    schema={"run": pl.String, "step": pl.Int64, "step_ns": pl.Float64, "tokens_per_s": pl.Float64}
)


def bars(key: str, *rows: tuple[int, float, float, float]) -> pl.DataFrame:
    """Rows of `mean_step_bars`."""
    parts = ["computing_ns", "exposed_communication_ns", "free_ns"]
    schema = {key: pl.Int64, **dict.fromkeys(parts, pl.Float64)}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(length_ns=pl.sum_horizontal(parts))


def test_each_finding_is_told_on_a_page_of_its_own() -> None:
    """None is left to the timeline: a page named for what it finds would say that it found none."""
    rules = {rule.__name__ for rule in RULES}
    assert rules == set(overview_answers._PAGES)
    assert set(overview_answers._PAGES.values()) <= set(PAGES)


def test_a_gauge_shows_percent() -> None:
    figure = steps.mfu_gauge(0.198, str)
    assert figure.data[0].value == pytest.approx(19.8)
    assert tuple(figure.data[0].gauge.axis.range) == (0, 100)


def test_columns_are_in_one_unit() -> None:
    frame = bars("rank", (0, HUGE_NS, 2 * 10**6, 0), (1, 10**9, 0, 10**6))
    figure = steps.ranks_figure(frame, str)
    computing, exposed, free = figure.data
    assert list(computing.x) == [0, 1]
    assert figure.layout.yaxis.title.text == "ms"  # 5,800 ms reads as well as 5.8 s
    assert list(computing.y) == pytest.approx([HUGE_NS / 1e6, 1000.0])
    assert list(exposed.y) == pytest.approx([2.0, 0.0])
    assert list(free.y) == pytest.approx([0.0, 1.0])
    assert computing.marker.color == theme.COMPUTING


def test_thousands_of_ranks_leave_the_longest() -> None:
    frame = bars("rank", *((rank, 1000 + rank, 0, 0) for rank in range(2000)))
    figure = steps.ranks_figure(frame, str)
    assert sum(len(trace.x) for trace in figure.data) <= 2_000
    assert max(figure.data[0].x) == 1999


def test_of_thousands_of_steps_of_one_rank_the_longest_are_told_as_steps() -> None:
    frame = bars("step", *((step, 1000 + step, 0, 0) for step in range(2000)))
    figure = steps.ranks_figure(frame, str)
    shown = len(figure.data[0].x)
    assert figure.layout.title.text == f"The {shown} longest of 2000 steps"


def captures(start_ns: list[int | None]) -> pl.DataFrame:
    count = len(start_ns)
    names = ("computing_ns", "exposed_communication_ns", "free_ns", "step_ns")
    return pl.DataFrame(
        {
            "run": ["moe"] * count,
            "capture": [f"c{n}" for n in range(count)],
            "start_ns": start_ns,
            **{name: [4e6 * (n + 1) for n in range(count)] for name in names},
            "masking_ratio": [0.25] * count,
            "kernel_mfu_causal_ratio": pl.Series([None] * count, dtype=pl.Float64),
            "rank_imbalance": [1.5] * count,
            "expert_imbalance": pl.Series([None] * count, dtype=pl.Float64),
        }
    )


def test_trends_stand_at_the_start_of_their_captures() -> None:
    frame = captures([START_NS, START_NS + 60 * 10**9])
    exposed = frame.select("run", "capture", "start_ns", kind=pl.lit("ep"),
                           exposed_attributed_ns=pl.lit(2e6))  # fmt: skip
    figure = trends.trends_figure(frame, exposed, trend_changes(frame, NO_LOG), str)
    assert not figure.layout.shapes
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["step of the job"].y) == [4.0, 8.0]
    assert list(by_name["Communication masked"].y) == [25.0, 25.0]
    assert list(by_name["exposed ep"].y) == [2.0, 2.0]
    assert list(by_name["exposed ep"].customdata) == ["c0", "c1"]  # what a click opens
    assert by_name["exposed ep"].line.color == theme.kind_colour("ep")
    assert "Kernel MFU" not in by_name
    assert by_name["step of the job"].x[0] == datetime(
        2025, 11, 27, 12, 34, 37, tzinfo=timezone.utc
    )


def test_captures_without_a_clock_are_numbered() -> None:
    figure = trends.trends_figure(captures([5, None]), captures([]).select(
        "run", "capture", "start_ns", kind=pl.lit("ep"), exposed_attributed_ns=pl.lit(0.0)
    ), trend_changes(captures([]), NO_LOG), str)  # fmt: skip
    assert list(figure.data[0].x) == [1, 2]


def test_changes_are_lines_with_their_size() -> None:
    wave = [1, 1.01, 0.99, 1, 1.01, 0.99]
    frame = captures([START_NS + n * 60 * 10**9 for n in range(12)]).with_columns(
        step_ns=pl.Series([4e6 * one for one in wave] + [5e6 * one for one in wave])
    )
    log = NO_LOG.clear().vstack(
        pl.DataFrame(
            {"run": ["moe"] * 5000, "step": range(5000), "tokens_per_s": [None] * 5000,
             "step_ns": [(1 + (n >= 3000)) * (1 + n % 7 / 100) * 1e9 for n in range(5000)]},
            NO_LOG.schema,
        )
    )  # fmt: skip
    changes = trend_changes(frame, log)
    none = captures([]).select("run", "capture", "start_ns", kind=pl.lit("ep"),
                               exposed_attributed_ns=pl.lit(0.0))  # fmt: skip
    figure = trends.trends_figure(frame, none, changes, str)
    lines = [(line.x0, line.yref) for line in figure.layout.shapes]
    when = datetime.fromtimestamp(START_NS / 1e9 + 360, tz=timezone.utc)
    assert lines == [(when, "y domain")]
    assert "+25.0%" in [note.text for note in figure.layout.annotations]

    # A time that is no number, as a foreign export may hold, is none: it took a search for ever.
    lost = pl.when(pl.col("step") == 100).then(float("nan")).otherwise("step_ns").alias("step_ns")
    short = log.filter(pl.col("step") % 100 == 0).with_columns(lost)
    (change,) = trend_changes(captures([]), short).rows(named=True)
    assert (change["step"], change["before_count"], change["after_count"]) == (3000, 29, 20)

    points = log_points(log)
    assert points.height == 1000 and points["step"][:2].to_list() == [0, 5]
    figure = trends.log_figure(points, changes, str)
    assert [line.x0 for line in figure.layout.shapes] == [3000]
    assert figure.layout.annotations[0].text == "+100.0%"
    assert figure.data[0].y[0] == pytest.approx(1020.0)  # ms, of 1.00 to 1.04 s


def test_the_only_step_of_a_log_is_a_point() -> None:
    def mode(steps: int) -> str:
        points = pl.DataFrame({"step": range(steps), "step_ns": [1e9] * steps})
        figure = trends.log_figure(points, trend_changes(captures([]), NO_LOG), str)
        return str(figure.data[0].mode)

    assert (mode(1), mode(1000)) == ("lines+markers", "lines")


def test_parts_of_steps_whose_length_is_unknown_are_drawn() -> None:
    frame = captures([START_NS, START_NS + 10**9]).with_columns(step_ns=pl.lit(None, pl.Float64))
    none = captures([]).select("run", "capture", "start_ns", kind=pl.lit("ep"),
                               exposed_attributed_ns=pl.lit(0.0))  # fmt: skip
    figure = trends.trends_figure(frame, none, trend_changes(captures([]), NO_LOG), str)
    names = [one.name for one in figure.data]
    assert "computing" in names and "step of the job" not in names


def test_every_rank_says_what_it_can_answer() -> None:
    support = pl.DataFrame(
        {
            "rank": [0, 0, 7, 7],
            "capability": ["steps", "mfu", "steps", "mfu"],
            "support": ["yes", "no", "partly", "yes"],
        }
    )
    heat = ranks.support_figure(support, str).data[0]
    assert list(heat.x) == ["0", "7"] and list(heat.y) == ["steps", "mfu"]
    assert [list(row) for row in heat.z] == [[2, 1], [0, 2]]


def test_colours_of_a_step_are_told_apart() -> None:
    assert len({theme.COMPUTING, theme.EXPOSED, theme.MASKED, theme.FREE}) == 4
    assert theme.kind_colour(None) == theme.kind_colour("never seen") == theme.KINDS["unknown"]
    assert len(set(theme.KINDS.values())) == len(theme.KINDS)


def test_a_heavier_stage_stands_out_and_silent_ranks_are_grey() -> None:
    frame = bars("rank", (0, 8e6, 12e6, 0), (1, 8e6, 12e6, 0), (2, 13e6, 7e6, 0), (3, 13e6, 7e6, 0))
    stages = pl.DataFrame({
        "rank": [0, 1, 2, 3], "pp_rank": [0, 0, 1, 1], "computing_ns": [8e6, 8e6, 13e6, 13e6],
    })  # fmt: skip
    silent = pl.DataFrame({"rank": [4], "reason": ["not captured"]})
    figure = steps.ranks_figure(frame, str, stages, silent)
    assert [one.text for one in figure.layout.annotations] == [
        "<b>stage 0: computing 8.000 ms</b>", "<b>stage 1: computing 13.000 ms</b>",
    ]  # fmt: skip
    assert [(one.x0, one.x1, one.y0) for one in figure.layout.shapes] == [
        (-0.5, 1.5, 8.0), (1.5, 3.5, 13.0),
    ]  # fmt: skip
    grey = figure.data[-1]
    assert list(grey.x) == [4] and list(grey.customdata) == ["not captured"]
    apart = stages.with_columns(pp_rank=pl.Series([0, 1, 0, 1])).with_columns(
        computing_ns=pl.when(pl.col("pp_rank") == 0).then(8e6).otherwise(13e6)
    )
    assert not steps.ranks_figure(frame, str, apart).layout.annotations  # not side by side
    three = stages.with_columns(pp_rank=pl.Series([0, 0, 1, 2]))  # have no room side by side
    assert [one.text for one in steps.ranks_figure(frame, str, three).layout.annotations] == [
        "<b>stage 0<br>8.000</b>", "<b>stage 1<br>13.000</b>", "<b>stage 2<br>13.000</b>",
    ]  # fmt: skip


def test_the_stages_that_compute_longest_and_shortest_are_told() -> None:
    rows = pl.DataFrame({"stage": [0, 1, 2], "computing_ns": [8e6, 13e6, 9e6]})
    assert overview_answers.uneven(rows) == ["Stage 1 computes 13.000 ms, stage 0 8.000 ms."]
    assert overview_answers.uneven(rows.head(1)) == []
