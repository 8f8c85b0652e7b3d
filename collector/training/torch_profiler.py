"""One window through torch_npu's profiler; torch_npu is imported here only, and only at use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEVELS = {0: "Level0", 1: "Level1", 2: "Level2", "none": "Level_none"}
EXPORTS = {"db": ("Db",), "text": ("Text",), "both": ("Db", "Text")}
ANALYSES = ("offline", "inline", "async")


@dataclass(frozen=True, slots=True)
class Collected:
    """What the profiler is asked to collect; fields are torch_npu's where they have its names."""

    level: int | str = 1
    export: str = "db"
    analyse: str = "offline"
    aic_metrics: str | None = None
    mstx: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("level", LEVELS), ("export", EXPORTS), ("analyse", ANALYSES)):
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(str, allowed))
                raise ValueError(f"{name}={getattr(self, name)!r}: choose of {choices}")


class Window:
    """A profiler that runs from its construction to `stop`. Raises what torch_npu raises."""

    def __init__(
        self, root: Path, collected: Collected, *, warmup: int, active: int, first_step: int
    ) -> None:
        npu = importlib.import_module("torch_npu").profiler
        self.folder: Path | None = None
        self._is_recorded = False
        self._root, self._before = root, _captures(root)
        level = LEVELS[collected.level]
        metrics = collected.aic_metrics
        if metrics is None:
            has_metrics = level in ("Level1", "Level2")
            metrics = "PipeUtilization" if has_metrics else "AiCoreNone"
        experimental = npu._ExperimentalConfig(
            profiler_level=getattr(npu.ProfilerLevel, level),
            aic_metrics=getattr(npu.AiCMetrics, metrics),
            mstx=collected.mstx or level == "Level_none",
            data_simplification=True,
            export_type=[getattr(npu.ExportType, name) for name in EXPORTS[collected.export]],
        )
        handler = npu.tensorboard_trace_handler(
            str(root),
            analyse_flag=collected.analyse != "offline",
            async_mode=collected.analyse == "async",
        )
        if handler is None:  # it would write into the working folder
            raise RuntimeError(f"torch_npu does not write into {root}: see what it printed")

        def ready(profiler: Any) -> None:
            # Where it wrote; torch_npu has no public name for it.
            path = getattr(getattr(profiler, "prof_if", None), "prof_path", "")
            self.folder, self._is_recorded = Path(path) if path else None, True
            handler(profiler)

        self._profiler = npu.profile(
            activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
            schedule=npu.schedule(wait=0, warmup=warmup, active=active, repeat=1),
            on_trace_ready=ready,
            record_shapes=collected.record_shapes,
            profile_memory=collected.profile_memory,
            with_stack=collected.with_stack,
            with_flops=collected.with_flops,
            with_modules=collected.with_modules,
            experimental_config=experimental,
        )
        if hasattr(self._profiler, "_step_num_offset"):
            # The trace then names the run's steps (ProfilerStep#200), not the window's.
            self._profiler._step_num_offset = first_step - warmup
        self._profiler.start()

    def describe(self, entries: Mapping[str, str]) -> None:
        """Add to the capture's metadata; later entries replace those of the same key."""
        for key, text in entries.items():
            self._profiler.add_metadata_json(key, text)

    def step(self) -> None:
        self._profiler.step()

    def stop(self) -> None:
        """End the window, and find its folder where the profiler did not tell it.

        It stays None where recording did not come to its end: torch_npu only prints what fails.
        """
        self._profiler.stop()
        if self.folder is None and self._is_recorded:
            new = sorted(_captures(self._root) - self._before)
            self.folder = new[-1] if new else None
        if self.folder is not None and not self.folder.is_dir():
            self.folder = None


def _captures(root: Path) -> set[Path]:
    """This process's captures."""
    return set(root.glob(f"*_{os.getpid()}_*_ascend_pt"))
