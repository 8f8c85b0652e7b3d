"""Our count against Megatron's counter, and that against its formula written out anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.flops.model.architecture import Experts, GroupedQueries, Latent, Model
from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.model.model import ModelFlops, Term, count
from npuscope.analysis.flops.model.reconcile import (
    Convention,
    attention_of,
    megatron_flops,
    megatron_terms,
)
from npuscope.errors import UsageError

DEEPSEEK = model_of("deepseek-v3")
UNKNOWN: Any = "of old"
CONVENTIONS: tuple[Convention, ...] = ("current", "before 2025-03")


def random_model(seed: int) -> Model:
    """Dense, grouped, mixture, latent and MTP, in all mixes."""
    draw = random.Random(seed)
    layers, heads = draw.randint(1, 12), draw.choice([4, 8, 12])
    attention: GroupedQueries | Latent
    if seed % 3 == 2:
        attention = Latent(
            heads, draw.randint(3, 70), draw.randint(1, 40), draw.randint(1, 20),
            draw.randint(1, 40), draw.choice([None, draw.randint(3, 90)]),
        )  # fmt: skip
    else:
        kv_heads = heads if seed % 3 == 0 else draw.choice([1, 2, 4])
        attention = GroupedQueries(heads, kv_heads, draw.randint(2, 65))
    experts = None
    if seed % 2:
        pattern: tuple[int, ...] = tuple(draw.randint(0, 1) for _ in range(layers))
        experts = Experts(
            routed=draw.randint(4, 16), top_k=draw.randint(1, 4), ffn_size=draw.randint(1, 99),
            shared=draw.randint(0, 2), shared_ffn_size=draw.choice([None, 33]),
            leading_dense_layers=draw.randint(0, 2),
            layer_frequency=(1, 2, pattern)[draw.randint(0, 2)],
        )  # fmt: skip
    return Model(
        f"random {seed}", layers, draw.randint(8, 200), draw.randint(50, 999), attention,
        ffn_size=draw.randint(9, 600), gated=draw.random() < 0.6, experts=experts,
        mtp_depth=draw.choice([0, 0, 1, 2]),
    )  # fmt: skip


def document(model: Model, seq_length: int, *, half: bool) -> float:
    """Megatron's `num_floating_point_operations` of a token, in one sum of floats.

    From its documented form: a factor for forward and backward and the two products of a
    multi-layer perceptron, ratios to the hidden size squared, norms in latent attention and MTP.
    """
    h, of, experts = model.hidden_size, model.attention, model.experts
    moe_pattern = [0] * model.layers
    if experts is not None:
        frequency = experts.layer_frequency
        moe_pattern = [
            int(i >= experts.leading_dense_layers and i % frequency == 0)
            if isinstance(frequency, int)
            else frequency[i]
            for i in range(model.layers)
        ]
    moe = sum(moe_pattern) + moe_pattern[-1] * model.mtp_depth
    dense = model.layers - sum(moe_pattern) + (1 - moe_pattern[-1]) * model.mtp_depth
    gate = 3 / 2 if model.gated else 1
    seen = seq_length / 2 if half else seq_length
    if isinstance(of, GroupedQueries):
        ratio = of.head_dim * of.heads / h
        attention = 12 * h * h * (1 + of.kv_heads / of.heads + seen / h) * ratio
    else:
        wide = of.heads * (of.qk_nope_head_dim + of.qk_rope_head_dim)
        query = h * wide if of.q_lora_rank is None else of.q_lora_rank * (h + wide + 1)
        values = of.heads * (of.qk_nope_head_dim + of.v_head_dim)
        attention = 6 * (
            query
            + of.kv_lora_rank * (h + values + 1)
            + h * of.qk_rope_head_dim
            + of.heads * of.v_head_dim * h
            + seen * (wide + of.heads * of.v_head_dim)
        )
    width = 0.0
    if experts is not None:
        shared = experts.shared * (experts.shared_ffn_size or experts.ffn_size)
        width = (experts.ffn_size * experts.top_k + shared) * moe
    return (
        12 * h * gate * ((model.ffn_size or 0) * dense + width)
        + attention * (moe + dense)
        + 6 * model.mtp_depth * (3 * h + 2 * h * h)
        + 6 * h * model.vocabulary_size * (1 + model.mtp_depth)
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """A term of Megatron's counter beside ours: training FLOPs per token over all layers.

    `norm_flops` is the part of Megatron's that is norms, which we do not count; `difference_flops`
    what is left of the difference without them: zero where the conventions are the same.
    """

    term: str
    megatron_flops: Fraction
    norm_flops: int
    our_flops: Fraction

    @property
    def difference_flops(self) -> Fraction:
        return self.our_flops - (self.megatron_flops - self.norm_flops)


def compare(counted: ModelFlops, convention: Convention = "current") -> tuple[Compared, ...]:
    """Our count beside Megatron's, term by term; sums of the rows are the two counts.

    Megatron counts all MTP blocks the model has, whatever `counted` does.
    """
    model = counted.model
    ours: dict[str, Fraction] = {}
    for term in counted.terms:
        name = in_megatrons_words(term)
        ours[name] = ours.get(name, Fraction(0)) + 3 * term.flops
    theirs = dict(megatron_terms(model, counted.sequence_length, convention))
    norms = {"MTP projection": 6 * model.mtp_depth * 3 * model.hidden_size}
    if isinstance(model.attention, Latent):
        ranks = (model.attention.q_lora_rank or 0) + model.attention.kv_lora_rank
        norms["attention projections"] = 6 * (model.layers + model.mtp_depth) * ranks
    return tuple(
        Compared(name, theirs.get(name, Fraction(0)), norms.get(name, 0),
                 ours.get(name, Fraction(0)))
        for name in [*theirs, *(name for name in ours if name not in theirs)]
    )  # fmt: skip


def in_megatrons_words(term: Term) -> str:
    if term.kind == "attention":
        return "core attention"
    if term.term.startswith("attention"):
        return "attention projections"
    return {"projection of two": "MTP projection", "LM head": "logits"}.get(term.term, term.term)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("seed", range(20))
def test_our_count_by_megatrons_conventions_is_megatrons(seed: int, convention: Convention) -> None:
    model, length = random_model(seed), 7 + 13 * seed
    theirs = megatron_flops(model, sequence_length=length, convention=convention)
    written_out = document(model, length, half=convention == "current")
    assert float(theirs) == pytest.approx(written_out, rel=1e-12)
    ours = count(model, sequence_length=length, attention=attention_of(convention))
    rows = compare(ours, convention)
    assert [row.difference_flops for row in rows] == [0] * len(rows)
    norm_flops = sum(row.norm_flops for row in rows)
    assert ours.train_flops == theirs - norm_flops
    with_norms = isinstance(model.attention, Latent) or model.mtp_depth > 0
    assert (norm_flops > 0) == with_norms


def test_what_random_models_cover() -> None:
    models = [random_model(seed) for seed in range(20)]
    covered: tuple[Callable[[Model], object], ...] = (
        lambda model: model.experts is None,
        lambda model: isinstance(model.attention, Latent),
        lambda model: (
            isinstance(model.attention, GroupedQueries)
            and model.attention.kv_heads < model.attention.heads
        ),
        lambda model: model.experts is not None and model.experts.shared,
        lambda model: model.mtp_depth and model.experts is not None,
        lambda model: model.mtp_depth and model.experts is None,
        lambda model: not model.gated,
    )
    for is_covered in covered:
        assert any(is_covered(model) for model in models)


def test_differences_are_named() -> None:
    ours = count(DEEPSEEK, sequence_length=4096, attention="full", mtp=0, router=True)
    off = {row.term: row.difference_flops for row in compare(ours) if row.difference_flops}
    assert list(off) == [
        "attention projections", "core attention", "routed experts", "shared experts",
        "MTP projection", "logits", "router",
    ]  # fmt: skip
    assert off["router"] == 3 * 58 * 2 * 7168 * 256
    assert off["MTP projection"] == -6 * 2 * 7168**2
    rows = compare(ours)
    assert sum(row.our_flops for row in rows) == ours.train_flops
    assert sum(row.megatron_flops for row in rows) == megatron_flops(DEEPSEEK, sequence_length=4096)
    assert [attention_of(convention) for convention in CONVENTIONS] == ["causal", "full"]
    with pytest.raises(UsageError):
        attention_of(UNKNOWN)


def test_the_table_of_the_docs() -> None:
    """Megatron's terms beside ours, as docs/mfu.md has them."""
    text = (Path(__file__).parents[3] / "docs" / "mfu.md").read_text()
    for convention in CONVENTIONS:
        ours = count(DEEPSEEK, sequence_length=4096, attention=attention_of(convention))
        rows = compare(ours, convention)
        for row in rows:
            figures = [f"{float(flops) / 1e9:.4f}" for flops in (row.our_flops, row.megatron_flops)]
            assert f" | {figures[0]} | {figures[1]} | " in text, row.term
        total = (ours.train_flops, sum(row.megatron_flops for row in rows))
        said = " | ".join(f"{float(flops) / 1e9:.4f}" for flops in total)
        before = ", before 2025-03" if convention != "current" else ""
        assert f"| all{before} | {said} | 0.000891 |" in text
