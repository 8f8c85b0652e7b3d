"""`npuscope export openmetrics`: what promtool makes blocks of, and Prometheus answers from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis import query
from npuscope.analysis.flops.job_mfu import gather_figures
from npuscope.analysis.flops.mfu import mfu
from npuscope.analysis.flops.peaks import parse_peaks
from npuscope.collector.store import store as stores
from npuscope.commands.explain.model_options import use_of
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.dashboard.app.published_jobs import publish_job, publish_rank
from tests.dashboard.exporter.scraping import prometheus, promtool, require_prometheus

_LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+) (\d+\.\d{3})')

pytestmark = pytest.mark.slow


def test_waiting_is_told_apart_as_the_exporter_does(run: Run, tmp_path: Path) -> None:
    """Ranks beside each other know what a rank alone does not."""
    path, history, now = tmp_path / "store", tmp_path / "history.om", tmp_path / "now.prom"
    publish_job(path, small(pp=2, layers=2), "c0", published_s=time.time())
    assert run("export", "openmetrics", path, "-o", history).code == 0
    assert run("exporter", path, "--textfile", now, "--expire", "never").code == 0

    def parts(text: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for line in text.splitlines():
            if line.startswith("npuscope_exposed_part_seconds{"):
                (part,) = re.findall(r'part="(\w+)"', line)
                found.setdefault(part, []).append(float(line.split("} ")[1].split()[0]))
        return found

    steps, means = parts(history.read_text()), parts(now.read_text())
    assert {part: sum(values) / len(values) for part, values in steps.items()} == {
        part: pytest.approx(value) for part, (value,) in means.items()
    }
    assert "pipeline_wait" in means

    # All that a rank without steps recorded is no step, whose sample could stand for the last one.
    def use(place: Path) -> list[str]:
        code, _, err = run("export", "openmetrics", place, "-o", history)
        assert code == 0 and "of 2 steps" in err
        return re.findall(r"npuscope_mfu_ratio{.*", history.read_text())

    job, without, bare = small(pp=2, layers=2), tmp_path / "without", tmp_path / "bare"
    last = job.world_size - 1
    frames = canonical_frames(job, tables=("ranks", "groups", "kernels", "comm_ops"), pipes=False)
    tables = {
        name: rows.filter(pl.col("rank") == last).drop("run", "capture", "rank")
        .with_columns(pl.lit(None, pl.Int64).alias(one) for one in rows.columns if one == "step")
        for name, rows in frames.items()
    }  # fmt: skip
    for place in (without, bare):
        publish_job(place, job, "c0", published_s=time.time(), ranks=range(last))
    publish_rank(bare, (job.name, "c0", last), tables, time.time())
    assert use(bare) == use(without) != []


def test_history_fills_in_the_past(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "history.om"
    hour = 3600 * 10**9
    # Recent, or Prometheus would delete it as too old.
    begins = (time.time_ns() // hour - 10) * hour
    job = small(name='odd "run"\\', pp=2, layers=2)
    for number in range(2):
        later = dataclasses.replace(job, start_ns=begins + number * hour)
        publish_job(path, later, f"c{number}", published_s=time.time())
    code, _, err = run("export", "openmetrics", path, "-o", out)
    assert code == 0 and "of 4 steps" in err
    text = out.read_text()
    assert text.endswith("# EOF\n")
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found = _LINE.fullmatch(line)
            assert found, line
            samples.setdefault((found[1], found[2]), []).append((float(found[4]), float(found[3])))
    for series in samples.values():
        times = [at for at, _ in series]
        assert times == sorted(set(times))
    with contextlib.closing(stores.open(path)) as con:
        steps = query.steps(con)
    ends = sorted({row["step"] for row in steps.to_dicts()})
    assert ends == [12, 13]
    told = {
        (row["capture"], row["step"]): row["computing_ns"] / 1e9
        for row in steps.to_dicts()
        if row["rank"] == 0
    }
    (rank,) = [
        points for (name, labels), points in samples.items()
        if name == "npuscope_rank_computing_seconds" and 'rank="0"' in labels
    ]  # fmt: skip
    assert [value for _, value in rank] == pytest.approx(list(told.values()), rel=1e-12)
    names = {name for name, _ in samples}
    assert {"npuscope_mfu_ratio", "npuscope_expert_load_cv", "npuscope_exposed_seconds"} <= names

    require_prometheus()
    done = promtool("tsdb", "create-blocks-from", "openmetrics", str(out), str(tmp_path / "tsdb"))
    assert done.returncode == 0, done.stderr.decode()
    with prometheus(tmp_path, {"none": 1}) as server:
        at = rank[0][0]
        asked = {"query": 'npuscope_rank_computing_seconds{rank="0"}', "time": f"{at + 1}"}
        url = f"http://127.0.0.1:{server.port}/api/v1/query?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            (found_at,) = json.load(answer)["data"]["result"]
        assert found_at["metric"]["run"] == 'odd "run"\\'
        past = [value for moment, value in rank if moment <= at + 1]
        assert float(found_at["value"][1]) == past[-1]

    code, _, err = run("export", "openmetrics", path, "--capture", "c1", "-o", out)
    assert code == 0 and "of 2 steps" in err and len(out.read_text()) < len(text)
    model = ["--model", "qwen3-0.6b", "--tokens-per-step", "100", "--recompute", "full"]
    code, _, err = run("export", "openmetrics", path, *model, "--peak", "300T", "-o", out)
    assert code == 0
    use = use_of("qwen3-0.6b", None, "100", "causal", "full")
    with contextlib.closing(stores.open(path)) as con:
        figures = mfu(con, use=use, given_peaks=parse_peaks("300T"))
        jobs = gather_figures(con, figures.rows, "job").sort("capture", "step").to_dicts()
    for convention, column in (("model", "model_mfu_ratio"), ("hfu", "hfu_ratio")):
        lines = [line for line in out.read_text().splitlines() if f'="{convention}"' in line]
        told_each = [float(line.split()[-2]) for line in lines if line.startswith("npuscope_mfu_")]
        assert told_each == pytest.approx([one[column] for one in jobs], rel=1e-12)
        assert len(told_each) == 4 and min(told_each) > 0
    code, _, err = run("export", "csv", path, "--recompute", "full", "-o", out)
    assert code == 2 and "--recompute is for openmetrics" in err
    code, _, err = run("export", "openmetrics", path, "--ranks", "0", "-o", out)
    assert code == 2 and "--ranks is for traces" in err
    code, _, err = run("export", "openmetrics", path, "--run", "absent", "-o", out)
    assert code == 2 and "no run absent here" in err
