"""Which class of work an operator does: what its colour tells on every page."""

from __future__ import annotations

import re

from ..flops.kernels.kernel_flops import flops_of

CLASSES = (
    "matmul", "attention", "norm", "routing", "optimizer", "movement", "vector", "other",
)  # fmt: skip
# What multiplies is known by the rules of FLOPs. Of the rest the first that fits, of types without
# their case and signs.
_PATTERNS = (
    ("attention", r"attention|flash"),
    ("matmul", r"gemm|^mm|convolution|einsum"),
    ("norm", r"norm"),
    ("routing", r"moe|topk|permute|argsort|^sort|gating|onehot|bincount|expert"),
    ("optimizer", r"adam|^apply|foreach|momentum|lamb|nonfinite|lars|sgd"),
    (
        "movement",
        r"cast|trans|slice|split|concat|pack|copy|memset|memcpy|gather|scatter|index|asstrided"
        r"|expand|broadcast|tile|pad|fill|zero|ones|viewcopy|tensormove|identity|reshape|stack",
    ),
)
_RULES = tuple((name, re.compile(pattern)) for name, pattern in _PATTERNS)
_VECTOR_CORES = frozenset({"AI_VECTOR_CORE", "MIX_AIV"})


def operator_class(type_: str | None, core: str | None) -> str:
    """One of CLASSES, by the type of an operator and, where that tells nothing, its core."""
    flops = flops_of(type_)
    if flops is not None:
        return "attention" if flops.family == "attention" else "matmul"
    plain = re.sub(r"[^a-z0-9]", "", (type_ or "").lower().removeprefix("aclnn"))
    for name, pattern in _RULES:
        if pattern.search(plain):
            return name
    if core in _VECTOR_CORES:
        return "vector"
    return "vector" if core == "AI_CORE" and plain else "other"
