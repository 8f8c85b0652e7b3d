"""The whole way: a training session's captures and its recorder's counts, `npuscope watch`, the
exporter, a real Prometheus, alerts. Only torch_npu is not the real one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.training import expert_load_recorder, profile_session
from npuscope.sample_traces.generate import small
from npuscope.sample_traces.job import coordinates, routed_tokens, stage_layers
from tests.cli.command import rows_of
from tests.collector.training import fake_torch_npu
from tests.collector.training.moe_training import read
from tests.dashboard.exporter.scraping import (
    Prometheus,
    Started,
    export,
    free_port,
    page,
    prometheus,
    promtool,
    require_prometheus,
    start,
    wait_for,
)

DASHBOARD = Path(__file__).resolve().parents[3] / "dashboard"
SIZES = {"pp": 2, "layers": 2, "dp": 2}
SLOW = {**SIZES, "slow_clock": 1, "slow_clock_factor": 1.3}
JOB = small(name="moe", **SLOW)
LOG = (
    " [2025-11-27 10:00:{step}] iteration {step:8d}/ 40 | elapsed time per iteration (ms): {ms:.1f}"
    " | throughput per GPU (TFLOP/s/GPU): 101.5 | lm loss: 2.5E+00 | grad norm: 1.2 |"
    " number of skipped iterations: 0 | number of nan iterations: 0 | tokens/p/s: 2048.0 |"
    " timing/rollout : 0.006 | timing/update : 0.009 |\n"
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Scene:
    """What runs, with the ports of exporters by instance: `steady`, and `expiring`, which is
    started last."""

    server: Prometheus
    store: Path
    profiles: Path
    ports: dict[str, int]
    watch: Started


def rules_at_once(folder: Path) -> Path:
    """The alert rules, but without waiting, and with a day of ten minutes."""
    text = (DASHBOARD / "alerts" / "npuscope.rules.yml").read_text()
    text = re.sub(r"for: \d+m", "for: 0s", text).replace("[1d]", "[10m]")
    path = folder / "rules.yml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    require_prometheus()
    folder = tmp_path_factory.mktemp("scraped")
    store, profiles, log = folder / "store", folder / "profiles", folder / "train.log"
    profiles.mkdir()
    # Long enough for the rule of spikes.
    log.write_text("".join(LOG.format(step=step, ms=18.0) for step in range(10, 30)))
    loads = record(folder / "tokens_per_expert")
    with ExitStack() as running:
        kept = ("--baseline", str(saved_baseline(folder / "baseline.json")))
        steady = running.enter_context(export(store, *kept))
        ports = {"steady": steady.port, "expiring": free_port()}
        # Before there is a store.
        assert "npuscope_up 0.0" in page(ports["steady"])
        server = running.enter_context(prometheus(folder, ports, rules_at_once(folder)))
        wait_for(lambda: server.query("npuscope_up == 0"), "the store is absent")
        watch = running.enter_context(
            start(
                [sys.executable, "-m", "npuscope", "watch", str(profiles), "--store", str(store),
                 "--poll", "1", "--quiet-after", "2", "--train-log", str(log),
                 "--expert-load", str(loads)],
                folder,
            )
        )  # fmt: skip
        yield Scene(server, store, profiles, ports, watch)


def saved_baseline(path: Path) -> Path:
    """What `npuscope baseline save` keeps of the committed sample."""
    sample = DASHBOARD.parent / "sample_traces" / "moe_8_ranks"
    command = ["baseline", "save", str(sample), "-o", str(path)]
    own = {**os.environ, "XDG_CACHE_HOME": f"{path}.cache"}
    subprocess.run(
        [sys.executable, "-m", "npuscope", *command], check=True, capture_output=True, env=own
    )
    return path


def record(folder: Path) -> Path:
    """What the job's routers choose, as the recorder counts it in every rank."""
    torch: Any = importlib.import_module("torch")
    steps = range(JOB.first_step, JOB.first_step + JOB.steps)
    planted: dict[int, dict[int, Counter[int]]] = {step: defaultdict(Counter) for step in steps}
    for rank in range(JOB.world_size):
        layers = stage_layers(JOB, coordinates(JOB, rank)["pp"])
        gates = {str(layer): torch.nn.ModuleDict({"gate": torch.nn.Identity()}) for layer in layers}
        model = torch.nn.ModuleDict({"layers": torch.nn.ModuleDict(gates)})
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("NPUSCOPE", raising=False)
            recorder = expert_load_recorder(
                model, folder, rule=lambda chosen: chosen, routers=r"\.gate$", rank=rank,
                experts=JOB.experts, start_step=JOB.first_step,
            )  # fmt: skip
        with recorder:
            for step in steps:
                for micro in range(JOB.micro_batches):
                    for layer in layers:
                        tokens = routed_tokens(JOB, step, micro, layer, rank)
                        planted[step][layer].update(dict(enumerate(tokens)))
                        experts = torch.arange(JOB.experts)
                        gates[str(layer)]["gate"](experts.repeat_interleave(torch.tensor(tokens)))
                recorder.step()
    assert read(folder) == planted
    return folder


def of_run(server: Prometheus, name: str, run: str) -> dict[tuple[str, ...], float]:
    """By the labels other than those of all."""
    found = server.query(f'{name}{{run="{run}", instance="steady"}}')
    common = {"__name__", "run", "instance", "job"}
    return {
        tuple(text for label, text in sorted(labels.items()) if label not in common): value
        for labels, value in found
    }


def train(profiles: Path, first_step: int, windows: int, job: dict[str, Any]) -> None:
    """A training job that profiles itself: every rank, `windows` windows of two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NPUSCOPE", raising=False)
        for rank in range(JOB.world_size):
            patch.setitem(sys.modules, "torch_npu", None)  # what it was comes back at the end
            script = fake_torch_npu.install()
            script.rank, script.forms, script.job = rank, ("db",), job
            with profile_session(
                profiles / f"{first_step}_{rank}", every=20, run="moe", rank=rank, free_bytes=0,
                analyse="inline", start_step=first_step - 1,
            ) as session:  # fmt: skip
                for _ in range(20 * (windows - 1) + 3):
                    session.step()
            assert session.published == windows


def test_what_watch_ingests_is_scraped_and_equal(scene: Scene) -> None:
    server = scene.server
    train(scene.profiles, 20, 1, SLOW)
    wait_for(lambda: of_run(server, "npuscope_capture_ranks", "moe") == {(): 4.0}, "all ranks")
    wait_for(lambda: any("compared the ranks" in line for line in scene.watch.said), "compared")
    wait_for(lambda: of_run(server, "npuscope_expert_load_cv", "moe"), "loads joined the capture")
    wait_for(lambda: server.query('npuscope_up{instance="steady"} == 1'), "the store can be read")

    each = rows_of("mfu", scene.store, "--run", "moe")
    possible = [row["step_ns"] * row["peak_flops_per_s"] for row in each]
    achieved = [r["kernel_mfu_causal_ratio"] * most for r, most in zip(each, possible, strict=True)]
    assert of_run(server, "npuscope_mfu_ratio", "moe")[("kernel_causal",)] == pytest.approx(
        sum(achieved) / sum(possible), rel=1e-12
    )
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows_of("comm", scene.store, "--run", "moe"):
        kinds[(row["kind"],)][0] += row["masked_ns"]
        kinds[(row["kind"],)][1] += row["union_ns"]
    told = {kind: masked / union for kind, (masked, union) in kinds.items()}
    assert of_run(server, "npuscope_masking_ratio", "moe") == pytest.approx(told, rel=1e-12)
    scores = {
        (str(row["rank"]),): row["score"] for row in rows_of("ranks", scene.store, "--run", "moe")
    }
    assert of_run(server, "npuscope_rank_slow_score", "moe") == pytest.approx(scores)
    layers: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of("experts", scene.store, "--run", "moe"):
        layers[str(row["layer"]), row["phase"]].append(row["max_over_mean"])
    means = {key: sum(each) / len(each) for key, each in layers.items()}
    loads = of_run(server, "npuscope_expert_load_max_over_mean", "moe")
    assert loads == pytest.approx(means, rel=1e-12) and loads
    assert of_run(server, "npuscope_train_loss", "moe") == {(): 2.5}
    done = promtool("check", "metrics", given=page(scene.ports["steady"]).encode())
    assert done.returncode == 0 and not done.stdout and not done.stderr, done.stderr.decode()


def test_alerts_fire_and_clear(scene: Scene) -> None:
    server = scene.server

    def firing(alert: str, **labels: str) -> bool:
        named = "".join(f', {name}="{value}"' for name, value in labels.items())
        return bool(server.query(f'ALERTS{{alertname="{alert}", alertstate="firing"{named}}}'))

    train(scene.profiles, 40, 2, SLOW)
    wait_for(
        lambda: of_run(server, "npuscope_rank_suspect_captures", "moe").get(("1",)) == 3, "steady"
    )
    slow = {"run": "moe", "rank": "1", "instance": "steady"}
    wait_for(lambda: firing("NpuscopeSlowRank", **slow), "rank 1 is slow")
    assert not firing("NpuscopeSlowRank", **{**slow, "rank": "0"})
    # For a while all is as it was, then steps take far longer.
    time.sleep(6)
    assert not firing("NpuscopeMfuDrop", run="moe")
    train(scene.profiles, 80, 1, {**SIZES, "slow_clock": 0, "slow_clock_factor": 3.0})
    wait_for(lambda: firing("NpuscopeMfuDrop", run="moe", instance="steady"), "MFU drops")
    wait_for(lambda: not firing("NpuscopeSlowRank", **slow), "rank 1 is well")
    train(scene.profiles, 100, 1, SLOW)
    wait_for(lambda: not firing("NpuscopeMfuDrop", run="moe"), "MFU is as it was")


def test_every_expression_of_the_dashboards_has_data(scene: Scene) -> None:
    empty, count = [], 0
    for path in sorted((DASHBOARD / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$run", ".*").replace("$rank", ".*")
                assert "$" not in expr
                count += 1
                if not server_has(scene.server, expr):
                    empty.append(f"{path.name}, {panel['title']}: {expr}")
    assert count > 35 and empty == []


def server_has(server: Prometheus, expr: str) -> bool:
    for _ in range(10):
        if server.query(expr):
            return True
        time.sleep(1)
    return False


def test_ingest_errors_are_told(scene: Scene) -> None:
    server = scene.server
    broken = scene.profiles / "broken" / "node00_1_20251127123437878_ascend_pt"
    (broken / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    (broken / "profiler_info_7.json").write_text('{"rank_id": 7}')
    (broken / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text("no such columns\n1\n")
    try:
        wait_for(lambda: server.query("npuscope_watch_quarantined_captures > 0"), "quarantined", 60)
    except AssertionError as error:
        raise AssertionError("".join(scene.watch.said[-20:])) from error
    told = 'ALERTS{alertname=~"NpuscopeQuarantine|NpuscopeIngestErrors", alertstate="firing"}'
    wait_for(lambda: server.query(told), "told")


def test_runs_that_ended_go_stale(scene: Scene) -> None:
    """Of an exporter with a short expiry they vanish at once; the other has them still."""
    server, shown = scene.server, 'npuscope_rank_info{instance="expiring"}'
    for before_s in (12, 40, 120):  # a busy machine may scrape the exporter only after its expiry
        ((_, age_s),) = server.query("time() - npuscope_last_ingest_timestamp_seconds")
        words = ("--expire", f"{age_s + before_s:.0f}s", "--port", str(scene.ports["expiring"]))
        with export(scene.store, *words):
            until = time.monotonic() + before_s
            while not (seen := bool(server.query(shown))) and time.monotonic() < until:
                time.sleep(0.2)
            if not seen:
                continue
            wait_for(lambda: not server.query(shown), "expired", before_s + 60)
            assert server.query('npuscope_rank_info{instance="steady"}')
            assert server.query('npuscope_up{instance="expiring"}') and not server.query(
                'npuscope_capture_info{instance="expiring"}'
            )
            return
    raise AssertionError("the expiring exporter was never scraped before its expiry")
