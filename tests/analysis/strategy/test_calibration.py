"""Constants out of captures: planted efficiencies come back."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest

from npuscope.analysis.strategy.calibration import calibrate, calibration
from npuscope.analysis.strategy.constants import default_constants
from npuscope.analysis.strategy.cost import step_parts
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.strategy.jobs import JOB
from tests.analysis.tables import Row, connect, fill, kernel, put

_PEAK = 20 * 1800e6 * 8192
_RANK = {"chip_name": "Ascend910B3", "ai_core_count": 20, "ai_core_frequency_mhz": 1800.0}
_LARGE = Job(layers=1, pp=1, dp=2, hidden=4096, ffn=4096, sequence=4096, steps=1, memory=False)


def _values(con: duckdb.DuckDBPyConnection) -> dict[str, float]:
    found = calibration(con).drop_nulls("value")
    return dict(found.select("constant", "value").iter_rows())


def _matmul(rows: int, inner: int, columns: int, efficiency: float, half: float) -> Row:
    small = 1 + half * (1 / rows + 1 / inner + 1 / columns)
    ns = 2e9 * rows * inner * columns * small / (_PEAK * efficiency)
    return kernel(
        0, round(ns), 1, type="MatMulV3", core="AI_CORE", block_count=20,
        input_shapes=f"{rows},{inner};{inner},{columns}", input_dtypes="DT_BF16;DT_BF16",
        output_shapes=f"{rows},{columns}", output_dtypes="DT_BF16",
    )  # fmt: skip


def test_efficiency_and_loss_of_small_matmuls() -> None:
    con = connect()
    fill(con, "ranks", [_RANK])
    sizes = [(4096, 4096, 4096), (8192, 512, 1024), (256, 4096, 512), (16384, 8192, 2048)]
    fill(con, "kernels", [_matmul(*size, 0.6, 250.0) for size in sizes])
    found = _values(con)
    assert found == pytest.approx({"matmul_efficiency": 0.6, "matmul_half_size": 250.0}, rel=1e-3)


def test_of_one_shape_the_efficiency_alone() -> None:
    con = connect()
    fill(con, "ranks", [_RANK])
    half = default_constants()["matmul_half_size"]
    fill(con, "kernels", [_matmul(2048, 4096, 1024, 0.4, half)] * 3)
    assert _values(con) == pytest.approx({"matmul_efficiency": 0.4}, rel=1e-3)


def test_what_a_generated_job_was_made_with() -> None:
    con = connect()
    put(con, canonical_frames(_LARGE))
    found = _values(con)
    assert found["matmul_efficiency"] == pytest.approx(0.7, rel=0.03)
    assert found["attention_backward"] == pytest.approx(2.5, rel=0.02)
    assert found["memory_bytes_per_s"] == pytest.approx(1.2e12, rel=0.05)
    assert found["hccs_link_bytes_per_s"] == pytest.approx(20e9, rel=0.02)
    assert found["operator_seconds"] == pytest.approx(10.4e-6, rel=0.1)


def test_slower_kernels_and_hosts_are_measured_as_planted() -> None:
    usual, slow = connect(), connect()
    put(usual, canonical_frames(_LARGE))
    job = replace(_LARGE, slow_kernel="MatMulV3", slow_kernel_factor=1.5, host_op_ns=40_000)
    put(slow, canonical_frames(job))
    before, after = _values(usual), _values(slow)
    assert before["matmul_efficiency"] / after["matmul_efficiency"] == pytest.approx(1.5, rel=0.01)
    assert after["expert_efficiency"] == pytest.approx(before["expert_efficiency"], rel=0.1)
    assert after["operator_seconds"] == pytest.approx(45e-6, rel=0.1)


def test_what_nothing_shows_is_kept() -> None:
    con = connect()
    rows = calibration(con)
    assert rows["value"].null_count() == len(rows) == len(default_constants())
    assert calibrate(rows) == default_constants()
    # Attention over all pairs has no triangle: blocks of context parallel off the diagonal.
    fill(con, "ranks", [_RANK])
    fill(con, "kernels", [kernel(
        0, 500_000, 1, type="FlashAttentionScore", core="MIX_AIC", block_count=20,
        input_shapes="1,2048,1024;1,4096,1024;1,4096,1024;;;;;;", input_dtypes="DT_BF16",
        output_shapes="1,8,2048,8;1,8,2048,8;;1,2048,1024", output_dtypes="FLOAT",
    )] * 3)  # fmt: skip
    assert _values(con) == {}


def test_a_prediction_by_measured_constants() -> None:
    con = connect()
    fill(con, "ranks", [_RANK])
    half = default_constants()["matmul_half_size"]
    fill(con, "kernels", [_matmul(2048, 4096, 1024, 0.3826, half)] * 3)
    usual, slow = (
        step_parts(JOB, constants)["matmul"]
        for constants in (default_constants(), calibrate(calibration(con)))
    )
    assert slow / usual == pytest.approx(2.0, rel=1e-3)
