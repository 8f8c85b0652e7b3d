"""One file read in several ranges gives what it gives in one go, or says that it cannot."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.chrome_trace import json_events, staging
from npuscope.collector.readers.chrome_trace.events import decode_events
from npuscope.collector.readers.chrome_trace.json_events import (
    TornRead,
    ranges,
    read_events,
    read_range,
)
from tests.collector.readers.trace_view.written_traces import (
    OS_PID,
    everything,
    read_paths,
    write,
    x,
)

HOSTILE_TEXTS = (
    'a}, {"b": 1}, {', "}, {", '"}, {"', '\\\\"}, {\\"', "]}, [{", "\u2028}, {'ph': 'X'", "{" * 9,
)  # fmt: skip


def event(number: int, rng: random.Random) -> dict[str, Any]:
    args: dict[str, Any] = {"text": rng.choice(HOSTILE_TEXTS) * rng.randint(0, 3)}
    if number % 7 == 0:
        args["list"] = [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]
    return {"ph": "X", "name": f"{number}", "pid": 1, "tid": 1, "ts": f"{number}.000", "dur": 1.0,
            "args": args}  # fmt: skip


def decode(text: bytes) -> list[str | None]:
    return [one.name for one in decode_events(text, ReadLog())]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "_WINDOW_BYTES", 2048)
    monkeypatch.setattr(json_events, "_EDGE_BYTES", 512)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("seed", range(12))
def test_ranges_hold_every_event_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "trace_view.json"
    names = [str(number) for number in range(600)]
    separators = rng.choice([(", ", ": "), (",", ":"), (" ,\r\n ", " : ")])
    text = json.dumps([event(n, rng) for n in range(600)], separators=separators)
    path.write_text(rng.choice(["", "\ufeff", " \n"]) + text + rng.choice(["", "\n", "\0\0"]))
    for count in (2, 3, 7):
        parts = ranges(str(path), count, decode)
        assert len(parts) == count
        assert [a for _, a in parts[:-1]] == [b for b, _ in parts[1:]]
        told: list[int] = []
        found = [
            name
            for part in parts
            for piece in read_range(
                str(path), *part, decode, told.append, chunk_bytes=rng.randint(20, 3000)
            )
            for name in piece
        ]
        assert found == names
        assert sum(told) == parts[-1][1] - parts[0][0]


@pytest.mark.usefixtures("small_windows")
def test_a_cut_inside_an_event_is_noticed(tmp_path: Path) -> None:
    """Events nested in an event look like events behind the cut, but not before it."""
    path = tmp_path / "trace_view.json"
    nested = [event(n, random.Random(n)) for n in range(400)]
    path.write_text(json.dumps([{"ph": "X", "name": "outer", "args": {"list": nested}}]))
    parts = ranges(str(path), 2, decode)
    assert parts
    with pytest.raises(TornRead):
        for part in parts:
            list(read_range(str(path), *part, decode, lambda n: None))


@pytest.mark.usefixtures("small_windows")
def test_damaged_files_are_not_read_in_ranges(tmp_path: Path) -> None:
    rng = random.Random(5)
    whole = json.dumps([event(n, rng) for n in range(600)]).encode()
    path = tmp_path / "trace_view.json"
    for damage in range(60):
        place = rng.randrange(len(whole))
        broken = whole[:place] if damage % 2 else whole[:place] + b"\x00{" + whole[place:]
        path.write_bytes(broken)
        log = ReadLog()
        in_one_go = [
            one.name
            for piece in read_events(
                str(path), lambda text: decode_events(text, ReadLog()), log, lambda n: None
            )
            for one in piece
        ]
        parts = ranges(str(path), 3, decode)
        try:
            found = [
                name
                for part in parts
                for piece in read_range(str(path), *part, decode, lambda n: None)
                for name in piece
            ]
        except TornRead:
            continue
        assert not parts or (found == in_one_go and not log.bytes_lost)


def test_what_cannot_be_split(tmp_path: Path) -> None:
    small = write(tmp_path / "small.json", [event(1, random.Random(1))])
    assert ranges(str(small), 2, decode) == []
    wrapped = tmp_path / "wrapped.json"
    events = [{"ph": "M", "name": "x" * 100}] * 90_000
    body = msgspec.json.encode({"traceEvents": events, "more": {"x": 1}})
    wrapped.write_bytes(body)
    assert len(body) > 8 << 20
    assert ranges(str(wrapped), 2, decode) == []


@pytest.mark.usefixtures("small_windows")
def test_an_object_that_holds_the_array_is_cut_too(tmp_path: Path) -> None:
    """As Kineto writes it: with what the events are of before them, and a name behind them."""
    events = [event(n, random.Random(n)) for n in range(600)]
    head, tail = {"schemaVersion": 1, "deviceProperties": [{"id": 0}]}, {"traceName": "[0]"}
    path = tmp_path / "x.pt.trace.json"
    path.write_text(
        f'{json.dumps(head)[:-1]}, "traceEvents": [\n  {json.dumps(events)[1:-1]}\n  ],'
        f"{json.dumps(tail)[1:]}\n"
    )
    parts = ranges(str(path), 2, decode)
    found = [
        name
        for part in parts
        for piece in read_range(str(path), *part, decode, lambda n: None)
        for name in piece
    ]
    assert len(parts) == 2
    assert found == [one["name"] for one in events]


@pytest.mark.slow
def test_several_processes_stage_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Real processes; the last file is whole as far as its ranges tell, but torn in the middle."""
    monkeypatch.setattr(staging, "APART_BYTES", 1 << 20)
    events = [
        x(OS_PID, 7, f"aten::op{n % 50}", f"{1000 + n}.{n % 1000:03}", 0.5, cat="cpu_op",
          args={"Sequence number": n, "Input Dims": "4096,1024;" * (n % 9)})
        for n in range(60_000)
    ]  # fmt: skip
    path = write(tmp_path / "trace_view.json", events)
    assert path.stat().st_size > 8 << 20
    one, _ = read_paths([path], tmp_path)
    caplog.set_level("INFO", staging.__name__)
    several, _ = read_paths([path], tmp_path / "several", processes=2)
    assert "read in 2 ranges" in caplog.text
    assert everything(several) == everything(one)
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 3] + b"@" + text[len(text) // 3 :])
    one, log_of_one = read_paths([path], tmp_path / "torn")
    several, log = read_paths([path], tmp_path / "torn_too", processes=2)
    assert "reading it in one go" in caplog.text
    assert log.bytes_lost == log_of_one.bytes_lost > 0
    assert everything(several) == everything(one)


@pytest.mark.slow
def test_a_large_file_is_staged_by_a_process_that_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a process of its own stages is what this one does, which goes on where that one died."""
    path = write(
        tmp_path / "trace_view.json", [x(OS_PID, 7, f"a{n}", f"{n}.5", 1) for n in range(99)]
    )
    here, _ = read_paths([path], tmp_path)
    monkeypatch.setattr(staging, "APART_BYTES", 0)
    caplog.set_level("INFO", staging.__name__)
    apart, _ = read_paths([path], tmp_path / "apart")
    assert "read in 1 ranges" in caplog.text
    monkeypatch.setattr(staging, "_stage_part", os._exit)
    died, _ = read_paths([path], tmp_path / "died")
    assert "_LostReader" in caplog.text
    assert everything(died) == everything(apart) == everything(here)
