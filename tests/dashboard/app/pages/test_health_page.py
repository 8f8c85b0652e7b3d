"""The page Health: a log with spikes, checkpoints and phases beside the captures of its run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.health.steps import PHASE_COLUMNS
from npuscope.collector.store.manifest import create_store
from npuscope.dashboard.figures.health import dropped_figure, health_figure
from npuscope.sample_traces.job import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.visited_pages import figures, visit


def log(steps: int = 400) -> pl.DataFrame:
    """Spikes at 120 and 333, slower from step 250 on, a checkpoint every 50."""
    chance = np.random.default_rng(2)
    number = np.arange(steps)
    elapsed = np.where(number < 250, 10.0, 11.0) * np.exp(0.01 * chance.standard_normal(steps))
    grad_norm = 1 + 0.01 * chance.standard_normal(steps)
    grad_norm[[120, 333]] = [25.0, 60.0]
    return pl.DataFrame({
        "step": number, "elapsed_s": elapsed + np.where(number % 50 == 49, 30.0, 0.0),
        "loss": 9 * np.exp(-number / 300), "grad_norm": grad_norm, "at_s": elapsed.cumsum(),
        "generation_s": 0.5 * elapsed, "update_actor_s": 0.3 * elapsed,
        "generation_mean_s": 0.3 * elapsed, "generation_max_s": 0.48 * elapsed,
        "step_tokens": np.full(steps, 4e6), "mtp_1_loss": 9 * np.exp(-number / 300) + 0.1,
    })  # fmt: skip


def publish(folder: Path, more: dict[str, pl.DataFrame] | None) -> Path:
    job = small(steps=2, layers=1, name="moe", first_step=120)
    publish_job(folder, job, "20251127T043437.000Z", published_s=1, more=more)
    return folder


@pytest.mark.slow
def test_what_the_page_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = publish(tmp_path / "store", {"train_log": log()})
    visited = visit(monkeypatch, store, page="health", lang="zh")
    verdict = next(one.value for one in visited.markdown if "400" in one.value)
    assert r"尖峰\: 2，水平变化\: 1" in verdict
    (figure,) = figures(visited)
    titles = [one["text"] for one in figure["layout"]["annotations"]]
    assert len(titles) == 5 and "梯度范数" in titles
    spikes = [one for one in figure["data"] if one.get("marker", {}).get("symbol")]
    assert [list(one["x"]) for one in spikes] == [[120, 333]]
    bands = [(one["x0"], one["x1"]) for one in figure["layout"]["shapes"] if one["type"] == "rect"]
    assert set(bands) == {(119.5, 121.5)}
    events, captures, phases, bounds, heads = (one.value for one in visited.dataframe)
    assert list(events["kind"]).count("尖峰") == 2
    assert list(captures["kind"]) == ["尖峰"]
    assert phases["phase"][0] == "生成"
    assert len(bounds) == 6 and len(heads) == 1
    assert [one.value for one in visited.metric][1] == "400"
    assert any("丢弃的 token 未知" in one.value for one in visited.caption)


def test_dropped_tokens_in_percent_of_what_was_routed() -> None:
    rows = pl.DataFrame({"step": [7, 8], "dropped_ratio": [0.0, 0.1], "worst_ratio": [0.0, 0.2]})
    every, worst = dropped_figure(rows, str).data
    assert (every.x, every.y, worst.y) == ((7, 8), (0.0, 10.0), (0.0, 20.0))


def test_a_single_value_is_read_off_its_axis() -> None:
    """A reinforcement learning log of one line: its loss is not 0."""
    points = pl.DataFrame(
        {"step": [3], "step_ns": [1_268_488_000_000], "loss": [6.145e-06], "grad_norm": [0.04],
         "tokens_per_second": [4195.9], "generation_ns": [698_880_000_000]}
    ).with_columns(
        pl.lit(None, pl.Int64).alias(name)
        for name in (*PHASE_COLUMNS, "other_ns") if name != "generation_ns"
    )  # fmt: skip
    events = pl.DataFrame(schema={"metric": pl.String, "kind": pl.String, "step": pl.Int64})
    captures = pl.DataFrame(schema={"step": pl.Int64, "end_step": pl.Int64})
    figure = health_figure(points, events, captures, str)
    ranges = [axis.range for axis in figure.select_yaxes()]
    assert ranges[2] == (0.0, 2 * 6.145e-06)
    assert [*figure.select_yaxes()][2].exponentformat == "e"  # not 5µ
    assert ranges[3:] == [None, None]  # logarithmic; columns begin at 0
    two = points.with_columns(step=pl.lit(4, pl.Int64), loss=pl.lit(7e-06))
    figure = health_figure(pl.concat([points, two]), events, captures, str)
    assert [axis.range for axis in figure.select_yaxes()][2] is None


@pytest.mark.slow
def test_without_a_log_it_says_how_to_have_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create_store(tmp_path / "store")
    visited = visit(monkeypatch, publish(tmp_path / "store", None), page="health")
    assert any("--train-log" in one.value for one in visited.info)
