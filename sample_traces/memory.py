"""Device memory of one rank: forward outputs live until their backward kernels are launched, or
until the backward of their part of a layer has ended, where that is planted."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .capture import Capture

_BASE_BYTES = 6 * 2**30
_GE_BYTES = 64 * 2**20
_SEGMENT_BYTES = 20 * 2**20
MODULES = {"HCCL": 423_690_240, "RUNTIME": 96_665_600, "APP": 0, "SLOG": 0}
MODULE_PERIOD_NS = 5_000_000
STREAM_PTR = 733_279_888


@dataclass(frozen=True, slots=True)
class Level:
    """The framework's allocator after one event."""

    timestamp_ns: int
    allocated_bytes: int
    reserved_bytes: int
    ge_bytes: int = _GE_BYTES


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation; released by its backward operator, or not within the window."""

    name: str
    size_bytes: int
    allocated: Level
    released: Level | None


def curve(c: Capture) -> tuple[list[Level], list[Block]]:
    """Levels in time order, blocks in order of allocation."""
    births, deaths = _of_parts(c) if c.job.recompute == "parts" else _of_sequences(c)
    births.sort()
    changes = [(t, size, sequence) for t, _, size, sequence in births]
    changes += [(deaths[s], -size, s) for _, _, size, s in births if s in deaths]
    changes.sort()
    levels, at = list[Level](), dict[tuple[int, bool], Level]()
    allocated, reserved = _BASE_BYTES, _BASE_BYTES + _SEGMENT_BYTES
    for time_ns, size_bytes, sequence in changes:
        allocated += size_bytes
        while reserved < allocated:
            reserved += _SEGMENT_BYTES
        level = Level(time_ns, allocated, reserved)
        levels.append(level)
        at[sequence, size_bytes > 0] = level
    blocks = [
        Block(name, size, at[sequence, True], at.get((sequence, False)))
        for _, name, size, sequence in births
    ]
    return levels, blocks


Births = list[tuple[int, str, int, int]]  # time, operator, bytes, number


def _of_parts(c: Capture) -> tuple[Births, dict[int, int]]:
    births: Births = []
    deaths: dict[int, int] = {}
    for kernel in c.kernels:
        times = kernel.launch.times
        if kernel.block >= 0:
            size_bytes = _output_bytes(kernel.work.output_shapes)
            start_ns = times.operator_start_ns + 900
            births.append((start_ns, kernel.launch.operator, size_bytes, kernel.block))
        deaths |= dict.fromkeys(kernel.frees, times.operator_start_ns)
    return births, deaths


def _of_sequences(c: Capture) -> tuple[Births, dict[int, int]]:
    births: Births = []
    deaths: dict[int, int] = {}
    for kernel in c.kernels:
        launch = kernel.launch
        if not kernel.work.is_compute or launch.sequence < 0:
            continue
        if launch.backward:
            deaths[launch.sequence] = launch.times.operator_end_ns
        elif kernel.work.type not in ("ZerosLike", "ApplyAdamWV2"):
            size_bytes = _output_bytes(kernel.work.output_shapes)
            start_ns = launch.times.operator_start_ns + 900
            births.append((start_ns, launch.operator, size_bytes, launch.sequence))
    return births, deaths


def module_samples(c: Capture) -> list[tuple[str, int, int]]:
    """(module, time, reserved bytes) of CANN's modules; APP holds what the framework reserved."""
    levels = curve(c)[0]
    samples: list[tuple[str, int, int]] = []
    for module, size_bytes in MODULES.items():
        for time_ns in range(c.session_start_ns, c.session_end_ns, MODULE_PERIOD_NS):
            before = [level.reserved_bytes for level in levels if level.timestamp_ns <= time_ns]
            app = (before[-1] if before else _BASE_BYTES + _SEGMENT_BYTES) + _GE_BYTES
            samples.append((module, time_ns, app if module == "APP" else size_bytes))
    return samples


def _output_bytes(shapes: str) -> int:
    size = sum(2 * prod(int(n) for n in shape.split(",")) for shape in shapes.split(";") if shape)
    return -(-size // 512) * 512
