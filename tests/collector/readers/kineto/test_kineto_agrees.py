"""A GPU's trace of a job gives the rows that a text export of it gives, as far as it has them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.views import open_views
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Form, write_job
from tests.conftest import AGREEING

pytestmark = pytest.mark.slow

Opened = dict[str, duckdb.DuckDBPyConnection]
FORMS: tuple[Form, ...] = ("text", "kineto")

# What a form cannot carry: a GPU's trace has no kernels of HCCL's own, no cores, shapes and waits
# of kernels, no task ids, no planes; names and algorithms of operations are NCCL's, and so is the
# order of two that begin together. A text export has no copies among its kernels.
QUERIES = {
    "ranks": "select rank, world_size, tp_size, pp_size, dp_size, ep_size, tp_rank, pp_rank,"
    " dp_rank, ep_rank, clock, device_id from ranks",
    "groups": "select rank, group_name, group_label, parallel_kind, group_rank, global_ranks"
    " from groups",
    "steps": "select * exclude capture from steps",
    "kernels": "select rank, step, device_id, stream_id, name, is_compute, start_ns, dur_ns,"
    " connection_id from kernels where is_compute",
    "comm_ops": "select o.rank, step, device_id, op_type, g.group_name, start_ns, dur_ns,"
    " data_type, element_count, size_bytes, group_size, connection_id"
    " from comm_ops o left join groups g using (rank, group_hash)",
    "operators": "select rank, name, thread_id, start_ns, dur_ns, sequence_number,"
    " forward_thread_id from host_ops where kind = 'operator'",
    "launched": "select rank, connection_id, target, device_id, device_start_ns from launches"
    " where target = 'communication' or (target = 'kernel' and target_name not like '%AivKernel')",
    "marks": "select rank, kind, name, thread_id, start_ns, dur_ns from marks",
    "memory": "select rank, device_id, timestamp_ns, allocated_bytes, reserved_bytes from memory"
    " where component = 'PTA' and source = 'record'",
    "figures": "select * exclude (run, capture, profiler_bubble_ns) from step_summary",
    "communication": "select rank, step, by_key, op_type, kind, op_count, total_ns, union_ns,"
    " masked_ns, exposed_ns, size_bytes from comm_summary",
}


@pytest.fixture(scope="module")
def both(agreeing_stores: Callable[[Form], Path]) -> Iterator[Opened]:
    opened = {form: store.open(agreeing_stores(form)) for form in FORMS}
    for con in opened.values():
        open_views(con)
    yield {str(form): con for form, con in opened.items()}
    for con in opened.values():
        con.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_same_rows(both: Opened, name: str) -> None:
    text, kineto = (sorted(both[form].execute(QUERIES[name]).fetchall(), key=repr) for form in both)
    assert text
    assert len(text) == len(kineto)
    differing = [(one, other) for one, other in zip(text, kineto, strict=True) if one != other]
    assert not differing[:3]


@pytest.mark.slow
def test_what_only_the_trace_of_a_gpu_has(both: Opened) -> None:
    con = both["kineto"]
    names = "select distinct regexp_extract(name, '^[a-zA-Z]+') from comm_ops"
    assert con.execute(names).fetchall() == [("ncclDevKernel",)]
    copies = con.execute("select distinct core, is_compute from kernels where not is_compute")
    assert copies.fetchall() == [("MEMCPY", False)]
    assert con.execute("select count(*) from launches where operator_name is null").fetchall() == [
        (0,)
    ]
    types = con.execute("select count(*), count(type) from kernels where is_compute").fetchall()
    assert types[0][0] == types[0][1] > 0


def test_packed_traces_are_the_same(tmp_path: Path, both: Opened) -> None:
    write_job(AGREEING, tmp_path / "in", forms=("kineto",))
    for path in (tmp_path / "in").glob("*.pt.trace.json"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    ingest(tmp_path / "in", tmp_path / "store", run="agree")
    con = store.open(tmp_path / "store")
    for table in ("kernels", "comm_ops", "steps", "host_ops", "launches", "groups"):
        query = f"select * exclude capture from {table} order by all"
        assert con.execute(query).fetchall() == both["kineto"].execute(query).fetchall()
    ends = """
        select rank, window_end_ns from ranks semi join (
            select rank, max(start_ns + dur_ns) as window_end_ns from
                (from (select rank, start_ns, dur_ns from host_ops)
                 union all select rank, start_ns, dur_ns from marks
                 union all select rank, start_ns, dur_ns from kernels
                 union all select rank, start_ns, dur_ns from comm_ops) group by rank)
            using (rank, window_end_ns)"""
    assert len(con.execute(ends).fetchall()) == 4
    con.close()
