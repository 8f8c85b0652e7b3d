"""Communication of real runs: golden figures, and the same rows from JSON as from analysis.db."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.readers.ascend_db import analysis_db
from npuscope.collector.readers.hccl import communication
from tests.collector.conftest import Staged

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
    stage: Staged, real_data: Path, goldens: dict[str, Any], dataset: str, folder: str, rank: str
) -> None:
    log = stage.read(communication, real_data / dataset / folder)
    ((step, categories),) = goldens[dataset][rank]["communication"].items()
    for category, golden in categories.items():
        check_times(stage.con, category, golden["total"])
        check_links(stage.con, category, golden["transport"])
        by_type = stage.rows(
            """select op_type, count(*), sum(elapse_ns) from comm_times
            where category = ? group by 1""",
            [category],
        )
        assert {name: (n, elapse) for name, n, elapse in by_type} == {
            name: (g["count"], near(g["elapse_ms"])) for name, g in golden["by_type"].items()
        }
    for table in TABLES:
        steps = stage.rows(f"select distinct step from {table}")
        assert steps == [(int(step.removeprefix("step")),)]
    assert (log.rows_lost, log.warnings) == (0, [])


def test_real_packets_sum_to_the_file_s_own_totals(
    stage: Staged, real_data: Path, goldens: dict[str, Any]
) -> None:
    stage.read(communication, real_data / "alexnet_ddp_text_level1" / "rank0_ascend_pt")
    totals = goldens["alexnet_ddp_text_level1"]["0"]["communication"]["step50"]["collective"]
    sizes = totals["total_op_info_file"]["Communication Bandwidth Info"]["HCCS"][
        "Size Distribution"
    ]
    found = stage.rows("""
        select p.size_bytes, sum(p.packet_count)::bigint, sum(p.time_ns)
        from (select unnest(packets) as p from comm_links where link = 'HCCS')
        group by 1""")
    assert {size: (count, time) for size, count, time in found} == {
        float(size) * 1e6: (count, near(ms)) for size, (count, ms) in sizes.items()
    }


@pytest.mark.parametrize(("folder", "rank"), QWEN)
def test_database_and_json_of_a_real_run_give_the_same_rows(
    stage: Staged, real_data: Path, folder: str, rank: str
) -> None:
    path = real_data / "qwen3_pp2_dp2_text_level2" / folder
    found = []
    for reader in (communication, analysis_db):
        stage.read(reader, path)
        found.append({t: stage.rows(f"select * from {t} order by all") for t in TABLES})
        for table in TABLES:
            stage.con.execute(f"delete from {table}")
    assert [len(rows) for rows in found[0].values()] == {"0": [15, 16, 67], "1": [15, 22, 73]}[rank]
    assert found[0] == found[1]


@pytest.mark.parametrize(("folder", "rank"), QWEN)
def test_real_analysis_database_matches_the_golden_figures(
    stage: Staged, real_data: Path, goldens: dict[str, Any], folder: str, rank: str
) -> None:
    stage.read(analysis_db, real_data / "qwen3_pp2_dp2_text_level2" / folder)
    golden = goldens["qwen3_pp2_dp2_text_level2"][rank]["analysis_db"]
    for category, types in golden["CommAnalyzerTime"].items():
        for op_type, figures in types.items():
            row = stage.con.execute(
                """select count(*), sum(elapse_ns), sum(transit_ns), sum(wait_ns) from comm_times
                where category = ? and op_type = ?""",
                [category, op_type],
            ).fetchone()
            times = (figures[f"{key}_ms"] for key in ("elapse", "transit", "wait"))
            assert row == (figures["count"], *map(near, times))
        check_links(stage.con, category, golden["CommAnalyzerBandwidth"][category])
    steps = golden["profiler_StepTraceTime"][0]
    assert stage.rows("""select device_id, step, computing_ns, communication_ns, free_ns,
        stage_ns, preparing_ns from profiler_steps""") == [
        (steps["deviceId"], int(steps["step"]), *(
            float(steps[k]) * 1000
            for k in ("computing", "communication", "free", "stage", "preparing")
        ))
    ]  # fmt: skip
