"""Which schedule ran: the named orders beside what each stage was seen to do.

A stage's passes by start make a word, a letter each; passes beside each other have small letters.
The distance to an order is the share of letters that differ, mean over the stages seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from npuscope.errors import UsageError

from .schedules import ANY_CHUNKS, SCHEDULES, Pass, Schedule, schedule

NONE = "none"
# Share of letters that may differ: of a name given with confidence, of any name.
_NEAR, _FAR = 0.02, 0.15
_APART = 0.05  # another order that is as near as that fits as well
_LETTERS = {"F": "F", "BW": "X", "B": "B", "W": "W"}
_MOST_STAGES = 256
_PREFERENCE = (
    "1f1b", "interleaved", "fb-overlap", "zb-h1", "dualpipev", "zb-v", "gpipe", "dualpipe", "zb-h2",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A schedule as it was recognised.

    name: `none` where no order is near, or there is no pipeline. distance: share of passes that
    stand elsewhere in its order (None: nothing to compare). confidence: high, medium or low.
    also: other orders that are as near. order: the schedule with its sizes; None without a name.
    """

    name: str
    distance: float | None
    confidence: str
    also: tuple[str, ...]
    micro_batches: int | None
    chunks: int | None
    order: Schedule | None


def word(passes: Sequence[tuple[str, bool]]) -> str:
    """Passes in order, each its kind and whether it runs beside another, as letters."""
    return "".join(_LETTERS[kind].lower() if beside else _LETTERS[kind] for kind, beside in passes)


def name_schedule(words: Mapping[int, str], stages: int, *, is_sure: bool) -> NamedSchedule:
    """The nearest order to the words of the stages that were seen, of so many stages in all.

    is_sure: directions are told by operators or marks.
    """
    counts = {sum(one in "Ff" for one in letters) for letters in words.values()}
    if stages == 1 or not words or len(counts) != 1:
        alone = (min(counts) if len(counts) == 1 else 0) or None
        sure = "high" if stages == 1 and is_sure and alone else "low"
        return NamedSchedule(NONE, None, sure, (), alone, None, None)
    passes = counts.pop()
    names = []
    for name, m, v in _candidates(passes, stages):
        expected = _words(name, stages, m, v)
        if expected is not None:
            apart = [_distance(letters, expected[at]) for at, letters in words.items()]
            names.append((sum(apart) / len(apart), _PREFERENCE.index(name), v, name, m))
    names.sort()
    if not names or names[0][0] > _FAR:
        return NamedSchedule(NONE, names[0][0] if names else None, "low", (), None, None, None)
    distance, _, v, name, m = names[0]
    also = tuple(dict.fromkeys(one[3] for one in names[1:] if one[0] <= distance + _APART))
    sure = "low" if also else "high" if distance <= _NEAR and is_sure else "medium"
    if sure == "high" and len(words) < stages:
        sure = "medium"
    return NamedSchedule(name, distance, sure, also, m, v, schedule(name, stages, m, v))


def _candidates(passes: int, stages: int) -> list[tuple[str, int, int]]:
    """Names with micro-batches and chunks that make as many forwards on each stage."""
    if stages > _MOST_STAGES:
        return []
    candidates = []
    for name, (chunks, _) in SCHEDULES.items():
        several = range(1, passes // stages + 1) if name in ANY_CHUNKS else (chunks,)
        for v in several:
            if name == "dualpipe":
                candidates.append((name, passes, v))
            elif passes % v == 0 and not (name == "interleaved" and v == 1):
                candidates.append((name, passes // v, v))
    return candidates


@lru_cache(maxsize=512)
def _words(name: str, p: int, m: int, v: int) -> tuple[str, ...] | None:
    """What each stage does in that schedule; None where there is none of these sizes."""
    try:
        candidate = schedule(name, p, m, v)
    except UsageError:
        return None
    return tuple(word([one for entry in order for one in _of(entry)]) for order in candidate.orders)


def _of(entry: tuple[Pass, ...]) -> list[tuple[str, bool]]:
    return [(one.kind, len(entry) > 1) for one in entry]


def _distance(word: str, expected: str) -> float:
    """Share of letters that differ; of different lengths: all beyond the shorter, too."""
    same = sum(one == other for one, other in zip(word, expected, strict=False))
    return 1 - same / max(len(word), len(expected), 1)
