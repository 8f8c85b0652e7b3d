"""What is mutated: small files of every kind that a reader takes, and a mutant of one per seed.

seed --draws--> an input --mutations, one to four--> what a reader is given

A seed gives the same mutant on every machine, whatever else was read before it.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from npuscope.collector.model import Role
from npuscope.sample_traces.generate import small, write_job
from tests.prove.fuzz import byte_mutations, csv_mutations, json_mutations, sqlite_mutations

Reader = Literal["csv", "json", "sqlite"]
READERS: tuple[Reader, ...] = get_args(Reader)


@dataclass(frozen=True, slots=True)
class Input:
    """A file for a reader; `beside` are files next to it, by what their names add to its own;
    `done` tells how it was mutated, `is_edited` whether by something that knows what rows are,
    `origin` names the whole input it was made from."""

    role: Role
    name: str
    data: bytes
    beside: dict[str, bytes] = field(default_factory=dict)
    done: tuple[str, ...] = ()
    is_edited: bool = False
    origin: str = ""


def write(folder: Path) -> dict[Reader, list[Input]]:
    """The whole inputs, made in `folder`: a few KB each, of two ranks' profiles."""
    write_job(small(), folder / "job")
    first, second = sorted((folder / "job").glob("*/ASCEND_PROFILER_OUTPUT"))
    found: dict[Reader, list[Input]] = {reader: [] for reader in READERS}
    for output in (first, second):
        kernels = _lines(output / "kernel_details.csv", 24)
        found["csv"] += [
            Input("kernels", "kernel_details.csv", kernels),
            Input("kernels", "op_summary_20251127123437.csv", _as_op_summary(kernels)),
            Input("memory_record", "memory_record.csv", _lines(output / "memory_record.csv", 24)),
            Input(
                "operator_memory", "operator_memory.csv", _lines(output / "operator_memory.csv", 24)
            ),
            Input("module_memory", "npu_module_mem.csv", _lines(output / "npu_module_mem.csv", 24)),
            Input("step_trace", "step_trace_time.csv", _lines(output / "step_trace_time.csv", 24)),
        ]
        trace = _trace(output / "trace_view.json")
        found["json"] += [
            Input("trace", "trace_view.json", trace),
            Input("trace", "trace_view.json", b'{"traceEvents": ' + trace + b"}"),
            Input("communication", "communication.json", _text(output / "communication.json")),
            Input(
                "communication_matrix",
                "communication_matrix.json",
                _text(output / "communication_matrix.json"),
            ),
            *(
                Input("profiler_info", path.name, path.read_bytes())
                for path in output.parent.glob("profiler_info_*.json")
            ),
            Input(
                "profiler_metadata",
                "profiler_metadata.json",
                (output.parent / "profiler_metadata.json").read_bytes(),
            ),
        ]
        for path in output.glob("ascend_pytorch_profiler_*.db"):
            main = _database(path, folder / "cut.db")
            found["sqlite"].append(Input("main_db", path.name, main))
        analysis = _repage(output / "analysis.db", folder / "cut.db")
        found["sqlite"].append(Input("analysis_db", "analysis.db", analysis))
    return {
        reader: [replace(one, origin=f"{reader}-{n}") for n, one in enumerate(group)]
        for reader, group in found.items()
    }


def mutate(seeds: dict[Reader, list[Input]], reader: Reader, seed: int) -> Input:
    """The mutant of a seed."""
    chance = random.Random(f"{reader}/{seed}")
    chosen = chance.choice(seeds[reader])
    other = chance.choice(seeds[reader]).data
    for _ in range(min(4, 1 + int(chance.expovariate(1.0)))):
        chosen = _once(chance, reader, chosen, other)
    return chosen


def _once(chance: random.Random, reader: Reader, given: Input, other: bytes) -> Input:
    if reader == "sqlite" and chance.random() < 0.08:
        suffix, data = sqlite_mutations.log_beside(chance, given.data)
        done = (*given.done, f"{suffix} of {len(data)} bytes beside it")
        return replace(given, beside={suffix: data}, done=done, is_edited=True)
    is_edited = True
    if chance.random() < {"csv": 0.35, "json": 0.2, "sqlite": 0.2}[reader]:
        data, told = byte_mutations.mutate(chance, given.data, other)
        is_edited = reader != "sqlite"
    elif reader == "csv":
        data, told = csv_mutations.mutate(chance, given.data)
    elif reader == "json":
        data, told = json_mutations.mutate(chance, given.data)
    elif chance.random() < 0.55:
        data, told = sqlite_mutations.by_sql(chance, given.data)
    else:
        data, told = sqlite_mutations.by_format(chance, given.data)
        is_edited = False
    is_edited = is_edited or given.is_edited
    return replace(given, data=data, done=(*given.done, told), is_edited=is_edited)


def _text(path: Path) -> bytes:
    return json.dumps(json.loads(path.read_bytes())).encode()


def _lines(path: Path, count: int) -> bytes:
    """A table's header, its first lines and its last, so that communication is among them."""
    header, *lines = path.read_bytes().splitlines(keepends=True)
    return header + b"".join(lines[: count // 2] + lines[count // 2 :][-count // 2 :])


def _as_op_summary(kernels: bytes) -> bytes:
    """The same rows as msprof writes them."""
    header, _, rows = kernels.partition(b"\n")
    spelled = {
        b"Name": b"Op Name", b"Type": b"OP Type", b"Accelerator Core": b"Task Type",
        b"Start Time(us)": b"Task Start Time(us)", b"Duration(us)": b"Task Duration(us)",
        b"Wait Time(us)": b"Task Wait Time(us)", b"Block Dim": b"Block Num",
        b"Mix Block Dim": b"Mix Block Num",
    }  # fmt: skip
    return b",".join(spelled.get(name, name) for name in header.split(b",")) + b"\n" + rows


def _trace(path: Path) -> bytes:
    """Some events of every kind, and the arrows between those that are left."""
    events = json.loads(path.read_bytes())
    kept, seen = [], Counter[tuple[Any, ...]]()
    for event in events:
        kind = (event["ph"], event.get("cat"), event["pid"], len(event.get("args", ())))
        seen[kind] += 1
        if event["ph"] == "M" or (event["ph"] in "XC" and seen[kind] <= 6):
            kept.append(event)
    places = {(e["pid"], e["tid"], e["ts"]) for e in kept if e["ph"] == "X"}
    arrows = [e for e in events if e["ph"] in "sf" and (e["pid"], e["tid"], e["ts"]) in places]
    ends = Counter((e["cat"], e["id"], e["ph"]) for e in arrows)
    whole = [e for e in arrows if ends[e["cat"], e["id"], "s"] and ends[e["cat"], e["id"], "f"]]
    step = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    return json.dumps(kept + [e for e in step if e not in kept] + whole).encode()


_CUT = """
delete from COMPUTE_TASK_INFO where rowid not in (select rowid from COMPUTE_TASK_INFO limit 20);
delete from COMMUNICATION_OP where opId not in (select opId from COMMUNICATION_OP limit 4);
delete from COMMUNICATION_TASK_INFO where opId not in (select opId from COMMUNICATION_OP);
delete from TASK where globalTaskId not in (select globalTaskId from COMPUTE_TASK_INFO
    union select globalTaskId from COMMUNICATION_TASK_INFO);
delete from TASK_PMU_INFO where globalTaskId not in (select globalTaskId from COMPUTE_TASK_INFO
    limit 5);
delete from CANN_API where connectionId not in (select connectionId from TASK
    union select connectionId from COMMUNICATION_OP);
delete from CONNECTION_IDS where connectionId not in (select connectionId from CANN_API);
delete from PYTORCH_API where connectionId not in (select id from CONNECTION_IDS)
    and rowid not in (select rowid from PYTORCH_API limit 10);
delete from MEMORY_RECORD where rowid not in (select rowid from MEMORY_RECORD limit 12);
delete from OP_MEMORY where rowid not in (select rowid from OP_MEMORY limit 12);
create table COMMUNICATION_SCHEDULE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY,
    taskType INTEGER, opType INTEGER);
insert into COMMUNICATION_SCHEDULE_TASK_INFO
    select 1, globalTaskId, 2, 3 from COMMUNICATION_TASK_INFO limit 3;
create table MSTX_EVENTS (startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER,
    category INTEGER, message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER,
    connectionId INTEGER);
insert into MSTX_EVENTS select startNs, endNs, 0, 0, 0, name, globalTid, globalTid, 5, connectionId
    from CANN_API limit 3;
create table GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER);
insert into GC_RECORD select startNs, endNs, globalTid from CANN_API limit 2;
create table PYTORCH_CALLCHAINS (id INTEGER, stack INTEGER, stackDepth INTEGER);
insert into PYTORCH_CALLCHAINS select 1, name, rowid from PYTORCH_API limit 3;
create table NPU_MEM (type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER,
    deviceId INTEGER);
insert into NPU_MEM select 1, 0, size, allocationTime, deviceId from OP_MEMORY limit 3;
create table HBM (deviceId INTEGER, timestampNs INTEGER, bandwidth REAL, hbmId INTEGER,
    type INTEGER);
insert into HBM select deviceId, allocationTime, 1.5e9, 0, name from OP_MEMORY limit 3;
delete from STRING_IDS where rowid % 3 = 0 and id not in (select name from COMPUTE_TASK_INFO
    union select opName from COMMUNICATION_OP union select groupName from COMMUNICATION_OP
    union select name from PYTORCH_API union select name from TASK_PMU_INFO
    union select name from CANN_API union select component from MEMORY_RECORD);
"""


def _database(path: Path, cut: Path) -> bytes:
    """A profiler's database with some rows of every table, on small pages."""
    cut.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(cut)) as con:
        con.executescript(_CUT)
    return _repage(cut, cut)


def _repage(path: Path, copy: Path) -> bytes:
    """The database on pages of 1 KiB: trees of several levels from few rows."""
    data = path.read_bytes()
    copy.write_bytes(data)
    with closing(sqlite3.connect(copy)) as con:
        con.executescript("pragma page_size = 1024; vacuum;")
    data = copy.read_bytes()
    copy.unlink()
    return data
