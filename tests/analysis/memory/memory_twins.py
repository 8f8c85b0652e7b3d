"""What the memory metrics must say, by going through every record: slow and plain."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import duckdb

from tests.analysis.tables import Row, connect, fill

Curve = tuple[int, int | None, str, str]  # rank, device, source, component


@dataclass(frozen=True, slots=True)
class Record:
    """A row of `memory`."""

    timestamp_ns: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    rank: int = 0
    device_id: int | None = 0
    source: str = "record"
    component: str = "PTA"

    @property
    def curve(self) -> Curve:
        return self.rank, self.device_id, self.source, self.component

    @property
    def row(self) -> Row:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Block:
    """A row of `operator_memory`."""

    name: str | None
    size_bytes: int | None
    allocated_at_ns: int | None
    released_at_ns: int | None
    rank: int = 0
    device_id: int | None = 0

    @property
    def row(self) -> Row:
        return asdict(self)

    def held_at(self, t: int) -> bool:
        if not self.size_bytes:
            return False
        if self.allocated_at_ns is None:
            return self.released_at_ns is not None and self.released_at_ns > t
        freed = self.released_at_ns is not None and self.released_at_ns <= t
        return self.size_bytes > 0 and self.allocated_at_ns <= t and not freed


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a rank, from start to end."""

    step: int
    start_ns: int
    end_ns: int
    rank: int = 0


def tables(
    records: Sequence[Record], blocks: Sequence[Block] = (), steps: Sequence[Row] = ()
) -> duckdb.DuckDBPyConnection:
    """A database with these rows, and the ranks they are of."""
    con = connect()
    fill(con, "memory", [record.row for record in records])
    fill(con, "operator_memory", [block.row for block in blocks])
    fill(con, "steps", steps)
    ranks = {record.rank for record in records} | {block.rank for block in blocks}
    fill(con, "ranks", [{"rank": rank} for rank in sorted(ranks)])
    return con


def window(step: int | None, start_ns: int, end_ns: int) -> Row:
    """A row of `steps` with its range on the host."""
    return {"step": step, "window_start_ns": start_ns, "window_end_ns": end_ns}


def curves(records: Iterable[Record]) -> dict[Curve, list[Record]]:
    found: dict[Curve, list[Record]] = {}
    for record in records:
        found.setdefault(record.curve, []).append(record)
    return found


def peak(values: Iterable[tuple[int, int | None]]) -> tuple[int | None, int | None]:
    """Highest of (time, bytes) and when first; None where nothing is known."""
    known = [(t, size) for t, size in values if size is not None]
    if not known:
        return None, None
    most = max(size for _, size in known)
    return most, min(t for t, size in known if size == most)


def peaks(records: Iterable[Record]) -> dict[Curve, tuple[int | None, ...]]:
    """peak, its time, peak allocated, its time, peak active, fragmentation of each curve."""
    found: dict[Curve, tuple[int | None, ...]] = {}
    for key, rows in curves(records).items():
        reserved = peak((r.timestamp_ns, r.reserved_bytes) for r in rows)
        allocated = peak((r.timestamp_ns, r.allocated_bytes) for r in rows)
        active = peak((r.timestamp_ns, r.active_bytes) for r in rows)[0]
        then = [
            r.reserved_bytes for r in rows
            if (r.allocated_bytes, r.timestamp_ns) == allocated and r.reserved_bytes is not None
        ]  # fmt: skip
        unused = max(then) - allocated[0] if then and allocated[0] is not None else None
        found[key] = (*reserved, *allocated, active, unused)
    return found


def holders(
    records: Iterable[Record], blocks: Sequence[Block]
) -> dict[tuple[int, int | None], dict[tuple[str, str | None], tuple[int | None, ...]]]:
    """By rank and device, by holder and name: bytes, blocks, largest, since, released."""
    devices: dict[tuple[int, int | None], list[tuple[int, int, str]]] = {}
    for (rank, device, source, component), figures in peaks(records).items():
        size, at_ns = figures[2], figures[3]
        if source == "record" and size is not None and at_ns is not None:
            devices.setdefault((rank, device), []).append((-size, at_ns, component))
    answer: dict[tuple[int, int | None], dict[tuple[str, str | None], tuple[int | None, ...]]] = {}
    for (rank, device), tops in devices.items():
        if not any(block.rank == rank for block in blocks):
            continue
        size, at_ns, _ = min(tops)
        groups: dict[tuple[str, str | None], list[Block]] = {}
        for block in blocks:
            if (block.rank, block.device_id) == (rank, device) and block.held_at(at_ns):
                kind = "earlier" if block.allocated_at_ns is None else "operator"
                groups.setdefault((kind, block.name), []).append(block)
        here: dict[tuple[str, str | None], tuple[int | None, ...]] = {}
        for key, held in groups.items():
            sizes = [abs(block.size_bytes or 0) for block in held]
            born = [b.allocated_at_ns for b in held if b.allocated_at_ns is not None]
            freed = [b.released_at_ns for b in held if b.released_at_ns is not None]
            here[key] = (
                sum(sizes), len(held), max(sizes), min(born, default=None),
                max(freed) if len(freed) == len(held) else None,
            )  # fmt: skip
        explained = sum(figures[0] or 0 for figures in here.values())
        here["unexplained", None] = (-size - explained, None, None, None, None)
        answer[rank, device] = here
    return answer


def levels(rows: Sequence[Record]) -> list[tuple[int, int]]:
    """(time, level) of one curve in time, the highest of one instant last."""
    measured = any(row.allocated_bytes is not None for row in rows)
    found = [
        (row.timestamp_ns, row.allocated_bytes if measured else row.reserved_bytes) for row in rows
    ]
    return sorted((t, size) for t, size in found if size is not None)


def steps(
    records: Iterable[Record], recorded: Sequence[Step]
) -> dict[tuple[Curve, int], tuple[int, int, int]]:
    """By curve and step: level at the end, highest inside, records inside."""
    found: dict[tuple[Curve, int], tuple[int, int, int]] = {}
    for key, rows in curves(records).items():
        if not any(row.allocated_bytes or row.reserved_bytes for row in rows):
            continue
        known = levels(rows)
        for step in recorded:
            before = [size for t, size in known if t < step.end_ns]
            if step.rank != key[0] or not before:
                continue
            began = [size for t, size in known if t < step.start_ns][-1:]
            inside = [size for t, size in known if step.start_ns <= t < step.end_ns]
            found[key, step.step] = before[-1], max(began + inside), len(inside)
    return found


def growth(ends: Sequence[tuple[int, int]]) -> tuple[float | None, int | None, bool | None]:
    """Of (step, level) in order: median change per step, change in all, whether steady."""
    changes = [
        (level - before) / (step - earlier) for (earlier, before), (step, level) in pairwise(ends)
    ]
    if not changes:
        return None, None, None
    pace, in_all = statistics.median(changes), ends[-1][1] - ends[0][1]
    if len(ends) < 5:
        return pace, in_all, None
    even = 0 < min(changes) and pace / 2 <= min(changes) and max(changes) <= pace * 2
    return pace, in_all, even and ends[-1][1] / pace <= 100_000


def curve(
    records: Iterable[Record], bins: int
) -> dict[tuple[Curve, int], tuple[int | None, int | None, int | None, int | None, int]]:
    """By curve and bin: least and most allocated, least and most reserved, records."""
    everything = list(records)
    found: dict[tuple[Curve, int], tuple[int | None, int | None, int | None, int | None, int]] = {}
    for key, rows in curves(everything).items():
        times = [r.timestamp_ns for r in everything if r.rank == key[0]]
        zero, last = min(times), max(times)
        width = (last - zero) // bins + 1
        first = min(r.timestamp_ns for r in rows)
        for place in range((first - zero) // width, (last - zero) // width + 1):
            start, end = zero + place * width, zero + (place + 1) * width
            figures: list[int | None] = []
            for values in (
                [(r.timestamp_ns, r.allocated_bytes) for r in rows],
                [(r.timestamp_ns, r.reserved_bytes) for r in rows],
            ):
                known = sorted((t, size) for t, size in values if size is not None)
                seen = [size for t, size in known if t < start][-1:]
                seen += [size for t, size in known if start <= t < end]
                figures += [min(seen, default=None), max(seen, default=None)]
            count = sum(start <= r.timestamp_ns < end for r in rows)
            least, most, low, high = figures
            found[key, place] = least, most, low, high, count
    return found
