"""`npuscope experts` on a planted job's export, on a server's dump, and where there is no load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.store.cache import store_of
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.generate import small, write_job
from npuscope.sample_traces.job import Job, routed_tokens
from npuscope.sample_traces.truth import expert_load
from tests.analysis.tables import connect, put
from tests.cli.command import Run
from tests.collector.readers.expert_load.expert_dumps import write_hook
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

JOB = Job(name="planted", layers=2, experts=8, dp=2, ep=2, expert_skew=1.2)
TABLES = ("ranks", "groups", "steps", "kernels", "expert_load", "expert_placement")
PLACE = ["run", "capture", "step", "phase", "layer"]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts") / "job.duckdb"
    with connect(path) as con:
        put(con, canonical_frames(JOB, tables=TABLES))
    return path


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two ranks of a server, two layers of three slots; what was decoded, one dump."""
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "decode_0.csv").write_text("10,20,30\n5,5,5\n")
    (folder / "decode_1.csv").write_text("0,0,60\n5,5,5\n")
    (folder / "model_gen_config.json").write_text(
        json.dumps({"num_moe_layers": 2, "num_of_experts": 6, "num_of_selected_experts": 2,
                    "collection_Interval": 8})
    )  # fmt: skip
    return folder


def rows_of(out: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    return rows


def test_layers(run: Run, export: Path) -> None:
    code, out, _ = run("experts", export, "--json")
    told = json.loads(out)
    assert (code, told["metric"]) == (0, "experts_layer")
    assert [list(row) for row in told["rows"]] == [
        [*PLACE, "experts_count", "tokens", "max_over_mean", "max_vio", "cv", "gini",
         "entropy_ratio", "cold_count", "hottest_expert", "balance_loss", "dropped_tokens",
         "dropped_ratio", "scope", "scope_index", "micro_batch", "dead_count",
         "device_max_over_mean", "node_max_over_mean"]
    ] * 4  # fmt: skip
    first = told["rows"][0]
    assert (first["step"], first["phase"], first["layer"]) == (12, "train", 0)
    assert first["tokens"] == JOB.sequence * JOB.top_k * JOB.micro_batches * JOB.dp
    assert first["max_vio"] == pytest.approx(first["max_over_mean"] - 1)
    code, out, _ = run("experts", export)
    assert code == 0 and "max/mean" in out and "hottest" in out


@pytest.mark.slow
def test_other_keys(run: Run, export: Path) -> None:
    _, out, _ = run("experts", export, "--by", "device", "--json")
    devices = rows_of(out)
    assert [list(row) for row in devices] == [
        [*PLACE, "device", "tokens", "device_max_over_mean"]
    ] * 8
    _, out, _ = run("experts", export, "--by", "expert", "--step", 13, "--json")
    experts = rows_of(out)
    assert len(experts) == 16
    _, out, _ = run("experts", export, "--by", "time", "--json")
    assert [(r["step"], r["previous_step"]) for r in rows_of(out)] == [(12, None), (13, 12)]
    _, out, _ = run("experts", export, "--by", "node", "--nodes", 2, "--json")
    assert [r["tokens"] for r in rows_of(out)] == [r["tokens"] for r in devices]
    _, out, _ = run("experts", export, "--by", "node", "--json")
    # Groups lie inside hosts.
    assert {(r["node"], r["node_max_over_mean"]) for r in rows_of(out)} == {(0, None)}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["device", "expert", "time", "node", "cost"])
def test_tables(run: Run, export: Path, key: str) -> None:
    code, out, _ = run("experts", export, "--by", key)
    assert code == 0 and "12" in out


@pytest.mark.slow
def test_top_keeps_the_largest_of_each_step(run: Run, export: Path) -> None:
    _, out, _ = run("experts", export, "--by", "expert", "--json")
    every = rows_of(out)
    _, out, _ = run("experts", export, "--by", "expert", "--top", 2, "--json")
    for step in (12, 13):
        of_step = sorted((r["over_mean"] for r in every if r["step"] == step), reverse=True)
        assert [r["over_mean"] for r in rows_of(out) if r["step"] == step] == of_step[:2]


def test_cost(run: Run, export: Path) -> None:
    code, out, _ = run("experts", export, "--by", "cost", "--json")
    told = json.loads(out)
    assert code == 0 and told["metric"] == "experts_cost"
    assert [(r["step"], r["layer"], r["stage"]) for r in told["rows"]] == [
        (12, 0, 0), (12, 1, 1), (13, 0, 0), (13, 1, 1)
    ]  # fmt: skip
    for row in told["rows"]:
        grouped_ns = row["excess_tokens"] * row["ns_per_token"]
        assert row["grouped_excess_ns"] == pytest.approx(grouped_ns)
    assert any("load imbalance between devices costs" in note for note in told["notes"])


def test_heatmap(run: Run, export: Path) -> None:
    code, out, _ = run("experts", export, "--heatmap")
    lines = out.splitlines()
    assert code == 0
    assert [line[:3] for line in lines[1:3]] == ["0 |", "1 |"]
    assert all(len(line) == 3 + 8 and "█" in line for line in lines[1:3])
    assert "times the layer's mean" in lines[-1]
    code, out, _ = run("experts", export, "--heatmap", "--by", "device")
    assert code == 0 and "devices, layers down" in out


@pytest.mark.slow
def test_a_wide_heatmap_is_binned(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.duckdb"
    with connect(path) as con:
        con.execute(
            "insert into expert_load by name select 'r' as run, 'c' as capture, 0 as rank,"
            " 'decode' as phase, l as layer, e as expert, if(e = 100, 900, 10) as tokens"
            " from range(100) t(l), range(256) s(e)"
        )
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run("experts", path, "--heatmap")
    assert code == 0
    drawn = [line for line in out.splitlines() if " |" in line]
    assert len(drawn) == 50 and "5 experts x 2 layers" in " ".join(out.split())
    assert all(len(line) <= 60 and line.count("█") == 1 for line in drawn)
    assert drawn[0].index("█") - drawn[0].index("|") - 1 == 100 // 5


def test_a_dump_without_a_profile(run: Run, dump: Path) -> None:
    code, out, _ = run("experts", dump, "--json")
    told = json.loads(out)
    assert code == 0
    first, second = told["rows"]
    assert (first["run"], first["phase"], first["layer"]) == ("dump", "decode", 0)
    assert (first["tokens"], first["max_over_mean"], first["hottest_expert"]) == (120, 3.0, 5)
    assert second["max_over_mean"] == 1.0
    assert any("same number of tokens" in note for note in told["notes"])
    _, out, _ = run("experts", dump, "--by", "device", "--json")
    assert [r["tokens"] for r in rows_of(out)] == [60, 60, 15, 15]
    code, out, _ = run("experts", dump, "--heatmap")
    assert code == 0 and "Tokens on experts, decode" in out
    code, _, err = run("experts", dump, "--by", "cost")
    assert code == 2 and "kernel durations" in err
    code, _, err = run("experts", dump, "--rank", 7)
    assert code == 2 and "rank" in err


@pytest.mark.slow
def test_no_load(run: Run, tmp_path: Path) -> None:
    write_job(small(steps=1, memory=False), tmp_path / "job", forms=("text",))
    code, _, err = run("experts", tmp_path / "job")
    assert code == 3 and "no expert load here" in err and "--by device" in err
    code, _, err = run("experts", tmp_path / "nowhere")
    assert code == 3


def test_usage(run: Run, export: Path) -> None:
    for arguments, said in (
        (("--by", "colour"), "is not one of 'layer'"),
        (("--heatmap", "--json"), "drawing"),
        (("--heatmap", "--by", "time"), "not by time"),
        (("--nodes", 2, "--by", "device"), "--by node"),
        (("--by", "device", "--rank", 0), "leave --rank out"),
        (("--step", 99), "no expert load of that"),
        (("--scope", "node"), "is not one of 'micro_batch'"),
        (("--scope", "ep_group", "--by", "device"), "by layer and by time"),
        (("--scope", "ep_group", "--rank", 0), "leave --rank out"),
    ):
        code, _, err = run("experts", export, *arguments)
        assert code == 2 and said in err, arguments


@pytest.mark.slow
def test_real_dump(run: Run, real_data: Path, goldens: dict[str, Any]) -> None:
    expected = goldens["expert_hotspot"]
    code, out, _ = run("experts", real_data / "expert_hotspot", "--json")
    rows = rows_of(out)
    assert code == 0 and len(rows) == 58
    for row, layer in zip(rows, expected["decode_0"]["per_layer"], strict=True):
        assert (row["layer"], row["tokens"]) == (layer["row"], layer["sum"])
        assert row["max_over_mean"] == pytest.approx(layer["max_over_mean"], rel=1e-12)
        assert row["cv"] == pytest.approx(layer["cv"], rel=1e-12)
        assert row["hottest_expert"] == layer["argmax"]
    mean = sum(row["max_over_mean"] for row in rows) / len(rows)
    assert mean == pytest.approx(expected["decode_0"]["mean_imbalance"], rel=1e-12)


@pytest.mark.slow
def test_hook_files_beside_a_profile(run: Run, tmp_path: Path) -> None:
    job = Job(layers=2, pp=1, dp=2, ep=2, memory=False, comm_tasks=False)
    write_job(job, tmp_path / "job", forms=("text",))
    for file in (tmp_path / "job").rglob("profiler_metadata.json"):
        model = {"model_config": json.dumps({"moe_router_topk": job.top_k})}
        file.write_text(json.dumps(json.loads(file.read_text()) | model))
    hooked = tmp_path / "job" / "saved" / "tokens_per_expert"
    hooked.mkdir(parents=True)
    for rank in range(job.world_size):
        lines = [
            {"iter": step, "block": "decoder", "layer": layer, "n_micro": job.micro_batches,
             "tpe": [routed_tokens(job, step, m, layer, rank) for m in range(job.micro_batches)]}
            for step in (12, 13)
            for layer in range(job.layers)
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (hooked / f"rank{rank}.jsonl").write_text(text)
    code, out, _ = run("experts", tmp_path / "job", "--by", "expert", "--json")
    found = [(r["step"], r["layer"], r["expert"], r["tokens"]) for r in rows_of(out)]
    assert code == 0 and found == expert_load(job)
    _, out, _ = run("experts", tmp_path / "job", "--by", "device", "--json")
    told = json.loads(out)
    assert any("equal blocks of experts" in note for note in told["notes"])
    assert {r["device"] for r in told["rows"]} == {0, 1}
    _, out, _ = run("experts", tmp_path / "job", "--by", "cost", "--json")
    assert [r["stage"] for r in rows_of(out)] == [0] * 4
    _, out, _ = run("experts", tmp_path / "job", "--scope", "micro_batch", "--step", 13, "--json")
    told = json.loads(out)
    parts = {(r["layer"], r["scope_index"], r["micro_batch"]): r for r in told["rows"]}
    assert len(parts) == len(told["rows"]) == job.layers * job.world_size * job.micro_batches
    for (layer, rank, micro), row in parts.items():
        tokens = routed_tokens(job, 13, micro, layer, rank)
        assert (row["scope"], row["tokens"]) == ("micro_batch", sum(tokens))
    for scope, count in (("ep_group", 1), ("dp_group", 1), ("global", 1)):
        _, out, _ = run("experts", tmp_path / "job", "--scope", scope, "--by", "time", "--json")
        assert [(r["scope"], r["parts_count"]) for r in rows_of(out)] == [(scope, count)] * 2
    sent = ["--tokens-per-step", job.sequence * job.micro_batches * job.dp, "--top-k"]
    _, out, _ = run("experts", tmp_path / "job", *sent, job.top_k, "--json")
    assert {r["dropped_tokens"] for r in rows_of(out)} == {0}
    # The captures tell top-k themselves.
    _, out, _ = run("experts", tmp_path / "job", *sent[:2], "--json")
    told = json.loads(out)
    assert {r["dropped_tokens"] for r in told["rows"]} == {0}
    assert not any("top-k" in note for note in told["notes"])
    _, out, _ = run("experts", tmp_path / "job", *sent, job.top_k + 1, "--json")
    told = json.loads(out)
    assert {r["dropped_tokens"] for r in told["rows"]} == {None}
    assert any(f"as if top-k was {job.top_k}" in note for note in told["notes"])
    code, out, _ = run("experts", tmp_path / "job" / "saved" / "tokens_per_expert", "--json")
    assert code == 0 and len(rows_of(out)) == 2 * job.layers
    moved = (tmp_path / "job" / "saved").rename(tmp_path / "alone")
    code, out, _ = run("experts", tmp_path / "alone", "--scope", "micro_batch", "--json")
    assert code == 0 and len(rows_of(out)) == 2 * len(parts), moved
    assert {r["capture"] for r in rows_of(out)} == {"alone"}


@pytest.mark.slow
def test_doctor_tells_counts_that_cannot_be_right(run: Run, tmp_path: Path) -> None:
    """A hook that counted recomputation again, beside what the kernels computed."""
    job = small(memory=False, comm_tasks=False)
    write_job(job, tmp_path / "job", forms=("text",))
    write_hook(job, tmp_path / "job" / "tokens_per_expert", nested=False)

    def notes(*arguments: object) -> list[str]:
        found: list[str] = run("doctor", *arguments, "--json").json()["notes"]
        return [note for note in found if "expert load" in note]

    assert notes(tmp_path / "job") == []
    for file in (tmp_path / "job" / "tokens_per_expert").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        twice = [one | {"tpe": [2 * count for count in one["tpe"]]} for one in lines]
        file.write_text("".join(json.dumps(one) + "\n" for one in twice))
    (told,) = notes(tmp_path / "job", "--store", tmp_path / "again")
    assert "count twice as many tokens as their kernels computed" in told


@pytest.mark.slow
def test_devices_and_cost_of_a_plain_profile(run: Run, sample_store: Path) -> None:
    sample = REPOSITORY / "sample_traces" / "moe_8_ranks"
    shutil.copytree(sample_store, store_of(sample))  # as if it had been asked about before
    planted = json.loads((sample / "truth.json").read_text())["expert_load"]
    code, out, _ = run("experts", sample, "--by", "device", "--json")
    told = json.loads(out)
    assert code == 0 and any("from kernel shapes in the trace" in note for note in told["notes"])
    expected: dict[tuple[int, int, int], int] = {}
    half = max(expert for _, _, expert, _ in planted) // 2 + 1
    for step, layer, expert, tokens in planted:
        key = (step, layer, expert // half)
        expected[key] = expected.get(key, 0) + tokens
    found = {(r["step"], r["layer"], r["device"]): r["tokens"] for r in told["rows"]}
    assert found == pytest.approx(expected, rel=0.005)
    code, out, _ = run("experts", sample, "--by", "cost", "--json")
    assert code == 0 and len(rows_of(out)) == len(expected) // 2
    assert all(row["ns_per_token"] > 0 and row["stage"] is not None for row in rows_of(out))
    code, out, _ = run("experts", sample, "--by", "device", "--heatmap")
    assert code == 0 and "Tokens on devices" in out
    for by in ("layer", "device", "cost"):
        code, _, err = run("experts", sample, "--by", by, "--step", 99)
        assert code == 2 and "no step 99 here: there is 12-13" in err
