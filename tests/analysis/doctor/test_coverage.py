"""Which ranks and steps are here, and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from npuscope.analysis.doctor.doctor import Steps, group_members, missing_ranks, step_coverage
from npuscope.analysis.doctor.judge import across_ranks
from npuscope.analysis.views import open_views
from tests.analysis.tables import connect, fill, kernel


@pytest.mark.parametrize(
    ("present", "world_size", "members", "missing"),
    [
        ([0, 1], 4, [], (2, 3)),
        ([0, 1], None, [0, 1, 6], (6,)),
        ([0, 1], 2, [0, 1, 2, 3], (2, 3)),
        ([1, 0], 2, [], ()),
        ([0], None, [], None),
        ([0, 9], 4, [], (1, 2, 3)),
    ],
)
def test_missing_ranks(
    present: list[int], world_size: int | None, members: list[int], missing: tuple[int, ...] | None
) -> None:
    assert missing_ranks(present, world_size, members) == missing


def test_members_of_all_groups_of_a_capture() -> None:
    con = connect()
    fill(con, "groups", [
        {"rank": 0, "global_ranks": [0, 2]}, {"rank": 1, "global_ranks": [1, 3]},
        {"rank": 1, "global_ranks": None}, {"capture": "d", "global_ranks": [7]},
    ])  # fmt: skip
    assert group_members(con) == {
        ("job", "c"): frozenset({0, 1, 2, 3}), ("job", "d"): frozenset({7})
    }  # fmt: skip


def test_steps_of_ranks_and_the_share_of_the_session() -> None:
    con = connect()
    open_views(con, ("steps",))
    windows = {("job", "c", rank): (0, 100) for rank in range(3)} | {("job", "d", 0): (0, None)}
    fill(con, "steps", [
        {"rank": 0, "step": 1, "window_start_ns": 10, "window_end_ns": 30},
        {"rank": 0, "step": 2, "window_start_ns": 20, "window_end_ns": 60},
        {"rank": 1, "step": 2, "window_start_ns": -50, "window_end_ns": 150},
        {"rank": 2, "step": 3},
        {"capture": "d", "step": 9, "window_start_ns": 1, "window_end_ns": 2},
    ])  # fmt: skip
    # What a step launched may run on after its end on the host.
    fill(con, "kernels", [kernel(55, 15, 2, rank=0), kernel(5, 5, None, rank=2)])
    found = step_coverage(con, windows)
    assert found[("job", "c", 0)] == Steps((1, 2), (3,), 0.6)
    assert found[("job", "c", 1)] == Steps((2,), (1, 3), 1.0)
    assert found[("job", "c", 2)] == Steps((3,), (1, 2), None)
    assert found[("job", "d", 0)] == Steps((9,), (), None)


def verdict_of(**changes: Any) -> tuple[str, str | None, str | None]:
    facts: dict[str, Any] = {
        "present": [0, 1], "world_size": 2, "least_rank_count": 2, "missing": (),
        "lacking_steps": {}, "clocks": {"epoch"}, "levels": {"Level1"},
    }  # fmt: skip
    found = across_ranks(**{**facts, **changes})
    return found.support, found.reason, found.remedy


def test_ranks_can_be_compared() -> None:
    assert verdict_of() == ("yes", None, None)
    assert verdict_of(levels={"Level1", None}) == ("yes", None, None)


@pytest.mark.parametrize(
    ("changes", "support", "reason"),
    [
        ({"present": [0], "world_size": 1}, "no", "the job has one rank"),
        ({"present": [3], "world_size": 8}, "no", "only rank 3 is here"),
        ({"missing": (2, 3)}, "partly", "ranks 2-3 missing"),
        (
            {"missing": None, "world_size": None, "least_rank_count": 8}, "partly",
            "2 of at least 8 ranks are here",
        ),
        (
            {"missing": None, "world_size": None, "least_rank_count": None}, "partly",
            "how many ranks the job has is unknown",
        ),
        ({"lacking_steps": {1: (5, 6)}}, "partly", "rank 1 lacks step 5-6"),
        (
            {"clocks": {"epoch", "device"}}, "partly",
            "timestamps of some ranks are device-local, not wall-clock times",
        ),
        (
            {"levels": {"Level1", "Level0"}}, "partly",
            "ranks were profiled at different levels (Level0, Level1)",
        ),
    ],
)  # fmt: skip
def test_what_keeps_ranks_from_being_compared(
    changes: dict[str, object], support: str, reason: str
) -> None:
    assert verdict_of(**changes)[:2] == (support, reason)
