"""A timeline cut anywhere, read in chunks of any size: every whole event, and the loss told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.chrome_trace.events import decode_events
from npuscope.collector.readers.chrome_trace.json_events import read_events

TEXTS = (
    'a}, {"b": 1}, {', "}, {", '"}, {"', '\\\\"}, {\\"', "]}, [{", "] , [", "é\u2028}", "\\u007d,{",
    '{"ph": "X", "name": "no event"}, {"ph": "X"}',
)  # fmt: skip
SEPARATORS = ((", ", ": "), (",", ":"), (" ,\r\n\t", " : "))


def event(number: int, rng: random.Random) -> dict[str, Any]:
    args: dict[str, Any] = {rng.choice(TEXTS): rng.choice(TEXTS) * rng.randint(0, 2)}
    if rng.random() < 0.3:
        args["nested"] = [{"a": 1}, {"b": [{"c": rng.choice(TEXTS)}, {"d": []}]}, {}]
    told = {"ph": "X", "name": f"{number} {rng.choice(TEXTS)}", "ts": f"{number}.5", "args": args}
    keys = list(told)
    rng.shuffle(keys)
    return {key: told[key] for key in keys}


def write(rng: random.Random) -> tuple[bytes, list[tuple[int, str]]]:
    """A file, and each event's last byte and name."""
    separators = rng.choice(SEPARATORS)
    text = rng.choice(["[", "\ufeff [", '{"schemaVersion": 1, "traceEvents": ['])
    ends: list[tuple[int, str]] = []
    for number in range(rng.randint(3, 25)):
        if number:
            text += separators[0]
        one = event(number, rng)
        text += json.dumps(one, separators=separators, ensure_ascii=rng.random() < 0.5)
        ends.append((len(text.encode()), one["name"]))
    text += "]" + ("}" if "traceEvents" in text[:60] else "") + rng.choice(["", "\n"])
    return text.encode(), ends


def read(path: Path, log: ReadLog, chunk_bytes: int) -> list[str | None]:
    pieces = read_events(
        str(path), lambda text: decode_events(text, log), log, lambda n: None,
        chunk_bytes=chunk_bytes,
    )  # fmt: skip
    return [one.name for piece in pieces for one in piece]


def cut_and_read(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    text, ends = write(rng)
    path = folder / "trace_view.json"
    cut = rng.randint(ends[0][0], len(text))
    path.write_bytes(text[:cut])
    log = ReadLog()
    found = read(path, log, rng.randint(1, 60))
    whole = [(end, name) for end, name in ends if end <= cut]
    assert found == [name for _, name in whole], seed
    rest = text[whole[-1][0] : cut].lstrip(b" \r\n\t,")
    assert log.rows_lost == 0
    if not rest:
        assert log.bytes_lost == 0, seed
    elif rest.startswith(b"]"):
        assert (log.bytes_lost, log.warnings) == (0, []), seed
    else:
        # Separators between the parts of a broken event are not counted.
        separators = sum(rest.count(mark) for mark in (b",", b" ", b"\r", b"\n", b"\t"))
        assert len(rest) - separators <= log.bytes_lost <= len(rest), seed
        assert any("closing ]" in warning for warning in log.warnings), seed


def test_cut_files(tmp_path: Path) -> None:
    for seed in range(200):
        cut_and_read(tmp_path, seed)


@pytest.mark.slow
def test_thousands_of_cut_files(tmp_path: Path) -> None:
    for seed in range(1000, 6000):
        cut_and_read(tmp_path, seed)
