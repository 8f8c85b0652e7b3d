"""Small MoE models whose routing is also counted by brute force, from what their experts are given.

Imported only by tests that found torch and transformers.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is used of it: PyTorch need not be there for types

    class Module:
        training: bool
        local_tokens_per_expert: Any

        def __call__(self, *args: Any) -> Any: ...
        def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None: ...
else:
    from torch.nn import Module

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
checkpoint: Any = importlib.import_module("torch.utils.checkpoint").checkpoint


def mixtral(hidden: int = 32, layers: int = 3, experts: int = 6, ffn: int = 64) -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=experts,
            num_experts_per_tok=2, vocab_size=61,
        )
    )  # fmt: skip


def deepseek() -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1,
            num_experts_per_tok=3, n_group=4, topk_group=2, first_k_dense_replace=1,
            q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
            vocab_size=61,
        )
    )  # fmt: skip


def qwen() -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=8,
            num_experts_per_tok=4, vocab_size=61,
        )
    )  # fmt: skip


class TopKRouter(Module):
    """With the signatures of Megatron's: `routing(logits)` gives probabilities and a map."""

    def __init__(self, hidden: int, experts: int, top_k: int, layer_number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden))
        self.num_experts, self.topk, self.layer_number = experts, top_k, layer_number
        self.register_buffer("local_tokens_per_expert", torch.zeros(experts), persistent=False)

    def gating(self, hidden: Any) -> Any:
        return hidden @ self.weight.t()

    def routing(self, logits: Any) -> tuple[Any, Any]:
        scores, places = torch.topk(logits.softmax(-1), self.topk, dim=-1)
        routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, places, True)
        probabilities = torch.zeros_like(logits).scatter(1, places, scores)
        if torch.is_grad_enabled():  # Megatron's own guard
            with torch.no_grad():
                self.local_tokens_per_expert += routing_map.sum(dim=0)
        return probabilities, routing_map

    def forward(self, hidden: Any) -> tuple[Any, Any]:
        return self.routing(self.gating(hidden.reshape(-1, hidden.shape[-1])))


class MegatronLayer(Module):
    def __init__(self, hidden: int, experts: int, top_k: int, layer_number: int) -> None:
        super().__init__()
        self.router = TopKRouter(hidden, experts, top_k, layer_number)
        self.experts = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(experts))

    def forward(self, hidden: Any) -> Any:
        probabilities, _ = self.router(hidden)
        flat = hidden.reshape(-1, hidden.shape[-1])
        mixed = sum(
            probabilities[:, number : number + 1] * expert(flat)
            for number, expert in enumerate(self.experts)
        )
        return hidden + mixed.reshape(hidden.shape)


class MegatronModel(Module):
    """Layers 2, 3, ... of a model, as a pipeline's stage holds them; `is_reentrant` None is
    without recomputation."""

    def __init__(self, experts: int = 5, is_reentrant: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(61, 16)
        self.layers = nn.ModuleList(MegatronLayer(16, experts, 2, number) for number in (2, 3))
        self.is_reentrant = is_reentrant

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            if self.is_reentrant is None or not self.training:
                hidden = layer(hidden)
            else:
                hidden = checkpoint(layer, hidden, use_reentrant=self.is_reentrant)
        return hidden.square().mean()


class BruteForce:
    """Counts of every call of each router by hand: a hook that runs beside the recorder's own.

    Passes are told apart by what the test knows, not by PyTorch: the loop says when it is in a
    forward pass, and whatever a router does in the backward pass is a recomputation.
    """

    def __init__(self, routers: dict[int, Any], chosen: Callable[[Any], list[int]]) -> None:
        self.is_first_pass = False
        self.tokens: dict[int, Counter[int]] = {layer: Counter() for layer in routers}
        for layer, module in routers.items():
            module.register_forward_hook(self._hook(layer, chosen))

    def _hook(self, layer: int, chosen: Callable[[Any], list[int]]) -> Callable[..., None]:
        def count(module: Any, args: Any, output: Any) -> None:
            if self.is_first_pass and module.training:
                self.tokens[layer].update(chosen(output))

        return count

    def taken(self) -> dict[int, Counter[int]]:
        """The step's counts; begins anew."""
        told, self.tokens = self.tokens, {layer: Counter() for layer in self.tokens}
        return told


def indices_of(output: Any) -> list[int]:
    """Experts of a Hugging Face router's output, one for each token and choice."""
    return [expert for row in output[-1].tolist() for expert in row]


def map_of(output: Any) -> list[int]:
    """Experts of Megatron's map."""
    return [number for row in output[1].tolist() for number, is_on in enumerate(row) if is_on]
