"""Reading a timeline takes the same memory whatever its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import resource
import sys
from pathlib import Path

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.trace_view import trace_view
from npuscope.collector.staging import is_empty, open_staging, scalar

path = Path(sys.argv[1])
con = open_staging(path.parent, memory_bytes=128 << 20)
source = RankSource("root", "pytorch", 0, "test", {
    "trace": (SourceFile(str(path), path.stat().st_size, 0),),
})
tables = frozenset({"kernels", "host_ops", "launches", "counters", "steps"})
trace_view.read(con, source, ReadLog(), tables, lambda n_bytes: None)
rows = scalar(con, "select count(*) from host_ops")
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_trace(path: Path, events: int) -> None:
    """An operator, a device task and a counter sample, over and over."""
    stack = "/".join(f"frame_{n}.py(1): run" for n in range(12))
    with path.open("w") as file:
        file.write('[{"ph":"M","name":"process_name","pid":2,"tid":0,"args":{"name":"HBM"}}')
        for n in range(events):
            ts = f'"{1736412474000000 + n * 3}.125"'
            file.write(
                f',{{"ph":"X","name":"aten::op_{n % 50}","pid":1,"tid":1,"ts":{ts},"dur":2.5,'
                f'"cat":"cpu_op","args":{{"Sequence number":{n},"Call stack":"{stack}"}}}}'
                f',{{"ph":"C","name":"HBM 0/Read","pid":2,"tid":0,"ts":{ts},'
                f'"args":{{"Read(MB/s)":{n}}}}}'
            )
        file.write("]")


@pytest.mark.slow
def test_peak_memory_does_not_follow_the_file(tmp_path: Path) -> None:
    peak_kib: dict[int, int] = {}
    for events in (40_000, 640_000):
        folder = tmp_path / str(events)
        folder.mkdir()
        write_trace(folder / "trace_view.json", events)
        done = subprocess.run(
            [sys.executable, "-c", READ, str(folder / "trace_view.json")],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows, peak_kib[events] = map(int, done.stdout.split())
        assert rows == events

    # Sixteen times the file (20 MB and 330 MB): DuckDB may use its 128 MiB, and no more is added.
    assert peak_kib[640_000] < peak_kib[40_000] + (200 << 10), peak_kib
