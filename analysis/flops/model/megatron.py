"""What Megatron-LM's own counter gives, and where ours differs from it.

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

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from npuscope.errors import UsageError

from .architecture import Grouped, Latent, Model, last_has_experts, layer_counts, shared_size
from .model import Attention, ModelFlops, Term

Convention = Literal["current", "before 2025-03"]
_TRAINING = 3 * 2  # forward and twice that backward, 2 FLOPs per multiply-accumulate


@dataclass(frozen=True, slots=True)
class Compared:
    """A term of Megatron's counter beside ours: training FLOPs per token over all layers.

    `norm_flops` is the part of Megatron's that is norms, which we do not count; `difference_flops`
    what is left of the difference without them: zero where the conventions are the same.
    """

    term: str
    megatron_flops: Fraction
    norm_flops: Fraction
    our_flops: Fraction

    @property
    def difference_flops(self) -> Fraction:
        """Ours less Megatron's without norms."""
        return self.our_flops - (self.megatron_flops - self.norm_flops)


def megatron_flops(
    model: Model, *, sequence_length: int, convention: Convention = "current"
) -> Fraction:
    """Training FLOPs per token as Megatron-LM counts them."""
    terms = _terms(model, sequence_length, convention)
    return sum((flops for _, flops, _ in terms), Fraction(0))


def attention_of(convention: Convention) -> Attention:
    """How a convention of Megatron's counts attention. Raises UsageError for others."""
    if convention not in get_args(Convention):
        raise UsageError(f"{convention!r}: choose one of {', '.join(get_args(Convention))}")
    return "causal" if convention == "current" else "full"


def compare(counted: ModelFlops, convention: Convention = "current") -> tuple[Compared, ...]:
    """Our count beside Megatron's, term by term; sums of the rows are the two counts.

    Megatron counts all MTP blocks the model has, whatever `counted` does.
    """
    ours: dict[str, Fraction] = {}
    for term in counted.terms:
        name = _megatron_name(term)
        ours[name] = ours.get(name, Fraction(0)) + 3 * term.flops
    theirs = {
        name: (flops, norms)
        for name, flops, norms in _terms(counted.model, counted.sequence_length, convention)
    }
    return tuple(
        Compared(name, *theirs.get(name, (Fraction(0), Fraction(0))), ours.get(name, Fraction(0)))
        for name in [*theirs, *(name for name in ours if name not in theirs)]
    )


def _megatron_name(term: Term) -> str:
    if term.kind == "attention":
        return "core attention"
    if term.term.startswith("attention"):
        return "attention projections"
    return {"projection of two": "MTP projection", "LM head": "logits"}.get(term.term, term.term)


def _terms(
    model: Model, sequence_length: int, convention: Convention
) -> Iterator[tuple[str, Fraction, Fraction]]:
    """Terms of Megatron's counter: (name, training FLOPs per token, those of them that are norms).

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
    if isinstance(attention, Grouped):
        projections, norms = _grouped_projections(attention, h), 0
        core = scores * 2 * attention.heads * attention.head_dim
    else:
        projections, norms = _latent_projections(attention, h)
        width = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        core = scores * attention.heads * width + scores * attention.heads * attention.v_head_dim
    yield (
        "attention projections",
        Fraction(_TRAINING * projections * layers),
        Fraction(_TRAINING * norms * layers),
    )
    yield "core attention", _TRAINING * core * layers, Fraction(0)
    if dense:
        yield "dense FFN", expansion * (model.ffn_size or 0) * dense, Fraction(0)
    if mixed and model.experts is not None:
        routed = model.experts.ffn_size * model.experts.top_k
        yield "routed experts", expansion * routed * mixed, Fraction(0)
        if model.experts.shared:
            yield "shared experts", expansion * shared_size(model.experts) * mixed, Fraction(0)
    if model.mtp_depth:
        norms = 3 * h
        yield (
            "MTP projection",
            Fraction(_TRAINING * model.mtp_depth * (norms + 2 * h * h)),
            Fraction(_TRAINING * model.mtp_depth * norms),
        )
    heads = 1 + model.mtp_depth
    yield "logits", Fraction(_TRAINING * h * model.vocabulary_size * heads), Fraction(0)


def _grouped_projections(attention: Grouped, hidden_size: int) -> int:
    """Elements of query, output, key and value, as h^2 times ratios in the original."""
    query_size = attention.heads * attention.head_dim
    ratio = 1 + Fraction(attention.kv_heads, attention.heads)
    return int(2 * hidden_size * query_size * ratio)


def _latent_projections(attention: Latent, hidden_size: int) -> tuple[int, int]:
    """Elements of latent attention's projections, and those of them that are norms."""
    a, rope = attention.heads, attention.qk_rope_head_dim
    query_size = a * (attention.qk_nope_head_dim + rope)
    if attention.q_lora_rank is None:
        query, norms = hidden_size * query_size, 0
    else:
        query = attention.q_lora_rank * (hidden_size + query_size + 1)
        norms = attention.q_lora_rank
    values = a * (attention.qk_nope_head_dim + attention.v_head_dim)
    latent = attention.kv_lora_rank * (hidden_size + values + 1)
    output = a * attention.v_head_dim * hidden_size
    return query + latent + hidden_size * rope + output, norms + attention.kv_lora_rank
