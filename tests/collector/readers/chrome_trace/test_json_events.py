"""Cutting trace JSON: any chunk size, any damage, bounded memory."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.chrome_trace.events import decode_events
from npuscope.collector.readers.chrome_trace.json_events import read_events
from npuscope.errors import TraceFormatError

Events = list[dict[str, Any]]

# Text that looks like the end of an event, of the array, or like nothing JSON at all.
nasty_text = st.lists(
    st.sampled_from(['},{"', "}]", '"', "\\", "}, {", "[", "µ", "\r\n", "ph", "a", '{"ph":"X"}']),
    max_size=5,
).map("".join)
nested = st.recursive(
    st.one_of(st.integers(), st.booleans(), nasty_text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(nasty_text, inner, max_size=3)
    ),
    max_leaves=6,
)
event = st.fixed_dictionaries({"ph": st.sampled_from("XMC"), "name": nasty_text, "args": nested})
events_of = st.lists(event, max_size=8)
layout = st.sampled_from(
    [{"separators": (",", ":")}, {"separators": (", ", ": ")}, {"indent": 1}, {"indent": "\t"}]
)


def decode(text: bytes) -> Events:
    try:
        events: Events = json.loads(text)
    except RecursionError as error:
        raise ValueError from error
    return events


def read(
    text: bytes, *, chunk_bytes: int = 64, join_bytes: int = 1 << 14
) -> tuple[Events, ReadLog]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        path.write_bytes(text)
        return read_file(path, chunk_bytes=chunk_bytes, join_bytes=join_bytes)


def read_file(path: Path, *, chunk_bytes: int, join_bytes: int) -> tuple[Events, ReadLog]:
    log = ReadLog()
    told: list[int] = []
    pieces = read_events(
        str(path), decode, log, told.append, chunk_bytes=chunk_bytes, join_bytes=join_bytes
    )
    events: Events = [event for piece in pieces for event in piece]
    assert sum(told) == path.stat().st_size
    return events, log


@given(events_of, layout, st.integers(1, 200), st.booleans())
def test_any_chunk_size_reads_every_event(
    events: Events, layout: dict[str, Any], chunk_bytes: int, as_object: bool
) -> None:
    others = [{"id": 0}, {"id": 1}]
    whole: Any = {"devices": others, "traceEvents": events, "more": others} if as_object else events
    found, log = read(json.dumps(whole, **layout).encode(), chunk_bytes=chunk_bytes)
    assert found == events
    assert (log.warnings, log.bytes_lost) == ([], 0)


plain_event = st.fixed_dictionaries(
    {"ph": st.just("X"), "name": st.text("ab{}[], ", max_size=6), "ts": st.integers(0, 10**6)}
)


@given(st.lists(plain_event, min_size=1, max_size=6), st.data(), st.integers(8, 100))
def test_a_cut_file_reads_to_its_last_whole_event(
    events: Events, data: st.DataObject, chunk_bytes: int
) -> None:
    parts = [json.dumps(event) for event in events]
    text = "[" + ", ".join(parts)
    kept_bytes = data.draw(st.integers(1, len(text)))
    found, log = read(text[:kept_bytes].encode(), chunk_bytes=chunk_bytes)
    begin, whole, rest = 1, 0, text[1:kept_bytes]
    while whole < len(parts) and begin + len(parts[whole]) <= kept_bytes:
        begin += len(parts[whole])
        rest, begin, whole = text[begin:kept_bytes], begin + 2, whole + 1
    assert found == events[:whole]
    cut = rest.lstrip(", ").rstrip(" ")
    # What stands between events is not counted, nor where a name looks as if it stood there.
    between = sum(len(match[0]) - 2 for match in re.finditer(r"\}[ ,]*,[ ,]*\{", cut))
    assert len(cut) - between <= log.bytes_lost <= len(cut)
    assert any("closing ] is missing" in warning for warning in log.warnings)


# A name that looks like the end of an event, right behind junk, is taken for one: it is lost too.
calm_event = plain_event.filter(lambda event: not {"{", "}"} & set(str(event["name"])))


@given(
    st.lists(calm_event, min_size=2, max_size=30),
    st.data(),
    st.binary(min_size=1, max_size=40).filter(lambda junk: b'{"' not in junk),
    st.integers(16, 400),
)
def test_junk_between_events_costs_only_itself(
    events: Events, data: st.DataObject, junk: bytes, chunk_bytes: int
) -> None:
    parts = [json.dumps(event).encode() for event in events]
    place = data.draw(st.integers(1, len(parts) - 1))
    # Junk that is blank, or that opens a string or a bracket, is told apart by what follows it.
    junk = b"#" + junk.translate(None, b'"[]{},\\')
    text = b"[" + b", ".join(parts[:place]) + b", " + junk + b", ".join(parts[place:]) + b"]"
    found, log = read(text, chunk_bytes=chunk_bytes, join_bytes=256)
    assert sorted(map(repr, found)) == sorted(map(repr, events))
    assert 0 < log.bytes_lost <= len(junk) + 2 + len(parts[place - 1])


@given(st.binary(max_size=400), st.integers(1, 64))
def test_no_input_breaks_it(text: bytes, chunk_bytes: int) -> None:
    for head in (b"", b"[", b'{"traceEvents": [', b'[{"ph": "X"}, '):
        try:
            found, log = read(head + text, chunk_bytes=chunk_bytes, join_bytes=128)
        except TraceFormatError:
            continue
        assert log.bytes_lost <= len(head + text)
        assert len(found) <= len(head + text)


def test_damaged_events_are_left_out_and_counted() -> None:
    good = [{"ph": "X", "name": f"op{i}", "args": {"l": [{"a": 1}, {"b": i}]}} for i in range(200)]
    parts = [json.dumps(event).encode() for event in good]
    parts[20] = b'{"ph": "X", "name": "no end'
    parts[90] = b'{"ph": "X", "args": {"open": [}'
    parts[150] = parts[150][:-2]
    found, log = read(b"[" + b", ".join(parts) + b"]", chunk_bytes=512, join_bytes=2048)
    names = {event["name"] for event in found if "name" in event}
    broken = {"op20", "op90", "op150"}
    assert {event["name"] for event in good} - names >= broken
    assert len(names) >= 194  # a string without end swallows its neighbour
    assert log.bytes_lost > 0
    assert any("not complete events" in warning for warning in log.warnings)


@pytest.mark.parametrize("junk", [bytes(20), b'"', b"}", b"{"])
def test_a_torn_place_is_taken_apart_at_once(tmp_path: Path, junk: bytes) -> None:
    """Not when 16 MB wait: what is read of a file then could be no pass over its bytes."""
    parts = [json.dumps({"ph": "X", "name": f"op{i}", "ts": i}).encode() for i in range(9000)]
    for torn in (1000, 4000):
        parts[torn] = parts[torn][:20] + junk + parts[torn][20:]
    path, log = tmp_path / "trace_view.json", ReadLog()
    path.write_bytes(b"[" + b", ".join(parts) + b"]")
    sizes: list[int] = []

    def decode_sized(text: bytes) -> list[Any]:
        sizes.append(len(text))
        return decode_events(text, log)

    pieces = read_events(str(path), decode_sized, log, lambda _: None, chunk_bytes=4096)
    names = {event.name for piece in pieces for event in piece}
    assert {f"op{i}" for i in range(9000)} - names <= {"op1000", "op1001", "op4000", "op4001"}
    assert max(sizes) < 4 * 4096


def test_closing_bracket_missing_loses_nothing() -> None:
    found, log = read(b'[{"ph": "X"}, {"ph": "M"},\n')
    assert [event["ph"] for event in found] == ["X", "M"]
    assert log.bytes_lost == 0
    assert "closing ] is missing" in log.warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf[{"ph": "X"}]',
        b' \r\n[{"ph": "X"}] \r\n',
        b'[{"ph": "X"}]' + bytes(4096),
        b'{"traceEvents":[{"ph": "X"}]}',
        b'{"displayTimeUnit": "ms", "traceEvents": [{"ph": "X"}], "otherData": {"a": [{"b": 1}]}}',
    ],
    ids=["bom", "blanks", "nul padding", "object", "object with other keys"],
)
def test_wrappings(text: bytes) -> None:
    found, log = read(text)
    assert found == [{"ph": "X"}]
    assert (log.warnings, log.bytes_lost) == ([], 0)


def test_arrays_one_after_the_other() -> None:
    found, _ = read(b'[{"ph": "X"}, {"ph": "M"}][{"ph": "C"}, {"ph": "s"}]')
    assert sorted(event["ph"] for event in found) == ["C", "M", "X", "s"]


@pytest.mark.parametrize("text", [b"", b"[]", b" \n", b"[ ]", b'{"traceEvents": []}'])
def test_nothing_in_it(text: bytes) -> None:
    assert read(text)[0] == []


@pytest.mark.parametrize("text", [b"Step,Computing\n1,2\n", b'{"config": {"a": 1}}', b"\x89PNG"])
def test_no_trace_at_all(text: bytes) -> None:
    with pytest.raises(TraceFormatError, match="not an array of trace events"):
        read(text)


def test_packed_and_cut_packed(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"op{i * 7919 % 1000}"} for i in range(5000)]
    packed = gzip.compress(json.dumps(events).encode())
    path = tmp_path / "trace_view.json.gz"
    path.write_bytes(packed)
    assert read_file(path, chunk_bytes=4096, join_bytes=1 << 16)[0] == events
    path.write_bytes(packed[: len(packed) // 2])
    found, log = read_file(path, chunk_bytes=4096, join_bytes=1 << 16)
    assert found == events[: len(found)]
    assert 0 < len(found) < len(events)
    assert any("ends early" in warning for warning in log.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "junk", [b"x", b'{"aaaaaaaaaaaa":},', b'"[{', b"\0", b'{"a":1},', b'{"ph":[']
)
def test_memory_stays_bounded_on_junk(tmp_path: Path, junk: bytes) -> None:
    size_bytes = 1 << 20
    path = tmp_path / "trace_view.json"
    body = junk * (size_bytes // len(junk))
    path.write_bytes(b'[{"ph": "X"}, ' + body + b', {"ph": "M"}, {"ph": "C"}]')
    tracemalloc.start()
    try:
        log = ReadLog()
        phases = {
            event.ph
            for piece in read_events(
                str(path),
                lambda text: decode_events(text, log),
                log,
                lambda _: None,
                chunk_bytes=1 << 13,
                join_bytes=1 << 15,
            )
            for event in piece
        }
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < size_bytes // 2
    assert {"X", "C"} <= phases
