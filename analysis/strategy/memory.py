"""Memory of one rank of each stage, by kind: what stays, and what the first step and later ones
reach.

Rules of Megatron-LM and MindSpeed, per parameter: weights BF16 2 bytes and gradients FP32 4, both
whole; in the optimizer FP32 weights 4 and two moments 4 each, cut over the ranks of data and
context parallelism where the optimizer is distributed. FP16: gradients 2 whole, and 4 more in the
optimizer. FP32: 4, 4, and moments only. Sharing BF16 weights with the FP32 ones saves 2 of the
optimizer's share.

Moments are made by the first update: the peak that a framework prints after it is that of a first
forward and backward without them, or of the update itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..flops.model.architecture import GroupedQueries, ffn_matrices, shared_size
from .constants import Constants, default_constants
from .job import Job, Number, computing_layers
from .layers import (
    BF16_BYTES,
    FP32_BYTES,
    attention_matmuls,
    embedding_weights,
    kv_heads,
    layer_weights,
    most_of,
    query_sizes,
    routed_tokens,
)

_MASK_BYTES = 2048 * 2048  # the triangle of booleans that the fused attention reads
_STATISTICS_BYTES = 64  # of a token and a head: maximum and sum of the softmax, 8 FP32 each
_FUSED_UPDATE_BYTES = 16 * 2.0**20  # workspace of the fused AdamW
_SPLIT_BYTES = 192 * 2.0**20  # a piece in which shared weights are put together and apart
_QUANTISED_BYTES = 0.5 + 0.0625  # 4 bits, and a scale of 4 bytes for 64 of them


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one rank of a stage by kind.

    `allocated_bytes` after an update, `first_peak_bytes` that of the first step, `peak_bytes` that
    of later ones.
    """

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number
    buffers: Number
    workspace: Number
    allocated_bytes: Number
    first_peak_bytes: Number
    peak_bytes: Number


def stage_memory(job: Job, constants: Constants) -> list[StageMemory]:
    """Memory of each stage."""
    return [_of_stage(job, constants, stage) for stage in range(job.pp)]


def layer_activations(job: Job, is_mixed: bool) -> Number:
    """Bytes that one layer keeps for its backward, of one micro-batch on one rank."""
    of_attention, of_ffn = kept_activations(job, is_mixed)
    return of_attention + of_ffn


def layer_input_bytes(job: Job) -> Number:
    """Bytes of what goes into a layer, of one micro-batch on one rank: it stays where the layer is
    computed again."""
    size = np.where(job.software.is_single, FP32_BYTES, BF16_BYTES)
    split = np.where(job.sequence_parallel, job.tp, 1.0)
    return job.tokens * job.model.hidden_size * size / split


def kept_activations(job: Job, is_mixed: bool) -> tuple[Number, Number]:
    """The same of attention with both norms, and of the feed-forward network, by the rules."""
    model, software = job.model, job.software
    size = np.where(software.is_single, FP32_BYTES, BF16_BYTES)
    split = np.where(job.sequence_parallel, job.tp, 1.0)
    heads, d_qk, d_v = query_sizes(model)
    heads = heads / job.tp
    if isinstance(model.attention, GroupedQueries):
        inner: Number = (heads + 2 * kv_heads(job)) * d_qk
        if not software.fused_rope:
            inner = inner + (heads + kv_heads(job)) * d_qk
    else:
        low = model.attention.kv_lora_rank + (model.attention.q_lora_rank or 0)
        # What goes up is kept next to the parts put together from it.
        up = 0.0 if job.recompute.latent_up else 2.0
        inner = 2 * low + heads * (2 * d_qk + d_v) * (1.0 + up / 2)
    of_attention = job.tokens * (size * (4 * model.hidden_size / split + inner + heads * d_v))
    of_attention = of_attention + job.tokens * heads * _STATISTICS_BYTES
    if not software.flash_attention:
        scores = job.micro_batch * heads * (job.sequence_length / job.cp) * job.sequence_length
        of_attention = of_attention + scores * (2 * size + 1)
    if software.alibi:
        scores = job.micro_batch * heads * (job.sequence_length / job.cp) * job.sequence_length
        of_attention = of_attention + scores * size
    if not software.fused_norm:
        of_attention = of_attention + job.tokens * 4 * model.hidden_size / split * FP32_BYTES
    if software.swap_attention:
        of_attention = of_attention - job.tokens * heads * d_v * size
    per_unit = _kept_per_unit(job)
    experts = model.experts
    if not is_mixed or experts is None:
        ffn_bytes = size * per_unit * (model.ffn_size or 0) / job.tp * job.tokens
        return of_attention, ffn_bytes
    rows = routed_tokens(job, default_constants())
    # Recomputed, experts keep their first matmul's result (level 0) or nothing (level 1).
    up, h = float(ffn_matrices(model) - 1), model.hidden_size
    units, copies = ((per_unit, 3.0), (up, 1.0), (0.0, 0.0))[job.recompute.experts]
    of_experts = rows * size * (units * experts.ffn_size / job.expert_tp + copies * h)
    if software.dispatcher == "allgather":
        exchange_bytes = job.tokens * job.ep * model.hidden_size * size
        of_experts = of_experts + exchange_bytes
    shared = size * per_unit * shared_size(experts) / job.tp * job.tokens
    scores = job.tokens / split * experts.routed * FP32_BYTES * 2
    return of_attention, of_experts + shared + scores


def _kept_per_unit(job: Job) -> Number:
    """Elements kept per unit of a feed-forward network's size: gate and up, product, its input."""
    if ffn_matrices(job.model) == 2:
        return 2.0 - job.recompute.activation
    return (4.0 if job.software.fused_swiglu else 5.0) - job.recompute.activation


def live_chunks(job: Job, stage: int) -> Number:
    """Chunks of micro-batches whose activations a stage holds at once, at most."""
    pp, vpp = job.pp, job.vpp
    if job.schedule == "dualpipev":
        return np.minimum(job.micro_batches * vpp, 2.0 * pp + 1)
    if vpp == 1:
        return np.minimum(job.micro_batches, float(pp - stage))
    return np.minimum(job.micro_batches * vpp, 2.0 * (pp - stage - 1) + (vpp - 1) * pp + 1)


def _first_chunk_live(job: Job, stage: int) -> Number:
    """Micro-batches of which a stage holds its first chunk, the one held longest."""
    return np.minimum(job.micro_batches, 2.0 * job.pp - stage)


def recomputed_share(job: Job, stage: int) -> Number:
    """Share of a stage's layers whose forward is computed again."""
    chunks = job.stages[stage]
    layers = sum(len(chunk) for chunk in chunks)
    layer_count = job.recompute.full_layers
    if layer_count is None or not layers:
        return 1.0
    times = 1 if job.recompute.counts_rank else len(chunks)
    return np.minimum(1.0, np.asarray(layer_count) * times / layers)


def has_head(job: Job, stage: int) -> bool:
    """Whether the head is on this stage: the last, or the first of a folded pipeline."""
    return stage == (0 if job.schedule == "dualpipev" else job.pp - 1)


def layers_with_mtp(job: Job, stage: int) -> tuple[int, int]:
    """Dense layers of a stage and those with experts, blocks of multi-token prediction as well."""
    counts = [computing_layers(job.model, chunk) for chunk in job.stages[stage]]
    dense, mixed = (sum(count[kind] for count in counts) for kind in (0, 1))
    depth = job.model.mtp_depth if has_head(job, stage) else 0
    return (dense, mixed + depth) if job.model.experts else (dense + depth, mixed)


def stage_weights(job: Job, stage: int) -> tuple[Number, Number, Number]:
    """Parameters of one rank of a stage: dense, of experts, and the largest tensor."""
    model = job.model
    dense: Number = 0.0
    experts: Number = 0.0
    largest: Number = 0.0
    if has_head(job, stage):
        dense = dense + model.mtp_depth * (2 * model.hidden_size**2 / job.tp)
    for mixed, number in enumerate(layers_with_mtp(job, stage)):
        if number:
            of_layer = layer_weights(job, bool(mixed))
            dense = dense + number * of_layer.dense
            experts = experts + number * of_layer.experts
            largest = np.maximum(largest, of_layer.largest)
    copies = int(stage == 0) + int(has_head(job, stage))
    if copies == 2 and model.tied_embeddings:
        copies = 1
    if has_head(job, stage) and model.mtp_depth and stage > 0:
        copies += 1
    if copies:
        dense = dense + copies * embedding_weights(job)
        largest = np.maximum(largest, embedding_weights(job))
    return dense, experts, largest


def _of_stage(job: Job, constants: Constants, stage: int) -> StageMemory:
    software, model = job.software, job.model
    dense, experts, largest = stage_weights(job, stage)
    both = dense + experts
    weight = FP32_BYTES if software.is_single else BF16_BYTES
    gradient = BF16_BYTES if software.is_half else FP32_BYTES
    in_shards = dense / job.shards + experts / job.expert_shards
    master = 0.0 if software.is_single else 8.0 if software.is_half else 4.0
    if software.reuse_fp32:
        master -= 2.0
    masters, moments = master * in_shards, 8.0 * in_shards
    if software.swap_optimizer:
        masters, moments = 0.0 * in_shards, 0.0 * in_shards
    weights, gradients = weight * both, gradient * both
    if software.training != "full":
        adapted = _adapter_parameters(job, stage)
        embeddings = int(stage == 0 or has_head(job, stage))
        bytes_here = embeddings * (dense - _matrices(job, stage))
        quantised = software.training == "qlora"
        weights = np.where(
            quantised, 2 * bytes_here + _QUANTISED_BYTES * (both - bytes_here), 2 * both
        )
        gradients, masters, moments = 4.0 * adapted, 6.0 * adapted, 8.0 * adapted
        largest = np.minimum(largest, adapted)
    if software.reference_model:
        weights = weights + np.where(job.distributed_optimizer, 2.0, 6.0) * both
    hidden = job.tokens * model.hidden_size * weight
    hidden = hidden / np.where(job.sequence_parallel, job.tp, 1.0)
    buffers = _MASK_BYTES + hidden * (
        (2.0 if stage else 0.0) + (job.pp if job.vpp > 1 and job.pp > 1 else 0.0)
    )
    buffers = buffers + _residues(job, constants, stage)
    allocated = weights + gradients + masters + moments + buffers
    activations, transient = _activations(job, constants, stage)
    logits = _logits(job, constants, stage)
    temporary = _update_temporary(job, largest)
    during = np.maximum(transient, logits)
    first = weights + gradients + masters + buffers + activations + during
    return StageMemory(
        weights, gradients, masters + moments, activations, logits, buffers, transient,
        allocated,
        np.maximum(first, allocated + temporary),
        np.maximum(first + moments, allocated + temporary),
    )  # fmt: skip


def _residues(job: Job, constants: Constants, stage: int) -> Number:
    """What stays after a step although nobody needs it: tensors held by caches of operators."""
    software = job.software
    left: Number = 0.0
    if software.fused_overlap and job.pp == 1:
        logits = job.tokens * job.model.vocabulary_size / job.tp
        layers = sum(len(chunk) for chunk in job.stages[stage])
        bytes_here = logits * (FP32_BYTES + BF16_BYTES) + layers * constants["overlap_layer_bytes"]
        left = np.where(np.asarray(job.tp) > 1, left + bytes_here, left)
    if software.sparse_index_keys:
        heads = query_sizes(job.model)[0] / job.tp
        left = left + heads * job.micro_batch * job.sequence_length**2 * BF16_BYTES
    return left


def _activations(job: Job, constants: Constants, stage: int) -> tuple[Number, Number]:
    """Bytes kept by the micro-batches in flight, and what one backward needs beside them."""
    dense, mixed = layers_with_mtp(job, stage)
    hidden = layer_input_bytes(job)
    share = recomputed_share(job, stage)
    flight = live_chunks(job, stage) / max(1, len(job.stages[stage]))
    total: Number = 0.0
    largest: Number = 0.0
    for number, is_mixed in ((dense, False), (mixed, True)):
        if number:
            bytes_here = layer_activations(job, is_mixed)
            saved = (
                (bytes_here - hidden)
                * share
                * number
                * np.where(
                    job.recompute.counts_rank & (job.vpp > 1) & (np.asarray(share) < 1),
                    _first_chunk_live(job, stage),
                    flight,
                )
            )
            total = total + number * bytes_here * flight - saved
            largest = np.maximum(largest, bytes_here)
    recomputed = largest * share
    projections = [one.inner * one.columns for one in attention_matmuls(job)]
    widest = most_of(projections)
    return total, (recomputed + constants["transient_layers"] * largest + BF16_BYTES * widest)


def _logits(job: Job, constants: Constants, stage: int) -> Number:
    """The head's results with what the loss makes of them, at their peak."""
    if not has_head(job, stage):
        return 0.0
    scores = job.tokens * job.model.vocabulary_size / job.tp / job.software.output_slices
    return scores * np.where(job.software.is_recent, constants["logit_bytes"], 10.0)


def _update_temporary(job: Job, largest: Number) -> Number:
    """What an update makes beside its state: unfused a copy of the largest tensor in FP32."""
    if job.software.reuse_fp32:
        return np.where(np.asarray(job.shards) > 1, _SPLIT_BYTES, FP32_BYTES * largest)
    if job.software.is_recent:
        return _FUSED_UPDATE_BYTES
    return FP32_BYTES * largest


def _matrices(job: Job, stage: int) -> Number:
    """Dense parameters of the stage's layers: those that adapters stand beside."""
    size_bytes: Number = 0.0
    for chunk in job.stages[stage]:
        for number, mixed in zip(computing_layers(job.model, chunk), (False, True), strict=True):
            if number:
                size_bytes = size_bytes + number * layer_weights(job, mixed).dense
    return size_bytes


def _adapter_parameters(job: Job, stage: int) -> Number:
    """Parameters of adapters of a rank on all matrices of attention and feed-forward."""
    model, rank = job.model, job.software.lora_rank
    layers = sum(len(chunk) for chunk in job.stages[stage])
    heads, d_qk, d_v = query_sizes(model)
    kv = kv_heads(job) * d_qk * 2
    h, ffn = model.hidden_size, (model.ffn_size or 0) / job.tp
    of_attention = 2 * h + heads * (d_qk + d_v) / job.tp + kv
    of_ffn = 2 * h + (ffn_matrices(model) * ffn)
    return float(rank) * layers * (of_attention + of_ffn)
