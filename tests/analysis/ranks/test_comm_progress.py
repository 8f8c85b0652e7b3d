"""Own time up to each operation, against counting every nanosecond."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tables import answer, clear, connect, fill, kernel, op

_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)
CON = connect()


@settings(max_examples=30)
@given(_SPANS, _SPANS, st.integers(-5, 5))
def test_own_time_is_what_counting_gives(
    kernels: list[tuple[int, int]], ops: list[tuple[int, int]], shift: int
) -> None:
    clear(CON)
    for rank in (0, 1):
        away = 1_000_000 * rank * shift
        fill(CON, "kernels", [kernel(a + away, d, rank=rank) for a, d in kernels])
        fill(CON, "comm_ops", [op(a + away, d, rank=rank, name=f"{n}", group_hash="1")
                               for n, (a, d) in enumerate(ops)])  # fmt: skip
    computing = {t for a, d in kernels for t in range(a, a + d)}
    talking = {t for a, d in ops for t in range(a, a + d)}
    first = min([a for a, d in kernels if d] + [a for a, _ in ops], default=0)
    expected = {
        (rank, str(n)): (
            sum(t in computing or t not in talking for t in range(first, a)),
            sum(t not in computing for t in range(a, a + d)),
        )
        for rank in (0, 1)
        for n, (a, d) in enumerate(ops)
    }
    found = {
        (row["rank"], row["name"]): (row["own_ns"], row["exposed_ns"])
        for row in answer(CON, "comm_progress")
    }
    assert found == expected
