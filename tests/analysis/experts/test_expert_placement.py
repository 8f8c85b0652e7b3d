"""Placements are valid, no worse than EPLB's, and their predicted times are what they say."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.experts.plan import placement as placed
from npuscope.analysis.experts.plan.eplb import eplb, pack
from npuscope.analysis.experts.plan.placement_search import Limits, improve, search
from npuscope.analysis.experts.plan.step_time import (
    TOKENS_ONLY,
    Cost,
    break_even_steps,
    is_worth,
    layer_times,
    migration_ns,
    near_share,
)
from npuscope.errors import UsageError
from tests.analysis.experts.expert_matrices import Floats, draw, real, uniform, zipf

# Compute and links of the order of a real job's; a floor that small experts stay below.
COST = Cost(1400.0, 200_000.0, 0.0, 61_440.0, 137e9, 17.5e9)


def assert_valid(
    found: placed.Placement, load: Floats, max_replicas: int | None = None, *, full: bool = False
) -> None:
    """Every expert has a slot, nobody more than allowed, and no slot an unknown expert."""
    experts = load.shape[1]
    copies = placed.replicas(found, experts)
    assert placed.EMPTY <= found.min() and found.max() < experts
    assert copies.min() >= 1
    assert max_replicas is None or copies.max() <= max_replicas
    assert placed.device_tokens(found, load).sum(axis=1) == pytest.approx(load.sum(axis=1))
    if full:
        assert (found != placed.EMPTY).all()


def assert_never_worse(load: Floats, devices: int, slots: int, nodes: int, cost: Cost) -> Floats:
    """Own search against EPLB with the same slots; times won, share of EPLB's, per layer."""
    theirs = eplb(load, devices=devices, slots=slots)
    ours = search(load, devices=devices, slots=slots, nodes=nodes, cost=cost)
    assert_valid(ours, load, full=True)
    assert placed.twins(ours).sum() <= placed.twins(theirs).sum()
    bound = placed.max_over_mean(theirs, load)
    assert (placed.max_over_mean(ours, load) <= bound * (1 + 1e-12)).all()
    before, after = (layer_times(one, load, cost, nodes) for one in (theirs, ours))
    assert (after <= before * (1 + 1e-12)).all()
    return 1 - after / before


def test_eplb_gives_its_published_example() -> None:
    """Twelve experts in four groups, 16 slots on eight devices of two nodes."""
    load = np.array([
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ], dtype=np.float64)  # fmt: skip
    published = [
        [[5, 6], [5, 7], [8, 4], [3, 4], [10, 9], [10, 2], [0, 1], [11, 1]],
        [[7, 10], [6, 8], [6, 11], [8, 9], [2, 4], [5, 1], [5, 0], [3, 1]],
    ]
    found = eplb(load, devices=8, slots=2, nodes=2, groups=4)
    for ours, theirs in zip(found.tolist(), published, strict=True):
        assert sorted(map(sorted, ours)) == sorted(map(sorted, theirs))
        nodes = [sorted(map(sorted, one)) for one in (ours[:4], ours[4:])]
        assert sorted(nodes) == sorted(sorted(map(sorted, one)) for one in (theirs[:4], theirs[4:]))


def test_packing_takes_the_heaviest_first() -> None:
    weights = np.array([[10.0, 9, 8, 1, 2, 3], [6.0, 5, 4, 3, 2, 1]])
    assert pack(weights, 2).tolist() == [[[0, 5, 4], [1, 2, 3]], [[0, 3, 4], [1, 2, 5]]]


def test_groups_stay_on_their_node() -> None:
    load = zipf(6, 32)
    for made in (eplb, search):
        found = made(load, devices=8, slots=5, nodes=4, groups=8)
        assert_valid(found, load, full=True)
        node_of: dict[tuple[int, int], set[int]] = {}
        for layer, device, slot in np.ndindex(found.shape):
            group = int(found[layer, device, slot]) // 4
            node_of.setdefault((layer, group), set()).add(device // 2)
        assert len(node_of) == 6 * 8
        assert all(len(nodes) == 1 for nodes in node_of.values())


def test_equal_count_is_largest_first_without_replicas() -> None:
    load = np.array([[9.0, 7, 6, 5, 4, 1]])
    found = placed.equal_count(load, devices=2, slots=4)
    assert found.tolist() == [[[0, 3, 5, -1], [1, 2, 4, -1]]]


@pytest.mark.parametrize("cost", [TOKENS_ONLY, COST])
def test_search_is_never_worse_than_eplb(cost: Cost) -> None:
    won = [
        assert_never_worse(load, devices, slots, nodes, cost).mean()
        for load in (uniform(20, 32), zipf(20, 32))
        for devices, slots, nodes in ((8, 5, 1), (16, 3, 4))
    ]
    assert min(won) > 0 and np.mean(won) > 0.005


@pytest.mark.slow
@pytest.mark.parametrize("cost", [TOKENS_ONLY, COST])
def test_search_is_never_worse_on_two_hundred_matrices(real_data: Path, cost: Cost) -> None:
    shown = real(real_data)
    sizes = ((64, 16, 5, 2), (128, 32, 5, 4), (64, 8, 9, 1), (256, 64, 5, 8), (256, 32, 9, 4))
    matrices = 0
    for at, (experts, devices, slots, nodes) in enumerate(sizes):
        for kind in (uniform(14, experts, at), zipf(14, experts, at), draw(shown, 14, experts)):
            won = assert_never_worse(kind, devices, slots, nodes, cost)
            matrices += len(kind)
            assert won.mean() > 0
    assert matrices == 210
    for devices, slots in ((2, 3), (4, 2), (2, 2)):
        assert_never_worse(shown, devices, slots, 1, cost)


@given(st.data())
@settings(max_examples=60)
def test_placements_are_valid_whatever_the_load(data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from([1, 2, 3]))
    devices = nodes * data.draw(st.integers(1, 3))
    slots = data.draw(st.integers(1, 4))
    experts = data.draw(st.integers(1, devices * slots))
    limit = data.draw(st.sampled_from([None, 1, 2]))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    load = rng.integers(0, data.draw(st.sampled_from([1, 3, 1000])), (2, experts)).astype(float)
    cost = data.draw(st.sampled_from([TOKENS_ONLY, COST]))
    theirs = eplb(load, devices=devices, slots=slots, max_replicas=limit)
    ours = search(load, devices=devices, slots=slots, nodes=nodes, cost=cost, max_replicas=limit)
    assert_valid(theirs, load, limit, full=limit is None)
    assert_valid(ours, load, limit)
    assert_valid(placed.equal_count(load, devices=devices, slots=slots), load, 1)
    most = [placed.device_tokens(one, load).max(axis=1) for one in (ours, theirs)]
    assert (most[0] <= most[1] * (1 + 1e-12)).all()
    renamed = placed.align_devices(theirs, ours, nodes)
    assert_valid(renamed, load, limit)
    assert layer_times(renamed, load, cost, nodes) == pytest.approx(
        layer_times(ours, load, cost, nodes)
    )
    assert (placed.experts_to_send(theirs, renamed) <= renamed[0].size).all()


def test_search_finds_the_best_of_small_cases() -> None:
    """Beside every way to put six experts on three devices of two slots."""
    load = np.random.default_rng(3).integers(1, 100, (12, 6)).astype(float)
    every = np.array(list(itertools.permutations(range(6))))
    least = load[:, every].reshape(12, -1, 3, 2).sum(axis=3).max(axis=2).min(axis=1)
    found = placed.device_tokens(search(load, devices=3, slots=2), load).max(axis=1)
    assert (found <= least * 1.05).all() and (found == least).mean() > 0.7


def test_moves_are_limited_and_help() -> None:
    load = zipf(10, 32)
    before = placed.contiguous(10, 32, 8, 5)
    was = layer_times(before, load, COST, 2)
    taken = []
    for limit in (0, 2, 6):
        after = improve(before, load, COST, 2, Limits(origin=before, max_moved=limit))
        assert_valid(after, load)
        assert placed.experts_to_send(before, after).max() <= limit
        taken.append(layer_times(after, load, COST, 2).sum())
    assert taken[0] == was.sum() > taken[1] > taken[2]


def test_moved_counts_what_devices_did_not_hold() -> None:
    old = np.array([[[0, 1, -1], [2, 3, -1]]])
    new = np.array([[[1, 0, 2], [3, 2, 3]]])
    assert placed.experts_to_send(old, new).tolist() == [1]
    assert migration_ns(old, new, 4, 1000, 1e9) == pytest.approx(1000)


def test_migration_takes_as_long_as_the_busiest_link() -> None:
    """Device 0 sends expert 0 to both others, on a link of its own, one after the other."""
    old = np.array([[[0, -1], [1, -1], [2, -1]]])
    new = np.array([[[0, -1], [1, 0], [2, 0]]])
    assert migration_ns(old, new, 3, 1000, 1e9) == pytest.approx(2000)


def test_renamed_devices_move_nothing() -> None:
    load = uniform(5, 24)
    old = search(load, devices=6, slots=5, nodes=2)
    shuffled = old[:, [5, 3, 4, 0, 2, 1]][:, :, [4, 1, 0, 2, 3]]
    assert (placed.align_devices(old, shuffled, 2) == old).all()


def test_predicted_time_by_hand() -> None:
    """Two devices on a node each: half of the tokens are far, but for an expert that both hold."""
    cost = Cost(2.0, 50.0, 7.0, 8.0, 1e9, 4e9)
    found = np.array([[[0, 1], [0, 2]]])
    load = np.array([[100.0, 30.0, 10.0]])
    assert near_share(found, 3, 2).tolist() == [[[1.0, 0.5], [1.0, 0.5]]]
    # fixed + expert 0: 50 tokens x 2 ns; expert 1: 30 x 2 ns, 15 far tokens of 2 ns each
    assert layer_times(found, load, cost, 2).tolist() == [7.0 + 100.0 + 60.0 + 30.0]
    small = np.array([[100.0, 1.0, 10.0]])
    assert layer_times(found, small, cost, 2).tolist() == [7.0 + 100.0 + 50.0 + 10.0]


def test_predicted_time_of_many_loads_is_that_of_each() -> None:
    loads = np.stack([uniform(4, 16, seed) for seed in range(5)])
    found = search(loads[0], devices=4, slots=5, nodes=2, cost=COST)
    together = layer_times(found, loads, COST, 2)
    assert together.tolist() == [layer_times(found, one, COST, 2).tolist() for one in loads]


def test_when_moving_pays() -> None:
    assert break_even_steps(500.0, 10.0) == 50
    assert break_even_steps(500.0, 0.0) is None
    assert is_worth(500.0, 10.0, 51) and not is_worth(500.0, 10.0, 50)


def test_impossible_sizes_are_refused_with_their_numbers() -> None:
    load = uniform(2, 33)
    with pytest.raises(UsageError, match=r"8 devices x 4 slots = 32 .* 33 experts .* 5 slots"):
        search(load, devices=8, slots=4)
    with pytest.raises(UsageError, match="8 devices cannot be shared evenly by 3 nodes"):
        search(load, devices=8, slots=5, nodes=3)
    with pytest.raises(UsageError, match="33 experts do not make 2 groups"):
        search(load, devices=8, slots=5, groups=2)
    with pytest.raises(UsageError, match="limited to 0"):
        search(load, devices=8, slots=5, max_replicas=0)
    with pytest.raises(UsageError, match="no slot for 1 experts, the first expert 1 of"):
        placed.checked_placement(np.array([[[0], [2]]]), 1, 3)
    with pytest.raises(UsageError, match="0 or more"):
        Cost(-1.0)
