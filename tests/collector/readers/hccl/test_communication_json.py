"""communication.json and its matrix: every documented form, cut files, foreign ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.model import RankSource, ReadLog, Role, SourceFile
from npuscope.collector.readers.hccl import communication
from npuscope.collector.staging import open_staging
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged

HASH = "5862276093215481612"
LINKS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
NOTHING = {
    "Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0, "Large Packet Ratio": 0,
    "Size Distribution": {},
}  # fmt: skip
OPERATION: dict[str, Any] = {
    "Communication Time Info": {
        "Start Timestamp(us)": 1736414119678217.25, "Elapse Time(ms)": 2.5, "Transit Time(ms)": 1,
        "Wait Time(ms)": 0.5, "Synchronization Time(ms)": 0.25, "Idle Time(ms)": -0.0000001,
        "Wait Time Ratio": 0.3333, "Synchronization Time Ratio": 0.2,
    },
    "Communication Bandwidth Info": {
        **dict.fromkeys(LINKS, NOTHING),
        "RDMA": {
            "Transit Size(MB)": 3.000004, "Transit Time(ms)": 1.5, "Bandwidth(GB/s)": 2.0,
            "Large Packet Ratio": 0.5, "Size Distribution": {"3.0": [1, 1.25], "4e-06": [1, 0.25]},
        },
    },
}  # fmt: skip
TOTAL = {"Communication Time Info": {"Elapse Time(ms)": 2.5}, "Communication Bandwidth Info": {}}


def job(**steps: Any) -> dict[str, Any]:
    return steps


def read_json(staged: Staged, content: Any, *, name: Role = "communication") -> ReadLog:
    path = staged.folder / f"{name}.json"
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(text)
    return staged.read(communication, {name: path})


def test_an_operation_with_its_links(stage: Staged) -> None:
    name = "hcom_alltoallv__612_7_1"
    operations = {
        f"{name}@{HASH}": OPERATION,
        f"Total Op Info@{HASH}": TOTAL,
        "Total Op Info": TOTAL,
    }
    read_json(stage, job(step7={"p2p": {}, "collective": operations}))
    assert stage.rows("select * from comm_times") == [
        (7, name, "allToAllV", "collective", HASH, 1736414119678217250, 2.5e6, 1e6, 5e5, 2.5e5,
         pytest.approx(-0.1)),
    ]  # fmt: skip
    assert stage.rows("select * from comm_links") == [
        (7, name, "allToAllV", "collective", HASH, "RDMA", pytest.approx(3000004.0),
         1.5e6, 2e9, 0.5, [{"size_bytes": 4.0, "packet_count": 1, "time_ns": 2.5e5},
          {"size_bytes": 3e6, "packet_count": 1, "time_ns": 1.25e6}]),
    ]  # fmt: skip
    # Without one of the levels.
    for content, step in ((job(step7=operations), 7), ({"collective": operations}, None)):
        stage.con.execute("delete from comm_times")
        assert read_json(stage, content).rows_lost == 0
        found = stage.rows("select step, name, category, group_hash, elapse_ns from comm_times")
        assert found == [(step, name, "collective", HASH, 2.5e6)]


@pytest.mark.parametrize(
    ("key", "category", "step"),
    [("step", "p2p", None), ("step13", "collective", 13), (None, None, None)],
)
def test_steps_without_number_and_flat_files_of_msprof(
    stage: Staged, key: str | None, category: str | None, step: int | None
) -> None:
    operations = {
        f"hcom_send__612_1_1@{HASH}": OPERATION,
        f"hcom_broadcast__612_2@{HASH}": OPERATION,
    }
    content = {**operations, "total": TOTAL} if key is None else {key: {category: operations}}
    read_json(stage, content)
    found = stage.rows("select step, op_type, category, group_hash from comm_times")
    assert found == [
        (step, "send", category or "p2p", HASH), (step, "broadcast", category or "collective", HASH)
    ]  # fmt: skip


def test_single_bad_entries_are_skipped_and_counted(stage: Staged) -> None:
    bad = copy.deepcopy(OPERATION)
    bad["Communication Time Info"]["Elapse Time(ms)"] = {"not": "a number"}
    texts = copy.deepcopy(OPERATION)
    texts["Communication Time Info"]["Elapse Time(ms)"] = "2.5"
    operations = {
        f"hcom_send__1_1@{HASH}": OPERATION, f"hcom_send__1_2@{HASH}": bad,
        f"hcom_send__1_3@{HASH}": texts, f"hcom_send__1_4@{HASH}": [1, 2], "hcom_send__1_5": {},
    }  # fmt: skip
    log = read_json(stage, job(step1={"p2p": operations}))
    assert stage.rows("select name, elapse_ns from comm_times") == [
        ("hcom_send__1_1", 2.5e6), ("hcom_send__1_3", 2.5e6)
    ]  # fmt: skip
    assert log.rows_lost == 2


def test_what_is_no_number_costs_itself_alone(stage: Staged) -> None:
    bad = copy.deepcopy(OPERATION)
    bad["Communication Time Info"]["Wait Time Ratio"] = float("nan")  # not read
    bad["Communication Time Info"]["Idle Time(ms)"] = float("inf")
    texts = copy.deepcopy(OPERATION)
    texts["Communication Bandwidth Info"]["RDMA"]["Bandwidth(GB/s)"] = "N/A"
    operations = {f"hcom_send__1_1@{HASH}": bad, f"hcom_send__1_2@{HASH}": texts}
    log = read_json(stage, {"version": "1", "made": None, **job(step1={"p2p": operations})})
    assert stage.rows("select name, elapse_ns, wait_ns, idle_ns is null from comm_times") == [
        ("hcom_send__1_1", 2.5e6, 5e5, True), ("hcom_send__1_2", 2.5e6, 5e5, False)
    ]  # fmt: skip
    links = "select name, time_ns, bandwidth_bytes_per_s from comm_links order by name"
    assert stage.rows(links) == [
        ("hcom_send__1_1", 1.5e6, 2e9), ("hcom_send__1_2", 1.5e6, None)
    ]  # fmt: skip
    assert log.rows_lost == 0
    [told] = [one for one in log.warnings if "no numbers" in one]
    assert "1 operations have values that are no numbers" in told
    links_of = {"0-1": link(**{"Bandwidth(GB/s)": "N/A"}), "(0, 2)": link(), "here-there": link()}
    matrix = job(step1={"p2p": {f"send-total@{HASH}": links_of}})
    log = read_json(stage, matrix, name="communication_matrix")
    matrix_rows = "select src_group_rank, dst_group_rank, link, size_bytes, bandwidth_bytes_per_s"
    assert stage.rows(f"{matrix_rows} from comm_matrix") == [
        (0, 1, "HCCS", 2e6, None), (0, 2, "HCCS", 2e6, 4e9)
    ]  # fmt: skip
    assert log.rows_lost == 1
    assert [one.partition(": ")[2] for one in log.warnings] == [
        "1 operations have values that are no numbers: these are unknown",
        "1 rows left out: links between ranks that are not named",
    ]


WHOLE = json.dumps(job(step1={"collective": {f"hcom_send__1_1@{HASH}": OPERATION}})).encode()


@pytest.mark.parametrize("name", ["communication", "communication_matrix"])
@pytest.mark.parametrize(
    "content",
    [WHOLE[:-1], WHOLE[: len(WHOLE) // 2], b"[]", b"[1, 2]", b'{"step1": [1]}', b'"text"',
     b"\xff\xfe", b'{"step1": {"p2p": 5}}', b'{"version": "1"}',
     b'{"version": "1", "rank_id": {}}'],
)  # fmt: skip
def test_cut_and_foreign_files_say_where(stage: Staged, content: bytes, name: Role) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_json(stage, content, name=name)
    assert caught.value.path.endswith(f"{name}.json")
    assert "cut short or damaged" in caught.value.got
    assert stage.con.execute("select count(*) from comm_times").fetchone() == (0,)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_told(stage: Staged, content: bytes) -> None:
    with pytest.raises(TraceFormatError, match="empty file"):
        read_json(stage, content)


@pytest.mark.parametrize("content", [b"{}", b'{"step1": {}}'])
def test_empty_objects_hold_nothing(stage: Staged, content: bytes) -> None:
    log = read_json(stage, content)
    assert stage.con.execute("select count(*) from comm_times").fetchone() == (0,)
    assert log.rows_lost == 0


def test_byte_order_mark(stage: Staged) -> None:
    read_json(stage, b"\xef\xbb\xbf" + WHOLE)
    assert stage.con.execute("select count(*) from comm_times").fetchone() == (1,)


def link(name: str | None = None, **figures: Any) -> dict[str, Any]:
    block = {
        "Transport Type": "HCCS", "Transit Size(MB)": 2, "Transit Time(ms)": 0.5,
        "Bandwidth(GB/s)": 4, **figures,
    }  # fmt: skip
    return block if name is None else {**block, "Op Name": name}


def test_matrix_of_2024_and_of_2023(stage: Staged) -> None:
    scatter = "hcom_reduceScatter__097_2_1"
    read_json(
        stage,
        job(step5={"p2p": {}, "collective": {
            f"reduce-top1@{HASH}": {"1-0": link(scatter)},
            f"reduce-total@{HASH}": {"1-0": link(), "1-1": link(**{"Transport Type": "LOCAL"})},
            f"alltoall-bottom3@{HASH}": {"0-12": link("hcom_alltoallv__097_3_1")},
            f"hcom_allReduce__483_2@{HASH}": {"0-1": link()},
            "Total Op Info": {"0-1": link()},
        }}),
        name="communication_matrix",
    )  # fmt: skip
    assert stage.rows("""select step, op_type, category, variant, name, group_hash,
        src_group_rank, dst_group_rank, src_rank, link, size_bytes, time_ns, bandwidth_bytes_per_s
        from comm_matrix""") == [
        (5, op, "collective", variant, name, HASH, src, dst, None, kind, 2e6, 5e5, 4e9)
        for op, variant, name, src, dst, kind in (
            ("reduceScatter", "top1", scatter, 1, 0, "HCCS"),
            ("reduce", "total", None, 1, 0, "HCCS"),
            ("reduce", "total", None, 1, 1, "LOCAL"),
            ("allToAllV", "bottom3", "hcom_alltoallv__097_3_1", 0, 12, "HCCS"),
            ("allReduce", "op", "hcom_allReduce__483_2", 0, 1, "HCCS"),
        )
    ]  # fmt: skip


def test_a_bad_file_leaves_the_matrix_readable(stage: Staged) -> None:
    cut, matrix = stage.folder / "communication.json", stage.folder / "communication_matrix.json"
    cut.write_bytes(WHOLE[:100])
    matrix.write_text(json.dumps(job(step={"p2p": {f"send-total@{HASH}": {"0-1": link()}}})))
    with pytest.raises(TraceFormatError):
        stage.read(communication, {"communication": cut, "communication_matrix": matrix})
    assert stage.con.execute("select count(*) from comm_matrix").fetchone() == (1,)


def test_only_wanted_tables_are_filled(stage: Staged) -> None:
    path = stage.folder / "communication.json"
    path.write_bytes(WHOLE)
    stage.read(communication, {"communication": path}, only=frozenset({"comm_links"}))
    assert stage.con.execute("select count(*) from comm_times").fetchone() == (0,)
    assert stage.con.execute("select count(*) from comm_links").fetchone() == (1,)


def test_chunks_do_not_change_the_result(stage: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "_CHUNK_ENTRIES", 3)
    operations = {f"hcom_send__1_{i}@{HASH}": OPERATION for i in range(10)}
    read_json(stage, job(step1={"p2p": operations}))
    assert stage.rows("select count(*), count(distinct name) from comm_links") == [(10, 10)]


@pytest.mark.slow
def test_many_operations_fit_into_a_small_engine(tmp_path: Path) -> None:
    con = open_staging(tmp_path, memory_bytes=64 << 20)
    operations = {f"hcom_send__1_{i}@{HASH}": OPERATION for i in range(30_000)}
    path = tmp_path / "communication.json"
    path.write_text(json.dumps(job(step1={"p2p": operations})))
    source = RankSource(
        "job", "pytorch", 0, "test",
        {"communication": (SourceFile(str(path), path.stat().st_size, 0),)},
    )  # fmt: skip
    communication.read(con, source, ReadLog(), frozenset({"comm_links"}), lambda n: None)
    assert con.execute("select count(*) from comm_links").fetchone() == (30_000,)
    con.close()
