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
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from npuscope.errors import UsageError

from .architecture import Experts, Grouped, Latent, Model
from .huggingface import model_of_config
from .megatron_arguments import arguments_in, model_of_arguments
from .sizes import whole

_MOST_BYTES = 32 << 20  # of a log: its arguments stand at its beginning
_NESTED = ("attention", "experts")
_LISTS = ("noop_layers", "layer_frequency")
_FLAGS = ("gated", "tied_embeddings")


@cache
def presets() -> dict[str, Model]:
    """Models known by name."""
    text = resources.files(__package__).joinpath("presets.json").read_bytes()
    found: dict[str, dict[str, object]] = msgspec.json.decode(text)
    return {name: model_of_fields(sizes, name, name) for name, sizes in found.items()}


def model_of(text_or_path: str | Path) -> Model:
    """The model of a preset's name or of a file; a preset is taken where both have the name.

    Raises UsageError with all that is missing in the file, or what could have been meant.
    """
    text = str(text_or_path)
    known = {_spelling(name): model for name, model in presets().items()}
    if _spelling(text) in known:
        return known[_spelling(text)]
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
    given = _given(Model, {"name": name, **values}, "", wrong)
    attention, experts = given.get("attention"), given.get("experts")
    if isinstance(attention, Mapping):
        kind: type[Grouped | Latent] = Latent if "kv_lora_rank" in attention else Grouped
        given["attention"] = _given(kind, attention, "attention.", wrong)
    elif attention is not None:
        wrong.append("attention is no table")
    if isinstance(experts, Mapping):
        given["experts"] = _given(Experts, experts, "experts.", wrong)
    elif experts is not None:
        wrong.append("experts is no table")
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}: docs/mfu.md lists the fields of a model")
    given["attention"] = kind(**given["attention"])
    if experts is not None:
        given["experts"] = Experts(**given["experts"])
    return Model(**given)


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
        return model_of_config(values, where, name)
    arguments = arguments_in(content)
    if arguments is None:
        raise UsageError(
            f"{where}: not a model description: give a config.json, a launch script or log of"
            " Megatron or MindSpeed-LLM, a .toml with a model's fields, or a preset"
        )
    return model_of_arguments(arguments, where, name)


def _toml(content: str, where: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise UsageError(f"{where}: TOML needs Python 3.11: write the same fields as JSON")
    import tomllib

    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not valid TOML:  {error}") from None


def _given(
    kind: type[Any], values: Mapping[str, object], prefix: str, wrong: list[str]
) -> dict[str, Any]:
    """Checked values of a record's fields; what is missing, unknown or no size goes to `wrong`."""
    known = {field.name: field for field in fields(kind)}
    needed = {
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    missing = [f"{prefix}{name}" for name in known if name in needed and values.get(name) is None]
    if missing:
        wrong.append(f"missing {', '.join(missing)}")
    unknown = [f"{prefix}{name}" for name in values if name not in known]
    if unknown:
        wrong.append(f"unknown {', '.join(unknown)}")
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known or value is None:
            continue
        checked = value if name in _NESTED else _checked(name, value)
        if checked is None:
            wrong.append(f"{prefix}{name} is {value!r}")
        else:
            given[name] = checked
    return given


def _checked(name: str, value: object) -> object:
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
