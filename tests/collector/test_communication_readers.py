"""communication.json, communication_matrix.json, analysis.db: one run, the same rows from each."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers import analysis_db, communication
from npuscope.collector.staging import open_staging
from npuscope.errors import TraceFormatError

Read = Callable[..., ReadLog]
HASH = "5862276093215481612"
TABLES = ("comm_times", "comm_links", "comm_matrix")

SETS = [
    ("alexnet_ddp_text_level1", "rank0_ascend_pt", "0"),
    ("alexnet_ddp_text_level1", "rank1_ascend_pt", "1"),
    ("qwen3_pp2_dp2_text_level2", "rank_0_ascend_pt", "0"),
    ("qwen3_pp2_dp2_text_level2", "rank_1_ascend_pt", "1"),
]
QWEN = [("rank_0_ascend_pt", "0"), ("rank_1_ascend_pt", "1")]


def near(ms: float) -> Any:
    """A golden figure in ms as ns, to 1e-9 ms."""
    return pytest.approx(ms * 1e6, abs=1e-3)


def check_times(con: duckdb.DuckDBPyConnection, category: str, golden: dict[str, Any]) -> None:
    row = con.execute(
        """select count(*), coalesce(sum(elapse_ns), 0), coalesce(sum(transit_ns), 0),
            coalesce(sum(wait_ns), 0), coalesce(sum(synchronization_ns), 0),
            coalesce(sum(idle_ns), 0) from comm_times where category = ?""",
        [category],
    ).fetchone()
    assert row is not None
    keys = ("elapse_ms", "transit_ms", "wait_ms", "sync_ms", "idle_ms")
    assert row[0] == golden["ops"]
    assert list(row[1:]) == [near(golden[key]) for key in keys]


def check_links(con: duckdb.DuckDBPyConnection, category: str, golden: dict[str, Any]) -> None:
    found = con.execute(
        "select link, sum(size_bytes), sum(time_ns) from comm_links where category = ? group by 1",
        [category],
    ).fetchall()
    assert {link: (size, time) for link, size, time in found} == {
        link: (pytest.approx(t["size_mb"] * 1e6, abs=1e-3), near(t["time_ms"]))
        for link, t in golden.items()
    }


@pytest.mark.parametrize(("dataset", "folder", "rank"), SETS)
def test_real_files_match_the_golden_figures(
    staging: duckdb.DuckDBPyConnection, read: Read, real_data: Path, goldens: dict[str, Any],
    dataset: str, folder: str, rank: str,
) -> None:  # fmt: skip
    log = read(communication, real_data / dataset / folder)
    ((step, categories),) = goldens[dataset][rank]["communication"].items()
    for category, golden in categories.items():
        check_times(staging, category, golden["total"])
        check_links(staging, category, golden["transport"])
        by_type = staging.execute(
            """select op_type, count(*), sum(elapse_ns) from comm_times
            where category = ? group by 1""",
            [category],
        ).fetchall()
        assert {name: (n, elapse) for name, n, elapse in by_type} == {
            name: (g["count"], near(g["elapse_ms"])) for name, g in golden["by_type"].items()
        }
    for table in TABLES:
        steps = staging.execute(f"select distinct step from {table}").fetchall()
        assert steps == [(int(step.removeprefix("step")),)]
    assert (log.rows_lost, log.warnings) == (0, [])


def test_real_packets_sum_to_the_file_s_own_totals(
    staging: duckdb.DuckDBPyConnection, read: Read, real_data: Path, goldens: dict[str, Any]
) -> None:
    read(communication, real_data / "alexnet_ddp_text_level1" / "rank0_ascend_pt")
    totals = goldens["alexnet_ddp_text_level1"]["0"]["communication"]["step50"]["collective"]
    sizes = totals["total_op_info_file"]["Communication Bandwidth Info"]["HCCS"][
        "Size Distribution"
    ]
    found = staging.execute("""
        select p.size_bytes, sum(p.packet_count)::bigint, sum(p.time_ns)
        from (select unnest(packets) as p from comm_links where link = 'HCCS')
        group by 1""").fetchall()
    assert {size: (count, time) for size, count, time in found} == {
        float(size) * 1e6: (count, near(ms)) for size, (count, ms) in sizes.items()
    }


@pytest.mark.parametrize(("folder", "rank"), QWEN)
def test_database_and_json_of_a_real_run_give_the_same_rows(
    staging: duckdb.DuckDBPyConnection, read: Read, real_data: Path, folder: str, rank: str
) -> None:
    path = real_data / "qwen3_pp2_dp2_text_level2" / folder
    found = []
    for reader in (communication, analysis_db):
        read(reader, path)
        found.append(
            {t: staging.execute(f"select * from {t} order by all").fetchall() for t in TABLES}
        )
        for table in TABLES:
            staging.execute(f"delete from {table}")
    assert [len(rows) for rows in found[0].values()] == {"0": [15, 16, 67], "1": [15, 22, 73]}[rank]
    assert found[0] == found[1]


@pytest.mark.parametrize(("folder", "rank"), QWEN)
def test_real_analysis_database_matches_the_golden_figures(
    staging: duckdb.DuckDBPyConnection, read: Read, real_data: Path, goldens: dict[str, Any],
    folder: str, rank: str,
) -> None:  # fmt: skip
    read(analysis_db, real_data / "qwen3_pp2_dp2_text_level2" / folder)
    golden = goldens["qwen3_pp2_dp2_text_level2"][rank]["analysis_db"]
    for category, types in golden["CommAnalyzerTime"].items():
        for op_type, figures in types.items():
            row = staging.execute(
                """select count(*), sum(elapse_ns), sum(transit_ns), sum(wait_ns) from comm_times
                where category = ? and op_type = ?""",
                [category, op_type],
            ).fetchone()
            times = (figures[f"{key}_ms"] for key in ("elapse", "transit", "wait"))
            assert row == (figures["count"], *map(near, times))
        check_links(staging, category, golden["CommAnalyzerBandwidth"][category])
    steps = golden["profiler_StepTraceTime"][0]
    assert staging.execute("""select device_id, step, computing_ns, communication_ns, free_ns,
        stage_ns, preparing_ns from profiler_steps""").fetchall() == [
        (steps["deviceId"], int(steps["step"]), *(
            float(steps[k]) * 1000
            for k in ("computing", "communication", "free", "stage", "preparing")
        ))
    ]  # fmt: skip


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


def read_json(read: Read, folder: Path, content: Any, *, name: str = "communication") -> ReadLog:
    path = folder / f"{name}.json"
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(text)
    return read(communication, {name: path})


def test_an_operation_with_its_links(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    name = "hcom_alltoallv__612_7_1"
    operations = {
        f"{name}@{HASH}": OPERATION,
        f"Total Op Info@{HASH}": TOTAL,
        "Total Op Info": TOTAL,
    }
    read_json(read, tmp_path, job(step7={"p2p": {}, "collective": operations}))
    assert staging.execute("select * from comm_times").fetchall() == [
        (7, name, "allToAllV", "collective", HASH, 1736414119678217250, 2.5e6, 1e6, 5e5, 2.5e5,
         pytest.approx(-0.1)),
    ]  # fmt: skip
    assert staging.execute("select * from comm_links").fetchall() == [
        (7, name, "allToAllV", "collective", HASH, "RDMA", pytest.approx(3000004.0),
         1.5e6, 2e9, 0.5, [{"size_bytes": 4.0, "packet_count": 1, "time_ns": 2.5e5},
          {"size_bytes": 3e6, "packet_count": 1, "time_ns": 1.25e6}]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "category", "step"),
    [("step", "p2p", None), ("step13", "collective", 13), (None, None, None)],
)
def test_steps_without_number_and_flat_files_of_msprof(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path,
    key: str | None, category: str | None, step: int | None,
) -> None:  # fmt: skip
    operations = {
        f"hcom_send__612_1_1@{HASH}": OPERATION,
        f"hcom_broadcast__612_2@{HASH}": OPERATION,
    }
    content = {**operations, "total": TOTAL} if key is None else {key: {category: operations}}
    read_json(read, tmp_path, content)
    found = staging.execute("select step, op_type, category, group_hash from comm_times").fetchall()
    assert found == [
        (step, "send", category or "p2p", HASH), (step, "broadcast", category or "collective", HASH)
    ]  # fmt: skip


def test_single_bad_entries_are_skipped_and_counted(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    bad = copy.deepcopy(OPERATION)
    bad["Communication Time Info"]["Elapse Time(ms)"] = {"not": "a number"}
    texts = copy.deepcopy(OPERATION)
    texts["Communication Time Info"]["Elapse Time(ms)"] = "2.5"
    operations = {
        f"hcom_send__1_1@{HASH}": OPERATION, f"hcom_send__1_2@{HASH}": bad,
        f"hcom_send__1_3@{HASH}": texts, f"hcom_send__1_4@{HASH}": [1, 2], "hcom_send__1_5": {},
    }  # fmt: skip
    log = read_json(read, tmp_path, job(step1={"p2p": operations}))
    assert staging.execute("select name, elapse_ns from comm_times").fetchall() == [
        ("hcom_send__1_1", 2.5e6), ("hcom_send__1_3", 2.5e6)
    ]  # fmt: skip
    assert log.rows_lost == 2


WHOLE = json.dumps(job(step1={"collective": {f"hcom_send__1_1@{HASH}": OPERATION}})).encode()


@pytest.mark.parametrize("name", ["communication", "communication_matrix"])
@pytest.mark.parametrize(
    "content",
    [WHOLE[:-1], WHOLE[: len(WHOLE) // 2], b"[]", b"[1, 2]", b'{"step1": [1]}', b'"text"',
     b"\xff\xfe", b'{"step1": {"p2p": 5}}'],
)  # fmt: skip
def test_cut_and_foreign_files_say_where(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path, content: bytes, name: str
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_json(read, tmp_path, content, name=name)
    assert caught.value.path.endswith(f"{name}.json")
    assert "cut short or damaged" in caught.value.got
    assert staging.execute("select count(*) from comm_times").fetchone() == (0,)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf", b"{}", b'{"step1": {}}'])
def test_empty_files_hold_nothing(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path, content: bytes
) -> None:
    log = read_json(read, tmp_path, content)
    assert staging.execute("select count(*) from comm_times").fetchone() == (0,)
    assert log.rows_lost == 0


def test_byte_order_mark(staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path) -> None:
    read_json(read, tmp_path, b"\xef\xbb\xbf" + WHOLE)
    assert staging.execute("select count(*) from comm_times").fetchone() == (1,)


def link(name: str | None = None, **figures: Any) -> dict[str, Any]:
    block = {
        "Transport Type": "HCCS", "Transit Size(MB)": 2, "Transit Time(ms)": 0.5,
        "Bandwidth(GB/s)": 4, **figures,
    }  # fmt: skip
    return block if name is None else {**block, "Op Name": name}


def test_matrix_of_2024_and_of_2023(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    scatter = "hcom_reduceScatter__097_2_1"
    read_json(
        read, tmp_path,
        job(step5={"p2p": {}, "collective": {
            f"reduce-top1@{HASH}": {"1-0": link(scatter)},
            f"reduce-total@{HASH}": {"1-0": link(), "1-1": link(**{"Transport Type": "LOCAL"})},
            f"alltoall-bottom3@{HASH}": {"0-12": link("hcom_alltoallv__097_3_1")},
            f"hcom_allReduce__483_2@{HASH}": {"0-1": link()},
            "Total Op Info": {"0-1": link()},
        }}),
        name="communication_matrix",
    )  # fmt: skip
    assert staging.execute("""select step, op_type, category, variant, name, group_hash,
        src_group_rank, dst_group_rank, src_rank, link, size_bytes, time_ns, bandwidth_bytes_per_s
        from comm_matrix""").fetchall() == [
        (5, op, "collective", variant, name, HASH, src, dst, None, kind, 2e6, 5e5, 4e9)
        for op, variant, name, src, dst, kind in (
            ("reduceScatter", "top1", scatter, 1, 0, "HCCS"),
            ("reduce", "total", None, 1, 0, "HCCS"),
            ("reduce", "total", None, 1, 1, "LOCAL"),
            ("allToAllV", "bottom3", "hcom_alltoallv__097_3_1", 0, 12, "HCCS"),
            ("allReduce", "op", "hcom_allReduce__483_2", 0, 1, "HCCS"),
        )
    ]  # fmt: skip


def test_a_bad_file_leaves_the_matrix_readable(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    cut, matrix = tmp_path / "communication.json", tmp_path / "communication_matrix.json"
    cut.write_bytes(WHOLE[:100])
    matrix.write_text(json.dumps(job(step={"p2p": {f"send-total@{HASH}": {"0-1": link()}}})))
    with pytest.raises(TraceFormatError):
        read(communication, {"communication": cut, "communication_matrix": matrix})
    assert staging.execute("select count(*) from comm_matrix").fetchone() == (1,)


def test_only_wanted_tables_are_filled(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    path = tmp_path / "communication.json"
    path.write_bytes(WHOLE)
    read(communication, {"communication": path}, wanted=frozenset({"comm_links"}))
    assert staging.execute("select count(*) from comm_times").fetchone() == (0,)
    assert staging.execute("select count(*) from comm_links").fetchone() == (1,)


def test_chunks_do_not_change_the_result(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communication, "_CHUNK_ENTRIES", 3)
    operations = {f"hcom_send__1_{i}@{HASH}": OPERATION for i in range(10)}
    read_json(read, tmp_path, job(step1={"p2p": operations}))
    assert staging.execute("select count(*), count(distinct name) from comm_links").fetchone() == (
        10, 10
    )  # fmt: skip


def database(folder: Path, *statements: str) -> Path:
    path = folder / "analysis.db"
    with sqlite3.connect(path) as con:
        for statement in statements:
            con.execute(statement)
    con.close()
    return path


def test_databases_of_mindspore_and_msprof(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    path = database(
        tmp_path,
        "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time,"
        " transit_time, wait_time, synchronization_time, idle_time)",
        "insert into CommAnalyzerTime values"
        f" ('hcom_receive__1_1', '{HASH}', 10.25, 1, 0.5, 0, 0, 0)",
        "create table CommAnalyzerBandwidth (hccl_op_name, group_name, transport_type,"
        " transit_size, transit_time, bandwidth, large_packet_ratio, package_size, count,"
        " total_duration)",
        f"insert into CommAnalyzerBandwidth values"
        f" ('hcom_receive__1_1', '{HASH}', 'HCCS', 3, 1, 3, 0, 1, 1, 0.25),"
        f" ('hcom_receive__1_1', '{HASH}', 'HCCS', 3, 1, 3, 0, 2, 1, 0.75),"
        f" ('hcom_receive__1_1', '{HASH}', 'SDMA', 3, 1, 3, 0, 0, 0, 0)",
        "create table CommAnalyzerMatrix (hccl_op_name, group_name, src_rank, dst_rank,"
        " transport_type, transit_size, transit_time, bandwidth)",
        "insert into CommAnalyzerMatrix values"
        f" ('hcom_receive__1_1', '{HASH}', '1', '0', 'HCCS', 3, 1, 3)",
    )
    read(analysis_db, {"analysis_db": path})
    assert staging.execute(
        "select step, op_type, category, start_ns, elapse_ns from comm_times"
    ).fetchall() == [(None, "receive", "p2p", 10250, 1e6)]
    links = staging.execute("select link, size_bytes, packets from comm_links order by 1")
    assert links.fetchall() == [
        ("HCCS", 3e6, [{"size_bytes": 1e6, "packet_count": 1, "time_ns": 2.5e5},
                       {"size_bytes": 2e6, "packet_count": 1, "time_ns": 7.5e5}]),
        ("SDMA", 3e6, None),
    ]  # fmt: skip
    assert staging.execute(
        "select variant, name, op_type, src_group_rank, dst_group_rank from comm_matrix"
    ).fetchall() == [("op", "hcom_receive__1_1", "receive", 1, 0)]


def test_steps_and_missing_columns_of_the_step_table(
    staging: duckdb.DuckDBPyConnection, read: Read, tmp_path: Path
) -> None:
    path = database(
        tmp_path,
        "create table StepTraceTime (step text, computing numeric, communication numeric, stage)",
        "insert into StepTraceTime values ('50', 4001.281999999992, 'N/A', '12.5'),"
        " (null, 1, 2, 3), ('step13', null, 0, 'x')",
    )
    read(analysis_db, {"analysis_db": path})
    assert staging.execute(
        "select step, computing_ns, communication_ns, stage_ns, preparing_ns from profiler_steps"
    ).fetchall() == [
        (50, 4001281.999999992, None, 12500.0, None), (None, 1000.0, 2000.0, 3000.0, None),
        (13, None, 0.0, None, None),
    ]  # fmt: skip


def test_empty_database_and_empty_schema(read: Read, tmp_path: Path) -> None:
    nothing = tmp_path / "communication_analyzer.db"
    nothing.touch()
    bare = database(tmp_path, "create table unrelated (a)")
    log = read(analysis_db, {"analysis_db": [nothing, bare]})
    assert log.warnings == ["communication_analyzer.db is empty"]


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
