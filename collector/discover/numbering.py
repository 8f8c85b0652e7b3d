"""Numbers for ranks that no file tells: by host and device, past those that are told.

    host A, device 0, 09:00   no rank   -> 0
    host A, device 1, 09:00   no rank   -> 1
    host A, device 0, 10:00   no rank   -> 0      the same device at another time: the same rank

Where neither host nor device is told, folders tell the order: rank_2 before rank_10.

A rank that devices at work at one time share is none: some collectors write 0 for every device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from npuscope.messages import Message

from .identity import OF_INFO, Identity
from .msprof_layout import in_number_order

ORIGIN = "numbered in order of host, device and folder"


def with_ranks(identities: Sequence[tuple[str, Identity]]) -> list[Identity]:
    """The identities, each with a rank; `identities` has the folder of each."""
    ranks = _without_false_ranks([identity for _, identity in identities])
    taken_ranks = {one.rank for one in ranks if one.rank is not None}
    free = (number for number in range(len(ranks) + len(taken_ranks)) if number not in taken_ranks)
    order = sorted(
        range(len(ranks)),
        key=lambda n: (
            in_number_order(ranks[n].host),
            ranks[n].device,
            in_number_order(identities[n][0]),
        ),
    )
    holders: dict[tuple[str, int], list[tuple[int, list[Identity]]]] = defaultdict(list)
    for place in order:
        one = ranks[place]
        if one.rank is not None:
            continue
        numbers = holders[one.host, one.device] if one.host and one.device >= 0 else []
        number = next((n for n, held in numbers if not any(_meet(one, h) for h in held)), None)
        if number is None:
            number = next(free)
            numbers.append((number, []))
        next(held for n, held in numbers if n == number).append(one)
        words = "no file records the rank: numbered {number}"
        if taken_ranks:
            words = (
                "no file records the rank: numbered {number}, the first that is free. If it is"
                " another rank of the job, groups, waits and missing ranks are wrong: a file"
                " profiler_info_<rank>.json, or rank<N> in the name of a GPU's trace, tells it"
            )
        warning = Message(words, number=number)
        ranks[place] = replace(one, rank=number, origin=ORIGIN, warnings=(*one.warnings, warning))
    return ranks


def _without_false_ranks(identities: Sequence[Identity]) -> list[Identity]:
    """The same, but for a `rank_id` that several devices at work at one time have in info.json."""
    holders: dict[int, list[Identity]] = defaultdict(list)
    for one in identities:
        if one.rank is not None and one.origin == OF_INFO:
            holders[one.rank].append(one)
    false = {
        rank
        for rank, held in holders.items()
        for place, one in enumerate(held)
        for other in held[place + 1 :]
        if (one.host, one.device) != (other.host, other.device) and _meet(one, other)
    }
    return [
        replace(
            one,
            rank=None,
            origin="",
            warnings=(
                *one.warnings,
                Message("info.json of several devices records rank {rank}: ignored", rank=one.rank),
            ),
        )
        if one.origin == OF_INFO and one.rank in false
        else one
        for one in identities
    ]


def _meet(one: Identity, other: Identity) -> bool:
    """Whether two profiles may have been recorded at one time."""
    if one.window_start_ns is None or other.window_start_ns is None:
        return True
    if one.window_end_ns is None or other.window_end_ns is None:
        return True
    return one.window_start_ns <= other.window_end_ns and other.window_start_ns <= one.window_end_ns
