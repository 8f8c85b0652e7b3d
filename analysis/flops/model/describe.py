"""A model from its name or from a file that describes it.

* a preset (`presets.json`), or
* `config.json` of Hugging Face's transformers, or the folder it is in,
* arguments of Megatron-LM or MindSpeed-LLM: a launch script, a file of options, a training log,
* TOML, or JSON, with the fields of `Model`:

      layers = 61
      hidden_size = 7168
      vocabulary_size = 129280
      [attention]
      heads = 128
      ...

Models out of the `config.json` of Hugging Face's transformers.

Only architectures whose layers are known to be those we count are read: a hybrid one with the same
keys would give a wrong count without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from npuscope.errors import UsageError

from .architecture import Experts, GroupedQueries, Latent, Model
from .megatron_arguments import arguments_in, model_of_arguments
from .sizes import first_of, needed_sizes, optional, whole

_MOST_BYTES = 32 << 20  # of a log: its arguments stand at its beginning
_PARTS = ("attention", "experts")
_LISTS = ("noop_layers", "layer_frequency")
_FLAGS = ("gated", "tied_embeddings")


@cache
# metric: models
# Which models are known by name?
#
# Parameters are those of matrices, active ones of a token with the head without the embedding.
#
# title: Models known by name
# meaning: Presets of models, with their sizes.
# command: model
#
#   preset             varchar  name to give
#   layers             bigint   layers
#   hidden_size        bigint   width of the hidden state
#   parameters         bigint   matrices only
#   active_parameters  bigint   active for a token
def presets() -> dict[str, Model]:
    """Models known by name."""
    text = resources.files(__package__).joinpath("presets.json").read_bytes()
    content: dict[str, dict[str, object]] = msgspec.json.decode(text)
    return {name: model_of_fields(sizes, name, name) for name, sizes in content.items()}


def model_of(text_or_path: str | Path) -> Model:
    """The model of a preset's name or of a file; a preset is taken where both have the name.

    Raises UsageError with all that is missing in the file, or what could have been meant.
    """
    text = str(text_or_path)
    by_spelling = {_spelling(name): model for name, model in presets().items()}
    if _spelling(text) in by_spelling:
        return by_spelling[_spelling(text)]
    path = Path(text)
    if path.is_dir():
        path /= "config.json"
        if not path.is_file():
            raise UsageError(f"{text}: no config.json in this folder")
    if not path.is_file():
        near = difflib.get_close_matches(text.lower(), presets(), n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"{text}: neither a file nor a preset: {meant}known are {', '.join(presets())}"
        )
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES).decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return _model_in(content, path)
    except UsageError as error:  # sizes that contradict each other do not know where they are from
        if str(path) in str(error):
            raise
        raise UsageError(f"{path}: {error}") from None


def model_of_fields(values: Mapping[str, object], where: str, name: str) -> Model:
    """A model of `Model`'s own fields. Raises UsageError with all missing and unknown ones."""
    wrong: list[str] = []
    values_here = _given_fields(Model, {"name": name, **values}, "", wrong)
    attention, experts = values_here.get("attention"), values_here.get("experts")
    if isinstance(attention, Mapping):
        kind: type[GroupedQueries | Latent] = (
            Latent if "kv_lora_rank" in attention else GroupedQueries
        )
        values_here["attention"] = _given_fields(kind, attention, "attention.", wrong)
    elif attention is not None:
        wrong.append("attention is no table")
    if isinstance(experts, Mapping):
        values_here["experts"] = _given_fields(Experts, experts, "experts.", wrong)
    elif experts is not None:
        wrong.append("experts is no table")
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}: docs/mfu.md lists the fields of a model")
    values_here["attention"] = kind(**values_here["attention"])
    if experts is not None:
        values_here["experts"] = Experts(**values_here["experts"])
    return Model(**values_here)


def _spelling(name: str) -> str:
    """Presets are found in any case, and Llama 3 with or without .1, whose sizes are the same."""
    return name.lower().replace("_", "-").replace("llama3.1", "llama3")


def _model_in(content: str, path: Path) -> Model:
    """The model a file describes, by what the file is."""
    where = str(path)
    name = path.parent.name or path.stem if path.name == "config.json" else path.stem
    if path.suffix == ".toml":
        return model_of_fields(_toml(content, where), where, name)
    if content.lstrip().startswith("{"):
        try:
            values = msgspec.json.decode(content.encode(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UsageError(f"{where}: not valid JSON:  {error}") from None
        if "model_type" not in values and isinstance(values.get("attention"), Mapping):
            return model_of_fields(values, where, name)
        return _model_of_config(values, where, name)
    arguments = arguments_in(content)
    if arguments is None:
        raise UsageError(
            f"{where}: not a model description: give a config.json, a launch script or log of"
            " Megatron or MindSpeed-LLM, a .toml with a model's fields, or a preset"
        )
    return model_of_arguments(arguments, where, name)


def _toml(content: str, where: str) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: not valid TOML:  {error}") from None


def _given_fields(
    kind: type[Any], values: Mapping[str, object], prefix: str, wrong: list[str]
) -> dict[str, Any]:
    """Checked values of a record's fields; what is missing, unknown or no size goes to `wrong`."""
    by_name = {field.name: field for field in fields(kind)}
    needed = {
        name
        for name, field in by_name.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    missing = [f"{prefix}{name}" for name in by_name if name in needed and values.get(name) is None]
    if missing:
        wrong.append(f"missing {', '.join(missing)}")
    unknown = [f"{prefix}{name}" for name in values if name not in by_name]
    if unknown:
        wrong.append(f"unknown {', '.join(unknown)}")
    fields_here: dict[str, Any] = {}
    for name, value in values.items():
        if name not in by_name or value is None:
            continue
        checked = value if name in _PARTS else _check(name, value)
        if checked is None:
            wrong.append(f"{prefix}{name} is {value!r}")
        else:
            fields_here[name] = checked
    return fields_here


def _check(name: str, value: object) -> object:
    """The value of a field where it is of the right kind, else None."""
    if name == "name":
        return value if isinstance(value, str) else None
    if name in _FLAGS:
        return value if isinstance(value, bool) else None
    if isinstance(value, list) and name in _LISTS:
        numbers = [item for item in map(whole, value) if item is not None and item >= 0]
        return tuple(numbers) if len(numbers) == len(value) else None
    may_be_zero = name in ("mtp_depth", "shared", "leading_dense_layers")
    size = whole(value)
    if (
        size is None
        or not isinstance(value, int)
        or name == "noop_layers"
        or size < (0 if may_be_zero else 1)
    ):
        return None
    return size


# model_type, lower case, by what its layers are. Those of `_EXACT` always state the head size and
# the key-value heads; of the others the first is hidden size / heads, the second all heads.
_DENSE = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3", "panguembedded"})
_MOE = frozenset({"mixtral", "qwen3_moe", "pangupromoe"})
_LATENT = frozenset({
    "deepseek_v2", "deepseek_v3", "kimi_k2", "pangu_ultra_moe", "openpangu_moe",
    "openpangu_ultra_moe",
})  # fmt: skip
_EXACT = frozenset({"qwen3", "qwen3_moe"})
_REMEDY = "add it to the file, as the model's own config.json has it"

_LAYERS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocabulary_size": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head"),
}
_KV_HEADS = ("num_key_value_heads",)
_FFN = ("intermediate_size", "n_inner")
_EXPERTS = {
    "routed": ("n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
}
_RANKS = {
    "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "qk_nope_head_dim": ("qk_nope_head_dim", "attention_qk_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
    "v_head_dim": ("v_head_dim", "attention_v_dim"),
}
_Q_RANK = ("q_lora_rank", "attention_q_lora_dim")


def _model_of_config(config: Mapping[str, object], where: str, name: str) -> Model:
    """The model of a `config.json`. Raises UsageError with all keys that are missing."""
    kind = str(config.get("model_type", "")).lower().replace("-", "_")
    if kind not in _DENSE | _MOE | _LATENT:
        raise UsageError(
            f"{where}: model_type {config.get('model_type')!r} is none of"
            f" {', '.join(sorted(_DENSE | _MOE | _LATENT))}: describe the model in TOML, with the"
            " fields docs/mfu.md lists"
        )
    if config.get("use_sliding_window"):
        raise UsageError(f"{where}: use_sliding_window: attention within a window is not counted")
    spellings: dict[str, tuple[str, ...]] = dict(_LAYERS)
    if kind in _LATENT:
        spellings |= _RANKS
        # null is an answer: queries without a low rank
        if first_of(config, _Q_RANK) is not None or not any(key in config for key in _Q_RANK):
            spellings["q_lora_rank"] = _Q_RANK
    if kind in _EXACT:
        spellings |= {"head_dim": ("head_dim",), "kv_heads": _KV_HEADS}
    has_experts = kind in _MOE or (
        kind in _LATENT and first_of(config, _EXPERTS["routed"]) is not None
    )
    if has_experts:
        spellings |= _EXPERTS
        spellings["expert_ffn_size"] = (
            ("intermediate_size",) if kind == "mixtral" else ("moe_intermediate_size",)
        )
    has_dense = kind in _LATENT or not (has_experts or kind == "gpt2")
    if kind != "mixtral" and (has_dense or first_of(config, _FFN) is not None):
        spellings["ffn_size"] = _FFN
    sizes = needed_sizes(config, spellings, where, _REMEDY)
    experts = _experts(config, sizes, where) if has_experts else None
    ffn_size = sizes.get("ffn_size")
    if kind == "gpt2" and ffn_size is None:
        ffn_size = 4 * sizes["hidden_size"]
    return Model(
        name=name,
        layers=sizes["layers"],
        hidden_size=sizes["hidden_size"],
        vocabulary_size=sizes["vocabulary_size"],
        attention=_attention(config, sizes, kind, where),
        ffn_size=ffn_size,
        gated=kind != "gpt2",  # the others have a gate whatever `hidden_act` is
        experts=experts,
        mtp_depth=optional(config, ("num_nextn_predict_layers", "num_mtp_layers"), 0, where),
        tied_embeddings=bool(config.get("tie_word_embeddings", kind == "gpt2")),
    )


def _attention(
    config: Mapping[str, object], sizes: Mapping[str, int], kind: str, where: str
) -> GroupedQueries | Latent:
    heads = sizes["heads"]
    if kind in _LATENT:
        return Latent(
            heads,
            **{key: sizes[key] for key in _RANKS},
            q_lora_rank=sizes.get("q_lora_rank"),
        )
    head_dim = optional(config, ("head_dim",), 0, where)
    if not head_dim:
        head_dim, rest = divmod(sizes["hidden_size"], heads)
        if rest:
            raise UsageError(f"{where}: missing head_dim, and the heads do not divide hidden_size")
    return GroupedQueries(heads, optional(config, _KV_HEADS, heads, where) or heads, head_dim)


def _experts(config: Mapping[str, object], sizes: Mapping[str, int], where: str) -> Experts:
    ffn_size = sizes["expert_ffn_size"]
    shared = optional(config, ("n_shared_experts", "num_shared_experts"), 0, where)
    shared_size = optional(config, ("shared_expert_intermediate_size",), 0, where)
    if shared_size and not shared:
        shared, rest = divmod(shared_size, ffn_size)
        if rest:
            shared = 1
        else:
            shared_size = 0
    leading = optional(config, ("first_k_dense_replace", "num_dense_layers"), 0, where)
    return Experts(
        routed=sizes["routed"],
        top_k=sizes["top_k"],
        ffn_size=ffn_size,
        shared=shared,
        shared_ffn_size=shared_size or None,
        leading_dense_layers=leading,
        layer_frequency=_frequency(config, sizes["layers"], leading, where),
    )


def _frequency(
    config: Mapping[str, object], layers: int, leading: int, where: str
) -> int | tuple[int, ...]:
    """Which layers have experts. Qwen counts them from 1, and may name dense ones one by one."""
    step = optional(config, ("decoder_sparse_step",), 1, where)
    named = config.get("mlp_only_layers") or ()
    if step == 1 and not named:
        return optional(config, ("moe_layer_freq",), 1, where)
    if step < 1 or not isinstance(named, list) or None in map(whole, named):
        raise UsageError(f"{where}: decoder_sparse_step or mlp_only_layers make no sense")
    return tuple(
        int(layer >= leading and (layer + 1) % step == 0 and layer not in named)
        for layer in range(layers)
    )
