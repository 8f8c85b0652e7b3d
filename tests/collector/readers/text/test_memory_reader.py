"""The three memory tables, in MB and KB, of torch_npu, MindSpore and msprof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.ingest.link import link
from npuscope.collector.model import RankSource
from npuscope.collector.readers.text import memory_record
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged

MIB = 1 << 20

SETS = [
    ("alexnet_ddp_text_level0", "rank0_ascend_pt", "0"),
    ("alexnet_ddp_text_level0", "rank1_ascend_pt", "1"),
    ("alexnet_ddp_text_level1", "rank0_ascend_pt", "0"),
    ("alexnet_ddp_text_level1", "rank1_ascend_pt", "1"),
    ("qwen3_pp2_dp2_text_level2", "rank_0_ascend_pt", "0"),
]


def mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB


@pytest.mark.parametrize(("dataset", "folder", "rank"), SETS)
def test_real_profiles_match_the_golden_figures(
    stage: Staged, real_data: Path, goldens: dict[str, Any], dataset: str, folder: str, rank: str
) -> None:
    log = stage.read(memory_record, real_data / dataset / folder)
    golden = goldens[dataset][rank]["memory"]

    record = stage.rows("""
        select component, count(*), max(reserved_bytes), max(allocated_bytes), max(active_bytes)
        from memory where source = 'record' group by 1""")
    assert {
        name: {
            "rows": n, "peak_reserved_mb": mib(reserved), "peak_allocated_mb": mib(allocated),
            "peak_active_mb": mib(active),
        }
        for name, n, reserved, allocated, active in record
    } == golden["memory_record"]  # fmt: skip

    module = dict(golden["npu_module_mem_peak"])
    peaks = stage.rows(
        "select component, max(reserved_bytes) from memory where source = 'module' group by 1"
    )
    count = stage.con.execute("select count(*) from memory where source = 'module'").fetchone()
    assert count == (module.pop("rows"),)
    assert module.items() <= {name: mib(peak) for name, peak in peaks}.items()

    blocks = golden["operator_memory"]
    assert stage.con.execute("""
        select count(*), count(*) filter (released_at_ns is null), sum(size_bytes) / 1024,
            max(size_bytes) / 1024, count(*) filter (size_bytes < 0),
            max(allocation_total_allocated_bytes) / 1048576
        from operator_memory""").fetchone() == (
        blocks["rows"], blocks["no_release"], blocks["sum_size_kb"], blocks["max_size_kb"],
        blocks["negative_size"], blocks["max_alloc_total_allocated_mb"],
    )  # fmt: skip
    assert stage.rows("select distinct device_id from memory") == [(int(rank),)]
    assert (log.rows_lost, log.warnings) == (0, [])


def test_units_devices_and_exponents(stage: Staged) -> None:
    variants = {
        "new": "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),"
        "Stream Ptr,Device Type\nPTA,1736405443756384.100\t,1.5,2,0.25,77,NPU:3\n",
        "old": "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\r\n"
        "GE,1.69512E+15,1.5,2,NPU:12\r\n",
        "msprof": "Device_id,Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),"
        "Device\n5,WORKSPACE,10,1.5,2,NPU:5\n",
        "app": "Component,Timestamp(us),Total Reserved(MB),Device_id\nAPP,10.5,N/A,6\n",
    }
    for name, content in variants.items():
        (stage.folder / f"{name}.csv").write_text(content, encoding="utf-8", newline="")
    files = [stage.folder / f"{name}.csv" for name in variants]
    stage.read(memory_record, {"memory_record": files})
    assert stage.rows("""select device_id, component, timestamp_ns, allocated_bytes,
        reserved_bytes, active_bytes, stream_ptr, source from memory""") == [
        (3, "PTA", 1736405443756384100, 1572864, 2097152, 262144, "77", "record"),
        (12, "GE", 1695120000000000000, 1572864, 2097152, None, None, "record"),
        (5, "WORKSPACE", 10000, 1536, 2048, None, None, "record"),
        (6, "APP", 10500, None, None, None, None, "record"),
    ]
    # Beside a database with the framework's curve: what the process held, unless it has that, too.
    for told, added in ((["PTA", "GE"], ["APP", "WORKSPACE"]), (["PTA", "APP"], [])):
        stage.con.execute("delete from memory")
        for component in told:
            stage.con.execute(
                "insert into memory by name"
                " select 'record' as source, ? as component, 1 as timestamp_ns", [component],
            )  # fmt: skip
        stage.read(memory_record, {"memory_record": files})
        [(found,)] = stage.rows("select list(component) from memory")
        assert sorted(found) == sorted(told + added)


def test_modules_and_their_marker_for_unknown(stage: Staged) -> None:
    mb, kb = stage.folder / "npu_module_mem.csv", stage.folder / "npu_module_mem_1.csv"
    mb.write_text(
        "Device_id,Component,Timestamp(us),Total Reserved(MB),Device\n"
        "0,HCCL,1,2.5,NPU:0\n0,APP,2,-0.0009765625,NPU:0\n0,RUNTIME,when,1,NPU:0\n"
    )
    kb.write_text("Component,Timestamp(us),Total Reserved(KB),Device\nAPP,3,-1,NPU:0\n")
    log = stage.read(memory_record, {"module_memory": [mb, kb]})
    assert stage.rows(
        "select source, component, timestamp_ns, reserved_bytes from memory"
    ) == [
        ("module", "HCCL", 1000, 2621440), ("module", "APP", 2000, None),
        ("module", "APP", 3000, None),
    ]  # fmt: skip
    assert log.rows_lost == 1


def test_sizes_that_are_no_numbers_cost_only_themselves(stage: Staged) -> None:
    path = stage.folder / "memory_record.csv"
    path.write_text(
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\n"
        "PTA,1,N/A,2,NPU:0\nPTA,2,-,1,NPU:0\nPTA,3\nPTA,N/A,1,1,NPU:0\nGE,4,1,x,\n"
    )
    log = stage.read(memory_record, {"memory_record": path})
    assert stage.rows(
        "select component, timestamp_ns, allocated_bytes, reserved_bytes, device_id from memory"
    ) == [
        ("PTA", 1000, None, 2 * MIB, 0), ("PTA", 2000, None, MIB, 0), ("GE", 4000, MIB, None, None)
    ]  # fmt: skip
    assert log.rows_lost == 2
    assert [w.partition(": ")[2] for w in log.warnings] == [
        "1 broken rows left out, the first at line 4", "1 rows left out: no valid time"
    ]  # fmt: skip
    # What a spreadsheet made of digits is told: a release that is unknown is none.
    path.write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Allocation Total Allocated(MB),"
        'Device Type\naten::mm,"1,234.5",1\t,"1,736.5",####,NPU:0\naten::mm,2,1\t,2\t,3,NPU:0\n'
    )
    log = stage.read(memory_record, {"operator_memory": path})
    assert stage.rows("select size_bytes, released_at_ns from operator_memory") == [
        (None, None), (2048, 2000)
    ]  # fmt: skip
    assert log.warnings == [
        "memory_record.csv: 3 values in Size(KB), Allocation Total Allocated(MB), Release Time(us)"
        " are no numbers: they are unknown"
    ]
    path.write_text(  # of a table that is well-formed but for a time
        "Name,Size(KB),Allocation Time(us),Release Time(us),Device Type\n"
        'aten::mm,2,1\t,"1,736.5",NPU:0\naten::mm,2,1\t,,NPU:0\n'
    )
    log = stage.read(memory_record, {"operator_memory": path})
    assert log.warnings == [
        "memory_record.csv: 1 values in Release Time(us) are no numbers: they are unknown"
    ]


def test_blocks_freed_outside_the_window(stage: Staged) -> None:
    new, old = stage.folder / "operator_memory.csv", stage.folder / "operator_memory_2.csv"
    new.write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
        "Active Duration(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
        "Allocation Total Active(MB),Release Total Allocated(MB),Release Total Reserved(MB),"
        "Release Total Active(MB),Stream Ptr,Device Type\n"
        "aten::mm,0.5,10.001\t,20.002\t,19\t,10.001\t,8.999\t,1,2,3,4,5,6,9,NPU:1\n"
        ",-512.0,,30.5\t,,,,,,,1,,,9,NPU:1\n"
        "aten::keep,1,40,,,,,1,2,3,,,,9,NPU:1\n"
    )
    old.write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),"
        "Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
        "Release Total Allocated(MB),Release Total Reserved(MB),Device Type\n"
        "cann::x,2,1,2,1,1,1,1,1,NPU:0\n"
    )
    stage.read(memory_record, {"operator_memory": [new, old]})
    assert stage.rows("select * from operator_memory") == [
        (1, "aten::mm", 512, 10001, 20002, 19000, 10001, 8999, MIB, 2 * MIB, 3 * MIB, 4 * MIB,
         5 * MIB, 6 * MIB, "9"),
        (1, None, -524288, None, 30500, None, None, None, None, None, None, MIB, None, None, "9"),
        (1, "aten::keep", 1024, 40000, None, None, None, None, MIB, 2 * MIB, 3 * MIB, None, None,
         None, "9"),
        (0, "cann::x", 2048, 1000, 2000, None, 1000, None, MIB, MIB, None, MIB, MIB, None, None),
    ]  # fmt: skip
    # A release that is no time, or before its allocation, is none.
    stage.con.execute("delete from operator_memory")
    times = ("0,0,0,0", "-1,-1,,", "30,45,-10,5", "60,50,20,10", "50,45,10,5")
    lines = [f"aten::{i},1,40,{one},1,2,3,,,,9,NPU:0\n" for i, one in enumerate(times)]
    new.write_text(new.read_text().partition("\n")[0] + "\n" + "".join(lines))
    log = stage.read(memory_record, {"operator_memory": new})
    link(stage.con, RankSource("job", "pytorch", 0, "test", {}), log)
    assert stage.rows("""
        select released_at_ns, active_released_at_ns, dur_ns, active_dur_ns from operator_memory
        order by name""") == [
        (None, None, None, None), (None, None, None, None), (None, 45000, None, 5000),
        (60000, 50000, 20000, 10000), (50000, 45000, 10000, 5000),
    ]  # fmt: skip
    [told] = log.warnings
    assert told.startswith("operator_memory: 3 blocks have a release that is no time")


def test_one_bad_file_does_not_hide_the_others(stage: Staged) -> None:
    bad, good = stage.folder / "memory_record.csv", stage.folder / "npu_module_mem.csv"
    text = "Component,Timestamp(us),Total Reserved(MB),Device\nAPP,1,1,NPU:0\n"
    good.write_text(text)
    for content in ("no,such,columns\n", text.replace("(MB)", "(GB)")):  # a unit nobody knows
        stage.con.execute("delete from memory")
        bad.write_text(content)
        with pytest.raises(TraceFormatError, match=r"memory_record.*no column T"):
            stage.read(memory_record, {"memory_record": bad, "module_memory": good})
        assert stage.con.execute("select count(*) from memory").fetchone() == (1,)
