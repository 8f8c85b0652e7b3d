"""Which ranks were profiled together: a capture is the set of ranks whose windows overlap.

    rank 0  |--A--|            |--B--|
    rank 1    |--A--|        |--B--|        two captures, A and B

A rank is in a capture once. A second profile of it in the same window is a copy or a restart: the
one that ended last stays.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ..model import RankSource
from ..wall_clock import EPOCH_FROM_NS

UNDATED_NAME = "undated"


@dataclass(frozen=True, slots=True)
class KnownCapture:
    """A capture that is already in the store: its name, span and ranks stay."""

    name: str
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """`sources`: (capture name, source) to read; `passed_over`: (source, source taken instead)."""

    sources: tuple[tuple[str, RankSource], ...]
    passed_over: tuple[tuple[RankSource, RankSource], ...]


@dataclass(slots=True)
class _Span:
    start_ns: int | None
    end_ns: int | None
    members: dict[int, RankSource]

    def overlap_ns(self, other: _Span | RankSource) -> int:
        """Shared time in ns; 0 where the windows do not meet or one is unknown."""
        if isinstance(other, RankSource):
            other = _Span(other.window_start_ns, other.window_end_ns, {})
        if self.start_ns is None or other.start_ns is None:
            return 0
        if self.end_ns is None or other.end_ns is None:
            return 0
        latest_start = max(self.start_ns, other.start_ns)
        return max(0, min(self.end_ns, other.end_ns) - latest_start + 1)


def assign(
    sources: Iterable[RankSource], stored_captures: Iterable[KnownCapture] = ()
) -> Assignment:
    """Put every source into a capture, joining `stored_captures` where windows overlap.

    Which sources belong together depends on the sources alone: processes that share the work find
    the same captures and names, whatever the others published meanwhile.
    """
    every = list(sources)
    passed_over: list[tuple[RankSource, RankSource]] = []
    spans = _spans_by_name(_clusters(every, passed_over), list(stored_captures))
    for source in sorted(
        (s for s in every if s.window_start_ns is None), key=lambda s: (s.rank, s.root)
    ):
        _place_undated(spans, source, passed_over)
    members = [
        (name, span.members[rank]) for name, span in spans.items() for rank in sorted(span.members)
    ]
    return Assignment(tuple(members), tuple(passed_over))


def _clusters(
    sources: Iterable[RankSource], passed_over: list[tuple[RankSource, RankSource]]
) -> list[_Span]:
    """Dated sources by overlap, each rank once, in order of time."""
    spans: list[_Span] = []
    dated = sorted(
        (s for s in sources if s.window_start_ns is not None),
        key=lambda s: (s.window_start_ns, s.rank, s.root),
    )
    for source in dated:
        meeting = [span for span in spans if span.overlap_ns(source)]
        free = [span for span in meeting if source.rank not in span.members]
        if meeting and not free:
            span = max(meeting, key=lambda span: _shared_ns(span.members[source.rank], source))
            source_here = span.members[source.rank]
            if _shared_ns(source_here, source):
                keep, drop = sorted((source, source_here), key=recency, reverse=True)
                span.members[source.rank] = keep
                passed_over.append((drop, keep))
                _widen(span, keep.window_start_ns, keep.window_end_ns)
                continue
        if free:
            span = max(free, key=lambda span: span.overlap_ns(source))
        else:
            span = _Span(None, None, {})
            spans.append(span)
        span.members[source.rank] = source
        _widen(span, source.window_start_ns, source.window_end_ns)
    return spans


def _spans_by_name(spans: list[_Span], stored_captures: list[KnownCapture]) -> dict[str, _Span]:
    """Spans by capture name, known captures among them; new ones are named by their start."""
    named = {
        capture.name: _Span(capture.start_ns, capture.end_ns, {}) for capture in stored_captures
    }
    own_names: set[str] = set()
    strangers: list[tuple[str, _Span]] = []
    for span in spans:
        name = _fresh(capture_name(span.start_ns), own_names)
        own_names.add(name)
        if name in named and named[name].overlap_ns(span):
            _join(named[name], span)
        else:
            strangers.append((name, span))
    for name, span in strangers:
        meeting = [
            named[capture.name]
            for capture in stored_captures
            if _Span(capture.start_ns, capture.end_ns, {}).overlap_ns(span)
            and not named[capture.name].members.keys() & span.members.keys()
        ]
        if meeting:
            _join(max(meeting, key=lambda met: met.overlap_ns(span)), span)
        else:
            named[_fresh(name, named.keys())] = span
    return named


def capture_name(start_ns: int | None) -> str:
    """`20250109T084753.886Z` for an epoch start, `device-<ns>` for another clock, `undated`."""
    if start_ns is None:
        return UNDATED_NAME
    if start_ns < EPOCH_FROM_NS:
        return f"device-{start_ns}"
    seconds, rest_ns = divmod(start_ns, 10**9)
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}.{rest_ns // 10**6:03d}Z"


def _fresh(name: str, names: Container[str]) -> str:
    candidate, number = name, 2
    while candidate in names:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _join(span: _Span, other: _Span) -> None:
    span.members.update(other.members)
    _widen(span, other.start_ns, other.end_ns)


def _widen(span: _Span, start_ns: int | None, end_ns: int | None) -> None:
    if start_ns is not None:
        span.start_ns = start_ns if span.start_ns is None else min(span.start_ns, start_ns)
    if end_ns is not None:
        span.end_ns = end_ns if span.end_ns is None else max(span.end_ns, end_ns)


def _shared_ns(one: RankSource, other: RankSource) -> int:
    return _Span(one.window_start_ns, one.window_end_ns, {}).overlap_ns(other)


def recency(source: RankSource) -> tuple[int, int, str]:
    """What decides between two profiles of a rank and time: the larger one stays."""
    newest = max((f.mtime_ns for group in source.files.values() for f in group), default=0)
    return (source.window_end_ns or 0, newest, source.root)


def _place_undated(
    spans: dict[str, _Span], source: RankSource, passed_over: list[tuple[RankSource, RankSource]]
) -> None:
    """A source without a window joins the only capture there is, else the undated one."""
    dated = [span for span in spans.values() if span.start_ns is not None]
    if len(dated) == 1 and source.rank not in dated[0].members:
        dated[0].members[source.rank] = source
        return
    undated = spans.setdefault(UNDATED_NAME, _Span(None, None, {}))
    source_here = undated.members.get(source.rank)
    if source_here is None:
        undated.members[source.rank] = source
        return
    keep, drop = sorted((source, source_here), key=recency, reverse=True)
    undated.members[source.rank] = keep
    passed_over.append((drop, keep))
