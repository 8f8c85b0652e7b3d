"""FLOPs of kernels from shapes: every rule, and what is left unresolved."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npuscope.analysis.flops.kernels.kernel_flops import RULES, KernelFlops, flops_of
from npuscope.analysis.flops.kernels.shapes import Tensor, tensors

sizes = st.integers(1, 300)
BF16 = "DT_BF16;DT_BF16"


def flops(
    kind: str, inputs: str, outputs: str, *, dtypes: str = BF16, formats: str = "",
    output_format: str = "ND",
) -> KernelFlops:  # fmt: skip
    found = flops_of(kind, inputs, dtypes, formats, outputs, "DT_BF16", output_format)
    assert found is not None
    return found


def cell(*shapes: tuple[int, ...]) -> str:
    return ";".join(",".join(map(str, shape)) for shape in shapes)


def blocks(rows: int, columns: int, block: int = 16) -> tuple[int, ...]:
    return (-(-columns // block), -(-rows // 16), 16, block)


def test_cells() -> None:
    assert tensors('"32,3;;7"', "DT_BF16;FLOAT", "FORMAT_ND;ND") == (
        Tensor((32, 3), "bf16", "ND"),
        None,
        Tensor((7,)),
    )
    assert tensors(None) == tensors("") == tensors('""') == tensors("N/A") == ()
    assert Tensor((3, 5), "int4").size_bytes == 8
    assert Tensor((3, 5), "bf16").size_bytes == 30
    assert Tensor((3,)).size_bytes is None
    with pytest.raises(ValueError, match="unknown"):
        tensors("-1,3")


@given(sizes, sizes, sizes, st.lists(st.integers(1, 5), max_size=2), st.booleans(), st.booleans())
@example(16, 16, 16, [], True, False)
@example(1, 1, 1, [], False, False)
def test_matrix_products_however_transposed(
    m: int, n: int, k: int, batch: list[int], turn_x: bool, turn_w: bool
) -> None:
    x, w = ((k, m) if turn_x else (m, k)), ((n, k) if turn_w else (k, n))
    many = 2 * m * n * k
    for size in batch:
        many *= size
    found = flops("BatchMatMulV2", cell((*batch, *x), (*batch, *w)), cell((*batch, m, n)))
    assert (found.full, found.causal, found.reason) == (many, many, None)
    found = flops("MatMulV3", cell((*batch, m, k), w), cell((*batch, m, n)))
    assert found.full == many


@given(sizes, sizes, sizes, st.booleans())
def test_blocked_layouts(m: int, n: int, k: int, turned: bool) -> None:
    """A blocked weight beside plain inputs: sizes stay exact. All blocked: rounded, and said so."""
    w = blocks(n, k) if turned else blocks(k, n)
    found = flops("MatMulV2", cell((m, k), w), cell((m, n)), formats="ND;FRACTAL_NZ")
    assert (found.full, found.is_rounded) == (2 * m * n * k, False)
    whole = [-(-size // 16) * 16 for size in (m, n, k)]
    found = flops(
        "MatMulV2", cell(blocks(m, k), w), cell(blocks(m, n)), formats="FRACTAL_NZ;FRACTAL_NZ",
        output_format="FRACTAL_NZ",
    )  # fmt: skip
    assert (found.full, found.is_rounded) == (2 * whole[0] * whole[1] * whole[2], True)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "expected"),
    [
        ("MatMulV3", "4096,1024;6144,1024;6144", "4096,6144", 2 * 4096 * 1024 * 6144),
        ("MatMulCommon", "2,512,64;64,96", "1024,96", 2 * 1024 * 64 * 96),
        ("MatMulV2", "128,64;64", "128", 2 * 128 * 64),
        ("MatMulV2", "64;64,32", "32", 2 * 64 * 32),
        ("BatchMatMulV3", "8,1,128,64;1,4,64,32", "8,4,128,32", 2 * 32 * 128 * 64 * 32),
        ("TransposeBatchMatMul", "70,8,64;8,64,32", "70,256", 2 * 8 * 70 * 64 * 32),
        ("WeightQuantBatchMatmulV2", "48,64;64,4", "48,32", 2 * 48 * 64 * 32),  # int4 in int32
        ("QuantBatchMatmulV3", "48,64;32,64;32", "48,32", 2 * 48 * 64 * 32),
        ("AllGatherMatmul", "16,64;64,32", "64,32;64,64", 2 * 64 * 64 * 32),
        ("MatmulReduceScatter", "64,48;48,32", "16,32", 2 * 64 * 48 * 32),
        ("MatmulAllReduce", "2,32,48;48,30", "2,32,30", 2 * 64 * 48 * 30),
        ("AlltoAllAllGatherBatchMatMul", "8,10,64;2,64,48", "2,80,48", 2 * 160 * 64 * 48),
        ("BatchMatMulReduceScatterAlltoAll", "2,80,48;2,48,64", "8,10,64", 2 * 160 * 48 * 64),
        ("AlltoAllvGroupedMatMul", "30,64;4,64,48", "37,48", 2 * 37 * 64 * 48),
        ("GroupedMatMulAlltoAllv", "37,64;4,64,48", "30,48", 2 * 37 * 64 * 48),
        ("GroupedMatmul", "2904,1024;4,1024,1408;;;;;4;", "2904,1408", 2 * 2904 * 1024 * 1408),
        ("GroupedMatmul", "290,64;4,96,64", "290,96", 2 * 290 * 64 * 96),  # transposed weights
        ("GroupedMatmul", "290,64;64,96;64,96", "290,96", 2 * 290 * 64 * 96),  # listed weights
        ("GroupedMatmul", "290,64;290,96", "4,64,96", 2 * 290 * 64 * 96),  # weights' gradients
        ("GroupedMatmul", "64,290;290,96", "4,64,96", 2 * 290 * 64 * 96),
        # Added to gradients that lie below each other: x, gradient of the result, groups, sum.
        ("GroupedMatmulAdd", "290,64;290,96;4;256,96", "256,96", 2 * 290 * 64 * 96),
        ("GroupedMatmul", "9,64;7,64;64,96;64,96", "9,96;7,96", 2 * 16 * 64 * 96),
        ("GroupedMatmulSwigluQuant", "290,64;4,64,96", "290,48;290", 2 * 290 * 64 * 96),
    ],
)
def test_products(kind: str, inputs: str, outputs: str, expected: int) -> None:
    found = flops(kind, inputs, outputs)
    assert (found.full, found.causal, found.reason) == (expected, expected, None)
    assert found.family == "matmul"


def test_grouped_with_blocked_weights() -> None:
    found = flops(
        "GroupedMatmul", cell((290, 60), (4, *blocks(60, 90))), "290,90", formats="ND;FRACTAL_NZ"
    )
    assert found.full == 2 * 290 * 60 * 90


def test_type_and_bytes_are_those_of_the_matrices() -> None:
    found = flops("MatMulV3", "4,6;6,8", "4,8")
    assert (found.dtype, found.moved_bytes) == ("bf16", 2 * (24 + 48 + 32))
    assert flops("MatMulV3", "4,6;6,8", "4,8", dtypes="").moved_bytes is None
    assert flops("QuantBatchMatmulV3", "4,6;6,8", "4,8", dtypes="INT8;INT8").dtype == "int8"


# Query, key, value; then the statistics that the forward returns.
def attention(
    q: str, k: str, v: str, statistic: str, result: str = "", rotated: str = ""
) -> KernelFlops:
    return flops(
        "FlashAttentionScore", f"{q};{k};{v};;;;2048,2048;;;;;;;;{rotated}",
        f"{statistic};{statistic};;{result or q}", dtypes="",
    )  # fmt: skip


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(13, 70),
    st.sampled_from([64, 128, 192]), st.sampled_from([64, 128]),
)  # fmt: skip
def test_attention_in_every_layout(
    batch: int, kv_heads: int, shared: int, length: int, width: int, value_width: int
) -> None:
    """Both products over all pairs, counted by hand: GQA and narrower values included."""
    heads = kv_heads * shared
    pairs = batch * heads * length * length
    expected = 2 * pairs * width + 2 * pairs * value_width
    b, n, g, s = batch, heads, kv_heads, length
    statistic = cell((b, n, s, 8))
    for q, k, v in (
        ((b, s, n * width), (b, s, g * width), (b, s, g * value_width)),
        ((s, b, n * width), (s, b, g * width), (s, b, g * value_width)),
        ((b, n, s, width), (b, g, s, width), (b, g, s, value_width)),
        ((b, s, n, width), (b, s, g, width), (b, s, g, value_width)),
    ):
        found = attention(cell(q), cell(k), cell(v), statistic)
        assert (found.full, found.causal) == (expected, expected // 2)
        assert (found.tokens, found.sequence_length) == (b * s, s)
        # The rotated halves as tensors of their own: scores take both, values neither.
        apart = ";".join(cell((*map(int, one.split(",")[:-1]), int(one.split(",")[-1]) // 2))
                         for one in (cell(q), cell(k)))  # fmt: skip
        found = attention(cell(q), cell(k), cell(v), statistic, rotated=f";{apart}")
        assert found.full == expected + pairs * width


def test_attention_of_the_record() -> None:
    """Tensors as a profile of Qwen3 0.6B has them; the backward is 2.5 times the forward."""
    q, k, statistic = "4096,1,2048", "4096,1,1024", "1,16,4096,8"
    forward = attention(q, k, k, statistic)
    assert (forward.full, forward.causal) == (137438953472, 68719476736)
    given_ = f"{q};{k};{k};{q};2048,2048;{statistic};{statistic};;{q};;;;;;"
    backward = flops("FlashAttentionScoreGrad", given_, f"{q};{k};{k};;;")
    assert (backward.full, backward.causal) == (343597383680, 171798691840)
    # Parts of queries and keys that are rotated stand behind all else; statistics are none.
    head, shared, narrow = "1,16,4096,128", "1,8,4096,128", "1,16,4096,64;1,8,4096,64"
    given_ = f"{head};{shared};{shared};{head};2048,2048;{statistic};{statistic};;{head};;;;;;"
    for rotated, width in ("", 128), (f";;;{narrow}", 192):
        found = flops("FlashAttentionScoreGrad", f"{given_}{rotated}", f"{head};{shared};{shared}")
        assert found.full == 5 * 16 * 4096 * 4096 * (width + 128)
    # Without statistics: a sequence of one key would be no attention.
    alone = flops(
        "FlashAttentionScoreGrad", f"{q};{q};{q};{q};;;;2048,2048;;;;{q};;", f"{q};{q};{q};"
    )
    assert alone.full == 343597383680


def test_as_many_heads_as_positions_can_be_either() -> None:
    found = attention("1,4,4,64", "1,2,4,64", "1,2,4,64", "1,4,4,8")
    assert found.full is None and "sequence dimension" in str(found.reason)


def test_attention_over_more_keys_than_queries_has_no_causal_count() -> None:
    found = attention("1,64,256", "1,128,256", "1,128,256", "1,2,64,8")
    assert (found.full, found.causal) == (2 * 2 * 64 * 128 * 256, None)
    for mask, share in (("", 1), ("1,1,64,64", 2), ("70,70", 2), ("2048,2048", 2)):
        found = flops(
            "FlashAttentionScore", f"1,64,256;1,64,256;1,64,256;;;;{mask};;", "1,2,64,8;1,2,64,8",
            dtypes=";".join(["DT_BF16"] * 6 + ["BOOL" if mask == "70,70" else "DT_BF16"]),
        )  # fmt: skip
        assert found.full == 2 * 2 * 64 * 64 * 256
        assert found.causal == found.full // share


def test_sequences_one_behind_the_other() -> None:
    def of(lengths: str, dtypes: str) -> KernelFlops:
        return flops(
            "FlashAttentionScore", f"96,4,64;96,4,64;96,4,64;;;;2048,2048;;{lengths};{lengths}",
            "96,4,8;96,4,8;;96,4,64", dtypes=dtypes,
        )  # fmt: skip

    kinds = "DT_BF16;DT_BF16;DT_BF16;DT_BF16;UINT8;DT_BF16;BOOL;INT64;INT64;INT64"
    assert of("1", kinds).full == 4 * 96 * 96 * 4 * 64
    several = of("3", kinds)
    assert several.full is None and "lengths" in str(several.reason)
    assert of("", kinds).full is None


@pytest.mark.parametrize(
    ("q", "statistic"),
    [
        ("64,64,512", ""),  # as wide as one head: heads one behind the other, or all of them?
        ("64,32,1024", ""),  # which is the sequence?
        ("64,2,1024", "2,8,65,8"),
        ("64,2,1025", "2,8,64,8"),
        ("64,1024", "2,8,64,8"),
    ],
)
def test_attention_that_is_not_told(q: str, statistic: str) -> None:
    found = attention(q, q, q, statistic)
    assert found.full is None and found.causal is None and found.reason


# Both spellings of the second convolution of AlexNet on 32 images of 27 x 27.
EXPECTED = 2 * 32 * 192 * 27 * 27 * 64 * 25


@pytest.mark.parametrize(
    ("kind", "inputs", "formats", "output", "output_format", "is_rounded"),
    [
        ("Conv2D", "32,64,27,27;192,64,5,5;192", "NCHW;NCHW;ND", "32,192,27,27", "NCHW", False),
        ("Conv2D", "32,27,27,64;5,5,64,192", "NHWC;HWCN", "32,27,27,192", "NHWC", False),
        ("Conv2D", "32,8,27,27,8;200,12,16,8;192", "NC1HWC0;FRACTAL_Z;NCHW", "32,24,27,27,8",
         "NC1HWC0", True),
        ("Conv2DBackpropInput", "4;200,12,16,8;32,24,27,27,8", "NCHW;FRACTAL_Z;NC1HWC0",
         "32,8,27,27,8", "NC1HWC0", True),
        ("Conv2DBackpropFilter", "32,8,27,27,8;4;32,24,27,27,8", "NC1HWC0;NCHW;NC1HWC0",
         "200,12,16,8", "FRACTAL_Z", True),
        ("Conv3DBackpropFilterV2", "32,64,1,27,27;5;32,192,1,27,27", "NCDHW;ND;NCDHW",
         "192,64,1,5,5", "NCDHW", False),
    ],
)  # fmt: skip
def test_convolutions(
    kind: str, inputs: str, formats: str, output: str, output_format: str, is_rounded: bool
) -> None:
    found = flops(kind, inputs, output, formats=formats, output_format=output_format, dtypes="")
    assert (found.full, found.is_rounded, found.reason) == (EXPECTED, is_rounded, None)
    assert found.family == "convolution"


def test_groups_of_a_convolution_are_in_its_filter() -> None:
    found = flops("Conv2D", "2,64,9,9;64,1,3,3", "2,64,9,9", formats="NCHW;NCHW",
                  output_format="NCHW")  # fmt: skip
    assert found.full == 2 * (2 * 64 * 81) * 9


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("MatMulV3", "4,6;7,8", "4,8"),
        ("MatMulV3", "4,6", "4,8"),
        ("MatMulV3", "", ""),
        ("MatMulV3", "4,-1;6,8", "4,8"),
        ("MatMulV3", "4,6;6,8", ""),
        ("MatMulV3", "5,4,6;6,8", "4,8"),
        ("TransposeBatchMatMul", "70,8,64;8,64,32", "70,255"),
        ("QuantBatchMatmulV3", "48,64;63,5", "48,32"),
        ("GroupedMatmul", "290,64;4,63,96", "290,96"),
        ("GroupedMatmul", "290,64;291,96", "4,64,96"),
        ("AllGatherMatmul", "16,64;63,32", "64,32"),
        ("AlltoAllvGroupedMatMul", "30,64;4,64,48;4;4;9,64;64,48", "37,48;9,48"),
        ("FusedInferAttentionScore", "4,6;7,8", "4,8"),
        ("FlashAttentionScore", "4,6;7,8", "4,8"),
        ("Conv2D", "32,1,224,224,8;121,4,16,8;64", "32,8,55,55,8"),
        ("Conv2D", "32,3,224,224", "32,8,55,55"),
        ("Conv2DTranspose", "2,64,9,9;64,1,3,3", "2,64,9,9"),
        ("NewestMatmulOfAll", "4,6;6,8", "4,8"),
    ],
)
def test_unresolved_says_why(kind: str, inputs: str, outputs: str) -> None:
    found = flops(kind, inputs, outputs, formats="NC1HWC0;FRACTAL_Z" if "Conv" in kind else "",
                  output_format="NC1HWC0" if "Conv" in kind else "ND")  # fmt: skip
    assert (found.full, found.causal) == (None, None)
    assert found.reason


@pytest.mark.parametrize("kind", [None, "", "Add", "SwiGlu", "RingAttentionUpdate", "Transpose"])
def test_other_types_have_no_flops(kind: str | None) -> None:
    assert flops_of(kind, "4,6;6,8", BF16, "ND;ND", "4,8", "DT_BF16", "ND") is None


def test_families_by_type() -> None:
    assert {family for _, family, _ in RULES} == {"matmul", "attention", "convolution"}
    for kind, family in (
        ("FlashAttentionScoreGrad", "attention"),
        ("MatmulAllReduceAddRmsNorm", "matmul"),
        ("Conv3DBackpropInputV2", "convolution"),
    ):
        found = flops_of(kind)
        assert found is not None and found.family == family


KINDS = ["MatMulV3", "TransposeBatchMatMul", "QuantBatchMatmulV3", "GroupedMatmul",
         "AllGatherMatmul", "MatmulReduceScatter", "FlashAttentionScore",
         "FlashAttentionScoreGrad", "Conv2D", "Conv2DBackpropFilter"]  # fmt: skip
some_tensors = st.lists(
    st.lists(st.sampled_from([0, 1, 2, 8, 16, 64]), max_size=5), min_size=1, max_size=6
)


@given(
    st.sampled_from(KINDS), some_tensors, some_tensors,
    st.sampled_from(["", "ND;ND", "FRACTAL_NZ;FRACTAL_NZ;FRACTAL_NZ", "NC1HWC0;FRACTAL_Z"]),
)  # fmt: skip
@example("GroupedMatmul", [[0, 64], [4, 64, 16]], [[0, 16]], "")
@example("GroupedMatmul", [[8, 0], [8, 16]], [[4, 0, 16]], "")
@example("FlashAttentionScore", [[8, 2, 0]] * 3, [[2, 2, 8, 8]] * 2, "")
def test_any_shapes_give_flops_or_a_reason(
    kind: str, inputs: list[list[int]], outputs: list[list[int]], formats: str
) -> None:
    given_, made = (";".join(",".join(map(str, one)) for one in some) for some in (inputs, outputs))
    found = flops(kind, given_, made, formats=formats)
    assert (found.full is None) == (found.reason is not None)
    assert found.full is None or found.full >= 0


def test_no_tokens_are_no_flops() -> None:
    assert flops("GroupedMatmul", "0,64;4,64,16", "0,16").full == 0
