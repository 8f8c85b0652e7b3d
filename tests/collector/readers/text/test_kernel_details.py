"""kernel_details.csv and op_summary: every header generation, and files in a bad state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.readers.text import kernel_details
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged

LEVEL0 = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim"
LEVEL0_ROWS = [
    "50,add,N/A,N/A,1736405443881410.320\t,50.621,0,0",
    "50,hcom_allReduce__868_0_1,N/A,HCCL,1736405443881500.001\t,6.28,105.722000,0",
    ",late,N/A,N/A,1736405443881600.000\t,1,0,0",
]
TEXT_SETS = [
    ("alexnet_ddp_text_level0", "rank0_ascend_pt", "0", "50"),
    ("alexnet_ddp_text_level0", "rank1_ascend_pt", "1", "50"),
    ("alexnet_ddp_text_level1", "rank0_ascend_pt", "0", "50"),
    ("alexnet_ddp_text_level1", "rank1_ascend_pt", "1", "50"),
    ("qwen3_pp2_dp2_text_level2", "rank_0_ascend_pt", "0", "13"),
]


def write(folder: Path, *lines: str, end: str = "\n", name: str = "kernel_details.csv") -> Path:
    path = folder / name
    path.write_bytes((end.join(lines) + end).encode())
    return path


def rows(con: duckdb.DuckDBPyConnection, columns: str, table: str = "kernels") -> list[Any]:
    return con.execute(f"select {columns} from {table} order by start_ns").fetchall()


@pytest.mark.parametrize(("dataset", "folder", "rank", "step"), TEXT_SETS)
def test_real_profiles_match_the_golden_figures(
    stage: Staged,
    real_data: Path,
    goldens: dict[str, Any],
    dataset: str,
    folder: str,
    rank: str,
    step: str,
) -> None:
    log = stage.read(kernel_details, real_data / dataset / folder)
    golden = goldens[dataset][rank]["steps"][step]["kernel_details"]

    by_core = stage.con.execute(
        "select coalesce(core, 'N/A'), count(*), sum(dur_ns) from kernels group by all"
    ).fetchall()
    comm = stage.con.execute("select count(*), sum(dur_ns) from _comm_rows").fetchone()
    found = {core: {"count": n, "total_ns": total} for core, n, total in by_core}
    assert comm is not None
    communication_core = next(c for c in golden["by_core"] if c in ("HCCL", "COMMUNICATION"))
    assert {**found, communication_core: {"count": comm[0], "total_ns": comm[1]}} == (
        golden["by_core"]
    )
    assert stage.con.execute("select bool_and(is_compute) from kernels").fetchone() == (True,)
    totals = stage.con.execute("""
        select coalesce(type, 'N/A'), sum(dur_ns)::bigint, count(*) from kernels
        group by all order by 2 desc, 1""").fetchall()
    expected = [(t["name"], t["total_ns"], t["count"]) for t in golden["top10_by_type"]]
    assert sorted(totals, key=lambda t: -t[1])[: len(expected)] == expected
    assert stage.con.execute("select distinct step from kernels").fetchall() == [(int(step),)]
    assert log.rows_lost == 0
    assert log.warnings == []


def test_real_pmu_columns(stage: Staged, real_data: Path, goldens: dict[str, Any]) -> None:
    stage.read(kernel_details, real_data / "qwen3_pp2_dp2_text_level2" / "rank_0_ascend_pt")
    cycles = goldens["qwen3_pp2_dp2_text_level2"]["0"]["flops"]["cycles"]
    found = stage.con.execute("select sum(aic_cycles), sum(aiv_cycles) from kernels").fetchone()
    assert found == (cycles["aic_total_cycles"], cycles["aiv_total_cycles"])
    first = rows(
        stage.con, "aiv_time_ns, pmu['aiv_vec_time'], pmu['aiv_vec_ratio'], cardinality(pmu)"
    )[0]
    assert first == (1883842.0, 98456.0, 0.052, 20)
    peak = stage.con.execute("select max(cube_utilization_ratio) from kernels").fetchone()
    assert peak is not None
    assert 0.5 < peak[0] <= 1


def test_level0_says_nothing_of_type_core_and_blocks(stage: Staged) -> None:
    stage.read(kernel_details, {"kernels": write(stage.folder, LEVEL0, *LEVEL0_ROWS, end="\r\n")})
    columns = "step, name, type, core, is_compute, start_ns, dur_ns, block_count, pmu"
    assert rows(stage.con, columns) == [
        (50, "add", None, None, True, 1736405443881410320, 50621, None, None),
        (None, "late", None, None, True, 1736405443881600000, 1000, None, None),
    ]  # fmt: skip
    assert rows(stage.con, "*", "_comm_rows") == [
        (50, None, "hcom_allReduce__868_0_1", None, 1736405443881500001, 6280, "HCCL")
    ]

    told = rows(stage.con, columns)
    stage.con.execute("delete from kernels")
    spelled = [f"step{row}" if row[0] != "," else row for row in LEVEL0_ROWS]
    path = write(stage.folder, LEVEL0.replace("(us)", " (us)"), *spelled)
    stage.read(kernel_details, {"kernels": path})
    assert rows(stage.con, columns) == told


FULL = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
    "Start Time(us),Duration(us),Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,"
    "aicore_time(us),aic_total_cycles,aic_mac_ratio,aiv_time(us),aiv_total_cycles,"
    "aic_read_main_memory_datas(KB),cube_utilization(%),Newcomer Column"
)
FULL_ROW = (
    '7,3,4294967295,65535,2,mm,MatMulV3,dynamic,MIX_AIC,100.001\t,2.5,0.25,20,40,YES,"""4,8;;8,2""",'
    'DT_BF16;;DT_BF16,ND;;ND,"""4,2""",DT_BF16,FORMAT_ND,N/A,12.345,1000,0.5,N/A,N/A,1.5,97.5,x'
)
EXPECTED = (
    7, 3, None, 65535, 2, None, "mm", "MatMulV3", "dynamic", "MIX_AIC", 100001, 2500, 250, 20, 40,
    True, "4,8;;8,2", "DT_BF16;;DT_BF16", "4,2", 12345.0, 1000.0, None, None, 0.975,
    {"aic_mac_ratio": 0.5, "aic_read_main_memory_datas": 1.5},
)  # fmt: skip
COLUMNS = (
    "step, device_id, model_id, task_id, stream_id, context_id, name, type, op_state, core,"
    " start_ns, dur_ns, wait_ns, block_count, mix_block_count, hf32_eligible, input_shapes,"
    " input_dtypes, output_shapes, aic_time_ns, aic_cycles, aiv_time_ns, aiv_cycles,"
    " cube_utilization_ratio, pmu"
)


def rename(header: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in header
        header = header.replace(old, new)
    return header


@pytest.mark.parametrize(
    "header",
    [
        FULL,
        "\ufeff" + FULL,
        rename(FULL, ("Block Dim,Mix Block Dim", "Block Num,Mix Block Num")),
        rename(FULL, ("Start Time(us)", "Task Start Time(us)")),
        rename(FULL, ("aicore_time(us)", "aic_total_time(us)"), ("aiv_time", "aiv_total_time")),
        rename(FULL, ("(us)", "(µs)")),
        rename(
            FULL, ("Name", "Op Name"), (",Type,", ",OP Type,"), ("Accelerator Core", "Task Type"),
            ("Start Time(us)", "Task Start Time(us)"), ("Duration(us)", "Task Duration(us)"),
            ("Wait Time(us)", "Task Wait Time(us)"),
        ),
    ],
    ids=["2025", "bom", "block num", "task start", "total time", "micro sign", "op_summary"],
)  # fmt: skip
def test_header_variants_give_the_same_row(stage: Staged, header: str) -> None:
    stage.read(kernel_details, {"kernels": write(stage.folder, header, FULL_ROW)})
    assert rows(stage.con, COLUMNS) == [EXPECTED]


def test_column_order_and_row_order_do_not_matter(stage: Staged) -> None:
    shuffled = "Duration(us),Name,Start Time(us),Accelerator Core"
    lines = ["1.5,b,20.000\t,AI_CORE", "2,a,10.000\t,AI_CORE"]
    stage.read(kernel_details, {"kernels": write(stage.folder, shuffled, *lines)})
    assert rows(stage.con, "name, start_ns, dur_ns, step") == [
        ("a", 10000, 2000, None), ("b", 20000, 1500, None)
    ]  # fmt: skip


def test_older_chips_keep_their_pmu_names(stage: Staged) -> None:
    header = (
        "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),aicore_time(us),"
        "total_cycles,vec_time(us),mac_ratio,memory_bound,0x1f,GM_to_L1_datas(KB),ub_read_bw(GB/s),"
        "scalar_exe_time (us),mac_exe_time(ms),mte1_exe_time,fixpipe_exe_ratio (%),"
        "cube_utilization( %)"
    )
    path = write(
        stage.folder,
        header,
        "conv,Conv2D,AI_CORE,10,2,1.5,900,0.5,0.25,1.75,33,2,3,0.75,0.00125,7,50,97.5",
        name="op_summary.csv",
    )
    log = stage.read(kernel_details, {"kernels": path})
    # What a time counts in nobody knows without its unit.
    assert rows(stage.con, "aic_time_ns, aic_cycles, cube_utilization_ratio, pmu") == [
        (1500.0, 900.0, 0.975, {
            "vec_time": 500.0, "mac_ratio": 0.25, "memory_bound": 1.75, "0x1f": 33.0,
            "GM_to_L1_datas": 2.0, "ub_read_bw": 3.0, "scalar_exe_time": 750.0,
            "mac_exe_time": 1250.0, "fixpipe_exe_ratio": 0.5,
        })
    ]  # fmt: skip
    assert log.rules["kernels.table"] == "op_summary"


def test_pmu_values_that_are_not_there_have_no_entry(stage: Staged) -> None:
    header = "Name,Start Time(us),Duration(us),aic_mac_time(us),AIC_MAC_TIME,aic_mac_ratio"
    lines = ["all,10,1,0.001234567,9,0.5", "some,20,1,N/A,9,0.25", "none,30,1,N/A,9,N/A"]
    stage.read(kernel_details, {"kernels": write(stage.folder, header, *lines)})
    assert rows(stage.con, "pmu") == [
        ({"aic_mac_time": 1.234567, "aic_mac_ratio": 0.5},), ({"aic_mac_ratio": 0.25},), (None,)
    ]  # fmt: skip


def test_figures_that_are_no_numbers_cost_only_themselves(stage: Staged) -> None:
    header = (
        "Step Id,Name,Start Time(us),Duration(us),Task ID,aiv_time(us),aic_mac_ratio,aiv_x_ratio"
    )
    lines = [
        "1,a,10,1,7,1.5,0.5,1", "N/A,b,20,1,N/A,N/A,N/A,N/A", "x,c,30,1,-,-,n/a\t,inf", "1,cut,40",
        "2,d,50,1,9, 2.5\t,nan,0.25", '2,e,60,1,9,"1,250.5",,',
    ]  # fmt: skip
    log = stage.read(kernel_details, {"kernels": write(stage.folder, header, *lines)})
    assert rows(stage.con, "name, step, task_id, aiv_time_ns, pmu") == [
        ("a", 1, 7, 1500.0, {"aic_mac_ratio": 0.5, "aiv_x_ratio": 1.0}),
        ("b", None, None, None, None),
        ("c", None, None, None, None),
        ("d", 2, 9, 2500.0, {"aiv_x_ratio": 0.25}),
        ("e", 2, 9, None, None),
    ]
    assert log.rows_lost == 1
    assert "1 broken rows left out, the first at line 5" in log.warnings[0]
    assert "1 values in aiv_time(us) are no numbers: they are unknown" in log.warnings[1]


def test_implementation_kernels_of_hccl_are_not_computing(stage: Staged) -> None:
    lines = [
        "1,hcomAllReduceAicpuKernel,x,AI_CPU,1,1,0,1",
        "1,allGatherAivKernel,x,AI_VECTOR_CORE,2,1,0,1",
        "1,copy,x,SDMA_SQE,3,1,0,1",
        "1,dropout,x,DSA_SQE,4,1,0,1",
        "1,topk,x,AI_CPU,5,1,0,1",
        "1,AllGatherMatmul,AllGatherMatmul,MIX_AIC,6,1,0,1",
        "1,hcom_send__1_0_1,hcom_send_,COMMUNICATION,7,1,0,0",
    ]
    stage.read(kernel_details, {"kernels": write(stage.folder, LEVEL0, *lines)})
    assert [r[0] for r in rows(stage.con, "is_compute")] == [False, False, False, True, True, True]
    assert rows(stage.con, "name, type", "_comm_rows") == [("hcom_send__1_0_1", "hcom_send_")]


def test_rows_without_valid_times_are_dropped_and_counted(stage: Staged) -> None:
    lines = [
        "1,ok,x,AI_CORE,10,1,0,1", "1,a,x,AI_CORE,N/A,1,0,1", "1,b,x,AI_CORE,10,inf,0,1",
        "1,c,x,AI_CORE,nan,nan,0,1", "1,d,x,AI_CORE,10,-1,0,1", "1,e,x,AI_CORE,,,0,1",
    ]  # fmt: skip
    log = stage.read(kernel_details, {"kernels": write(stage.folder, LEVEL0, *lines)})
    assert rows(stage.con, "name") == [("ok",)]
    assert log.rows_lost == 5
    assert "no valid start or duration" in log.warnings[0]


def test_ragged_cut_and_undecodable_rows_cost_only_themselves(stage: Staged) -> None:
    path = stage.folder / "kernel_details.csv"
    path.write_bytes(
        (LEVEL0 + "\r\n").encode()
        + b"1,first,x,AI_CORE,10,1,0,1\n"
        + b"1,short,x,AI_CORE\r\n"
        + b"1,long,x,AI_CORE,20,1,0,1,surplus\r\n"
        + b'1,"two\r\nlines",x,AI_CORE,30,1,0,1\n'
        + b"1,bad\xff\xfe,x,AI_CORE,40,1,0,1\n\r\n"
        + b"1,last,x,AI_CORE,50,1"
    )
    log = stage.read(kernel_details, {"kernels": path})
    assert rows(stage.con, "name") == [("first",), ("long",), ("two\r\nlines",)]
    assert log.rows_lost == 3
    assert "3 broken rows left out, the first at line 3" in log.warnings[0]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", LEVEL0.encode()])
def test_files_without_rows_are_nothing_to_read(stage: Staged, content: bytes) -> None:
    path = stage.folder / "kernel_details.csv"
    path.write_bytes(content)
    log = stage.read(kernel_details, {"kernels": path})
    assert rows(stage.con, "name") == rows(stage.con, "name", "_comm_rows") == []
    assert log.rows_lost == 0


@pytest.mark.parametrize("content", [b"\x00\x01binary", b"a,b\n1,2\n", LEVEL0.encode("utf-16")])
def test_foreign_files_are_refused_with_what_was_missing(stage: Staged, content: bytes) -> None:
    path = stage.folder / "kernel_details.csv"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match="header: no column Start Time"):
        stage.read(kernel_details, {"kernels": path})


def test_a_bad_slice_does_not_hide_the_others(stage: Staged) -> None:
    bad = write(stage.folder, "nonsense", name="op_summary_slice_0.csv")
    first = write(stage.folder, LEVEL0, LEVEL0_ROWS[0], name="op_summary_slice_1.csv")
    second = write(stage.folder, LEVEL0, LEVEL0_ROWS[2], name="op_summary_slice_2.csv")
    with pytest.raises(TraceFormatError, match="op_summary_slice_0"):
        stage.read(kernel_details, {"kernels": [bad, first, second]})
    assert rows(stage.con, "name") == [("add",), ("late",)]


def test_only_wanted_tables_are_filled(stage: Staged) -> None:
    path = write(stage.folder, LEVEL0, *LEVEL0_ROWS)
    stage.read(kernel_details, {"kernels": path}, only=frozenset({"comm_ops"}))
    assert rows(stage.con, "name") == []
    assert len(rows(stage.con, "name", "_comm_rows")) == 1


def test_the_hand_over_table_exists_without_any_file(stage: Staged) -> None:
    stage.read(kernel_details, {})
    assert rows(stage.con, "name", "_comm_rows") == []


def test_paths_with_patterns_and_quotes_are_taken_literally(stage: Staged) -> None:
    folder = stage.folder / "run=1" / "it's [a]*?"
    folder.mkdir(parents=True)
    stage.read(kernel_details, {"kernels": write(folder, LEVEL0, *LEVEL0_ROWS)})
    assert len(rows(stage.con, "name")) == 2


def test_words_of_a_large_table_say_what_text_does(
    stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "Name,Type,Accelerator Core,Start Time(us),Duration(us),aic_mac_ratio,Input Shapes",
        'MatMul_1,MatMulV3,AI_CORE,1736405443881410.320\t,50.621,0.5,"2,3;3,4"',
        "hcom_allReduce__868_0_1,N/A,HCCL,1736405443881500.001\t,6.28,N/A,N/A",
        "Add_2,Add,AI_VECTOR_CORE,1736405443881600.000\t,1,N/A,N/A",
    ]
    path = write(stage.folder, *lines)
    stage.read(kernel_details, {"kernels": path})
    text = rows(stage.con, "columns(*)::varchar")
    stage.con.execute("delete from kernels")
    stage.con.execute("delete from _comm_rows")
    monkeypatch.setattr(kernel_details, "WORDS_FROM_BYTES", 0)
    stage.read(kernel_details, {"kernels": path})
    assert rows(stage.con, "columns(*)::varchar") == text
    assert len(text) == 2
    kinds = "distinct typeof(name)[:4], typeof(pmu)[:8], typeof(start_ns)"
    assert stage.rows(f"select {kinds} from kernels") == [("ENUM", "MAP(ENUM", "BIGINT")]


PMU = "Name,Accelerator Core,Start Time(us),Duration(us)"


def test_each_slice_of_a_large_table_may_have_pmu_columns_of_its_own(
    stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with an odd cell, which is read again as text."""
    monkeypatch.setattr(kernel_details, "WORDS_FROM_BYTES", 0)
    first = write(stage.folder, f"{PMU},aic_a_ratio", "a,AI_CORE,10.1,5,0.25", name="1.csv")
    second = write(
        stage.folder, f"{PMU},aic_b_ratio", "b,AI_CORE,20.1,5,odd", "c,AI_CORE,30.1,5,0.5",
        name="2.csv",
    )  # fmt: skip
    stage.read(kernel_details, {"kernels": [first, second]})
    values = "name::varchar, pmu['aic_a_ratio'], pmu['aic_b_ratio']"
    assert rows(stage.con, values) == [
        ("a", 0.25, None), ("b", None, None), ("c", None, 0.5)
    ]  # fmt: skip


def test_a_large_table_that_fails_leaves_text_to_other_readers(
    stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(stage.folder, f"{PMU},aic_a_ratio", "a,AI_CORE,10.1,5,0.25", name="1.csv")
    bad = write(stage.folder, "nonsense", name="2.csv")
    newer = write(stage.folder, f"{PMU},aic_b_ratio", "b,AI_CORE,20.1,5,0.5", name="3.csv")
    with monkeypatch.context() as patched:
        patched.setattr(kernel_details, "WORDS_FROM_BYTES", 0)
        with pytest.raises(TraceFormatError, match=r"2\.csv"):
            stage.read(kernel_details, {"kernels": [good, bad]})
    stage.read(kernel_details, {"kernels": newer})
    assert rows(stage.con, "name, pmu['aic_b_ratio']") == [("b", 0.5)]
