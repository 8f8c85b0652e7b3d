"""What a PROF folder says of the machine, its devices and the session: info.json, start_info."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from ..capture import Capture
from ..kernels import AI_CORES

_BOOTED_NS = 4_699_801_002_845_430


def write_info(seen: Sequence[Capture], root: Path, *, ranks: bool) -> None:
    """Makes the folders host and device_N of a PROF folder with what they tell."""
    _write(root / "host", "", seen[0], _machine(seen[0]))
    for c in seen:
        told = c.rank if ranks else -1
        device = {**_machine(c), "devices": str(c.device_id), "DeviceInfo": [_device(c)]}
        _write(root / f"device_{c.device_id}", f".{c.device_id}", c, {**device, "rank_id": told})


def _machine(c: Capture) -> dict[str, object]:
    return {
        "jobInfo": "NA", "version": "1.0", "mac": "", "OS": "Linux-5.10.0.aarch64", "cpuCores": 1,
        "hostname": c.host_name, "hwtype": "aarch64", "devices": "", "platform": "",
        "CPU": [{"Id": 0, "Name": "HiSilicon", "Frequency": 1000, "Logical_CPU_Count": 192,
                 "Type": "TaishanV110"}],
        "DeviceInfo": [], "platform_version": "5", "pid": str(c.process_id), "pid_name": "python",
        "memoryTotal": 791_800_000, "cpuNums": 192, "sysClockFreq": 100, "hostUid": c.host_uid,
    }  # fmt: skip


def _device(c: Capture) -> dict[str, object]:
    return {
        "id": c.device_id, "env_type": 3, "ctrl_cpu_id": "ARMv8_Cortex_A55", "ai_cpu_core_num": 6,
        "ai_core_num": AI_CORES, "aiv_num": 2 * AI_CORES, "hwts_frequency": "50",
        "aic_frequency": str(c.frequency_mhz), "aiv_frequency": str(c.frequency_mhz),
    }  # fmt: skip


def _write(folder: Path, suffix: str, c: Capture, info: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"info.json{suffix}").write_text(json.dumps(info))
    for which, word, ns in (
        ("start", "Begin", c.session_start_ns),
        ("end", "End", c.session_end_ns),
    ):
        at = datetime.fromtimestamp(ns // 10**9, tz=timezone.utc)
        told = {
            f"collectionDate{word}": f"{at:%Y-%m-%d %H:%M:%S}.{ns // 1000 % 10**6:06d}",
            f"collectionTime{word}": str(ns // 1000),
            "clockMonotonicRaw": str(_BOOTED_NS + ns - c.session_start_ns),
        }
        (folder / f"{which}_info{suffix}").write_text(json.dumps(told))
