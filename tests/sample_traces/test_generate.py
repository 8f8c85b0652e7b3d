"""The generator against itself: files say what the truth says, in the real files' own layout."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from npuscope.collector import schema
from npuscope.sample_traces.capture import Capture, captures
from npuscope.sample_traces.generate import (
    COMMITTED_FORMS,
    COMMITTED_JOB,
    canonical_frames,
    main,
    small,
    write_job,
)

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "moe_8_ranks"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
JOB = small(
    name="four", layers=2, pp=2, micro_batches=2, slow_rank=3, ranks_per_host=2,
    clock_offsets_ns=(0, 0, 1_000_000, -77), seed=7,
)  # fmt: skip


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("job")
    write_job(JOB, out)
    return out


@pytest.fixture(scope="module")
def truth(sample: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((sample / "truth.json").read_text())
    return facts


@pytest.fixture(scope="module")
def profiles() -> list[Capture]:
    return captures(JOB)


def _output(written: Path, planted: dict[str, Any], rank: int) -> Path:
    folder: str = planted["captures"][str(rank)]["folder"]
    return written / folder / OUTPUT


def _query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


def _ns(text: str) -> int:
    whole, _, fraction = text.strip().partition(".")
    assert len(fraction) in (0, 3)
    return int(whole) * 1000 + int(fraction or 0)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert rows and all(None not in row and None not in row.values() for row in rows), path
    return rows


# What was written


def test_every_file_reads(sample: Path, truth: dict[str, Any], profiles: list[Capture]) -> None:
    for c in profiles:
        facts = truth["ranks"][str(c.rank)]
        listed = truth["captures"][str(c.rank)]
        root = sample / listed["folder"]
        found = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        assert found == listed["files"]
        for path in root.rglob("*.json"):
            assert json.loads(path.read_text(encoding="utf-8"))
        for path in root.rglob("*.csv"):
            _rows(path)
        db = root / OUTPUT / f"ascend_pytorch_profiler_{c.rank}.db"
        rows = _rows(root / OUTPUT / "kernel_details.csv")
        ops = [row for row in rows if row["Accelerator Core"] == "COMMUNICATION"]
        assert (
            len(ops)
            == facts["comm_ops"]
            == _query(db, "select count(*) from COMMUNICATION_OP")[0][0]
        )
        assert len(rows) - len(ops) == facts["kernel_rows"]
        assert _query(db, "select count(*) from COMPUTE_TASK_INFO")[0][0] == facts["kernel_rows"]
        assert facts["compute_kernels"] == facts["kernel_rows"] - JOB.steps  # the AivKernel
        tasks = _query(db, "select count(*) from COMMUNICATION_TASK_INFO")
        assert tasks[0][0] == facts["comm_tasks"] > 0


def test_text_and_database_hold_the_planted_times(
    sample: Path, truth: dict[str, Any], profiles: list[Capture]
) -> None:
    for c in profiles:
        output = _output(sample, truth, c.rank)
        kernels = sorted((k.start_ns, k.start_ns + k.dur_ns, k.work.name) for k in c.kernels)
        ops = sorted((o.start_ns, o.start_ns + o.dur_ns, o.name) for o in c.comm_ops)
        in_text: list[tuple[int, int, str]] = []
        for row in _rows(output / "kernel_details.csv"):
            assert row["Start Time(us)"].endswith("\t")
            start_ns = _ns(row["Start Time(us)"])
            in_text.append((start_ns, start_ns + _ns(row["Duration(us)"]), row["Name"]))
        assert sorted(in_text) == sorted(kernels + ops)
        db = output / f"ascend_pytorch_profiler_{c.rank}.db"
        assert kernels == sorted(_query(db, """
            select t.startNs, t.endNs, s.value from COMPUTE_TASK_INFO
            join TASK t using (globalTaskId) join STRING_IDS s on s.id = name"""))  # fmt: skip
        assert ops == sorted(_query(db, """
            select startNs, endNs, s.value from COMMUNICATION_OP
            join STRING_IDS s on s.id = opName"""))  # fmt: skip
        trace = _Trace(output / "trace_view.json")
        hardware = {(_ns(e["ts"]), e["name"]) for e in trace.slices("Ascend Hardware")}
        assert {(start, name) for start, _, name in kernels} <= hardware
        assert ops == sorted(
            (_ns(e["ts"]), _ns(e["ts"]) + round(e["dur"] * 1000), e["name"])
            for e in trace.slices("Communication") if "alg_type" in e["args"]
        )  # fmt: skip


class _Trace:
    """Events of a timeline by the name of their process."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        self.processes: dict[int, str] = {
            e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"
        }

    def slices(self, process: str) -> Iterator[dict[str, Any]]:
        for event in self.events:
            if event["ph"] == "X" and self.processes[event["pid"]] == process:
                yield event


def test_launches_give_the_device_range_of_each_step(sample: Path, truth: dict[str, Any]) -> None:
    for rank in range(JOB.world_size):
        output = _output(sample, truth, rank)
        expected = {
            int(step): (facts["device_start_ns"], facts["device_end_ns"])
            for step, facts in truth["ranks"][str(rank)]["steps"].items()
        }
        for level in ("c.type = 10000", "true"):  # kernels alone, or every task
            assert expected == {
                row[0]: row[1:]
                for row in _query(output / f"ascend_pytorch_profiler_{rank}.db", f"""
                select s.id, min(t.startNs), max(max(t.endNs), s.endNs)
                from STEP_TIME s
                join CANN_API c on c.startNs >= s.startNs and c.startNs < s.endNs
                join TASK t on t.connectionId = c.connectionId
                where {level} group by s.id, s.endNs""")
            }  # fmt: skip
        trace = _Trace(output / "trace_view.json")
        starts = {e["id"]: _ns(e["ts"]) for e in trace.events
                  if e["ph"] == "s" and e.get("cat") == "HostToDevice"}  # fmt: skip
        tasks = {(e["pid"], e["tid"], e["ts"]): _ns(e["ts"]) + round(e["dur"] * 1000)
                 for process in ("Ascend Hardware", "Communication")
                 for e in trace.slices(process)}  # fmt: skip
        ends = [e for e in trace.events if e["ph"] == "f" and e["cat"] == "HostToDevice"]
        for event in trace.slices("Python"):
            if not event["name"].startswith("ProfilerStep#"):
                continue
            first = _ns(event["ts"])
            last = first + round(event["dur"] * 1000)
            mine = [e for e in ends if first <= starts[e["id"]] < last]
            found = (
                min(_ns(e["ts"]) for e in mine),
                max(last, *(tasks[e["pid"], e["tid"], e["ts"]] for e in mine)),
            )
            assert found == expected[int(event["name"].split("#")[1])]


def test_printed_step_table_follows_from_the_timeline(sample: Path, truth: dict[str, Any]) -> None:
    for rank in range(JOB.world_size):
        output = _output(sample, truth, rank)
        slices = list(_Trace(output / "trace_view.json").slices("Overlap Analysis"))
        for row in _rows(output / "step_trace_time.csv"):
            facts = truth["ranks"][str(rank)]["steps"][row["Step"]]
            total: dict[str, float] = {}
            for event in slices:
                if facts["device_start_ns"] <= _ns(event["ts"]) < facts["device_end_ns"]:
                    total[event["name"]] = total.get(event["name"], 0.0) + event["dur"]
            for name, value in total.items():
                assert float(row[name]) == value
            # Nothing of the table's own rule shifts computing or communication here.
            assert abs(float(row["Computing"]) * 1000 - facts["computing_ns"]) < 0.01
            assert abs(float(row["Communication"]) * 1000 - facts["communication_ns"]) < 0.01
            assert abs(float(row["Bubble"]) * 1000 - facts["profiler_bubble_ns"]) < 0.01


def test_folders_do_not_tell_the_rank(truth: dict[str, Any]) -> None:
    by_rank = [truth["captures"][str(rank)]["folder"] for rank in range(JOB.world_size)]
    assert by_rank != sorted(by_rank)


def test_canonical_frames_match_schema_and_truth(truth: dict[str, Any]) -> None:
    frames = canonical_frames(JOB)
    for name, frame in frames.items():
        keys = [column for column, _ in schema.KEY_COLUMNS]
        assert frame.columns == [*keys, *(c.name for c in schema.tables()[name].columns)]
        assert frame["rank"].n_unique() == JOB.world_size
    for rank, facts in truth["ranks"].items():
        mine = {name: f.filter(pl.col("rank") == int(rank)) for name, f in frames.items()}
        assert mine["kernels"]["is_compute"].sum() == facts["compute_kernels"]
        assert mine["comm_ops"].height == facts["comm_ops"]
        assert mine["comm_tasks"].height == facts["comm_tasks"]
        for step, figures in facts["steps"].items():
            kernels = mine["kernels"].filter(pl.col("step") == int(step), pl.col("is_compute"))
            for type_, sums in figures["kernels"].items():
                durations = kernels.filter(pl.col("type") == type_)["dur_ns"]
                assert (durations.len(), durations.sum(), durations.max()) == (
                    sums["count"], sums["total_ns"], sums["max_ns"])  # fmt: skip
    load = frames["expert_load"].group_by("step", "layer", "expert").agg(pl.col("tokens").sum())
    assert sorted(load.rows()) == sorted(tuple(row) for row in truth["expert_load"])


# Like the real ones


def test_tables_have_the_real_headers(sample: Path, truth: dict[str, Any], real_data: Path) -> None:
    output = _output(sample, truth, 0)
    real = real_data / "qwen3_pp2_dp2_text_level2" / "rank_0_ascend_pt" / OUTPUT
    for path in output.glob("*.csv"):
        with path.open() as mine, (real / path.name).open() as theirs:
            assert mine.readline().rstrip() == theirs.readline().rstrip(), path.name
    for name in ("profiler_info_0.json", "profiler_metadata.json"):
        assert _shape(json.loads((output.parent / name).read_text())) == _shape(
            json.loads((real.parent / name).read_text())
        )
    steps = [json.loads((folder / "communication.json").read_text()) for folder in (output, real)]
    blocks = [
        next(v for k, v in next(iter(s.values()))["collective"].items() if "allReduce" in k)
        for s in steps
    ]
    assert _shape(blocks[0]) == _shape(blocks[1])


def _shape(value: Any) -> Any:
    """Keys and types of nested JSON; keys that name groups or packet sizes are data."""
    if isinstance(value, dict):
        return {
            k: _shape(v) for k, v in value.items()
            if not k.startswith("group_name_") and not k[0].isdigit()
        }  # fmt: skip
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def test_databases_have_the_real_columns(
    sample: Path, truth: dict[str, Any], real_data: Path
) -> None:
    output = _output(sample, truth, 0)
    added_later = {"depth", "waitNs"}  # by the viewer that opened the real file
    real = real_data / "alexnet_ddp_db_level1" / "rank0_ascend_pt" / OUTPUT
    qwen = real_data / "qwen3_pp2_dp2_text_level2" / "rank_0_ascend_pt" / OUTPUT
    for name, theirs in (
        ("ascend_pytorch_profiler_0.db", real / "ascend_pytorch_profiler_0.db"),
        ("analysis.db", qwen / "analysis.db"),
    ):
        mine, other = _columns(output / name), _columns(theirs)
        for table, columns in mine.items():
            assert columns == [c for c in other[table] if c[0] not in added_later], table


def _columns(path: Path) -> dict[str, list[tuple[str, str]]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        return {
            name: [(row[1], row[2]) for row in db.execute(f'pragma table_info("{name}")')]
            for (name,) in tables
        }


def test_timeline_events_have_the_real_keys(
    sample: Path, truth: dict[str, Any], real_data: Path
) -> None:
    def shapes(path: Path) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        trace, found = _Trace(path), dict[tuple[str, ...], set[tuple[str, ...]]]()
        for event in trace.events:
            process = trace.processes[event["pid"]].replace("HCCL", "Communication")
            named = event["name"] if event["ph"] == "M" else event.get("cat", "")
            found.setdefault((event["ph"], process, named), set()).add(tuple(event))
        return found

    mine = shapes(_output(sample, truth, 0) / "trace_view.json")
    real = real_data / "alexnet_ddp_text_level1" / "rank0_ascend_pt" / OUTPUT / "trace_view.json"
    theirs = shapes(real)
    assert len(mine) > 20
    for kind, keys in mine.items():
        assert keys <= theirs[kind], kind


# The same again


def _content(path: Path) -> Any:
    if path.suffix != ".db":
        return path.read_bytes()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return list(db.iterdump())


def _tree(root: Path) -> dict[str, Any]:
    files = (p for p in root.rglob("*") if p.is_file())
    return {path.relative_to(root).as_posix(): _content(path) for path in files}


def test_equal_jobs_give_equal_files(tmp_path: Path) -> None:
    for folder in ("a", "b", "b"):  # over an earlier one too
        write_job(small(), tmp_path / folder)
    assert _tree(tmp_path / "a") == _tree(tmp_path / "b")
    other = captures(replace(small(), seed=2))
    assert other[0].kernels != captures(small())[0].kernels


def test_forms_choose_what_is_written(tmp_path: Path) -> None:
    write_job(small(memory=False), tmp_path, forms={0: ("db",), 1: ("text",)})
    files = json.loads((tmp_path / "truth.json").read_text())["captures"]
    kinds = [{Path(f).suffix for f in files[rank]["files"]} for rank in "01"]
    assert kinds == [{".db", ".json"}, {".csv", ".json"}]
    assert not list(tmp_path.rglob("*mem*.csv"))


def test_committed_sample_is_what_the_generator_writes(tmp_path: Path) -> None:
    assert main([]) == 2
    assert main([str(tmp_path)]) == 0
    made, committed = _tree(tmp_path), _tree(SAMPLE)
    assert made.keys() == committed.keys()
    changed = [name for name in made if made[name] != committed[name]]
    assert not changed, "run: python -m npuscope.sample_traces.generate sample_traces/moe_8_ranks"
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*")) < 8_000_000
    assert set(COMMITTED_FORMS) == set(range(COMMITTED_JOB.world_size))
