"""The DB export of one rank, scaled: SQL repeats its steps with other instants, ids and names."""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.inputs.tiled_text import Growths
from npuscope.sample_traces.capture import NONE_32, Capture
from npuscope.sample_traces.forms.db import write_db

_REHEARSAL = 5  # repetitions of a trial whose size tells what one more costs
_NAMES = re.compile(r"hcom_[A-Za-z]+__(\d{3})_(\d+)_1|ProfilerStep#(\d+)")
_STEP = re.compile(r"step(\d+)")

# Columns of each table as they are in repetition r; columns not named stay. `{...}` are growths.
_MAIN = {
    "TASK": {
        "startNs": "startNs + r.r * {period_ns}", "endNs": "endNs + r.r * {period_ns}",
        "connectionId": "connectionId + r.r * {connections}",
        "globalTaskId": "globalTaskId + r.r * {tasks}", "taskId": "taskId + r.r * {task_ids}",
    },
    "COMPUTE_TASK_INFO": {"globalTaskId": "globalTaskId + r.r * {tasks}"},
    "TASK_PMU_INFO": {"globalTaskId": "globalTaskId + r.r * {tasks}"},
    "COMMUNICATION_OP": {
        "opName": "opName + r.r * {names}", "startNs": "startNs + r.r * {period_ns}",
        "endNs": "endNs + r.r * {period_ns}",
        "connectionId": "connectionId + r.r * {connections}", "opId": "opId + r.r * {comm_ops}",
    },
    "COMMUNICATION_TASK_INFO": {
        "name": "name + r.r * {names}", "globalTaskId": "globalTaskId + r.r * {tasks}",
        "opId": "opId + r.r * {comm_ops}",
    },
    "CANN_API": {
        "startNs": "startNs + r.r * {period_ns}", "endNs": "endNs + r.r * {period_ns}",
        "connectionId": "connectionId + r.r * {connections}",
    },
    "CONNECTION_IDS": {
        "id": "id + r.r * {links}", "connectionId": "connectionId + r.r * {connections}",
    },
    "PYTORCH_API": {
        "startNs": "cast(startNs + r.r * {period_ns} as text)",
        "endNs": "cast(endNs + r.r * {period_ns} as text)",
        "connectionId": "connectionId + r.r * {links}",
        "name": "name + r.r * {names} * (name in (select id from base.numbered))",
        "sequenceNumber": "sequenceNumber + r.r * {sequences} * (sequenceNumber >= 0)",
    },
    "MEMORY_RECORD": {"timestamp": "timestamp + r.r * {period_ns}"},
    "NPU_MODULE_MEM": {"timestampNs": "timestampNs + r.r * {period_ns}"},
    "OP_MEMORY": {
        name: name + " + r.r * {period_ns}"
        for name in ("allocationTime", "releaseTime", "activeReleaseTime")
    },
    "STEP_TIME": {
        "id": "id + r.r * {steps}", "startNs": "startNs + r.r * {period_ns}",
        "endNs": "endNs + r.r * {period_ns}",
    },
}  # fmt: skip
_ANALYSIS = {
    "CommAnalyzerTime": {
        "hccl_op_name": "renamed(hccl_op_name, r.r)",
        "start_timestamp": "start_timestamp + r.r * {period_ns} / 1000",
        "step": "renamed(step, r.r)",
    },
    "CommAnalyzerBandwidth": {
        "hccl_op_name": "renamed(hccl_op_name, r.r)", "step": "renamed(step, r.r)",
    },
    "CommAnalyzerMatrix": {"op_name": "renamed(op_name, r.r)", "step": "renamed(step, r.r)"},
    "StepTraceTime": {"step": "cast(step + r.r * {steps} as text)"},
}  # fmt: skip
_SLOTS = 1 << 12  # ids between a name and its next repetition; pools of names are smaller


@dataclass(frozen=True, slots=True)
class _Scaling:
    grow: Growths
    repetitions: int

    def renamed(self, text: str | None, repetition: int) -> str | None:
        """A name that counts operations or steps, as in a repetition."""
        if text is None:
            return None
        if found := _STEP.fullmatch(text):
            return f"step{int(found[1]) + repetition * self.grow.steps}"
        found = _NAMES.fullmatch(text)
        if not found:
            return text
        if found[3]:
            return f"ProfilerStep#{int(found[3]) + repetition * self.grow.steps}"
        index = int(found[2]) + repetition * self.grow.operations[found[1]]
        return f"{text[: found.start(2)]}{index}_1"


def db_repetitions(c: Capture, grow: Growths, size_bytes: int, *, pmu: bool) -> int:
    """How often a rank's steps stand in a database of about this size; at least once."""
    with tempfile.TemporaryDirectory() as name:
        sizes = []
        for repetitions in (1, _REHEARSAL):
            folder = Path(name) / str(repetitions)
            folder.mkdir()
            write_scaled_db(c, folder, grow, repetitions, pmu=pmu)
            sizes.append((folder / _main_name(c)).stat().st_size)
    more = (sizes[1] - sizes[0]) / (_REHEARSAL - 1)
    return max(1, round((size_bytes - sizes[0]) / more) + 1)


def write_scaled_db(
    c: Capture, folder: Path, grow: Growths, repetitions: int, *, pmu: bool = True
) -> tuple[int, int]:
    """Writes the main database, with or without counters of each task, and analysis.db into
    `folder`; returns the rows of TASK and of all tables of the main database."""
    scaling = _Scaling(grow, repetitions)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        plain = Path(name)
        write_db(c, plain)
        _scale(plain / "analysis.db", folder / "analysis.db", _ANALYSIS, scaling)
        main = _main_name(c)
        if not pmu:
            with closing(sqlite3.connect(plain / main, isolation_level=None)) as db:
                db.execute("drop table TASK_PMU_INFO")
                db.execute("vacuum")
        _scale(plain / main, folder / main, _MAIN, scaling)
    with closing(sqlite3.connect(folder / _main_name(c))) as db:
        names = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        counts = {t: int(db.execute(f"select count(*) from {t}").fetchone()[0]) for (t,) in names}
    return counts["TASK"], sum(counts.values())


def _main_name(c: Capture) -> str:
    return f"ascend_pytorch_profiler_{c.rank}.db"


def _scale(plain: Path, out: Path, tables: dict[str, dict[str, str]], scaling: _Scaling) -> None:
    """Copies a database and appends the repetitions of its tables, indexes last."""
    shutil.copyfile(plain, out)
    with closing(sqlite3.connect(out, isolation_level=None)) as db:
        db.create_function("renamed", 2, scaling.renamed, deterministic=True)
        for pragma in ("journal_mode = off", "synchronous = off", "cache_size = -65536"):
            db.execute(f"pragma {pragma}")
        db.execute("attach ? as base", [str(plain)])
        db.execute("begin")
        indexes = db.execute("select name, sql from main.sqlite_master where type = 'index'")
        made = [(name, sql) for name, sql in indexes.fetchall() if sql]
        for name, _ in made:
            db.execute(f"drop index main.{name}")
        _repeat(db, tables, scaling)
        for _, sql in made:
            db.execute(sql)
        db.execute("commit")


def _repeat(db: sqlite3.Connection, tables: dict[str, dict[str, str]], scaling: _Scaling) -> None:
    grow, names = (
        scaling.grow,
        {row[0] for row in db.execute("select name from base.sqlite_master")},
    )
    counts = {
        key: db.execute(f"select count(*) from base.{table}").fetchone()[0]
        for key, table in (("tasks", "TASK"), ("comm_ops", "COMMUNICATION_OP"),
                           ("links", "CONNECTION_IDS"))
        if table in names
    }  # fmt: skip
    numbers = {
        "period_ns": grow.period_ns, "steps": grow.steps, "connections": grow.connections,
        "sequences": grow.sequences, "task_ids": grow.task_ids, "names": _SLOTS, **counts,
    }  # fmt: skip
    db.execute("create temp table r as with recursive n(r) as (select 1 union all select r + 1"
               f" from n where r + 1 < {scaling.repetitions}) select r from n"
               f" where {scaling.repetitions} > 1")  # fmt: skip
    if "STRING_IDS" in names:
        _name(db)
    for table, changed in tables.items():
        if table not in names:
            continue
        columns = [row[1] for row in db.execute(f"pragma base.table_info({table})")]
        values = ", ".join(changed.get(column, column).format(**numbers) for column in columns)
        only = ""
        if table == "TASK":  # what stands at the ends of the session does not repeat
            only = f" where connectionId <> {NONE_32}"
        db.execute(f"insert into main.{table} select {values} from r cross join base.{table}{only}")
    if "STRING_IDS" in names:
        _move_end(db, (scaling.repetitions - 1) * grow.period_ns)


def _name(db: sqlite3.Connection) -> None:
    """Strings that count operations and steps, once more for each repetition."""
    numbered = "value like 'hcom\\_%\\_\\_%' escape '\\' or value like 'ProfilerStep#%'"
    db.execute(
        f"create table base.numbered as select id, value from base.STRING_IDS where {numbered}"
    )
    db.execute(
        f"insert into main.STRING_IDS select id + r.r * {_SLOTS}, renamed(value, r.r)"
        " from r cross join base.numbered"
    )


def _move_end(db: sqlite3.Connection, by_ns: int) -> None:
    """The end of the session, and what was recorded there."""
    db.execute(f"update SESSION_TIME_INFO set endTimeNs = endTimeNs + {by_ns}")
    last = f"startNs = (select max(startNs) from base.TASK where connectionId = {NONE_32})"
    db.execute(
        f"update TASK set startNs = startNs + {by_ns}, endNs = endNs + {by_ns}"
        f" where connectionId = {NONE_32} and {last}"
    )
    found = db.execute("select count(*) from base.sqlite_master where name = 'AICORE_FREQ'")
    if found.fetchone()[0]:
        db.execute(
            f"update AICORE_FREQ set timestampNs = timestampNs + {by_ns} where timestampNs ="
            " (select max(timestampNs) from base.AICORE_FREQ)"
        )
