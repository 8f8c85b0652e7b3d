"""Free time beside HolisticTraceAnalysis's classes of gaps: the same gaps, the same of them the
host's, to the ns, on GPU traces."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low

import polars as pl
import pytest

from npuscope.analysis.host.free_time import free_time
from npuscope.analysis.metric import sql_text
from npuscope.analysis.summaries import summarise
from npuscope.analysis.views import frame
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.job import Job
from tests.analysis.host.gap_classes import Gap, classes, gaps_of
from tests.conftest import WrittenJob

ALONE = Job(
    name="gaps", layers=2, experts=0, pp=1, dp=1, ep=1, steps=3, memory=False, crossing=False,
    comm_tasks=False, noise=0.05, item_in_layers=True, host_op_ns=30_000,
)  # fmt: skip
TWO = Job(
    name="gaps", layers=2, experts=4, pp=1, dp=2, ep=2, steps=3, memory=False, crossing=False,
    comm_tasks=False, noise=0.05, hidden=512, seed=3,
)  # fmt: skip
_GAPS = (
    "with\n_{parts}\nselect start_ns, gap_ns, launch_ns from _launch_gaps"
    " join _labels using (rank_key, label) where rank = {rank} order by start_ns"
)


@pytest.mark.slow
@pytest.mark.parametrize("job", [ALONE, TWO], ids=["one stream computes", "with communication"])
def test_free_time_is_of_the_classes_that_the_rule_gives(
    job: Job, written_job: WrittenJob, tmp_path: Path
) -> None:
    profiles = written_job(job, "kineto")
    assert ingest(profiles, tmp_path / "store", summarise=summarise, jobs=1).is_complete
    with store.open(tmp_path / "store") as con:
        steps = frame(con, "select rank, step, free_ns, host_ns, idle_ns from step_summary")
        causes = free_time(con)
        parts = sql_text("gaps.sql").partition("\n_")[2].rstrip().rstrip(",")
        for rank, trace in enumerate(_by_rank(profiles)):
            every = gaps_of(trace, by_stream=False, categories=("kernel",))
            gaps = [one for one in every if one.is_within_step]
            told = frame(con, _GAPS.format(parts=parts, rank=rank))
            assert told.rows() == [
                (one.end_ns, one.dur_ns, one.launch_ns - one.start_ns) for one in gaps
            ]
            for step in range(job.first_step, job.first_step + job.steps):
                here = pl.col("rank").eq(rank) & pl.col("step").eq(step)
                _hold([one for one in gaps if one.step == step], steps.filter(here).row(0)[2:],
                      causes.filter(here))  # fmt: skip


def _by_rank(profiles: Path) -> list[Path]:
    """Traces in order of ranks: as they say themselves."""
    traces = {path.read_text(encoding="utf-8"): path for path in profiles.glob("*.pt.trace.json")}
    return [
        path for rank in range(len(traces))
        for text, path in traces.items() if f'"rank": {rank},' in text
    ]  # fmt: skip


def _hold(gaps: list[Gap], known: tuple[int, ...], causes: pl.DataFrame) -> None:
    """Host time is what the rule gives the host, but for what a gap lasts beyond the launch and
    the time that a launch takes to a free device (the median of those)."""
    free_ns, host_ns, idle_ns = known
    found = classes(gaps)
    late = [one for one in gaps if one.class_ == "host_wait"]
    reach_ns = median_low(one.end_ns - one.launch_ns for one in late)
    beyond_ns = sum(max(one.end_ns - one.launch_ns - reach_ns, 0) for one in late)
    assert free_ns == sum(found.values())
    assert host_ns == found["host_wait"] - beyond_ns > 0
    assert idle_ns == found["kernel_wait"] + found["other"] + beyond_ns
    assert causes.filter(cause="device")["free_ns"].sum() == idle_ns
    assert causes.filter(cause="unknown").is_empty()
