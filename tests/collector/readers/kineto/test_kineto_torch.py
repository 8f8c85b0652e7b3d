"""Traces that PyTorch itself writes here: what its profiler records of a CPU, read to the last row.

Run where torch is: in the tests' interpreter, or in the one that NPUSCOPE_TORCH_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis import query
from npuscope.analysis.views import open_views
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("NPUSCOPE_TORCH_PYTHON", sys.executable)
# Two processes over gloo, two recordings of two steps each, and one by export_chrome_trace.
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

rank, out = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=2)
dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
model = torch.nn.Linear(64, 64)
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=tensorboard_trace_handler(out + "/steps"), record_shapes=True,
    profile_memory=True, with_stack=True,
) as recorded:
    for _ in range(9):
        model(torch.randn(8, 64)).sum().backward()
        dist.all_reduce(model.weight.grad)
        recorded.step()
dist.barrier()
with profile(activities=[ProfilerActivity.CPU]) as recorded:
    torch.mm(torch.randn(8, 64), model.weight.t())
recorded.export_chrome_trace(f"{out}/trace_{rank}.json.gz")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    known = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("no torch here: pip install torch, or name its Python: NPUSCOPE_TORCH_PYTHON")
    out = tmp_path_factory.mktemp("torch")
    program = out / "program.py"
    program.write_text(PROGRAM)
    jobs = [
        subprocess.Popen([PYTHON, str(program), str(rank), str(out)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    told = [job.communicate(timeout=150)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    return out


def events_of(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """The zero of a file's clock and its slices, numbers as they are written."""
    trace = json.loads(path.read_text(), parse_float=Decimal)
    return trace["baseTimeNanoseconds"], [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_recordings_of_two_processes(recordings: Path, tmp_path: Path) -> None:
    result = ingest(recordings / "steps", tmp_path / "store", run="torch")
    assert result.is_complete
    con = store.open(tmp_path / "store")
    ranks = con.execute(
        "select rank, capture, clock, world_size, tp_size, tp_rank from ranks"
        " order by capture, rank"
    ).fetchall()
    captures = sorted({capture for _, capture, *_ in ranks})
    assert len(captures) == 2
    assert ranks == [
        (rank, capture, "epoch", 2, 2, rank) for capture in captures for rank in range(2)
    ]
    assert con.execute("select capture, rank, step from steps order by all").fetchall() == [
        (capture, rank, step)
        for capture, steps in zip(captures, ((2, 3), (6, 7)), strict=True)
        for rank in range(2)
        for step in steps
    ]
    groups = con.execute("select distinct parallel_kind, global_ranks from groups order by all")
    assert groups.fetchall() == [("tp", [0, 1]), ("world", [0, 1])]
    assert con.execute("select count(*) from memory").fetchall() == [(0,)]  # the host's is none

    found = con.execute(
        "select name, start_ns, dur_ns, thread_id from host_ops where kind <> 'api'"
    ).fetchall()
    expected = Counter[tuple[Any, ...]]()
    for path in (recordings / "steps").glob("*.pt.trace.json"):
        base_ns, events = events_of(path)
        expected.update(
            (e["name"], base_ns + int(e["ts"] * 1000), int(e["dur"] * 1000), e["tid"])
            for e in events
            if e["cat"] != "Trace" and not e["name"].startswith("ProfilerStep#")
        )
    assert sum(expected.values()) > 1000
    assert Counter(found) == expected
    shapes = con.execute(
        "select distinct input_shapes, input_dtypes from host_ops where name = 'aten::addmm'"
    )
    assert shapes.fetchall() == [("64;8,64;64,64;;", "float;float;float;Scalar;Scalar")]
    con.close()


def test_windows_are_those_of_the_sessions(recordings: Path, tmp_path: Path) -> None:
    ingest(recordings / "steps", tmp_path / "store", run="torch")
    con = store.open(tmp_path / "store")
    windows = con.execute("select window_start_ns, window_end_ns from ranks order by all")
    spans = []
    for path in (recordings / "steps").glob("*.pt.trace.json"):
        base_ns, events = events_of(path)
        [span] = [event for event in events if event["cat"] == "Trace"]
        start_ns = base_ns + int(span["ts"] * 1000)
        spans.append((start_ns, start_ns + int(span["dur"] * 1000)))
    assert windows.fetchall() == sorted(spans)
    con.close()


def test_what_export_chrome_trace_writes(recordings: Path, tmp_path: Path) -> None:
    result = ingest(recordings / "trace_1.json.gz", tmp_path / "store", run="torch")
    assert [(one.rank, one.warnings) for one in result.publications] == [(1, ())]
    con = store.open(tmp_path / "store")
    assert con.execute("select count(*) from host_ops where name = 'aten::mm'").fetchall() == [(1,)]
    open_views(con)  # of the host's side alone there is no step; doctor says what to record
    assert query.nothing_matches(con).endswith("`npuscope doctor PATH` tells why")
    con.close()
