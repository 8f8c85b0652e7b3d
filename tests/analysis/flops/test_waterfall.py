"""The loss waterfall on figures small enough to check by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.flops.losses import TERMS, loss_notes, waterfall
from npuscope.analysis.parts import COMMUNICATION
from npuscope.analysis.scope import PLACE

Row = dict[str, Any]
AT: Row = {"run": "r", "capture": "c", "rank": 0, "step": 3}
_FIGURES = {
    "step_ns": pl.Int64, "peak_flops_per_s": pl.Float64, "frequency_ratio": pl.Float64,
    "model_mfu_ratio": pl.Float64,
}  # fmt: skip
_KERNELS = {"type": pl.String, "is_cube": pl.Boolean, "total_ns": pl.Int64, "flops": pl.Float64}
_STEPS = {"computing_ns": pl.Int64, "free_ns": pl.Int64, "exposed_communication_ns": pl.Int64}
_PARTS = {"part": pl.String, "kind": pl.String, "ns": pl.Int64}
_PLACE = {"run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64}


def frame(columns: dict[str, Any], *rows: Row) -> pl.DataFrame:
    return pl.DataFrame([{**AT, **row} for row in rows], schema={**_PLACE, **columns})


def terms(
    figures: Row,
    kernels: list[Row],
    steps: Row,
    parts: list[Row] | None = None,
) -> dict[tuple[str, str | None], float]:
    """ns by term and part; those of a step add up to its length."""
    found = waterfall(
        frame(_FIGURES, figures), frame(_KERNELS, *kernels), frame(_STEPS, steps),
        frame(_PARTS, *(UNTOLD if parts is None else parts)),
    )  # fmt: skip
    assert found["mfu_points"].sum() == pytest.approx(1.0, abs=1e-9)
    assert found["ns"].sum() == figures["step_ns"]
    assert set(found["term"]) <= set(TERMS)
    return {(term, part): ns for term, part, ns in found.select("term", "part", "ns").iter_rows()}


FIGURES: Row = {
    "step_ns": 1000, "peak_flops_per_s": 1e9, "frequency_ratio": None, "model_mfu_ratio": None
}  # fmt: skip
STEPS: Row = {"computing_ns": 600, "free_ns": 150, "exposed_communication_ns": 200}
UNTOLD: list[Row] = [
    {"part": "computing", "ns": 600}, {"part": "unknown_communication", "kind": None, "ns": 200},
    {"part": "free", "ns": 150},
]  # fmt: skip
MATMUL: Row = {"type": "MatMulV3", "is_cube": True, "total_ns": 400, "flops": 300.0}
ADD: Row = {"type": "Add", "is_cube": False, "total_ns": 200, "flops": None}


def test_every_ns_is_somewhere() -> None:
    parts: list[Row] = [
        {"part": "transfer", "kind": "ep", "ns": 80}, {"part": "peer_wait", "kind": "ep", "ns": 30},
        {"part": "absent_wait", "kind": "dp", "ns": 15},
        {"part": "unknown_communication", "kind": "dp", "ns": 5},
        {"part": "transfer", "kind": "pp", "ns": 30},
        {"part": "pipeline_wait", "kind": "pp", "ns": 40},
        {"part": "free", "kind": None, "ns": 150},
    ]  # fmt: skip
    assert terms(FIGURES, [MATMUL, ADD], STEPS, parts) == {
        ("achieved", None): 300, ("cube_inefficiency", "MatMulV3"): 100,
        ("other_compute", "Add"): 200, ("transfer", "ep"): 80, ("transfer", "pp"): 30,
        ("peer_wait", "ep"): 30, ("absent_wait", "dp"): 15, ("pipeline_wait", "pp"): 40,
        ("unknown_communication", "dp"): 5, ("free", None): 150, ("tail", None): 50,
    }  # fmt: skip


def test_parts_of_computing_are_whole_ns_that_add_up_to_it() -> None:
    kernels = [{**MATMUL, "type": str(n), "flops": 100.3} for n in range(3)]
    found = terms(FIGURES, kernels, STEPS)
    assert found["achieved", None] == 301  # of 300.9
    assert sum(ns for (term, _), ns in found.items() if term == "cube_inefficiency") == 299


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
        ("other_compute", None): 600, ("unknown_communication", None): 200, ("free", None): 150,
        ("tail", None): 50,
    }  # fmt: skip
    # The next step begins before this one's work has ended.
    short: Row = {**FIGURES, "step_ns": 900}
    assert terms(short, [], STEPS)["tail", None] == -50
    rows = waterfall(
        frame(_FIGURES, short), frame(_KERNELS), frame(_STEPS, STEPS), frame(_PARTS, *UNTOLD)
    )
    assert any("extends into the next" in note for note in loss_notes(frame(_FIGURES, short), rows))


def test_without_a_peak_nothing_is_said() -> None:
    found = waterfall(
        frame(_FIGURES, {**FIGURES, "peak_flops_per_s": None}), frame(_KERNELS, MATMUL),
        frame(_STEPS, STEPS), frame(_PARTS),
    )  # fmt: skip
    assert found.is_empty() and found.columns[:4] == list(PLACE)


@given(
    kernels=st.lists(
        st.tuples(st.booleans(), st.integers(0, 10**9), st.none() | st.integers(0, 10**15)),
        max_size=6,
    ),
    lengths=st.tuples(*[st.integers(0, 10**9)] * 3),
    waits=st.lists(st.tuples(st.sampled_from(COMMUNICATION), st.integers(0, 10**8)), max_size=4),
    frequency=st.none() | st.floats(0.3, 1.2),
    model=st.none() | st.floats(0, 1.2),
    step_ns=st.integers(1, 10**10),
)
def test_the_points_of_any_step_add_up_to_one(
    kernels: list[tuple[bool, int, int | None]],
    lengths: tuple[int, int, int],
    waits: list[tuple[str, int]],
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
        frame(_PARTS, *(
            {"part": part, "kind": f"k{n}", "ns": ns} for n, (part, ns) in enumerate(waits)
        )),
    )  # fmt: skip
    assert found["ns"].sum() == step_ns
    points: list[float] = found["mfu_points"].to_list()
    assert abs(sum(points) - 1.0) < 1e-9 * max(1.0, *map(abs, points))
