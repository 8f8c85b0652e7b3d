"""The page Compare: the figures of `npuscope compare --json`, and steps beside each other."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest

pytest.importorskip("streamlit")

from typer.testing import CliRunner

from npuscope.analysis.compare.difference import Comparison
from npuscope.analysis.timeline.bins import MOST_CELLS, Overview
from npuscope.cli import app
from npuscope.dashboard.answers.timeline_answers import (
    Window,
    columns_of,
    side_by_side,
    windows,
)
from npuscope.dashboard.app import sources
from npuscope.dashboard.figures.comparison import change_figure
from npuscope.dashboard.figures.timeline import Slot, aligned_figure
from npuscope.dashboard.report.comparison import largest_change
from npuscope.dashboard.terminal.measures import figure as shown
from npuscope.sample_traces.job import small
from tests.dashboard.app.published_jobs import TABLES, publish_job
from tests.dashboard.app.visited_pages import figures, visit

DAY_NS = 86_400 * 10**9
JOB = small(steps=3, name="moe")
A, B = "20251127T123437.000Z", "20251128T123437.000Z"


def publish(store: Path, capture: str, days: int, **changes: Any) -> None:
    job = replace(JOB, start_ns=JOB.start_ns + days * DAY_NS, **changes)
    publish_job(store, job, capture, published_s=days, tables=(*TABLES, "memory", "launches"))


def command_output(store: Path, a: str, b: str) -> Any:
    done = CliRunner().invoke(app, ["compare", f"{store}@{a}", f"{store}@{b}", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def by_part(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        for at, name in enumerate(("a_ns", "b_ns", "delta_ns")):
            sums[row["part"]][at] += row[name]
    return dict(sums)


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(tmp_path / "one", A, 0)
    visited = visit(monkeypatch, tmp_path / "one", page="compare")
    assert "There is one capture here" in visited.info[0].value

    publish(tmp_path / "one", B, 1, slow_kernel="FlashAttentionScoreGrad", name="moe")
    sources.version_of.clear()  # its two seconds are over
    visited.run()
    assert not visited.exception and not visited.error  # what is looked at stays, now as B
    assert (visited.query_params["capture"], visited.query_params["base_capture"]) == (A, B)
    next(one for one in visited.button if "Swap" in one.label).click().run()
    assert not visited.exception and not visited.error
    assert {name: visited.query_params[name] for name in visited.query_params} == {
        "run": "moe", "capture": B, "base_run": "moe", "base_capture": A, "lang": "en",
    }  # fmt: skip
    told = command_output(tmp_path / "one", f"moe/{A}", f"moe/{B}")
    (both,) = (one.proto for one in visited.get("page_link") if "imeline" in one.proto.label)
    assert both.page == "timeline" and "beneath=1" in both.query_string
    assert f"base_capture={quote(A)}" in both.query_string
    waterfall, timelines = figures(visited)
    (bars,) = waterfall["data"]
    whole = [told["step_a_ns"], told["step_b_ns"], told["delta_ns"]]
    parts = by_part(told["rows"])
    assert bars["customdata"] == [whole, *parts.values(), whole]
    assert bars["x"] == [ns / 1e6 for ns in (whole[0], *(p[2] for p in parts.values()), whole[1])]
    assert sum(part[2] for part in parts.values()) == told["delta_ns"] > 0
    said = " ".join(one.value for one in (*visited.markdown, *visited.caption)).replace("\\", "")
    assert f"from {told['delta_low_ns'] / 1e6:+,.3f} to {told['delta_high_ns'] / 1e6:+,.3f}" in said
    rows, measures = (table.value for table in visited.dataframe[:2])
    assert measures[["a", "b", "delta", "low", "high"]].to_numpy().tolist() == [
        [shown(one["measure"], one[key]) for key in ("a", "b", "delta", "low", "high")]
        for one in told["measures"]
        if one["measure"] != "rank_ns_per_token"
    ]
    names = [row["name"] for row in told["rows"] if row["name"] is not None]
    assert list(rows["name"].dropna()) == names
    assert len(timelines["data"]) == 6  # three steps of each

    visited.segmented_control(key="by").set_value("rank").run()
    assert not visited.exception and not visited.error
    assert visited.query_params["by"] == ["rank"] or visited.query_params["by"] == "rank"
    asked = [
        "compare",
        f"{tmp_path / 'one'}@moe/{A}",
        f"{tmp_path / 'one'}@moe/{B}",
        "--by",
        "rank",
    ]
    by_rank = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["rows"]
    table = visited.dataframe[0].value
    assert list(table["rank"]) == [row["rank"] for row in by_rank]
    assert len(by_rank) > 2 * len(told["rows"]) - 9


@pytest.mark.slow
def test_captures_of_two_stores_and_other_kernels_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of other types of kernels all are looked at, as by the command; a step is chosen above."""
    publish(tmp_path / "one", A, 0)
    publish(tmp_path / "two", B, 1, experts=0, name="dense", ep=1)
    visited = visit(
        monkeypatch, tmp_path / "one", tmp_path / "two", page="compare", store="store1",
        run="dense", capture=B, step=JOB.first_step + 1, base_store="store0", base_run="moe",
        base_capture=A, lang="zh",
    )  # fmt: skip
    done = CliRunner().invoke(
        app, ["compare", f"{tmp_path / 'one'}@moe", f"{tmp_path / 'two'}@dense/{B}", "--json"]
    )
    told = json.loads(done.stdout)
    waterfall, timelines = figures(visited)
    assert waterfall["data"][0]["customdata"][1:-1] == [*by_part(told["rows"]).values()]
    assert len(timelines["data"]) == 2
    named = [note["text"] for note in timelines["layout"]["annotations"]]
    assert sum(str(JOB.first_step + 1) in text for text in named) == 2


@pytest.mark.slow
def test_a_job_is_not_compared_with_an_unrelated_one_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(tmp_path, A, 0)
    publish(tmp_path, B, 1, name="dense", experts=0, ep=1)
    visited = visit(monkeypatch, tmp_path, page="compare", run="dense")
    assert "choose a baseline" in visited.info[0].value and not visited.button
    picked = next(one for one in visited.selectbox if one.key == "base")
    assert picked.value is None and "base_run" not in visited.query_params
    picked.select_index(0).run()
    assert not visited.exception and not visited.error
    assert visited.query_params["base_run"] in ("moe", ["moe"]) and figures(visited)


def change_rows(rows: list[tuple[str, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(
        [{"part": part, "a_ns": a, "b_ns": b, "delta_ns": b - a} for part, a, b in rows]
    )


def test_bars_of_a_small_change_fill_the_figure_and_those_of_a_large_one_begin_at_zero() -> None:
    rows = [("computing", 600_000_000, 601_000_001), ("computing", 100_000_000, 100_000_000),
            ("transfer", 50_000_000, 48_500_000), ("latest_rank", 7, 9)]  # fmt: skip
    small_one = change_figure(change_rows(rows), str)
    (bars,) = small_one.data
    assert [*bars.x] == [750.000007, 1.000001, -1.5, 0.000002, 749.50001]
    assert sum(bars.x[:-1]) == pytest.approx(bars.x[-1])
    assert [*bars.text] == ["750.000", "+1.000", "-1.500", "+0.000", "749.500"]
    low, high = small_one.layout.xaxis.range
    assert 748 < low < 749.5 and 751 < high < 753
    # Cut bars would lie about the steps: they are lines there.
    assert bars.totals.marker.color == "rgba(0,0,0,0)"
    lines = [(line.x0, line.x1, line.y0, line.y1) for line in small_one.layout.shapes]
    assert lines == [(750.000007, 750.000007, -0.38, 0.38), (749.50001, 749.50001, 3.62, 4.38)]
    large = change_figure(change_rows([("computing", 10_000_000, 40_000_000)]), str)
    assert large.layout.xaxis.range[0] == 0
    assert not large.layout.shapes and large.data[0].totals.marker.color != "rgba(0,0,0,0)"
    none = change_figure(change_rows([("computing", 10_000_300, 10_000_000)]), str)
    assert none.data[0].text[1] == "0.000"  # no sign of what rounds to nothing
    # Nor an axis that counts what no number shows: with 1 us from tick to tick, not 50 ns.
    low, high = none.layout.xaxis.range
    assert high - low > 0.003 and low < 10 < high


def test_most_of_a_difference_is_of_the_longest_bar() -> None:
    rows = pl.DataFrame(
        [("pipeline_wait", "pp", None, 0, -145_000), ("peer_wait", "dp", None, 0, -90_000),
         ("peer_wait", "ep", None, 0, -71_000), ("computing", "Add", "duration", 0, 20_000)],
        schema=["part", "name", "change", "a_ns", "b_ns"], orient="row",
    ).with_columns(delta_ns=pl.col("b_ns") - pl.col("a_ns"))  # fmt: skip
    found = Comparison(
        "different", 10_000_000, 9_714_000, None, None, rows, pl.DataFrame(), {}, "step", None
    )
    row, whole = largest_change(found)
    (drawn,) = change_figure(rows, str).data
    bars = dict(zip(drawn.y, drawn.text, strict=True))
    assert row == "Most of it: waiting for slower ranks dp, -0.090 ms."
    assert whole == "waiting for slower ranks in all: -0.161 ms."
    assert bars["waiting for slower ranks"] == "-0.161"
    alone = replace(found, rows=rows.filter(part="pipeline_wait"))
    assert len(largest_change(alone)) == 1


def test_steps_stand_in_pairs_that_begin_together() -> None:
    borders = pl.DataFrame({"step": [8, 7, 6], "start_ns": [200, 100, 0], "end_ns": [330, 200, 90]})
    ours = windows(borders, (7, 8), (0, 330))
    assert ours == [Window(7, 100, 200), Window(8, 200, 330)]
    assert windows(borders.clear(), (None,), (5, 9)) == [Window(None, 5, 9)]
    theirs = [Window(71, 1_000, 1_120), Window(72, 1_120, 1_230), Window(73, 1_230, 1_300)]
    pairs, length_ns = side_by_side(ours, theirs, None, ranks=8)
    assert [(a.step, b.step, a.at_ns, b.at_ns) for a, b in pairs] == [
        (7, 71, 0, 0),
        (8, 72, 120, 120),
    ]
    assert length_ns == 120 + 130
    pairs, length_ns = side_by_side(ours, theirs, 72, ranks=8)
    assert [(a.step, b.step, a.at_ns) for a, b in pairs] == [(8, 72, 0)] and length_ns == 130
    assert len(side_by_side(ours, theirs, 73, ranks=8)[0]) == 2  # A has no third
    assert len(side_by_side(ours, theirs, None, ranks=1_000)[0]) == 1
    assert 2 * 1_000 * columns_of(1, 1_000) <= MOST_CELLS and columns_of(3, 8) == 500


def test_bins_stand_where_their_step_begins() -> None:
    cells = pl.DataFrame(
        {"rank": [0, 0], "bin_start_ns": [50, 60], "active_ns": [10, 10], "computing_ns": [10, 5]},
        schema_overrides={"rank": pl.Int32},
    )
    found = Overview(cells, (0,), 50, 70, 10, 2)
    sides = [
        ("A", [Slot(7, found, 50, 0), Slot(8, found, 40, 30_000)]),
        ("B", [Slot(7, found, 50, 0)]),
    ]
    drawn = aligned_figure(sides, 60_000, "computing", str)
    assert [(trace.x0, trace.yaxis) for trace in drawn.data] == [
        (0.005, "y"), (30.015, "y"), (0.005, "y2"),
    ]  # fmt: skip
    assert [trace.showscale for trace in drawn.data] == [True, False, False]
    assert [note.text for note in drawn.layout.annotations] == [
        "A",
        "step 7",
        "step 8",
        "B",
        "step 7",
    ]
    assert drawn.layout.xaxis2.title.text == "us from the start of the first step"
