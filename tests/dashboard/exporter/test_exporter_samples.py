"""Samples of the exporter against the answers of the command line, on planted jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from npuscope.analysis import query
from npuscope.analysis.compare.baseline import read_baseline
from npuscope.analysis.flops.mfu import ModelUse
from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.peaks import parse_peaks
from npuscope.cli import app
from npuscope.collector.store import store as stores
from npuscope.collector.store.manifest import create_store, rank_folder, write_index
from npuscope.commands.explain.model_options import use_of
from npuscope.dashboard.exporter.flops_gauges import flops_gauges
from npuscope.dashboard.exporter.gauges import BY_NAME, GAUGES
from npuscope.dashboard.exporter.shown_captures import newest_runs, version_key
from npuscope.dashboard.exporter.snapshot import (
    Sample,
    Snapshot,
    samples_of,
    take_snapshot,
    within,
)
from npuscope.sample_traces.generate import small
from tests.cli.command import output_of, rows_of
from tests.dashboard.app.published_jobs import publish_job, publish_rank

NOW_S = 1_764_300_000.0
JOB = small(name="moe", slow_clock=1, slow_clock_factor=1.3, pp=2, layers=2, dp=2, expert_skew=1.2)
BEFORE = small(name="moe", slow_clock=1, slow_clock_factor=1.3, pp=2, layers=2, dp=2, seed=3)
LOG = pl.DataFrame(
    {"step": [11, 13, 12], "loss": [3.0, 2.0, None], "elapsed_s": [1.0, None, 1.5],
     "tokens_per_s": [1e4, 2e4, 3e4]}
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "store"
    day = 86_400 * 10**9
    earlier = dataclasses.replace(BEFORE, start_ns=BEFORE.start_ns - day)
    publish_job(path, earlier, "first", published_s=NOW_S - 600)
    publish_job(path, JOB, "second", published_s=NOW_S - 300, more={"train_log": LOG})
    return path


@pytest.fixture(scope="module")
def snapshot(store: Path) -> Snapshot:
    return take_snapshot(store, now_s=NOW_S, with_experts=True)


@pytest.fixture
def rows(store: Path) -> Any:
    return lambda name, *words: rows_of(name, store, "--capture", "second", *words)


def of(taken: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    return {one.labels: one.value for one in taken.samples[name]}


def approximately(values: dict[Any, float]) -> Any:
    return pytest.approx(values, rel=1e-12)


@pytest.mark.slow
def test_steps_and_masking_are_those_of_the_command_line(
    snapshot: Snapshot, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    steps, ranks = rows("steps"), range(JOB.world_size)
    by_rank = {rank: [row for row in steps if row["rank"] == rank] for rank in ranks}
    assert all(len(each) == 2 for each in by_rank.values())

    def summed(each: list[dict[str, Any]], name: str) -> int:
        return sum(row[name] for row in each)

    for name, column in (
        ("npuscope_rank_computing_seconds", "computing_ns"),
        ("npuscope_rank_exposed_seconds", "exposed_communication_ns"),
        ("npuscope_rank_free_seconds", "free_ns"),
    ):
        told = {(str(rank),): summed(each, column) / 2e9 for rank, each in by_rank.items()}
        assert of(snapshot, name) == approximately(told)
    masking = {
        (str(rank),): summed(each, "overlapped_ns") / summed(each, "communication_ns")
        for rank, each in by_rank.items()
    }
    assert of(snapshot, "npuscope_rank_masking_ratio") == approximately(masking)
    whole = summed(steps, "overlapped_ns") / summed(steps, "communication_ns")
    assert of(snapshot, "npuscope_job_masking_ratio") == approximately({(): whole})
    extent = sum(row["end_ns"] - row["start_ns"] for row in steps)
    free = summed(steps, "free_ns") / extent
    assert of(snapshot, "npuscope_free_ratio") == approximately({(): free})

    kinds: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows("comm"):
        for at, column in enumerate(("masked_ns", "union_ns", "exposed_attributed_ns")):
            kinds[(row["kind"],)][at] += row[column]
    assert {("pp",), ("ep",)} < set(kinds)
    assert of(snapshot, "npuscope_masking_ratio") == approximately(
        {kind: masked / union for kind, (masked, union, _) in kinds.items()}
    )
    exposed = of(snapshot, "npuscope_exposed_seconds")
    expected = {kind: each[2] / len(steps) / 1e9 for kind, each in kinds.items()}
    assert exposed == approximately(expected)
    parts = of(snapshot, "npuscope_step_part_seconds")
    assert sum(exposed.values()) == pytest.approx(parts[("exposed_communication",)], rel=1e-9)
    by_part = of(snapshot, "npuscope_exposed_part_seconds")
    assert {("transfer",), ("peer_wait",), ("pipeline_wait",)} <= set(by_part)
    assert sum(by_part.values()) == pytest.approx(parts[("exposed_communication",)], rel=1e-9)


@pytest.mark.slow
def test_mfu_is_that_of_the_command_line(snapshot: Snapshot, rows: Any) -> None:
    # Sums over ranks and steps, as of other ratios: ranks with more steps weigh more.
    each = rows("mfu")
    possible = [row["step_ns"] * row["peak_flops_per_s"] for row in each]
    told = {
        (convention,): sum(
            row[f"{column}_ratio"] * weight for row, weight in zip(each, possible, strict=True)
        )
        / sum(possible)
        for convention, column in (
            ("kernel_causal", "kernel_mfu_causal"),
            ("kernel_full", "kernel_mfu_full"),
            ("matmul", "matmul_mfu"),
        )
    }
    assert of(snapshot, "npuscope_mfu_ratio") == approximately(
        told
    )  # no model: none of model and HFU
    steps = rows("mfu", "--by", "job")
    lengths = {(): sum(row["step_ns"] for row in steps) / len(steps) / 1e9}
    assert of(snapshot, "npuscope_step_seconds") == approximately(lengths)
    terms: dict[tuple[str, ...], float] = defaultdict(float)
    waterfall = rows("mfu", "--waterfall")
    whole = sum(row["ns"] for row in waterfall)
    for row in waterfall:
        terms[(row["term"],)] += row["ns"] / whole
    losses = of(snapshot, "npuscope_loss_ratio")
    assert losses == pytest.approx(terms, rel=1e-9, abs=1e-15)
    assert sum(losses.values()) == pytest.approx(1, abs=1e-9)
    assert losses[("achieved",)] == pytest.approx(told[("kernel_causal",)], rel=1e-6)


@pytest.mark.slow
def test_mfu_of_a_model_is_that_of_the_command_line(store: Path, rows: Any) -> None:
    words = ("--model", "qwen3-0.6b", "--tokens-per-step", "100", "--recompute", "full")
    steps = rows("mfu", "--by", "job", *words, "--peak", "300T")
    total = sum(row["step_ns"] for row in steps)
    use = use_of("qwen3-0.6b", None, "100", "causal", "full")
    said: list[str] = []
    taken = take_snapshot(
        store, now_s=NOW_S, run="moe", use=use, given_peaks=parse_peaks("300T"), tell=said.append
    )
    found = of(taken, "npuscope_mfu_ratio")
    for convention, column in (("model", "model_mfu_ratio"), ("hfu", "hfu_ratio")):
        mean = sum(row[column] * row["step_ns"] for row in steps) / total
        assert mean > 0 and found[(convention,)] == pytest.approx(mean, rel=1e-12)
    assert said == []
    # Nobody tells the tokens: no figure of the model, and a word why.
    unsaid = use_of("qwen3-0.6b", None, None, "causal", None)
    taken = take_snapshot(store, now_s=NOW_S, expire_s=301, use=unsaid, tell=said.append)
    assert taken.ingested_s == {"moe": NOW_S - 300}
    assert set(of(taken, "npuscope_mfu_ratio")) == {
        ("kernel_causal",),
        ("kernel_full",),
        ("matmul",),
    }
    assert len(said) == 1 and "--tokens-per-step" in said[0]
    assert take_snapshot(store, now_s=NOW_S, run="other").ingested_s == {}


@pytest.mark.slow
def test_gains_are_those_of_the_command_line(snapshot: Snapshot, rows: Any) -> None:
    told = {
        (row["finding"],): row["predicted_gain_ns"] / 1e9
        for row in rows("findings")
        if row["predicted_gain_ns"] is not None
    }
    assert told and of(snapshot, "npuscope_predicted_gain_seconds") == approximately(told)


@pytest.mark.slow
def test_what_a_baseline_tells_is_what_compare_tells(store: Path, tmp_path: Path) -> None:
    kept, told = tmp_path / "base.json", list[str]()
    saved = CliRunner().invoke(
        app, ["baseline", "save", f"{store}@moe/first", "-o", str(kept)], catch_exceptions=False
    )
    assert saved.exit_code == 0
    taken = take_snapshot(store, now_s=NOW_S, baseline=read_baseline(kept), tell=told.append)
    asked = ["compare", str(kept), f"{store}@moe/second", "--json"]
    measures = json.loads(CliRunner().invoke(app, asked).stdout)["measures"]
    known = {(row["measure"],): row for row in measures if row["delta"] is not None}
    assert {("step_ns",), ("masking_ratio",), ("kernel_mfu_causal_ratio",)} <= known.keys()
    assert of(taken, "npuscope_baseline_ratio") == approximately(
        {measure: row["b"] / row["a"] for measure, row in known.items()}
    )
    for end in ("low", "high"):
        assert of(taken, f"npuscope_baseline_{end}_ratio") == approximately(
            {measure: 1 + row[end] / row["a"] for measure, row in known.items()}
        )
    assert not told
    assert "npuscope_baseline_ratio" not in take_snapshot(store, now_s=NOW_S).samples


@pytest.mark.slow
def test_experts_are_those_of_the_command_line(snapshot: Snapshot, rows: Any) -> None:
    layers: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows("experts"):
        layers[(row["phase"], str(row["layer"]))].append(row)
    assert len(layers) == 2
    for name, column in (
        ("npuscope_expert_load_max_over_mean", "max_over_mean"),
        ("npuscope_expert_load_cv", "cv"),
        ("npuscope_expert_load_gini", "gini"),
        ("npuscope_expert_cold_experts", "cold_count"),
    ):
        told = {key: sum(row[column] for row in each) / 2 for key, each in layers.items()}
        assert of(snapshot, name) == approximately(told)
    tokens: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows("experts", "--by", "expert"):
        tokens[(row["phase"], str(row["layer"]), str(row["expert"]))] += row["tokens"] / 2
    assert of(snapshot, "npuscope_expert_tokens") == approximately(tokens)
    top, which = (
        of(snapshot, "npuscope_expert_top_tokens"),
        of(snapshot, "npuscope_expert_top_expert"),
    )
    for phase, layer in layers:
        loads = [top[phase, layer, str(position)] for position in range(1, 5)]
        assert loads == sorted(loads, reverse=True)
        for position, load in enumerate(loads, 1):
            expert = str(int(which[phase, layer, str(position)]))
            assert tokens[phase, layer, expert] == load


@pytest.mark.slow
def test_slow_ranks_places_and_the_log(snapshot: Snapshot, rows: Any) -> None:
    told: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows("ranks"):
        told[str(row["rank"])].append(row)
    scores = {(rank,): each[0]["score"] for rank, each in told.items()}
    assert of(snapshot, "npuscope_rank_slow_score") == approximately(scores)
    caused = {(r,): sum(x["caused_wait_ns"] for x in each) / 2e9 for r, each in told.items()}
    assert of(snapshot, "npuscope_rank_caused_wait_seconds") == approximately(caused)
    suspects = [(rank, each[0]["verdict"]) for rank, each in told.items() if each[0]["verdict"]]
    assert ("1", "frequency") in suspects
    assert sorted(of(snapshot, "npuscope_rank_suspect_info")) == sorted(suspects)
    # It was slow in the capture before, too.
    assert of(snapshot, "npuscope_rank_suspect_captures")[("1",)] == 2
    assert 0 in of(snapshot, "npuscope_rank_suspect_captures").values()
    places = of(snapshot, "npuscope_rank_info")
    assert len(places) == JOB.world_size and set(places.values()) == {1}
    assert {labels[:3] for labels in places} == {(str(r), "node00", str(r)) for r in range(4)}
    assert of(snapshot, "npuscope_capture_info") == {("second",): 1}
    assert of(snapshot, "npuscope_last_ingest_timestamp_seconds") == {(): NOW_S - 300}
    assert of(snapshot, "npuscope_train_step") == {(): 13}
    assert of(snapshot, "npuscope_train_loss") == {(): 2}
    assert of(snapshot, "npuscope_train_tokens_per_second") == {(): 2e4}
    assert of(snapshot, "npuscope_train_step_seconds") == {}  # unknown is no sample


@pytest.mark.slow
def test_unknown_is_no_sample(tmp_path: Path) -> None:
    tables = ("ranks", "steps", "kernels")
    publish_job(tmp_path / "s", small(), "c", published_s=NOW_S, tables=tables, ranks=[0])
    taken = take_snapshot(tmp_path / "s", now_s=NOW_S)
    with contextlib.closing(stores.open(tmp_path / "s")) as con:
        steps = query.steps(con)
    assert of(taken, "npuscope_rank_computing_seconds") == approximately(
        {("0",): int(steps["computing_ns"].sum()) / 2e9}
    )
    shown = {name for name, samples in taken.samples.items() if samples}
    unknown = {
        "npuscope_job_masking_ratio", "npuscope_masking_ratio", "npuscope_rank_masking_ratio",
        "npuscope_exposed_seconds", "npuscope_pipeline_wait_ratio", "npuscope_rank_suspect_info",
        "npuscope_expert_load_cv", "npuscope_train_loss", "npuscope_expert_tokens",
    }  # fmt: skip
    assert not shown & unknown


def test_what_is_no_number_is_no_sample() -> None:
    values = [1.5, None, float("nan"), float("inf")]
    rows = pl.DataFrame({"run": list("abcd"), "kind": ["tp", "dp", "ep", None], "value": values})
    found = samples_of(BY_NAME["npuscope_masking_ratio"], rows)
    assert found == (Sample("a", ("tp",), 1.5),)
    told = samples_of(BY_NAME["npuscope_masking_ratio"], rows.with_columns(value=pl.lit(1)))
    assert [one.labels for one in told] == [("tp",), ("dp",), ("ep",), ("",)]


def test_a_run_whose_files_are_gone_blinds_no_other(tmp_path: Path) -> None:
    create_store(tmp_path)
    for run in ("a", "b"):
        publish_rank(tmp_path, (run, "c", 0), {"train_log": LOG}, NOW_S)
        write_index(rank_folder(tmp_path, run, "c", 0).parent)
    said: list[str] = []
    next((tmp_path / "run=a").rglob("train_log.parquet")).unlink()

    taken = take_snapshot(tmp_path, now_s=NOW_S, tell=said.append)

    assert [*taken.ingested_s] == ["b"]
    [told] = said
    assert "not shown: run a, capture c: " in told and "ingest PATH --store STORE" in told


def test_which_captures_are_shown(tmp_path: Path) -> None:
    path, began_ns = tmp_path / "store", 1_764_000_000 * 10**9

    def publish(run: str, capture: str, published_s: float, ended_ns: int, rank: int = 0) -> None:
        publish_rank(path, (run, capture, rank), {}, published_s, ended_ns=ended_ns)

    create_store(path)
    for capture, age_s, ended_ns in (("later", 600, began_ns + 10**12), ("earlier", 300, began_ns)):
        publish("small", capture, NOW_S - age_s, ended_ns)
        write_index(rank_folder(path, "small", capture, 0).parent)
    (run,) = newest_runs(path)
    assert run.names == ("later", "earlier") and run.ingested_s == NOW_S - 300
    (run,) = newest_runs(path, keep=1)
    assert run.names == ("later",)
    assert take_snapshot(path, now_s=NOW_S, expire_s=299).ingested_s == {}
    # A clock that is years ahead makes no capture the newest for years.
    publish("small", "of 2039", NOW_S - 400_000, 2_180_000_000 * 10**9)
    write_index(rank_folder(path, "small", "of 2039", 0).parent)
    (run,) = newest_runs(path)
    assert run.names[0] == "later" and run.profile_end_s == began_ns / 1e9 + 1000
    # A capture whose first ingest is under way is not looked at, and changes the version when done.
    publish("growing", "c", NOW_S, began_ns)
    before = version_key(path)
    assert [one.name for one in newest_runs(path)] == ["small"]
    publish("growing", "c", NOW_S, began_ns, 1)
    write_index(rank_folder(path, "growing", "c", 0).parent)
    assert [one.name for one in newest_runs(path)] == ["growing", "small"]
    assert version_key(path) != before


def test_the_least_important_goes_first() -> None:
    sizes = {
        "npuscope_mfu_ratio": 3, "npuscope_expert_load_cv": 58, "npuscope_expert_top_tokens": 464,
        "npuscope_rank_info": 100, "npuscope_rank_mfu_ratio": 200, "npuscope_expert_tokens": 14_848,
    }  # fmt: skip
    taken = {
        name: tuple(Sample("r", (str(n),), 1.0) for n in range(size))
        for name, size in sizes.items()
    }
    whole = sum(sizes.values())
    for budget, dropped in (
        (whole, []),
        (whole - 1, ["npuscope_expert_tokens"]),
        (824, ["npuscope_expert_tokens", "npuscope_expert_top_tokens"]),
        (61, list(sizes)[2:]),
        (2, list(sizes)),
    ):
        kept = within(taken, budget)
        assert sorted(kept.drops) == sorted(dropped)
        assert sum(map(len, kept.samples.values())) == whole - sum(kept.drops.values()) <= budget


@pytest.mark.slow
def test_health_is_that_of_the_log(store: Path, snapshot: Snapshot) -> None:
    told = json.loads(output_of("health", store, "--run", JOB.name, "--json"))["summary"]
    for name in ("grad_norm_spikes", "loss_spikes", "not_finite_steps", "skipped_steps"):
        key = name.replace("_steps", "") + "_count"
        expected = {} if told[key] is None else {(): told[key]}  # unknown is no sample
        assert of(snapshot, f"npuscope_health_{name}") == expected, name
    assert "npuscope_health_phase_seconds" in snapshot.samples


def test_names_follow_the_rules() -> None:
    """Those of Prometheus that promtool checks, and that sums over a metric mean something."""
    units = ("_seconds", "_ratio", "_info", "_tokens_per_second")
    numbers = (
        "_steps", "_ranks", "_step", "_loss", "_norm", "_mean", "_cv", "_gini", "_experts",
        "_expert", "_tokens", "_score", "_captures", "_spikes",
    )  # fmt: skip
    for gauge in GAUGES:
        assert re.fullmatch(r"npuscope(_[a-z]+)+", gauge.name)
        assert gauge.name.endswith(units + numbers), gauge.name
        assert not gauge.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert not set(gauge.labels) & {"job", "instance", "le", "quantile", "run"}
        assert gauge.meaning.endswith((".", ".)"))
    assert len(BY_NAME) == len(GAUGES)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield


def test_tokens_that_are_counted_are_told(real_stores: Callable[[str], Path]) -> None:
    """One of two stages was captured; a model that is not the job's has no gauge."""
    con, told = stores.open(real_stores("qwen3_pp2_dp2_text_level2")), list[str]()
    auto = ModelUse(model_of("qwen3-0.6b"), tokens_per_step="auto")
    frame = flops_gauges(con, ["run"], use=auto, tell=told.append)["npuscope_mfu_ratio"]
    (ratio,) = frame.filter(pl.col("convention") == "model")["value"]
    assert ratio == pytest.approx(0.09324831342815142, rel=1e-9)
    assert any(note.startswith("tokens per step: 16384, 2 micro-batches") for note in told)
    other = dataclasses.replace(auto, model=model_of("qwen3-1.7b"))
    frame = flops_gauges(con, ["run"], use=other, tell=told.append)["npuscope_mfu_ratio"]
    assert "model" not in frame["convention"].to_list()
    assert any(note.startswith("model FLOPs refused: qwen3-1.7b") for note in told)
