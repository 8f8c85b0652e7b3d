"""HolisticTraceAnalysis's classes of gaps on a GPU's trace, beside its definition and `host`.

    .venv/bin/python -m bench.host.gap_classes_bench [--full]

HTA reads the trace and says how long each stream waits for the host, for
the next kernel, or for neither; the same is counted from its definition, and of the device as a
whole from what `npuscope host` is made of. Limits: its figures are the definition's to 1 us a
stream (it keeps times as doubles of us), ours are the definition's to the ns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.collector.peers_bench import PEERS, install, versions
from bench.inputs.kineto import write_kineto
from bench.measure import BUILD, arguments, commit, report, table
from npuscope.analysis.metric import sql_text
from npuscope.analysis.views import frame, open_views
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from tests.analysis.host.gap_classes import classes, gaps_of

MB, FULL_MB = 2, 20
_MOST_APART_US = 1.0
# It leaves out the last step.
_ASK = """
import json, sys
from hta.trace_analysis import TraceAnalysis
asked = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='/', include_last_profiler_step=True)
found, _ = asked.get_idle_time_breakdown(ranks=[0], visualize=False)
rows = found[['stream', 'idle_category', 'idle_time']].values.tolist()
print(json.dumps([[int(a), str(b), float(c)] for a, b, c in rows]))
"""
_TOLD = (
    "with\n_{parts}\nselect coalesce(sum(gap_ns) filter (launch_ns > 0), 0),"
    " coalesce(sum(gap_ns) filter (launch_ns <= 0), 0) from _launch_gaps"
)


def told_by_hta(trace: Path) -> dict[tuple[int, str], float]:
    """us of each stream and class. Else than it does by itself, it is told not to round to us."""
    command = [str(PEERS / "bin" / "python"), "-c", _ASK, str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"})  # fmt: skip
    rows = json.loads(done.stdout.splitlines()[-1])
    return {(stream, name): us for stream, name, us in rows}


def told_here(trace: Path, target: Path) -> tuple[int, int]:
    """ns of gaps whose end was launched when they had begun, and of the others."""
    done = ingest(trace.parent, target, jobs=1)
    assert done.is_complete
    with store.open(target) as con:
        open_views(con)
        parts = sql_text("gaps.sql").partition("\n_")[2].rstrip().rstrip(",")
        late_ns, other_ns = frame(con, _TOLD.format(parts=parts)).row(0)
    return int(late_ns), int(other_ns)


def main() -> int:
    """Compares, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    why_not = install()
    if why_not:
        print(f"HolisticTraceAnalysis could not be installed: {why_not}")
        return 0
    folder = BUILD / f"gaps_{os.getpid()}"
    trace = folder / "traces" / "rank0.pt.trace.json"
    write_kineto(trace, (FULL_MB if chosen.full else MB) * 1_000_000)
    theirs = told_by_hta(trace)
    every = gaps_of(trace)
    rows: list[list[object]] = []
    apart = []
    for stream in sorted({one for one, _ in theirs}):
        for name, ns in classes([one for one in every if one.stream_id == stream]).items():
            us = theirs.get((stream, name), 0.0)
            apart.append(abs(us - ns / 1e3))
            rows.append([f"stream {stream}", name, f"{us:,.1f}", f"{ns / 1e3:,.1f}", ""])
    device = gaps_of(trace, by_stream=False, categories=("kernel",))
    found = classes([one for one in device if one.is_within_step])
    here = told_here(trace, folder / "store")
    shutil.rmtree(folder)
    expected = found["host_wait"], found["kernel_wait"] + found["other"]
    for name, ns, our_ns in zip(("host_wait", "the others"), expected, here, strict=True):
        rows.append(["device", name, "", f"{ns / 1e3:,.3f}", f"{our_ns / 1e3:,.3f}"])
    is_met = max(apart) <= _MOST_APART_US and here == expected
    header = ["of", "class", "HTA, us", "its definition, us", "npuscope, us"]
    note = f"{versions()}, commit {commit()}; limits {'met' if is_met else 'NOT met'}"
    report("Classes of gaps", f"{table(header, rows)}\n\n{note}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
