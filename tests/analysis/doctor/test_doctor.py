"""Reports on generated captures: whole, with parts removed, lightly read, from old stores."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from npuscope.analysis.doctor.doctor import CaptureReport, Loss, Overhead, RankReport, examine
from npuscope.analysis.doctor.judge import Verdict
from npuscope.analysis.flops.mfu import mfu
from npuscope.analysis.scope import Scope
from npuscope.analysis.summaries import summaries, summarise
from npuscope.analysis.views import open_views
from npuscope.collector import schema
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import store
from npuscope.collector.store.export import export
from npuscope.collector.store.manifest import MANIFEST, manifests
from npuscope.sample_traces.generate import small, write_job
from tests.analysis.tables import connect, fill, kernel, op


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same two ranks as `text` and as `db`."""
    folder = tmp_path_factory.mktemp("jobs")
    write_job(small(), folder / "text", forms=("text",))
    write_job(small(), folder / "db", forms=("db",))
    return folder


def read(path: Path, into: Path, **selected: Any) -> list[CaptureReport]:
    """Ingest and examine."""
    chosen = parse_selection(**selected) if selected else None
    ingest(path, into, summarise=summarise, jobs=1, selection=chosen)
    return reports(into)


def reports(path: Path) -> list[CaptureReport]:
    with closing(store.open(path, summaries={s.name: s.version for s in summaries()})) as con:
        return examine(con, manifests(path))


def rank_of(found: list[CaptureReport], rank: int) -> RankReport:
    (capture,) = found
    return next(one for one in capture.ranks if one.rank == rank)


def supports(rank: RankReport) -> dict[str, str]:
    return {one.capability: one.support for one in rank.verdicts}


def verdict(rank: RankReport, name: str) -> Verdict:
    return next(one for one in rank.verdicts if one.capability == name)


WHOLE = dict.fromkeys(
    ("steps", "kernels", "pmu", "masking", "groups", "waiting", "links", "matrix", "host",
     "dispatch", "memory", "operator_memory", "mfu", "peers"), "yes",
) | {
    "replay": "partly", "stacks": "no", "experts": "no", "frequency": "partly", "bandwidth": "no",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of the unharmed jobs."""
    folder = tmp_path_factory.mktemp("whole")
    for form in ("text", "db"):
        read(jobs / form, folder / form)
    return {form: folder / form for form in ("text", "db")}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_a_whole_capture(whole: dict[str, Path], form: str) -> None:
    (capture,) = reports(whole[form])
    assert (capture.run, capture.world_size, capture.missing_ranks) == (form, 2, ())
    assert capture.overhead == Overhead(
        reason="no step times from the training log: `npuscope ingest PATH --train-log FILE`"
    )
    assert [one.rank for one in capture.ranks] == [0, 1]
    assert {v.capability: v.support for v in capture.verdicts} == {**WHOLE, "ranks": "yes"}
    assert all(not one.deviations for one in capture.verdicts)
    for rank in capture.ranks:
        assert supports(rank) == WHOLE
        assert rank.loss == Loss(0, 0, {}) and not rank.loss.is_any
        assert (rank.steps.steps, rank.steps.missing) == ((12, 13), ())
        assert rank.steps.covered_ratio is not None and 0.5 < rank.steps.covered_ratio < 1
        assert rank.options is not None and rank.options["profiler_level"] == "Level1"
        assert rank.facts["clock"] == rank.rules["clock"] == "epoch"
        assert rank.rules["basis"] == "events"
        assert rank.rules["producers_communication"] == "operations, as here"
        assert rank.origin == rank.rules["rank"] == "number in profiler_info's name"
        assert rank.unverified and any("all-to-all" in text for text in rank.unverified)


@pytest.mark.slow
def test_rules_tell_where_things_come_from(whole: dict[str, Path]) -> None:
    text, db = (rank_of(reports(whole[form]), 1) for form in ("text", "db"))
    assert text.rules["steps"] == "Step Id of the kernel table"
    assert text.rules["communication"] == "operations of the timeline"
    assert text.rules["kernels.block_count_column"] == "Block Dim"
    assert text.rules["kernels.communication_core"] == "COMMUNICATION"
    assert text.rules["trace.communication_process"] == "Communication"
    assert text.rules["trace.device_label"] == "NPU and its number"
    assert text.rules["profiler_steps.late_columns"] == "Device_id, Preparing"
    assert db.rules["steps"] == "STEP_TIME of the DB"
    assert db.rules["communication"] == "operations of the DB"
    assert db.rules["ascend_db.master_plane"] == "none"
    assert text.sources["kernels"] == "kernel_details" and db.sources["kernels"] == "ascend_db"
    assert text.sources["comm_times"] == "communication"
    assert db.sources["comm_times"] == "analysis_db"
    assert set(text.sources) == set(db.sources) == set(text.counts) & set(schema.tables())


def test_counts_are_those_of_the_tables(whole: dict[str, Path]) -> None:
    for path in whole.values():
        with closing(store.open(path)) as con:
            ranks = reports(path)[0].ranks
            for table in schema.tables():
                query = f'select rank, count(*) from "{table}" group by rank'
                counts = dict(con.execute(query).fetchall())
                for rank in ranks:
                    told = (table, rank.counts.get(table, 0))
                    assert told == (table, counts.get(rank.rank, 0)) or table == "steps"


# What is removed -> analyses that change, and words of the reason and of the remedy.
TEXT_PARTS: dict[str, tuple[dict[str, str], str, str]] = {
    "trace_view.json": (
        {"steps": "partly", "host": "no", "dispatch": "no", "peers": "partly", "frequency": "no"},
        "(trace_view.json or DB is not here)", "analyse()",
    ),
    "communication.json": (
        {"waiting": "no"}, "waiting and transfer cannot be separated", "analyse()",
    ),
    "communication_matrix.json": (
        {"matrix": "no"}, "(communication_matrix.json or analysis.db is not here)", "analyse()",
    ),
    "memory_record.csv": (
        {"memory": "partly"}, "only memory of CANN's modules (memory_record.csv", "analyse()",
    ),
    "operator_memory.csv": (
        {"operator_memory": "no"}, "(operator_memory.csv or DB is not here)", "analyse()",
    ),
}  # fmt: skip
DB_PARTS: dict[tuple[str, ...], dict[str, str]] = {
    ("TASK_PMU_INFO",): {"pmu": "no", "mfu": "partly"},
    ("MEMORY_RECORD",): {"memory": "partly"},
    ("MEMORY_RECORD", "NPU_MEM", "NPU_MODULE_MEM"): {"memory": "no"},
    ("OP_MEMORY",): {"operator_memory": "no"},
    ("AICORE_FREQ",): {"frequency": "no"},
    ("PYTORCH_API",): {"host": "partly", "dispatch": "partly"},
    ("CANN_API",): {"host": "partly", "dispatch": "no"},
    ("CANN_API", "PYTORCH_API"): {"host": "no", "dispatch": "no"},
    ("STEP_TIME", "META_DATA"): {},  # PYTORCH_API names the steps, too
    ("STEP_TIME", "META_DATA", "PYTORCH_API"): {
        "steps": "partly",
        "host": "partly",
        "dispatch": "partly",
    },
}


def one_rank(job: Path, into: Path) -> Path:
    """A copy of rank 0's folder; returns its output folder."""
    (root,) = (path.parent for path in job.glob("*/profiler_info_0.json"))
    shutil.copytree(root, into / root.name)
    return into / root.name / "ASCEND_PROFILER_OUTPUT"


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_PARTS)
def test_a_file_that_is_gone_turns_off_what_needs_it(jobs: Path, tmp_path: Path, name: str) -> None:
    (one_rank(jobs / "text", tmp_path / "job") / name).unlink()
    rank = rank_of(read(tmp_path / "job", tmp_path / "store"), 0)
    changed, reason, remedy = TEXT_PARTS[name]
    assert supports(rank) == {**WHOLE, **changed}
    for capability in changed:
        assert reason in (verdict(rank, capability).reason or "")
        assert remedy in (verdict(rank, capability).remedy or "")
    assert not rank.loss.is_any


@pytest.mark.slow
@pytest.mark.parametrize("tables", DB_PARTS, ids=lambda tables: "+".join(tables))
def test_a_table_that_is_gone_turns_off_what_needs_it(
    jobs: Path, tmp_path: Path, tables: tuple[str, ...]
) -> None:
    output = one_rank(jobs / "db", tmp_path / "job")
    with closing(sqlite3.connect(next(output.glob("ascend_pytorch_*.db")))) as database:
        for table in tables:
            database.execute(f"drop table if exists {table}")
        database.commit()
    rank = rank_of(read(tmp_path / "job", tmp_path / "store"), 0)
    assert supports(rank) == {**WHOLE, **DB_PARTS[tables]}


def test_level0_is_told_to_become_level1(jobs: Path, tmp_path: Path) -> None:
    output = one_rank(jobs / "db", tmp_path / "job")
    (output / "analysis.db").unlink()
    info = output.parent / "profiler_info_0.json"
    told = json.loads(info.read_text())
    told["config"]["experimental_config"] |= {
        "_profiler_level": "Level0", "_aic_metrics": "ACL_AICORE_NONE",
    }  # fmt: skip
    info.write_text(json.dumps(told))
    with closing(sqlite3.connect(next(output.glob("ascend_pytorch_*.db")))) as database:
        database.execute("drop table TASK_PMU_INFO")
        database.execute("drop table COMMUNICATION_TASK_INFO")
        database.commit()
    rank = rank_of(read(tmp_path / "job", tmp_path / "store"), 0)
    for capability in ("pmu", "waiting", "links", "matrix"):
        found = verdict(rank, capability)
        assert found.support == "no"
        assert "profiler_level=ProfilerLevel.Level1" in (found.remedy or "")
        assert "level1" in [setting.name for setting in found.settings]
    assert "pmu" in [setting.name for setting in verdict(rank, "pmu").settings]


@pytest.mark.slow
def test_a_missing_rank_and_a_missing_step_are_named(jobs: Path, tmp_path: Path) -> None:
    write_job(small(layers=2, pp=2), tmp_path / "job", forms=("text",))
    (gone,) = (path.parent for path in (tmp_path / "job").glob("*/profiler_info_3.json"))
    shutil.rmtree(gone)
    (short,) = (path.parent for path in (tmp_path / "job").glob("*/profiler_info_1.json"))
    table = short / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    rows = table.read_text().splitlines(keepends=True)
    table.write_text("".join(row for row in rows if not row.startswith("13,")))
    (short / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").unlink()
    (capture,) = read(tmp_path / "job", tmp_path / "store")
    assert (capture.world_size, capture.missing_ranks) == (4, (3,))
    assert {r.rank: (r.steps.steps, r.steps.missing) for r in capture.ranks} == {
        0: ((12, 13), ()), 1: ((12,), (13,)), 2: ((12, 13), ()),
    }  # fmt: skip
    ranks = capture.verdicts[-1]
    assert (ranks.capability, ranks.support) == ("ranks", "partly")
    assert ranks.reason == "rank 3 missing; rank 1 lacks step 13"
    by_name = {one.capability: one for one in capture.verdicts}
    assert [d.ranks for d in by_name["host"].deviations] == [(1,)]
    assert by_name["host"].support == "yes"


def test_a_damaged_file_is_told_and_not_asked_for_again(jobs: Path, tmp_path: Path) -> None:
    output = one_rank(jobs / "text", tmp_path / "job")
    (output / "operator_memory.csv").write_bytes(b"\x00\x01garbage\n")
    rank = rank_of(read(tmp_path / "job", tmp_path / "store"), 0)
    assert rank.loss.is_any and rank.loss.files
    assert [Path(path).name for path in rank.loss.files] == ["operator_memory.csv"]
    found = verdict(rank, "operator_memory")
    assert found.reason == "no blocks of memory (operator_memory.csv was not read in full)"
    assert found.settings == ()


def test_a_light_reading_asks_for_a_full_one(jobs: Path, tmp_path: Path) -> None:
    found = read(jobs / "db", tmp_path / "store", tables="comm_times,comm_links,comm_matrix")
    rank = rank_of(found, 0)
    kernels = verdict(rank, "kernels")
    assert kernels.support == "no"
    assert "not selected when the rank was read" in (kernels.reason or "")
    assert "`npuscope ingest PATH --tables kernels" in (kernels.remedy or "")
    assert kernels.settings == ()
    assert supports(rank)["waiting"] == supports(rank)["links"] == "yes"


def test_an_old_manifest_tells_less_and_is_no_error(whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(whole["db"], tmp_path / "old")
    for path in (tmp_path / "old").rglob(MANIFEST):
        manifest = json.loads(path.read_bytes())
        del manifest["options"], manifest["unverified"]
        manifest["rules"] = {"ascend_db.schema_version": "1.0.0"}
        manifest["summaries"] = {
            name: one for name, one in manifest["summaries"].items() if name != "rank_contents"
        }
        path.write_bytes(msgspec.json.encode(manifest))
    rank = rank_of(reports(tmp_path / "old"), 0)
    assert (rank.options, rank.unverified, rank.sources) == (None, None, {})
    assert rank.counts == rank_of(reports(whole["db"]), 0).counts
    assert supports(rank) == WHOLE
    # Nothing tells that stacks were not asked for: both settings are named.
    assert verdict(rank, "stacks").settings
    assert rank.rules["ascend_db.schema_version"] == "1.0.0"


def test_an_exported_file_tells_what_tables_know(whole: dict[str, Path], tmp_path: Path) -> None:
    versions = {one.name: one.version for one in summaries()}
    with closing(store.open(whole["db"], summaries=versions)) as con:
        open_views(con)
        export(con, "duckdb", tmp_path / "all.duckdb", summaries=versions)
    with closing(store.open(tmp_path / "all.duckdb", summaries=versions)) as con:
        (capture,) = examine(con)
    rank = capture.ranks[0]
    assert supports(rank) == WHOLE
    assert rank.loss == Loss(None, None, None)
    assert (rank.root, rank.options, rank.warnings, rank.origin) == (None, None, None, None)
    assert rank.rules["clock"] == "epoch"


def test_one_rank_is_reported_beside_what_is_missing_of_all(whole: dict[str, Path]) -> None:
    with closing(store.open(whole["text"])) as con:
        read_ones = manifests(whole["text"])
        (capture,) = examine(con, read_ones, Scope(rank=1))
        assert [one.rank for one in capture.ranks] == [1]
        assert capture.missing_ranks == ()
        assert capture.verdicts[-1].support == "yes"
        assert (
            examine(con, read_ones, Scope(rank=9)) == examine(con, read_ones, Scope("other")) == []
        )


@pytest.fixture
def con() -> Iterator[Any]:
    con = connect()
    fill(con, "ranks", [{"rank": rank, "clock": "epoch"} for rank in range(2)])
    yield con
    con.close()


def test_the_profilers_overhead_comes_from_the_training_log(con: Any) -> None:
    fill(con, "kernels", [kernel(0, 10, step, rank=rank) for step in (5, 6) for rank in (0, 1)])
    seconds = dict.fromkeys(range(20), 2.0) | {5: 3.0, 6: 3.0, 7: 50.0, 4: 9.0}
    fill(con, "train_log", [
        {"rank": rank, "step": step, "elapsed_s": taken}
        for step, taken in seconds.items() for rank in (0, 1)
    ])  # fmt: skip
    (capture,) = examine(con)
    assert capture.overhead == Overhead(0.5, 3.0, 2.0, 2, 14)


def test_the_producers_rule_is_told_by_its_figures(con: Any) -> None:
    fill(con, "kernels", [kernel(0, 10, 1, rank=rank) for rank in (0, 1)])
    fill(con, "comm_ops", [op(0, 1_000_000, 1, rank=rank) for rank in (0, 1)])
    fill(con, "profiler_steps", [
        {"rank": 0, "step": 1, "communication_ns": 1_000_400.0},
        {"rank": 1, "step": 1, "communication_ns": 700_000.0},
    ])  # fmt: skip
    (capture,) = examine(con)
    assert [one.rules["producers_communication"] for one in capture.ranks] == [
        "operations, as here", "shorter than its operations: tasks, as exports before 2024-10",
    ]  # fmt: skip


def test_a_group_tells_how_many_ranks_there_are_at_least(con: Any) -> None:
    fill(con, "comm_matrix", [{"src_group_rank": 7, "dst_group_rank": 2}])
    (capture,) = examine(con)
    assert (capture.missing_ranks, capture.least_rank_count) == (None, 8)
    fill(con, "groups", [{"global_ranks": [0, 1, 5]}])
    (capture,) = examine(con)
    assert capture.missing_ranks == (5,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "cycles", "chip", "support", "reason"),
    [
        (20, 3_000.0, None, "yes", None),
        (64, 3_000.0, None, "partly", "peak unknown: 64 blocks are no known chip's cores"),
        (64, 3_000.0, "Ascend910A", "yes", None),
        (64, None, "Ascend910B4", "yes", None),
        (20, None, None, "partly", "no cycles measured"),
    ],
)
def test_whether_the_peak_is_known_is_what_mfu_finds(
    blocks: int, cycles: float | None, chip: str | None, support: str, reason: str | None
) -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "chip_name": chip, "framework": "pytorch"}])
    shapes = {"input_shapes": "64,32;32,16", "output_shapes": "64,16"}
    cube = kernel(0, 100, 1, type="MatMulV3", core="AI_CORE", block_count=blocks,
                  aic_time_ns=2_000.0 / blocks, aic_cycles=cycles, **shapes)  # fmt: skip
    fill(con, "kernels", [cube])
    (report,) = examine(con)
    told = verdict(report.ranks[0], "mfu")
    assert told.support == support
    assert (told.reason or "").startswith(reason or "") and bool(told.reason) == bool(reason)
    (row,) = mfu(con).rows.to_dicts()
    assert (row["peak_flops_per_s"] is not None) == (support == "yes")
