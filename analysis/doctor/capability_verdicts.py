"""One verdict of many ranks: what most of them can answer, and who deviates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from npuscope.messages import Message, joined

from ..wording import numbers, ranks_named
from .capabilities import CAPABILITIES, RANKS
from .judge import Support, Verdict
from .profiler_options import METADATA, Setting


@dataclass(frozen=True, slots=True)
class Deviation:
    """Ranks whose verdict is another than the capture's."""

    ranks: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CaptureVerdict:
    """What most ranks can answer; `deviations` are the others."""

    capability: str
    question: str
    support: Support
    reason: str | None = None
    remedy: str | None = None
    deviations: tuple[Deviation, ...] = ()
    settings: tuple[Setting, ...] = ()


_RANKING: Mapping[Support, int] = {"yes": 0, "partly": 1, "no": 2}


def whole_capture(
    ranks: Sequence[tuple[int, Sequence[Verdict]]],
) -> tuple[CaptureVerdict, ...]:
    """A verdict per capability over the ranks of a capture, each with its own verdicts.

    Where as many ranks say one thing as another, the better is the capture's. `settings` are those
    that any rank needs.
    """
    found: list[CaptureVerdict] = []
    for position, known in enumerate(CAPABILITIES):
        alike: dict[Verdict, list[int]] = defaultdict(list)
        for rank, verdicts in ranks:
            alike[verdicts[position]].append(rank)
        if not alike:
            continue
        order = sorted(alike, key=lambda v: (-len(alike[v]), _RANKING[v.support], alike[v][0]))
        most, *others = order
        found.append(
            CaptureVerdict(
                known.name,
                known.question,
                most.support,
                most.reason,
                most.remedy,
                tuple(Deviation(tuple(sorted(alike[v])), v) for v in others),
                tuple(dict.fromkeys(s for v in order for s in v.settings)),
            )
        )
    return tuple(found)


def across_ranks(
    *,
    present: Collection[int],
    world_size: int | None,
    least_rank_count: int | None,
    missing: Sequence[int] | None,
    lacking_steps: Mapping[int, Sequence[int]],
    clocks: Collection[str | None],
    levels: Collection[str | None],
) -> CaptureVerdict:
    """Whether the ranks of a capture can be compared with each other."""
    if len(present) < 2:
        alone = world_size == 1
        reason = (
            "the job has one rank"
            if alone
            else Message("only {ranks} is here", ranks=ranks_named(present))
        )
        remedy = None if alone else "profile every rank, or one of each pipeline stage"
        return CaptureVerdict(RANKS.name, RANKS.question, "no", reason, remedy)
    told: list[str] = []
    if missing:
        told.append(Message("{ranks} missing", ranks=ranks_named(missing)))
    elif missing is None and least_rank_count and least_rank_count > len(present):
        told.append(
            Message(
                "{count} of at least {least} ranks are here",
                count=len(present),
                least=least_rank_count,
            )
        )
    elif missing is None:
        told.append("how many ranks the job has is unknown")
    if lacking_steps:
        count, who = len(lacking_steps), ranks_named(lacking_steps)
        steps = numbers({step for lost in lacking_steps.values() for step in lost})
        lack = "{ranks} lacks step {steps}" if count == 1 else "{ranks} lack step {steps}"
        told.append(Message(lack, ranks=who, steps=steps))
    if "device" in clocks:
        told.append("timestamps of some ranks are device-local, not wall-clock times")
    known = Counter(level for level in levels if level)
    if len(known) > 1:
        told.append(
            Message(
                "ranks were profiled at different levels ({levels})",
                levels=", ".join(sorted(known)),
            )
        )
    if not told:
        return CaptureVerdict(RANKS.name, RANKS.question, "yes")
    told_size = world_size is not None or missing is not None
    remedy = "profile every rank for the same steps at the same level"
    if not told_size:
        remedy = joined((remedy, METADATA.says), "; ")
    return CaptureVerdict(RANKS.name, RANKS.question, "partly", joined(told, "; "), remedy)
