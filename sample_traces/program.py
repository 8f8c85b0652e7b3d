"""What each rank's framework launches, in order: the schedule of a job as a list of calls.

step:  zero gradients | micro-batches: receive, layers, send ... | gradients | norm, sync | Adam
                                                          allGather of parameters, until here ->
                                                          zero gradients of the next step
"""

from __future__ import annotations

import random
from collections.abc import Generator

from npuscope.analysis.pipeline.schedules import Pass

from . import kernels as k
from .calls import (
    BYTES_PER_NS,
    COMPUTE_STREAM,
    SIDE_STREAM,
    Call,
    CommCall,
    CopyCall,
    Draft,
    Pause,
    StepMark,
    Sync,
    add,
    collective,
    compute,
    exchange,
    held_by,
    peer_to_peer,
    place_of,
)
from .job import (
    HALVES,
    Job,
    coordinates,
    copy_of,
    groups_of,
    is_recomputed,
    local_experts,
    order,
    routed_tokens,
)

# A step's last kernel outlasts the spread between ranks; the allGather launched before it outlasts
# that kernel; the next step's first kernel outlasts the allGather.
_ADAM_NS, _GATHER_NS, _ZERO_NS = 420_000, 640_000, 900_000
_LOTS = ("kernels", "noise", "planted")
_NEXT_BATCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def program(job: Job, rank: int) -> list[Call]:
    """The calls of one rank over all steps."""
    chance, noise, planted = (random.Random(f"{job.seed}/{of}/{rank}") for of in _LOTS)
    draft = Draft(job, rank, coordinates(job, rank), groups_of(job, rank), chance, noise, planted)
    for step in range(job.first_step, job.first_step + job.steps):
        draft.step = step
        _step(draft)
    return draft.calls


def _step(d: Draft) -> None:
    job = d.job
    d.forward_sequences.clear()
    add(d, StepMark(d.step, True))
    parameters = job.hidden * job.hidden * 64
    zero = k.work("ZerosLike", f"{parameters}", f"{parameters}", _ZERO_NS, "FLOAT")
    head = compute(d, zero, even=True)
    add(d, CopyCall("MEMCPY_ASYNC", COMPUTE_STREAM, 21_340, ()))
    entries = order(job).orders[d.place["pp"]]
    if job.evaluates(d.step):
        entries = tuple((one,) for entry in entries for one in entry if one.kind == "F")
    warm_up = min(job.pp - d.place["pp"] - 1, job.micro_batches)
    is_paired = job.paired_transfers and job.schedule == "1f1b"
    for at, entry in enumerate(entries):
        following = entries[at + 1][0].kind if at + 1 < len(entries) else ""
        turns = following == ("BW" if entry[0].kind == "F" else "F")
        exchanges = is_paired and at >= warm_up and turns
        _take_turns(d, [(one, _pass(d, one, head, exchanges=exchanges)) for one in entry])
    if job.evaluates(d.step):
        add(d, Sync(d.last, "aten::item"))
        add(d, StepMark(d.step, False))
    else:
        _finish(d)


# Parts of a pass: it yields where it could let another one run, True before it ends with a send.
Parts = Generator[bool, None, None]
Within = Generator[bool, None, tuple[int, ...]]


def _number(d: Draft, one: Pass) -> int:
    """Of the step: copies of the model take turns."""
    copies = len(order(d.job).routes)
    return one.micro_batch * copies + copy_of(d.job, d.place["pp"], one.chunk)


def _is_last(d: Draft, one: Pass) -> bool:
    """Whether no micro-batch comes after it on its way through the pipeline."""
    return one.micro_batch == d.job.micro_batches // len(order(d.job).routes) - 1


def _pass(d: Draft, one: Pass, head: int, *, exchanges: bool) -> Parts:
    if one.kind == "F":
        return _forward(d, one, head, exchanges=exchanges)
    if one.kind == "W":
        return _weights(d, one)
    return _backward(d, one, exchanges=exchanges)


def _take_turns(d: Draft, passes: list[tuple[Pass, Parts]]) -> None:
    """Passes beside each other: a part of each in turns, and all that they send at the end."""
    last = [d.last] * len(passes)
    states: list[tuple[bool, int, str, bool]] = [(False, -1, "", True)] * len(passes)
    left = list(range(len(passes)))
    while left:
        for at in list(left):
            d.part, d.last = passes[at][0], last[at]
            d.is_recomputing, d.layer, d.half, d.is_kept = states[at]
            if next(passes[at][1]):
                left.remove(at)
            last[at] = d.last
            states[at] = (d.is_recomputing, d.layer, d.half, d.is_kept)
    d.is_recomputing, d.layer, d.half, d.is_kept = False, -1, "", True
    for at, (one, parts) in enumerate(passes):
        d.part, d.last = one, last[at]
        for _ in parts:
            raise AssertionError(one)
    d.part, d.last = None, max(last)


def _receive(d: Draft, source: int, *, backward: bool) -> int:
    """A tensor of another stage: what the exchange before brought, else an operation of its own."""
    arrival, d.arrival = d.arrival, None
    if arrival is None:
        arrival = peer_to_peer(d, source, d.place["pp"], backward=backward)
    return arrival


def _send(d: Draft, target: int, *, backward: bool, exchanges: bool) -> None:
    """A tensor for another stage, in exchange for its next one or not."""
    if exchanges:
        d.arrival = exchange(d, target)
    else:
        peer_to_peer(d, d.place["pp"], target, backward=backward)


def _forward(d: Draft, one: Pass, head: int, *, exchanges: bool) -> Parts:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    place, micro_batch = place_of(d, one.chunk), _number(d, one)
    after: tuple[int, ...] = ()
    if place.before is not None:
        after = (_receive(d, place.before, backward=False),)
    yield False
    if place.is_first:
        if job.data_wait_ns:
            add(d, Pause("operator", _NEXT_BATCH, job.data_wait_ns))
        inputs = f"{job.vocabulary},{hidden};1,{rows};1"
        compute(
            d, k.work("GatherV2", inputs, f"1,{rows},{hidden}", k.vector_ns(4.0 * rows * hidden))
        )
    if micro_batch == 0 and job.gc_every and d.step % job.gc_every == 0:
        add(d, Pause("gc", "GC", job.gc_ns))
    mask = k.work("DSAGenBitMask", f"{rows}", f"{rows // 8}", 38_000, "UINT8")
    compute(d, mask, stream=SIDE_STREAM, after=(d.last,))
    if micro_batch == 0:
        choice = k.work("RandomChoiceWithMask", f"{job.sequence}", "256", 61_000, "INT64")
        compute(d, choice, stream=SIDE_STREAM, after=(head,))
    for layer in place.layers:
        after = yield from _layer_forward(d, micro_batch, layer, after)
    if place.is_last:
        compute(d, k.matmul(rows, hidden, job.vocabulary // 16), after=after)
        compute(d, k.elementwise("LogSoftmaxV2", rows, job.vocabulary // 16))
        for module in range(job.mtp):
            yield from _further_token(d, micro_batch, job.layers + module)
    if job.evaluates(d.step):
        for own in [key for key in d.blocks if key[:2] == one[1:]]:
            d.free += d.blocks.pop(own)
    yield True
    if place.after is not None:
        _send(d, place.after, backward=False, exchanges=exchanges)


def _further_token(d: Draft, micro_batch: int, layer: int) -> Parts:
    """A module for the prediction of one more token: its layer, its head."""
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    inputs = f"{job.vocabulary},{hidden};1,{rows};1"
    compute(d, k.work("GatherV2", inputs, f"1,{rows},{hidden}", k.vector_ns(4.0 * rows * hidden)))
    compute(d, k.matmul(rows, 2 * hidden, hidden))
    after = yield from _layer_forward(d, micro_batch, layer, ())
    compute(d, k.matmul(rows, hidden, job.vocabulary // 16), after=after)
    compute(d, k.elementwise("LogSoftmaxV2", rows, job.vocabulary // 16))


def _layer_forward(
    d: Draft,
    micro_batch: int,
    layer: int,
    after: tuple[int, ...],
    halves: tuple[str, ...] = HALVES,
) -> Within:
    for half in halves:
        d.layer, d.half = layer, half
        d.is_kept = d.is_recomputing or not (_again(d, layer, half) or d.job.evaluates(d.step))
        if half == "attention":
            after = yield from _attention_forward(d, after)
        else:
            after = yield from _ffn_forward(d, micro_batch, layer, after)
        d.layer, d.half, d.is_kept = -1, "", True
    return after


def _again(d: Draft, layer: int, half: str) -> bool:
    assert d.part is not None
    return is_recomputed(d.job, d.place["pp"], d.part.chunk, layer, half)


def _attention_forward(d: Draft, after: tuple[int, ...]) -> Within:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    compute(d, k.elementwise("RmsNorm", rows, hidden), after=after)
    if job.item_in_layers:
        add(d, Sync(d.last, "aten::item"))
    compute(d, k.matmul(rows, hidden, job.projected_columns))
    compute(d, k.elementwise("RotaryPositionEmbedding", rows, hidden // job.tp))
    compute(d, k.attention(job.sequence, hidden // job.tp, backward=False))
    compute(d, k.matmul(rows, hidden // job.tp, hidden))
    after = _tensor_parallel(d, backward=False)
    yield False
    if job.fused_norms:
        return after
    compute(d, k.elementwise("Add", rows, hidden), after=after)
    return ()


def _ffn_forward(d: Draft, micro_batch: int, layer: int, after: tuple[int, ...]) -> Within:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    compute(d, k.norm(rows, hidden, of_sum=job.fused_norms), after=after)
    if job.experts:
        yield from _experts_forward(d, micro_batch, layer)
    else:
        compute(d, k.matmul(rows, hidden, 2 * job.ffn // job.tp))
        compute(d, k.elementwise("SwiGlu", rows, job.ffn // job.tp))
        compute(d, k.matmul(rows, job.ffn // job.tp, hidden))
    return _tensor_parallel(d, backward=False)


def _experts_forward(d: Draft, micro_batch: int, layer: int) -> Parts:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    compute(d, k.matmul(rows, hidden, job.experts))
    gate = f"{rows},{job.experts}"
    compute(d, k.work("MoeGatingTopKSoftmax", gate, f"{rows},{job.top_k}", 14_000, "FLOAT"))
    compute(d, k.elementwise("MoeTokenPermute", rows * job.top_k, hidden))
    dispatched = _all_to_all(d, micro_batch, layer, home=False)
    _shared_expert(d, dispatched)
    yield False
    tokens, count = _local_tokens(d, micro_batch, layer), job.experts // job.ep
    compute(d, k.grouped_matmul(tokens, count, hidden, 2 * job.ffn), after=dispatched)
    compute(d, k.elementwise("SwiGlu", tokens, job.ffn))
    compute(d, k.grouped_matmul(tokens, count, job.ffn, hidden))
    combined = _all_to_all(d, micro_batch, layer, home=True)
    _shared_expert(d, combined)
    yield False
    compute(d, k.elementwise("MoeTokenUnpermute", rows * job.top_k, hidden), after=combined)


def _backward(d: Draft, one: Pass, *, exchanges: bool) -> Parts:
    """Layers in reverse; a pass for inputs alone leaves the gradients of weights to another."""
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    place, is_whole = place_of(d, one.chunk), one.kind == "BW"
    after: tuple[int, ...] = ()
    if place.after is not None:
        after = (_receive(d, place.after, backward=True),)
    yield False
    layers = list(reversed(place.layers))
    if place.is_last:
        further = list(reversed(range(job.layers, job.layers + job.mtp)))
        for layer in further:
            compute(d, k.matmul(rows, job.vocabulary // 16, hidden), backward=True)
            after = yield from _layer_backward(d, one, layer, after)
            compute(d, k.matmul(rows, hidden, 2 * hidden), after=after, backward=True)
            after = ()
        compute(d, k.matmul(rows, job.vocabulary // 16, hidden), backward=True)
    for position, layer in enumerate(layers):
        after = yield from _layer_backward(d, one, layer, after)
        if is_whole and _is_last(d, one):
            _reduce(d, position, len(layers))
    if place.is_first:
        inputs = f"{rows},{hidden};{rows}"
        grad = k.work("EmbeddingDenseGradV2", inputs, f"{job.vocabulary},{hidden}", 45_000, "FLOAT")
        compute(d, grad, backward=True)
    if is_whole:
        _release(d, -1, "")
    yield True
    if place.before is not None:
        _send(d, place.before, backward=True, exchanges=exchanges)


def _layer_backward(d: Draft, one: Pass, layer: int, after: tuple[int, ...]) -> Within:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    is_whole = one.kind == "BW"
    if job.recompute == "full":
        d.is_recomputing = True
        after = yield from _layer_forward(d, _number(d, one), layer, after)
        d.is_recomputing = False
    after = yield from _recompute(d, one, layer, "ffn", after)
    if job.experts:
        after = yield from _experts_backward(d, _number(d, one), layer, after)
    else:
        for inner, columns in ((hidden, job.ffn // job.tp), (job.ffn // job.tp, hidden)):
            compute(d, k.matmul(rows, inner, columns), after=after, backward=True)
            if is_whole:
                compute(d, k.matmul(inner, rows, columns), backward=True)
    compute(d, k.elementwise("RmsNormGrad", rows, hidden), after=after, backward=True)
    if is_whole:
        _release(d, layer, "ffn")
    yield from _recompute(d, one, layer, "attention", ())
    compute(d, k.matmul(rows, hidden, hidden // job.tp), backward=True)
    if is_whole:
        compute(d, k.matmul(hidden // job.tp, rows, hidden), backward=True)
    if job.recompute == "selective":
        d.is_recomputing = True
        compute(d, k.attention(job.sequence, hidden // job.tp, backward=False))
        d.is_recomputing = False
    compute(d, k.attention(job.sequence, hidden // job.tp, backward=True), backward=True)
    compute(d, k.matmul(rows, job.projected_columns, hidden), backward=True)
    if is_whole:
        compute(d, k.matmul(hidden, rows, job.projected_columns), backward=True)
    after = _tensor_parallel(d, backward=True)
    yield False
    compute(d, k.elementwise("RmsNormGrad", rows, hidden), after=after, backward=True)
    if is_whole:
        _release(d, layer, "attention")
    return ()


def _recompute(d: Draft, one: Pass, layer: int, half: str, after: tuple[int, ...]) -> Within:
    """One half of a layer again, where that is chosen; its output is in no use by now."""
    own = d.blocks.get(held_by(d, layer, half), [])
    d.free, own[-1:] = d.free + own[-1:], []
    if _again(d, layer, half):
        d.is_recomputing = True
        after = yield from _layer_forward(d, _number(d, one), layer, after, (half,))
        d.is_recomputing = False
    return after


def _release(d: Draft, layer: int, half: str) -> None:
    """What a half of a layer holds, or with -1 and "" what is no layer, is free as of here."""
    d.free += d.blocks.pop(held_by(d, layer, half), [])


def _weights(d: Draft, one: Pass) -> Parts:
    """The gradients of weights that a pass for inputs left."""
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    layers = list(reversed(place_of(d, one.chunk).layers))
    for position, layer in enumerate(layers):
        if not job.experts:
            for inner, columns in ((hidden, job.ffn // job.tp), (job.ffn // job.tp, hidden)):
                compute(d, k.matmul(inner, rows, columns))
        compute(d, k.matmul(hidden // job.tp, rows, hidden))
        compute(d, k.matmul(hidden, rows, job.projected_columns))
        for half in HALVES:
            _release(d, layer, half)
        if _is_last(d, one):
            _reduce(d, position, len(layers))
    _release(d, -1, "")
    yield True


def _reduce(d: Draft, position: int, layers: int) -> None:
    """The gradients of a layer at once, where the wanted share of them has compute beside it."""
    if position < round(d.job.overlap * layers):
        _reduce_gradients(d)
    else:
        d.open_layers += 1


def _experts_backward(d: Draft, micro_batch: int, layer: int, after: tuple[int, ...]) -> Within:
    job, rows, hidden = d.job, d.job.sequence // d.job.tp, d.job.hidden
    tokens, count = _local_tokens(d, micro_batch, layer), job.experts // job.ep
    unpermute = k.elementwise("MoeTokenUnpermuteGrad", rows * job.top_k, hidden)
    compute(d, unpermute, after=after, backward=True)
    dispatched = _all_to_all(d, micro_batch, layer, home=False, backward=True)
    _shared_expert(d, dispatched, backward=True)
    yield False
    grouped = k.grouped_matmul(tokens, count, hidden, job.ffn)
    compute(d, grouped, after=dispatched, backward=True)
    compute(d, k.elementwise("SwiGluGrad", tokens, job.ffn), backward=True)
    compute(d, k.grouped_matmul(tokens, count, 2 * job.ffn, hidden), backward=True)
    combined = _all_to_all(d, micro_batch, layer, home=True, backward=True)
    _shared_expert(d, combined, backward=True)
    yield False
    permute = k.elementwise("MoeTokenPermuteGrad", rows * job.top_k, hidden)
    compute(d, permute, after=combined, backward=True)
    return ()


def _finish(d: Draft) -> None:
    """The remaining gradients, their norm over the world, the optimizer."""
    job = d.job
    for _ in range(d.open_layers):
        _reduce_gradients(d)
    d.open_layers = 0
    issued = tuple(i for i, call in enumerate(d.calls) if isinstance(call, CommCall))[-4:]
    norm = d.last
    if "world" in d.groups and len(d.groups["world"].ranks) > 1:
        norm = collective(
            d, "world", "allReduce", 1, after=(*issued, d.last), data_type="FP32",
            on_vector_cores=True,
        )[0]  # fmt: skip
    if not job.skips_norm:
        add(d, Sync(norm))
    shard = f"{job.hidden * job.hidden * 8}"
    inputs = ";".join([shard] * 4)
    adam = k.work("ApplyAdamWV2", inputs, ";".join([shard] * 3), _ADAM_NS // 7, "FLOAT")
    first = compute(d, adam, after=(*issued, norm))
    inputs = ";".join([f"{7 * job.hidden * job.hidden * 8}"] * 4)
    compute(d, k.work("ApplyAdamWV2", inputs, inputs[: inputs.rindex(";")], _ADAM_NS, "FLOAT"))
    add(d, StepMark(d.step, False))
    if job.crossing and d.step + 1 < job.first_step + job.steps:
        _gather_parameters(d, first)


def _gather_parameters(d: Draft, after: int) -> None:
    """Starts when the first parameters are updated, ends under the next step's first kernel."""
    for role in ("dp", "tp", "world"):
        group = d.groups[role]
        if len(group.ranks) > 1:
            hosts = {rank // d.job.ranks_per_host for rank in group.ranks}
            shard = int(_GATHER_NS * BYTES_PER_NS["HCCS" if len(hosts) == 1 else "ROCE"])
            collective(d, role, "allGather", shard // 2 * len(group.ranks), after=(after,))
            return


def _reduce_gradients(d: Draft) -> None:
    job, dense = d.job, 4 * d.job.hidden * d.job.hidden // d.job.tp
    collective(d, "dp", "reduceScatter", dense, after=(d.last,), backward=True)
    if job.experts:
        expert = 3 * job.hidden * job.ffn * (job.experts // job.ep)
        collective(d, "dp_ep", "reduceScatter", expert, after=(d.last,), backward=True)


def _tensor_parallel(d: Draft, *, backward: bool) -> tuple[int, ...]:
    count = d.job.sequence // d.job.tp * d.job.hidden
    return collective(d, "tp", "allReduce", count, after=(d.last,), backward=backward)


def _shared_expert(d: Draft, exchanged: tuple[int, ...], *, backward: bool = False) -> None:
    """The shared expert, as wide as the wanted share of the all-to-all beside it; after that with
    `serial_experts`."""
    job, rows = d.job, d.job.sequence // d.job.tp
    sent = 2.0 * rows * job.top_k * job.hidden / job.ep
    wanted_ns = job.overlap * (2_000 + sent / BYTES_PER_NS["HCCS"]) - 6_000
    columns = int(wanted_ns / (k.cube_ns(2e6 * rows * job.hidden) - 6_000) * 1e6)
    if job.ep > 1 and columns >= 16:
        after = exchanged if job.serial_experts else ()
        compute(d, k.matmul(rows, job.hidden, columns), after=after, backward=backward)


def _local_tokens(d: Draft, micro_batch: int, layer: int) -> int:
    """Tokens of the whole expert-parallel group for this rank's experts."""
    experts = local_experts(d.job, d.place["ep"], layer)
    return sum(
        sum(routed_tokens(d.job, d.step, micro_batch, layer, source)[e] for e in experts)
        for source in d.groups["ep"].ranks
    )


def _all_to_all(
    d: Draft, micro_batch: int, layer: int, *, home: bool, backward: bool = False
) -> tuple[int, ...]:
    """Tokens to their experts' ranks, or back `home` to the ranks they came from."""
    group = d.groups["ep"]
    me = group.ranks.index(d.rank)
    sent: list[int] = []
    for position, rank in enumerate(group.ranks):
        source, holder = (rank, me) if home else (d.rank, position)
        tokens = routed_tokens(d.job, d.step, micro_batch, layer, source)
        sent.append(sum(tokens[e] for e in local_experts(d.job, holder, layer)) * d.job.hidden)
    peers = tuple((p, count * 2) for p, count in enumerate(sent) if p != me)
    return collective(
        d, "ep", "allToAllV", sum(sent), after=(d.last,), backward=backward, peers=peers
    )
