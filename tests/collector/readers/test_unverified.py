"""What was read by format descriptions only: told of generated captures, never of real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.model import RankSource, ReadLog
from npuscope.collector.readers.unverified_forms import (
    UNVERIFIED_FORMS,
    unverified_keys,
    unverified_parts,
)
from npuscope.collector.store.manifest import manifests
from npuscope.sample_traces.generate import small, write_job

REAL = (
    "alexnet_ddp_text_level0", "alexnet_ddp_text_level1", "alexnet_ddp_db_level0",
    "alexnet_ddp_db_level1", "qwen3_pp2_dp2_text_level2", "msprof_timeline_2023",
)  # fmt: skip
SOURCE = RankSource("root", "pytorch", 0, "test", {})


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_profiles_have_nothing_of_the_list(real_data: Path, tmp_path: Path, name: str) -> None:
    ingest(real_data / name, tmp_path / "store")
    found = [m.unverified for m in manifests(tmp_path / "store")]
    assert found == [[]] * (1 if name == "msprof_timeline_2023" else 2)


def test_a_generated_moe_job_has_all_to_all(tmp_path: Path) -> None:
    write_job(small(), tmp_path / "job", forms={0: ("db",), 1: ("text",)})
    ingest(tmp_path / "job", tmp_path / "store")
    found = [m.unverified for m in manifests(tmp_path / "store")]
    assert found[0] == found[1]
    assert found[0] is not None and {"all_to_all", "hccl_kernels"} <= set(found[0])


ROWS = {
    "all_to_all": "insert into comm_times (op_type) values ('allToAllV')",
    "other_operations": "insert into comm_ops (op_type) values ('broadcast')",
    "remote_links": "insert into comm_links (link) values ('RDMA')",
    "other_links": "insert into comm_links (link) values ('PCIE')",
    "hccl_kernels": "insert into kernels (is_compute) values (false)",
    "other_cores": "insert into kernels (core) values ('DVPP')",
    "graph_mode": "insert into kernels (model_id) values (3)",
    "several_devices": "insert into kernels (device_id) values (0), (1)",
    "master_plane": "insert into comm_tasks (is_master) values (false)",
    "mstx": "insert into marks (kind) values ('mstx')",
    "gc": "insert into host_ops (kind) values ('gc')",
    "memory_components": "insert into memory (source, component) values ('record', 'WORKSPACE')",
    "counters": "insert into counters (name) values ('RoCE 0')",
}
VERIFIED = (
    "insert into comm_ops (op_type) values ('allReduce'), ('batchSendRecv'), (null)",
    "insert into comm_tasks (link, transport) values ('HCCS', 'SDMA'), (null, 'LOCAL')",
    "insert into comm_tasks (link, transport) values ('PCIE', 'SDMA')",
    "insert into kernels (core, is_compute, device_id) values ('AI_CPU', true, 3)",
    "insert into kernels (core, is_compute, device_id) values ('AI_CORE', true, 3)",
    "insert into kernels (core, is_compute, device_id) values (null, true, 3)",
    "insert into marks (kind) values ('profiler_step')",
    "insert into host_ops (kind) values ('operator')",
    "insert into memory (source, component) values ('record', 'PTA'), ('module', 'RUNTIME')",
    "insert into counters (name) values ('HBM 0/Read'), ('AI Core Freq'), ('read_bandwidth')",
)  # fmt: skip


@pytest.mark.parametrize(("key", "row"), ROWS.items(), ids=ROWS)
def test_each_thing_is_met_by_its_own_rows(
    staging: duckdb.DuckDBPyConnection, key: str, row: str
) -> None:
    for verified in VERIFIED:
        staging.execute(verified)
    assert unverified_keys(staging, SOURCE, ReadLog()) == []
    staging.execute(row)
    assert unverified_keys(staging, SOURCE, ReadLog()) == [key]


def test_frameworks_and_rules_are_met(staging: duckdb.DuckDBPyConnection) -> None:
    assert unverified_keys(staging, replace(SOURCE, framework="mindspore"), ReadLog()) == [
        "mindspore"
    ]
    for one in UNVERIFIED_FORMS:
        name, variants = one.rule
        for variant in variants:
            assert unverified_keys(staging, SOURCE, ReadLog(rules={name: variant})) == [one.key]


def test_every_entry_can_be_met_and_is_tested() -> None:
    keys = [one.key for one in UNVERIFIED_FORMS]
    assert len(set(keys)) == len(keys)
    assert set(ROWS) == {one.key for one in UNVERIFIED_FORMS if one.sql}
    assert all(one.sql or one.frameworks or one.rule[1] for one in UNVERIFIED_FORMS)


def test_keys_are_told_once_and_strange_ones_as_they_are() -> None:
    texts = unverified_parts(["block_num", "block_num_db", "of_another_version"])
    assert texts == ["the columns Block Num and blockNum, of 2026 and later", "of_another_version"]
