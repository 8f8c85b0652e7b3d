"""Time of a step: what each layer computes, moves and launches, and how stages wait.

A rank's layer takes its device time or its host time, whichever is longer. Device time is the sum
of matmuls (FLOPs over peak and efficiency, which falls with small sizes, plus their bytes), the
core of attention, vectors (bytes over bandwidth) and what stays exposed of communication.

Collectives inside a node go over a full mesh: a group of n uses n - 1 links of each NPU at once,
and each pair exchanges 1 / n of the data over one link. Between nodes each NPU has one RoCE port.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..flops.model.architecture import GroupedQueries, ffn_matrices, shared_size
from .constants import Constants
from .job import Job, Number, computing_layers
from .layers import (
    BF16_BYTES,
    FP32_BYTES,
    Matmul,
    attention_matmuls,
    expert_matmuls,
    ffn_matmuls,
    kv_heads,
    query_sizes,
    routed_tokens,
    skew_ratio,
)
from .memory import has_head, recomputed_share, stage_weights

PARTS = (
    "matmul", "experts", "attention", "vector", "tp_comm", "cp_comm", "ep_comm", "host",
    "recompute", "head", "pp_comm", "bubble", "dp_comm", "optimizer", "step",
)  # fmt: skip


_HOST_OPERATORS = 150.0  # of a micro-batch apart from its layers: embedding, head, schedule
_SHARPNESS = 4  # of the passage between what the device and what the host takes


class LayerTime(NamedTuple):
    """Seconds of one layer and micro-batch, forward and backward, by what takes them."""

    matmul: Number
    experts: Number
    attention: Number
    vector: Number
    tp_comm: Number
    cp_comm: Number
    ep_comm: Number
    recompute: Number
    host: Number  # that the host needs to launch it, not a part of the others


def step_parts(job: Job, constants: Constants) -> dict[str, Number]:
    """Seconds of a step by part, on the slowest stage; they add up to the step."""
    of_layer = {mixed: _layer(job, constants, mixed) for mixed in (False, True)}
    per_stage = [_of_stage(job, constants, stage, of_layer) for stage in range(job.pp)]
    totals = np.stack([
        np.broadcast_to(sum(parts.values()), np.shape(_any(job))) for parts in per_stage
    ])  # fmt: skip
    slowest = np.argmax(totals, axis=0)
    m = job.micro_batches
    seconds: dict[str, Number] = {
        name: m * _pick([parts[name] for parts in per_stage], slowest) for name in per_stage[0]
    }
    seconds["bubble"] = _bubble(job, totals)
    seconds["dp_comm"] = _data_parallel(job, constants)
    seconds["optimizer"] = _optimizer(job, constants)
    seconds["step"] = constants["step_seconds"]
    return {name: seconds[name] for name in PARTS}


def _any(job: Job) -> Number:
    """An array of the strategies' shape."""
    return np.asarray(job.micro_batches + job.tp * 0 + job.ep * 0 + job.cp * 0)


def _pick(values: list[Number], index: Number) -> Number:
    shape = np.shape(index)
    stacked = np.stack([np.broadcast_to(value, shape) for value in values])
    return np.take_along_axis(stacked, np.asarray(index)[None], axis=0)[0]


def _bubble(job: Job, totals: Number) -> Number:
    """What the slowest stage waits for the others: each fills and drains once, chunks a part."""
    others = totals.sum(axis=0) - totals.max(axis=0)
    if job.schedule == "dualpipev":
        return others / 2
    return others / job.vpp


def _of_stage(
    job: Job, constants: Constants, stage: int, of_layer: dict[bool, LayerTime]
) -> dict[str, Number]:
    """Seconds of one micro-batch on a stage, forward and backward, by part."""
    software = job.software
    counts = [computing_layers(job.model, chunk) for chunk in job.stages[stage]]
    numbers = [sum(count[kind] for count in counts) for kind in (0, 1)]
    share = recomputed_share(job, stage)
    times: dict[str, Number] = dict.fromkeys([*LayerTime._fields, "head", "pp_comm"], 0.0)
    depth = job.model.mtp_depth if has_head(job, stage) else 0
    for mixed, number in enumerate(numbers):
        number += depth if mixed == int(job.model.experts is not None) else 0
        again = number * share
        for name, seconds in of_layer[bool(mixed)]._asdict().items():
            part = again if name == "recompute" else number
            if name == "host":
                part = part + again / 3.0
            times[name] = times[name] + part * seconds
    if has_head(job, stage):
        times["head"] = (1 + depth) * _head(job, constants)
    if stage == 0:
        times["vector"] = times["vector"] + _vector_seconds(
            constants, job.tokens * job.model.hidden_size * 12.0
        )
    if job.pp > 1:
        times["pp_comm"] = _point_to_point(job, constants) * len(job.stages[stage])
    host = (
        times.pop("host")
        + (0.0 if software.is_graph else _HOST_OPERATORS) * (constants["operator_seconds"])
    )
    slow = constants["legacy_overhead"] if software.is_legacy else 1.0
    times = {name: seconds * slow for name, seconds in times.items()}
    device = sum(times.values())
    times["host"] = (device**_SHARPNESS + host**_SHARPNESS) ** (1 / _SHARPNESS) - device
    return times


def _layer(job: Job, constants: Constants, is_mixed: bool) -> LayerTime:
    software, model = job.software, job.model
    passes = 3.0 if software.training == "full" else 2.0
    attention = attention_matmuls(job)
    dense = [*attention, *([] if is_mixed else ffn_matmuls(job, model.ffn_size or 0))]
    grouped: list[Matmul] = []
    if is_mixed:
        for one in expert_matmuls(job, constants):
            (grouped if one.grouped else dense).append(one)
    matmul = sum(_matmul(job, constants, one) for one in dense)
    experts = sum((_matmul(job, constants, one) for one in grouped), start=0.0)
    if software.capacity_factor is None and is_mixed:
        experts = experts * np.where(np.asarray(job.ep) > 1, constants["expert_skew"], 1.0)
    core = _attention(job, constants)
    vector = _vector_seconds(constants, _vector_bytes(job, constants, is_mixed))
    again = _selected_again(job, constants, is_mixed)
    tp_comm = _tensor_parallel(job, constants, is_mixed)
    cp_comm = _context_parallel(job, constants, core)
    core_passes = 1.0 + constants["attention_backward"]
    beside = passes * (matmul + experts) + core_passes * core + 3.0 * vector
    ep_comm = _expert_parallel(job, constants, beside) if is_mixed else 0.0
    forward = matmul + experts + core + vector + (tp_comm + ep_comm) * 0.4 + cp_comm * 0.4
    if is_mixed and job.recompute.experts == 2:
        experts = experts * (passes + 1) / passes
    skipped = core if software.swap_attention else 0.0
    return LayerTime(
        passes * matmul, passes * experts, core_passes * core, 3.0 * vector + again, tp_comm,
        cp_comm, ep_comm, forward - skipped, _host(job, constants, is_mixed),
    )  # fmt: skip


def _selected_again(job: Job, constants: Constants, is_mixed: bool) -> Number:
    """Seconds of what backward computes again of single operators: activation functions, latent
    attention's up-projections, permutations of tokens."""
    model, recompute = job.model, job.recompute
    experts = model.experts if is_mixed else None
    seconds: Number = 0.0
    if recompute.latent_up and not isinstance(model.attention, GroupedQueries):
        ups = attention_matmuls(job)[1::2] if model.attention.q_lora_rank else ()
        seconds = seconds + sum(_matmul(job, constants, one) for one in ups)
    unit = 6.0 * (1.0 if job.software.fused_swiglu else 2.5) * (ffn_matrices(model) - 1.0) / 2
    if experts is None:
        moved = job.tokens * unit * recompute.activation * (model.ffn_size or 0) / job.tp
        return seconds + _vector_seconds(constants, moved)
    shared = job.tokens * unit * recompute.activation * shared_size(experts) / job.tp
    is_again = max(recompute.activation, float(recompute.experts > 0))
    of_row = unit * is_again * experts.ffn_size / job.expert_tp
    copied = 4.0 * model.hidden_size * (recompute.experts > 0)
    moved = shared + routed_tokens(job, constants) * (of_row + copied)
    return seconds + _vector_seconds(constants, moved)


def layer_forward(job: Job, constants: Constants, is_mixed: bool) -> tuple[Number, Number]:
    """Seconds of one forward of a layer: attention with its norms, the feed-forward network.

    Bytes of vectors and communication of tensor parallelism count half for each.
    """
    once = _layer(job, constants, is_mixed)
    projections = sum(_matmul(job, constants, one) for one in attention_matmuls(job))
    core = _attention(job, constants)
    ffn = (once.matmul + once.experts) / 3.0 - projections + 0.4 * once.ep_comm
    both = (once.vector / 3.0 + 0.4 * once.tp_comm) / 2.0
    return projections + core + 0.4 * once.cp_comm + both, ffn + both


def _peak(job: Job) -> Number:
    return job.machine.peak_flops_per_s / np.where(job.software.is_single, 4.0, 1.0)


def _matmul(job: Job, constants: Constants, one: Matmul) -> Number:
    """Seconds of a product, once: less efficient the fewer rows, inner or columns it has."""
    efficiency = constants["expert_efficiency" if one.grouped else "matmul_efficiency"]
    half = constants["matmul_half_size"]
    rows = np.maximum(one.rows, 1.0)
    inner, columns = np.maximum(one.inner, 1.0), np.maximum(one.columns, 1.0)
    small = 1.0 + half * (1.0 / rows + 1.0 / inner + 1.0 / columns)
    flops = 2.0 * rows * one.inner * one.columns * one.times
    seconds = flops * small / (_peak(job) * efficiency)
    return seconds


def _attention(job: Job, constants: Constants) -> Number:
    """Seconds of the scores and values of one layer, forward."""
    software = job.software
    heads, d_qk, d_v = query_sizes(job.model)
    length = job.sequence_length / np.where(software.full_mask, 1.0, 2.0)
    if software.sparse_index_keys:
        length = np.minimum(length, float(software.sparse_index_keys))
    width = d_qk + (d_v if software.bare_values else d_qk) + constants["score_width"]
    flops = 2.0 * job.tokens * heads / job.tp * width * length
    ring = np.where(job.context == "ulysses", 1.0, job.cp / job.ulysses)
    small = 1.0 + constants["attention_half_length"] * ring / job.sequence_length
    # Of a ring's steps one is a triangle, the others are whole.
    triangle = np.where(software.full_mask, 0.0, 1.0 / ring)
    if job.context == "hybrid":  # later pieces see more: the last rank's work counts
        small = small * (2.0 - 1.0 / ring)
    small = small * (1.0 + triangle * (1.0 / constants["triangle_efficiency"] - 1.0))
    efficiency = constants["attention_efficiency"] * (0.5 if not software.flash_attention else 1.0)
    return flops * small / (_peak(job) * efficiency)


def _vector_bytes(job: Job, constants: Constants, is_mixed: bool) -> Number:
    """Bytes that norms, residuals, rotations and activation functions of one forward move."""
    software, model, h = job.software, job.model, job.model.hidden_size
    split = np.where(job.sequence_parallel, job.tp, 1.0)
    heads, d_qk, d_v = query_sizes(model)
    rotated = heads / job.tp + kv_heads(job)
    per_token = 20.0 * h / split * (1.0 if software.fused_norm else 2.0)
    per_token = per_token + 4.0 * rotated * d_qk * (1.0 if software.fused_rope else 4.0)
    if not isinstance(model.attention, GroupedQueries):
        per_token = per_token + 8.0 * heads / job.tp * (d_qk + d_v)
    if software.alibi:
        per_token = per_token + 2.0 * heads / job.tp * job.sequence_length
    unit = 6.0 * (1.0 if software.fused_swiglu else 2.5) * (ffn_matrices(model) - 1.0) / 2
    experts = model.experts
    if not is_mixed or experts is None:
        return job.tokens * (per_token + unit * (model.ffn_size or 0) / job.tp)
    rows = routed_tokens(job, constants)
    # Rows are copied out, sorted and put back; in one kernel or by several.
    copies = 16.0 if software.fused_permutation else 48.0
    per_row = unit * experts.ffn_size / job.expert_tp + copies * h
    shared = unit * shared_size(experts) / job.tp
    scores = 16.0 * experts.routed / split
    return job.tokens * (per_token + shared + scores) + rows * per_row


def _vector_seconds(constants: Constants, moved: Number) -> Number:
    return moved / constants["memory_bytes_per_s"]


def _head(job: Job, constants: Constants) -> Number:
    """The head and the loss, forward and backward."""
    vocabulary = job.model.vocabulary_size / job.tp
    matmul = 3.0 * _matmul(job, constants, Matmul(job.tokens, job.model.hidden_size, vocabulary))
    return matmul + _vector_seconds(
        constants, job.tokens * vocabulary * constants["logit_traffic_bytes"]
    )


def _in_node(job: Job, inner: Number, size: Number) -> Number:
    """Ranks of a group of `size`, each `inner` apart, that share a node; where nodes cut groups, of
    that which they cut into the smallest parts."""
    span = np.asarray(inner * size).astype(np.int64)
    near = np.gcd(span, job.machine.node_devices) / np.asarray(inner, float)
    return np.clip(np.floor(near), 1.0, size)


def _collective(
    job: Job, constants: Constants, size_bytes: Number, inner: Number, size: Number
) -> Number:
    """Seconds of an all-gather or reduce-scatter that ends or begins with `size_bytes` on a rank.

    Between nodes each rank first exchanges its own part with its like in other nodes.
    """
    size = np.asarray(size, float)
    near = _in_node(job, inner, size)
    nodes = size / near
    link, port = constants["hccs_link_bytes_per_s"], constants["roce_bytes_per_s"]
    seconds = size_bytes / near / link * (near > 1) + size_bytes / near * (1 - 1 / nodes) / port
    return np.where(size > 1, seconds + constants["collective_seconds"], 0.0)


def _all_to_all(
    job: Job, constants: Constants, size_bytes: Number, inner: Number, size: Number
) -> Number:
    """Seconds of an exchange in which a rank sends `size_bytes`, an even part to each."""
    size = np.asarray(size, float)
    near = _in_node(job, inner, size)
    link, port = constants["hccs_link_bytes_per_s"], constants["roce_bytes_per_s"]
    seconds = np.maximum(size_bytes / size / link, size_bytes * (1 - near / size) / port)
    return np.where(size > 1, seconds + constants["collective_seconds"], 0.0)


def _tensor_parallel(job: Job, constants: Constants, is_mixed: bool) -> Number:
    """All-gathers and reduce-scatters of one layer, forward and backward, what is exposed.

    With sequence parallelism 4 forward and 6 backward, else an all-reduce, which is two, 2 and 2.
    Layers of experts exchange their tokens otherwise where experts are not cut (expert_tp = 1).
    """
    times = np.where(job.sequence_parallel, 10.0, 8.0)
    if is_mixed:
        times = np.where(np.asarray(job.expert_tp) < job.tp, times / 2, times)
    if job.tp_square > 1 and not is_mixed:
        return 3.0 * _square_parallel(job, constants)
    size_bytes = job.tokens * job.model.hidden_size * BF16_BYTES
    seconds = times * _collective(job, constants, size_bytes, 1.0, job.tp)
    exposed = np.where(job.software.tp_overlap, constants["tp_exposed"], 1.0)
    return seconds * exposed


def _square_parallel(job: Job, constants: Constants) -> Number:
    """Tensor parallelism in two dimensions, forward: each matmul gathers what goes into it along
    one and scatters what comes out along the other."""
    time_s: Number = 0.0
    matmuls = [*attention_matmuls(job), *ffn_matmuls(job, job.model.ffn_size or 0)]
    for place, one in enumerate(matmuls):
        inner = one.inner * (job.tp if place % 2 else 1.0)
        columns = one.columns * (1.0 if place % 2 else job.tp)
        for elements in (inner, columns):
            size_bytes = job.tokens * elements * BF16_BYTES / job.tp_square
            time_s = time_s + _collective(job, constants, size_bytes, 1.0, job.tp_square)
    return time_s


def _context_parallel(job: Job, constants: Constants, core: Number) -> Number:
    """Rings pass keys and values on beside the attention; all-to-alls exchange heads."""
    heads, d_qk, d_v = query_sizes(job.model)
    kv_bytes = job.tokens * kv_heads(job) * (d_qk + d_v) * BF16_BYTES
    all_bytes = job.tokens * heads / job.tp * (d_qk + d_v) * BF16_BYTES + kv_bytes
    ulysses = np.where(job.context == "ulysses", job.cp, job.ulysses)
    exchanged = 3.0 * _all_to_all(job, constants, all_bytes, job.tp, ulysses)
    steps = np.maximum(np.asarray(job.cp / ulysses, float) - 1.0, 0.0)
    is_near = np.asarray(_in_node(job, job.tp, job.cp)) >= job.cp
    link = np.where(is_near, constants["hccs_link_bytes_per_s"], constants["roce_bytes_per_s"])
    passed = 3.0 * steps * (kv_bytes * ulysses / link + constants["collective_seconds"])
    hidden = (1.0 + constants["attention_backward"]) * core
    exposed = np.maximum(0.3 * passed, passed - hidden)
    return np.where(np.asarray(job.cp) > 1, exchanged + exposed, 0.0)


def _expert_parallel(job: Job, constants: Constants, beside: Number) -> Number:
    """Dispatch and combine of one layer, forward and backward, what is exposed.

    `beside`: seconds of its other work. A forward that runs beside another micro-batch's backward
    hides all that fits behind it, and half of it while the pipeline fills and drains.
    """
    experts = job.model.experts
    if experts is None:
        return 0.0
    software = job.software
    split = np.where(job.sequence_parallel, job.tp, 1.0)
    # Recent releases lay groups of experts out side by side, older ones after context parallelism.
    inner = job.tp * (1.0 if software.is_recent else job.cp)
    inner = np.where(np.asarray(job.expert_tp) < job.tp, 1.0, inner)
    token_bytes = job.tokens / split * job.model.hidden_size * BF16_BYTES
    # An exchange takes as long as its fullest rank.
    skew = constants["expert_skew"] * skew_ratio(job, constants)
    copies = experts.top_k * (software.capacity_factor or skew)
    if software.dispatcher == "allgather":
        seconds = 4.0 * _collective(job, constants, token_bytes * job.ep, inner, job.ep)
    elif software.node_exchange:
        seconds = 4.0 * _node_exchange(job, constants, token_bytes, copies, inner)
    else:
        seconds = 4.0 * _all_to_all(job, constants, token_bytes * copies, inner, job.ep)
    if software.pair_overlap:
        seconds = np.maximum(0.5 * job.unpaired * seconds, seconds - beside)
    elif software.expert_overlap:
        seconds = seconds * constants["ep_exposed"]
    # The host waits for the numbers of tokens, and the device then for the host.
    is_waiting = not software.is_graph and software.capacity_factor is None
    is_cut = np.maximum(job.ep, job.tp) > 1
    return seconds + np.where(is_cut, is_waiting * constants["expert_sync_seconds"], 0.0)


def _node_exchange(
    job: Job, constants: Constants, token_bytes: Number, copies: Number, inner: Number
) -> Number:
    """Seconds of one exchange in two steps: NPUs of the same place in each node gather their
    tokens, one copy for a node; inside of it copies go to their experts."""
    size = np.asarray(job.ep, float)
    near = _in_node(job, inner, size)
    nodes = size / near
    between = token_bytes * (nodes - 1.0) / constants["roce_bytes_per_s"]
    inside = token_bytes * copies / near / constants["hccs_link_bytes_per_s"] * (near > 1)
    starts = constants["collective_seconds"] * ((nodes > 1) + 1.0 * (near > 1))
    return np.where(size > 1, between + inside + starts, 0.0)


def _point_to_point(job: Job, constants: Constants) -> Number:
    """What one chunk sends on and back of a micro-batch."""
    split = np.where(job.sequence_parallel, job.tp, 1.0)
    size_bytes = job.tokens * job.model.hidden_size * BF16_BYTES / split
    apart = job.world / job.pp
    rate = np.where(
        np.asarray(apart * job.pp > job.machine.node_devices),
        constants["roce_bytes_per_s"],
        constants["hccs_link_bytes_per_s"],
    )
    return 2.0 * (size_bytes / rate + constants["collective_seconds"])


def _host(job: Job, constants: Constants, is_mixed: bool) -> Number:
    """Seconds in which the host launches one layer, forward and backward."""
    software = job.software
    if software.is_graph:
        return 0.0
    operators: Number = 150.0
    if not isinstance(job.model.attention, GroupedQueries):
        operators = operators + 100.0
    if is_mixed and job.model.experts is not None:
        operators = operators + 200.0
        if not software.grouped_experts:
            operators = operators + 30.0 * np.maximum(job.model.experts.routed / job.ep, 1.0)
    operators = operators + 40.0 * (np.asarray(job.tp) > 1)
    ring = np.where(job.context == "ulysses", 1.0, job.cp / job.ulysses)
    operators = operators + 100.0 * (ring - 1.0) + 30.0 * (np.asarray(job.cp) > 1)
    operators = operators + 20.0 * (not software.fused_rope) + 10.0 * (not software.fused_swiglu)
    return operators * constants["operator_seconds"]


def _data_parallel(job: Job, constants: Constants) -> Number:
    """Gradients (and weights of a distributed optimizer) once a step, on the heaviest stage."""
    time_s: Number = 0.0
    replicas = np.asarray(job.dp * job.cp, float)
    for stage in {0, job.pp - 1}:
        dense, experts, _ = stage_weights(job, stage)
        wide = FP32_BYTES * (2.0 - np.asarray(job.distributed_optimizer, float)) + (
            BF16_BYTES * np.asarray(job.distributed_optimizer, float)
        )
        inner = job.tp
        seconds = _collective(job, constants, dense * wide, inner, replicas)
        if job.model.experts is not None:
            size_bytes = experts * wide
            seconds = seconds + _collective(
                job, constants, size_bytes, job.ep * inner, job.expert_dp
            )
        time_s = np.maximum(time_s, seconds)
    if job.software.training != "full":
        return 0.0 * time_s
    hidden = (job.software.grad_overlap + job.software.param_overlap) / 2.0
    return time_s * (1.0 - hidden * (1.0 - constants["dp_exposed"]))


def _optimizer(job: Job, constants: Constants) -> Number:
    """The update: gradients' norm, moments and weights, read and written."""
    time_s: Number = 0.0
    for stage in {0, job.pp - 1}:
        dense, experts, _ = stage_weights(job, stage)
        shard = dense / job.shards + experts / job.expert_shards
        moved = 8.0 * (dense + experts) + constants["update_bytes"] * shard
        seconds = moved / constants["memory_bytes_per_s"]
        if job.software.swap_optimizer:
            seconds = seconds + 24.0 * shard / constants["host_bytes_per_s"]
        time_s = np.maximum(time_s, seconds)
    return np.where(job.software.training == "full", time_s, 0.02 * time_s)
