"""What timelines of pages ask: windows, steps of two captures side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from npuscope.analysis.findings.finding import Finding
from npuscope.analysis.timeline.bins import MOST_CELLS, MOST_COLUMNS
from npuscope.analysis.timeline.evidence_place import EvidencePlace
from npuscope.analysis.timeline.shared_axis import Extent

# Shorter than that a window shows nothing more.
LEAST_NS = 1_000
LANES = 2  # ranks with bars, unless others are chosen
_MOST_PAIRS = 3
# Of more ranks one pair of steps: cells of all are as many as a browser draws.
_MANY_RANKS = 64


def window_of(
    at: Extent, borders: pl.DataFrame, step: int | None, window: tuple[int | None, int | None]
) -> tuple[int, int]:
    """What is looked at: the window asked for, else the step's, else all there is.

    `at` has at least one rank.
    """
    whole = at.window_ns
    assert whole is not None
    start_ns, end_ns = window
    if start_ns is not None and end_ns is not None:
        if start_ns < whole[1] and end_ns > whole[0]:
            return start_ns, max(end_ns, start_ns + LEAST_NS)
    borders_of_step = (
        borders.filter(pl.col("step") == step) if step is not None else borders.clear()
    )
    if borders_of_step.height:
        return int(borders_of_step["start_ns"][0]), int(borders_of_step["end_ns"][0])
    return whole


def paired_steps(
    a: pl.DataFrame, b: pl.DataFrame, step: int | None
) -> tuple[int | None, int | None]:
    """Which step of each of two captures begins at the same place: the chosen one and its like
    where both have it, else the first of either; None of one without steps. Rows of
    `step_borders`."""
    ours, theirs = (one.sort("start_ns")["step"].to_list() for one in (a, b))
    if step in ours and step in theirs:
        return step, step
    return next(iter(ours), None), next(iter(theirs), None)


def shown_lanes(ranks: Sequence[int], ranks_of: tuple[int, ...] | None) -> tuple[int, ...]:
    """Those asked for that are shown, in order of ranks; unless none was asked for, at least the
    first."""
    if ranks_of is None:
        return tuple(ranks[:LANES])
    return tuple(rank for rank in ranks if rank in ranks_of) or tuple(
        ranks[: LANES if ranks_of else 0]
    )


def recorded_windows(
    at: Extent, ranks: Sequence[int], window_ns: tuple[int, int]
) -> dict[int, tuple[int, int]]:
    """A window on each rank's own clock."""
    return {
        rank: (window_ns[0] + ahead, window_ns[1] + ahead)
        for rank, ahead in at.of(ranks)["rank", "ahead_ns"].rows()
    }


def recorded_extents(at: Extent, ranks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """From where to where each rank has kernels or operations, on its own clock."""
    rows = at.of(ranks)["rank", "first_ns", "last_ns"]
    return {rank: (first, last) for rank, first, last in rows.rows()}


_SHARE_SHOWN = 8  # of a window, one part is the evidence
_MOST_TEXT = 60
_TIMES_WITHOUT_KERNELS = ("free_ns", "gap_ns", "pipeline_wait_ns")


def evidence_asked(finding: Finding) -> dict[str, str | int | None] | None:
    """What of a finding's first evidence tells where it is, as `evidence_place` takes it; None
    where it tells neither a type of events nor a time without kernels."""
    first = finding.evidence.row(0, named=True)
    place_of = {
        "of_rank": first.get("rank"), "of_step": first.get("step"),
        "kernel": first.get("type"), "operation": first.get("op_type"),
    }  # fmt: skip
    is_gap = any(name in first for name in _TIMES_WITHOUT_KERNELS)
    if place_of["kernel"] is None and place_of["operation"] is None and not is_gap:
        return None
    return place_of


def shown_evidence(place: EvidencePlace, zero_ns: int, text: str) -> dict[str, str | int]:
    """What the URL of the timeline says, so that it lands on an evidence: the window around it, its
    rank unfolded, the event selected and all others faint, or the stretch marked with a text."""
    start_ns, end_ns = place.start_ns, place.end_ns
    beside_ns = max((end_ns - start_ns) * (_SHARE_SHOWN - 1) // 2, LEAST_NS)
    params: dict[str, object] = {"open": [str(place.rank)]}
    if place.kind is None:
        short = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
        params["marks"] = [{"from": start_ns, "to": end_ns, "text": short}]
    else:
        params["find"] = place.name
        params["event"] = {
            "side": 0, "rank": place.rank, "part": "device", "kind": place.kind, "key": place.key,
            "row": 0, "start": start_ns, "dur": end_ns - start_ns, "name": place.name,
        }  # fmt: skip
    return {
        "start_ns": zero_ns + start_ns - beside_ns,
        "end_ns": zero_ns + end_ns + beside_ns,
        "shown": json.dumps(params, ensure_ascii=False),
    }


@dataclass(frozen=True, slots=True)
class Window:
    """A step of a capture, or all of one without steps: half-open, on its shown clock; `at_ns` is
    where it stands on the common axis."""

    step: int | None
    start_ns: int
    end_ns: int
    at_ns: int = 0


def windows(
    borders: pl.DataFrame, steps: Sequence[int | None], whole_ns: tuple[int, int]
) -> list[Window]:
    """The compared steps of a capture in order of time: rows of `step_borders` for `steps`."""
    rows = borders.filter(pl.col("step").is_in([one for one in steps if one is not None]))
    windows_here = [
        Window(*row) for row in rows.sort("start_ns")["step", "start_ns", "end_ns"].rows()
    ]
    return windows_here or [Window(None, *whole_ns)]


def side_by_side(
    a: Sequence[Window], b: Sequence[Window], step: int | None, ranks: int
) -> tuple[list[tuple[Window, Window]], int]:
    """Steps of A and B in pairs that begin at the same place, and the length of the axis.

    The first with the first, and so on; of a chosen `step` of B that pair alone.
    """
    pairs = list(zip(a, b, strict=False))
    pairs_of_step = [pair for pair in pairs if step is not None and pair[1].step == step]
    pairs = pairs_of_step or pairs[: 1 if ranks > _MANY_RANKS else _MOST_PAIRS]
    windows: list[tuple[Window, Window]] = []
    at_ns = 0
    for pair in pairs:
        ours, theirs = (Window(one.step, one.start_ns, one.end_ns, at_ns) for one in pair)
        windows.append((ours, theirs))
        at_ns += max(one.end_ns - one.start_ns for one in pair)
    return windows, at_ns


def columns_of(pairs: int, ranks: int) -> int:
    """Bins of each step, so that all of them together are not too many."""
    return max(min(MOST_COLUMNS // pairs, MOST_CELLS // (2 * pairs * ranks)), 8)
