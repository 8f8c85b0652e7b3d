"""When a profile was recorded and which of several nameless ranks it is, told by its files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.discover.search import discover

US = 1_736_408_883_704_643
HEADER = "Name,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)"


def kernel_table(folder: Path, *starts: str, header: str = HEADER, end: str = "\n") -> Path:
    folder.mkdir(parents=True)
    # A wait of seconds looks like an instant of a clock that began with the device.
    rows = [f"MatMul,AI_CORE,{start},123456.789,2345678.901" for start in starts]
    text = end.join([header, *rows, ""])
    (folder / "kernel_details.csv").write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("form", ["{}.5", "{}.500\t", "{}"])
def test_long_durations_are_no_instants(tmp_path: Path, form: str) -> None:
    kernel_table(tmp_path / "a_ascend_pt", *(form.format(US + at) for at in (0, 10, 20)))
    [rank] = discover(tmp_path).ranks
    part = 0 if form == "{}" else 500
    assert (rank.window_start_ns, rank.window_end_ns) == (
        US * 1000 + part, (US + 20) * 1000 + part,
    )  # fmt: skip


def test_a_window_is_told_through_byte_order_mark_and_old_header(tmp_path: Path) -> None:
    header = "\ufeff" + HEADER.replace("Start", "Task Start")
    kernel_table(tmp_path / "a_ascend_pt", f"{US}.5", header=header, end="\r\n")
    [rank] = discover(tmp_path).ranks
    assert rank.window_start_ns == rank.window_end_ns == US * 1000 + 500


def test_a_table_without_starts_tells_no_window(tmp_path: Path) -> None:
    kernel_table(tmp_path / "a_ascend_pt", "N/A", "1.73641E+15")
    [rank] = discover(tmp_path).ranks
    assert (rank.window_start_ns, rank.window_end_ns) == (None, None)


def test_nameless_ranks_of_databases_stand_in_order_of_their_devices(tmp_path: Path) -> None:
    for place, device in enumerate((5, 3, 4)):
        folder = tmp_path / f"PROF_00000{place}_20250109084753000_ABC"
        folder.mkdir()
        with closing(sqlite3.connect(folder / "msprof_20250109084753.db")) as database:
            database.execute("create table RANK_DEVICE_MAP (rankId integer, deviceId integer)")
            database.execute("insert into RANK_DEVICE_MAP values (-1, ?)", [device])
            database.commit()
    found = [(rank.rank, Path(rank.root).name[:11]) for rank in discover(tmp_path).ranks]
    assert found == [(0, "PROF_000001"), (1, "PROF_000002"), (2, "PROF_000000")]


def test_nameless_ranks_of_text_stand_in_order_of_their_devices(tmp_path: Path) -> None:
    for place, device in enumerate((1, 0)):
        folder = tmp_path / f"PROF_00000{place}_20250109084753000_ABC"
        kernel_table(folder / "mindstudio_profiler_output", f"{US}.5")
        (folder / f"device_{device}").mkdir()
        (folder / f"device_{device}" / f"info.json.{device}").write_text("{}", encoding="utf-8")
    found = [(rank.rank, Path(rank.root).name[:11]) for rank in discover(tmp_path).ranks]
    assert found == [(0, "PROF_000001"), (1, "PROF_000000")]
