"""What one layer holds and computes on one rank: weights, matmuls, bytes of vectors.

All counts are of one rank, for the tokens of one micro-batch there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..flops.model.architecture import GroupedQueries, Model, ffn_matrices, shared_size
from .constants import Constants
from .job import Job, Number

BF16_BYTES = 2
FP32_BYTES = 4


class Matmul(NamedTuple):
    """Rows x inner x columns on one rank, `times` over; `grouped` is one of many experts'."""

    rows: Number
    inner: Number
    columns: Number
    times: Number = 1.0
    grouped: bool = False


class Weights(NamedTuple):
    """Parameters of one rank: dense ones, those of experts, and the largest single tensor."""

    dense: Number
    experts: Number
    largest: Number


def kv_heads(job: Job) -> Number:
    """Heads of keys and values on one rank: at least one."""
    attention = job.model.attention
    heads = attention.kv_heads if isinstance(attention, GroupedQueries) else attention.heads
    return np.maximum(heads / job.tp, 1.0)


def query_sizes(model: Model) -> tuple[int, int, int]:
    """Heads, and sizes of a head's queries and values."""
    attention = model.attention
    if isinstance(attention, GroupedQueries):
        return attention.heads, attention.head_dim, attention.head_dim
    return (
        attention.heads,
        attention.qk_nope_head_dim + attention.qk_rope_head_dim,
        attention.v_head_dim,
    )


def attention_matmuls(job: Job) -> list[Matmul]:
    """Projections of one layer's attention."""
    h, t, attention = job.model.hidden_size, job.tokens, job.model.attention
    heads, d_qk, d_v = query_sizes(job.model)
    if isinstance(attention, GroupedQueries):
        columns = heads / job.tp * d_qk + 2 * kv_heads(job) * d_qk
        return [Matmul(t, h, columns), Matmul(t, heads / job.tp * d_v, h)]
    latent, queries = attention, heads * d_qk / job.tp
    matmuls = [
        Matmul(t, h, latent.kv_lora_rank + latent.qk_rope_head_dim),
        Matmul(t, latent.kv_lora_rank, heads * (latent.qk_nope_head_dim + d_v) / job.tp),
        Matmul(t, heads * d_v / job.tp, h),
    ]
    if latent.q_lora_rank is None:
        return [Matmul(t, h, queries), *matmuls]
    return [Matmul(t, h, latent.q_lora_rank), Matmul(t, latent.q_lora_rank, queries), *matmuls]


def ffn_matmuls(job: Job, size: Number) -> list[Matmul]:
    """A dense feed-forward network, the gate with the up-projection."""
    h, t = job.model.hidden_size, job.tokens
    up = ffn_matrices(job.model) - 1
    return [Matmul(t, h, up * size / job.tp), Matmul(t, size / job.tp, h)]


def skew_ratio(job: Job, constants: Constants) -> Number:
    """Tokens of the busiest rank over what they usually are, which the constant counts."""
    if job.expert_skew is None or job.software.capacity_factor is not None:
        return 1.0
    ratio = job.expert_skew / constants["expert_skew"]
    return np.where(np.asarray(job.ep) > 1, ratio, 1.0)


def routed_tokens(job: Job, constants: Constants) -> Number:
    """Copies of tokens that the experts of one rank compute: of a usual rank, and as many more or
    fewer as the busiest one has more or fewer than usual.

    Ranks of one group of experts send k copies of each token to each other; where experts are cut
    less than the rest (expert_tp < tp), the group holds tp / expert_tp parts of one replica.
    """
    experts = job.model.experts
    if experts is None:
        return 0.0
    copies = job.tokens * experts.top_k * job.expert_tp / job.tp
    factor = job.software.capacity_factor
    if factor is not None:
        return copies * factor
    return copies * skew_ratio(job, constants)


def expert_matmuls(job: Job, constants: Constants) -> list[Matmul]:
    """Experts of one rank, the router and the shared experts."""
    experts = job.model.experts
    if experts is None:
        return []
    h, up = job.model.hidden_size, ffn_matrices(job.model) - 1
    local = np.maximum(experts.routed / job.ep, 1.0)
    rows, size = routed_tokens(job, constants) / local, experts.ffn_size / job.expert_tp
    router_rows = job.tokens / np.where(job.sequence_parallel, job.tp, 1.0)
    matmuls = [
        Matmul(rows, h, up * size, local, True),
        Matmul(rows, size, h, local, True),
        Matmul(router_rows, h, experts.routed),
    ]
    shared = shared_size(experts)
    return [*matmuls, *ffn_matmuls(job, shared)] if shared else matmuls


def layer_weights(job: Job, is_mixed: bool) -> Weights:
    """Parameters of one layer on one rank: matrices and norms."""
    model, h = job.model, job.model.hidden_size
    projections = [one.inner * one.columns for one in attention_matmuls(job)]
    dense = sum(projections) + 2 * h
    if not isinstance(model.attention, GroupedQueries):
        dense = dense + model.attention.kv_lora_rank + (model.attention.q_lora_rank or 0)
    largest = most_of(projections)
    experts = model.experts
    if not is_mixed or experts is None:
        ffn = [one.inner * one.columns for one in ffn_matmuls(job, model.ffn_size or 0)]
        return Weights(dense + sum(ffn), 0.0, np.maximum(largest, most_of(ffn)))
    up = ffn_matrices(model) - 1
    dense = dense + h * experts.routed
    shared = shared_size(experts)
    if shared:
        ffn = [one.inner * one.columns for one in ffn_matmuls(job, shared)]
        dense, largest = dense + sum(ffn), np.maximum(largest, most_of(ffn))
    local = np.maximum(experts.routed / job.ep, 1.0)
    one_up = up * h * experts.ffn_size / job.expert_tp
    tensor = one_up * local if job.software.grouped_experts else one_up
    return Weights(dense, local * one_up * (up + 1) / up, np.maximum(largest, tensor))


def embedding_weights(job: Job) -> Number:
    """Parameters of the embedding, or of the head, on one rank."""
    return job.model.hidden_size * job.model.vocabulary_size / job.tp


def most_of(values: list[Number]) -> Number:
    """The largest value, for each strategy."""
    most: Number = 0.0
    for value in values:
        most = np.maximum(most, value)
    return most
