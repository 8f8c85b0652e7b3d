"""Operators by other names: what is the same work, and what is not."""

from __future__ import annotations

import json
from importlib import resources

import polars as pl
import pytest

from npuscope.analysis.compare.operator_names import same_work
from npuscope.analysis.compare.side import GPU, KERNEL, Side
from npuscope.analysis.compare.waterfall import waterfall

COMPUTING = pl.DataFrame(
    {"part": ["computing"], "name": [None], "ns": [0.0]},
    {"part": pl.String, "name": pl.String, "ns": pl.Float64},
)
STEPS = pl.DataFrame({"run": ["r"], "capture": ["c"], "step": [1], "step_ns": [100.0]})


@pytest.mark.parametrize(
    "names",
    [
        ("aten::_scaled_dot_product_flash_attention", "npu::npu_fusion_attention",
         "flash_attn::_flash_attn_forward", "aclnnFlashAttentionScore"),
        ("aten::_fused_adamw_", "npu::npu_apply_adam_w", "aclnnApplyAdamWV2"),
        ("aten::mm", "aten::matmul", "aclnnMm", "aclnnMatmul", "MatMulV2"),
        ("aten::copy_", "aclnnInplaceCopy", "aten::_to_copy", "npu::npu_dtype_cast"),
        ("aten::add.Tensor", "aten::add_", "aclnnAdd", "aclnnInplaceAdds"),
        ("aten::convolution_backward", "Conv2DBackpropFilter", "Conv2DBackpropInput"),
        ("aten::cudnn_convolution", "Conv2D", "npu::npu_conv2d"),
        ("aten::max_pool2d_with_indices_backward", "aclnnMaxPool2dWithMaskBackward"),
        ("aten::_fused_rms_norm", "npu::npu_rms_norm", "aclnnRmsNorm"),
        ("aten::embedding_dense_backward", "EmbeddingBackward0"),
        ("npu::npu_grouped_matmul", "aten::_grouped_mm", "aclnnGroupedMatmulV4"),
    ],
    ids=lambda names: names[0],
)  # fmt: skip
def test_the_same_work(names: tuple[str, ...]) -> None:
    assert len({same_work(name) for name in names}) == 1


def test_other_work_stays_other_work() -> None:
    names = (
        "aten::mm", "aten::bmm", "aten::add", "aten::mul", "npu::npu_fusion_attention",
        "npu::npu_fusion_attention_grad", "aten::softmax", "aten::log_softmax", "aten::relu",
        "npu::npu_rms_norm", "npu::npu_rms_norm_backward", "aten::copy_", "aten::sum",
        "npu::npu_format_cast", "npu::npu_swiglu", "aten::silu", "_", "aten::",
    )  # fmt: skip
    assert len({same_work(name) for name in names}) == len(names)


def test_the_list_has_each_name_once_in_its_plain_form() -> None:
    package = resources.files("npuscope.analysis.compare")
    known = json.loads(package.joinpath("operator_names.json").read_text("utf-8"))
    others = [one for names in known.values() for one in names]
    assert len(set(others)) == len(others) and not {*others} & {*known}
    assert all(same_work(name) == name for name in known)
    assert list(known) == sorted(known)


def side(framework: str, *kernels: tuple[str, str | None, str, float]) -> Side:
    """`kernels`: type, operator, name and time in ns."""
    rows = [
        {"type": type_, "name": name, "operator": operator, "shape": None, "core": None,
         "count": 1.0, "total_ns": ns}
        for type_, operator, name, ns in kernels
    ]  # fmt: skip
    schema = {**dict.fromkeys(KERNEL, pl.String), "count": pl.Float64, "total_ns": pl.Float64}
    computing = COMPUTING.with_columns(ns=pl.lit(sum(ns for *_, ns in kernels)))
    return Side(STEPS, computing, pl.DataFrame(rows, schema), {"framework": frozenset({framework})})


def test_a_gpu_and_an_npu_call_operators_by_other_names() -> None:
    flash = "aten::_scaled_dot_product_flash_attention"
    gpu = side(
        GPU, (flash, None, "flash_fwd", 40.0), ("aten::mm", None, "gemm", 30.0),
        ("aten::addmm", None, "gemm_bias", 5.0), ("aten::erfinv", None, "erfinv", 2.0),
    )  # fmt: skip
    npu = side(
        "pytorch", ("FlashAttentionScore", "npu::npu_fusion_attention", "fa", 30.0),
        ("MatMulV3", "aten::matmul", "mm", 50.0), ("TransData", "npu::npu_format_cast", "t", 7.0),
    )  # fmt: skip
    rows = waterfall(gpu, npu)
    told = {row["name"]: (row["change"], row["a_ns"], row["b_ns"]) for row in rows.to_dicts()}
    assert told[f"{flash} / npu::npu_fusion_attention"] == ("kernels", 40, 30)
    assert told["aten::addmm, aten::mm / aten::matmul"] == ("kernels", 35, 50)
    assert told["erfinv"] == ("gone", 2, 0) and told["TransData"] == ("new", 0, 7)
    assert rows["a_ns"].sum() == 100 and rows["b_ns"].sum() == 100


def test_types_that_both_have_stay_paired_by_type() -> None:
    ours = side("pytorch", ("Silu", "aten::silu", "s", 4.0), ("Mul", "aten::mul", "m", 5.0))
    theirs = side("pytorch", ("Swish", "npu::npu_silu", "w", 3.0), ("Mul", "aclnnMuls", "m", 6.0))
    told = {
        (row["name"], row["change"]): row["delta_ns"] for row in waterfall(ours, theirs).to_dicts()
    }
    assert told["aten::silu / npu::npu_silu", "kernels"] == -1
    assert told["Mul", "duration"] == 1
