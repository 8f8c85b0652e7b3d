"""MoE routers of a model: where they are, and what of their output says who gets which token.

    Megatron, MindSpeed   TopKRouter.routing(logits) -> probabilities, routing map [tokens, experts]
    Hugging Face          MixtralTopKRouter, ...(hidden) -> logits, scores, indices [tokens, top-k]
    any other             by a rule: a function of the module's output

Megatron's `forward` differs between versions and patches and may be run outside of the module's
call, so `routing` is wrapped, on the instance: it survives patches of the class made before.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

# Output of a module -> expert indices [..., k] or a boolean routing map [..., experts].
Rule = Callable[[Any], Any]
Chooser = Callable[[str, Any], bool]

_NAME = re.compile(r"topk_?(router|gate|gating)$|moe_?router$", re.IGNORECASE)
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h|stages?)\.(\d+)(?=\.|$)")
_MTP = re.compile(r"(?:^|\.)(?:mtp|nextn)\w*(?:\.|$)")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts")
_TOP_K = ("top_k", "topk", "moe_router_topk", "num_experts_per_tok", "moe_top_k")


@dataclass(frozen=True, slots=True)
class Router:
    """A router's place: `block` decoder or mtp, the layer's number there, how it chooses."""

    name: str
    module: Any
    block: str
    layer: int
    experts: int
    top_k: int | None

    @property
    def has_routing(self) -> bool:
        """Whether it is of Megatron's kind."""
        return callable(getattr(self.module, "routing", None))


def find_routers(
    models: Iterable[Any],
    *,
    routers: str | Chooser | None = None,
    top_k: int | None = None,
    experts: int | None = None,
) -> list[Router]:
    """Routers of a model's chunks, in order; `routers` is a pattern of names, or tells by name and
    module. Raises ValueError where none is found, or one tells no number of experts."""
    routers_here: list[Router] = []
    visited: set[int] = set()
    for model in models:
        for name, module in model.named_modules():
            if id(module) in visited or not _is_router(name, module, routers):
                continue
            visited.add(id(module))
            width = experts or _size_of(module, _EXPERTS) or _rows(module)
            if not width:
                raise ValueError(f"{name}: how many experts? Give experts=N")
            block, layer = _place(name, module, len(routers_here))
            routers_here.append(
                Router(name, module, block, layer, width, top_k or _size_of(module, _TOP_K))
            )
    if not routers_here:
        raise ValueError(
            "no MoE router found in the model: name them by routers=PATTERN, and say by"
            " rule=FUNCTION what of their output are the experts' indices"
        )
    if len({(router.block, router.layer) for router in routers_here}) < len(routers_here):
        # Names that tell no layer: routers are numbered as they come.
        routers_here = [
            Router(one.name, one.module, "decoder", number, one.experts, one.top_k)
            for number, one in enumerate(routers_here)
        ]
    return routers_here


def assignment(output: Any, router: Router, rule: Rule | None) -> Any:
    """The tensor that assigns tokens: boolean [..., experts], or integer [..., top-k].

    Raises ValueError where the output has none.
    """
    torch = importlib.import_module("torch")
    if rule is not None:
        tensor = rule(output)
        if not isinstance(tensor, torch.Tensor) or tensor.is_floating_point():
            raise ValueError(f"{router.name}: the rule gave no tensor of indices, and no map")
        return tensor
    indices = None
    for tensor in _tensors(output, torch.Tensor):
        if tensor.dtype == torch.bool:
            if tensor.dim() and tensor.shape[-1] == router.experts:
                return tensor
        elif tensor.dim() and not tensor.is_floating_point() and not tensor.is_complex():
            if tensor.shape[-1] == router.top_k:
                indices = tensor
    if indices is None:
        raise ValueError(
            f"{router.name}: no indices [tokens, {router.top_k}] and no map [tokens,"
            f" {router.experts}] in its output: give top_k=K, or rule=FUNCTION"
        )
    return indices


class WrappedRouting:
    """`routing` of one instance that also shows its result; copies of the module get it plain."""

    def __init__(self, router: Router, show: Callable[[Any], None]) -> None:
        self._module, self._show = router.module, show
        self._original = router.module.routing
        self._was_own = vars(router.module).get("routing")
        router.module.routing = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._original(*args, **kwargs)
        self._show(output)
        return output

    def remove(self) -> None:
        """Put back what was there, unless somebody wrapped it again."""
        if vars(self._module).get("routing") is not self:
            self._show = _shown_to_nobody
        elif self._was_own is not None:
            self._module.routing = self._was_own
        else:
            del self._module.routing

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._module), self._module)
        function = getattr(self._original, "__func__", None)
        return self._original if function is None else MethodType(function, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "routing")


class ForwardHook:
    """A forward hook of one module that does nothing on its copies."""

    def __init__(self, router: Router, show: Callable[[Any], None]) -> None:
        self._show = show
        self._handle = router.module.register_forward_hook(self)

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        self._show(output)

    def remove(self) -> None:
        self._handle.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _shown_to_nobody

    def __reduce__(self) -> tuple[Any, ...]:
        return _nobody, ()


def _shown_to_nobody(*args: Any) -> None:
    return None


def _nobody() -> Callable[..., None]:
    return _shown_to_nobody


def _is_router(name: str, module: Any, routers: str | Chooser | None) -> bool:
    if routers is None:
        return any(_NAME.search(kind.__name__) for kind in type(module).__mro__)
    if isinstance(routers, str):
        return re.search(routers, name) is not None
    return bool(routers(name, module))


def _place(name: str, module: Any, ordinal: int) -> tuple[str, int]:
    """Megatron tells a layer's number in the whole model; elsewhere its name has it."""
    numbers = _LAYER.findall(name)
    if _MTP.search(name):
        return "mtp", int(numbers[0]) if numbers else 0
    number = getattr(module, "layer_number", None)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return "decoder", number
    return "decoder", int(numbers[0]) if numbers else ordinal


def _size_of(module: Any, names: tuple[str, ...]) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in names if owner is not None else ():
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _rows(module: Any) -> int | None:
    """A linear gate has one row for each expert."""
    shape: Any = getattr(getattr(module, "weight", None), "shape", ())
    return int(shape[0]) if len(shape) == 2 else None


def _tensors(output: Any, kind: type) -> Iterator[Any]:
    if isinstance(output, kind):
        yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part, kind)
    elif isinstance(output, dict):
        yield from _tensors(tuple(output.values()), kind)
