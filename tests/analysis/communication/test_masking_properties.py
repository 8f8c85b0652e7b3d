"""comm against a twin that counts nanoseconds one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tables import answer, connect, fill, kernel, op

EPOCH_NS = 1_736_405_443_862_052_130  # where a double no longer tells nanoseconds apart
KINDS = {"1": "tp", "2": "tp", "3": "ep", "4": "dp"}  # group 5 is in no table
CON = connect()


@dataclass(frozen=True, slots=True)
class Op:
    rank: int
    step: int | None
    op_type: str
    group: str | None
    start_ns: int
    dur_ns: int

    @property
    def kind(self) -> str:
        return KINDS.get(self.group or "", "unknown")

    @property
    def grid(self) -> range:
        return range(self.start_ns, self.start_ns + self.dur_ns)


ops = st.lists(
    st.builds(
        Op,
        rank=st.integers(0, 1),
        step=st.sampled_from([None, 7, 8]),
        op_type=st.sampled_from(["allReduce", "send"]),
        group=st.sampled_from([None, "1", "2", "3", "4", "5"]),
        start_ns=st.integers(0, 40),
        dur_ns=st.integers(-2, 15),
    ),
    max_size=25,
)
kernels = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(-1, 12)), max_size=12
)
KEYS: dict[str, Callable[[Op], Any]] = {
    "kind": lambda one: (one.kind, None, None),
    "type": lambda one: (None, one.op_type, None),
    "op": lambda one: (one.kind, one.op_type, one.group),
}
Place = tuple[int, int | None, str, Any]


def share_of_each(covers: dict[Any, set[int]], compute: set[int]) -> dict[Any, int]:
    """Exposed nanoseconds of each key, whole ones, the rest to the largest remainders."""
    exact: dict[Any, Fraction] = defaultdict(Fraction)
    for t in set().union(*covers.values()) - compute:
        at_once = [key for key, grid in covers.items() if t in grid]
        for key in at_once:
            exact[key] += Fraction(1, len(at_once))
    whole = {key: floor(exact[key]) for key in covers}
    left = sum(exact.values()) - sum(whole.values())
    order = sorted(covers, key=lambda key: (
        -(exact[key] - whole[key]), *((part is None, part or "") for part in key)))  # fmt: skip
    return {key: whole[key] + (place < left) for place, key in enumerate(order)}


def twin(found: list[Op], running: list[tuple[int, int, int]]) -> dict[Place, tuple[Any, ...]]:
    answers: dict[Place, tuple[Any, ...]] = {}
    for rank in {one.rank for one in found}:
        compute = {t for r, start, dur in running if r == rank for t in range(start, start + dur)}
        for step in {one.step for one in found if one.rank == rank}:
            own = [o for o in found if (o.rank, o.step) == (rank, step) and o.dur_ns >= 0]
            for by_key, key_of in KEYS.items():
                members: dict[Any, list[Op]] = defaultdict(list)
                for one in own:
                    members[key_of(one)].append(one)
                covers = {key: {t for o in some for t in o.grid} for key, some in members.items()}
                shares = share_of_each(covers, compute) if covers else {}
                for key, some in members.items():
                    union, hidden = len(covers[key]), len(covers[key] & compute)
                    figures = (hidden, union - hidden, shares[key]) if compute else (None,) * 3
                    total = sum(one.dur_ns for one in some)
                    answers[rank, step, by_key, key] = (len(some), total, union, *figures)
    return answers


def measure(found: list[Op], running: list[tuple[int, int, int]]) -> dict[Place, tuple[Any, ...]]:
    for table in ("kernels", "comm_ops", "groups"):
        CON.execute(f"delete from {table}")
    for rank in (0, 1):
        fill(CON, "groups", [
            {"rank": rank, "group_hash": group, "parallel_kind": kind}
            for group, kind in KINDS.items()
        ])  # fmt: skip
    fill(CON, "kernels", [kernel(EPOCH_NS + at, dur, 7, rank=r) for r, at, dur in running])
    fill(CON, "comm_ops", [
        op(EPOCH_NS + o.start_ns, o.dur_ns, o.step, rank=o.rank, op_type=o.op_type,
           group_hash=o.group)
        for o in found
    ])  # fmt: skip
    names = ("op_count", "total_ns", "union_ns", "masked_ns", "exposed_ns", "exposed_attributed_ns")
    answers: dict[Place, tuple[Any, ...]] = {}
    for row in answer(CON, "comm"):
        place = (row["rank"], row["step"], row["by_key"],
                 (row["kind"], row["op_type"], row["group_hash"]))  # fmt: skip
        assert place not in answers
        answers[place] = tuple(row[name] for name in names)
    return answers


@given(ops, kernels)
@settings(max_examples=60)
def test_comm_equals_counting_nanoseconds(
    found: list[Op], running: list[tuple[int, int, int]]
) -> None:
    assert measure(found, running) == twin(found, running)


@pytest.mark.slow
@given(ops, kernels)
@settings(max_examples=250)
def test_comm_equals_counting_nanoseconds_at_length(
    found: list[Op], running: list[tuple[int, int, int]]
) -> None:
    assert measure(found, running) == twin(found, running)


def test_sixty_at_once_add_up_too() -> None:
    """More series than the common multiple was made for."""
    dice = Random(3)
    con = connect()
    fill(con, "kernels", [kernel(0, 1, 1)])
    fill(con, "comm_ops", [
        op(5 + dice.randrange(50), 1 + dice.randrange(10**6), 1, group_hash=str(group))
        for group in range(60) for _ in range(3)
    ])  # fmt: skip
    rows = [row for row in answer(con, "comm") if row["by_key"] == "op"]
    [step] = answer(con, "steps")
    assert len(rows) == 60
    shares = [row["exposed_attributed_ns"] for row in rows]
    assert sum(shares) == step["exposed_communication_ns"]
    assert all(0 <= share <= row["exposed_ns"] for share, row in zip(shares, rows, strict=True))
