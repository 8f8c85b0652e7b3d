"""Which ranks, which time and which tracks of one capture a trace shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

import duckdb

from npuscope.analysis.views import open_views
from npuscope.analysis.wording import numbers, ranks_named
from npuscope.collector.selection import Spans, contains, parse_numbers, some_spans, without
from npuscope.errors import TraceNotFound, UsageError

# From the top of a rank down.
TRACKS = ("steps", "overlap", "kernels", "communication", "marks", "host", "memory", "counters")
# Before and after every instant; room is left to subtract one from another.
BEFORE_NS, AFTER_NS = -(2**61), 2**61
ALL_STEPS = (-(2**61), 2**61)
_WINDOW = re.compile(r"(\d+(?:\.\d+)?)?-(\d+(?:\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """What is asked for: `window_ns` counts from the capture's start; None means all there is."""

    run: str | None = None
    capture: str | None = None
    ranks: Spans | None = None
    steps: tuple[int, int] | None = None
    window_ns: tuple[int, int] | None = None
    tracks: tuple[str, ...] = TRACKS


@dataclass(frozen=True, slots=True)
class Place:
    """A rank to show, from when to when, and what a viewer calls it."""

    run: str
    capture: str
    rank: int
    title: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class RankChoice:
    """Ranks in order; `start_ns`: the capture's first instant; `clock` as in ranks; `messages`
    on what was asked for and is not there."""

    places: tuple[Place, ...]
    start_ns: int | None
    clock: str | None
    messages: tuple[str, ...]


def parse_choice(
    *,
    run: str | None = None,
    capture: str | None = None,
    ranks: str | None = None,
    steps: str | None = None,
    window: str | None = None,
    tracks: str | None = None,
) -> Choice:
    """A choice from options as they are typed. Raises UsageError that names the option."""
    if steps is not None and window is not None:
        raise UsageError("--steps and --window both select a time range: give only one")
    return Choice(
        run,
        capture,
        parse_numbers("--ranks", ranks) if ranks is not None else None,
        _parse_steps(steps) if steps is not None else None,
        _parse_window(window) if window is not None else None,
        _parse_tracks(tracks) if tracks is not None else TRACKS,
    )


def _parse_steps(text: str) -> tuple[int, int]:
    spans = parse_numbers("--steps", text)
    if len(spans) > 1:
        raise UsageError(f"--steps {text}: one contiguous range, such as 12-14")
    return spans[0]


def _parse_window(text: str) -> tuple[int, int]:
    match = _WINDOW.fullmatch(text.strip())
    if not match or not (match[1] or match[2]):
        raise UsageError(f"--window {text}: give milliseconds such as 120-180.5, 120- or -180.5")
    from_ns = int(Decimal(match[1]) * 1_000_000) if match[1] else 0
    to_ns = int(Decimal(match[2]) * 1_000_000) if match[2] else AFTER_NS
    if not from_ns < to_ns <= AFTER_NS:
        raise UsageError(f"--window {text}: it ends before it begins")
    return from_ns, to_ns


def _parse_tracks(text: str) -> tuple[str, ...]:
    words = {part.strip() for part in text.split(",")}
    if unknown := sorted(words - set(TRACKS)):
        raise UsageError(f"--tracks {text}: no {unknown[0]!r}; there are {', '.join(TRACKS)}")
    return tuple(name for name in TRACKS if name in words)


def choose(con: duckdb.DuckDBPyConnection, choice: Choice) -> RankChoice:
    """The ranks that a choice means, each with its stretch of time.

    Raises UsageError where it means no capture, several, or nothing in it, and TraceNotFound where
    there is nothing at all.
    """
    open_views(con, ("steps",))
    run, capture = _capture(con, choice)
    rows = con.execute(
        "select rank, host_name, device_id, window_start_ns, clock from ranks"
        " where run = ? and capture = ? order by rank",
        [run, capture],
    ).fetchall()
    start_ns = min((row[3] for row in rows if row[3] is not None), default=None)
    messages: list[str] = []
    if choice.ranks is not None:
        present = [row[0] for row in rows]
        rows = [row for row in rows if contains(choice.ranks, row[0])]
        if not rows:
            raise UsageError(f"no such rank in {capture}: there is {numbers(present)}")
        if absent := without(choice.ranks, present):
            messages.append(f"--ranks: there is no rank {some_spans(absent)} in {capture}")
    spans = _step_spans(con, run, capture, choice.steps) if choice.steps is not None else None
    places = []
    for rank, host, device, _, _ in rows:
        from_ns, to_ns = BEFORE_NS, AFTER_NS
        if spans is not None:
            if rank not in spans:
                continue
            from_ns, to_ns = spans[rank]
        elif choice.window_ns is not None:
            if start_ns is None:
                raise UsageError("--window counts from the capture's start, and that is unknown")
            from_ns = start_ns + choice.window_ns[0]
            to_ns = min(start_ns + choice.window_ns[1], AFTER_NS)
        places.append(Place(run, capture, rank, _title(rank, host, device), from_ns, to_ns))
    clocks = {row[4] for row in rows}
    left_out = sorted({row[0] for row in rows} - {place.rank for place in places})
    if left_out:
        messages.append(f"{ranks_named(left_out)}: none of the steps, left out")
    return RankChoice(
        tuple(places),
        start_ns,
        clocks.pop() if len(clocks) == 1 else None,
        tuple(messages),
    )


def _title(rank: int, host: str | None, device: int | None) -> str:
    where = [host] if host is not None else []
    where += [f"device {device}"] if device is not None else []
    return f"rank {rank}" + (f" ({', '.join(where)})" if where else "")


def _capture(con: duckdb.DuckDBPyConnection, choice: Choice) -> tuple[str, str]:
    """The one capture that is meant."""
    every = con.execute("select distinct run, capture from ranks order by run, capture").fetchall()
    captures = [
        (run, capture)
        for run, capture in every
        if choice.run in (None, run) and choice.capture in (None, capture)
    ]
    if len(captures) == 1:
        run, capture = captures[0]
        return str(run), str(capture)
    if not every:
        raise TraceNotFound("no rank here: see `npuscope sql PATH 'from ranks'`")
    named = "; ".join(f"--run {run} --capture {capture}" for run, capture in captures or every)
    if not captures:
        raise UsageError(f"no such capture: there is {named}")
    raise UsageError(f"a trace shows one of {len(captures)} captures, give {named}")


def _step_spans(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, steps: tuple[int, int]
) -> dict[int, tuple[int, int]]:
    """From when to when each rank was in some of its steps, on the host or on the device."""
    query = """
        select rank, min(start_ns), max(end_ns)
        from (
            select run, capture, rank, step, window_start_ns as start_ns, window_end_ns as end_ns
            from steps
            union all
            select run, capture, rank, step, device_start_ns, device_end_ns from steps
            union all
            select run, capture, rank, step, start_ns, end_ns from step_summary
        )
        where run = $run and capture = $capture and step between $first and $last
            and start_ns < end_ns
        group by rank"""
    values = {"run": run, "capture": capture, "first": steps[0], "last": steps[1]}
    spans = {rank: (start, end) for rank, start, end in con.execute(query, values).fetchall()}
    if not spans:
        there = "select distinct step from (select run, capture, step from steps union select run,"
        there += " capture, step from step_summary) where run = ? and capture = ?"
        steps_here = [step for (step,) in con.execute(there, [run, capture]).fetchall()]
        named = numbers(step for step in steps_here if step is not None) or "none"
        first, last = steps
        words = f"step {first}" if first == last else f"step {first}-{last}"
        raise UsageError(f"no {words} with a time in {capture}: there is {named}")
    return spans
