"""A training job: a model, what it runs on, and how it is cut into pieces.

Fields marked (n) may be arrays of numpy, one element for each of n strategies: times and memory are
then arrays as well. Pipeline stages and their layers are one layout for all n.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..flops.model.architecture import Model, has_experts
from ..flops.model.model import count

Number = Any  # a float, or an array of numpy with one for each strategy
ContextKind = Literal["ring", "ulysses", "hybrid"]
Dispatcher = Literal["alltoall", "allgather"]
Training = Literal["full", "lora", "qlora"]

DEVICES_OF_A_NODE = 8


@dataclass(frozen=True, slots=True)
class Machine:
    """One NPU: BF16 peak and memory; `node_devices` are joined by HCCS, nodes by RoCE."""

    peak_flops_per_s: float
    memory_bytes: float = 64 * 2.0**30
    node_devices: int = DEVICES_OF_A_NODE


@dataclass(frozen=True, slots=True)
class Recompute:
    """What backward computes again. `full_layers`: the first n of each chunk (all: None)."""

    full_layers: Number | None = 0
    counts_rank: bool = False  # n are of a rank's layers, not of each of its chunks
    activation: float = 0.0  # share of layers: the activation function of their feed-forward
    experts: int = 0  # of experts: 1 activations and permutations, 2 matmuls as well
    latent_up: bool = False  # the up-projections of latent attention


@dataclass(frozen=True, slots=True)
class Software:
    """What the framework was told, apart from sizes."""

    is_legacy: bool = False  # Megatron's classes before mcore
    is_recent: bool = True  # fused AdamW, cross entropy in place: releases since autumn 2025
    is_graph: bool = False  # compiled into one graph (MindSpore): no host cost per operator
    is_half: bool = False  # FP16: gradients in FP16, their FP32 copy in the optimizer
    is_single: bool = False  # FP32 throughout
    flash_attention: bool = True
    fused_rope: bool = True
    fused_swiglu: bool = True
    fused_norm: bool = True
    full_mask: bool = False  # nothing of the scores is skipped
    alibi: bool = False
    tp_overlap: bool = False  # communication of tensor parallelism beside matmuls (MC2, CoC)
    fused_overlap: bool = False  # and inside of them, as one kernel (MC2)
    grad_overlap: bool = False
    param_overlap: bool = False
    expert_overlap: bool = False
    pair_overlap: bool = False  # forward of one beside backward of another micro-batch
    node_exchange: bool = False  # tokens go to each node once, then to experts inside of it
    bare_values: bool = False  # latent attention's, not padded to the width of queries
    fused_permutation: bool = False
    grouped_experts: bool = True
    dispatcher: Dispatcher = "alltoall"
    capacity_factor: float | None = None
    reuse_fp32: bool = False  # BF16 weights are the upper half of the FP32 ones
    swap_optimizer: bool = False
    swap_attention: bool = False
    sparse_index_keys: int = 0  # keys that a sparse-attention indexer keeps
    output_slices: int = 1  # pieces in which the head is computed
    reference_model: bool = False  # a frozen twin (DPO)
    training: Training = "full"
    lora_rank: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A model, a machine and a strategy.

    `expert_tp`: tensor parallel size of experts. `stages`: layers (numbers from 0) of each chunk of
    each stage.
    """

    model: Model
    machine: Machine
    world: Number  # (n)
    stages: tuple[tuple[tuple[int, ...], ...], ...]
    sequence_length: int
    global_batch: Number
    tp: Number = 1  # (n)
    cp: Number = 1  # (n)
    ep: Number = 1  # (n)
    expert_tp: Number = 1  # (n)
    micro_batch: Number = 1  # (n)
    sequence_parallel: bool = False
    tp_square: int = 1  # ranks along a side, where tensor parallelism is in two dimensions
    distributed_optimizer: Number = False  # (n)
    context: ContextKind = "ring"
    ulysses: Number = 1  # (n) of a hybrid, those that exchange heads
    schedule: str = "1f1b"
    recompute: Recompute = Recompute()
    software: Software = Software()
    expert_skew: float | None = None  # tokens of the busiest device / mean; None: the constant

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.stages)

    @property
    def vpp(self) -> int:
        """Chunks of a stage."""
        return max(len(chunks) for chunks in self.stages)

    @property
    def dp(self) -> Number:
        """Replicas of the model."""
        return self.world / (self.tp * self.pp * self.cp)

    @property
    def micro_batches(self) -> Number:
        """Micro-batches of a step on one replica, at least one."""
        return np.maximum(1.0, self.global_batch / (self.micro_batch * self.dp))

    @property
    def unpaired(self) -> Number:
        """Share of a stage's passes, of all stages' mean, that fill and drain the pipeline: those
        before the first backward and after the last forward, which have no partner."""
        if self.pp == 1:
            return 0.0
        before = (self.pp - 1) / 2 if self.vpp == 1 else self.vpp * self.pp - self.pp / 2
        return np.minimum(1.0, before / (self.micro_batches * self.vpp))

    @property
    def tokens(self) -> Number:
        """Tokens of a micro-batch on one rank of context parallelism."""
        return self.micro_batch * self.sequence_length / self.cp

    @property
    def shards(self) -> Number:
        """Ranks over which the optimizer's state of dense weights is cut."""
        return np.where(self.distributed_optimizer, np.maximum(1.0, self.dp * self.cp), 1.0)

    @property
    def expert_dp(self) -> Number:
        """Replicas of each expert."""
        return np.maximum(1.0, self.world / self.pp / np.maximum(1.0, self.ep * self.expert_tp))

    @property
    def expert_shards(self) -> Number:
        """Ranks over which the optimizer's state of experts is cut."""
        return np.where(self.distributed_optimizer, self.expert_dp, 1.0)


def chunks_divide(layers: int, pp: int, vpp: int) -> bool:
    """Whether stages can have so many chunks: these divide a stage's layers, or those of the
    busiest stage, the others being filled up (as by layers without operators)."""
    return any(most % vpp == 0 for most in (layers // pp, -(-layers // pp)))


def even_stages(
    layers: int, pp: int, vpp: int = 1, schedule: str = "1f1b"
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Layers of each chunk of each stage, cut as evenly as they divide, the rest in front.

    DualPipeV folds the model: a stage has one chunk going down and one coming back.
    """
    if schedule == "dualpipev":
        pieces = _cut(layers, 2 * pp)
        return tuple((pieces[stage], pieces[2 * pp - 1 - stage]) for stage in range(pp))
    return _taking_turns(_cut(layers, pp * vpp), pp)


def balanced_stages(
    model: Model, pp: int, vpp: int, sequence_length: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Layers of each chunk, the last with as many fewer as make the busiest stage least busy: the
    head and blocks of multi-token prediction count as the layers that have as many FLOPs."""
    even = even_stages(model.layers, pp, vpp)
    if pp == 1:
        return even
    parts = dict.fromkeys(("layers", "mtp", "head"), 0.0)
    for term in count(model, sequence_length=sequence_length, attention="causal").terms:
        parts[term.part] += float(term.flops)
    extra = (parts["mtp"] + parts["head"]) / (parts["layers"] / model.layers)
    layouts = [even]
    for last in range(len(even[-1][-1]) - 1, -1 if vpp > 1 else 0, -1):
        pieces = [*_cut(model.layers - last, pp * vpp - 1),
                  tuple(range(model.layers - last, model.layers))]  # fmt: skip
        layouts.append(_taking_turns(pieces, pp))

    def busiest(stages: tuple[tuple[tuple[int, ...], ...], ...]) -> float:
        loads = [float(sum(map(len, chunks))) for chunks in stages]
        return max(*loads[:-1], loads[-1] + extra)

    return min(layouts, key=busiest)


def listed_stages(counts: list[int], pp: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Layers of each chunk where their numbers are given, in the model's order."""
    bounds = np.cumsum([0, *counts])
    return _taking_turns([tuple(range(int(a), int(b))) for a, b in pairwise(bounds)], pp)


def _taking_turns(
    pieces: list[tuple[int, ...]], pp: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(tuple(pieces[stage::pp]) for stage in range(pp))


def computing_layers(model: Model, layers: tuple[int, ...]) -> tuple[int, int]:
    """Of these layers the dense ones and those with experts, without no-ops."""
    computing = [
        layer for layer in layers if layer not in model.noop_layers and layer < model.layers
    ]
    mixed = sum(has_experts(model, layer) for layer in computing)
    return len(computing) - mixed, mixed


def _cut(layers: int, pieces: int) -> list[tuple[int, ...]]:
    size, rest = divmod(layers, pieces)
    bounds = np.cumsum([0, *(size + (piece < rest) for piece in range(pieces))])
    return [tuple(range(int(a), int(b))) for a, b in pairwise(bounds)]
