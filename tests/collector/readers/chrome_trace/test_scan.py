"""The compiled pass against the present reader: equal tables, or it hands over."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.chrome_trace import staging
from npuscope.collector.readers.chrome_trace.columns import Form, no_values, tables
from npuscope.collector.readers.chrome_trace.events import decode_events
from npuscope.collector.readers.chrome_trace.staging import stage
from npuscope.collector.readers.kineto.kineto_columns import KinetoForm
from npuscope.collector.readers.trace_view.trace_columns import TraceForm
from tests.collector.readers.kineto import written_kineto
from tests.conftest import REAL_DATA, REPOSITORY
from tests.prove.fuzz import byte_mutations, json_mutations

# It is compiled where nobody did so before, which takes some ten seconds.
pytestmark = pytest.mark.slow

SAMPLE = REPOSITORY / "sample_traces" / "moe_8_ranks"
FORMS = (TraceForm(), TraceForm(stacks=True, counters=False), KinetoForm(base_ns=10**18))
Rows = dict[str, list[str]]


def scan_of(form: Form) -> Any:
    scan = staging.scan_of(form, 1 << 40)
    assert scan is not None
    return scan


def in_order(found: dict[str, list[pa.Table]], form: Form) -> Rows:
    """Rows of each kind as text, sorted: what is one number cannot pass for another one."""
    return {
        kind: sorted(map(repr, (row for part in parts for row in part.cast(schema).to_pylist())))
        for kind, schema in form.schemas.items()
        if (parts := [part for part in found.get(kind, []) if part.num_rows])
    }


def scan_text(form: Form, scan: Any, text: bytes, log: ReadLog) -> Rows | None:
    if not scan.add(text):
        return None
    found: dict[str, list[pa.Table]] = {}
    for kind, table in scan.tables():
        for name, rows in form.rows(kind, table, log):
            found.setdefault(name, []).append(rows)
    return in_order(found, form)


def read(form: Form, text: bytes, log: ReadLog) -> Rows | None:
    """As the present reader does; None for what is no whole array."""
    try:
        events = decode_events(text, log)
    except ValueError:
        return None
    values = no_values(form)
    form.gather(events, values, log)
    found: dict[str, list[pa.Table]] = {}
    for kind, table in tables(form, values, log):
        found.setdefault(kind, []).append(table)
    return in_order(found, form)


def is_same(form: Form, scan: Any, text: bytes) -> bool:
    """Whether the pass took a text; it must give the same rows, and nothing to tell."""
    log, told = ReadLog(), ReadLog()
    found = scan_text(form, scan, text, log)
    if found is None:
        return False
    assert found == read(form, text, told), text
    assert log == told == ReadLog(), text
    return True


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())
    return found


def seeds(form: Form) -> list[dict[str, Any]]:
    """One event of every shape: by phase, category and keys of args."""
    if isinstance(form, KinetoForm):
        return list(written_kineto.EVENTS)
    shapes: dict[object, dict[str, Any]] = {}
    for path in sorted(SAMPLE.glob("*/*/trace_view.json"))[:1]:
        for event in events_of(path):
            shape = event.get("ph"), event.get("cat"), *sorted(event.get("args", {}))
            shapes.setdefault(shape, event)
            shapes[shape, "last"] = event
    return list(shapes.values())


@pytest.mark.parametrize("form", FORMS, ids=["trace", "stacks", "kineto"])
def test_damaged_and_odd_events(form: Form) -> None:
    known = seeds(form)
    chance, scan, taken = random.Random("scan"), scan_of(form), 0
    assert all(
        is_same(form, scan, json.dumps([event], ensure_ascii=chance.random() < 0.5).encode())
        for event in known
        if not {type(event.get(key)) for key in ("pid", "tid")} - {int, type(None)}
    )
    for _ in range(COUNT):
        few = chance.sample(known, min(len(known), chance.randint(1, 3)))
        text = json.dumps(few).encode()
        for _ in range(chance.randint(1, 2)):
            if chance.random() < 0.25:
                text, _ = byte_mutations.mutate(chance, text, text)
            else:
                text, _ = json_mutations.mutate(chance, text)
        taken += is_same(form, scan, text[: 1 << 16])
    assert taken > COUNT // 10


COUNT = 1500


def event(**more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": "5.001",
            "dur": 1.5, "args": {}} | more  # fmt: skip


TAKEN = [
    event(ts=number) for number in ("0.0005", "0.0015", "1764246877002064.863", "12", "7.1", "0")
] + [
    event(dur=number) for number in (0, 3, 0.0005, 0.0015, 0.00049999, 123456.7895, 1e-3)
] + [
    event(name="\u5378\u8f7d \"\\/\b\f\n\r\t"),
    event(cat=None, args=None) | {"args": {"Task Type": "x", "connection_id": 9, "Task Id": -3}},
    event(cat="other", args={"level": "acl", "connection_id": "12", "odd": [{"a": [1, []]}, {}]}),
    event(ph="C", cat=None, args={"a": 1, "b": -0.25, "c": 3864.4184615384615, "acc_id": 7}),
    event(ph="C", cat=None, args={}),
    event(ph="s", cat="async_npu", id=1764246877002088491),
    event(ph="f", cat="MsTx", id="x"),
    event(name="ProfilerStep#12"),
    event(name="Computing", cat=None) | {"args": {}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_what_is_documented_is_taken(number: int) -> None:
    form = FORMS[0]
    text = json.dumps([TAKEN[number], event()], ensure_ascii=False).encode()
    assert is_same(form, scan_of(form), text)


HANDED_OVER = [
    '"ph": "X", "ph": "X"', '"ts": "1e3"', '"ts": "+1"', '"ts": ""', '"ts": -1', '"dur": "1"',
    '"dur": -1', '"dur": null', '"pid": "stream 7"', '"name": null', '"n\\u0061me": "b"',
    '"cat": "cpu\\u005fop"', '"args": null', '"args": {"Sequence number": "1"}',
    '"args": {"Sequence number": 1, "Sequence number": 2}', '"args": {"Input Dims": 5}',
    '"name": "\\ud800"', '"name": "\x01"', '"name": "\\q"', '"tid": 01', '"dur": 1.', '"x": nan',
    '"ts": 99999999999999999', '"tid": 1.0', '"dur": 1.00050000000000001', '"x": [1,]',
]  # fmt: skip


@pytest.mark.parametrize("field", HANDED_OVER)
def test_what_is_unusual_is_handed_over(field: str) -> None:
    form = FORMS[0]
    fields = {key: json.dumps(value) for key, value in event().items()}
    fields.pop(field.split('"')[1], None)
    text = ", ".join([field, *(f'"{key}": {value}' for key, value in fields.items())])
    scan = scan_of(form)
    assert not is_same(form, scan, f"[{{{text}}}]".encode())
    assert is_same(form, scan, json.dumps([event()]).encode())  # and nothing of it stayed behind


def test_what_is_no_utf8_is_handed_over() -> None:
    form = FORMS[0]
    text = json.dumps([event(odd="x")]).encode().replace(b'"x"', b'"\xff"')
    assert not is_same(form, scan_of(form), text)


ALIKE = (
    "p", "phase", "na", "names", "pid ", "ti", "t", "dur2", "cats", "arg", "Sequence numbe",
    "Sequence number2", "connection_i", "level ", "Task Typ", "Task Types", "x" * 31, "x" * 32,
)  # fmt: skip


def test_keys_in_any_order_beside_keys_alike() -> None:
    """The pass looks first for the key that came the last time after the one before."""
    form, chance, taken = FORMS[1], random.Random("keys"), 0
    known, scan = seeds(form), scan_of(form)

    def shuffled(members: dict[str, Any]) -> dict[str, Any]:
        more = dict.fromkeys(chance.sample(ALIKE, chance.randint(0, 2)), 1)
        every = [*members.items(), *(more.items() if members.get("ph") != "C" else ())]
        chance.shuffle(every)
        return dict(every)

    for _ in range(COUNT // 5):
        few = [shuffled(one) for one in chance.sample(known, 4)]
        for one in few:
            if one["ph"] != "C" and one.get("args"):
                one["args"] = shuffled(one["args"])
        taken += is_same(form, scan, json.dumps(few).encode())
    assert taken > COUNT // 10


def stage_rows(path: Path, folder: Path, form: Form, monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """All rows of a file, by the present reader and by the pass."""
    both = []
    for name, least in (("read", 1 << 60), ("scanned", 0)):
        monkeypatch.setattr(staging, "SCAN_BYTES", least)
        (place,) = stage([str(path)], folder / name, form, ReadLog(), lambda n: None)
        found = {kind: [parquet.read_table(place / f"{kind}.parquet")] for kind in form.schemas}
        both.append(in_order(found, form))
    return both


@pytest.mark.parametrize("stacks", [False, True])
def test_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacks: bool) -> None:
    paths = sorted(SAMPLE.glob("*/*/trace_view.json"))[:1]
    if REAL_DATA.exists():
        paths += sorted(REAL_DATA.glob("alexnet*text*/rank0*/*/trace_view.json"))
        paths += sorted(REAL_DATA.glob("msprof*/*/*/*/msprof_0_2_[12].json"))
    for number, path in enumerate(paths):
        read, scanned = stage_rows(
            path, tmp_path / str(number), TraceForm(stacks=stacks), monkeypatch
        )
        assert read == scanned
        assert sum(map(len, read.values())) > 100


def test_a_file_that_is_scanned_and_read_by_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = events_of(sorted(SAMPLE.glob("*/*/trace_view.json"))[0])
    for place in range(0, len(known), 3000):
        known[place] = {**known[place], "pid": "process 7"}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(known * 3))
    read, scanned = stage_rows(path, tmp_path / "staged", TraceForm(), monkeypatch)
    assert read == scanned


@pytest.mark.parametrize("ranges", [2, 4])
def test_ranges_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int) -> None:
    """Two processes take one each, or one after the other."""
    known = events_of(sorted(SAMPLE.glob("*/*/trace_view.json"))[0])
    path = tmp_path / "t.json"
    path.write_text(json.dumps(known * (9_000_000 * ranges // 2 // len(json.dumps(known)) + 1)))
    (whole, _) = stage_rows(path, tmp_path / "whole", TraceForm(), monkeypatch)
    monkeypatch.setattr(staging, "APART_BYTES", 0)
    monkeypatch.setattr(staging, "_RANGE_BYTES", path.stat().st_size // ranges)
    folders = stage(
        [str(path)], tmp_path / "parts", TraceForm(), ReadLog(), lambda n: None, processes=2
    )
    assert len(folders) == ranges
    form = TraceForm()
    found = {
        kind: [parquet.read_table(folder / f"{kind}.parquet") for folder in folders]
        for kind in form.schemas
    }
    assert in_order(found, form) == whole


def test_without_numba_files_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "npuscope.collector.readers.chrome_trace.scan_rows", None)
    (path, *_) = sorted(SAMPLE.glob("*/*/trace_view.json"))
    read, scanned = stage_rows(path, tmp_path, TraceForm(), monkeypatch)
    assert read == scanned
    assert pc.sum(pa.array(map(len, read.values()))).as_py() > 100
