"""The results of msprof-analyze over very many ranks."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest

from npuscope.collector.discover.cluster_outputs import FOLDER
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import store


@pytest.mark.slow
def test_a_thousand_ranks_are_taken_apart_once(tmp_path: Path) -> None:
    """However many ranks share them, files are decoded once: a rank's own part is what is left."""
    count = 1_000
    folder = tmp_path / FOLDER
    folder.mkdir()
    header = "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free"
    lines = [f"7,rank,{rank},{rank}.25,1,2,3,4" for rank in range(count)]
    (folder / "cluster_step_trace_time.csv").write_text("\n".join([header, *lines, ""]))
    time = {"Start Timestamp(us)": 1764246877000000.5, "Elapse Time(ms)": 0.25}
    operations = {
        f"hcom_allReduce__123_{n}_1@9350434047717501123": {
            str(rank): {"Communication Time Info": time} for rank in range(count)
        }
        for n in range(40)
    }
    members = str(tuple(range(count)))
    times = json.dumps({members: {"step7": operations}})
    (folder / "cluster_communication.json").write_text(times)

    began = perf_counter()
    result = ingest(
        tmp_path, tmp_path / "store", jobs=1, selection=parse_selection(ranks="0,500,999")
    )
    seconds = perf_counter() - began

    assert len(result.publications) == 3
    with closing(store.open(tmp_path / "store")) as con:
        found = con.execute(
            "select rank, count(*), any_value(p.computing_ns), any_value(len(global_ranks))"
            " from comm_times join profiler_steps as p using (rank) join groups using (rank)"
            " group by rank order by rank"
        ).fetchall()
    assert found == [(rank, 40, rank * 1e3 + 250.0, count) for rank in (0, 500, 999)]
    assert seconds < 60
