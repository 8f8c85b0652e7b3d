"""The loss waterfall on figures small enough to check by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.flops.waterfall import PLACE, TERMS, waterfall

Row = dict[str, Any]
AT: Row = {"run": "r", "capture": "c", "rank": 0, "step": 3}
_FIGURES = {
    "step_ns": pl.Int64, "peak_flops_per_s": pl.Float64, "frequency_ratio": pl.Float64,
    "model_mfu_ratio": pl.Float64,
}  # fmt: skip
_KERNELS = {"type": pl.String, "is_cube": pl.Boolean, "total_ns": pl.Int64, "flops": pl.Float64}
_STEPS = {"computing_ns": pl.Int64, "free_ns": pl.Int64, "exposed_communication_ns": pl.Int64}
_COMM = {"kind": pl.String, "exposed_attributed_ns": pl.Int64}
_WAITS = {"kind": pl.String, "wait_ratio": pl.Float64}
_PLACE = {"run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64}


def frame(columns: dict[str, Any], *rows: Row) -> pl.DataFrame:
    return pl.DataFrame([{**AT, **row} for row in rows], schema={**_PLACE, **columns})


def terms(
    figures: Row,
    kernels: list[Row],
    steps: Row,
    comm: list[Row] | None = None,
    waits: list[Row] | None = None,
) -> dict[tuple[str, str | None], float]:
    """ns by term and part; the points of a step add up to 1."""
    found = waterfall(
        frame(_FIGURES, figures), frame(_KERNELS, *kernels), frame(_STEPS, steps),
        frame(_COMM, *(comm or [])), frame(_WAITS, *(waits or [])),
    )  # fmt: skip
    assert found["mfu_points"].sum() == pytest.approx(1.0, abs=1e-9)
    assert set(found["term"]) <= set(TERMS)
    return {(term, part): ns for term, part, ns in found.select("term", "part", "ns").iter_rows()}


FIGURES: Row = {
    "step_ns": 1000, "peak_flops_per_s": 1e9, "frequency_ratio": None, "model_mfu_ratio": None
}  # fmt: skip
STEPS: Row = {"computing_ns": 600, "free_ns": 150, "exposed_communication_ns": 200}
MATMUL: Row = {"type": "MatMulV3", "is_cube": True, "total_ns": 400, "flops": 300.0}
ADD: Row = {"type": "Add", "is_cube": False, "total_ns": 200, "flops": None}


def test_every_ns_is_somewhere() -> None:
    comm = [
        {"kind": "ep", "exposed_attributed_ns": 120},
        {"kind": "pp", "exposed_attributed_ns": 80},
    ]
    waits = [{"kind": "ep", "wait_ratio": 0.25}, {"kind": "pp", "wait_ratio": 0.5}]
    assert terms(FIGURES, [MATMUL, ADD], STEPS, comm, waits) == {
        ("achieved", None): 300, ("cube_inefficiency", "MatMulV3"): 100,
        ("other_compute", "Add"): 200,
        ("exposed_communication", "ep"): 90, ("exposed_communication", "pp"): 40,
        ("load_imbalance", "ep"): 30, ("pipeline_wait", None): 40, ("free", None): 150,
        ("tail", None): 50,
    }  # fmt: skip


def test_a_slow_clock_is_not_the_kernels_fault() -> None:
    found = terms({**FIGURES, "frequency_ratio": 0.75}, [MATMUL, ADD], STEPS)
    assert found["frequency", None] == pytest.approx(100)
    assert found["cube_inefficiency", "MatMulV3"] == pytest.approx(0)
    assert found["achieved", None] == 300


def test_what_a_model_does_not_need_is_recompute() -> None:
    found = terms({**FIGURES, "model_mfu_ratio": 0.225}, [MATMUL, ADD], STEPS)
    assert (found["achieved", None], found["recompute", None]) == (225, 75)
    assert found["cube_inefficiency", "MatMulV3"] == 100


def test_kernels_without_known_flops_stand_apart() -> None:
    conv = {"type": "Conv2D", "is_cube": True, "total_ns": 100, "flops": None}
    found = terms(FIGURES, [{**MATMUL, "total_ns": 300}, conv, ADD], STEPS)
    assert found["unresolved_kernels", "Conv2D"] == 100
    assert found["cube_inefficiency", "MatMulV3"] == 0


def test_overlapping_kernels_share_their_union() -> None:
    found = terms(FIGURES, [{**MATMUL, "total_ns": 800}, {**ADD, "total_ns": 400}], STEPS)
    assert found["other_compute", "Add"] == pytest.approx(200)
    assert found["cube_inefficiency", "MatMulV3"] == pytest.approx(100)


def test_figures_of_the_producers_table_have_no_parts() -> None:
    found = terms(FIGURES, [], STEPS)
    assert found == {
        ("other_compute", None): 600, ("exposed_communication", None): 200, ("free", None): 150,
        ("tail", None): 50,
    }  # fmt: skip


def test_without_a_peak_nothing_is_said() -> None:
    found = waterfall(
        frame(_FIGURES, {**FIGURES, "peak_flops_per_s": None}), frame(_KERNELS, MATMUL),
        frame(_STEPS, STEPS), frame(_COMM), frame(_WAITS),
    )  # fmt: skip
    assert found.is_empty() and found.columns[:4] == list(PLACE)


@given(
    kernels=st.lists(
        st.tuples(st.booleans(), st.integers(0, 10**9), st.none() | st.integers(0, 10**15)),
        max_size=6,
    ),
    lengths=st.tuples(*[st.integers(0, 10**9)] * 3),
    kinds=st.lists(st.tuples(st.integers(0, 10**8), st.none() | st.floats(0, 1.5)), max_size=4),
    frequency=st.none() | st.floats(0.3, 1.2),
    model=st.none() | st.floats(0, 1.2),
    step_ns=st.integers(1, 10**10),
)
def test_the_points_of_any_step_add_up_to_one(
    kernels: list[tuple[bool, int, int | None]],
    lengths: tuple[int, int, int],
    kinds: list[tuple[int, float | None]],
    frequency: float | None,
    model: float | None,
    step_ns: int,
) -> None:
    found = waterfall(
        frame(_FIGURES, {
            "step_ns": step_ns, "peak_flops_per_s": 3e14, "frequency_ratio": frequency,
            "model_mfu_ratio": model,
        }),
        frame(_KERNELS, *(
            {"type": str(n), "is_cube": cube, "total_ns": ns, "flops": flops}
            for n, (cube, ns, flops) in enumerate(kernels)
        )),
        frame(_STEPS, dict(zip(_STEPS, lengths, strict=True))),
        frame(_COMM, *(
            {"kind": f"k{n}", "exposed_attributed_ns": ns} for n, (ns, _) in enumerate(kinds)
        )),
        frame(_WAITS, *(
            {"kind": f"k{n}", "wait_ratio": share} for n, (_, share) in enumerate(kinds)
        )),
    )  # fmt: skip
    points: list[float] = found["mfu_points"].to_list()
    assert abs(sum(points) - 1.0) < 1e-9 * max(1.0, *map(abs, points))
