"""Traces of GPUs that are cut, torn, empty or none at all: what is whole is read, the rest told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.errors import TraceFormatError, TraceNotFound
from tests.collector.readers.kineto.written_kineto import (
    EVENTS,
    NCCL,
    read_path,
    rows,
    task,
    text,
    write,
)

MISSING = (
    "the closing ] is missing (the analysis was interrupted): read up to the last complete event"
)
PARTLY = "figures of this rank cover only the part that was read"


def names(path: Path) -> tuple[list[str], dict[str, str], int]:
    con, log = read_path(path)
    found = rows(con, "select name from kernels union all select name from comm_ops")
    con.close()
    return sorted(name for (name,) in found), log.damage, log.bytes_lost


def many(name: str = "k{}") -> list[dict[str, object]]:
    return [task(name.format(n), n, 1000.0 + n, 0.5) for n in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_trace_is_read_to_its_last_whole_event(tmp_path: Path, packed: bool) -> None:
    hostile = "k{}, }}}}, {{{{"
    content = text(many(hostile)).encode()
    start = content.index(b'"traceEvents"')
    for cut in range(start + 16, len(content) - 24, 433):
        path = tmp_path / f"t{cut}.pt.trace.json{'.gz' if packed else ''}"
        kept = content[:cut]
        # Packed without squeezing, so that as much of it can be unpacked.
        stored = gzip.compress(content, compresslevel=0)
        path.write_bytes(stored[: 15 + cut] if packed else kept)
        found, damaged, _ = names(path)
        begun = kept.count(b'"device"')
        assert begun - 1 <= len(found) <= begun
        assert found == sorted(hostile.format(n) for n in range(len(found)))
        assert MISSING in damaged[str(path)]
        assert ("packed data ends early" in damaged[str(path)]) == packed
        assert damaged[str(path)].endswith(PARTLY)


def test_torn_events_in_the_middle_cost_only_themselves(tmp_path: Path) -> None:
    parts = [json.dumps(event) for event in many()]
    parts[7] = parts[7][:40] + "\0\0" + parts[7][60:]
    parts[20] = '{"ph": "X", "cat": "kernel", "name": "torn'
    found, damaged, lost = names(write(tmp_path / "t.json", ", ".join(parts)))

    assert found == sorted(f"k{n}" for n in range(40) if n not in (7, 20))
    assert 0 < lost < 200
    assert "not complete events and were left out" in damaged[str(tmp_path / "t.json")]


def test_odd_events_cost_only_themselves(tmp_path: Path) -> None:
    odd = [
        "17", '"text"', "null", "{}", '{"name": "no phase"}', '{"ph": 5, "cat": "kernel"}',
        '{"ph": "X", "cat": "kernel", "name": 12, "ts": 1.5, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "n", "ts": 1.5, "dur": "x"}',
        '{"ph": "X", "cat": "kernel", "name": "args", "ts": 2.5, "dur": 1, "args": [1]}',
        '{"ph": "X", "cat": "kernel", "name": "deep", "ts": 3.5, "dur": 1, "pid": 1e9, "tid": "a",'
        ' "args": {"stream": "x", "device": 2}}',
    ]  # fmt: skip
    con, log = read_path(write(tmp_path / "t.json", ", ".join([json.dumps(EVENTS[-8]), *odd])))

    found = rows(con, "select name, stream_id, device_id from kernels order by start_ns")
    assert found == [("12", None, None), ("args", None, None), ("deep", None, 2)]
    assert log.rows_lost == 7
    assert "trace: args of some events are not of the documented types and were left out" in (
        log.warnings
    )


def test_names_that_are_no_utf8_are_kept_as_far_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text([task("kern\x01el", 1, 5.0, 1.0)]).encode().replace(b"\\u0001", b"\xff"))
    found, _, _ = names(path)

    assert found == ["kern\ufffdel"]


@pytest.mark.parametrize(
    ("content", "where"),
    [(b"hello", "start"), (b'{"schemaVersion": 1}', "start"), (b"\x1f\x00\x08\x00", "start")],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, where: str) -> None:
    path = tmp_path / "x.pt.trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        read_path(path)
    assert (caught.value.path, caught.value.where) == (str(path), where)


def test_a_packed_file_without_its_suffix_that_is_cut_fails_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "x.pt.trace.json").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(TraceNotFound, match="packed data ends early"):
        ingest(folder, tmp_path / "store", run="r")


def test_one_bad_rank_spoils_no_other(tmp_path: Path) -> None:
    good = write(tmp_path / "in" / "rank0.pt.trace.json", head={"schemaVersion": 1})
    (tmp_path / "in" / "rank1.pt.trace.json").touch()
    (tmp_path / "in" / "rank2.pt.trace.json.gz").write_bytes(b"no gzip at all")
    cut = tmp_path / "in" / "rank3.pt.trace.json"
    cut.write_bytes(good.read_bytes()[:-800])
    result = ingest(tmp_path / "in", tmp_path / "store", run="r")

    assert sorted(outcome.rank for outcome in result.publications) == [0, 3]
    errors = {outcome.rank: str(outcome.error) for outcome in result.failures}
    assert errors.keys() == {1, 2}
    assert "empty file" in errors[1]
    assert [(rank, Path(path).name) for rank, path, _ in result.unread_files] == [(3, cut.name)]
    con = store.open(tmp_path / "store")
    ranks = con.execute("select rank, count(*) from comm_ops group by rank order by rank")
    assert ranks.fetchall() == [(0, 1), (3, 1)]
    assert con.execute("select distinct name from comm_ops").fetchall() == [(NCCL,)]
    con.close()


def test_nothing_but_damage_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.pt.trace.json").touch()
    with pytest.raises(TraceNotFound, match="empty file"):
        ingest(tmp_path, tmp_path / "store")
