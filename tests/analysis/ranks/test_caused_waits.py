"""Waits go back to where the time was lost, and each instant counts once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest

from npuscope.analysis.ranks.stragglers.stragglers import Waits, waits_of

_COLUMNS = {
    "instance": pl.Int64, "rank": pl.Int32, "step": pl.Int64, "aligned_start_ns": pl.Int64,
    "aligned_end_ns": pl.Int64, "clock_error_ns": pl.Int64, "is_complete": pl.Boolean,
    "exposed_ns": pl.Int64, "excess_ns": pl.Float64, "delay_ns": pl.Int64,
}  # fmt: skip


def meet(
    *rows: tuple[int, int, int, int, float],
    late: Mapping[int, int] = MappingProxyType({}),
    links: Mapping[int, int] = MappingProxyType({}),
    **changes: object,
) -> Waits:
    """Waits of operations given as (instance, rank, start, end, excess up to there); of instances,
    how much later than others they were `late`, and how much longer a slow link made them."""
    listed: list[dict[str, Any]] = [
        {"instance": instance, "rank": rank, "step": 1, "aligned_start_ns": start,
         "aligned_end_ns": end, "clock_error_ns": 0, "is_complete": True,
         "exposed_ns": end - start, "excess_ns": excess, "delay_ns": late.get(instance), **changes}
        for instance, rank, start, end, excess in rows
    ]  # fmt: skip
    slow = pl.DataFrame(
        [*links.items()], schema={"instance": pl.Int64, "link_ns": pl.Int64}, orient="row"
    )
    return waits_of(pl.DataFrame(listed, schema=_COLUMNS), slow)


def cause(waits: Waits) -> dict[int, int]:
    """Caused waiting by rank, of those who caused some."""
    found = (
        waits.last.group_by("rank").agg(pl.col("caused_ns").sum()).filter(pl.col("caused_ns") > 0)
    )
    return dict(found.rows())


def rows(frame: pl.DataFrame, *columns: str) -> Iterable[tuple[Any, ...]]:
    return frame.select(columns).rows()


def test_the_last_one_caused_it_when_it_took_longer() -> None:
    waits = meet((1, 0, 0, 110, 0), (1, 1, 10, 110, 0), (1, 2, 100, 110, 95))
    assert cause(waits) == {2: 95 * 190 // 100}  # 190 waited; 95 of the 100 are its own
    assert list(rows(waits.last, "rank", "margin_ns", "wait_ns")) == [(2, 90, 190)]


def test_who_waited_itself_is_innocent() -> None:
    # Rank 0 is 100 late for its send to rank 2; rank 2 is then 100 late for the sum with rank 3.
    waits = meet(
        (1, 0, 200, 210, 100), (1, 2, 100, 210, 0),
        (2, 2, 250, 260, 0), (2, 3, 150, 260, 0),
    )  # fmt: skip
    assert cause(waits) == {0: 200}
    # So it is where all of its group met late and none of them waited for another there.
    ops = [(1, 0, 200, 210, 100), (1, 1, 200, 210, 0), (2, 0, 250, 260, 100), (2, 3, 150, 260, 0)]
    assert cause(meet(*ops)) == {}
    assert cause(meet((0, 0, 0, 10, 0), (0, 3, 0, 10, 0), *ops, late={1: 100})) == {0: 100}
    # And the link that made theirs longer, as far as it did.
    linked = meet(*ops, late={1: 40}, links={1: 70})
    assert cause(linked) == {0: 30}
    assert list(rows(linked.last, "instance", "linked_ns")) == [(1, 70), (2, 0)]


def test_a_chain_is_followed_to_its_first_link() -> None:
    ops = [(1, 0, 100, 110, 100.0), (1, 1, 0, 110, 0.0)]
    for n in range(2, 30):
        ops += [(n, n - 1, 20 * n + 100, 20 * n + 110, 0.0), (n, n, 20 * n, 20 * n + 110, 0.0)]
    waits = meet(*ops)
    assert cause(waits) == {0: 100 * 29}


def test_waiting_of_the_schedule_is_nobodys() -> None:
    assert cause(meet((1, 0, 500, 510, 0), (1, 1, 0, 510, 0))) == {}


def test_unknown_peers_blame_nobody() -> None:
    waits = meet((1, 0, 500, 510, 0), (1, 1, 0, 510, 0), excess_ns=None)
    assert cause(waits) == {} and waits.last["wait_ns"].to_list() == [500]


def test_within_the_clock_error_nothing_is_evidence() -> None:
    near = meet((1, 0, 0, 60, 0), (1, 1, 40, 60, 40), clock_error_ns=50)
    assert near.last["is_evidence"].to_list() == [False] and cause(near) == {}
    far = meet((1, 0, 0, 60, 0), (1, 1, 51, 60, 51), clock_error_ns=50)
    assert far.last["is_evidence"].to_list() == [True] and cause(far) == {1: 51}


def test_an_instant_of_a_waiting_rank_counts_once() -> None:
    # Rank 0 waits in two operations at once, for rank 1 and for rank 2.
    waits = meet(
        (1, 0, 0, 110, 0), (1, 1, 100, 110, 100),
        (2, 0, 50, 160, 0), (2, 2, 150, 160, 150),
    )  # fmt: skip
    assert sorted(rows(waits.waits, "instance", "wait_ns")) == [(1, 100), (2, 50)]


def test_what_a_kernel_fills_is_no_waiting() -> None:
    assert meet((1, 0, 0, 110, 0), (1, 1, 100, 110, 100), exposed_ns=30).waits[
        "wait_ns"
    ].to_list() == [30]


@pytest.mark.parametrize("change", [{"is_complete": False}])
def test_incomplete_operations_tell_nothing(change: dict[str, Any]) -> None:
    waits = meet((1, 0, 0, 110, 0), (1, 1, 100, 110, 100), **change)
    assert waits.last.is_empty() and waits.waits.is_empty()


def test_no_more_is_caused_than_waited() -> None:
    ops = [
        (n, rank, 1000 * n + 37 * (n * rank % 7), 1000 * n + 300, 60.0 * (n * rank % 5))
        for n in range(40)
        for rank in range(4)
    ]
    waits = meet(*ops)
    assert 0 < waits.last["caused_ns"].sum() <= waits.waits["wait_ns"].sum() + 40
