"""What the profiler can be told to record, what that costs, and the code that tells it.

Names are torch_npu's: `_ExperimentalConfig`, `profile` and `schedule` of torch_npu.profiler.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Options = Mapping[str, object]

# What profiler_info calls a set of PMU counters -> its name in AiCMetrics.
AIC_METRICS = {
    "ACL_AICORE_PIPE_UTILIZATION": "PipeUtilization",
    "ACL_AICORE_ARITHMETIC_UTILIZATION": "ArithmeticUtilization",
    "ACL_AICORE_MEMORY_BANDWIDTH": "Memory",
    "ACL_AICORE_L0B_AND_WIDTH": "MemoryL0",
    "ACL_AICORE_MEMORY_UB": "MemoryUB",
    "ACL_AICORE_RESOURCE_CONFLICT_RATIO": "ResourceConflictRatio",
    "ACL_AICORE_L2_CACHE": "L2Cache",
    "ACL_AICORE_MEMORY_ACCESS": "MemoryAccess",
    "ACL_AICORE_NONE": "AiCoreNone",
}
_ENUMS = ("AiCMetrics", "ExportType", "ProfilerActivity", "ProfilerLevel")
# Terminals of 80 columns show it whole, indented by two.
_WIDTH = 78
# Recorded on request, and used by no analysis here.
_IRRELEVANT = ("l2_cache", "record_op_args", "op_attr", "with_modules")


@dataclass(frozen=True, slots=True)
class Setting:
    """A wish to the profiler: how to say it, what it costs, and whether options have it.

    `is_on`: None where the options do not tell.
    """

    name: str
    says: str
    cost: str
    is_on: Callable[[Options], bool | None]


def _flag(name: str) -> Callable[[Options], bool | None]:
    def is_on(options: Options) -> bool | None:
        value = options.get(name)
        return value if isinstance(value, bool) else None

    return is_on


def _has_activity(name: str) -> Callable[[Options], bool | None]:
    def is_on(options: Options) -> bool | None:
        value = options.get("activities")
        return name in value if isinstance(value, list) else None

    return is_on


def level(options: Options) -> int | None:
    """The number of the profiler level; -1 for Level_none."""
    text = str(options.get("profiler_level") or "").lower()
    if text.endswith("none") and text != "none":
        return -1
    return int(text[-1]) if text.startswith("level") and text[-1].isdigit() else None


def _level1(options: Options) -> bool | None:
    known_level = level(options)
    return None if known_level is None else known_level >= 1


def _pmu(options: Options) -> bool | None:
    value = options.get("aic_metrics")
    return not value.upper().endswith("NONE") if isinstance(value, str) and value else None


def _has_schedule(options: Options) -> bool | None:
    return True if any(name.startswith("schedule.") for name in options) else None


CPU = Setting(
    "cpu", "activities with ProfilerActivity.CPU", "the host records each of its calls",
    _has_activity("CPU"),
)  # fmt: skip
NPU = Setting(
    "npu", "activities with ProfilerActivity.NPU", "the device records its tasks",
    _has_activity("NPU"),
)  # fmt: skip
LEVEL1 = Setting(
    "level1", "profiler_level=ProfilerLevel.Level1",
    "several times the data of Level0 per step", _level1,
)  # fmt: skip
PMU = Setting(
    "pmu", "aic_metrics=AiCMetrics.PipeUtilization", "counters are read around every kernel", _pmu
)
MEMORY = Setting(
    "memory", "profile_memory=True", "a record for every allocation: host time, larger files",
    _flag("profile_memory"),
)  # fmt: skip
STACKS = Setting(
    "stacks", "with_stack=True",
    "stacks of all operators: the costliest option; few steps and ranks",
    _flag("with_stack"),
)  # fmt: skip
STEPS = Setting(
    "steps", "a schedule, and prof.step() once per training step", "negligible", _has_schedule
)
INTERCONNECT = Setting(
    "interconnect", "sys_interconnection=True", "HCCS and PCIe are sampled: larger files",
    _flag("sys_interconnection"),
)  # fmt: skip
IO = Setting("io", "sys_io=True", "NIC and RoCE are sampled: larger files", _flag("sys_io"))
METADATA = Setting(
    "metadata", 'prof.add_metadata_json("distributed_args", ...)', "none", lambda options: None
)


def snippet(options: Options, settings: Iterable[Setting]) -> str:
    """Python that records what `options` do, and what `settings` adds: the smallest such call.

    A comment above what is new says what it costs. What `options` do not tell is as torch_npu has
    it by default, but the level is Level1.
    """
    values = dict(options)
    added = {setting.name: setting for setting in settings if setting.is_on(values) is not True}
    lines = [
        "experimental_config = torch_npu.profiler._ExperimentalConfig(\n",
        *_arguments(_experimental(values, added), values),
        ")\n",
        "with torch_npu.profiler.profile(\n",
        *_arguments(_profile(values, added), values),
        "    experimental_config=experimental_config,\n",
        ") as prof:\n",
        *_metadata(added),
        "    for batch in loader:\n",
        "        train(batch)\n",
        "        prof.step()\n",
    ]
    return _imports("".join(lines)) + "".join(lines)


def _imports(code: str) -> str:
    """Import statements for the names that the code uses."""
    used = [name for name in _ENUMS if f"{name}." in code]
    return (
        ("import json\n\n" if "json." in code else "")
        + "import torch_npu\nfrom torch_npu.profiler import (\n"
        + "".join(f"    {name},\n" for name in used)
        + ")\n\n"
    )


def idle_options(options: Options | None) -> list[str]:
    """Options that are on, cost something, and give nothing to any analysis here."""
    return [name for name in _IRRELEVANT if (options or {}).get(name) is True]


# An argument: its code, and the setting that made it necessary where it is new.
_Argument = tuple[str, Setting | None]


def _experimental(values: Options, added: Mapping[str, Setting]) -> list[_Argument]:
    now = level(values)
    at = 1 if now is None else max(now, 1) if "level1" in added else now
    options = [_argument("profiler_level", f"ProfilerLevel.{_level_name(at)}", added.get("level1"))]
    metrics = AIC_METRICS.get(str(values.get("aic_metrics", "")).upper())
    if "pmu" in added:
        metrics = "PipeUtilization"
    if metrics and at >= 1:
        options.append(_argument("aic_metrics", f"AiCMetrics.{metrics}", added.get("pmu")))
    if values.get("mstx") is True or values.get("msprof_tx") is True:
        options.append(_argument("mstx" if "mstx" in values else "msprof_tx", "True"))
    for name, key in (("sys_interconnection", "interconnect"), ("sys_io", "io")):
        if values.get(name) is True or key in added:
            options.append(_argument(name, "True", added.get(key)))
    threshold = values.get("gc_detect_threshold")
    if isinstance(threshold, (int, float)) and not isinstance(threshold, bool):
        options.append(_argument("gc_detect_threshold", repr(threshold)))
    told_kinds = values.get("export_type")
    kinds = told_kinds if isinstance(told_kinds, list) else [told_kinds]
    names = sorted({str(kind).capitalize() for kind in kinds} & {"Text", "Db"})
    words = ", ".join(f"ExportType.{name}" for name in names or ["Db"])
    return [*options, _argument("export_type", f"[{words}]")]


def _level_name(at: int) -> str:
    return "Level_none" if at < 0 else f"Level{at}"


def _profile(values: Options, added: Mapping[str, Setting]) -> list[_Argument]:
    have = values.get("activities")
    names = [name for name in have if name in ("CPU", "NPU")] if isinstance(have, list) else []
    defaults = [n for n in ("CPU", "NPU") if not names or n in names or n.lower() in added]
    activities = ", ".join(f"ProfilerActivity.{name}" for name in defaults)
    new = next((added[key] for key in ("cpu", "npu") if key in added and names), None)
    steps = {"wait": 0, "warmup": 1, "active": 1, "repeat": 1, "skip_first": 10}
    for name in steps:
        value = values.get(f"schedule.{name}")
        if isinstance(value, int) and value >= 0:
            steps[name] = value
    schedule = ", ".join(f"{name}={number}" for name, number in steps.items())
    options = [
        _argument("activities", f"[{activities}]", new),
        _argument(
            "schedule",
            f"torch_npu.profiler.schedule(\n        {schedule}\n    )",
            added.get("steps"),
        ),
        _argument("on_trace_ready", 'torch_npu.profiler.tensorboard_trace_handler("./profiles")'),
    ]
    if values.get("record_shapes") is True:
        options.append(_argument("record_shapes", "True"))
    for name, key in (("profile_memory", "memory"), ("with_stack", "stacks")):
        if values.get(name) is True or key in added:
            options.append(_argument(name, "True", added.get(key)))
    return options


def _argument(name: str, value: str, new: Setting | None = None) -> _Argument:
    return f"{name}={value},", new


def _arguments(arguments: Iterable[_Argument], options: Options) -> Iterable[str]:
    for code, new in arguments:
        if new is None:
            yield f"    {code}\n"
            continue
        name = code.partition("=")[0]
        late = options and name.startswith("sys_") and name not in options
        needs = "; needs a newer torch_npu than the one that recorded this" if late else ""
        comment = f"new: {new.cost}{needs}"
        yield textwrap.indent(textwrap.fill(comment, _WIDTH - 6), "    # ") + "\n"
        yield f"    {code}\n"


def _metadata(added: Mapping[str, Setting]) -> Iterable[str]:
    if "metadata" in added:
        yield "    # new: MindSpeed and Megatron say this by themselves; the others have to\n"
        yield "    # yours, and pipeline_, data_, context_, expert_...\n"
        yield '    sizes = {"world_size": 8, "tensor_model_parallel_size": 1}\n'
        yield '    prof.add_metadata_json("distributed_args", json.dumps(sizes))\n'
