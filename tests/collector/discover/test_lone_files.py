"""A file given as PATH is that file or an error; its content tells what it is, never its name."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.discover.search import discover
from npuscope.collector.store.store import is_export
from npuscope.errors import TraceNotFound
from npuscope.sample_traces.generate import write_job
from npuscope.sample_traces.job import Job
from tests.collector.readers.expert_load.expert_dumps import line
from tests.collector.readers.kineto.written_kineto import HEAD


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small job, as text and as databases."""
    root = tmp_path_factory.mktemp("profiles")
    job = Job(name="lone", layers=2, pp=1, dp=2, ep=2, experts=4, steps=2)
    write_job(job, root, forms=("text", "db", "msprof", "msprof_db", "kineto"))
    return root


def one(root: Path, pattern: str) -> Path:
    return sorted(root.rglob(pattern))[0]


KINDS = {
    "trace_view.json": "trace",
    "kernel_details.csv": "kernels",
    "step_trace_time.csv": "step_trace",
    "communication.json": "communication",
    "communication_matrix.json": "communication_matrix",
    "memory_record.csv": "memory_record",
    "operator_memory.csv": "operator_memory",
    "ascend_pytorch_profiler_*.db": "main_db",
    "analysis.db": "analysis_db",
}


@pytest.mark.parametrize("pattern", KINDS)
def test_a_file_is_read_alone_and_by_what_is_in_it(
    profiles: Path, tmp_path: Path, pattern: str
) -> None:
    source = one(profiles, pattern)
    for path in (source, Path(shutil.copy(source, tmp_path / "x.dat"))):
        [rank] = discover(path).ranks
        assert {role: [f.path for f in files] for role, files in rank.files.items()} == {
            KINDS[pattern]: [str(path)]
        }
        assert rank.framework == "pytorch"


@pytest.mark.parametrize(
    ("pattern", "role"),
    [("msprof_*.json", "trace"), ("msprof_*.db", "main_db"), ("op_summary_*.csv", "kernels")],
)
def test_what_msprof_exports_is_known_under_any_name(
    profiles: Path, tmp_path: Path, pattern: str, role: str
) -> None:
    copy = shutil.copy(one(profiles, pattern), tmp_path / "x")
    ranks = discover(Path(copy)).ranks
    assert {(rank.framework, *rank.files) for rank in ranks} == {("msprof", role)}


@pytest.mark.parametrize("name", ["kernel_details.csv", "communication.json"])
def test_a_packed_table_is_to_be_unpacked(profiles: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(one(profiles, name).read_bytes()))
    with pytest.raises(TraceNotFound, match="gunzip"):
        discover(path)


@pytest.mark.parametrize("name", ["train.json", "train.json.gz", "epoch", "packed"])
def test_a_gpus_trace_is_known_by_its_beginning(tmp_path: Path, name: str) -> None:
    content = json.dumps(HEAD | {"traceEvents": []}).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name[-2:] in ("gz", "ed") else content)
    (tmp_path / "other.json").write_text('{"loss": 1}')
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / name):
        if path == tmp_path and "." not in name:
            continue  # in a folder only JSON is looked into
        [rank] = discover(path).ranks
        assert (rank.rank, rank.root, rank.framework) == (5, str(tmp_path / name), "kineto")


def test_results_of_all_ranks_are_known_under_any_name(tmp_path: Path) -> None:
    table = "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free"
    (tmp_path / "yesterday").write_text(f"{table}\n1,rank,0,5,1,1,2,1\n1,rank,3,5,1,1,2,1\n")
    with closing(sqlite3.connect(tmp_path / "before")) as database:  # which knows no case
        database.execute('create table clusterSteptracetime (type, "index")')
        database.executemany("insert into clusterSteptracetime values ('rank', ?)", [(0,), (3,)])
        database.commit()
    for name in ("yesterday", "before"):
        ranks = discover(tmp_path / name).ranks
        assert [rank.rank for rank in ranks] == [0, 3]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "it is empty"),
        ("just words", "not a profile by its content"),
        ('{"loss": [1, 2]}', "not a profile by its content"),
        (line(1, 0, [5, 3]), "holds tokens per expert"),
        ("5,3\n4,4\n", "holds tokens per expert"),
        ('{"moe_layer_count": 1, "layer_list": []}', "holds an expert placement"),
        ('{"config": {"common_config": {}}, "rank_id": 0}', "holds metadata of a profile"),
    ],
)
def test_any_other_file_is_an_error_and_nothing_beside_it_is_read(
    profiles: Path, content: str, told: str
) -> None:
    path = profiles / "report.json"
    path.write_text(content)
    try:
        with pytest.raises(TraceNotFound, match=told) as raised:
            discover(path)
    finally:
        path.unlink()
    assert "\n" not in str(raised.value)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_view.json")
    with pytest.raises(TraceNotFound, match="not a regular file"):
        discover(tmp_path / "trace_view.json")


def test_an_export_is_known_by_its_content(tmp_path: Path) -> None:
    import duckdb

    duckdb.connect(tmp_path / "yesterday").close()
    (tmp_path / "x.duckdb").write_text("no database")
    assert is_export(tmp_path / "yesterday")
    assert not is_export(tmp_path / "x.duckdb") and not is_export(tmp_path)
