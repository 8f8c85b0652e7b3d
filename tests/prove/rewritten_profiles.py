"""A real profile written otherwise: later, in another order, by another producer, in pieces.

Every function changes the files of one rank's folder in place; what it does to the figures is
said where it is used (test_metamorphic).
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

Table = list[list[str]]

# Whole microseconds, and a power of two of them: what HCCL writes in doubles moves exactly.
LATER_US = 1 << 33
_CSV_TIMES = re.compile(
    r"((Task )?Start|Allocation|Release|Active Release) Time\(us\)|Timestamp\(us\)"
)
_DB_TIMES = frozenset(
    "startNs endNs timestampNs timestamp startTimeNs endTimeNs allocationTime releaseTime"
    " activeReleaseTime".split()
)
_TRACE = re.compile(r"(trace_view|msprof.*|hccl.*|step_trace.*|task_time.*)\.json")
_STAMP = "20250101000000"


def csv_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.csv"))


def traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json") if _TRACE.fullmatch(path.name))


def databases(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.db"))


def _table(path: Path) -> Table:
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


def _write_table(path: Path, rows: Iterable[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")


def _open_database(path: Path) -> closing[sqlite3.Connection]:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return closing(sqlite3.connect(path, isolation_level=None))


def _tables(db: sqlite3.Connection) -> Iterator[tuple[str, list[str]]]:
    names = db.execute("select name from sqlite_master where type = 'table'").fetchall()
    for (name,) in names:
        if not name.startswith("sqlite_"):
            yield name, [row[1] for row in db.execute(f'pragma table_info("{name}")').fetchall()]


def later(folder: Path) -> None:
    """Everything happened LATER_US later."""
    for path in csv_files(folder):
        titles, *rows = _table(path)
        moved = [n for n, title in enumerate(titles) if _CSV_TIMES.fullmatch(title.strip())]
        _write_table(path, [titles, *([
            _later(cell) if n in moved else cell for n, cell in enumerate(row)
        ] for row in rows)])  # fmt: skip
    for path in traces(folder):
        text = path.read_text(encoding="utf-8")
        path.write_text(
            re.sub(r'("ts"\s*:\s*"?)([\d.]+)', lambda found: found[1] + _later(found[2]), text),
            encoding="utf-8",
        )
    for path in folder.rglob("*communication.json"):
        pattern = r'("Start Timestamp\(us\)"\s*:\s*)([\d.]+)'
        text = re.sub(pattern, lambda found: found[1] + _later(found[2]), path.read_text())
        path.write_text(text)
    for path in folder.rglob("profiler_info*.json"):
        info = json.loads(path.read_text())
        if "collectionTimeEnd" in info.get("end_info", {}):
            info["end_info"]["collectionTimeEnd"] += LATER_US * 1000
        path.write_text(json.dumps(info))
    for path in databases(folder):
        with _open_database(path) as db:
            for table, columns in _tables(db):
                for column in _DB_TIMES & set(columns):
                    moved_ns = f'cast("{column}" as integer) + {LATER_US * 1000}'
                    text_ns = f"cast({moved_ns} as text)"
                    db.execute(
                        f'update "{table}" set "{column}" = case typeof("{column}")'
                        f" when 'text' then {text_ns} else {moved_ns} end where \"{column}\" > 0"
                    )
                if "start_timestamp" in columns:
                    db.execute(
                        f'update "{table}" set start_timestamp = start_timestamp + {LATER_US}'
                    )


def _later(cell: str) -> str:
    """The same digits behind the dot, and what stood behind them."""
    found = re.fullmatch(r"(\d+)((?:\.\d*)?)(\s*)", cell)
    if found is None:
        number = re.fullmatch(r"(\d+(?:\.\d+)?[eE]\+?\d+)(\s*)", cell)
        return cell if number is None else f"{Decimal(number[1]) + LATER_US}{number[2]}"
    return f"{int(found[1]) + LATER_US}{found[2]}{found[3]}"


def shuffle(folder: Path) -> None:
    """Rows, events and operations in another order."""
    chance = random.Random(11)
    for path in csv_files(folder):
        titles, *rows = _table(path)
        chance.shuffle(rows)
        _write_table(path, [titles, *rows])
    for path in traces(folder):
        events = json.loads(path.read_text(encoding="utf-8"))
        chance.shuffle(events)
        path.write_text(json.dumps(events, ensure_ascii=False), encoding="utf-8")
    for path in folder.rglob("*communication*.json"):
        path.write_text(json.dumps(_stir(json.loads(path.read_text()), chance)))
    for path in databases(folder):
        with _open_database(path) as db:
            for table, columns in _tables(db):
                _replace(db, table, columns, lambda rows: chance.sample(rows, len(rows)))


def _stir(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, dict):
        return value
    items = [(key, _stir(inner, chance)) for key, inner in value.items()]
    return dict(chance.sample(items, len(items)))


def _replace(
    db: sqlite3.Connection,
    table: str,
    columns: list[str],
    change: Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]],
) -> None:
    rows = change(db.execute(f'select * from "{table}"').fetchall())
    places = ", ".join("?" * len(columns))
    db.execute("begin")
    db.execute(f'delete from "{table}"')
    db.executemany(f'insert into "{table}" values ({places})', rows)
    db.execute("commit")


def by_a_spreadsheet(folder: Path) -> None:
    """A byte-order mark in front, and lines that end in CRLF."""
    for path in [*csv_files(folder), *traces(folder), *folder.rglob("*communication*.json")]:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        if path.suffix == ".csv":
            _keep_lines_in_cells(path)
            data = path.read_bytes()
        else:
            data = data.replace(b"}, {", b"},\r\n{")
        lines = data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + lines)


def _keep_lines_in_cells(path: Path) -> None:
    _write_table(path, _table(path))


# Columns that other versions do not write, and the canonical ones that are unknown then.
OPTIONAL = {
    "kernel_details.csv": {
        "OP State": "op_state", "Device_id": "device_id", "Mix Block Dim": "mix_block_count",
        "HF32 Eligible": "hf32_eligible", "Context ID": "context_id", "Wait Time(us)": "wait_ns",
        "Input Formats": "input_formats",
    },
    "memory_record.csv": {"Total Active(MB)": "active_bytes", "Stream Ptr": "stream_ptr"},
    "operator_memory.csv": {
        "Active Release Time(us)": "active_released_at_ns", "Active Duration(us)": "active_dur_ns",
        "Stream Ptr": "stream_ptr",
    },
    "step_trace_time.csv": {"Preparing": "preparing_ns", "Device_id": "device_id"},
    "npu_module_mem.csv": {"Device_id": "device_id"},
    "COMPUTE_TASK_INFO": {"mixBlockDim": "mix_block_count", "attrInfo": ""},
    "COMMUNICATION_OP": {"relay": "relay", "retry": "retry", "algType": "algorithm"},
    "COMMUNICATION_TASK_INFO": {"rdmaType": "rdma_type", "notifyId": "notify_id"},
    "TASK": {"modelId": "model_id", "contextId": "context_id"},
    "MEMORY_RECORD": {"streamPtr": "stream_ptr", "totalActive": "active_bytes"},
    "PYTORCH_API": {"sequenceNumber": "sequence_number", "fwdThreadId": "forward_thread_id"},
    "StepTraceTime": {"preparing": "preparing_ns"},
}  # fmt: skip


def without_optional(folder: Path) -> None:
    """As a producer that writes none of OPTIONAL."""
    for path in csv_files(folder):
        dropped = OPTIONAL.get(path.name, {})
        titles, *rows = _table(path)
        kept = [n for n, title in enumerate(titles) if title.strip() not in dropped]
        _write_table(path, [[row[n] for n in kept if n < len(row)] for row in (titles, *rows)])
    for path in databases(folder):
        with _open_database(path) as db:
            for table, columns in list(_tables(db)):
                for column in OPTIONAL.get(table, {}):
                    if column in columns:
                        db.execute(f'alter table "{table}" drop column "{column}"')


_RENAMED = {"HCCL": "COMMUNICATION", "COMMUNICATION": "HCCL"}
_HEADERS = {"Block Dim": "Block Num", "Mix Block Dim": "Mix Block Num"}
_TRACE_NAMES = (("HCCL", "Communication"), ("hccl", "communication"))


def of_another_year(folder: Path) -> None:
    """HCCL is called Communication, or the other way round, and Block Dim is Block Num."""
    for path in csv_files(folder):
        titles, *rows = _table(path)
        if "Accelerator Core" in titles:
            core = titles.index("Accelerator Core")
            rows = [
                [*row[:core], _RENAMED.get(row[core], row[core]), *row[core + 1 :]] for row in rows
            ]
        _write_table(path, [[_HEADERS.get(title, title) for title in titles], *rows])
    for path in traces(folder):
        events = json.loads(path.read_text(encoding="utf-8"))
        for event in events:
            args = event.get("args", {})
            for old, new in _TRACE_NAMES:
                swap = {old: new, new: old}
                if event["name"] == "process_name":
                    args["name"] = swap.get(args["name"], args["name"])
                if "level" in args:
                    args["level"] = swap.get(args["level"], args["level"])
            layer, sign, name = event["name"].partition("@")
            if sign and layer in ("Hccl", "Communication"):
                other = "Communication" if layer == "Hccl" else "Hccl"
                event["name"] = f"{other}@{name}"
        path.write_text(json.dumps(events, ensure_ascii=False), encoding="utf-8")
    for path in databases(folder):
        with _open_database(path) as db:
            tables = dict(_tables(db))
            if "ENUM_API_TYPE" in tables:
                told = "case name when 'hccl' then 'communication' else 'hccl' end"
                db.execute(f"update ENUM_API_TYPE set name = {told} where id = 5500")
            for old, new in (("blockDim", "blockNum"), ("mixBlockDim", "mixBlockNum")):
                if old in tables.get("COMPUTE_TASK_INFO", []):
                    db.execute(f"alter table COMPUTE_TASK_INFO rename column {old} to {new}")


def twice(folder: Path) -> None:
    """Every row and event is there twice, where the format can hold it twice."""
    for path in csv_files(folder):
        titles, *rows = _table(path)
        _write_table(path, [titles, *(row for row in rows for _ in range(2))])
    for path in traces(folder):
        events = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps([*events, *events], ensure_ascii=False), encoding="utf-8")
    for path in databases(folder):
        with _open_database(path) as db:
            for table, columns in _tables(db):
                keys = db.execute(f'pragma table_info("{table}")').fetchall()
                if table != "STRING_IDS" and not any(row[5] for row in keys):
                    _replace(db, table, columns, lambda rows: [*rows, *rows])


def in_slices(folder: Path) -> None:
    """Tables and timelines in three pieces each; only one has the names of processes."""
    for path in csv_files(folder):
        if path.stem in ("kernel_details", "memory_record", "operator_memory", "npu_module_mem"):
            titles, *rows = _table(path)
            for n, part in enumerate(_parts(rows)):
                name = f"{path.stem}_slice_{n}_{_STAMP}.csv"
                _write_table(path.with_name(name), [titles, *part])
            path.unlink()
    for path in traces(folder):
        events = json.loads(path.read_text(encoding="utf-8"))
        names = [event for event in events if event["ph"] == "M"]
        others = [event for event in events if event["ph"] != "M"]
        for n, part in enumerate(_parts(others)):
            piece = [*part, *names] if n == 1 else part
            name = f"msprof_slice_{n}_{_STAMP}.json"
            path.with_name(name).write_text(json.dumps(piece, ensure_ascii=False), encoding="utf-8")
        path.unlink()


def _parts(rows: list[Any]) -> list[list[Any]]:
    each = -(-len(rows) // 3)
    return [rows[n * each : (n + 1) * each] for n in range(3)]
