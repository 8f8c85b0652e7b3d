"""What a pipeline would take under another order of its passes.

measured passes --> parts of the model (layers, embedding, head) --> places of the other order
--> its passes, executed with the gaps and lags that were measured
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ..execution import Precedence, Span, Times, held_at_most, precedence
from ..measurement import MeasuredPasses
from ..schedules import Schedule
from .gradients import Creation, GradientReductions, creation, makes_weights_apart

_WEIGHT_UNSURE = 0.25  # of the time of weight gradients, where they were not measured apart
_SLOW_UNSURE = 0.25  # of what slow ranks make: it is told of all their layers, not of each
_SHARES = 21  # executions with none to all of what pairs save


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model that is not cut: shares of the passes of the measured place it is in.

    forward_pause, backward_pause: between it and the next part, where that is on the same place.
    Where the model is cut, what these wait for is in what lies between passes.
    """

    place: int
    forward: float
    backward: float
    is_layer: bool = True
    forward_pause: float = 0.0
    backward_pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a capture tells beside its passes; None: it does not tell.

    parts: of the model, in order. weight_share: of a backward by measured place, what makes
    gradients of weights. pair_ratio: of a forward and a backward beside each other, over both
    alone; pair_least: at best. kept_bytes: by measured place, of a micro-batch from its forward to
    its backward. reduced: gradients, by the measured columns. slow_share: of forwards and backwards
    x devices x columns, what slow ranks and links of a device make of it, whichever layers it has;
    slow_least: at least.
    """

    parts: tuple[Part, ...] | None = None
    weight_share: tuple[float, ...] | None = None
    pair_ratio: float | None = None
    pair_least: float | None = None
    kept_bytes: tuple[float, ...] | None = None
    reduced: GradientReductions | None = None
    slow_share: Times | None = None
    slow_least: Times | None = None


@dataclass(frozen=True, slots=True)
class ExecutedOrder:
    """An order executed with measured times: by entry and column.

    layers: of each place; None: as measured, or as even as can be. behind_ns: by column what
    reducing gradients takes longer behind the last pass than it did. low_ns, high_ns: lengths by
    column with that, with what is not sure at its ends.
    """

    graph: Precedence
    layers: tuple[int, ...] | None
    starts_ns: Times
    durations_ns: Times
    lengths_ns: Times
    behind_ns: Times
    low_ns: Times
    high_ns: Times

    def spans(self) -> list[list[Span]]:
        """Its entries by device, means over columns."""
        spans: list[list[Span]] = [[] for _ in self.graph.schedule.orders]
        starts = self.starts_ns.mean(axis=1)
        ends = starts + self.durations_ns.mean(axis=1)
        times = zip(self.graph.entries, starts.tolist(), ends.tolist(), strict=True)
        for (device, entry), start_ns, end_ns in times:
            spans[device].append(Span(device, entry, start_ns, end_ns))
        return spans

    def bubbles_ns(self) -> Times:
        """By device what it does not work from the first start of any device to the last end."""
        devices = [device for device, _ in self.graph.entries]
        work = np.zeros((len(self.graph.schedule.orders), self.durations_ns.shape[1]))
        np.add.at(work, devices, self.durations_ns)
        bubbles_ns: Times = (self.lengths_ns - work).mean(axis=1)
        return bubbles_ns


def split(passes: MeasuredPasses, facts: Facts, places: int,
          layers: Sequence[int] | None = None) -> NDArray[np.float64]:  # fmt: skip
    """Which share of each measured place's passes each place of another cut of the model has:
    forward and backward x places x measured places.

    layers: how many layers each place gets; else as measured where there are as many places, else
    as even as can be. What is no layer stays at its end of the model.
    """
    if layers is None and places == passes.places:
        return np.stack([np.eye(places)] * 2)
    parts = facts.parts or _even_parts(passes.places, places)
    layers = _layers(parts, places, layers)
    place_of = np.repeat(np.arange(places), layers)
    result = np.zeros((2, places, passes.places))
    ats: list[int] = []
    count = 0
    for part in parts:
        ats.append(
            int(place_of[min(count, len(place_of) - 1) if part.is_layer else max(count - 1, 0)])
        )
        result[:, ats[-1], part.place] += (part.forward, part.backward)
        count += part.is_layer
    for at, then, part in zip(ats, ats[1:], parts, strict=False):
        if at == then:
            result[:, at, part.place] += (part.forward_pause, part.backward_pause)
    return result


def _layers(parts: Sequence[Part], places: int, layers: Sequence[int] | None) -> Sequence[int]:
    """How many layers each place gets, as even as can be where that is not said."""
    count = sum(part.is_layer for part in parts)
    if layers is None:
        each, more = divmod(count, places)
        layers = [each + (place < more) for place in range(places)]
    if sum(layers) != count or min(layers) < 1:
        raise CannotAnswer(
            Message(
                "{chunks} chunks need as many layers, and {layers} were told apart: choose fewer"
                " chunks",
                chunks=places, layers=count,
            )
        )  # fmt: skip
    return layers


def layer_ratios(
    passes: MeasuredPasses, facts: Facts, schedule: Schedule, layers: Sequence[int] | None
) -> Times:
    """By device how many layers it has under an order for each that it had; 1 where that is
    unknown."""
    ran, then = passes.graph.schedule.routes[0], schedule.routes[0]
    count = np.zeros((2, passes.devices))
    if facts.parts is None or (layers is None and len(ran) == len(then)):
        return np.ones(passes.devices)
    for part in facts.parts:
        count[0, ran[part.place][0]] += part.is_layer
    for (device, _), its in zip(then, _layers(facts.parts, len(then), layers), strict=True):
        count[1, device] += its
    ratios: Times = count[1] / count[0]
    return ratios


def _even_parts(from_places: int, places: int) -> tuple[Part, ...]:
    """Where no layers are told apart: each place's passes in equal parts."""
    each = int(np.lcm(from_places, places)) // from_places
    return tuple(
        Part(place, 1 / each, 1 / each) for place in range(from_places) for _ in range(each)
    )


def durations(
    passes: MeasuredPasses,
    facts: Facts,
    graph: Precedence,
    layers: Sequence[int] | None = None,
    *,
    weight_factor: float = 1.0,
    pair_ratio: float | None = None,
    slow_share: Times | None = None,
) -> Times:
    """How long the entries of an order take, by entry and column. Raises CannotAnswer where a kind
    of pass is unknown."""
    schedule = graph.schedule
    shares = split(passes, facts, len(schedule.routes[0]), layers)
    times = _kinds(passes, facts, schedule, weight_factor)
    slow = facts.slow_share if slow_share is None else slow_share
    usual = {kind: np.einsum("kj,jmc->kmc", shares[int(kind != "F")],
                             _of_work(passes, kind, _fill_unknown(one), slow))
             for kind, one in times.items()}  # fmt: skip
    position = schedule.positions()
    routes = len(schedule.routes)
    count = routes * (1 + max(one.micro_batch for _, entry in graph.entries for one in entry))
    number = _repeat_micro_batches(count, passes.micro_batches)
    result = np.zeros((len(graph.entries), passes.starts_ns.shape[1]))
    first: dict[str, tuple[list[int], list[int], list[int]]] = {}
    second: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for at, (device, entry) in enumerate(graph.entries):
        for nth, one in enumerate(entry):
            route, place = position[device, one.chunk]
            ats, places_, numbers = (second if nth else first).setdefault(one.kind, ([], [], []))
            ats.append(at)
            places_.append(place)
            numbers.append(int(number[one.micro_batch * routes + route]))
    for lists in (first, second):
        for kind, (ats, places_, numbers) in lists.items():
            its = usual[kind][places_, numbers]
            if slow is not None:
                its /= 1 - slow[int(kind != "F"), [graph.entries[at][0] for at in ats]]
            result[ats] += its
    if pair_ratio is not None:
        pairs = [at for at, (_, entry) in enumerate(graph.entries) if len(entry) > 1]
        result[pairs] *= pair_ratio
    return result


def _of_work(passes: MeasuredPasses, kind: str, times: Times, slow: Times | None) -> Times:
    """Times of passes without what slow ranks make of them."""
    if slow is None:
        return times
    routes = passes.graph.schedule.routes
    devices = np.array([[device for device, _ in route] for route in routes]).T
    # Copies of the model take turns with micro-batches.
    of_batch = devices[:, np.arange(times.shape[1]) % len(routes)]
    times_ns: Times = times * (1 - slow[int(kind != "F")][of_batch])
    return times_ns


def _repeat_micro_batches(count: int, recorded_count: int) -> NDArray[np.int64]:
    """Which measured micro-batch each one repeats. The first and the last, in which a step begins
    and gradients are reduced, stay these; those between repeat measured ones between, or the first
    where there are none: what is reduced beside the last is reduced once. Raises CannotAnswer for
    more than one where one was measured, whose passes hold what a step does once."""
    if recorded_count == 1 < count:
        raise CannotAnswer(
            Message(
                "one micro-batch was recorded, so what a step does once is not told from what each"
                " micro-batch does: record steps of two or more"
            )
        )
    between = max(recorded_count - 2, 1)
    sources = np.minimum(1 + (np.arange(count) - 1) % between, max(recorded_count - 2, 0))
    sources[0], sources[-1] = 0, recorded_count - 1
    return sources


def _kinds(
    passes: MeasuredPasses, facts: Facts, schedule: Schedule, weight_factor: float
) -> dict[str, Times]:
    """Times of the kinds of passes that an order has."""
    kinds: set[str] = {one.kind for order in schedule.orders for entry in order for one in entry}
    times = {kind: one for kind, one in passes.alone_ns.items() if kind in kinds}
    missing = kinds - set(times)
    if not missing:
        return times
    if facts.weight_share is None:
        raise CannotAnswer(
            Message(
                "{name}: what gradients of weights take is not known here: record shapes or types"
                " of kernels (`npuscope doctor`)",
                name=schedule.name,
            )
        )
    whole = passes.alone_ns["BW"]
    share = np.array(facts.weight_share)[:, None, None] * weight_factor
    share = np.clip(share, 0.0, 0.95)
    durations = {"B": whole * (1 - share), "W": whole * share, "BW": whole}
    return times | {kind: durations[kind] for kind in missing}


def _fill_unknown(times: Times) -> Times:
    """Passes that are unknown as those of the place usually."""
    is_measured = ~np.isnan(times)
    if is_measured.all():
        return times
    if not is_measured.any():
        return np.zeros_like(times)
    means = np.array([one[~np.isnan(one)].mean() if (~np.isnan(one)).any() else np.nan
                      for one in times])  # fmt: skip
    means = np.where(np.isnan(means), np.nanmean(means), means)
    return np.where(is_measured, times, means[:, None, None])


def run(passes: MeasuredPasses, facts: Facts, schedule: Schedule,
        layers: tuple[int, ...] | None = None) -> ExecutedOrder:  # fmt: skip
    """An order executed with measured times, that which ran with those of its own entries. Raises
    CannotAnswer, and UsageError where devices would wait for each other."""
    if len(schedule.orders) != passes.devices:
        raise CannotAnswer(
            Message(
                "{name} is for {count} devices, and the pipeline has {devices}",
                name=schedule.name, count=len(schedule.orders), devices=passes.devices,
            )
        )  # fmt: skip
    graph = precedence(schedule)
    has_pairs = any(len(entry) > 1 for _, entry in graph.entries)
    ratio = passes.pair_ratio if passes.pair_ratio is not None else facts.pair_ratio
    ratio = (1.0 if ratio is None else min(ratio, 1.0)) if has_pairs else None
    if schedule is passes.graph.schedule and layers is None:
        usual = passes.ends_ns - passes.starts_ns
        starts, lengths = passes.lengths(graph, usual)
        nothing = np.zeros_like(lengths)
        return ExecutedOrder(graph, layers, starts, usual, lengths, nothing, lengths, lengths)
    usual = durations(passes, facts, graph, layers, pair_ratio=ratio)
    starts, lengths = passes.lengths(graph, usual)
    others = [lengths]
    if not set(graph.links) <= set(passes.graph.links):
        others.append(passes.lengths(graph, usual, 1.0)[1])
    if makes_weights_apart(schedule) and "W" not in passes.alone_ns:
        for factor in (1 - _WEIGHT_UNSURE, 1 + _WEIGHT_UNSURE):
            times = durations(passes, facts, graph, layers, weight_factor=factor, pair_ratio=ratio)
            others.append(passes.lengths(graph, times)[1])
    if facts.pair_least is not None and has_pairs and passes.pair_ratio is None:
        for end in (facts.pair_least, 1.0):
            times = durations(passes, facts, graph, layers, pair_ratio=end)
            others.append(passes.lengths(graph, times)[1])
    for share, factor in (
        (facts.slow_least, 1 - _SLOW_UNSURE),
        (facts.slow_share, 1 + _SLOW_UNSURE),
    ):
        if share is not None:
            longer = factor * share / (1 - share)  # than without slow ranks
            slow = longer / (1 + longer)
            times = durations(passes, facts, graph, layers, pair_ratio=ratio, slow_share=slow)
            others.append(passes.lengths(graph, times)[1])
    ratios = layer_ratios(passes, facts, schedule, layers)
    behind, least, most = _behind(passes, facts, graph, starts, usual, ratios)
    return ExecutedOrder(
        graph, layers, starts, usual, lengths, behind,
        np.min(others, axis=0) + least, np.max(others, axis=0) + most,
    )  # fmt: skip


def _behind(
    passes: MeasuredPasses,
    facts: Facts,
    graph: Precedence,
    starts_ns: Times,
    durations_ns: Times,
    layer_ratio: Times,
) -> tuple[Times, Times, Times]:
    """By column what reducing gradients takes longer behind the last pass than it did, at least and
    at most: whenever in the passes that make gradients they are ready. Nothing where these passes
    are as they were."""
    ran = passes.graph
    is_alike = makes_weights_apart(graph.schedule) == makes_weights_apart(ran.schedule)
    more_places = len(graph.schedule.routes[0]) - len(ran.schedule.routes[0])
    are_moved = bool((layer_ratio != 1).any())
    reduced = facts.reduced
    if reduced is None or (is_alike and not more_places and not are_moved):
        nothing = np.zeros(starts_ns.shape[1])
        return nothing, nothing, nothing
    before = creation(ran, passes.starts_ns, passes.ends_ns - passes.starts_ns)
    after = creation(graph, starts_ns, durations_ns)

    def length(its: GradientReductions, by: Creation, ready: float | None = None) -> Times:
        length_ns: Times = (by.end_ns + its.behind(by, ready)).max(axis=0) - by.end_ns.max(axis=0)
        return length_ns

    was = length(reduced, before)

    def longer(its: GradientReductions, ready: float | None = None) -> Times:
        return length(its, after, ready) - was

    its = reduced.shift(layer_ratio)
    usual = longer(its)
    others = [usual]
    if are_moved:  # what comes or goes may have been hidden, or not
        others += [longer(reduced.shift(layer_ratio, at)) for at in (0, -1)]
    if not is_alike or more_places > 0:
        # Between backwards of several chunks are others: what the first ones make is ready earlier
        # in the time from the first to the last, and later where there are fewer.
        others.append(longer(its, 0.0))
    if not is_alike or more_places < 0:
        others.append(longer(its, 1.0))
    return usual, np.min(others, axis=0), np.max(others, axis=0)


def needed_overlap(
    passes: MeasuredPasses, facts: Facts, variant: ExecutedOrder, length_ns: float
) -> float | None:
    """Which share of the shorter of two passes beside each other has to be hidden for the order to
    take no longer than `length_ns` (a mean over columns); None: no passes are beside each other, or
    hiding all of it is not enough."""
    graph = variant.graph
    pairs = [at for at, (_, entry) in enumerate(graph.entries) if len(entry) > 1]
    if not pairs:
        return None
    times = durations(passes, facts, graph)
    saved = _shorter(passes, facts, graph)[pairs] / (_SHARES - 1)
    shares = np.linspace(0, 1, _SHARES)
    lengths = np.zeros(_SHARES)
    for at in range(_SHARES):
        lengths[at] = passes.lengths(graph, times)[1].mean()
        times[pairs] -= saved
    enough = np.flatnonzero(lengths <= length_ns)
    if not len(enough):
        return None
    first = int(enough[0])
    if first == 0:
        return 0.0
    above, below = lengths[first - 1], lengths[first]
    return float(shares[first] - (length_ns - below) / (above - below) * (shares[1]))


def _shorter(passes: MeasuredPasses, facts: Facts, graph: Precedence) -> Times:
    """Of each entry the shorter of its two passes."""
    halves = []
    for which in (0, 1):
        entries = tuple(
            (device, entry[which : which + 1] or entry) for device, entry in graph.entries
        )
        halves.append(durations(passes, facts, replace(graph, entries=entries)))
    shortest: Times = np.minimum(halves[0], halves[1])
    return shortest


def held_micro_batches(
    passes: MeasuredPasses, facts: Facts, variant: ExecutedOrder
) -> tuple[list[float], list[float | None]]:
    """By device: micro-batches of a stage held at most, and their bytes (None: unknown)."""
    schedule, its = variant.graph.schedule, variant.spans()
    count = [float(schedule.share * held_at_most(one, {})) for one in its]
    if facts.kept_bytes is None:
        return count, [None] * len(its)
    shares = split(passes, facts, len(schedule.routes[0]), variant.layers)[0]
    bytes_here = shares / shares.sum(axis=0) @ facts.kept_bytes  # nothing is kept of pauses
    sizes: list[dict[int, float]] = [{} for _ in its]
    for route in schedule.routes:
        for place, (device, chunk) in enumerate(route):
            sizes[device][chunk] = float(bytes_here[place])
    return count, [float(held_at_most(one, sizes[device])) for device, one in enumerate(its)]
