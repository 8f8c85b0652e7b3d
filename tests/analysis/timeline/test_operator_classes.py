"""Colours of operators on a timeline: what multiplies is what `npuscope operators` counts so."""

from __future__ import annotations

import pytest

from npuscope.analysis.flops.kernels.kernel_flops import flops_of
from npuscope.analysis.operators.classes import class_of
from npuscope.analysis.timeline.operator_classes import operator_class


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("MatMulV3", "matmul"), ("aclnnMatmul_MatMulCommon_MatMulV2", "matmul"),
        ("GroupedMatmul", "matmul"), ("Conv2D", "matmul"),
        ("FlashAttentionScoreGrad", "attention"), ("FlashAttentionScore", "attention"),
        ("SoftmaxV2", "vector"), ("RotaryMul", "vector"), ("RmsNorm", "norm"),
    ],
)  # fmt: skip
def test_what_multiplies_is_the_same_everywhere(type_: str, expected: str) -> None:
    told = operator_class(type_, "AI_VECTOR_CORE")
    assert told == expected
    known = flops_of(type_)
    counted = class_of(type_, "AI_VECTOR_CORE", known.family if known else None)
    assert (told in counted) == (told in ("matmul", "attention", "vector") and type_ != "Conv2D")
