"""Traces of GPUs are found by name, or by their first bytes where the name only suggests one."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.collector.discover import kineto_files
from npuscope.collector.discover.search import discover
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.model import RankSource
from npuscope.collector.readers.kineto import head as kineto_head
from npuscope.collector.readers.kineto.gpu_comm import VARIABLE
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.errors import TraceNotFound
from tests.collector.discover.test_discover import write_rank
from tests.collector.readers.kineto.written_kineto import BASE_NS, EVENTS, HEAD, task, text, write

UNTOLD = {name: value for name, value in HEAD.items() if name != "distributedInfo"}


def head(rank: int | None, **more: object) -> dict[str, object]:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return {**UNTOLD, **info, **more}


def traces_in(path: Path) -> list[tuple[str, int]]:
    return [(Path(source.root).name, source.rank) for source in discover(path).ranks]


def only(path: Path) -> RankSource:
    (source,) = discover(path).ranks
    return source


def test_each_file_is_a_rank_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "a" / "n0_11.1795272051554499761.pt.trace.json", head=head(3))
    write(tmp_path / "a" / "n0_12.1795272051554499762.pt.trace.json.gz", head=head(1))
    write(tmp_path / "b" / "c" / "rank7.pt.trace.json", head=head(7))

    assert sorted(traces_in(tmp_path)) == [
        ("n0_11.1795272051554499761.pt.trace.json", 3),
        ("n0_12.1795272051554499762.pt.trace.json.gz", 1),
        ("rank7.pt.trace.json", 7),
    ]
    source = only(tmp_path / "b")
    assert (source.framework, list(source.files)) == ("kineto", ["kineto"])
    assert source.rank_origin == "distributedInfo in the trace's head"
    assert not source.warnings


def test_a_file_that_is_named_is_read_alone(tmp_path: Path) -> None:
    wanted = write(tmp_path / "n0_11.1795272051554499761.pt.trace.json", head=head(3))
    write(tmp_path / "n0_12.1795272051554499761.pt.trace.json", head=head(4))
    other = write(tmp_path / "monday.json", head=head(5))

    assert traces_in(wanted) == [(wanted.name, 3)]
    assert traces_in(other) == [(other.name, 5)]

    # Another program wrote the keys of the head behind the events.
    whole = json.loads(other.read_text())
    again = tmp_path / "tuesday.json"
    again.write_text(json.dumps({"traceEvents": whole.pop("traceEvents"), **whole}))
    (source,), (same,) = discover(again).ranks, discover(other).ranks
    assert (source.framework, source.rank, source.window_start_ns, source.window_end_ns) == (
        "kineto", 5, same.window_start_ns, same.window_end_ns,
    )  # fmt: skip
    ingest(again, tmp_path / "store", run="job")
    with store.open(tmp_path / "store") as con:
        starts = con.execute("select min(start_ns) from kernels").fetchone()
    assert starts == (BASE_NS + 1_030_000,)
    # Packed, or without the keys of the head: then the events tell what it is, and no more.
    packed = pack(tmp_path / "wednesday.json.gz", again.read_text())
    (found,) = discover(packed).ranks
    assert (found.framework, found.rank, found.window_start_ns) == (
        "kineto", 5, same.window_start_ns,
    )  # fmt: skip
    for content in ({"traceEvents": EVENTS, "metadata": {}}, EVENTS):
        again.write_text(json.dumps(content))
        (found,) = discover(again).ranks
        assert (found.framework, found.window_start_ns) == ("kineto", 990_000)
        assert found.warnings == ("no file records the rank: numbered 0",)
    # What the framework's process alone tells may be of an NPU.
    again.write_text(json.dumps([event for event in EVENTS if event.get("cat") == "cpu_op"]))
    assert [one.framework for one in discover(again).ranks] == ["pytorch"]
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "rank0.json.zst").touch()
    with pytest.raises(TraceNotFound, match="unpack it"):
        discover(tmp_path / "sent")


@pytest.mark.parametrize(
    "name", ["trace.json", "trace_0.json.gz", "my_rank_3.json", "Kineto-1.json"]
)
def test_a_name_that_suggests_a_trace_is_looked_into(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, head=head(2))
    assert traces_in(tmp_path) == [(name, 2)]


def test_other_files_are_no_traces_and_of_many_most_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browsers = [{**event, "cat": "v8"} for event in EVENTS]
    write(tmp_path / "trace_chrome.json", browsers, head={})
    (tmp_path / "trace_bad.json.gz").write_bytes(b"no gzip")
    (tmp_path / "rank_empty.json").touch()
    (tmp_path / "rank_0_config.json").write_text('{"schemaVersion": 1, "lr": 1e-3}')
    for name in ("config.json", "results.json"):
        (tmp_path / name).write_text('{"lr": 1e-3}')
    monkeypatch.setattr(kineto_files, "_LOOKED_INTO", 5)
    opened: list[str] = []
    really = kineto_files._says_kineto

    def says_kineto(path: Path) -> bool:
        opened.append(path.name)
        return really(path)

    monkeypatch.setattr(kineto_files, "_says_kineto", says_kineto)

    with pytest.raises(TraceNotFound, match="Kineto trace"):
        discover(tmp_path)
    assert sorted(opened) == [
        "rank_0_config.json", "rank_empty.json", "trace_bad.json.gz", "trace_chrome.json",
    ]  # fmt: skip


def test_ascend_profiles_stay_what_they_are(tmp_path: Path) -> None:
    """Beside them GPU runs are found; inside of them nothing is looked for."""
    npu = write_rank(tmp_path / "npu" / "h_1_2025_ascend_pt", 5)
    write(npu / "x.pt.trace.json", head=head(1))
    write(tmp_path / "gpu" / "x.pt.trace.json", head=head(2))

    assert sorted(traces_in(tmp_path)) == [("h_1_2025_ascend_pt", 5), ("x.pt.trace.json", 2)]


def test_a_packed_copy_beside_its_original_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pt.trace.json", head=head(2))
    (tmp_path / "x.pt.trace.json.gz").write_bytes(gzip.compress(path.read_bytes()))

    assert traces_in(tmp_path) == [("x.pt.trace.json", 2)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12.pt.trace.json", 12), ("job_rank-3_step5.pt.trace.json", 3),
        ("trace_4.json", 4), ("worker7.pt.trace.json", 7), ("trace_2.rank_9.json", 9),
    ],
)  # fmt: skip
def test_a_rank_by_the_files_name(tmp_path: Path, name: str, rank: int) -> None:
    write(tmp_path / name, head=head(None))
    source = only(tmp_path)

    assert (source.rank, source.rank_origin) == (rank, "number in the trace's name")
    assert source.warnings == (
        (f"the trace does not record its rank: rank {rank} is taken from its name"),
    )


def shift(by_us: float) -> list[dict[str, object]]:
    return [{**event, "ts": event["ts"] + by_us} if "ts" in event else event for event in EVENTS]


@pytest.mark.slow
def test_recordings_of_one_worker_are_one_rank(tmp_path: Path) -> None:
    """Two workers that do not tell their rank, each recorded twice."""
    for worker in (11, 12):
        for number, by_us in enumerate((0.0, 5e6)):
            name = f"n0_{worker}.179527205155449976{number}.pt.trace.json"
            write(tmp_path / name, shift(by_us), head=head(None))

    assert sorted(traces_in(tmp_path)) == [
        ("n0_11.1795272051554499760.pt.trace.json", 0),
        ("n0_11.1795272051554499761.pt.trace.json", 0),
        ("n0_12.1795272051554499760.pt.trace.json", 1),
        ("n0_12.1795272051554499761.pt.trace.json", 1),
    ]
    result = ingest(tmp_path, tmp_path / "store", run="r")
    assert result.is_complete
    captures = {(one.capture, one.rank) for one in manifests(tmp_path / "store", run="r")}
    assert len(captures) == 4
    assert len({capture for capture, _ in captures}) == 2


def test_the_window_is_the_profilers_own_span(tmp_path: Path) -> None:
    source = only(write(tmp_path / "x.pt.trace.json"))
    assert source.window_start_ns == BASE_NS + 990_000
    assert source.window_end_ns == BASE_NS + 1_290_000


def test_the_window_of_a_file_of_any_size_is_read_from_its_ends(tmp_path: Path) -> None:
    many = [task("k" * 200, n, 1000.0 + n, 0.5) for n in range(2000)]
    cut = write(tmp_path / "x.pt.trace.json", many)
    cut.write_bytes(cut.read_bytes()[:-1500])
    assert cut.stat().st_size > 4 << 16
    source = only(cut)
    last_ns = BASE_NS + 3_000_000

    assert source.window_start_ns == BASE_NS + 1_000_000
    assert source.window_end_ns is not None
    assert last_ns - 20_000 < source.window_end_ns < last_ns


def pack(path: Path, content: str, *, written_s: int = 0) -> Path:
    path.write_bytes(gzip.compress(content.encode(), mtime=written_s))
    return path


def test_a_packed_trace_ends_when_it_was_written_at_the_latest(tmp_path: Path) -> None:
    """Its end is not unpacked: its name tells, else when it was packed, else the last known."""
    events = [task("k" * 3000, n, 1000.0 + n, 0.5) for n in range(100)]
    content = text(events)
    known_ns = only(pack(tmp_path / "trace_1.json.gz", content)).window_end_ns
    assert known_ns is not None
    assert known_ns < BASE_NS + 1_099_000
    (tmp_path / "trace_1.json.gz").unlink()

    seconds = BASE_NS // 10**9 + 2
    by_packing = only(pack(tmp_path / "trace_1.json.gz", content, written_s=seconds))
    assert by_packing.window_end_ns == seconds * 10**9
    (tmp_path / "trace_1.json.gz").unlink()

    name = f"n0_1.{BASE_NS + 1_500_000_000}.pt.trace.json.gz"
    by_name = only(pack(tmp_path / name, content, written_s=seconds))
    assert by_name.window_end_ns == BASE_NS + 1_500_000_000
    assert by_name.window_start_ns == BASE_NS + 1_000_000


def test_looking_for_traces_reads_only_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [task("k" * 500, n, 1000.0 + n, 0.5) for n in range(40_000)]
    write(tmp_path / "x.pt.trace.json", events)
    write(tmp_path / "y.pt.trace.json.gz", events, head=head(6))
    sizes: list[int] = []
    for module, name in ((kineto_files, "read_beginning"), (kineto_head, "_ending")):
        really = getattr(module, name)

        def watched(path: str, really: Callable[[str], bytes] = really) -> bytes:
            sizes.append(len(part := really(path)))
            return part

        monkeypatch.setattr(module, name, watched)
    assert len(discover(tmp_path).ranks) == 2
    assert len(sizes) == 3
    assert max(sizes) < 1 << 18


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path / "good.pt.trace.json", head=head(1))
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    os.mkfifo(tmp_path / "trace_pipe.json")
    (tmp_path / "folder.pt.trace.json").mkdir()
    (tmp_path / "gone.pt.trace.json").symlink_to(tmp_path / "nowhere")
    seen = discover(tmp_path)

    assert [Path(source.root).name for source in seen.ranks] == ["good.pt.trace.json"]
    assert sorted((Path(p.path).name, p.message) for p in seen.problems) == [
        ("gone.pt.trace.json", "cannot be read (No such file or directory)"),
        ("pipe.pt.trace.json", "cannot be read: it is not a regular file"),
    ]


@pytest.mark.slow
def test_another_rule_for_communication_reads_a_rank_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.pt.trace.json", [*EVENTS, task("acme_a2a(int)", 9, 1170.0, 5.0)])
    target = tmp_path / "store"

    def communicates() -> list[str]:
        ingest(path, target, run="r")
        con = store.open(target)
        try:
            return [name for (name,) in con.execute("select name from comm_ops").fetchall()]
        finally:
            con.close()

    monkeypatch.delenv(VARIABLE, raising=False)
    assert len(communicates()) == 1
    monkeypatch.setenv(VARIABLE, "acme_a2a")
    assert "acme_a2a(int)" in communicates()
    assert len(ingest(path, target, run="r").unchanged) == 1
    (manifest,) = manifests(target, run="r")
    assert manifest.rules["kineto.comm_kernels"] == "acme_a2a"
    monkeypatch.delenv(VARIABLE)
    assert len(communicates()) == 1
