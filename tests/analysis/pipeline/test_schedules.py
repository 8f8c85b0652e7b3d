"""Schedules against their published formulas, against counting ticks, and what they refuse."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.pipeline.execution import even_durations, execute, schedule_cost
from npuscope.analysis.pipeline.schedules import SCHEDULES, Pass, Schedule, schedule
from npuscope.errors import UsageError

Times = tuple[int, int, int]
GRID = list(itertools.product((6, 10, 12), (6, 10, 14), (4, 6, 10)))


def bubbles_ns(
    name: str, p: int, m: int, times: Times, v: int | None = None, pair: float | None = None
) -> list[float]:
    chosen = schedule(name, p, m, v)
    found = schedule_cost(chosen, execute(chosen, even_durations(chosen, *times, pair)))
    bubbles: list[float] = found["bubble_ns"].to_list()
    return bubbles


def is_every(bubbles: list[float], expected: float) -> bool:
    return bubbles == pytest.approx([expected] * len(bubbles), abs=1e-6)


@pytest.mark.parametrize("p", [1, 2, 4, 7])
@pytest.mark.parametrize("m", [1, 3, 8, 16])
def test_one_chunk_equals_its_formula(p: int, m: int) -> None:
    for f, b, w in GRID:
        for name in ("gpipe", "1f1b"):
            assert is_every(bubbles_ns(name, p, m, (f, b, w)), (p - 1) * (f + b + w))
        if w <= min(f, b) and m >= p:
            assert is_every(bubbles_ns("zb-h1", p, m, (f, b, w)), (p - 1) * (f + b - w))


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 2), (4, 4), (4, 16)])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved_equals_its_formula(p: int, m: int, v: int) -> None:
    for f, b, w in GRID:
        assert is_every(bubbles_ns("vpp", p, m, (f, b, w), v), (p - 1) * (f + b + w) / v)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (2, 9), (4, 7), (5, 12), (8, 16)])
def test_zb_v_equals_its_formula_where_passes_are_equal(p: int, m: int) -> None:
    assert is_every(bubbles_ns("zb-v", p, m, (10, 10, 10)), (p - 1) * 5)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (8, 16)])
def test_dualpipe_equals_its_formula(p: int, m: int) -> None:
    for (f, b, w), saved in itertools.product(GRID, (0, 3)):
        both = f + b + w - saved
        if w <= b <= f:
            expected = (p // 2 - 1) * (both + (b + w - 3 * w if f == b else f - 2 * w))
            bubbles = bubbles_ns("dualpipe", p, m, (f, b, w), pair=both)
            # Outer devices run fewer passes beside each other: work of theirs is not saved.
            assert is_every(bubbles if not saved else bubbles[p // 2 - 1 : p // 2 + 1], expected)


def test_published_shares() -> None:
    """Pangu Ultra 135B: p 8, m 16, and six chunks."""
    for name, v, expected in (
        ("1f1b", None, Fraction(7, 23)),
        ("interleaved", 6, Fraction(7, 103)),
    ):
        chosen = schedule(name, 8, 16, v)
        found = schedule_cost(chosen, execute(chosen, even_durations(chosen, 1, 1, 1)))
        assert found["bubble_ratio"].to_list() == pytest.approx([float(expected)] * 8)


def test_held_activations() -> None:
    def held(name: str, p: int, m: int) -> list[float]:
        chosen = schedule(name, p, m)
        spans = execute(chosen, even_durations(chosen, 2, 2, 2))
        found: list[float] = schedule_cost(chosen, spans)["live_activations"].to_list()
        return found

    assert held("gpipe", 4, 9) == [9, 9, 9, 9]
    assert held("1f1b", 4, 9) == [4, 3, 2, 1]  # min(p - stage, m)
    assert held("1f1b", 4, 2) == [2, 2, 2, 1]
    assert held("zb-h1", 4, 9) == [4, 4, 4, 4]
    assert held("zb-v", 4, 9) == [4, 4, 4, 4]
    assert held("dualpipe", 4, 8) == [5, 5, 5, 5]  # p + 1, as published


def ticks_of(chosen: Schedule, ticks: dict[str, int]) -> int:
    """The step by counting: at every tick, each idle device begins its next entry if it may."""
    route_of = {place: route for route in chosen.routes for place in route}
    total = {
        place: sum(one == Pass("F", place[1], 0) for entry in order for one in entry)
        for place in route_of
        for order in [chosen.orders[place[0]]]
    }
    assert set(total.values()) == {1}  # each place forwards each micro-batch once
    ended: dict[tuple[tuple[int, int], str, int], int] = {}
    queues = [list(order) for order in chosen.orders]
    busy_until = [0] * len(queues)
    now = 0
    while any(queues):
        for device, queue in enumerate(queues):
            if queue and busy_until[device] <= now:
                needed = []
                for kind, chunk, number in queue[0]:
                    route = route_of[device, chunk]
                    at = route.index((device, chunk))
                    if kind == "F" and at > 0:
                        needed.append((route[at - 1], "F", number))
                    if kind in ("B", "BW"):
                        needed.append((route[at], "F", number))
                        needed += [(route[at + 1], "B", number)] if at + 1 < len(route) else []
                    if kind == "W":
                        needed.append((route[at], "B", number))
                if all(ended.get(need, now + 1) <= now for need in needed):
                    entry = queue.pop(0)
                    busy_until[device] = now + sum(ticks[one.kind] for one in entry)
                    for kind, chunk, number in entry:
                        ended[(device, chunk), kind[0], number] = busy_until[device]
        now += 1
        assert now < 100_000
    return max(busy_until)


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    p=st.integers(1, 5),
    m=st.integers(1, 11),
    times=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)),
)
def test_steps_equal_counting_ticks(name: str, p: int, m: int, times: Times) -> None:
    m = {"interleaved": p * (m % 3 + 1), "dualpipev": 2 * p + m}.get(name, m)
    p, m = (2 * p, 4 * p + 2 * m) if name == "dualpipe" else (p, m)
    chosen = schedule(name, p, m)
    f, b, w = (time * chosen.share.denominator for time in times)  # of chunks: whole ticks
    found = schedule_cost(chosen, execute(chosen, even_durations(chosen, f, b, w)))
    step = dict.fromkeys(found["step_ns"])
    assert list(step) == [ticks_of(chosen, dict(zip(("F", "B", "W"), times, strict=True)) | {
        "BW": times[1] + times[2]
    })]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("zbh1", 4, 8, None), "no schedule is called 'zbh1': one of gpipe, 1f1b"),
        (("1f1b", 4, 8, 2), "1f1b has 1 chunk"),
        (("interleaved", 4, 6, 2), "6 are no multiple of 4"),
        (("dualpipe", 3, 12, None), "even stages"),
        (("dualpipev", 4, 7, None), "8, not 7"),
        (("gpipe", 0, 7, None), "at least one stage"),
        (("gpipe", 4096, 65536, None), "too many"),
    ],
)
def test_sizes_that_do_not_go_are_refused(
    asked: tuple[str, int, int, int | None], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        schedule(*asked)


def test_devices_that_wait_for_each_other_are_told() -> None:
    first, second = Pass("F", 0, 0), Pass("BW", 0, 0)
    chosen = Schedule(
        "mine", (((second,), (first,)), ((first,), (second,))), (((0, 0), (1, 0)),), Fraction(1)
    )
    with pytest.raises(UsageError, match="mine: devices 0, 1 wait for each other"):
        execute(chosen, even_durations(chosen, 1, 1, 1))


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 1), (4, 8, 1), (4, 6, 1), (4, 8, 2), (3, 6, 3)])
def test_forward_beside_backward_costs_what_interleaved_does(p: int, m: int, v: int) -> None:
    assert is_every(bubbles_ns("fb-overlap", p, m, (6, 6, 6), v), (p - 1) * 18 / v)
