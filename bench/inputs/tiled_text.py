"""The text export of one rank, scaled: its steps follow each other as often as the size asks.

A repetition has its own instants, step numbers, connections, flows, task ids and operation names;
what it does and how long each part takes repeats, so that its figures are those of the first.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench.inputs.tiling import Rule, Tile, join, tile
from bench.inputs.trace_detail import Detail, with_detail
from npuscope.sample_traces.capture import Capture, CommOp, Copy, Kernel
from npuscope.sample_traces.forms.text import write_text
from npuscope.sample_traces.forms.trace import timeline

Event = dict[str, object]
# Decimal microseconds since the epoch; nothing else has 16 digits before a point.
INSTANT = r"\b(\d{16})(?=\.\d)"
_OPERATION = r"hcom_[A-Za-z]+__\d{3}_(\d+)_1\b"
_TABLES = ("memory_record.csv", "operator_memory.csv", "npu_module_mem.csv")
_REPORTS = ("communication.json", "communication_matrix.json")


@dataclass(frozen=True, slots=True)
class Growths:
    """What one repetition adds to the numbers of a rank's capture."""

    period_ns: int
    steps: int
    connections: int
    correlations: int
    sequences: int
    task_ids: int
    operations: dict[str, int]  # by the three digits of their group

    def rules(self) -> list[Rule]:
        """What every file has."""
        by_group = self.operations
        return [
            (INSTANT, self.period_ns // 1000),
            (_OPERATION, lambda name: by_group[name.split("__")[1][:3]]),
            (r"ProfilerStep#(\d+)", self.steps),
        ]


def growths(c: Capture, period_ns: int) -> Growths:
    """Enough for no number to come twice."""
    launches = c.launches()
    connections = [launch.api_connection_id for launch in launches] + [w[2] for w in c.waits]
    operations: dict[str, int] = {}
    for op in c.comm_ops:
        group, index = op.name.split("__")[1].split("_")[:2]
        operations[group] = max(operations.get(group, 0), int(index) + 1)
    items: list[Kernel | Copy | CommOp] = [*c.kernels, *c.copies, *c.comm_ops]
    task_ids = [item.task_id for item in items]
    sequences = [launch.sequence for launch in launches if launch.sequence >= 0]
    return Growths(
        period_ns=period_ns,
        steps=len(c.steps),
        connections=max(connections) - min(x.connection_id for x in launches) + 1,
        correlations=len(launches),
        sequences=max(sequences) - min(sequences) + 1,
        task_ids=max(task_ids) - min(task_ids) + 1,
        operations=operations,
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """trace_view.json in the order of its parts: text that stands once, and tiles."""

    parts: tuple[str | Tile, ...]
    closing: Event
    once_count: int
    repeated_count: int

    def event_count(self, repetitions: int) -> int:
        """Events of the whole file."""
        return self.once_count + 1 + repetitions * self.repeated_count

    def repetitions(self, size_bytes: int) -> int:
        """How often the tiles stand in a file of about this size; at least once."""
        tiles = [part for part in self.parts if isinstance(part, Tile)]
        once = sum(len(part) for part in self.parts if isinstance(part, str))
        found = 1
        for _ in range(2):  # numbers get longer
            middle = sum(len(tile.text(found // 2)) for tile in tiles)
            found = max(1, round((size_bytes - once) / middle))
        return found


def trace_tiles(c: Capture, grow: Growths, *, stacks: bool) -> Timeline:
    """The timeline of one rank, cut; `closing` is the one event that stands after everything."""
    detail = Detail(stacks=stacks, seed=f"{c.job.seed}/{c.rank}")
    events, identifiers = with_detail(c, timeline(c), detail)
    closing = next(e for e in reversed(events) if e["name"] == "AI Core Freq" and e["ph"] == "C")
    events = [event for event in events if event is not closing]
    flow = grow.connections << 32
    rules: list[Rule] = [
        *grow.rules(),
        (r'"connection_id": (\d+)', grow.connections),
        (r'"correlation_id": (\d+)', grow.correlations),
        (r"HostToDevice(\d+)", flow),
        (r'"id": "(\d+)"', flow),
        (r'"name": "enqueue_to_dequeue", "id": (\d+)', grow.correlations),
        (r'"name": "fwdbwd", "id": (\d+)', grow.sequences),
        (r'"name": "torch_to_npu", "id": (\d+)', grow.period_ns),
        (r'"Sequence number": (\d+)', grow.sequences),
        (r'"Task Id": (\d+)', grow.task_ids),
        (r'"task id": (\d+)', grow.task_ids),
        (r'"Python id": (\d+)', identifiers),
        (r'"Python parent id": (\d+)', identifiers),
    ]
    parts: list[str | Tile] = []
    once = sum(_section(c, event) == "once" for event in events)
    for section, found in groupby(events, key=lambda event: _section(c, event)):
        text = json.dumps(list(found), ensure_ascii=False)[1:-1]
        parts.append(text if section == "once" else tile(text, rules))
    return Timeline(tuple(parts), closing, once, len(events) - once)


def _section(c: Capture, event: Event) -> str:
    """Which part of the file an event belongs to; parts repeat one after the other."""
    if event["ph"] == "M" or event["name"] in ("PROFILING_ENABLE", "AI Core Freq"):
        return "once"
    if event.get("cat") in ("fwdbwd", "async_npu"):
        return str(event["cat"])
    return "framework" if event["pid"] == c.process_id else "device"


def write_scaled_text(
    c: Capture, folder: Path, grow: Growths, trace: Timeline, repetitions: int
) -> None:
    """Writes ASCEND_PROFILER_OUTPUT's text files into `folder`."""
    texts = join(_parts_text((*trace.parts, _closing(trace, grow, repetitions)), repetitions))
    _write(folder / "trace_view.json", "[", texts, "]")
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        plain = Path(name)
        write_text(c, plain)
        (plain / "trace_view.json").unlink()
        _write_tables(plain, folder, grow, repetitions)
        _write_statistic(plain, folder, repetitions)
        for file in _REPORTS:
            if (plain / file).exists():
                text = (plain / file).read_text(encoding="utf-8")[1:-1]
                cut = tile(text, [*grow.rules(), (r'"step(\d+)"', grow.steps)])
                _write(folder / file, "{", join(cut.texts(repetitions)), "}")


def _closing(trace: Timeline, grow: Growths, repetitions: int) -> str:
    whole, *decimals = str(trace.closing["ts"]).split(".")
    whole = str(int(whole) + (repetitions - 1) * grow.period_ns // 1000)
    return json.dumps({**trace.closing, "ts": ".".join((whole, *decimals))})


def _parts_text(parts: Iterable[str | Tile], repetitions: int) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            yield from part.texts(repetitions)


def _write(path: Path, before: str, texts: Iterable[str], after: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(before)
        file.writelines(texts)
        file.write(after)


def _write_tables(plain: Path, folder: Path, grow: Growths, repetitions: int) -> None:
    """Tables whose rows repeat below their header."""
    own: dict[str, list[Rule]] = {name: [] for name in _TABLES}
    own["kernel_details.csv"] = [
        (r"^(\d+),", grow.steps),
        (r",4294967295,(\d+),", grow.task_ids),  # after the model
    ]
    own["step_trace_time.csv"] = [(r"^\d+,(\d+),", grow.steps)]
    for name, rules in own.items():
        if (plain / name).exists():
            with (plain / name).open(encoding="utf-8", newline="") as file:
                header, body = file.readline(), file.read()
            _write(
                folder / name, header, tile(body, [*rules, *grow.rules()]).texts(repetitions), ""
            )


def _write_statistic(plain: Path, folder: Path, repetitions: int) -> None:
    """Counts and totals of a table that sums over the capture."""
    rows = list(csv.DictReader(io.StringIO((plain / "op_statistic.csv").read_text())))
    with (folder / "op_statistic.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            more = {name: float(row[name]) * repetitions for name in ("Count", "Total Time(us)")}
            writer.writerow({**row, **more, "Count": int(more["Count"])})
