"""A language model as its sizes, and how many parameters these make.

Only matrices are counted: norms, biases and gates of a vector's length are below 0.1 % of any
model here, and none of the counts of FLOPs that are published holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from npuscope.errors import UsageError

_MOST_LAYERS = 100_000  # they are gone through one by one


@dataclass(frozen=True, slots=True)
class GroupedQueries:
    """Attention with `kv_heads` pairs of key and value for `heads` queries (all, fewer or one)."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values, and mostly queries, through a low rank.

    `q_lora_rank` None: queries come straight from the hidden state.
    """

    heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of the layers that have one.

    A layer (counted from 0) has a mixture when it is not among the first `leading_dense_layers`
    and `layer_frequency` divides its number; a pattern of 0 and 1, one for each layer, says it
    layer by layer instead. `shared_ffn_size` is of one shared expert, None: as a routed one's.
    """

    routed: int
    top_k: int
    ffn_size: int
    shared: int = 0
    shared_ffn_size: int | None = None
    leading_dense_layers: int = 0
    layer_frequency: int | tuple[int, ...] = 1


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a decoder-only model. Raises UsageError where they contradict each other.

    `layers` holds no-op layers, whose numbers (from 0) are in `noop_layers`: they compute nothing.
    `ffn_size` is a dense layer's and may be None where there is none; `gated`: three matrices
    (SwiGLU) rather than two (GELU), in experts as well. `mtp_depth`: blocks that predict further
    tokens, each a layer as the last one with a projection and its own pass through the head.
    `tied_embeddings`: the head is the embedding, held once.
    """

    name: str
    layers: int
    hidden_size: int
    vocabulary_size: int
    attention: GroupedQueries | Latent
    ffn_size: int | None = None
    gated: bool = True
    experts: Experts | None = None
    mtp_depth: int = 0
    tied_embeddings: bool = False
    noop_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = _contradictions(self)
        if wrong:
            raise UsageError(f"{self.name}: {'; '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many a model holds, matrices only. MTP blocks apart; they share embedding and head.

    `active`: what one token multiplies, with top-k experts and the head, but without the
    embedding, which is looked up.
    """

    total: int
    active: int
    embedding: int
    head: int
    mtp_total: int
    mtp_active: int


def has_experts(model: Model, layer: int) -> bool:
    """Whether a layer (from 0) has a mixture of experts."""
    experts = model.experts
    if experts is None:
        return False
    if isinstance(experts.layer_frequency, tuple):
        return experts.layer_frequency[layer] == 1
    return layer >= experts.leading_dense_layers and layer % experts.layer_frequency == 0


def layer_counts(model: Model) -> tuple[int, int]:
    """Layers that compute: (dense, with experts)."""
    computing = [layer for layer in range(model.layers) if layer not in model.noop_layers]
    mixed = sum(has_experts(model, layer) for layer in computing)
    return len(computing) - mixed, mixed


def last_has_experts(model: Model) -> bool:
    """Whether the last computing layer, which MTP blocks repeat, has a mixture of experts."""
    computing = [layer for layer in range(model.layers) if layer not in model.noop_layers]
    return has_experts(model, computing[-1])


def attention_weights(model: Model) -> tuple[tuple[str, int, str], ...]:
    """Matrices of one layer's attention as (name, elements, formula)."""
    h, attention = model.hidden_size, model.attention
    if isinstance(attention, GroupedQueries):
        a, g, d = attention.heads, attention.kv_heads, attention.head_dim
        return (
            ("query", h * a * d, "h a d"),
            ("key and value", 2 * h * g * d, "2 h g d"),
            ("output", a * d * h, "a d h"),
        )
    a, low, kv = attention.heads, attention.q_lora_rank, attention.kv_lora_rank
    nope, rope, v = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim
    if low is None:
        query: tuple[tuple[str, int, str], ...] = (
            ("query", h * a * (nope + rope), "h a (d_n + d_r)"),
        )
    else:
        query = (
            ("query down", h * low, "h r_q"),
            ("query up", low * a * (nope + rope), "r_q a (d_n + d_r)"),
        )
    return (
        *query,
        ("key and value down", h * (kv + rope), "h (r_kv + d_r)"),
        ("key and value up", kv * a * (nope + v), "r_kv a (d_n + d_v)"),
        ("output", a * v * h, "a d_v h"),
    )


def ffn_matrices(model: Model) -> int:
    """Matrices of a feed-forward network: 3 gated, 2 not."""
    return 3 if model.gated else 2


def shared_size(experts: Experts) -> int:
    """Feed-forward size of all shared experts of a layer together."""
    return experts.shared * (experts.shared_ffn_size or experts.ffn_size)


def parameters(model: Model) -> Parameters:
    """Parameters of a model, all and active."""
    h, dense_ffn = model.hidden_size, ffn_matrices(model) * model.hidden_size
    attention = sum(elements for _, elements, _ in attention_weights(model))
    dense_total = dense_active = attention + dense_ffn * (model.ffn_size or 0)
    mixed_total = mixed_active = 0
    if model.experts is not None:
        rest = attention + dense_ffn * shared_size(model.experts) + h * model.experts.routed
        one = dense_ffn * model.experts.ffn_size
        mixed_total = rest + one * model.experts.routed
        mixed_active = rest + one * model.experts.top_k
    dense, mixed = layer_counts(model)
    embedding = h * model.vocabulary_size
    held = 1 if model.tied_embeddings else 2
    block = (mixed_total, mixed_active) if last_has_experts(model) else (dense_total, dense_active)
    return Parameters(
        total=dense * dense_total + mixed * mixed_total + held * embedding,
        active=dense * dense_active + mixed * mixed_active + embedding,
        embedding=embedding,
        head=embedding,
        mtp_total=model.mtp_depth * (block[0] + 2 * h * h),
        mtp_active=model.mtp_depth * (block[1] + 2 * h * h),
    )


def _contradictions(model: Model) -> list[str]:
    wrong = []
    experts = model.experts
    if model.layers > _MOST_LAYERS:
        return [f"{model.layers} layers are beyond {_MOST_LAYERS}"]
    if any(not 0 <= layer < model.layers for layer in model.noop_layers):
        wrong.append(f"noop_layers name layers outside 0..{model.layers - 1}")
    elif len(set(model.noop_layers)) >= model.layers:
        wrong.append("no layer computes anything")
    if (
        isinstance(model.attention, GroupedQueries)
        and model.attention.heads % model.attention.kv_heads
    ):
        wrong.append("kv_heads does not divide heads")
    if experts is not None:
        pattern = experts.layer_frequency
        if experts.top_k > experts.routed:
            wrong.append("top_k is more than the routed experts")
        if isinstance(pattern, int) and pattern < 1:
            wrong.append("layer_frequency is below 1")
        elif isinstance(pattern, tuple) and (
            len(pattern) != model.layers or not set(pattern) <= {0, 1}
        ):
            wrong.append(f"layer_frequency has to be {model.layers} times 0 or 1")
    if not wrong and layer_counts(model)[0] and model.ffn_size is None:
        wrong.append("ffn_size is missing, and there are dense layers")
    return wrong
