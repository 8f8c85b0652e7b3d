"""The timeline alone: trace_view.json to Parquet, whole, damaged, and by two processes; and the
trace of a GPU.

.venv/bin/python -m bench.collector.trace_bench [--full] [--runs N]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench.inputs.captures import CaptureSpec, build
from bench.inputs.kineto import write_kineto
from bench.measure import BUILD, Command, arguments, failures, interleave, report, table, verdict

TITLE = "The timeline to Parquet"
DAMAGED = BUILD / "damaged_trace_view.json"
GPU = BUILD / "gpu.pt.trace.json"
# What a reading process does with a timeline before any SQL, and nothing else.
STAGE = """
import sys, tempfile
from pathlib import Path
from npuscope.collector.model import ReadLog
from npuscope.collector.readers.kineto.kineto_columns import KinetoForm
from npuscope.collector.readers.kineto.head import parse_head, read_beginning
from npuscope.collector.readers.chrome_trace.staging import stage
from npuscope.collector.readers.trace_view.trace_columns import TraceForm
from npuscope.collector.engines.worker import begin_worker

begin_worker()
path, processes, stacks = sys.argv[1:]
form = TraceForm(stacks=stacks == "stacks")
if ".pt.trace." in path:
    form = KinetoForm(parse_head(read_beginning(path)).base_ns)
with tempfile.TemporaryDirectory() as folder:
    stage([path], Path(folder) / "staged", form, ReadLog(), lambda n: None,
          processes=int(processes))
"""


def damage(path: Path) -> Path:
    """A copy without its end, and with a torn event after every 50 MB."""
    # In place: what this process held would count as the peak of those that it starts.
    shutil.copyfile(path, DAMAGED)
    size_bytes = path.stat().st_size - 1000
    with DAMAGED.open("r+b") as file:
        file.truncate(size_bytes)
        for place in range(50_000_000, size_bytes, 50_000_000):
            file.seek(place)
            file.write(b"\0" * 20)
    return DAMAGED


def main() -> int:
    """Compares ways to read one timeline, in MB per CPU-second and memory."""
    chosen = arguments(__doc__)
    capture = build(CaptureSpec("text", 1000 if chosen.full else 200, 1, stacks=True))
    (path,) = capture.files()
    size_mb = path.stat().st_size / 1e6
    GPU.unlink(missing_ok=True)
    write_kineto(GPU, int(size_mb * 1e6))

    def staging(path: Path, processes: int, stacks: str = "") -> Command:
        return Command([sys.executable, "-c", STAGE, str(path), str(processes), stacks])

    whole, torn, split, gpu = "whole", "damaged", "whole, two processes", "a GPU's (Kineto)"
    commands = {
        whole: staging(path, 1),
        "whole, with stacks": staging(path, 1, "stacks"),
        torn: staging(damage(path), 1),
        split: staging(path, 2),
        gpu: staging(GPU, 1),
    }
    found = interleave(commands, chosen.runs)
    rows = [
        (name, f"{one.wall_s:.2f}", f"{one.cpu_s:.2f}", f"{size_mb / one.cpu_s:.0f}",
         f"{one.peak_mib:.0f}")
        for name, one in found.items()
    ]  # fmt: skip
    header = (f"{size_mb:.0f} MB trace", "wall s", "CPU s", "MB/CPU-s", "peak MiB")
    lines = [
        f"{name}: {size_mb / found[name].cpu_s:.0f} MB/CPU-s"
        f" ({verdict(size_mb / found[name].cpu_s, target, at_least=True)})"
        for name, target in ((whole, 180), (torn, 140), (split, 140), (gpu, 100))
    ]
    speed_up = found[whole].wall_s / found[split].wall_s
    lines.append(
        f"two processes, speed-up: {speed_up:.2f} ({verdict(speed_up, 1.8, at_least=True)})"
    )
    DAMAGED.unlink()
    GPU.unlink()
    report(TITLE, table(header, rows) + "\n\n" + "\n\n".join(lines) + failures(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
