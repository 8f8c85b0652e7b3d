"""Orders tried with measured times, against running them with the times these were measured of."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.pipeline.execution import Entry
from npuscope.analysis.pipeline.measurement import MeasuredPasses, measure_passes
from npuscope.analysis.pipeline.orders.other_orders import (
    Facts,
    Part,
    held_micro_batches,
    needed_overlap,
    run,
)
from npuscope.analysis.pipeline.schedules import Schedule, schedule
from npuscope.errors import CannotAnswer, UsageError
from tests.analysis.pipeline.pipeline_frames import ran

P, M, LAYERS = 4, 16, 4
F, B, W = 3e6, 3.4e6, 2.6e6
EMBEDDING, HEAD, PAIR = 0.1, 0.25, 0.8  # of a stage; of both passes alone
OTHERS = [
    ("1f1b", None, 32), ("gpipe", None, 16), ("vpp", 2, 16), ("vpp", 4, 32), ("zb-h1", None, 16),
    ("zb-v", None, 16), ("dualpipev", None, 16), ("dualpipe", None, 16),
]  # fmt: skip


def times_of(chosen: Schedule) -> Callable[[int, Entry], float]:
    position = {place: at for route in chosen.routes for at, place in enumerate(route)}
    places = len(chosen.routes[0])
    kinds = {"F": F, "B": B, "W": W, "BW": B + W}

    def duration_ns(device: int, entry: Entry) -> float:
        total = 0.0
        for one in entry:
            at = position[device, one.chunk]
            size = P / places + EMBEDDING * (at == 0) + HEAD * (at == places - 1)
            total += size * kinds[one.kind]
        return total * (PAIR if len(entry) > 1 else 1.0)

    return duration_ns


def job(chosen: Schedule, noise: float = 0.0, seed: int = 1) -> pl.DataFrame:
    return ran(chosen, times_of(chosen), gap_ns=2e4, lag_ns=1.5e5, noise=noise, replicas=3,
               steps=4, seed=seed)  # fmt: skip


def facts() -> Facts:
    sizes = [1 + EMBEDDING, 1.0, 1.0, 1 + HEAD]
    parts = [Part(0, EMBEDDING / sizes[0], EMBEDDING / sizes[0], is_layer=False)]
    for place, size in enumerate(sizes):
        parts += [Part(place, 1 / LAYERS / size, 1 / LAYERS / size)] * LAYERS
    parts.append(Part(P - 1, HEAD / sizes[-1], HEAD / sizes[-1], is_layer=False))
    return Facts(tuple(parts), (W / (B + W),) * P, PAIR, None, (10.0, 20.0, 30.0, 40.0))


def length_ns(found: MeasuredPasses) -> float:
    return float((found.ends_ns.max(axis=0) - found.starts_ns.min(axis=0)).mean())


def test_the_order_that_ran_takes_what_it_took() -> None:
    base = schedule("1f1b", P, M)
    found = measure_passes(job(base), base)
    assert run(found, facts(), base).lengths_ns.mean() == pytest.approx(length_ns(found), rel=1e-9)
    columns = len(found.steps)
    assert found.lags_ns == pytest.approx(np.full((6, columns), 1.5e5))
    assert found.gaps_ns == pytest.approx(np.full((P, columns), 2e4))
    # With such lags every backward waits for the one that it needs: no gap tells of that.
    expected = [[2e4 if source < target else nan] * columns for source, target in found.graph.links]
    assert found.receive_gaps_ns == pytest.approx(np.array(expected), nan_ok=True)


@pytest.mark.parametrize(("name", "v", "m"), OTHERS)
def test_other_orders_take_what_they_take(name: str, v: int | None, m: int) -> None:
    base, other = schedule("1f1b", P, M), schedule(name, P, m, v)

    def queues(one: Schedule) -> MeasuredPasses:
        """1F1B sends, then receives."""
        made = ran(one, times_of(one), gap_ns=2e4, queued_gap_ns=9e5, lag_ns=1.5e5)
        return measure_passes(made, one)

    found, truth = queues(base), length_ns(queues(other))
    assert run(found, facts(), other).lengths_ns.mean() == pytest.approx(truth, rel=1e-6)
    for noise, within in ((0.0, 1e-6), (0.03, 0.015)):
        tried = run(measure_passes(job(base, noise), base), facts(), other)
        truth = length_ns(measure_passes(job(other, noise, seed=77), other))
        assert tried.lengths_ns.mean() == pytest.approx(truth, rel=within)
        assert tried.low_ns.mean() <= truth * (1 + within)
        assert truth <= tried.high_ns.mean() * (1 + within)


def test_orders_are_taken_back_to_1f1b_from_what_ran_beside_each_other() -> None:
    base, other = schedule("dualpipev", P, M), schedule("1f1b", P, M)
    found = measure_passes(job(base), base)
    assert found.pair_ratio == pytest.approx(PAIR, rel=0.02)
    halves = Facts(tuple(Part(place, 1.0, 1.0) for place in range(2 * P)))
    tried = run(found, halves, other)
    truth = length_ns(measure_passes(job(other), other))
    assert tried.lengths_ns.mean() == pytest.approx(truth, rel=0.015)


def test_memory_held_by_micro_batches_and_their_bytes() -> None:
    base = schedule("1f1b", P, M)
    found = measure_passes(job(base), base)
    assert held_micro_batches(found, facts(), run(found, facts(), base)) == (
        [4, 3, 2, 1],
        [40, 60, 60, 40],
    )
    tried = run(found, facts(), schedule("gpipe", P, M))
    assert held_micro_batches(found, facts(), tried) == ([M] * P, [160, 320, 480, 640])
    assert held_micro_batches(found, Facts(), tried)[1] == [None] * P


def test_so_much_overlap_is_needed() -> None:
    base, other = schedule("1f1b", P, M), schedule("dualpipev", P, M)
    found = measure_passes(job(base), base)
    tried = run(found, facts(), other)
    slower = float(run(found, Facts(facts().parts, facts().weight_share), other).lengths_ns.mean())
    assert needed_overlap(found, facts(), tried, slower) == pytest.approx(0.0, abs=1e-6)
    needed = needed_overlap(found, facts(), tried, float(tried.lengths_ns.mean()))
    # Of F + B + W a fifth is hidden: of F, the shorter of the two.
    assert needed == pytest.approx((1 - PAIR) * (F + B + W) / F, rel=0.05)
    assert needed_overlap(found, facts(), tried, 1.0) is None
    assert needed_overlap(found, facts(), run(found, facts(), base), 1e12) is None


def test_layers_of_places_can_be_chosen() -> None:
    base = schedule("1f1b", P, M)
    found = measure_passes(job(base), base)
    even, uneven = (run(found, facts(), base, one).lengths_ns.mean()
                    for one in ((4, 4, 4, 4), (4, 4, 5, 3)))  # fmt: skip
    assert even == pytest.approx(length_ns(found))
    assert uneven == pytest.approx(even, rel=0.05) and uneven != even


def test_what_cannot_be_told_is_refused() -> None:
    base = schedule("1f1b", P, M)
    frame = job(base)
    found = measure_passes(frame, base)
    with pytest.raises(CannotAnswer, match="gradients of weights"):
        run(found, Facts(), schedule("zb-h1", P, M))
    with pytest.raises(CannotAnswer, match="32 chunks need as many layers, and 16"):
        run(found, facts(), schedule("vpp", P, M, 8))
    with pytest.raises(CannotAnswer, match="for 8 devices, and the pipeline has 4"):
        run(found, facts(), schedule("1f1b", 8, M))
    with pytest.raises(CannotAnswer, match="no pass of stage 2"):
        measure_passes(frame.filter(pl.col("stage") != 2), base)
    with pytest.raises(CannotAnswer, match="0 of 12 pipelines and steps"):
        measure_passes(frame.filter(~((pl.col("stage") == 1) & (pl.col("micro_batch") == 3))), base)
    with pytest.raises(UsageError, match="no multiple"):
        schedule("vpp", P, 6, 2)


@pytest.mark.parametrize("known", [2, 3])
def test_further_micro_batches_repeat_none_that_is_the_last(known: int) -> None:
    """In the last one gradients are reduced beside the backward, once in a step."""

    def jobs(m: int) -> tuple[MeasuredPasses, Schedule]:
        chosen = schedule("1f1b", 2, m)

        def duration_ns(_: int, entry: Entry) -> float:
            [one] = entry
            return F if one.kind == "F" else (B + W) * (1.5 if one.micro_batch == m - 1 else 1)

        return measure_passes(ran(chosen, duration_ns, gap_ns=2e4, lag_ns=1.5e5), chosen), chosen

    tried = run(jobs(known)[0], Facts(), schedule("1f1b", 2, 9))
    assert tried.lengths_ns.mean() == pytest.approx(length_ns(jobs(9)[0]), rel=1e-6)


def test_what_ranks_wait_for_others_within_a_pass_is_not_of_the_pass() -> None:
    """Replicas 0 and 1 run together: the first is earlier in every pass and waits for the other."""
    base = schedule("1f1b", 2, 4)
    frame = ran(base, lambda *_: 3e6, gap_ns=2e4, lag_ns=1.5e5, replicas=2)
    early = frame.with_columns(
        start_ns=pl.col("start_ns") - pl.when(pl.col("rank") % 2 == 0).then(1_000_000).otherwise(0)
    )
    alone = measure_passes(early, base).alone_ns["F"].mean(axis=(0, 1))
    assert alone == pytest.approx([4e6, 3e6] * 2)
    together = measure_passes(early, base, replica_of={0: 0, 1: 0, 2: 0, 3: 0})
    assert together.alone_ns["F"].mean(axis=(0, 1)) == pytest.approx([3e6] * 4)
    apart = measure_passes(early, base, replica_of={0: 0, 1: 1, 2: 0, 3: 1})
    assert apart.alone_ns["F"].mean(axis=(0, 1)) == pytest.approx([4e6, 3e6] * 2)
