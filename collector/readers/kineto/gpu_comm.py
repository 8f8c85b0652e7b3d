"""Which kernels of a GPU are communication, and what a collective is called and counts in.

A kernel is communication by how its own name begins: a library's prefix or namespace.

    void deep_ep::internode::dispatch<true, 8>(int*, ...)      deep_ep::            communication
    ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm...)    nccl                 communication
    void dpsk::ep::cuda::get_dispatch_layout<8>(int const*...)  stays on its device  computing
    void flash::flash_bwd_dq_dk_dv<Barrier, nccl_t>(...)        flash::...           computing

What stands in template arguments or parameters is never looked at: names of barriers and of
libraries are there too. Sites add their own libraries by `NPUSCOPE_COMM_KERNELS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# How names begin: NCCL (ncclDevKernel_, ncclKernel_, nccl:) and RCCL, DeepEP and what follows it,
# NVSHMEM and rocSHMEM, MSCCL and MSCCL++, PyTorch's symmetric memory.
COMM_KERNELS = (
    "nccl", "rccl", "deep_ep::", "dpsk::ep::", "nvshmem", "rocshmem", "msccl",
    "c10d::symmetric_memory::", "multimem_", "one_shot_all_reduce", "two_shot_all_reduce",
)  # fmt: skip
# Their functions that neither move bytes between devices nor wait for another one: counting where
# tokens go, and filling or asking arrays of their own device. Whatever namespaces stand before.
_LOCAL = {
    ("deep_ep::", "dpsk::ep::"): frozenset({
        "get_dispatch_layout", "query_mask_buffer", "update_mask_buffer", "clean_mask_buffer",
    }),
    ("nvshmem",): frozenset({"nvshmemi_init_array_kernel"}),
}  # fmt: skip
VARIABLE = "NPUSCOPE_COMM_KERNELS"
RULE = "kineto.comm_kernels"

_ANONYMOUS = "(anonymous namespace)::"
_HEAD = re.compile(r"[^<(]*")
_WORDS = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
# A collective's words, joined in lower case, by our name.
_COLLECTIVES = {
    "allreduce": "allReduce", "allgather": "allGather", "allgatherv": "allGatherV",
    "reducescatter": "reduceScatter", "reducescatterv": "reduceScatterV", "alltoall": "allToAll",
    "alltoallv": "allToAllV", "broadcast": "broadcast", "bcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "send": "send", "recv": "receive",
    "receive": "receive", "sendrecv": "batchSendRecv", "batchsendrecv": "batchSendRecv",
    "barrier": "barrier",
}  # fmt: skip
# Functions of expert-parallel libraries. Tokens go to their experts and back; before, everybody
# tells everybody how many, or only waits for all.
_EXPERT = {
    "dispatch": "allToAllV", "combine": "allToAllV", "notify_dispatch": "allToAll",
    "cached_notify": "barrier", "cached_notify_dispatch": "barrier",
    "cached_notify_combine": "barrier", "clean_low_latency_buffer": "barrier",
}  # fmt: skip
_ALGORITHM = re.compile(
    r"_(RING|TREE|PAT|COLLNET(?:_DIRECT|_CHAIN)?|NVLS(?:_TREE)?)_(LL128|LL|SIMPLE)(?![a-z])", re.I
)
# torch.dtype's scalar types by the store's names; bytes of each.
_DATA_TYPES = {
    "float": ("FP32", 4), "double": ("FP64", 8), "half": ("FP16", 2), "bfloat16": ("BFP16", 2),
    "char": ("INT8", 1), "byte": ("UINT8", 1), "bool": ("UINT8", 1), "short": ("INT16", 2),
    "int": ("INT32", 4), "long": ("INT64", 8), "uint16": ("UINT16", 2), "uint32": ("UINT32", 4),
    "uint64": ("UINT64", 8), "float8_e4m3fn": ("FP8E4M3", 1), "float8_e4m3fnuz": ("FP8E4M3", 1),
    "float8_e5m2": ("FP8E5M2", 1), "float8_e5m2fnuz": ("FP8E5M2", 1),
    "float8_e8m0fnu": ("FP8E8M0", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommKernels:
    """Prefixes of kernels that are communication; of those of a site some name their type."""

    own: tuple[tuple[str, str | None], ...] = ()

    def is_comm(self, name: str) -> bool:
        """Whether a kernel communicates."""
        called = function_of(name)
        if any(called.startswith(prefix) for prefix, _ in self.own):
            return True
        last = called.rpartition("::")[2]
        stays = any(called.startswith(where) and last in names for where, names in _LOCAL.items())
        return called.startswith(COMM_KERNELS) and not stays

    def op_type(self, name: str) -> str | None:
        """The collective that a communication kernel's name tells; None where it tells none."""
        called = function_of(name)
        for prefix, kind in self.own:
            if kind and called.startswith(prefix):
                return kind
        last = called.rpartition("::")[2]
        return _EXPERT.get(last) or _collective(last)


def parse_comm_kernels(text: str) -> CommKernels:
    """`PREFIX[=OP_TYPE],...` as sites write it; the longest prefix is asked first."""
    kernels: dict[str, str | None] = {}
    for part in text.split(","):
        prefix, _, kind = (piece.strip() for piece in part.partition("="))
        if prefix:
            kernels[prefix] = (_collective(kind) or kind) if kind else None
    return CommKernels(tuple(sorted(kernels.items(), key=lambda one: (-len(one[0]), one[0]))))


def site_kernels() -> str | None:
    """What the environment adds, as one text whatever its order; None for nothing."""
    own = parse_comm_kernels(os.environ.get(VARIABLE, "")).own
    return ", ".join(prefix + (f"={kind}" if kind else "") for prefix, kind in own) or None


def function_of(name: str) -> str:
    """A kernel's own name with its namespaces: without result, template arguments, parameters."""
    rest = name.strip().replace(_ANONYMOUS, "")
    head = _HEAD.match(rest)
    called = head[0].rstrip() if head else rest
    return called.rpartition(" ")[2]


def _collective(name: str) -> str | None:
    """The first collective among the words of a name: all_reduce, AllReduce, allreduce."""
    words = [word.lower() for word in _WORDS.findall(name)]
    for place in range(len(words)):
        for length in (4, 3, 2, 1):
            collective = _COLLECTIVES.get("".join(words[place : place + length]))
            if collective:
                return collective
    return None


def kernel_rows(names: Iterable[str], kernels: CommKernels) -> pa.Table:
    """name, op_type, algorithm of those kernels that are communication."""
    import pyarrow as pa

    rows = [name for name in names if kernels.is_comm(name)]
    algorithms = [_ALGORITHM.search(function_of(name)) for name in rows]
    return pa.table(
        {
            "name": pa.array(rows, pa.string()),
            "op_type": pa.array([kernels.op_type(name) for name in rows], pa.string()),
            "algorithm": pa.array(
                [f"{one[1]}-{one[2]}".upper() if one else None for one in algorithms], pa.string()
            ),
        }
    )


def collective_rows(names: Iterable[str]) -> pa.Table:
    """collective, op_type of the collectives as PyTorch calls them: allreduce, _allgather_base."""
    import pyarrow as pa

    rows = list(names)
    collectives = [_collective(name.replace("_base", "").replace("_oop", "")) for name in rows]
    return pa.table(
        {"collective": pa.array(rows, pa.string()), "op_type": pa.array(collectives, pa.string())}
    )


def data_type_rows(names: Iterable[str]) -> pa.Table:
    """dtype, data_type, width_bytes; what is not known stays as it is, without a width."""
    import pyarrow as pa

    rows = list(names)
    types = [_DATA_TYPES.get(name.lower(), (name, None)) for name in rows]
    return pa.table(
        {
            "dtype": pa.array(rows, pa.string()),
            "data_type": pa.array([name for name, _ in types], pa.string()),
            "width_bytes": pa.array([width for _, width in types], pa.int64()),
        }
    )
