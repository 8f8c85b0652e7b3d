"""On which NUMA nodes the threads of training run while a window is recorded, and their device's.

    {"start_ns": 1795680000000000000, "interval_ms": 100, "device_node": 0,
     "threads": {"4711": [[0, 0, 12], [1203, 1, 3]]}}

A thread has three numbers for each stay: milliseconds since the start, the node, and how often the
thread was found there, one reading after the other. It lies in the capture's metadata, so it must
be short. Without `device_node` npu-smi does not tell which cores are near the device.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from .guard import warn

KEY = "npuscope_threads"
_INTERVAL_MS = 100
# Of a core's time, what reading may cost: a slow host is read less often.
_READING_SHARE = 0.003
# Opening files of hundreds of threads that often would be felt: of those that worked most.
_BUSIEST = 4
_LISTED_SECONDS = 30.0
_TEXT_CHARS = 3_900
_SMI_SECONDS = 10.0
_TASKS, _NODES = "/proc/self/task", Path("/sys/devices/system/node")


class ThreadNodes:
    """Reads where threads are from its construction to `stop`, in a thread of its own.

    `nodes`: the NUMA node of each core; `device`: the number of the device as npu-smi has it.
    """

    def __init__(self, nodes: Mapping[int, int], device: int | None = None) -> None:
        self.cpu_ns = 0  # what reading has cost so far
        self._nodes, self._device_node = nodes, None if device is None else _ANSWERS.get(device)
        self._samples: dict[int, list[tuple[int, int]]] = {}
        self._files: dict[int, int] = {}
        self._start_ns, self._began = time.time_ns(), time.monotonic()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npuscope-nodes", daemon=True)
        self._thread.start()
        if device is not None and device not in _ANSWERS:
            threading.Thread(target=self._ask, args=(device,), name="npuscope-smi",
                             daemon=True).start()  # fmt: skip

    def stop(self) -> None:
        """Read no more; does not wait."""
        self._ends.set()

    def report(self) -> dict[str, object]:
        """What was read, as at the head of the module; {} where nothing was. Where it would be too
        long, of every second reading, fourth, ..."""
        samples = {str(thread): list(read) for thread, read in list(self._samples.items())}
        reads = max(samples.values(), key=len, default=[])
        between_ms = (reads[-1][0] - reads[0][0]) / (len(reads) - 1) if len(reads) > 1 else 0
        interval_ms, stride = max(_INTERVAL_MS, round(between_ms)), 1
        while any(samples.values()):
            report: dict[str, object] = {
                "start_ns": self._start_ns,
                "interval_ms": interval_ms * stride,
                "threads": {thread: _stays(read[::stride]) for thread, read in samples.items()},
            }
            if self._device_node is not None:
                report["device_node"] = self._device_node
            if len(json.dumps(report)) <= _TEXT_CHARS:
                return report
            if stride > max(map(len, samples.values())):
                break
            stride *= 2
        return {}

    def _ask(self, device: int) -> None:
        try:
            _ANSWERS[device] = self._device_node = _device_node(device, self._nodes)
        except Exception as error:
            _ANSWERS[device] = None
            warn(f"the device's NUMA node is not known: {str(error) or type(error).__name__}")

    def _run(self) -> None:
        at_s = 0.0
        try:
            while not self._ends.is_set():
                if not at_s or time.monotonic() - at_s > _LISTED_SECONDS:
                    at_s = time.monotonic()
                    self._choose()
                before_ns = time.thread_time_ns()
                self._read()
                self.cpu_ns = time.thread_time_ns()
                cost_seconds = (self.cpu_ns - before_ns) / 1e9
                self._ends.wait(max(_INTERVAL_MS / 1e3, cost_seconds / _READING_SHARE))
        except Exception as error:
            warn(f"NUMA nodes of threads are not recorded: {str(error) or type(error).__name__}")
        finally:
            for opened in self._files.values():
                os.close(opened)

    def _choose(self) -> None:
        """Open the main thread's file and those of the threads that worked most up to now."""
        worked = []
        for name in os.listdir(_TASKS):
            try:
                opened = os.open(f"{_TASKS}/{name}/stat", os.O_RDONLY)
                try:
                    fields = _fields(os.read(opened, 4096))
                finally:
                    os.close(opened)
            except OSError:  # it has ended
                continue
            worked.append((int(fields[11]) + int(fields[12]), int(name)))
        own, main = threading.get_native_id(), os.getpid()
        busiest = [one for _, one in sorted(worked, reverse=True) if one not in (own, main)]
        for thread in (main, *busiest[:_BUSIEST]):
            if thread not in self._files and len(self._files) <= 2 * _BUSIEST:
                try:
                    self._files[thread] = os.open(f"{_TASKS}/{thread}/stat", os.O_RDONLY)
                except OSError:
                    continue

    def _read(self) -> None:
        for thread, opened in list(self._files.items()):
            try:
                core = int(_fields(os.pread(opened, 4096, 0))[36])
            except (OSError, IndexError):  # it has ended
                os.close(self._files.pop(thread))
                continue
            node = self._nodes.get(core)
            if node is not None:
                since_ms = round((time.monotonic() - self._began) * 1e3)
                self._samples.setdefault(thread, []).append((since_ms, node))


# Nodes of devices that npu-smi was asked for, once in a process.
_ANSWERS: dict[int, int | None] = {}


def thread_nodes_here() -> ThreadNodes | None:
    """A recorder for this process; None on a host of one NUMA node, where nothing is far."""
    nodes = cpu_nodes()
    return ThreadNodes(nodes, _device_here()) if len(set(nodes.values())) > 1 else None


@lru_cache(maxsize=1)
def cpu_nodes() -> dict[int, int]:
    """The NUMA node of each core of this host; {} where the kernel does not tell."""
    nodes: dict[int, int] = {}
    for path in _NODES.glob("node[0-9]*/cpulist"):
        nodes |= dict.fromkeys(_cores(path.read_text()), int(path.parent.name[4:]))
    return nodes


def near_node(topology: str, device: int, nodes: Mapping[int, int]) -> int | None:
    """The node of the cores that end a device's row in `npu-smi info -t topo`; None where there is
    no such row, or it names cores of several nodes."""
    row = re.search(rf"^[ \t|]*NPU{device}\b.*[ \t](\d[\d,-]*)[ \t|]*$", topology, re.M)
    near = {nodes.get(core) for core in _cores(row[1])} if row else set()
    return near.pop() if len(near) == 1 else None


def _device_node(device: int, nodes: Mapping[int, int]) -> int | None:
    command = shutil.which("npu-smi")
    if command is None:
        return None
    topology = subprocess.run(
        [command, "info", "-t", "topo"],
        capture_output=True, text=True, timeout=_SMI_SECONDS, check=False,
    )  # fmt: skip
    return near_node(topology.stdout, device, nodes)


def _device_here() -> int | None:
    """The number of this thread's device on the host; None where torch_npu does not tell it."""
    npu = getattr(sys.modules.get("torch_npu"), "npu", None)
    if not callable(current := getattr(npu, "current_device", None)):
        return None
    number = int(current())
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",")
    device = visible[number].strip() if number < len(visible) else ""
    return int(device) if device.isdecimal() else number


def _cores(text: str) -> list[int]:
    """Numbers of cores as the kernel lists them: 0-3,8."""
    cores: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores += range(int(first), int(last or first) + 1)
    return cores


def _fields(stat: bytes) -> list[bytes]:
    """A thread's numbers in /proc, from its state on: its name before that may hold anything."""
    return stat.rpartition(b")")[2].split()


def _stays(read: Sequence[tuple[int, int]]) -> list[list[int]]:
    stays: list[list[int]] = []
    for since_ms, node in read:
        if stays and stays[-1][1] == node:
            stays[-1][2] += 1
        else:
            stays.append([since_ms, node, 1])
    return stays
