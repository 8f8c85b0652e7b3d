"""step_trace_*.csv and step_trace_*.json of msprof: the iterations of graphs, as steps.

    Iteration ID 3, Iteration End 1736…120.500 us, Iteration Time 80.250 us  ->  step 3

Every model counts its iterations from 1: those of the model that ran longest are the steps.
Iterations are times of the device, so a step's range on the device is that of its iteration.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import duckdb

from ...discover.msprof_layout import device_of
from ...model import RankSource, ReadLog
from ..chrome_trace.json_events import read_events
from ..damaged_files import read_each
from ..delimited_text import Rows, fill, open_rows
from .device_rows import names_device, own_rows

if TYPE_CHECKING:
    from ..chrome_trace.events import Event

OF_TABLES = "iterations of step_trace_*.csv"
_TIMES = ("Iteration End(us)", "Iteration Time(us)")
_NAME = r"^Iteration (\d+)$"
_NUMBERS = re.compile(r"step_trace_\d+_(\d+)_(\d+)(?:_\d{14,})?\.json$")
_MODEL = r"(?i)model ?id: ?(\d+)"


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    table_names: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `steps`."""
    if "steps" not in table_names:
        return

    def read_one(path: str) -> None:
        if path.endswith(".csv"):
            rows = open_rows(path, log, [("Iteration ID",), _TIMES[:1]])
            if rows is not None and names_device(rows, source, log):
                own = own_rows(source, "device_id")
                insert = "insert into _iterations by name"
                fill(
                    con, rows, log, lambda text: f"{insert} {_rows_sql(rows, text, own)}",
                    decimals=_TIMES,
                )  # fmt: skip
        elif not tables and _is_own(path, source) and _own_iteration(path) not in _known_steps(con):
            _read_slices(con, path, log)

    make_iterations(con)
    # Timelines hold the same iterations, and often each file holds all of them: the last first.
    tables = [path for path in source.paths("iterations") if path.endswith(".csv")]
    read_each(reversed(source.files.get("iterations", ())), read_one, log, advance)
    if put_steps(con, log):
        log.rules["steps"] = OF_TABLES if tables else "iterations of step_trace_*.json"


def make_iterations(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_iterations`, still empty: what `put_steps` takes."""
    con.execute(
        "create or replace temp table _iterations (step bigint, model_id bigint, start_ns bigint,"
        " end_ns bigint, device_id integer)"
    )


def put_steps(con: duckdb.DuckDBPyConnection, log: ReadLog) -> bool:
    """Fill `steps` from `_iterations`, which goes; False where it has none. One iteration may
    stand there several times."""
    models = con.execute("""
        select model_id, sum(dur_ns) from (
            select distinct model_id, step, end_ns - start_ns as dur_ns
            from _iterations where end_ns >= start_ns)
        group by 1 order by 2 desc, 1""").fetchall()
    if models:
        model = models[0][0]
        con.execute(
            """
            insert into steps by name
            select step, min(start_ns) as window_start_ns, max(end_ns) as window_end_ns,
                window_start_ns as device_start_ns, window_end_ns as device_end_ns
            from _iterations where model_id is not distinct from ? and end_ns >= start_ns
            group by step order by step""",
            [model],
        )
        if len(models) > 1:
            others = ", ".join(str(other) for other, _ in models[1:])
            log.warn(
                "iterations of {count} models: those of model {model}, which ran longest,"
                " are used as steps; not those of {others}",
                count=len(models),
                model=model,
                others=others,
            )
    con.execute("drop table _iterations")
    return bool(models)


def _is_own(path: str, source: RankSource) -> bool:
    """Whether a timeline is of the rank's device: it does not say so itself."""
    return source.device_id is None or device_of(path) == source.device_id


def _own_iteration(path: str) -> tuple[int, int] | None:
    """Model and iteration that a file of the older layout is named after."""
    match = _NUMBERS.search(path)
    return (int(match[1]), int(match[2])) if match else None


def _known_steps(con: duckdb.DuckDBPyConnection) -> set[tuple[int, int]]:
    return set(con.execute("select distinct model_id, step from _iterations").fetchall())


def _rows_sql(rows: Rows, text: str, own: str) -> str:
    return f"""
        select step, model_id, end_ns - dur_ns as start_ns, end_ns, device_id
        from (
            select whole({rows.cell("Iteration ID")}) as step,
                whole({rows.cell("Model ID")}) as model_id,
                us_ns({rows.cell("Iteration End(us)")}) as end_ns,
                us_ns({rows.cell("Iteration Time(us)")}) as dur_ns,
                try_cast(whole({rows.cell("Device_id")}) as integer) as device_id
            from {text})
        where step is not null and end_ns is not null and dur_ns >= 0 and {own}"""


def _read_slices(con: duckdb.DuckDBPyConnection, path: str, log: ReadLog) -> None:
    """Slices named `Iteration 3`, on threads that name their model."""
    # Here, as few profiles have such a file.
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..chrome_trace.events import decode_events, durations_ns, instants_ns

    slices: list[Event] = []
    models: dict[tuple[int | str | None, int | str | None], str] = {}

    def decode(piece: bytes) -> list[Event]:
        return decode_events(piece, log)

    for events in read_events(path, decode, log, lambda _: None):
        for event in events:
            if event.ph == "X" and (event.name or "").startswith("Iteration "):
                slices.append(event)
            elif event.ph == "M" and event.name == "thread_name":
                models[event.pid, event.tid] = bytes(event.args).decode("utf-8", "replace")
    starts = instants_ns([one.ts for one in slices])
    ends = pc.add(starts, durations_ns([one.dur for one in slices]))
    table = pa.table(
        {
            "name": pa.array([one.name for one in slices], pa.string()),
            "thread": pa.array([models.get((one.pid, one.tid)) for one in slices], pa.string()),
            "start_ns": starts,
            "end_ns": ends,
        }
    )
    con.register("_incoming", table)
    con.execute(f"""
        insert into _iterations by name
        select {iteration_sql("name", "thread")}, start_ns, end_ns
        from _incoming where step is not null and start_ns is not null and end_ns is not null""")
    con.unregister("_incoming")


def iteration_sql(name: str, thread: str) -> str:
    """SQL of `step` and `model_id`, by the names of a slice and of its thread."""
    return (
        f"try_cast(regexp_extract({name}, '{_NAME}', 1) as bigint) as step,"
        f" try_cast(regexp_extract({thread}, '{_MODEL}', 1) as bigint) as model_id"
    )
