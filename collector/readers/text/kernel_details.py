"""kernel_details.csv and op_summary_*.csv: device kernels, communication operations among them.

Compute and wrapper kernels go to `kernels`. Rows that are communication operations go to a
temporary table that the timeline reader and the linking step use where the timeline itself has no
such operations:

    _comm_rows(step bigint, device_id integer, name varchar, type varchar,
               start_ns bigint, dur_ns bigint, core varchar)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import duckdb

from npuscope.errors import TraceFormatError

from ...model import RankSource, ReadLog, SourceFile
from ..damaged_files import read_each
from ..delimited_text import Rows, fill, lose, normal, open_rows, plain
from ..words import WORDS_FROM_BYTES, enumerate_keys, turn_into_words, words_for_text
from .device_rows import names_device, own_rows

_START = ("Start Time(us)", "Task Start Time(us)", "Task Start Time")
_DURATION = ("Duration(us)", "Task Duration(us)")
_WAIT = ("Wait Time(us)", "Task Wait Time(us)")

# PMU columns that have a canonical column of their own.
_OWN_PMU = {
    "aic_time_ns": ("aicore_time(us)", "aic_total_time(us)", "aic_time(us)"),
    "aic_cycles": ("aic_total_cycles", "total_cycles"),
    "aiv_time_ns": ("aiv_time(us)", "aiv_total_time(us)"),
    "aiv_cycles": ("aiv_total_cycles",),
    "cube_utilization_ratio": ("cube_utilization(%)",),
}
_TEXT = {
    "input_shapes": "Input Shapes",
    "input_dtypes": "Input Data Types",
    "input_formats": "Input Formats",
    "output_shapes": "Output Shapes",
    "output_dtypes": "Output Data Types",
    "output_formats": "Output Formats",
}
_FACTORS = {"us)": 1000, "ms)": 1_000_000, "ns)": 1, "%)": 0.01}
_NOT_PMU = {"device_id", "step_id", "task_id", "stream_id", "context_id", "model_id", "batch_id"}
# PMU names are words joined by underscores, or hexadecimal events; other titles have blanks.
_PMU_NAME = re.compile(r"(0x[0-9a-f]+|[a-z0-9]+(_[a-z0-9]+)+)(\([^)]*\)?)?", re.I)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `kernels` and `_comm_rows` from every kernel table of the rank."""
    con.execute(
        "create temp table if not exists _comm_rows (step bigint, device_id integer, name varchar,"
        " type varchar, start_ns bigint, dur_ns bigint, core varchar)"
    )

    files = source.files.get("kernels", ())
    is_large = sum(file.size_bytes for file in files) >= WORDS_FROM_BYTES and "kernels" in tables
    # Of a map that is filled, keys become an enumeration only by making each row's map anew.
    kinds = enumerate_keys(con, "kernels", "pmu", _keys(files)) if is_large else {}
    keys = kinds and "kernels_key"

    def read_one(path: str) -> None:
        if tables & {"kernels", "comm_ops"}:
            rows = open_rows(path, log, (_START, _DURATION, ("Name", "Op Name")))
            if rows is not None and names_device(rows, source, log):
                own = own_rows(source, "device_id")
                stacked = source.framework == "mindspore"
                _read_file(
                    con, rows, log, own, kernels="kernels" in tables, stacked=stacked,
                    keys=keys or "varchar",
                )  # fmt: skip

    with words_for_text(con, ("kernels",) if is_large else ()):
        try:
            read_each(files, read_one, log, advance)
        except Exception:
            # Half the operations would give figures that look whole.
            con.execute("delete from _comm_rows")
            raise
        if is_large:
            turn_into_words(con, "kernels", ("name", "type", "core", "op_state", *_TEXT), kinds)


def _keys(files: Sequence[SourceFile]) -> list[str]:
    """Names of the PMU columns that any of the tables has."""
    keys: set[str] = set()
    for file in files:
        with suppress(TraceFormatError):  # whoever reads the file tells
            rows = open_rows(file.path, ReadLog(), ())
            keys |= set(_other_pmu(rows)) if rows else set()
    return sorted(keys)


def _read_file(
    con: duckdb.DuckDBPyConnection,
    rows: Rows,
    log: ReadLog,
    own: str,
    *,
    kernels: bool,
    stacked: bool = False,
    keys: str = "varchar",
) -> None:
    """own: SQL of which rows are the rank's. stacked: names may be followed by their stack. keys:
    type of names of PMU columns."""
    _note_variants(rows, log)

    def stackless(source: str) -> str:
        return _without_stacks(rows, source) if stacked else source

    # One pass over the text: rows that are no kernels are few, and leave again.
    if kernels:
        table = "kernels"
        numbers = [*_own_pmu(rows).values(), *_other_pmu(rows).values()]
        insert = "insert into kernels by name"
        fill(
            con,
            rows,
            log,
            lambda source: f"{insert} {_kernels_sql(rows, stackless(source), own, keys)}",
            numbers,
            _WAIT if numbers else (),
        )
    else:
        table = "_light"
        create = "create or replace temp table _light as"
        fill(con, rows, log, lambda source: f"{create} {_light_sql(rows, stackless(source), own)}")
    bad = con.execute(f"delete from {table} where start_ns is null").fetchone() or (0,)
    lose(
        log,
        rows.path,
        bad[0],
        "no valid start or duration (or times that a spreadsheet rounded)",
    )
    con.execute(f"""
        insert into _comm_rows select step, device_id, name, type, start_ns, dur_ns, core
        from {table} where is_comm_row(core, name)""")
    marked = "select distinct core from _comm_rows where core is not null order by 1"
    if cores := [core for (core,) in con.execute(marked).fetchall()]:
        log.rules["kernels.communication_core"] = ", ".join(cores)
    if kernels:
        con.execute("delete from kernels where is_comm_row(core, name)")
    else:
        con.execute("drop table _light")


def _without_stacks(rows: Rows, source: str) -> str:
    """The file's rows, of names only the first line: MindSpore appends the stack to them."""
    name = rows.cell("Name", "Op Name")
    line = f"rtrim(split_part({name}, e'\\n', 1), e'\\r; ')"
    first = f"case when contains({name}, e'\\n') then {line} else {name} end"
    return f"(select * replace ({first} as {name}) from {source})"


def _note_variants(rows: Rows, log: ReadLog) -> None:
    """Record which of the documented spellings this table has."""
    log.rules["kernels.table"] = "op_summary" if rows.has("Op Name") else "kernel_details"
    spelled = (name for name in ("Block Num", "Block Dim") if rows.has(name))
    log.rules["kernels.block_count_column"] = next(spelled, "none")
    log.rules["kernels.device_column"] = "Device_id" if rows.has("Device_id") else "none"


def _common(rows: Rows) -> str:
    """Columns that both tables have; without a start, a row cannot be placed in time. Nor can one
    with times of more than 146 years: its end may not fit 64 bits."""
    start, duration = rows.cell(*_START), rows.cell(*_DURATION)
    return f"""
        coalesce(whole({rows.cell("Step Id")}), step_number({rows.cell("Step Id")})) as step,
        try_cast(whole({rows.cell("Device_id")}) as integer) as device_id,
        cell({rows.cell("Name", "Op Name")}) as name,
        cell({rows.cell("Type", "OP Type")}) as type,
        case when coalesce(try_cast({start} as double) between -4.6e15 and 4.6e15
            and try_cast({duration} as double) between 0 and 4.6e15
            and not is_rounded_us({start}), false) then us_ns({start}) end as start_ns,
        us_ns({duration}) as dur_ns,
        cell({rows.cell("Accelerator Core", "Task Type")}) as core"""


def _light_sql(rows: Rows, source: str, own: str) -> str:
    """Communication operations, and the rows that cannot be placed in time."""
    return f"""
        select * from (select {_common(rows)} from {source})
        where {own} and (start_ns is null or is_comm_row(core, name))"""


def _kernels_sql(rows: Rows, source: str, own: str, keys: str) -> str:
    text = [f"cell({rows.cell(header)}) as {name}" for name, header in _TEXT.items()]
    pmu = [f"{_pmu_value(header, rows)} as {name}" for name, header in _own_pmu(rows).items()]
    others = _other_pmu(rows)
    pmu += [f"{_pmu_value(header, rows)} as v{i}" for i, header in enumerate(others.values())]
    values = ", ".join(f"v{i}" for i in range(len(others)))
    return f"""
        select * {f"exclude ({values})" if values else ""},
            is_compute_row(core, name) as is_compute, {_pmu_map(list(others), keys)} as pmu
        from (
            select {_common(rows)},
                {_task_number(rows.cell("Stream ID"))} as stream_id,
                {_task_number(rows.cell("Task ID"))} as task_id,
                {_task_number(rows.cell("Context ID"))} as context_id,
                {_task_number(rows.cell("Model ID"))} as model_id,
                lower(cell({rows.cell("OP State")})) as op_state,
                us_ns({rows.cell(*_WAIT)}) as wait_ns,
                {_block_count(rows.cell("Block Num", "Block Dim"))} as block_count,
                {_block_count(rows.cell("Mix Block Num", "Mix Block Dim"))} as mix_block_count,
                case upper(cell({rows.cell("HF32 Eligible")}))
                    when 'YES' then true when 'NO' then false end as hf32_eligible,
                {", ".join([*text, *pmu])}
            from {source})
        where {own}"""


def _own_pmu(rows: Rows) -> dict[str, str]:
    """Canonical PMU column -> the header the file has for it."""
    titles = {}
    for name, headers in _OWN_PMU.items():
        for header in headers:
            if rows.has(header):
                titles[name] = header
                break
    return titles


def _other_pmu(rows: Rows) -> dict[str, str]:
    """Name without unit -> header, of the PMU columns that have no canonical column."""
    titles_here = {*_own_pmu(rows).values(), *_NOT_PMU}
    titles: dict[str, tuple[str, str]] = {}
    for title in map(plain, rows.titles):
        if normal(title) not in titles_here and _PMU_NAME.fullmatch(title):
            name, _, unit = title.partition("(")
            if name.lower().endswith("_time") and unit.lower() not in _FACTORS:
                continue  # nobody knows what it counts in
            titles.setdefault(name.lower(), (name, title))
    return dict(titles.values())


def _pmu_value(header: str, rows: Rows) -> str:
    value, factor = f"number({rows.cell(header)})", _factor(header)
    if factor > 1:
        return f"round({value} * {factor}, 6)"  # what the multiplication adds is no digit
    return value if factor == 1 else f"{value} / 100"


def _factor(header: str) -> float:
    """What makes a column's values ns, or a ratio, by the unit in its title."""
    return _FACTORS.get(normal(header).partition("(")[2], 1)


def _pmu_map(names: list[str], keys: str) -> str:
    """SQL of a map of the values v0, v1, ... by name, of type `keys`; those that are NULL are left
    out."""
    if not names:
        return f"null::map({keys}, double)"
    values = [f"v{i}" for i in range(len(names))]
    pairs = list(zip(names, values, strict=True))
    entries = ", ".join(f"{{'k': '{name}'::{keys}, 'v': {value}}}" for name, value in pairs)
    fields = ", ".join(f"'{name}': {value}" for name, value in pairs)
    # Rows have all values or none, almost always; to cast a struct is seven times as fast as
    # to build a map from entries. A vector without other rows is not copied by the outer case.
    return f"""case
        when coalesce({", ".join(values)}) is not null and ({" + ".join(values)}) is null
            then map_from_entries([e for e in [{entries}] if e.v is not null])
        else cast(case when {" + ".join(values)} is not null then {{{fields}}} end
            as map({keys}, double)) end"""


def _task_number(cell: str) -> str:
    """A stream, task, context or model number; the producers write 2^32-1 for none."""
    return f"nullif(whole({cell}), 4294967295)"


def _block_count(cell: str) -> str:
    """A number of cores; 0 where the profiler level records none."""
    return f"nullif(try_cast(whole({cell}) as integer), 0)"
