"""Expert load in a report: what is said of counts, of devices alone, and of nothing."""

from __future__ import annotations

import json

import duckdb
import polars as pl
import pytest

from npuscope.analysis.experts.cost.load_overview import Overview
from npuscope.analysis.experts.cost.overview import overview
from npuscope.analysis.report_rows import NO_LOAD, experts_rows
from npuscope.dashboard.locale.language import language_of
from npuscope.dashboard.report.blocks import Block, Chart, Sentence
from npuscope.dashboard.report.html_page import page
from npuscope.dashboard.report.markdown import markdown
from npuscope.dashboard.report.report import COLLECT, experts_blocks
from npuscope.dashboard.terminal.tables import FittedTable
from npuscope.messages import join
from tests.analysis.tables import Row, connect, fill

chinese = language_of("zh")


def overview_of(con: duckdb.DuckDBPyConnection) -> Overview | None:
    return overview(con, run="job", capture="c")


def counts(*layers: tuple[int, ...], step: int = 1, **more: object) -> list[Row]:
    return [
        {"step": step, "phase": "train", "layer": number, "expert": expert, "tokens": count, **more}
        for number, tokens in enumerate(layers)
        for expert, count in enumerate(tokens)
    ]


def blocks(rows: list[Row], top: int = 10) -> list[Block]:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "ep_size": 2}])
    fill(con, "expert_load", rows)
    return list(experts_blocks(overview_of(con), top=top, place="'a b'"))


def texts(found: list[Block]) -> list[str]:
    return [join((one.text, one.emphasis), "; ") for one in found if isinstance(one, Sentence)]


def test_counts_of_experts() -> None:
    rows = counts((10, 20, 30, 40), (0, 80, 10, 10)) + counts(
        (40, 30, 20, 10), (0, 90, 0, 10), step=2
    )
    found = blocks(rows, top=1)
    assert texts(found) == [
        "experts: the most loaded expert of a layer has 2.50 times the mean, the most loaded"
        " device has 1.55 times the mean of its group",
        "hottest, times the mean of the layer: expert 1 of layer 1 (3.40)",
        "1 experts of layers 1 received no tokens in any step: dead experts",
        "a better placement and its gain: `npuscope experts plan 'a b' --devices 2`",
    ]
    [table] = [one for one in found if isinstance(one, FittedTable)]
    [worst] = table.rows
    assert (worst["layer"], worst["worst_max_over_mean"]) == (1, 3.6)
    assert worst["max_over_mean"] == pytest.approx(3.4)
    assert (worst["hottest_expert"], worst["cold_count"], worst["hottest_device"]) == (1, 1.5, 0)
    assert worst["excess_ns"] is None and "costs ms" not in [c.heading for c in table.columns]
    [chart] = [one for one in found if isinstance(one, Chart)]
    assert chart.frame["tokens"].sum() == 400
    for text in texts(found):
        assert not any(word in chinese(text) for word in ("fullest", "hottest", "got no", "where"))
    text = markdown(found)
    assert "Expert load by layer" in text and "`npuscope experts plan 'a b' --devices 2`" in text
    assert "<code>npuscope experts plan" in page(found)


def test_devices_alone() -> None:
    found = blocks([
        {"step": 1, "phase": "train", "layer": 0, "ep_rank": d, "tokens": t}
        for d, t in enumerate((30, 10))
    ])  # fmt: skip
    # No plan is offered: it would need single experts.
    assert texts(found) == [
        "experts: the most loaded device has 1.50 times the mean of its group", COLLECT
    ]  # fmt: skip
    assert chinese(COLLECT) != COLLECT
    alone = blocks([{"step": 1, "phase": "train", "layer": 0, "ep_rank": 0, "tokens": 30}])
    assert texts(alone) == [COLLECT]
    assert not any(isinstance(one, Chart) for one in found)  # one layer needs no picture


def test_nothing_is_said_where_nothing_is_known() -> None:
    con = connect()
    assert overview_of(con) is None
    assert (
        list(experts_blocks(None, top=3, place="x")) == [Sentence(NO_LOAD)]
        and experts_rows(None) is None
    )
    fill(con, "kernels", [{"type": "MatMulV2", "is_compute": True, "start_ns": 0, "dur_ns": 5}])
    assert overview_of(con) is None


def test_rows_for_programs() -> None:
    con = connect()
    fill(con, "expert_load", counts((1, 3)))
    told = experts_rows(overview_of(con))
    assert told is not None
    [layer] = json.loads(json.dumps(told))["layers"]
    assert (layer["max_over_mean"], layer["hottest_expert"]) == (1.5, 1)
    assert told["cost"] is None and told["devices_count"] is None
    assert pl.DataFrame(told["hottest"])["expert"].to_list() == [1]
