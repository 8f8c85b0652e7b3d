"""Colours of operators on a timeline: what multiplies is what `npuscope operators` counts so."""

from __future__ import annotations

import pytest

from npuscope.analysis.flops.kernels.kernel_flops import flops_of
from npuscope.analysis.operators.classes import class_of
from npuscope.analysis.timeline.operator_classes import operator_class


@pytest.mark.parametrize(
    ("type_", "colour", "counted"),
    [
        ("MatMulV3", "matmul", "matmul"),
        ("aclnnMatmul_MatMulCommon_MatMulV2", "matmul", "matmul"),
        ("GroupedMatmul", "matmul", "matmul_grouped"),
        ("Conv2D", "matmul", "convolution"),
        ("FlashAttentionScore", "attention", "attention_forward"),
        ("FlashAttentionScoreGrad", "attention", "attention_backward"),
        ("SoftmaxV2", "vector", "vector"),
        ("RotaryMul", "vector", "vector"),
        ("RmsNorm", "norm", "vector"),
    ],
)
def test_what_multiplies_is_the_same_everywhere(type_: str, colour: str, counted: str) -> None:
    core = "AI_VECTOR_CORE"
    known = flops_of(type_)
    assert operator_class(type_, core) == colour
    assert class_of(type_, core, known.family if known else None) == counted
