"""Kernels by operator type: names, cores, shapes, and durations from the work they do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

AI_CORES = 20
FREQUENCY_MHZ = 1800
CUBE_CORES = ("AI_CORE", "MIX_AIC")
_FLOPS_PER_NS = AI_CORES * 8192 * FREQUENCY_MHZ / 1000 * 0.7  # 70 % of the cube peak
_BYTES_PER_NS = 1200.0

# A job launches the same few kernels over and over.
_share = lru_cache(maxsize=4096)

# of each type: aclnn interface, kernel, accelerator core, framework operator
_KINDS = {
    "Add": ("aclnnAdd", "AddAiCore", "AI_VECTOR_CORE", "aten::add"),
    "AddRmsNorm": (
        "aclnnAddRmsNorm", "AddRmsNorm", "AI_VECTOR_CORE", "npu::npu_add_rms_norm",
    ),
    "Adds": ("aclnnAdds", "AddsAiCore", "AI_VECTOR_CORE", "aten::add"),
    "ApplyAdamWV2": (
        "aclnnApplyAdamWV2", "ApplyAdamWV2", "AI_VECTOR_CORE",
        "npu::npu_apply_adam_w",
    ),
    "Cast": ("aclnnCast", "CastAiCore", "AI_VECTOR_CORE", "aten::to"),
    "DSAGenBitMask": (
        "aclnnDropoutGenMaskV2", "DSAGenBitMask", "DSA_SQE",
        "npu::_npu_dropout_gen_mask",
    ),
    "EmbeddingDenseGradV2": (
        "aclnnEmbeddingDenseBackward", "EmbeddingDenseGradV2", "MIX_AIV",
        "EmbeddingBackward0",
    ),
    "FlashAttentionScore": (
        "aclnnFlashAttentionScore", "FlashAttentionScore", "MIX_AIC",
        "npu::npu_fusion_attention",
    ),
    "FlashAttentionScoreGrad": (
        "aclnnFlashAttentionScoreGrad", "FlashAttentionScoreGrad", "MIX_AIC",
        "npu::npu_fusion_attention_grad",
    ),
    "GatherV2": ("aclnnEmbedding", "GatherV2AiCore", "AI_VECTOR_CORE", "aten::embedding"),
    "GroupedMatmul": (
        "aclnnGroupedMatmulV4", "GroupedMatmul", "MIX_AIC",
        "npu::npu_grouped_matmul",
    ),
    "LogSoftmaxV2": ("aclnnLogSoftmax", "LogSoftmaxV2", "AI_VECTOR_CORE", "aten::log_softmax"),
    "MatMulV3": ("aclnnMatmul", "MatMulV3Common", "AI_CORE", "aten::matmul"),
    "MoeGatingTopKSoftmax": (
        "aclnnMoeGatingTopKSoftmax", "MoeGatingTopKSoftmax", "MIX_AIV",
        "npu::npu_moe_gating_top_k_softmax",
    ),
    "MoeTokenPermute": (
        "aclnnMoeTokenPermute", "MoeTokenPermute", "AI_VECTOR_CORE",
        "npu::npu_moe_token_permute",
    ),
    "MoeTokenPermuteGrad": (
        "aclnnMoeTokenPermuteGrad", "MoeTokenPermuteGrad", "AI_VECTOR_CORE",
        "NpuMoeTokenPermuteBackward0",
    ),
    "MoeTokenUnpermute": (
        "aclnnMoeTokenUnpermute", "MoeTokenUnpermute", "AI_VECTOR_CORE",
        "npu::npu_moe_token_unpermute",
    ),
    "MoeTokenUnpermuteGrad": (
        "aclnnMoeTokenUnpermuteGrad", "MoeTokenUnpermuteGrad", "AI_VECTOR_CORE",
        "NpuMoeTokenUnpermuteBackward0",
    ),
    "Mul": ("aclnnMul", "MulAiCore", "AI_VECTOR_CORE", "aten::mul"),
    "Muls": ("aclnnMuls", "MulsAiCore", "AI_VECTOR_CORE", "aten::mul"),
    "RandomChoiceWithMask": ("aclnnRandperm", "RandomChoiceWithMask", "AI_CPU", "aten::randperm"),
    "RmsNorm": ("aclnnRmsNorm", "RmsNorm", "AI_VECTOR_CORE", "npu::npu_rms_norm"),
    "RmsNormGrad": ("aclnnRmsNormGrad", "RmsNormGrad", "MIX_AIV", "NpuRmsNormBackward0"),
    "RotaryPositionEmbedding": (
        "aclnnRotaryPositionEmbedding", "RotaryPositionEmbedding", "AI_VECTOR_CORE",
        "npu::npu_rotary_mul",
    ),
    "Sigmoid": ("aclnnSigmoid", "SigmoidAiCore", "AI_VECTOR_CORE", "aten::sigmoid"),
    "SwiGlu": ("aclnnSwiGlu", "SwiGlu", "AI_VECTOR_CORE", "npu::npu_swiglu"),
    "SwiGluGrad": ("aclnnSwiGluGrad", "SwiGluGrad", "AI_VECTOR_CORE", "NpuSwigluBackward0"),
    "TransData": (
        "aclnnNpuFormatCast", "TransDataAiCore", "AI_VECTOR_CORE",
        "npu::npu_format_cast",
    ),
    "ZerosLike": ("aclnnInplaceZero", "ZerosLikeAiCore", "AI_VECTOR_CORE", "aten::zero_"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel as the framework asks for it; shapes as the profiler prints them, unquoted."""

    type: str
    name: str
    core: str
    api: str
    operator: str
    input_shapes: str
    input_dtypes: str
    output_shapes: str
    output_dtypes: str
    dur_ns: int
    is_compute: bool = True

    @property
    def is_cube(self) -> bool:
        return self.core in CUBE_CORES

    @property
    def block_count(self) -> int:
        if self.core in CUBE_CORES:
            return AI_CORES
        return 2 * AI_CORES if self.core in ("AI_VECTOR_CORE", "MIX_AIV") else 1

    @property
    def mix_block_count(self) -> int:
        return 2 * AI_CORES if self.core == "MIX_AIC" else 0


def cube_ns(flops: float) -> int:
    """Time of a cube kernel."""
    return 6_000 + int(flops / _FLOPS_PER_NS)


START_NS = 4_000  # of a vector kernel


def vector_ns(size_bytes: float) -> int:
    """Time of a kernel bound by memory."""
    return START_NS + int(size_bytes / _BYTES_PER_NS)


@_share
def work(type_: str, inputs: str, outputs: str, dur_ns: int, dtype: str = "DT_BF16") -> Work:
    """A kernel of a known type; every tensor has one dtype, absent ones included."""
    api, kernel, core, operator = _KINDS[type_]
    return Work(
        type_, f"{api}_{kernel}_{type_}", core, api, operator,
        inputs, _each(inputs, dtype), outputs, _each(outputs, dtype), dur_ns,
    )  # fmt: skip


@_share
def matmul(rows: int, inner: int, columns: int) -> Work:
    """(rows x inner) times (inner x columns)."""
    shapes = f"{rows},{inner};{inner},{columns}"
    flops = 2.0 * rows * inner * columns
    return work("MatMulV3", shapes, f"{rows},{columns}", cube_ns(flops))


@_share
def elementwise(type_: str, rows: int, columns: int) -> Work:
    """Two tensors in, one out, bound by memory."""
    shape = f"{rows},{columns}"
    return work(type_, f"{shape};{shape}", shape, vector_ns(6.0 * rows * columns))


@_share
def norm(rows: int, columns: int, *, of_sum: bool) -> Work:
    """The norm of a tensor; `of_sum`: of the sum of two, which is written, too, in one kernel."""
    if not of_sum:
        return elementwise("RmsNorm", rows, columns)
    shape, factors = f"{rows},{columns}", f"{rows},1"
    size_bytes = 8.0 * rows * columns + 2.0 * columns + 4.0 * rows
    inputs, outputs = f"{shape};{shape};{columns}", f"{shape};{factors};{shape}"
    one = work("AddRmsNorm", inputs, outputs, vector_ns(size_bytes))
    return replace(one, output_dtypes="DT_BF16;FLOAT;DT_BF16")


@_share
def attention(sequence: int, hidden: int, *, backward: bool) -> Work:
    """Causal attention: two matmuls forward, five backward, over half of the scores."""
    token = f"{sequence},1,{hidden}"
    forward_flops = 2.0 * sequence * sequence * hidden
    if backward:
        inputs = f"{token};{token};{token};{token};;;;2048,2048;;;;{token};;"
        outputs = f"{token};{token};{token};"
        return work("FlashAttentionScoreGrad", inputs, outputs, cube_ns(2.5 * forward_flops))
    inputs = f"{token};{token};{token};;;;2048,2048;;;;;;;;"
    outputs = f"1,16,{sequence},8;1,16,{sequence},8;;{token}"
    return work("FlashAttentionScore", inputs, outputs, cube_ns(forward_flops))


@_share
def grouped_matmul(tokens: int, experts: int, inner: int, columns: int) -> Work:
    """All local experts at once; the leading dimension of the first input is their tokens."""
    inputs = f"{tokens},{inner};{experts},{inner},{columns};;;;;{experts};"
    flops = 2.0 * tokens * inner * columns
    return work("GroupedMatmul", inputs, f"{tokens},{columns}", cube_ns(flops))


def aiv_collective(dur_ns: int) -> Work:
    """The kernel by which HCCL runs a small collective on vector cores: it is no computing."""
    name = "aiv_all_reduce_float_AivKernel"
    return Work(
        name, name, "AI_VECTOR_CORE", "aclrtLaunchKernel", "c10d::allreduce_",
        "", "N/A", "", "N/A", dur_ns, is_compute=False,
    )  # fmt: skip


def _each(shapes: str, value: str) -> str:
    return ";".join([value] * (shapes.count(";") + 1))
