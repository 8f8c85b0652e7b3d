"""The timeline reader on real traces: exact figures."""

from __future__ import annotations

import csv
import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from tests.collector.readers.trace_view.written_traces import read_paths, rows

REAL = [(f"alexnet_ddp_text_level{level}", rank) for level in ("0", "1") for rank in ("0", "1")]
Real = tuple[duckdb.DuckDBPyConnection, dict[str, Any]]


def half_even(value: float | int) -> int:
    return round(Fraction(value))


@pytest.fixture(scope="module", params=REAL, ids=lambda param: "-".join(param))
def real(
    request: pytest.FixtureRequest,
    real_data: Path,
    goldens: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[duckdb.DuckDBPyConnection, dict[str, Any]]:
    dataset, rank = request.param
    folder = real_data / dataset / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    con, log = read_paths([folder / "trace_view.json"], tmp_path_factory.mktemp("real"))
    assert (log.warnings, log.rows_lost, log.bytes_lost) == ([], 0, 0)
    return con, goldens[dataset][rank]


def test_real_launch_latencies(real: Real) -> None:
    con, golden = real
    expected = golden["flows"]["HostToDevice"]
    latencies = [row[0] for row in rows(con, "select latency_ns from launches order by 1")]
    assert len(latencies) == expected["count"]
    assert (latencies[0], latencies[-1]) == (expected["min_ns"], expected["max_ns"])
    assert sum(latencies) == expected["sum_ns"]
    assert sum(latency < 0 for latency in latencies) == expected["negative"]
    for percent in (50, 90, 99):
        at = math.ceil(percent * len(latencies) / 100) - 1
        assert latencies[at] == expected[f"p{percent}_ns"], percent


def test_real_launches_name_both_ends(real: Real) -> None:
    con, golden = real
    found = dict(
        rows(
            con, "select target, count(*) from launches where operator_name is not null group by 1"
        )
    )
    n_async = golden["flows"]["async_npu"]["count"]
    assert sum(found.values()) == n_async
    assert (found["kernel"], found["communication"]) == (187, 4)
    recorded = rows(con, "select count(*) from host_ops where kind = 'api'")[0][0]
    named = rows(con, "select count(api_name), count(*) from launches")[0]
    assert named == ((215, 215) if recorded else (0, 215))


def test_real_communication_operations(real: Real) -> None:
    con, golden = real
    found = rows(
        con,
        "select name, start_ns, dur_ns, connection_id, data_type, algorithm, element_count,"
        " size_bytes, op_type, step from comm_ops order by start_ns",
    )
    expected = [
        (op["name"], op["start_ns"], half_even(op["dur_ns"]), str(op["connection_id"]),
         op["data_type"], op["alg_type"], op["count"], op["count"] * 4, "allReduce", None)
        for op in golden["comm_ops"]
    ]  # fmt: skip
    assert found == expected


def test_real_communication_tasks(real: Real) -> None:
    con, golden = real
    for op in golden["ops_from_tasks"] or []:
        name = op["name"]
        (count,) = rows(con, f"select count(*) from comm_tasks where op_name = '{name}'")[0]
        assert count == op["tasks"]
        links = rows(
            con,
            "select link, sum(size_bytes), sum(dur_ns), count(*) from comm_tasks"
            f" where op_name = '{name}' and task_type in ('Memcpy', 'Reduce_Inline') group by link",
        )
        assert {link for link, *_ in links} == set(op["sdma_link"])
        for link, size_bytes, dur_ns, n in links:
            told = op["sdma_link"][link]
            assert (size_bytes, n) == (told["bytes"], told["n"])
            assert abs(dur_ns - told["dur_ns"]) <= n / 2
        waits = f"where op_name = '{name}' and task_type = 'Notify_Wait'"
        wait_ns, n = rows(con, f"select sum(dur_ns), count(*) from comm_tasks {waits}")[0]
        assert abs(wait_ns - op["notify_wait_ns_all_planes"]) <= n / 2
    if golden["ops_from_tasks"] is None:
        assert rows(con, "select count(*) from comm_tasks") == [(0,)]


def test_real_step_ranges(real: Real) -> None:
    con, golden = real
    (told,) = golden["steps"]["50"]["profiler_step"]
    end_ns = told["start_ns"] + told["dur_ns"]
    assert rows(con, "select kind, name, start_ns, dur_ns from marks") == [
        ("profiler_step", told["name"], told["start_ns"], told["dur_ns"])
    ]
    ((step, start_ns, found_end_ns, device_start_ns, device_end_ns),) = rows(
        con,
        "select step, window_start_ns, window_end_ns, device_start_ns, device_end_ns from steps",
    )
    assert (step, start_ns, found_end_ns) == (50, told["start_ns"], end_ns)
    first = rows(con, "select min(device_start_ns) from launches")[0][0]
    assert device_start_ns == first > start_ns
    assert device_end_ns == end_ns


def test_real_kernels_without_a_kernel_table(real: Real) -> None:
    con, golden = real
    told = golden["steps"]["50"]["trace_view_own"]
    (n, union_ns) = rows(
        con,
        """select count(*), sum(greatest(0, start_ns + dur_ns - greatest(start_ns, before)))
        from (select *, coalesce(max(start_ns + dur_ns) over (order by start_ns, dur_ns
                rows between unbounded preceding and 1 preceding), 0) as before
              from kernels where is_compute)""",
    )[0]
    assert n == told["n_compute"]
    assert abs(union_ns - told["computing_ns"]) <= n


@pytest.mark.slow
def test_real_streams_of_a_table_without_them(real_data: Path, tmp_path: Path) -> None:
    """Level0's kernel tables tell no streams: the timeline's are those that Level1's tell."""
    without = {"Stream ID", "Task ID", "Context ID", "Model ID"}
    shutil.copytree(real_data / "alexnet_ddp_text_level1" / "rank0_ascend_pt", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    path = tmp_path / "cut" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        names = [name for name in table[0] if name not in without]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    places = []
    for name in ("whole", "cut"):
        ingest(tmp_path / name, tmp_path / f"{name}-store", run="job", jobs=1)
        with store.open(tmp_path / f"{name}-store") as con:
            places.append(rows(con, """
                select start_ns, name, stream_id, task_id, context_id, model_id from kernels
                order by all"""))  # fmt: skip
    assert places[0] == places[1]
    assert len(places[1]) == 187 and None not in {row[2] for row in places[1]}
