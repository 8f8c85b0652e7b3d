"""How long a step takes, by planted truth: whether the host runs ahead, keeps pace or is late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuscope.analysis import means, query
from npuscope.analysis.compare.side import measure
from npuscope.analysis.flops.job_mfu import gather_figures, mean_use
from npuscope.analysis.flops.lengths import ACTIVITY, TO_NEXT, step_lengths
from npuscope.analysis.flops.mfu import mfu
from npuscope.analysis.memo import remember
from npuscope.analysis.scope import ALL
from npuscope.analysis.summaries import summarise
from npuscope.analysis.trends import trends
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.dashboard.answers.overview_answers import step_words
from npuscope.dashboard.exporter.snapshot import take_snapshot
from npuscope.profile import summary_versions
from npuscope.sample_traces.generate import Form, Job, small, write_job
from tests.cli.command import rows_of

PEAK = 294.912e12
STEPS = 5
# Calls of 3 us: all steps are launched before the device has done the first.
AHEAD = small(skips_norm=True, steps=STEPS, host_op_ns=0, hidden=4096, memory=False)
PACED = small(steps=STEPS, memory=False)
LATE = small(steps=STEPS, memory=False, between_steps_ns=3_000_000)


def read(job: Job, form: Form, out: Path) -> dict[int, list[tuple[int, int]]]:
    """Writes the job and reads it into `out`/store; the planted first start and last end of each
    step on each rank."""
    write_job(job, out / "in", forms=(form,))
    assert ingest(out / "in", out / "store", summarise=summarise, jobs=1).is_complete
    ranks = json.loads((out / "in" / "truth.json").read_text())["ranks"]
    return {
        int(rank): [(one["start_ns"], one["end_ns"]) for one in facts["steps"].values()]
        for rank, facts in ranks.items()
    }


def lengths_of(spans: list[tuple[int, int]]) -> list[int]:
    """From start to start, the last to its end."""
    starts = [start for start, _ in spans]
    return [b - a for a, b in zip(starts, [*starts[1:], spans[-1][1]], strict=True)]


def of_job(planted: dict[int, list[tuple[int, int]]]) -> list[int]:
    latest = [(max(a for a, _ in one), max(b for _, b in one))
              for one in zip(*planted.values(), strict=True)]  # fmt: skip
    return lengths_of(latest)


@pytest.mark.parametrize(
    "form",
    ["text", *(pytest.param(form, marks=pytest.mark.slow) for form in ("db", "kineto"))],
)
def test_lengths_are_the_device_s_where_the_host_runs_ahead(form: Form, tmp_path: Path) -> None:
    """The windows of all steps together are not a tenth of one step, in every form."""
    planted = read(AHEAD, form, tmp_path)
    con: Any = store.open(tmp_path / "store", summaries=summary_versions())
    ((window_ns,),) = con.execute(
        "select sum(window_end_ns - window_start_ns) from steps where rank = 0"
    ).fetchall()
    lengths = step_lengths(con).sort("rank", "step")
    assert set(lengths["length_basis"]) == {TO_NEXT, ACTIVITY}
    figures = mfu(con, given_peaks={"bf16": PEAK}).rows
    for rank, spans in planted.items():
        mine = lengths.filter(rank=rank)["step_ns"].to_list()
        assert mine == pytest.approx(lengths_of(spans), abs=2) and window_ns < min(mine) / 10
        captured_ns = spans[-1][1] - spans[0][0]
        assert sum(mine) == pytest.approx(captured_ns, abs=2)
        if form != "kineto":  # shapes of which no FLOPs follow
            rows = figures.filter(rank=rank)
            flops = float(np.sum(rows.select("matmul_flops", "attention_flops_causal").to_numpy()))
            (value,) = mean_use(con, rows, ["run", "rank"]).filter(
                figure="kernel_mfu_causal_ratio"
            )["value"]
            assert value == pytest.approx(flops / (captured_ns * 1e-9 * PEAK)) and value < 0.5
    # What all ranks together take: the same of every answer.
    truth = pytest.approx(of_job(planted), abs=2)
    assert means.job_steps(con)["step_ns"].to_list() == truth
    assert measure(con, ALL).steps["step_ns"].to_list() == truth
    if form != "kineto":
        assert gather_figures(con, figures, "job")["step_ns"].to_list() == truth
    (mean,) = means.mean_steps(con).to_dicts()
    assert mean["job_step_ns"] == pytest.approx(sum(of_job(planted)) / STEPS, abs=2)
    assert not [note for note in query.notes(con) if "without a recorded next" in note]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
@pytest.mark.parametrize("job", [AHEAD, PACED, LATE], ids=["ahead", "paced", "late"])
def test_every_way_out_says_the_same(job: Job, form: Form, tmp_path: Path) -> None:
    planted = read(job, form, tmp_path)
    path = tmp_path / "store"
    each = of_job(planted)
    mean_ns = sum(each) / STEPS
    told = rows_of("mfu", path, "--by", "job", "--peak", f"bf16={PEAK}")
    assert [row["step_ns"] for row in told] == pytest.approx(each, abs=2)
    told = rows_of("mfu", path, "--by", "step", "--peak", f"bf16={PEAK}")
    for rank, spans in planted.items():
        mine = [row["step_ns"] for row in told if row["rank"] == rank]
        assert mine == pytest.approx(lengths_of(spans), abs=2)
        flops = sum(
            row["matmul_flops"] + row["attention_flops_causal"]
            for row in told if row["rank"] == rank
        )  # fmt: skip
        ratio = sum(
            row["kernel_mfu_causal_ratio"] * row["step_ns"] for row in told if row["rank"] == rank
        )
        assert ratio / sum(mine) == pytest.approx(flops / (sum(mine) * 1e-9 * PEAK))
        assert sum(mine) == pytest.approx(spans[-1][1] - spans[0][0], abs=2)
    con: Any = store.open(path, summaries=summary_versions())
    remember(con)
    assert trends(con).captures["step_ns"].to_list() == pytest.approx([mean_ns], abs=2)
    headline, _ = step_words(means.mean_steps(con).row(0, named=True), None)
    assert headline == f"{mean_ns / 1e6:,.3f} ms a step of the job"
    samples = take_snapshot(path, now_s=0.0).samples
    (one,) = samples["npuscope_step_seconds"]
    assert one.value == pytest.approx(mean_ns * 1e-9, rel=1e-6)
