"""Floating-point operations of a language model, term by term, per token.

A multiply-accumulate is 2 operations, a matrix of n elements costs 2 n per token, and the core of
attention (scores, then values) 2 a (d_qk + d_v) for each key a query sees. Norms, activations,
softmax and the embedding's look-up count as nothing. Backward is twice forward; training is both.

    forward  = sum of the terms
    train    = 3 forward
    hardware = train + what is computed again in backward

Symbols of the formulas: h hidden size, a heads, g key-value heads, d head size, r_q and r_kv the
low ranks of latent attention, d_n, d_r, d_v its head sizes without and with rotation and of values,
f and f_e feed-forward sizes dense and of an expert, E routed experts, k of them per token, V the
vocabulary, s the keys a query could see.

Sources: PaLM (arXiv 2204.02311, appendix B) for the convention; DeepSeek-V2 and -V3 (arXiv
2405.04434, 2412.19437) for latent attention, experts and MTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from npuscope.errors import UsageError

from .architecture import (
    GroupedQueries,
    Model,
    Parameters,
    attention_weights,
    ffn_matrices,
    last_has_experts,
    layer_counts,
    parameters,
    shared_size,
)

__all__ = ["Attention", "Flops", "Model", "ModelFlops", "Recompute", "Term", "count"]

Attention = Literal["causal", "full"]
Recompute = Literal["none", "selective", "full"]
Flops = int | Fraction  # exact; a fraction only where packed documents make one


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the forward pass: FLOPs per token in one layer, and in how many layers.

    `part`: layers, mtp or head; `kind`: matmul (a product with weights) or attention (its core).
    """

    term: str
    part: Literal["layers", "mtp", "head"]
    kind: Literal["matmul", "attention"]
    layer_flops: Flops
    layer_count: int
    formula: str

    @property
    def flops(self) -> Flops:
        """Forward FLOPs per token in all its layers."""
        return _plain(self.layer_flops * self.layer_count)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs per token of a model, with the conventions they are counted by."""

    model: Model
    sequence_length: int
    attention: Attention
    mtp: int
    router: bool
    recompute: Recompute
    document_lengths: tuple[int, ...] | None
    terms: tuple[Term, ...]
    parameters: Parameters

    @property
    def forward_flops(self) -> Flops:
        """One forward pass: the sum of the terms."""
        return _plain(sum((term.flops for term in self.terms), Fraction(0)))

    @property
    def attention_flops(self) -> Flops:
        """The core of attention in one forward pass."""
        of_core = (term.flops for term in self.terms if term.kind == "attention")
        return _plain(sum(of_core, Fraction(0)))

    @property
    def matmul_flops(self) -> Flops:
        """Products with weights in one forward pass."""
        return _plain(self.forward_flops - self.attention_flops)

    @property
    def backward_flops(self) -> Flops:
        """Gradients of inputs and of weights: twice the forward pass."""
        return _plain(2 * self.forward_flops)

    @property
    def train_flops(self) -> Flops:
        """Forward and backward: what MFU counts."""
        return _plain(3 * self.forward_flops)

    @property
    def recomputed_flops(self) -> Flops:
        """What backward computes a second time: nothing, the core of attention, or all."""
        if self.recompute == "full":
            return self.forward_flops
        return self.attention_flops if self.recompute == "selective" else 0

    @property
    def hardware_flops(self) -> Flops:
        """Training with what is recomputed: what HFU counts."""
        return _plain(self.train_flops + self.recomputed_flops)

    @property
    def conventions(self) -> tuple[str, ...]:
        """What the count holds and what not, in words."""
        return _conventions(self)


# metric: model
# How many FLOPs does a token take in this model, and in which terms?
#
# Of products with weights and of the core of attention, two for a multiply-accumulate; backward is
# twice the forward. What is counted is stated in the conventions.
#
# title: FLOPs of a model
# meaning: FLOPs per token of a model by term, under stated conventions, and its parameters.
# command: model FILE|PRESET
#
#   model                          varchar    its name
#   sequence_length                bigint     tokens of a sequence
#   attention                      varchar    scores that are counted: causal or full
#   mtp                            bigint     MTP blocks that are counted
#   router                         boolean    whether the experts' router is counted
#   recompute                      varchar    none, selective or full
#   forward_flops                  bigint     forward, per token
#   matmul_flops                   bigint     of these, products with weights
#   attention_flops                bigint     of these, the core of attention
#   backward_flops                 bigint     backward, per token
#   train_flops                    bigint     forward and backward: what MFU counts
#   recomputed_flops               bigint     computed once more in backward
#   hardware_flops                 bigint     all together: what HFU counts
#   megatron_flops                 bigint     training by Megatron's own counter
#   megatron_before_2025_03_flops  bigint     the same before 2025-03
#   parameters                     bigint     matrices only
#   active_parameters              bigint     active for a token, with the head
#   embedding_parameters           bigint     of the embedding
#   mtp_parameters                 bigint     of MTP blocks, not in the above
#   mtp_active_parameters          bigint     of these, active for a token
#   conventions                    varchar[]  what was counted how
#   terms                          json       each term: part, formula, layers, FLOPs, share
def count(
    model: Model,
    *,
    sequence_length: int,
    attention: Attention = "causal",
    mtp: int | None = None,
    router: bool = False,
    recompute: Recompute = "none",
    document_lengths: Sequence[int] | None = None,
) -> ModelFlops:
    """FLOPs per token of `model`, term by term. Raises UsageError for sizes that make no sense.

    * `attention`: causal counts half of the scores (s / 2 keys per query), as published counts do,
      full all of them. With `document_lengths`, the lengths of documents packed so that none sees
      another, the scores themselves are counted: s_i (s_i + 1) / 2 causal, s_i^2 full.
    * `mtp`: blocks of multi-token prediction counted; None: those the model has.
    * `router`: count the experts' router, 2 h E.
    * `recompute`: what backward computes again: selective the core of attention, full all.
    """
    blocks = model.mtp_depth if mtp is None else mtp
    lengths = None if document_lengths is None else tuple(document_lengths)
    _refuse(sequence_length, attention, blocks, recompute, lengths)
    keys = _keys_per_query(sequence_length, attention, lengths)
    dense, mixed = layer_counts(model)
    core = _core(model, keys, attention, packed=lengths is not None)
    terms = [*_attention_terms(model, core, dense + mixed, "layers")]
    terms += _ffn_terms(model, dense, mixed, router, "layers")
    head = 2 * model.hidden_size * model.vocabulary_size
    if blocks:
        mixed_blocks = blocks if last_has_experts(model) else 0
        projection = 4 * model.hidden_size**2
        terms.append(Term("projection of two", "mtp", "matmul", projection, blocks, "2 (2 h h)"))
        terms += _attention_terms(model, core, blocks, "mtp")
        terms += _ffn_terms(model, blocks - mixed_blocks, mixed_blocks, router, "mtp")
        terms.append(Term("LM head", "mtp", "matmul", head, blocks, "2 h V"))
    terms.append(Term("LM head", "head", "matmul", head, 1, "2 h V"))
    return ModelFlops(
        model, sequence_length, attention, blocks, router, recompute, lengths, tuple(terms),
        parameters(model),
    )  # fmt: skip


def _refuse(
    sequence_length: int, attention: str, mtp: int, recompute: str, lengths: tuple[int, ...] | None
) -> None:
    if sequence_length < 1:
        raise UsageError(f"sequence length {sequence_length}: has to be 1 or more")
    if mtp < 0:
        raise UsageError(f"{mtp} MTP blocks: has to be 0 or more")
    for what, choice, values in (
        ("attention", attention, get_args(Attention)),
        ("recompute", recompute, get_args(Recompute)),
    ):
        if choice not in values:
            raise UsageError(f"{what} {choice!r}: choose one of {', '.join(values)}")
    if lengths is not None and (not lengths or min(lengths) < 1 or max(lengths) > sequence_length):
        raise UsageError(f"document lengths have to be within 1..{sequence_length}, one at least")


def _keys_per_query(
    sequence_length: int, attention: Attention, lengths: tuple[int, ...] | None
) -> Fraction:
    """Keys a token's query is multiplied with, on average."""
    if lengths is None:
        return Fraction(sequence_length, 2 if attention == "causal" else 1)
    if attention == "causal":
        return Fraction(sum(n * (n + 1) // 2 for n in lengths), sum(lengths))
    return Fraction(sum(n * n for n in lengths), sum(lengths))


def _core(model: Model, keys: Fraction, attention: Attention, *, packed: bool) -> tuple[Flops, str]:
    """The core of attention in one layer, per token, and its formula."""
    of = model.attention
    if isinstance(of, GroupedQueries):
        sizes, symbols = 2 * of.head_dim, "(2 d)"
    else:
        sizes = of.qk_nope_head_dim + of.qk_rope_head_dim + of.v_head_dim
        symbols = "(d_n + d_r + d_v)"
    if packed:
        scores = "sum s_i (s_i + 1) / 2" if attention == "causal" else "sum s_i^2"
        formula = f"2 a {symbols} ({scores}) / (sum s_i)"
    else:
        formula = f"2 s a {symbols}" + (" / 2" if attention == "causal" else "")
    return _plain(2 * keys * of.heads * sizes), formula


def _attention_terms(
    model: Model, core: tuple[Flops, str], layers: int, part: Literal["layers", "mtp"]
) -> list[Term]:
    return [
        *(
            Term(f"attention: {name}", part, "matmul", 2 * elements, layers, _twice(formula))
            for name, elements, formula in attention_weights(model)
        ),
        Term("attention: scores and values", part, "attention", core[0], layers, core[1]),
    ]


def _twice(formula: str) -> str:
    """The formula of 2 FLOPs for each element."""
    return f"4 {formula[2:]}" if formula.startswith("2 ") else f"2 {formula}"


def _ffn_terms(
    model: Model, dense: int, moe_layers: int, router: bool, part: Literal["layers", "mtp"]
) -> list[Term]:
    matrices = ffn_matrices(model)
    per_size = 2 * matrices * model.hidden_size
    terms = []
    if dense and model.ffn_size is not None:
        formula = f"2 ({matrices} h f)"
        terms.append(
            Term("dense FFN", part, "matmul", per_size * model.ffn_size, dense, formula)
        )  # fmt: skip
    experts = model.experts
    if moe_layers and experts is not None:
        routed = per_size * experts.ffn_size * experts.top_k
        terms.append(
            Term("routed experts", part, "matmul", routed, moe_layers, f"2 ({matrices} h f_e k)")
        )  # fmt: skip
        if experts.shared:
            shared = per_size * shared_size(experts)
            formula = f"2 ({matrices} h f_s n_s)"
            terms.append(Term("shared experts", part, "matmul", shared, moe_layers, formula))
        if router:
            scores = 2 * model.hidden_size * experts.routed
            terms.append(Term("router", part, "matmul", scores, moe_layers, "2 h E"))
    return terms


def _conventions(counted: ModelFlops) -> tuple[str, ...]:
    model = counted.model
    if counted.document_lengths is not None:
        assumption = "own scores of each packed document, " + (
            "s_i (s_i + 1) / 2" if counted.attention == "causal" else "s_i^2"
        )
    elif counted.attention == "causal":
        assumption = "half of the scores, s / 2 keys per query"
    else:
        assumption = "all scores, s keys per query"
    conventions = [
        f"sequence length {counted.sequence_length}",
        f"attention {counted.attention}: {assumption}",
        f"MTP blocks counted: {counted.mtp} of {model.mtp_depth}",
        f"LM head counted {'once' if not counted.mtp else f'{1 + counted.mtp} times'},"
        " embedding not",
        "backward = 2 forward",
        {
            "none": "nothing recomputed",
            "selective": "hardware FLOPs: the attention recomputed once",
            "full": "hardware FLOPs: the whole forward pass recomputed, LM head included",
        }[counted.recompute],
    ]
    if model.experts is not None:
        conventions.insert(3, f"router {'counted' if counted.router else 'not counted'}")
    if model.noop_layers:
        conventions.append(f"{len(set(model.noop_layers))} no-op layers not counted")
    return tuple(conventions)


def _plain(value: Flops) -> Flops:
    """An integer where it is one."""
    return value.numerator if value.denominator == 1 else value
