"""Which conventions of counting give an MFU that was published, and which do not.

    MFU = tokens/s x FLOPs per token / (devices x peak)

Sequence length, attention, MTP blocks, router, recompute and peak are all put through; so are the
short forms 6 N and 8 N of the active parameters (training, and with all of forward recomputed).
Recomputed work makes an HFU: such readings of an "MFU" come last, for who takes it for one.
The points of one claim were measured one way, so a convention's error is its largest over them.
Published figures are rounded: a convention within the tolerance is possible, not proven.

The share of a step that pipeline stages wait at its ends, by schedule.

What Megatron-LM's own counter gives, and where ours differs from it.

Its `num_floating_point_operations` works per token, times 3 for forward and backward, and by terms
that are ours but for

* norms: the projection to several heads in latent attention counts one more element for each low
  rank, and an MTP block 3 h, as multiply-accumulates;
* the router, which it leaves out;
* the core of attention: half of the scores since 2025-03-06 (commit 8873b55d6a), all of them
  before, core_r0.8.0 included.

MindSpeed's wrapper takes no-op layers off first, as we do. Both multiply with the padded
vocabulary: a model read from their arguments has that size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib import resources
from itertools import product
from typing import Literal, get_args

import msgspec

from npuscope.errors import UsageError

from .architecture import (
    GroupedQueries,
    Latent,
    Model,
    last_has_experts,
    layer_counts,
    shared_size,
)
from .model import Attention, Recompute, count

TOLERANCE = 0.01
_ATTENTION: tuple[Attention, ...] = ("causal", "full")
_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
Reading = Literal["mfu", "short form", "hfu"]
_SHORT_FORMS = ((6, "6 N"), (8, "8 N, full recompute"))


@dataclass(frozen=True, slots=True)
class Point:
    """A published MFU (percent, of all devices) and the throughput it was measured at."""

    tokens_per_s: float
    devices: int
    mfu_percent: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Points that one convention has to give, and who published them."""

    claim: str
    source: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s of one device that a published MFU may be held against."""

    name: str
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A published bubble (percent of the step) and the schedule it is of."""

    stages: int
    micro_batches: int
    virtual_chunks: int
    bubble_percent: float

    @property
    def bubble_ratio(self) -> float:
        """The bubble as the schedule's formula gives it."""
        return float(bubble_ratio(self.stages, self.micro_batches, self.virtual_chunks))


@dataclass(frozen=True, slots=True)
class PublishedTraining:
    """What is published of a model's training, and the conventions to try on it."""

    claims: tuple[Claim, ...] = ()
    sequence_lengths: tuple[int, ...] = ()
    mtp: tuple[int, ...] = (0,)
    router: tuple[bool, ...] = (False,)
    active_parameters: int | None = None
    peaks: tuple[Peak, ...] = ()
    pipelines: tuple[Pipeline, ...] = field(default=())
    pipelines_source: str | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A convention and the MFU it predicts for a claim's points. None: not part of a short form."""

    model: str
    claim: str
    reading: Reading
    formula: str
    sequence_length: int | None
    attention: Attention | None
    mtp: int | None
    router: bool | None
    recompute: Recompute
    peak_name: str
    peak_flops_per_s: float
    flops_per_token: float
    predicted_mfu_ratio: tuple[float, ...]
    published_mfu_ratio: tuple[float, ...]
    error_ratio: float
    reconciles: bool


@cache
def published_figures() -> dict[str, PublishedTraining]:
    """Published figures by preset."""
    text = resources.files(__package__).joinpath("published.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, PublishedTraining])


def published_of(model: Model) -> PublishedTraining:
    """Published figures of a preset. Raises UsageError where none are known."""
    training = published_figures().get(model.name)
    if training is None:
        raise UsageError(
            f"{model.name}: no MFU is published; known are {', '.join(published_figures())}"
        )
    return training


# metric: model_reconcile
# Which conventions of counting give the MFU that was published of a model?
#
# Every combination of sequence length, attention, MTP, router, recompute and peak, and the short
# forms of the active parameters; a convention's error is its largest over the points of a claim.
#
# title: Conventions behind a published MFU
# meaning: The MFU that each convention of counting predicts beside the published one.
# command: model --reconcile
#
#   model                varchar   its name
#   claim                varchar   what was published
#   reading              varchar   mfu, short form, or hfu: recomputed work is counted
#   formula              varchar   of the short form, or what is counted
#   sequence_length      bigint    tokens of a sequence
#   attention            varchar   causal or full
#   mtp                  bigint    MTP blocks that are counted
#   router               boolean   whether the experts' router is counted
#   recompute            varchar   none, selective or full
#   peak_name            varchar   of the device
#   peak_flops_per_s     double    of the device
#   flops_per_token      double    by this convention
#   predicted_mfu_ratio  double[]  for each point of the claim
#   published_mfu_ratio  double[]  the points
#   error_ratio          double    the largest over the points
#   reconciles           boolean   whether that is within the tolerance
def reconcile(model: Model, training: PublishedTraining) -> tuple[Reconciliation, ...]:
    """Every convention on every claim of `training`, claims as they stand.

    Of each claim the readings as MFU and short forms, then those as HFU, the smallest error first.
    """
    reconciliations = []
    for claim in training.claims:
        rows = [
            _judge(model, claim, counted, peak)
            for counted, peak in product(_counts(model, training), training.peaks)
        ]
        reconciliations += sorted(rows, key=lambda row: (row.reading == "hfu", row.error_ratio))
    return tuple(reconciliations)


def out_of_reach(rows: Sequence[Reconciliation]) -> tuple[Reconciliation, ...]:
    """For each claim and peak that no MFU reconciles with, the convention that comes nearest."""
    nearest: dict[tuple[str, str], Reconciliation] = {}
    for row in rows:
        if row.reading == "hfu":
            continue
        key = (row.claim, row.peak_name)
        if key not in nearest or row.error_ratio < nearest[key].error_ratio:
            nearest[key] = row
    return tuple(row for row in nearest.values() if not row.reconciles)


@dataclass(frozen=True, slots=True)
class _TokenFlops:
    """FLOPs per token by one convention."""

    reading: Reading
    formula: str
    flops: float
    recompute: Recompute
    sequence_length: int | None = None
    attention: Attention | None = None
    mtp: int | None = None
    router: bool | None = None


def _counts(model: Model, training: PublishedTraining) -> Iterator[_TokenFlops]:
    has_experts = model.experts is not None
    for length, attention, mtp, router, recompute in product(
        training.sequence_lengths, _ATTENTION, training.mtp, training.router, _RECOMPUTE
    ):
        counted = count(
            model, sequence_length=length, attention=attention, mtp=mtp, router=router,
            recompute=recompute,
        )  # fmt: skip
        yield _TokenFlops(
            reading="mfu" if recompute == "none" else "hfu",
            formula=f"s = {length}, {attention}, {mtp} MTP"
            + (", router" if router and has_experts else "")
            + ("" if recompute == "none" else f", {recompute} recompute"),
            flops=float(counted.hardware_flops),
            recompute=recompute,
            sequence_length=length,
            attention=attention,
            mtp=mtp,
            router=router,
        )
    if training.active_parameters is not None:
        for times, formula in _SHORT_FORMS:
            yield _TokenFlops(
                reading="short form",
                formula=f"{formula}, N = {training.active_parameters / 1e9:g} B",
                flops=float(times * training.active_parameters),
                recompute="full" if times == 8 else "none",
            )


def _judge(model: Model, claim: Claim, counted: _TokenFlops, peak: Peak) -> Reconciliation:
    predicted = tuple(
        point.tokens_per_s * counted.flops / (point.devices * peak.flops_per_s)
        for point in claim.points
    )
    stated = tuple(point.mfu_percent / 100 for point in claim.points)
    error = max(abs(ours / theirs - 1) for ours, theirs in zip(predicted, stated, strict=True))
    return Reconciliation(
        model=model.name,
        claim=claim.claim,
        reading=counted.reading,
        formula=counted.formula,
        sequence_length=counted.sequence_length,
        attention=counted.attention,
        mtp=counted.mtp,
        router=counted.router,
        recompute=counted.recompute,
        peak_name=peak.name,
        peak_flops_per_s=peak.flops_per_s,
        flops_per_token=counted.flops,
        predicted_mfu_ratio=predicted,
        published_mfu_ratio=stated,
        error_ratio=error,
        reconciles=error <= TOLERANCE,
    )


# metric: model_bubbles
# Which bubble does a pipeline schedule have, and which was published?
#
# Where no MFU was published of a model, but bubbles of its schedules.
#
# title: Published pipeline bubbles
# meaning: Bubbles of pipeline schedules by formula beside the published ones.
#
#   stages           bigint  pipeline stages
#   micro_batches    bigint  micro-batches of a step
#   virtual_chunks   bigint  chunks of layers on each stage
#   bubble_ratio     double  by the formula
#   published_ratio  double  as published
def bubble_ratio(stages: int, micro_batches: int, virtual_chunks: int = 1) -> Fraction:
    """Bubble / step of a balanced 1F1B pipeline, interleaved where a stage has several chunks.

        (p - 1) / (m v + p - 1)

    with p stages, m micro-batches, v chunks of layers per stage (Narayanan et al., arXiv
    2104.04473, give the same as bubble / ideal time, (p - 1) / (m v)). Raises UsageError for
    counts below 1.
    """
    if min(stages, micro_batches, virtual_chunks) < 1:
        raise UsageError("stages, micro-batches and virtual chunks have to be 1 or more")
    return Fraction(stages - 1, micro_batches * virtual_chunks + stages - 1)


Convention = Literal["current", "before 2025-03"]
_TRAINING = 3 * 2  # forward and twice that backward, 2 FLOPs per multiply-accumulate


def megatron_flops(
    model: Model, *, sequence_length: int, convention: Convention = "current"
) -> Fraction:
    """Training FLOPs per token as Megatron-LM counts them."""
    terms = megatron_terms(model, sequence_length, convention)
    return sum((flops for _, flops in terms), Fraction(0))


def attention_of(convention: Convention) -> Attention:
    """How a convention of Megatron's counts attention. Raises UsageError for others."""
    if convention not in get_args(Convention):
        raise UsageError(f"{convention!r}: choose one of {', '.join(get_args(Convention))}")
    return "causal" if convention == "current" else "full"


def megatron_terms(
    model: Model, sequence_length: int, convention: Convention
) -> Iterator[tuple[str, Fraction]]:
    """Terms of Megatron's counter: (name, training FLOPs per token).

    Written in its own variables: MTP blocks are added to the layers of the last one's kind.
    """
    h, attention = model.hidden_size, model.attention
    dense, mixed = layer_counts(model)
    if last_has_experts(model):
        mixed += model.mtp_depth
    else:
        dense += model.mtp_depth
    layers = dense + mixed
    scores = Fraction(sequence_length, 2 if attention_of(convention) == "causal" else 1)
    # One matrix of the expansion by a gated unit counts as one and a half of a plain pair.
    expansion = _TRAINING * 2 * h * (Fraction(3, 2) if model.gated else Fraction(1))
    if isinstance(attention, GroupedQueries):
        projections = _grouped_projections(attention, h)
        core = scores * 2 * attention.heads * attention.head_dim
    else:
        projections = _latent_projections(attention, h)
        width = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        core = scores * attention.heads * width + scores * attention.heads * attention.v_head_dim
    yield "attention projections", Fraction(_TRAINING * projections * layers)
    yield "core attention", _TRAINING * core * layers
    if dense:
        yield "dense FFN", expansion * (model.ffn_size or 0) * dense
    if mixed and model.experts is not None:
        routed = model.experts.ffn_size * model.experts.top_k
        yield "routed experts", expansion * routed * mixed
        if model.experts.shared:
            yield "shared experts", expansion * shared_size(model.experts) * mixed
    if model.mtp_depth:
        yield "MTP projection", Fraction(_TRAINING * model.mtp_depth * (3 * h + 2 * h * h))
    heads = 1 + model.mtp_depth
    yield "logits", Fraction(_TRAINING * h * model.vocabulary_size * heads)


def _grouped_projections(attention: GroupedQueries, hidden_size: int) -> int:
    """Elements of query, output, key and value, as h^2 times ratios in the original."""
    query_size = attention.heads * attention.head_dim
    ratio = 1 + Fraction(attention.kv_heads, attention.heads)
    return int(2 * hidden_size * query_size * ratio)


def _latent_projections(attention: Latent, hidden_size: int) -> int:
    """Elements of latent attention's projections, norms among them."""
    a, rope = attention.heads, attention.qk_rope_head_dim
    query_size = a * (attention.qk_nope_head_dim + rope)
    if attention.q_lora_rank is None:
        query = hidden_size * query_size
    else:
        query = attention.q_lora_rank * (hidden_size + query_size + 1)
    values = a * (attention.qk_nope_head_dim + attention.v_head_dim)
    latent = attention.kv_lora_rank * (hidden_size + values + 1)
    output = a * attention.v_head_dim * hidden_size
    return query + latent + hidden_size * rope + output
