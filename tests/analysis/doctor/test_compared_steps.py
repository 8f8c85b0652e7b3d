"""Our steps against those of msprof-analyze, by its rules as `sample_traces.reports` has them."""

from __future__ import annotations

import csv
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.analysis.doctor.compared_steps import StepComparison, compared_steps
from npuscope.analysis.summaries import summaries, summarise
from npuscope.collector.discover.cluster_outputs import FOLDER
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.readers.cluster.cluster_steps import results_near
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.cluster import ClusterForm, write_cluster_output
from npuscope.sample_traces.generate import Job, small, write_job

# In a database the producer asks the kernels of the step what they cover, we all of the rank's.
BY_RULE = {"text": set(), "db": {"exposed communication", "overlapped"}}
STEPS = "cluster_step_trace_time.csv"


def compare(profiles: Path, into: Path) -> dict[str, StepComparison]:
    result = ingest(profiles, into, summarise=summarise)
    read = manifests(into)
    beside = results_near(profiles, {one.source_root for one in read})
    with closing(store.open(into, summaries={s.name: s.version for s in summaries()})) as con:
        found = compared_steps(con, read, beside, run=result.run)
    return {one.measure: one for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_all_measures_agree_but_for_the_rules(tmp_path: Path, form: ClusterForm) -> None:
    job = Job(name="oracle", layers=2, dp=2, pp=2, ep=2, seed=21)
    write_job(job, tmp_path / "job", forms=(form,))
    write_cluster_output(captures(job), tmp_path / "job", form)

    found = compare(tmp_path / "job", tmp_path / "store")

    assert len(found) == 7
    for measure, one in found.items():
        assert one.compared_count == job.world_size * job.steps
        agrees = one.agreeing_count == one.compared_count
        assert agrees or measure in BY_RULE[form], measure
    assert found["bubble"].theirs_ns > 0


@pytest.mark.slow
def test_the_farthest_step_is_named(tmp_path: Path) -> None:
    write_job(small(), tmp_path / "job", forms=("text",))
    folder = write_cluster_output(captures(small()), tmp_path / "job", "text")
    with (folder / STEPS).open() as stream:
        header, *rows = csv.reader(stream)
    computing = header.index("Computing")
    for row in rows:
        if row[:3] == ["13", "rank", "1"]:
            row[computing] = str(float(row[computing]) + 250)
        elif row[1] == "rank":
            row[computing] = str(float(row[computing]) + 0.5)  # less than the tolerance
    with (folder / STEPS).open("w") as stream:
        csv.writer(stream).writerows([header, *rows])

    told = compare(tmp_path / "job", tmp_path / "store")["computing"]

    assert (told.rank, told.step, told.compared_count, told.agreeing_count) == (1, 13, 4, 3)
    assert told.theirs_ns - told.ours_ns == pytest.approx(250_000, abs=1)


@pytest.mark.slow
def test_results_of_other_profiles_are_not_compared(tmp_path: Path) -> None:
    write_job(small(), tmp_path / "all" / "job", forms=("text",))
    write_cluster_output(captures(small()), tmp_path / "all" / "other", "text")

    assert compare(tmp_path / "all", tmp_path / "store") == {}
    # Above them they are about all that lies below.
    shutil.move(str(tmp_path / "all" / "other" / FOLDER), tmp_path / "all" / FOLDER)
    assert compare(tmp_path / "all", tmp_path / "store")["stage"].agreeing_count == 4


@pytest.mark.slow
def test_results_that_cannot_be_read_compare_nothing(tmp_path: Path) -> None:
    write_job(small(), tmp_path / "job", forms=("text",))
    (tmp_path / "job" / FOLDER).mkdir()
    (tmp_path / "job" / FOLDER / STEPS).write_text("Step,Computing\n12,1\n")
    (tmp_path / "job" / FOLDER / "cluster_analysis.db").write_bytes(b"no database")

    assert compare(tmp_path / "job", tmp_path / "store") == {}


def test_a_light_input_is_not_compared_with_itself(tmp_path: Path) -> None:
    write_cluster_output(captures(small()), tmp_path / "job", "text")

    assert compare(tmp_path / "job", tmp_path / "store") == {}
