"""host/info.json and device_N/info.json.N of msprof: the machine and the device of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import duckdb

from npuscope.errors import TraceFormatError

from ...discover.msprof_layout import device_of
from ...model import RankSource, ReadLog
from .profiler_metadata import json_object, natural, text

# Chips by `platform_version`, as far as they are known.
_CHIPS = {"1": "Ascend910A", "5": "Ascend910B"}


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `ranks` (one row); a file that cannot be read leaves its columns NULL."""
    device_id, infos = source.device_id, [info for _, info in _infos(source, log)]
    if device_id is None:
        devices = {device_of(path) for path in source.paths("info")} - {None}
        device_id = devices.pop() if len(devices) == 1 else None
    device = next(_devices(infos, device_id), {})
    chips = (_CHIPS.get(text(info.get("platform_version")) or "") for info in infos)
    row: dict[str, object] = {
        "device_id": device_id,
        "host_name": _first(infos, "hostname"),
        "host_uid": _first(infos, "hostUid"),
        "chip_name": next((chip for chip in chips if chip), None),
        "ai_core_count": natural(device.get("ai_core_num")) or None,
        "ai_core_frequency_mhz": natural(device.get("aic_frequency")) or None,
    }
    if "ranks" in tables and any(value is not None for value in row.values()):
        con.execute(
            f"insert into ranks ({', '.join(row)}) values ({', '.join('?' * len(row))})",
            list(row.values()),
        )
    advance(sum(file.size_bytes for file in source.files.get("info", ())))


def process_id(source: RankSource) -> int | None:
    """The operating system's id of the process that used the device, None where nobody tells."""
    numbers = (natural(info.get("pid")) for _, info in _infos(source, ReadLog()))
    return next((pid for pid in numbers if pid), None)


def _infos(source: RankSource, log: ReadLog) -> Iterator[tuple[str, Mapping[str, object]]]:
    """What the files say, the device's own first."""
    for path in sorted(source.paths("info"), key=lambda path: device_of(path) is None):
        try:
            yield path, json_object(path)
        except TraceFormatError as error:
            log.lose(path, "{where}: {got}", where=error.where, got=error.got)


def _devices(
    infos: list[Mapping[str, object]], device_id: int | None
) -> Iterator[Mapping[str, object]]:
    """What they say of the device: its own entry, or the only one there is."""
    for info in infos:
        devices_info = info.get("DeviceInfo")
        entries = devices_info if isinstance(devices_info, list) else []
        entries = [one for one in entries if isinstance(one, dict)]
        yield from (one for one in entries if natural(one.get("id")) == device_id)
        if len(entries) == 1 and device_id is None:
            yield entries[0]


def _first(infos: list[Mapping[str, object]], key: str) -> str | None:
    return next((word for info in infos if (word := text(info.get(key)))), None)
