"""Schedules of pipeline parallelism: which pass each device runs after which.

sizes --> words of each device: forward, backward, ... of a chunk --> numbered by micro-batch

GPipe, 1F1B, interleaved: arXiv 2104.04473; ZB-H1 and ZB-H2: arXiv 2401.10241; ZB-V: arXiv
2405.15362; DualPipe: arXiv 2412.19437; DualPipeV: the two halves of one DualPipe put on one V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from npuscope.errors import UsageError
from npuscope.messages import Message

# Forward; whole backward; the half of it for inputs (the next device waits for it), for weights.
Kind = Literal["F", "BW", "B", "W"]
# What a device runs next: kinds with their chunks; two of one word run beside each other. The
# chunk of a W may be None: of the oldest B whose weights wait.
Word = tuple[tuple[Kind, int | None], ...]


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of a device."""

    kind: Kind
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each device runs, in order.

    orders: by device, entries of one pass, or of two that run beside each other. routes: the places
    (device, chunk) that a micro-batch passes on its way forward; of two routes each has half of the
    micro-batches. share: how much of a stage's work one chunk is.
    """

    name: str
    orders: tuple[tuple[tuple[Pass, ...], ...], ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]
    share: Fraction

    def positions(self) -> dict[tuple[int, int], tuple[int, int]]:
        """On which route, and where on it, each place is."""
        return {
            place: (route, number)
            for route, places in enumerate(self.routes)
            for number, place in enumerate(places)
        }


def schedule(name: str, p: int, m: int, v: int | None = None) -> Schedule:
    """The schedule of that name for p stages, m micro-batches and v chunks on each device.

    Raises UsageError where there is none of that name, or none of these sizes.
    """
    spelling = _ALIASES.get(name.lower(), name.lower())
    if spelling not in SCHEDULES:
        raise UsageError(
            Message(
                "no schedule is called {name}: one of {known}",
                name=repr(name), known=", ".join(SCHEDULES),
            )
        )  # fmt: skip
    if min(p, m, 1 if v is None else v) < 1:
        raise UsageError(
            Message("a pipeline has at least one stage, one micro-batch and one chunk")
        )
    chunks, maker = SCHEDULES[spelling]
    if spelling in ANY_CHUNKS:
        chunks = v or chunks
    elif v not in (None, chunks):
        raise UsageError(
            Message(
                "{schedule} has {chunks} chunk(s) of a stage on each device, not {given}",
                schedule=spelling, chunks=chunks, given=v,
            )
        )  # fmt: skip
    if p * m * chunks > _MOST_PASSES:
        raise UsageError(
            Message(
                "{stages} x {batches} x {chunks} passes are too many: {most} at most",
                stages=p, batches=m, chunks=chunks, most=f"{_MOST_PASSES:,}",
            )
        )  # fmt: skip
    refuse_sizes(spelling, p, m, chunks)
    words, routes, share = maker(p, m, chunks)
    return Schedule(spelling, tuple(_number_words(one, m) for one in words), routes, share)


def refuse_sizes(name: str, p: int, m: int, v: int) -> None:
    """Raises UsageError where the schedule of that name cannot have p stages, m micro-batches and v
    chunks on each device."""
    if (name == "interleaved" or (name == "fb-overlap" and v > 1)) and m % p:
        raise UsageError(
            Message(
                "{schedule} takes as many micro-batches at a time as there are stages: {batches}"
                " are no multiple of {stages}",
                schedule=name,
                batches=m,
                stages=p,
            )
        )
    if name == "dualpipe" and (p % 2 or m % 2 or m < 2 * p):
        raise UsageError(
            Message(
                "dualpipe needs even stages and micro-batches, and 2 for each stage: not {stages}"
                " and {batches}",
                stages=p,
                batches=m,
            )
        )
    if name == "dualpipev" and m < 2 * p:
        raise UsageError(
            Message(
                "dualpipev needs two micro-batches for each stage: {needed}, not {given}",
                needed=2 * p, given=m,
            )
        )  # fmt: skip


# Words by device, routes, share: as of Schedule.
Draft = tuple[list[list[Word]], tuple[tuple[tuple[int, int], ...], ...], Fraction]
_MOST_PASSES = 1_000_000
_F: Word = (("F", 0),)
_F1: Word = (("F", 1),)
_W: Word = (("W", None),)


def _backward(chunk: int = 0, *, keeps_weights: bool = False) -> Word:
    return (("B" if keeps_weights else "BW", chunk),)


def _beside(forward: int, backward: int) -> Word:
    return (("F", forward), ("BW", backward))


def _number_words(words: Iterable[Word], m: int) -> tuple[tuple[Pass, ...], ...]:
    """Words with the micro-batch that each is of: in turns, those beyond the last left out."""
    counts: dict[tuple[str, int], int] = {}
    waiting: list[Pass] = []
    order = []
    for word in words:
        entry = []
        for kind, chunk in word:
            if kind == "W":
                place = next(i for i, one in enumerate(waiting) if chunk in (None, one.chunk))
                entry.append(waiting.pop(place))
                continue
            assert chunk is not None
            key = ("F" if kind == "F" else "B", chunk)
            number = counts[key] = counts.get(key, -1) + 1
            entry.append(Pass(kind, chunk, number))
            if kind == "B":
                waiting.append(Pass("W", chunk, number))
        entries = tuple(one for one in entry if one.micro_batch < m)
        order += [entries] if entries else []
    return tuple(order)


def _line(p: int) -> tuple[tuple[int, int], ...]:
    return tuple((device, 0) for device in range(p))


def _fold(p: int) -> tuple[tuple[int, int], ...]:
    """Down over the first chunks, back over the second ones: a V."""
    return (*_line(p), *((device, 1) for device in reversed(range(p))))


def _gpipe(p: int, m: int, _: int) -> Draft:
    """All forwards, then all backwards."""
    return [[_F] * m + [_backward()] * m for _ in range(p)], (_line(p),), Fraction(1)


def _one_forward_one_backward(p: int, m: int, _: int) -> Draft:
    """Forwards until the pipeline is full, then one forward and one backward in turns."""
    words = []
    for device in range(p):
        ahead = min(p - device - 1, m)
        words.append([_F] * ahead + [_F, _backward()] * (m - ahead) + [_backward()] * ahead)
    return words, (_line(p),), Fraction(1)


def _interleave(p: int, m: int, v: int) -> Draft:
    """1F1B over v chunks of each device: p micro-batches pass one chunk, then the next one."""
    forward, backward = _turns(p, m, v)
    words = []
    for device in range(p):
        ahead = min((p - device - 1) * 2 + (v - 1) * p, m * v)
        steady = [word for pair in zip(forward[ahead:], backward, strict=False) for word in pair]
        words.append(forward[:ahead] + steady + backward[m * v - ahead :])
    return words, _rings(p, v), Fraction(1, v)


def _turns(p: int, m: int, v: int) -> tuple[list[Word], list[Word]]:
    """Forwards and backwards of a device: p micro-batches pass one chunk, then the next one."""
    turns = [chunk for _ in range(-(-m // p)) for chunk in range(v) for _ in range(p)][: m * v]
    return [(("F", chunk),) for chunk in turns], [_backward(v - 1 - chunk) for chunk in turns]


def _rings(p: int, v: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """All devices over their first chunks, then over their second ones, and so on."""
    return (tuple((device, chunk) for chunk in range(v) for device in range(p)),)


def _overlap(p: int, m: int, v: int) -> Draft:
    """Interleaved with one more forward ahead, so that the forward of one micro-batch runs beside
    the backward of another (MindSpeed's moe-fb-overlap); one chunk needs twice 1F1B's forwards."""
    forward, backward = _turns(p, m, v)
    words = []
    for device in range(p):
        ahead = min((p - device - 1) * 2 + (v - 1) * p + 1, m * v)
        steady = [one + other for one, other in zip(forward[ahead:], backward, strict=False)]
        words.append(forward[:ahead] + steady + backward[m * v - ahead :])
    return words, _rings(p, v), Fraction(1, v)


def _zero_bubble(p: int, m: int, more: int) -> Draft:
    """1F1B whose weight gradients wait. H1 (more 1): stage k keeps k of them back, so that each
    holds what the first one of 1F1B holds. H2 (more 2): twice as many forwards ahead, twice as
    many weight gradients kept."""
    words = []
    for device in range(p):
        ahead = min(more * (p - device - 1), m)
        order = [_F] * ahead
        for one in range(m):
            order += [_F] if ahead + one < m else []
            order += [_backward(keeps_weights=True)] + [_W] * (one >= more * device)
        words.append(order + [_W] * min(more * device, m))
    return words, (_line(p),), Fraction(1)


def _zb_v(p: int, m: int, _: int) -> Draft:
    """Two chunks on a V, the last part of the model beside the first: the activations of 1F1B."""
    total = max(m, 2 * p - 1)
    both: list[list[Word]] = [
        [_backward(chunk, keeps_weights=True), (("W", chunk),)] for chunk in (0, 1)
    ]
    words = []
    for device in range(p):
        ahead = 2 * (p - device) - 1 + device
        order = [_F] * (2 * (p - device) - 1) + [_F1, _F] * device
        order += [_F1, *both[1]] * (p - device)
        for one in range(total - (p - device) - device):
            order += ([_F] if ahead + one < total else []) + both[0] + [_F1] + both[1]
        order += [_backward(0, keeps_weights=True), _backward(1, keeps_weights=True)] * device
        order += both[0] * (p - device)
        words.append(order + [(("W", 1),)] * device + [(("W", 0),)] * device)
    return words, (_fold(p),), Fraction(1, 2)


def _against(ranks: int, rank: int, rounds: int, *, is_middle: bool) -> list[Word]:
    """What a device runs of two chunks that meet on it, chunk 0 the further from its end.

    ranks: devices from the outermost to the one where the ends meet; rank: this one of them;
    rounds: of one forward and one backward of either chunk, beside each other.
    """
    apart = ranks - rank - 1
    keep = {"keeps_weights": True}
    words = [_F] * (2 * apart) + [_F, _F1] * (rank + 1)
    words += [_backward(1, **keep), _W, _F1] * apart
    for one in range(rounds):
        first = [_F, _backward(1)] if one == 0 and is_middle else [_beside(0, 1)]
        words += [*first, _beside(1, 0)]
    words += [_backward(1), _beside(1, 0)] * apart
    # From the middle of what drains, weight gradients wait for the gaps that follow.
    drain = [_backward(chunk) for _ in range(rank + 1) for chunk in (1, 0)]
    count = rank + 1
    words += drain[:-count] + [(("B", word[0][1]),) for word in drain[len(drain) - count :]]
    return words + [_W, _backward(0, **keep)] * apart + [_W] * count


def _dualpipe(p: int, m: int, _: int) -> Draft:
    """Two copies of the model, one against the other; half of the micro-batches enter at either
    end."""
    half = p // 2
    words = []
    for device in range(p):
        rank = min(device, p - 1 - device)
        own = _against(half, rank, m // 2 - p + rank + 1, is_middle=rank == half - 1)
        swap = {0: 1, 1: 0, None: None} if device >= half else {0: 0, 1: 1, None: None}
        words.append([tuple((kind, swap[chunk]) for kind, chunk in word) for word in own])
    back = tuple((device, 1) for device in reversed(range(p)))
    return words, (_line(p), back), Fraction(1)


def _dualpipe_v(p: int, m: int, _: int) -> Draft:
    """DualPipe's outer half alone: a V, one copy of the model in two chunks on each device."""
    words = [
        _against(p, device, m - 2 * p + device + 1, is_middle=device == p - 1)
        for device in range(p)
    ]
    return words, (_fold(p),), Fraction(1, 2)


# Name -> how many chunks a device has, and what makes it of p, m and these.
SCHEDULES: dict[str, tuple[int, Callable[[int, int, int], Draft]]] = {
    "gpipe": (1, _gpipe),
    "1f1b": (1, _one_forward_one_backward),
    "interleaved": (2, _interleave),
    "zb-h1": (1, _zero_bubble),
    "zb-h2": (1, lambda p, m, _: _zero_bubble(p, m, 2)),
    "zb-v": (2, _zb_v),
    "dualpipe": (2, _dualpipe),
    "dualpipev": (2, _dualpipe_v),
    "fb-overlap": (1, _overlap),
}
_ALIASES = {"vpp": "interleaved"}
ANY_CHUNKS = ("interleaved", "fb-overlap")
