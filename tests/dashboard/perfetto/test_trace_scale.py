"""Traces of any size take the same memory, and hardly any time in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from npuscope.collector import schema

KERNELS = 1_000_000
LIMIT_MIB = 400  # measured 300 to 330, of which 90 to 130 are the interpreter and its libraries
# Measured 80, and 100 where the store keeps figures of steps; a machine may be slow.
LEAST_MB_PER_CPU_S = 25
EXPORT = """
import json
import re
import resource
import sys
from pathlib import Path

from tests.dashboard.perfetto.traces import export

path = Path(sys.argv[1])
written = export(path, path.with_suffix(".json"))
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, which counts what the parent took before this program began.
peak_kib = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(json.dumps({
    "counts": written.event_counts, "mb": written.size_bytes / 1e6,
    "peak_mib": int(peak_kib) / 1024, "cpu_s": used.ru_utime + used.ru_stime,
}))
"""


def write_tables(path: Path) -> None:
    """A rank with kernels on two streams, of which every tenth overlaps the one before; as many
    calls of two levels; operations that cross steps."""
    period = 20_000
    keys = "'job' as run, 'c' as capture, 0::integer as rank"
    tables = {
        "ranks": f"select {keys}, 0 as window_start_ns",
        "kernels": f"""
            select {keys}, i * 20 // {KERNELS} as step, 2 + i % 2 as stream_id, true as is_compute,
                'aclnnMatmul_MatMulV3Common_' || i % 200 as name, 'MatMulV3' as type,
                i * {period} as start_ns,
                case when i % 10 = 0 then 41000 else 15000 end as dur_ns,
                '4096,' || i % 500 || ';1024,3072' as input_shapes,
                cast(i as varchar) as connection_id
            from range({KERNELS}) t(i) order by stream_id, start_ns""",
        "comm_ops": f"""
            select {keys}, i * 20 // {KERNELS // 10} as step, 'hcom_allReduce__' || i as name,
                'allReduce' as op_type, 'group' as group_hash, i * {10 * period} as start_ns,
                {9 * period} as dur_ns
            from range({KERNELS // 10}) t(i)""",
        "host_ops": f"""
            select {keys}, case when n = 0 then 'operator' else 'api' end as kind, 1 as process_id,
                1 as thread_id, 'aten::matmul' || i % 50 as name,
                i * {period} + 100 * n as start_ns,
                -- Now and then a call ends after what holds it.
                case when i % 1000 = 0 and n = 1 then 14950 else 15000 - 200 * n end as dur_ns,
                case when n = 1 then cast(i as varchar) end as connection_id
            from range({KERNELS // 2}) t(i), range(2) u(n)""",
    }
    with duckdb.connect(str(path), config={"threads": 2, "memory_limit": "1GiB"}) as con:
        for table in schema.tables().values():
            con.execute(schema.create_sql(table, keys=True))
        for name, query in tables.items():
            con.execute(f"insert into {name} by name {query}")


@pytest.mark.slow
def test_millions_of_events_in_little_memory(tmp_path: Path) -> None:
    write_tables(tmp_path / "trace.duckdb")
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(tmp_path / "trace.duckdb")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout.splitlines()[-1])  # the engine may show its progress
    counts = taken["counts"]
    assert (counts["kernels"], counts["communication"]) == (KERNELS, KERNELS // 10)
    assert counts["host"] == KERNELS
    assert counts["overlap"] > KERNELS // 4
    with (tmp_path / "trace.json").open("rb") as trace:
        lines = sum(block.count(b"\n") for block in iter(lambda: trace.read(1 << 20), b""))
        trace.seek(-60, 2)
        assert trace.read().endswith(b"}}\n]}\n")
    assert lines == sum(counts.values()) + 2
    assert taken["peak_mib"] < LIMIT_MIB
    assert taken["mb"] / taken["cpu_s"] > LEAST_MB_PER_CPU_S
