"""What we know of torch_npu, against its real wheel: read as source, as it cannot run here."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from npuscope.collector.training import dynamic_profile as dynamic
from npuscope.collector.training import torch_profiler
from tests.collector.training import fake_torch_npu as fake

VERSION = "2.13.0"
FOLDER = "torch_npu/profiler/"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Python files of the wheel's profiler by their names."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", f"torch-npu=={VERSION}", "--no-deps", "--quiet",
         "--disable-pip-version-check", "--only-binary", ":all:", "--python-version", "3.11",
         "--platform", "manylinux_2_28_x86_64", "--dest", str(folder)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of torch_npu {VERSION}: {done.stderr[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return {
            name.removeprefix(FOLDER): wheel.read(name).decode()
            for name in wheel.namelist()
            if name.startswith(FOLDER) and name.endswith(".py")
        }


def tree(sources: Mapping[str, str], path: str) -> ast.Module:
    return ast.parse(sources[path])


def function(module: ast.Module, *names: str) -> ast.FunctionDef:
    """A function by its name, or by its class's and its own."""
    body: Any = module.body
    for name in names:
        found = next(node for node in body if getattr(node, "name", None) == name)
        body = found.body
    assert isinstance(found, ast.FunctionDef)
    return found


def constants(module: ast.Module, name: str) -> dict[str, Any]:
    """A class's attributes that are written out."""
    found = next(node for node in module.body if getattr(node, "name", None) == name)
    assert isinstance(found, ast.ClassDef)
    values: dict[str, Any] = {}
    for node in found.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    return values


# What stands for an attribute of torch_npu's constants, in the real one and in the fake.
Known = Callable[[ast.expr], Any]


def parameters(node: ast.FunctionDef, known: Known) -> list[tuple[str, bool, Any]]:
    """(name, keyword only, default) of each; "-" is no default."""
    names = [one.arg for one in node.args.args if one.arg != "self"]
    plain = ["-"] * (len(names) - len(node.args.defaults)) + [
        known(one) for one in node.args.defaults
    ]
    only = [
        (arg.arg, True, "-" if value is None else known(value))
        for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    return [(name, False, value) for name, value in zip(names, plain, strict=True)] + only


def of_fake(called: Callable[..., Any]) -> list[tuple[str, bool, Any]]:
    return [
        (
            one.name,
            one.kind is inspect.Parameter.KEYWORD_ONLY,
            "-" if one.default is inspect.Parameter.empty else one.default,
        )
        for one in inspect.signature(called).parameters.values()
        if one.name != "self"
    ]


@pytest.fixture
def spec(sources: dict[str, str]) -> Known:
    table = constants(tree(sources, "analysis/prof_common_func/_constant.py"), "Constant")
    exports = constants(tree(sources, "experimental_config.py"), "ExportType")

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "ExportType":
                return value(exports[node.attr])
            return value(table[node.attr])
        return ast.literal_eval(node)

    return value


def test_the_fakes_signatures_are_the_real_ones(sources: dict[str, str], spec: Known) -> None:
    profiler = tree(sources, "profiler.py")
    pairs: list[tuple[ast.FunctionDef, Callable[..., Any]]] = [
        (function(profiler, "profile", "__init__"), fake.profile.__init__),
        (function(profiler, "profile", "start"), fake.profile.start),
        (function(profiler, "profile", "stop"), fake.profile.stop),
        (function(profiler, "profile", "step"), fake.profile.step),
        (function(profiler, "_KinetoProfile", "add_metadata_json"),
         fake.profile.add_metadata_json),
        (function(profiler, "tensorboard_trace_handler"), fake.tensorboard_trace_handler),
        (function(tree(sources, "experimental_config.py"), "_ExperimentalConfig", "__init__"),
         fake._ExperimentalConfig.__init__),
        (function(tree(sources, "scheduler.py"), "Schedule", "__init__"), fake.Schedule.__init__),
    ]  # fmt: skip
    for real, ours in pairs:
        assert parameters(real, spec) == of_fake(ours), real.name
    analyse = [name for name, _, _ in parameters(function(profiler, "analyse"), lambda _: None)]
    assert analyse == [name for name, _, _ in of_fake(fake.analyse)]


def test_the_fakes_words_are_the_real_ones(sources: dict[str, str], spec: Known) -> None:
    module = tree(sources, "experimental_config.py")
    for kind in (fake.ProfilerLevel, fake.AiCMetrics, fake.ExportType):
        real = {n: spec(v) for n, v in constants(module, kind.__name__).items()}
        ours = {name: value for name, value in vars(kind).items() if name[0].isupper()}
        assert ours.items() <= real.items(), kind.__name__
    actions = constants(tree(sources, "scheduler.py"), "ProfilerAction")
    assert {name: spec(v) for name, v in actions.items()} == {
        one.name: one.value for one in fake.ProfilerAction
    }


def test_every_choice_of_a_session_exists(sources: dict[str, str]) -> None:
    module = tree(sources, "experimental_config.py")
    assert set(torch_profiler.LEVELS.values()) == set(constants(module, "ProfilerLevel"))
    exports = {name for names in torch_profiler.EXPORTS.values() for name in names}
    assert exports == set(constants(module, "ExportType"))
    assert set(dynamic.METRICS) == set(constants(module, "AiCMetrics"))
    exported = sources["__init__.py"]
    for name in ("profile", "tensorboard_trace_handler", "schedule", "_ExperimentalConfig",
                 "ProfilerLevel", "AiCMetrics", "ExportType", "ProfilerActivity"):  # fmt: skip
        assert f'"{name}"' in exported


def test_what_a_session_reaches_into_is_there(sources: dict[str, str]) -> None:
    """No public name tells where a capture is, nor sets the number of its first step."""
    profiler = sources["profiler.py"]
    assert "self.prof_if = _ProfInterface(" in profiler
    assert "self._step_num_offset = 0" in profiler
    assert '"ProfilerStep#" + str(self.step_num + self._step_num_offset)' in profiler
    assert "self.prof_path = ProfPathCreator().get_prof_dir()" in sources["profiler_interface.py"]
    creator = sources["_profiler_path_creator.py"]
    assert '"{}_{}_ascend_pt"' in creator and "os.getpid()" in creator
    done = sources["analysis/_profiling_parser.py"]
    assert '"analyse.done"' in done
    assert f"self.max_str_len = {torch_profiler.VALUE_CHARS}" in profiler
    assert "self.max_meta_size = 50 * 1024" in profiler and torch_profiler.TOTAL_CHARS < 50 * 1024


def test_the_dynamic_configuration_is_the_real_one(sources: dict[str, str], spec: Known) -> None:
    shared = tree(sources, "_dynamic_profiler/_dynamic_profiler_monitor_shm.py")
    real = ast.literal_eval(constants(shared, "DynamicProfilerShareMemory")["JSON_DATA"])
    ours = json.loads(json.dumps(dynamic.config()))
    assert ours.pop("metadata") == {}
    assert ours == real and dynamic.check(real) == []
    # And what the configuration is read by.
    context = sources["_dynamic_profiler/_dynamic_profiler_config_context.py"]
    asked = {
        str(node.args[0].value)
        for node in ast.walk(ast.parse(context))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("json_data", "exp_config")
        and isinstance(node.args[0], ast.Constant)
    }
    plain = {name for name in asked if name.islower()} - {dynamic.EXPERIMENTAL, "is_valid"}
    assert plain == set(dynamic.FIELDS) | set(dynamic.EXPERIMENTAL_FIELDS)
    host = constants(tree(sources, "experimental_config.py"), "HostSystem")
    assert {spec(value) for value in host.values()} == set(dynamic.HOST)
    # ms Monitor's options are these keys, as the daemon hands them on.
    words = dynamic.dyno_command(
        dynamic.config(
            {name: True for name, field in dynamic.FIELDS.items() if field.kind == "switch"}
            | {"rank_list": [0], "warmup": 1},
            {
                "profiler_level": "Level1", "aic_metrics": "Memory", "l2_cache": True,
                "op_attr": True, "gc_detect_threshold": 1.0, "data_simplification": False,
                "export_type": ["db"], "msprof_tx": True, "mstx": True, "host_sys": ["cpu"],
                "mstx_domain_include": ["a"], "mstx_domain_exclude": ["b"], "sys_io": True,
                "sys_interconnection": True,
            },
        )
    ).split()  # fmt: skip
    options = {word[2:].replace("-", "_").upper() for word in words if word.startswith("--")}
    keys = {name.removeprefix("PROFILE_") for name in asked if name.isupper()}
    renamed = {"ITERATIONS": "ACTIVITIES_ITERATIONS", "LOG_FILE": "ACTIVITIES_LOG_FILE"}
    assert {renamed.get(name, name) for name in options - {"CERTS_DIR"}} == keys
