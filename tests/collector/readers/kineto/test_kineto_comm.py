"""Which kernels of a GPU communicate is told by how their own names begin, and by nothing else."""

from __future__ import annotations

import pytest

from npuscope.collector.readers.kineto.gpu_comm import (
    VARIABLE,
    CommKernels,
    function_of,
    kernel_rows,
    parse_comm_kernels,
    site_kernels,
)
from tests.collector.readers.kineto.written_kineto import FLASH

COMMUNICATION = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "allReduce",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)": "allReduce",
    "ncclDevKernel_ReduceScatter_Sum_f32_TREE_LL128(x)": "reduceScatter",
    "ncclDevKernel_AllGather_RING_LL": "allGather",
    "ncclDevKernel_Broadcast_RING_SIMPLE(x)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(x)": "reduce",
    "ncclDevKernel_SendRecv(x)": "batchSendRecv",
    "ncclDevKernel_Generic_4(x)": None,
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(x)": "allReduce",
    "nccl:all_reduce": "allReduce",
    "rcclGenericKernel<1, false>(ncclDevComm*)": None,
    "void deep_ep::intranode::dispatch<8, 768, 4096>(int4*, float*)": "allToAllV",
    "void deep_ep::internode_ll::combine<true, 7168>(void*)": "allToAllV",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": "allToAll",
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": "barrier",
    "void deep_ep::intranode::barrier<8>(int**, int)": "barrier",
    "void dpsk::ep::dispatch(int*)": "allToAllV",
    "void dpsk::ep::cuda::combine<8, 1>(__nv_bfloat16*)": "allToAllV",
    "void dpsk::ep::cuda::notify_dispatch<8>(int const*)": "allToAll",
    "void dpsk::ep::cuda::cached_notify_combine<8>(void**)": "barrier",
    "void deep_ep::internode::cached_notify<true>(int)": "barrier",
    "void deep_ep::internode_ll::clean_low_latency_buffer<32>(int*)": "barrier",
    "nvshmemi_alltoall_on_stream_kernel(int)": "allToAll",
    "void nvshmemx_barrier_all_on_stream_kernel<x>(int)": "barrier",
    "mscclKernel_Sum_float_LL_RunLocal(x)": None,
    "void mscclpp::allgather<int>(x)": "allGather",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 8>(x)": "allReduce",
}
COMPUTING = [
    FLASH,
    "void cutlass::Kernel2<deep_ep::Tile, ncclFloat>(Params)",
    "void at::native::elementwise_kernel<128, 4, nccl::all_reduce>(int)",
    "void my::ncclLike(int)",
    "sum_of_barriers(deep_ep::intranode::dispatch*)",
    "all_reduce_gradients_locally(float*)",
    "std::enable_if<!(deep_ep::x), void>::type internal::gemvx::kernel<int>(nccl)",
    "void deep_ep::layout::get_dispatch_layout<256, 4>(int)",
    "void dpsk::ep::cuda::get_dispatch_layout<8, 32, 256>(int const*, int*)",
    "dpsk::ep::get_dispatch_layout(int const*)",
    "void deep_ep::internode_ll::query_mask_buffer<256>(int*, int, int*)",
    "void deep_ep::internode_ll::update_mask_buffer(int*, int, bool)",
    "void deep_ep::internode_ll::clean_mask_buffer<32>(int*, int)",
    "void nvshmemi_init_array_kernel<unsigned long>(unsigned long*, int, unsigned long)",
    "void oneRankReduce<FuncPreMulSum<float> >(void*, void*, unsigned long)",
    "triton_poi_fused_nccl_0",
    "Barrier",
    "",
]


@pytest.mark.parametrize(("name", "op_type"), COMMUNICATION.items())
def test_communication(name: str, op_type: str | None) -> None:
    assert CommKernels().is_comm(name)
    assert CommKernels().op_type(name) == op_type


@pytest.mark.parametrize("name", COMPUTING)
def test_computing(name: str) -> None:
    assert not CommKernels().is_comm(name)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void a::b<c::d<e>>(f::g)", "a::b"),
        ("a::b", "a::b"),
        ("  void at::(anonymous namespace)::k<1>(x)", "at::k"),
        ("unsigned long const* a::b(int)", "a::b"),
        ("k(x)", "k"),
        ("", ""),
    ],
)
def test_a_kernels_own_name(name: str, function: str) -> None:
    assert function_of(name) == function


def test_what_a_site_adds_is_asked_first_and_never_inside_a_name() -> None:
    own = parse_comm_kernels("acme::, acme::a2a::=all_to_all_v, quick_=fancyExchange,, =x")

    assert own.own == (("acme::a2a::", "allToAllV"), ("acme::", None), ("quick_", "fancyExchange"))
    assert own.op_type("void acme::a2a::reduce<1>(x)") == "allToAllV"
    assert own.op_type("void acme::all_gather_v2<1>(x)") == "allGather"
    assert own.op_type("quick_all_gather(x)") == "fancyExchange"
    assert not own.is_comm("void other<acme::T>(acme::a2a::P)")
    assert own.is_comm("ncclDevKernel_SendRecv(x)")
    layout = "void dpsk::ep::cuda::get_dispatch_layout<8>(int)"
    assert parse_comm_kernels("dpsk::ep::cuda::get_dispatch_layout").is_comm(layout)


def test_the_environment_in_any_order_is_one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert site_kernels() is None
    monkeypatch.setenv(VARIABLE, " b::=allreduce,  aa::")
    first = site_kernels()
    monkeypatch.setenv(VARIABLE, "aa::,b::=all_reduce")
    assert first == site_kernels() == "aa::, b::=allReduce"
    assert parse_comm_kernels(first) == parse_comm_kernels("aa::,b::=allreduce")


def test_algorithms_of_names() -> None:
    names = [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
        "ncclKernel_AllReduce_TREE_LL128_Sum_float(x)",
        "ncclDevKernel_AllReduce_Sum_bf16_NVLS_TREE_SIMPLE(x)",
        "ncclDevKernel_SendRecv(RING_LL)",
        "void gemm_RING_LL(x)",
    ]
    assert kernel_rows(names, CommKernels())["algorithm"].to_pylist() == [
        "RING-LL", "TREE-LL128", "NVLS_TREE-SIMPLE", None,
    ]  # fmt: skip
