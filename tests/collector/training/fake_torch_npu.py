"""A torch_npu without an NPU: the profiler's signatures and life cycle of 2.13, and captures as it
leaves them. test_torch_npu_wheel.py compares the signatures with those of the real one.

Put it in by `install()`, before what imports torch_npu. `Script` says what goes wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MAX_STR_LEN = 4096


@dataclass
class Script:
    """What happens, and what is to: `raises` names of calls that fail, `kills` one that is the
    process's last. `job` describes the job that is recorded, beside its time. `starts` are the
    first steps of captures, in their order."""

    raises: set[str] = field(default_factory=set)
    kills: str | None = None
    has_environment: bool = True
    forgets_path: bool = False
    is_slow_to_analyse: bool = False
    rank: int = 0
    forms: tuple[str, ...] = ()  # what an analysis writes: db, text
    job: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)


script = Script()


def _happens(name: str) -> None:
    script.calls.append(name)
    if script.kills == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if name in script.raises:
        raise RuntimeError(f"{name} went wrong")


def no_exception_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch_npu prints what goes wrong in most calls, and goes on; that is `swallowed` here."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if "swallowed" not in script.raises:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            script.printed.append(str(error))
            return None

    return guarded


class ProfilerAction(Enum):
    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class ProfilerActivity(Enum):
    CPU = 0
    NPU = 1


class ProfilerLevel:
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"
    Level_none = "Level_none"


class AiCMetrics:
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    AiCoreNone = "ACL_AICORE_NONE"


class ExportType:
    Db = "db"
    Text = "text"


class _ExperimentalConfig:
    def __init__(
        self,
        profiler_level: Any = ProfilerLevel.Level0,
        aic_metrics: Any = AiCMetrics.PipeUtilization,
        l2_cache: bool = False,
        msprof_tx: bool = False,
        mstx: bool = False,
        data_simplification: bool = True,
        record_op_args: bool = False,
        op_attr: bool = False,
        gc_detect_threshold: Any = None,
        export_type: Any = ExportType.Text,
        host_sys: Any = None,
        mstx_domain_include: Any = None,
        mstx_domain_exclude: Any = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
    ) -> None:
        _happens("_ExperimentalConfig")
        is_low = profiler_level in (ProfilerLevel.Level0, ProfilerLevel.Level_none)
        if is_low and aic_metrics != AiCMetrics.AiCoreNone:
            script.printed.append("Please use level1 or level2 to collect aic metrics")
        self.profiler_level, self.aic_metrics, self.mstx = profiler_level, aic_metrics, mstx
        self.gc_detect_threshold = gc_detect_threshold
        self.export_type = [export_type] if isinstance(export_type, str) else export_type


class Schedule:
    def __init__(
        self,
        wait: int,
        active: int,
        warmup: int = 0,
        repeat: int = 0,
        skip_first: int = 0,
        skip_first_wait: int = 0,
    ) -> None:
        self.wait, self.active, self.warmup = wait, active, warmup
        self.repeat, self.skip_first, self.skip_first_wait = repeat, skip_first, skip_first_wait

    def __call__(self, step: int) -> ProfilerAction:
        cycle = self.wait + self.warmup + self.active
        step -= self.skip_first
        if step < 0 or (self.repeat > 0 and step / cycle >= self.repeat):
            return ProfilerAction.NONE
        place = step % cycle
        if place < self.wait:
            return ProfilerAction.NONE
        if place < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < cycle - 1 else ProfilerAction.RECORD_AND_SAVE


_where: dict[str, str] = {}


@no_exception_func
def tensorboard_trace_handler(
    dir_name: Any = None,
    worker_name: Any = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
) -> Any:
    _happens("tensorboard_trace_handler")
    _where["dir"] = str(dir_name)

    def handler_fn(prof_inst: Any) -> None:
        _happens("handler")
        if analyse_flag and not (async_mode and script.is_slow_to_analyse):
            analyse(prof_inst.folder)

    return handler_fn


class profile:
    def __init__(
        self,
        *,
        activities: Any = None,
        schedule: Any = None,
        on_trace_ready: Any = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        custom_trace_id_callback: Any = None,
        use_cuda: Any = None,
    ) -> None:
        _happens("profile")
        script.settings.append(
            {"config": experimental_config, "activities": activities, "with_stack": with_stack}
        )
        self.metadata: dict[str, Any] = {}
        self.prof_if = SimpleNamespace(prof_path="")
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.config = experimental_config
        self.step_num, self._step_num_offset = 0, 0
        self.current_action = schedule(0)
        self.recorded: list[int] = []
        self.folder = Path()
        self.stopped = False

    @no_exception_func
    def start(self) -> None:
        _happens("start")
        self._transit(ProfilerAction.NONE, self.current_action)

    @no_exception_func
    def step(self) -> None:
        _happens("step")
        if self.stopped:
            script.printed.append("Profiler is stopped, step takes no effect!")
            return
        before = self.current_action
        self.step_num += 1
        self.current_action = self.schedule(self.step_num)
        self._transit(before, self.current_action)

    @no_exception_func
    def stop(self) -> None:
        _happens("stop")
        self._transit(self.current_action, None)
        self.stopped = True

    @no_exception_func
    def add_metadata_json(self, key: str, value: str) -> None:
        _happens("add_metadata_json")
        if len(key) > MAX_STR_LEN or len(value) > MAX_STR_LEN:
            script.printed.append("Invalid input key or value. Skip this metadata.")
            return
        self.metadata[key] = json.loads(value)

    def _transit(self, before: ProfilerAction, after: ProfilerAction | None) -> None:
        recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if before is ProfilerAction.NONE and after not in (ProfilerAction.NONE, None):
            self._make_folder()
        if before in recording and after not in recording:
            self._finalize()
            if before is ProfilerAction.RECORD_AND_SAVE or after is None:
                self.on_trace_ready(self)
        elif before is ProfilerAction.WARMUP and after is None and script.has_environment:
            for path in sorted(self.folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            self.folder.rmdir()
        if after in recording:
            self.recorded.append(self.step_num + self._step_num_offset)

    def _make_folder(self) -> None:
        if not script.has_environment:
            return
        stamp = f"20261122101500{len(script.folders):03d}"
        self.folder = Path(_where["dir"]) / f"host_{os.getpid()}_{stamp}_ascend_pt"
        (self.folder / "PROF_000001_20261122101500000_ABCDEF" / "device_0" / "data").mkdir(
            parents=True
        )
        if not script.forgets_path:
            self.prof_if.prof_path = str(self.folder)
        script.folders.append(self.folder)

    def _finalize(self) -> None:
        if not script.has_environment:
            return
        script.starts.append(self.recorded[0])
        data = self.folder / "PROF_000001_20261122101500000_ABCDEF" / "device_0" / "data"
        (data / "ts_track.data.0.slice_0").write_bytes(b"\0" * 512)
        _happens("finalize")
        info = {"config": {}, "start_info": {}, "rank_id": str(script.rank)}
        (self.folder / f"profiler_info_{script.rank}.json").write_text(json.dumps(info))
        (self.folder / "profiler_metadata.json").write_text(json.dumps(self.metadata))


def analyse(profiler_path: Any, max_process_number: int = 1, export_type: Any = None) -> None:
    """What an analysis, now or later, makes of a raw capture."""
    _happens("analyse")
    folder = Path(profiler_path)
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(exist_ok=True)
    if script.forms:
        _write_tables(folder, output)
    (output / "analyse.done").touch()


def _write_tables(folder: Path, output: Path) -> None:
    from npuscope.sample_traces.capture import captures
    from npuscope.sample_traces.forms.db import write_db
    from npuscope.sample_traces.forms.metadata import profiler_info, profiler_metadata
    from npuscope.sample_traces.forms.text import write_text
    from npuscope.sample_traces.job import small

    first = script.starts[script.folders.index(folder)]
    told = json.loads((folder / "profiler_metadata.json").read_text())
    began_ns = 1_764_246_877_000_000_000 + first * 10**9
    job = small(**script.job, first_step=first, steps=2, start_ns=began_ns)
    capture = captures(job)[script.rank]
    info = profiler_info(capture, list(script.forms))
    (folder / f"profiler_info_{script.rank}.json").write_text(json.dumps(info))
    (folder / "profiler_metadata.json").write_text(json.dumps(profiler_metadata(capture) | told))
    if "db" in script.forms:
        write_db(capture, output)
    if "text" in script.forms:
        write_text(capture, output)


def install() -> Script:
    """Make `import torch_npu` give this, with a new script."""
    global script
    script = Script()
    package = ModuleType("torch_npu")
    package.__spec__ = ModuleSpec("torch_npu", None)
    names = (
        "profile", "tensorboard_trace_handler", "ProfilerAction", "ProfilerActivity",
        "ProfilerLevel", "AiCMetrics", "ExportType", "_ExperimentalConfig",
    )  # fmt: skip
    parts = {name: globals()[name] for name in names} | {"schedule": Schedule}
    package.__dict__["profiler"] = SimpleNamespace(**parts)
    sys.modules["torch_npu"] = package
    return script
