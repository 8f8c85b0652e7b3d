"""Profiles that nobody vouches for: looking for others goes on, in time."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.discover import database_facts
from npuscope.collector.discover.cluster_outputs import look_at
from npuscope.collector.discover.database_facts import ask
from npuscope.collector.discover.identity import Identity, identify
from npuscope.collector.discover.search import discover, job_name
from npuscope.collector.readers.metadata.profiler_metadata import read_metadata
from tests.collector.ingest.in_time import end
from tests.collector.watch.watched_folders import write_capture

ENDLESS = """
create view {0} ({1}) as
with recursive endless(n) as (select 1 union all select n + 1 from endless)
select {2} from endless
"""
COLUMNS = {
    "RANK_DEVICE_MAP": ("rankId", "deviceId"),
    "HOST_INFO": ("hostUid",),
    "SESSION_TIME_INFO": ("startTimeNs", "endTimeNs"),
    "TASK": ("startNs", "deviceId"),
    "ClusterStepTraceTime": ("type", '"index"'),
    "ClusterCommunicationTime": ("rank_id", "start_timestamp"),
}


def write_database(path: Path) -> None:
    """A database of which every table that discovery asks is an endless view."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for table, columns in COLUMNS.items():
            text = ENDLESS.format(table, ", ".join(columns), ", ".join("n" for _ in columns))
            database.executescript(text)


def test_a_database_without_an_end_hides_no_profile(tmp_path: Path) -> None:
    write_capture(tmp_path / "job" / "good_ascend_pt", 3)
    inner = tmp_path / "job" / "bad_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    write_database(inner / "ascend_pytorch_profiler.db")
    found = end(lambda: discover(tmp_path / "job"), 20)
    assert {source.rank for source in found.ranks} >= {3}
    write_database(tmp_path / "cluster" / "cluster_analysis.db")
    assert "without figures" in (end(lambda: look_at(tmp_path / "cluster"), 20).problem or "")


@pytest.mark.slow
def test_tables_are_asked_for_a_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table Big (n integer)")
        database.executemany("insert into Big values (?)", [(n,) for n in range(3000)])
        database.execute(
            "create table Computed (n integer, huge as (length(hex(zeroblob(200000000)))))"
        )
        database.execute("insert into Computed (n) values (1)")
        database.commit()
    questions = [("big", "select count(*) from Big"), ("gone", "select 1"), ("Big", "select none")]
    questions += [("Computed", "select huge from Computed")]
    assert ask(str(path), questions) == [[(3000,)], [], [], []]
    began_s = time.monotonic()
    # Three tables of it multiplied take minutes.
    product = ("Big", "select count(*) from Big a, Big b, Big c where a.n + b.n = c.n * 3")
    assert ask(str(path), [product], within_s=0.2) == [[]]
    assert time.monotonic() - began_s < 5
    assert database_facts.WITHIN_S <= 10


def test_metadata_nested_too_deeply_hides_no_profile(tmp_path: Path) -> None:
    deep = '{"a":' * 100_000
    good = write_capture(tmp_path / "good_ascend_pt", 3)
    bad = write_capture(tmp_path / "bad_ascend_pt", 4)
    (bad / "profiler_info_4.json").write_text('{"rank_id": ' + "[" * 900 + "]" * 900 + "}")
    for folder, name in ((good, "a job"), (bad, "another")):
        metadata = {"job_name": name, "distributed_args": deep, "parallel_group_info": deep}
        (folder / "profiler_metadata.json").write_text(json.dumps(metadata))
    found = discover(tmp_path)
    assert {job_name(source) for source in found.ranks} == {"a job", "another"}
    assert {source.rank for source in found.ranks} == {3, 4}
    assert read_metadata(str(good / "profiler_metadata.json")).sizes == ()


def test_what_nobody_foresaw_is_a_problem_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_capture(tmp_path / "good_ascend_pt", 3)
    write_capture(tmp_path / "bad_ascend_pt", 4)

    def fails(framework: Any, files: Any, *rest: Any) -> Identity:
        if any("/bad_ascend_pt/" in one.path for some in files.values() for one in some):
            raise MemoryError
        return identify(framework, files, *rest)

    monkeypatch.setattr("npuscope.collector.discover.search.identify", fails)
    found = discover(tmp_path)
    assert [source.rank for source in found.ranks] == [3]
    [problem] = found.problems
    assert problem.path.endswith("bad_ascend_pt")
    assert problem.message == "cannot be read: exceeds the available memory"


def test_a_line_of_gigabytes_in_a_cluster_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text("Step,Type,Index\n,rank,7\n")
    with path.open("ab") as file:
        file.truncate(64 << 20)
    assert end(lambda: look_at(tmp_path)).ranks == (7,)
