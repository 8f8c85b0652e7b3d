"""Models out of the arguments of Megatron-LM and MindSpeed-LLM, as a list or as a log prints them.

    --hidden-size 7168 --swiglu                      a list: a launch script, or a file of options
      hidden_size ................................ 7168        a log, between "arguments" and
      swiglu ..................................... True        "end of arguments"

A log has every argument; in a list what is not there has Megatron's default, as it derives them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from npuscope.errors import UsageError

from .architecture import Experts, GroupedQueries, Latent, Model
from .sizes import first_of, needed_sizes, optional, whole

_ARGUMENT = re.compile(r"(?:^|[\s\]:])([a-z][a-z0-9_]*) \.{2,} *(\S.*?)\s*$", re.MULTILINE)
_END = "end of arguments"
_VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\]+)"
_OPTION = re.compile(rf"--([A-Za-z][\w-]*)(?:(?:=|[ \t]+(?!-)){_VALUE})?")
_VOCABULARY = re.compile(r"> padded vocab \(size: \d+\) .*?\(new size: (\d+)\)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_CONTINUATION = re.compile(r"\\[ \t]*\n")
# NAME=VALUE, or NAME=${NAME:-VALUE}; several may stand in a line, and a remark behind them.
_ASSIGNMENT = re.compile(
    r"(?:^|(?<=[\s;]))(\w+)=[\"']?(?:\$\{\w+:?-)?([^\s\"'${}();#]+)\}?[\"']?(?=[\s;]|$)"
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^${}]*))?\})")
_REMEDY = "add them to it, as --NAME N with dashes, or as a log has them"
_NOTHING = ("None", "False", "")

_SIZES = {
    "layers": ("num_layers",),
    "hidden_size": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "vocabulary_size": ("padded_vocab_size", "vocab_size"),
}
_RANKS = {
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_head_dim", "qk_nope_head_dim"),
    "qk_rope_head_dim": ("qk_pos_emb_head_dim", "qk_rope_head_dim"),
    "v_head_dim": ("v_head_dim",),
}
_LATENT_FLAGS = ("multi_latent_attention", "multi_head_latent_attention")
_EXCLUSIONS = (
    "hybrid_override_pattern", "hybrid_layer_pattern", "hybrid_attention_ratio", "is_hybrid_model",
    "linear_attention_type", "linear_attention_freq", "experimental_attention_variant",
    "window_size", "heterogeneous_layers_config_path",
)  # fmt: skip
_FFN_MULTIPLE = 64  # Megatron rounds the default size of a gated feed-forward network down to it


def arguments_in(text: str) -> dict[str, object] | None:
    """Arguments by name, with underscores, of a log or a list; None where no model's are there.

    None and False stand for themselves in a log and are left out. Where a log echoes its command
    too, what it prints as arguments holds.
    """
    printed = dict(_ARGUMENT.findall(text.partition(_END)[0]))
    if "hidden_size" in printed:
        arguments: dict[str, object] = {
            name: value for name, value in printed.items() if value not in _NOTHING
        }
        padded = _VOCABULARY.search(text)  # known only after the arguments were printed
        if padded and "padded_vocab_size" not in arguments:
            arguments["padded_vocab_size"] = padded[1]
        return arguments
    text = _CONTINUATION.sub(" ", _COMMENT.sub("", text))
    variables = dict(_ASSIGNMENT.findall(text))
    by_option: dict[str, object] = {}
    for name, text_here in _OPTION.findall(text):
        value = _VARIABLE.sub(lambda one: _value_of(one, variables), text_here.strip("\"'"))
        by_option[name.replace("-", "_")] = value or "True"
    named = {key for spellings in _SIZES.values() for key in spellings}
    return by_option if named & by_option.keys() else None


def _value_of(named: re.Match[str], variables: Mapping[str, str]) -> str:
    """A variable's value, else its default, else how it is written."""
    plain, braced, default = named.groups()
    return variables.get(plain or braced) or default or named[0]


def model_of_arguments(values: Mapping[str, object], where: str, name: str) -> Model:
    """The model of arguments by name. Raises UsageError for what is unknown or missing, all told.

    No-op layers of MindSpeed stay in `layers`; the vocabulary is the padded one where it is told.
    """
    hybrid = [key for key in _EXCLUSIONS if values.get(key) not in (None, "0", "0.0")]
    if hybrid:
        raise UsageError(f"{where}: {', '.join(hybrid)}: layers of several kinds are not counted")
    spellings: dict[str, tuple[str, ...]] = dict(_SIZES)
    is_latent = _is_set(values, *_LATENT_FLAGS)
    has_experts = first_of(values, ("num_experts",)) not in (None, "0")
    if is_latent:
        spellings |= _RANKS
    elif _is_set(values, "group_query_attention"):
        spellings["kv_heads"] = ("num_query_groups",)
    if has_experts:
        spellings |= {"routed": ("num_experts",), "top_k": ("moe_router_topk",)}
    for field, key in (("head_dim", "kv_channels"), ("q_lora_rank", "q_lora_rank")):
        if values.get(key) is not None:
            spellings[field] = (key,)
    sizes = needed_sizes(values, spellings, where, _REMEDY)
    gated = _is_set(values, "swiglu", "geglu", "quick_geglu")
    ffn_size = optional(values, ("ffn_hidden_size",), 0, where)
    ffn_size = ffn_size or _default_ffn(sizes["hidden_size"], gated)
    return Model(
        name=name,
        layers=sizes["layers"],
        hidden_size=sizes["hidden_size"],
        vocabulary_size=sizes["vocabulary_size"],
        attention=_attention(sizes, is_latent, where),
        ffn_size=ffn_size,
        gated=gated,
        experts=_experts(values, sizes, ffn_size, where) if has_experts else None,
        mtp_depth=optional(values, ("mtp_num_layers",), 0, where),
        tied_embeddings=not _is_set(values, "untie_embeddings_and_output_weights"),
        noop_layers=_noop_layers(values.get("noop_layers"), where),
    )


def _is_set(values: Mapping[str, object], *flags: str) -> bool:
    """Whether a flag is there, whatever a script has behind it."""
    return any(str(values.get(flag, "none")).lower() not in ("none", "false") for flag in flags)


def _default_ffn(hidden_size: int, gated: bool) -> int:
    if not gated:
        return 4 * hidden_size
    return 8 * hidden_size // 3 // _FFN_MULTIPLE * _FFN_MULTIPLE


def _attention(sizes: Mapping[str, int], is_latent: bool, where: str) -> GroupedQueries | Latent:
    heads = sizes["heads"]
    if is_latent:
        return Latent(
            heads, **{key: sizes[key] for key in _RANKS}, q_lora_rank=sizes.get("q_lora_rank")
        )
    head_dim = sizes.get("head_dim")
    if head_dim is None:
        head_dim, rest = divmod(sizes["hidden_size"], heads)
        if rest:
            raise UsageError(f"{where}: missing kv_channels, and heads do not divide hidden_size")
    return GroupedQueries(heads, sizes.get("kv_heads", heads), head_dim)


def _experts(
    values: Mapping[str, object], sizes: Mapping[str, int], ffn_size: int, where: str
) -> Experts:
    size_keys = ("moe_ffn_hidden_size", "moe_intermediate_size")
    expert_size = optional(values, size_keys, 0, where) or ffn_size
    shared = optional(values, ("n_shared_experts",), 0, where)
    shared_size = None
    together = optional(values, ("moe_shared_expert_intermediate_size",), 0, where)
    if together:
        shared = max(shared, 1)
        shared_size, rest = divmod(together, shared)
        if rest:
            raise UsageError(f"{where}: n_shared_experts does not divide their size {together}")
    return Experts(
        routed=sizes["routed"],
        top_k=sizes["top_k"],
        ffn_size=expert_size,
        shared=shared,
        shared_ffn_size=None if shared_size == expert_size else shared_size,
        leading_dense_layers=optional(values, ("first_k_dense_replace",), 0, where),
        layer_frequency=_frequency(values.get("moe_layer_freq"), where),
    )


def _frequency(value: object, where: str) -> int | tuple[int, ...]:
    """Every n-th layer, or a pattern written as Python lists: ([0]*3+[1]*58)."""
    if value is None:
        return 1
    number = whole(value)
    if number is not None:
        return number
    try:
        pattern = _repeat(ast.parse(str(value).strip("\"' "), mode="eval").body)
    except (SyntaxError, ValueError):
        pattern = None
    if not isinstance(pattern, list):
        raise UsageError(f"{where}: moe_layer_freq {value!r}: neither a number nor [0]*3+[1]*58")
    return tuple(pattern)


def _repeat(node: ast.expr) -> list[int] | int:
    """The value of lists of numbers, put together by + and *. Raises ValueError for others."""
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 10_000:
        return node.value
    if isinstance(node, ast.List):
        items = [_repeat(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _repeat(node.left), _repeat(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult):
            if isinstance(left, list) and isinstance(right, int):
                return _repeat_within_limit(left, right)
            if isinstance(left, int) and isinstance(right, list):
                return _repeat_within_limit(right, left)
    raise ValueError


def _repeat_within_limit(pattern: list[int], times: int) -> list[int]:
    if len(pattern) * times > 10_000:
        raise ValueError
    return pattern * times


def _noop_layers(value: object, where: str) -> tuple[int, ...]:
    """Numbers of layers, as 62,63 in a list and {62, 63} in a log."""
    if value is None:
        return ()
    numbers = re.findall(r"\d+", str(value))
    if not re.fullmatch(r"[\d\s,{}\[\]()'\"set]*", str(value)) or not numbers:
        raise UsageError(f"{where}: noop_layers {value!r}: not a list of numbers as 62,63")
    return tuple(sorted({int(number) for number in numbers}))
