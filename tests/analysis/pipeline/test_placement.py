"""Layers over places, against every possible cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.pipeline.placement import place_layers, settle_cuts


def every_cut(count: int, places: int) -> list[tuple[int, ...]]:
    inner = combinations(range(1, count), places - 1)
    return [tuple(b - a for a, b in pairwise((0, *at, count))) for at in inner]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], int, list[list[int]], list[int]]:
    count = draw(st.integers(1, 9))
    places = draw(st.integers(1, 5))
    small = st.integers(0, 9)
    row = st.lists(small, min_size=count, max_size=count)
    times = draw(st.lists(row, min_size=places, max_size=places))
    needed = draw(st.lists(row, min_size=places, max_size=places))
    limits = draw(st.lists(st.integers(3, 30), min_size=places, max_size=places))
    return times, places, needed, limits


@given(cases())
@settings(max_examples=300)
def test_no_cut_that_fits_is_better(
    case: tuple[list[list[int]], int, list[list[int]], list[int]],
) -> None:
    times, places, needed, limits = case
    found = place_layers(np.array(times), places, needed, limits)
    costs = {}
    for cut in every_cut(len(times[0]), places) if places <= len(times[0]) else []:
        at = [sum(cut[:k]) for k in range(places + 1)]
        sums = [sum(times[k][a:b]) for k, (a, b) in enumerate(pairwise(at))]
        sizes = [sum(needed[k][a:b]) for k, (a, b) in enumerate(pairwise(at))]
        if all(size <= limit for size, limit in zip(sizes, limits, strict=True)):
            costs[cut] = (max(sums), sum(one**2 for one in sums))
    if not costs:
        assert found is None
        return
    assert found is not None
    assert costs[tuple(found)] == min(costs.values())
    # From there to what is longest last, as far as one layer at a time makes that shorter.
    lengths = {cut: sum(k * (count - times[k][0]) ** 2 for k, count in enumerate(cut))
               for cut in costs}  # fmt: skip
    other = every_cut(len(times[0]), places)[0]
    best = settle_cuts([tuple(found), other], lengths.__getitem__, 10**6, needed, limits)
    near = [cut for cut in lengths if sum(abs(a - b) for a, b in zip(cut, best, strict=True)) == 2]
    assert lengths[best] <= min(lengths[cut] for cut in (tuple(found), *near))
    assert settle_cuts([tuple(found)], lengths.__getitem__, 1, needed, limits) == tuple(found)


def test_61_layers_a_head_and_mtp_become_64_units() -> None:
    """The last of 16 stages gets fewer layers, as the head and MTP take three."""
    assert place_layers([1.0] * 60 + [1.0 + 3.0], 16) == [4] * 15 + [1]
