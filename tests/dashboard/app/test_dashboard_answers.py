"""Communication, experts, operators, ranks and memory: pages show what the command line says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("streamlit")


from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.dashboard.figures.operators import MOST_ROWS
from npuscope.sample_traces.generate import write_job
from npuscope.sample_traces.job import Job
from tests.cli import command
from tests.collector.readers.expert_load.expert_dumps import write_hook
from tests.dashboard.app.visited_pages import figures, visit

JOB = Job(name="hot", layers=2, pp=1, dp=2, ep=2, experts=8, micro_batches=1, expert_skew=1.2)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small job with expert load."""
    folder = tmp_path_factory.mktemp("hot")
    write_job(JOB, folder / "profiles")
    write_hook(JOB, folder / "profiles" / "tokens_per_expert")
    assert ingest(folder / "profiles", folder / "store", summarise=summarise, jobs=1).is_complete
    return folder / "store"


def trace(figure: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in figure["data"] if one.get("name") == name)
    return found


def values(told: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers of a figure, which plotly may have written as bytes."""
    if isinstance(told, dict):
        import base64

        raw = np.frombuffer(base64.b64decode(told["bdata"]), dtype=told["dtype"])
        shape = [int(one) for one in str(told.get("shape", raw.size)).split(",")]
        return raw.reshape(shape).astype(float)
    return np.array(told, dtype=float)


def rows_of(*words: object) -> pl.DataFrame:
    return pl.DataFrame(command.rows_of(*words), infer_schema_length=None)


def test_communication(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="communication", rank="5", step="12")
    masking, _, waiting, links, *_, matrix = figures(visited)
    rows = rows_of("comm", sample_store, "--rank", "5", "--step", "12")
    by_kind = {row["kind"]: row for row in rows.to_dicts()}
    for name, column in (("exposed", "exposed_ns"), ("hidden", "masked_ns")):
        bars = trace(masking, name)
        assert set(bars["y"]) == set(by_kind)
        expected = [by_kind[kind][column] / 1e6 for kind in bars["y"]]
        assert values(bars["x"]) == pytest.approx(expected, rel=1e-12)
    assert set(waiting["data"][0]["y"][1]) == {
        "shortest duration", "last arrival", "HCCL's own",
    }  # fmt: skip
    traffic = rows_of("comm", sample_store, "--by", "link", "--rank", "5", "--step", "12")
    rates = values(trace(links, "all ranks")["x"])
    assert sorted(rates) == pytest.approx(sorted(traffic["bandwidth_bytes_per_s"] / 1e9))
    pairs = rows_of("comm", sample_store, "--by", "matrix", "--rank", "5", "--step", "12")
    assert np.nansum(values(matrix["data"][0]["z"])) * 1e6 == pytest.approx(
        pairs["size_bytes"].sum()
    )


def test_operators(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="operators", rank="0", step="12")
    longest, classes, headroom, causes, roofline, cores = figures(visited)
    rows = rows_of("kernels", sample_store, "--by", "type", "--rank", "0", "--step", "12")
    assert values(longest["data"][0]["x"]) == pytest.approx((rows["total_ns"] / 1e6).to_list())
    rows = rows_of("operators", sample_store, "--by", "class", "--rank", "0", "--step", "12")
    parts = [one["x"][0] if isinstance(one["x"], list) else values(one["x"])[0]
             for one in classes["data"]]  # fmt: skip
    assert parts == pytest.approx((rows["computing_ns"] / 1e6).to_list())
    rows = rows_of("operators", sample_store, "--rank", "0", "--step", "12").head(MOST_ROWS)
    low, rest = (values(one["x"]) for one in headroom["data"])
    assert low + rest == pytest.approx((rows["headroom_high_ns"] / 1e6).to_numpy())
    rows = rows_of("operators", sample_store, "--by", "cause", "--rank", "0", "--step", "12")
    rows = rows.filter(pl.col("headroom_high_ns") > 0)
    bars = pytest.approx((rows["headroom_ns"] / 1e6).to_list())
    assert values(causes["data"][0]["x"]) == bars
    kernels = rows_of("mfu", sample_store, "--by", "kernel", "--rank", "0", "--step", "12")
    known = kernels.drop_nulls(["flops", "moved_bytes", "achieved_flops_per_s"])
    points = [y for one in roofline["data"] if one["mode"] == "markers" for y in values(one["y"])]
    assert sorted(points) == pytest.approx(sorted(known["achieved_flops_per_s"] / 1e12))
    shares = values(cores["data"][0]["z"])
    assert np.nanmin(shares) >= 0 and np.nanmax(shares) <= 100
    visited.segmented_control(key="kernels_by").set_value("shape").run()
    assert not visited.exception


def test_ranks(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="ranks")
    culprits, by_step, *_ = figures(visited)
    steps = rows_of("steps", sample_store)
    heat = by_step["data"][0]
    stage = pl.col("rank") // 4  # two pipeline stages of four ranks
    middle = steps.with_columns(
        more=(pl.col("stage_ns") - pl.col("stage_ns").median().over("step", stage)) / 1e6
    )
    expected = middle.sort("step", "rank").pivot(on="step", index="rank", values="more")
    assert values(heat["z"]) == pytest.approx(expected.drop("rank").to_numpy())
    caused = rows_of("ranks", sample_store).group_by("rank").agg(pl.col("caused_wait_ns").mean())
    told_ms = {
        rank: ms
        for one in culprits["data"]
        if one["type"] == "bar"
        for rank, ms in zip(values(one["x"]), values(one["y"]), strict=True)
    }
    assert told_ms == pytest.approx({rank: ns / 1e6 for rank, ns in caused.iter_rows()})
    assert any("rank 5" in one.value for one in visited.markdown)  # the planted slow one


def test_waiting_that_nobody_knows_is_not_drawn_as_nothing(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    """Two of eight ranks: no operation has all its members, no rank anything to compare with."""
    visited = visit(monkeypatch, real_stores("alexnet_ddp_db_level1"), page="ranks")
    titles = [one["layout"]["title"]["text"] for one in figures(visited)]
    assert titles and not [one for one in titles if "Waiting" in one]
    said = "\n".join(one.value for one in (*visited.markdown, *visited.info))
    assert "No rank is known to be slower" in said and "last" in visited.info[0].value


def test_the_overview_says_why_mfu_and_losses_are_unknown(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    """FLOPs of most kernels are known there, the chip's peak for their element type is not."""
    visited = visit(monkeypatch, real_stores("alexnet_ddp_db_level1"), page="overview")
    unknown = [one.value.replace("\\", "") for one in visited.info if "unknown here" in one.value]
    assert len(unknown) == 2 and all("--peak fp32" in one for one in unknown), unknown


def test_the_overview_says_where_the_step_goes_of_tables_without_times(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    """The producer's own table has parts of a step, but neither its start nor its end."""
    store = real_stores("cluster16_pp2")
    visited = visit(monkeypatch, store, page="overview")
    [reported] = rows_of("report", store)["mean_step"].to_list()
    said = " ".join(one.value for one in visited.markdown).replace("\\", "")
    for part in ("computing_ns", "exposed_communication_ns", "free_ns"):
        assert f"{reported[0][part] / 1e6:,.3f} ms" in said, part


def test_memory(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="memory", rank="3")
    curve, holders, peaks, growth = figures(visited)
    rows = rows_of("memory", sample_store, "--by", "curve", "--rank", "3")
    mine = rows.filter(pl.col("component") == "PTA+GE").sort("start_ns")
    allocated = values(trace(curve, "PTA+GE allocated")["y"])
    assert allocated * 2**20 == pytest.approx(mine["allocated_max_bytes"].to_list())
    held = rows_of("memory", sample_store, "--by", "holder", "--rank", "3")
    assert values(holders["data"][0]["x"]) * 2**20 == pytest.approx(
        held.filter(pl.col("held_bytes") > 0)["held_bytes"].to_list()
    )
    assert "MiB" in curve["layout"]["yaxis"]["title"]["text"]
    assert len(peaks["data"][0]["y"]) == 8 and growth["data"]


def test_experts_of_devices_by_the_trace_alone(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="experts")
    assert "tokens per device" in visited.info[0].value
    assert "expert-load" in visited.info[0].value
    assert [bool(len(tab)) for tab in visited.tabs] == [True, True]  # none has nothing in it
    devices = next(one for one in figures(visited) if "Tokens" in one["layout"]["title"]["text"])
    told = rows_of("experts", sample_store, "--by", "device")
    assert values(devices["data"][0]["x"]).sum() == pytest.approx(
        told["tokens"].sum() / told["step"].n_unique()
    )


def test_experts_and_a_plan(monkeypatch: pytest.MonkeyPatch, hot: Path) -> None:
    visited = visit(monkeypatch, hot, page="experts", step="12")
    assert [bool(len(tab)) for tab in visited.tabs] == [True] * 4
    heat = figures(visited)[0]["data"][0]
    told = rows_of("experts", hot, "--by", "expert", "--step", "12")
    expected = told.sort("expert", "layer").pivot(on="expert", index="layer", values="over_mean")
    assert values(heat["z"]) == pytest.approx(expected.sort("layer").drop("layer").to_numpy())
    visited.number_input(key="plan_slots").set_value(5)
    visited.button[0].click().run()
    assert not visited.exception and not visited.error
    gain = next(one for one in figures(visited) if "ost loaded" in one["layout"]["title"]["text"])
    layers = rows_of("experts", "plan", hot, "--devices", "2", "--slots", "5").drop_nulls("layer")
    for name, column in (
        ("as it is", "max_over_mean_before"), ("as planned", "max_over_mean_after")
    ):  # fmt: skip
        assert values(trace(gain, name)["y"]) == pytest.approx(layers[column].to_list())


def test_pages_say_what_to_collect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_profile: Any
) -> None:
    """A profile of a few kernels: no communication, no memory, no expert load."""
    write_profile(tmp_path / "one" / "x_ascend_pt", 0)
    ingest(tmp_path / "one", tmp_path / "store", summarise=summarise, jobs=1)
    wanted = {
        "communication": "ProfilerActivity", "experts": "expert-load",
        "operators": "Level1", "memory": "profile_memory=True",
    }  # fmt: skip
    for name, remedy in wanted.items():
        for lang in ("en", "zh"):
            visited = visit(monkeypatch, tmp_path / "store", page=name, starts_in=lang)
            said = "\n".join(one.value for one in visited.info).replace("\\", "")
            assert remedy in said, (name, said)
            assert lang == "en" or "若要获知" in said, said
