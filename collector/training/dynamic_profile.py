"""torch_npu's dynamic profiling: the fields of its profiler_config.json, and ms Monitor's command.

A job that was started with PROF_CONFIG_PATH=DIR, or calls `dynamic_profile.init(DIR)` and `step()`,
looks at DIR/profiler_config.json every two seconds and profiles once for each change of it. What
it cannot use it mostly replaces by a default without a word that users see; here it is named.
Fields and defaults are those of torch_npu 2.13.
"""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FILE = "profiler_config.json"
EXPERIMENTAL = "experimental_config"
AT_ONCE = -1  # start_step of a profile that begins with the next step

LEVELS = ("Level_none", "Level0", "Level1", "Level2")
METRICS = (
    "AiCoreNone", "PipeUtilization", "ArithmeticUtilization", "Memory", "MemoryL0", "MemoryUB",
    "ResourceConflictRatio", "L2Cache", "MemoryAccess",
)  # fmt: skip
HOST = ("cpu", "mem", "disk", "network", "osrt", "numa")
EXPORTS = ("text", "db")
_METADATA_CHARS = 4096

Kind = Literal["switch", "count", "text", "choice", "choices", "numbers", "names", "seconds", "map"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its kind, torch_npu's default, the least of a count, and what may be chosen."""

    kind: Kind
    default: object
    least: int = 0
    choices: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """What the field takes, in words."""
        choices = ", ".join(self.choices)
        return {
            "switch": "true or false",
            "count": f"an integer of at least {self.least}",
            "text": "text that is not empty",
            "choice": f"one of {choices}",
            "choices": f"a list of {choices}",
            "numbers": "a list of ranks, integers of at least 0",
            "names": "a list of names",
            "seconds": "a number of milliseconds of at least 0, or null",
            "map": "an object of entries for profiler_metadata.json",
        }[self.kind]

    def takes(self, value: object) -> bool:
        """Whether torch_npu uses this value as it is."""
        if self.kind == "switch":
            return isinstance(value, bool)
        if self.kind == "count":
            return _is_integer(value) and isinstance(value, int) and value >= self.least
        if self.kind == "text":
            return isinstance(value, str) and bool(value.strip())
        if self.kind == "choice":
            return isinstance(value, str) and value in self.choices
        if self.kind == "seconds":
            return value is None or (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and math.isfinite(value)
                and value >= 0
            )
        if self.kind == "map":
            return isinstance(value, dict)
        if not isinstance(value, list):
            return False
        if self.kind == "numbers":
            return all(_is_integer(one) and one >= 0 for one in value)
        if self.kind == "choices":
            return all(isinstance(one, str) and one in self.choices for one in value)
        return all(isinstance(one, str) for one in value)


_OFF = Field("switch", False)
FIELDS: Mapping[str, Field] = {
    "activities": Field("choices", ["CPU", "NPU"], choices=("CPU", "NPU")),
    "prof_dir": Field("text", "./"),
    "analyse": _OFF,
    "async_mode": _OFF,
    "record_shapes": _OFF,
    "profile_memory": _OFF,
    "with_stack": _OFF,
    "with_flops": _OFF,
    "with_modules": _OFF,
    "active": Field("count", 1, least=1),
    "warmup": Field("count", 0),
    "start_step": Field("count", 0, least=AT_ONCE),
    "is_rank": _OFF,
    "rank_list": Field("numbers", []),
    "metadata": Field("map", {}),
}
EXPERIMENTAL_FIELDS: Mapping[str, Field] = {
    "profiler_level": Field("choice", "Level0", choices=LEVELS),
    "aic_metrics": Field("choice", "AiCoreNone", choices=METRICS),
    "l2_cache": _OFF,
    "op_attr": _OFF,
    "gc_detect_threshold": Field("seconds", None),
    "data_simplification": Field("switch", True),
    "record_op_args": _OFF,
    "export_type": Field("choices", ["text"], choices=EXPORTS),
    "msprof_tx": _OFF,
    "mstx": _OFF,
    "host_sys": Field("choices", [], choices=HOST),
    "mstx_domain_include": Field("names", []),
    "mstx_domain_exclude": Field("names", []),
    "sys_io": _OFF,
    "sys_interconnection": _OFF,
}
# Those of _ExperimentalConfig that may also be a single word.
_ALSO_ONE = ("export_type",)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A field that torch_npu would not use as it stands."""

    field: str
    value: str
    rule: str


def config(
    top: Mapping[str, object] | None = None, experimental: Mapping[str, object] | None = None
) -> dict[str, object]:
    """A whole configuration: what is given, else torch_npu's defaults."""
    inner = {name: field.default for name, field in EXPERIMENTAL_FIELDS.items()}
    fields: dict[str, object] = {name: field.default for name, field in FIELDS.items()}
    fields.update(top or {})
    fields[EXPERIMENTAL] = {**inner, **(experimental or {})}
    return fields


def check(content: object) -> list[Wrong]:
    """Every field of a configuration that is unknown, of a wrong kind, or without effect."""
    if not isinstance(content, dict):
        return [Wrong("(file)", _short(content), "a JSON object")]
    inner = content.get(EXPERIMENTAL) or {}
    wrong = _fields(
        {name: value for name, value in content.items() if name not in (EXPERIMENTAL, "is_valid")},
        FIELDS,
        "",
    )
    if not isinstance(inner, dict):
        return [*wrong, Wrong(EXPERIMENTAL, _short(inner), "an object")]
    wrong += _fields(inner, EXPERIMENTAL_FIELDS, f"{EXPERIMENTAL}.")
    if not wrong:
        wrong = _together(content, inner)
    return wrong


def dyno_command(content: Mapping[str, object], certificates: str | None = None) -> str:
    """ms Monitor's command that asks a job started with MSMONITOR_USE_DAEMON=1 for the same.

    `content` is a configuration without wrong fields. `certificates` is the folder of the client's
    certificates; without TLS it is the word NO_CERTS. ms Monitor exports one form only: a database
    where both are wanted.
    """
    values = {name: field.default for name, field in FIELDS.items()} | dict(content)
    options = values.get(EXPERIMENTAL) or {}
    inner = {name: field.default for name, field in EXPERIMENTAL_FIELDS.items()}
    inner |= options if isinstance(options, Mapping) else {}
    words = ["dyno", "--certs-dir", certificates or "NO_CERTS", "nputrace"]
    words += ["--start-step", str(values["start_step"]), "--iterations", str(values["active"])]
    words += ["--log-file", str(values["prof_dir"])]
    if values["warmup"]:
        words += ["--warmup-iterations", str(values["warmup"])]
    words += ["--activities", _commas(values["activities"])]
    switches = (
        "analyse", "async_mode", "record_shapes", "profile_memory", "with_stack", "with_flops",
        "with_modules",
    )  # fmt: skip
    words += [_option(name) for name in switches if values[name]]
    if values["is_rank"]:
        words += ["--is-rank", "--rank-list", _commas(values["rank_list"])]
    for name, field in EXPERIMENTAL_FIELDS.items():
        value = inner[name]
        if value == field.default and name != "profiler_level":
            continue
        if name == "record_op_args":  # ms Monitor has no such option
            continue
        words.append(_option(name))
        if name == "data_simplification":
            words.append(str(value).lower())
        elif field.kind != "switch":
            words.append(_export_form(value) if name == "export_type" else _commas(value))
    return shlex.join(words)


def _fields(
    settings: Mapping[str, object], fields: Mapping[str, Field], prefix: str
) -> list[Wrong]:
    wrong: list[Wrong] = []
    for name, value in settings.items():
        field = fields.get(name)
        if field is None:
            near = difflib.get_close_matches(str(name), fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            wrong.append(Wrong(f"{prefix}{name}", "no such field", f"one of its fields{hint}"))
            continue
        takes_word = name in _ALSO_ONE and isinstance(value, str) and value in field.choices
        # torch_npu takes null for a list that is not given.
        takes_null = value is None and field.kind in ("names", "choices", "numbers")
        if name == "activities" and isinstance(value, list):
            value = [one.upper() if isinstance(one, str) else one for one in value]
        if not (field.takes(value) or takes_word or takes_null):
            wrong.append(Wrong(f"{prefix}{name}", _short(value), field.rule))
    return wrong


def _together(content: Mapping[str, object], inner: Mapping[str, object]) -> list[Wrong]:
    """Fields that are right by themselves, but not with each other."""
    wrong: list[Wrong] = []

    def tell(field: str, got: object, allowed: str) -> None:
        wrong.append(Wrong(field, _short(got), allowed))

    level = inner.get("profiler_level", "Level0")
    metrics = inner.get("aic_metrics", "AiCoreNone")
    has_marks = bool(inner.get("mstx") or inner.get("msprof_tx"))
    exported = inner.get("export_type", "text")
    ranks = content.get("rank_list")
    if content.get("activities") in ([], None) and "activities" in content:
        tell("activities", content["activities"], "CPU, NPU or both: none of them is profiled")
    if level in ("Level0", "Level_none") and metrics != "AiCoreNone":
        tell(f"{EXPERIMENTAL}.aic_metrics", metrics, f"AiCoreNone with {level}, else Level1 or 2")
    if level == "Level_none" and not has_marks:
        tell(f"{EXPERIMENTAL}.mstx", inner.get("mstx", False), "true with Level_none")
    include, exclude = inner.get("mstx_domain_include"), inner.get("mstx_domain_exclude")
    if include and exclude:
        tell(f"{EXPERIMENTAL}.mstx_domain_exclude", exclude, "empty beside mstx_domain_include")
    for name in ("mstx_domain_include", "mstx_domain_exclude"):
        if inner.get(name) and not has_marks:
            tell(f"{EXPERIMENTAL}.{name}", inner[name], "empty unless mstx is true")
    if exported == []:
        tell(f"{EXPERIMENTAL}.export_type", exported, "text, db or both")
    if inner.get("op_attr") and _export_form(exported) != "Db":
        tell(f"{EXPERIMENTAL}.op_attr", True, "false unless export_type has db")
    if content.get("async_mode") and not content.get("analyse"):
        tell("async_mode", True, "false unless analyse is true")
    if content.get("is_rank") and not ranks:
        tell("rank_list", ranks, "ranks to profile, as is_rank is true: no rank would be")
    if ranks and not content.get("is_rank"):
        tell("is_rank", content.get("is_rank"), "true, as rank_list is given: else all ranks are")
    if content.get("is_rank") and content.get("analyse") and not content.get("async_mode"):
        tell("analyse", True, "false with is_rank, unless async_mode is true: it is switched off")
    metadata = content.get("metadata")
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        if len(json.dumps(value)) > _METADATA_CHARS or len(str(key)) > _METADATA_CHARS:
            tell(f"metadata.{str(key)[:64]}", value, f"at most {_METADATA_CHARS} characters")
    return wrong


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _export_form(value: object) -> str:
    exports = [value] if isinstance(value, str) else value
    return "Db" if isinstance(exports, list) and "db" in exports else "Text"


def _commas(values: object) -> str:
    return ",".join(map(str, values)) if isinstance(values, (list, tuple)) else str(values)
