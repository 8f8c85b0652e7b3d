"""The thread that writes beside training: complete parts only, and nobody waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.model import SourceFile
from npuscope.collector.readers.expert_load.hook import read_hook
from npuscope.collector.training.line_writer import LineWriter

FULL = Path("/dev/full")


def line(step: object) -> bytes:
    return json.dumps({"iter": step, "layer": 0, "tpe": [1, 2], "n_micro": 1}).encode() + b"\n"


def writer(
    folder: Path,
    *,
    lines: Callable[[Any], bytes] = line,
    depth: int = 1000,
    rotate_bytes: int = 1 << 20,
    rotate_seconds: float = 3600.0,
) -> tuple[LineWriter, list[Any]]:
    back: list[Any] = []
    made = LineWriter(
        folder, "rank0", lines, back.append, depth=depth, rotate_bytes=rotate_bytes,
        rotate_seconds=rotate_seconds,
    )  # fmt: skip
    return made, back


def steps(folder: Path) -> list[int]:
    files = [SourceFile(str(p), p.stat().st_size, 0) for p in folder.glob("*.jsonl")]
    return sorted(read_hook(files).load["step"].unique().to_list())


def to_a_full_disk(step: object) -> bytes:
    """A line; the file it goes to takes nothing any more."""
    (number,) = [
        int(name) for name in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{name}").endswith("rank0.jsonl.part")
    ]  # fmt: skip
    with FULL.open("wb") as full:
        os.dup2(full.fileno(), number)
    return line(step)


def test_a_link_in_the_place_of_a_part_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("no line")
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "rank0.jsonl.part").symlink_to(theirs)
    made, back = writer(tmp_path / "loads")
    made.offer(0)
    assert not made.close(30) and back == [0]
    assert theirs.read_text() == "no line" and len(caplog.records) == 1


def test_parts_are_named_when_they_are_complete(tmp_path: Path) -> None:
    made, back = writer(tmp_path, rotate_bytes=5 * len(line(1)))
    for step in range(23):
        assert made.offer(step)
    assert made.close(30) and made.dropped == 0 and made.written == 23
    assert back == list(range(23))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank0.1.jsonl", "rank0.2.jsonl", "rank0.3.jsonl", "rank0.4.jsonl", "rank0.jsonl",
    ]  # fmt: skip
    assert steps(tmp_path) == list(range(23))


def test_a_part_is_named_after_a_while(tmp_path: Path) -> None:
    made, _ = writer(tmp_path, rotate_seconds=0.0)
    made.offer(1)
    made.offer(2)
    assert made.close(30)
    assert steps(tmp_path) == [1, 2] and len(list(tmp_path.iterdir())) == 2


def test_nothing_offered_nothing_written(tmp_path: Path) -> None:
    made, _ = writer(tmp_path / "new")
    assert made.close(30) and not (tmp_path / "new").exists()


def test_a_run_that_starts_again_goes_on_with_the_next_part(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(line(0))
    (tmp_path / "rank0.7.jsonl").write_bytes(line(1))
    (tmp_path / "rank1.9.jsonl").write_bytes(line(1))
    # What a killed process left: two lines, and one that was being written.
    (tmp_path / "rank0.jsonl.part").write_bytes(line(2) + line(3) + line(4)[:-5])
    made, _ = writer(tmp_path)
    made.offer(5)
    assert made.close(30)
    (tmp_path / "rank1.9.jsonl").unlink()
    assert (tmp_path / "rank0.8.jsonl").read_bytes() == line(2) + line(3)
    assert (tmp_path / "rank0.9.jsonl").read_bytes() == line(5)
    assert steps(tmp_path) == [0, 1, 2, 3, 5]


def test_a_part_without_a_whole_line_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl.part").write_bytes(b'{"iter"' * 20_000)
    made, _ = writer(tmp_path)
    made.offer(5)
    assert made.close(30)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.jsonl"]
    assert steps(tmp_path) == [5]


def test_a_slow_writer_drops_and_never_blocks(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(step: object) -> bytes:
        gate.wait(30)
        return line(step)

    made, back = writer(tmp_path, lines=slow, depth=2)
    before = time.monotonic()
    taken = [step for step in range(50) if made.offer(step)]
    assert time.monotonic() - before < 5
    assert not made.close(0.0)
    gate.set()
    assert made.close(30)
    assert made.dropped == 50 - len(taken) >= 47 and back == taken
    assert steps(tmp_path) == taken


def test_a_full_disk_ends_it_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, back = writer(tmp_path, lines=to_a_full_disk)
    made.offer(0)
    made._thread.join(30)
    assert made.failure is not None and not made.offer(1)
    assert not made.close(30)
    assert back == [0] and made.written == 0 and made.dropped == 2
    assert len(caplog.records) == 1


def test_half_a_line_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, room = os.write, [len(line(0)) + 10]

    def nearly_full(opened: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        count = min(len(data), room[0])
        room[0] -= count
        return real(opened, data[:count])

    monkeypatch.setattr(os, "write", nearly_full)
    made, back = writer(tmp_path)
    for step in range(3):
        made.offer(step)
    assert not made.close(30)
    assert steps(tmp_path) == [0] and (made.written, made.dropped) == (1, 2)
    assert (tmp_path / "rank0.jsonl").read_bytes() == line(0) and sorted(back) == [0, 1, 2]
    (record,) = caplog.records
    assert "No space left" in record.message


def test_an_unwritable_folder_ends_it_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    made, back = writer(tmp_path / "file")
    is_taken = made.offer(0)  # unless it has failed already
    assert not made.close(30) and made.failure is not None
    assert back == [0] * is_taken and made.dropped == 1 and len(caplog.records) == 1


def test_two_recorders_of_one_rank_do_not_mix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = writer(tmp_path)
    first.offer(0)
    while first.written == 0:
        time.sleep(0.001)
    second, _ = writer(tmp_path)
    second.offer(1)
    assert not second.close(30)
    assert second.failure is not None and "another recorder" in second.failure
    # Another process is told apart by its lock.
    child = subprocess.run(
        [sys.executable, "-c", "import fcntl, sys\nf = open(sys.argv[1], 'a')\n"
         "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", str(first.part)],
        capture_output=True, timeout=30,
    )  # fmt: skip
    assert child.returncode != 0
    assert first.close(30) and steps(tmp_path) == [0]
