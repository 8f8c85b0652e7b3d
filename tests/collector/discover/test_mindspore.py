"""MindSpore's forms of the sample job give the rows that torch_npu's give, but for a closed list.

No real export of MindSpore could be had: the generator follows the format's description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.collector import schema
from npuscope.collector.discover.search import discover
from npuscope.collector.discover.unread_files import unread
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.mindspore import COMPONENTS, FRAMEWORK_VERSION, write_mindspore
from npuscope.sample_traces.forms.reports import union_of
from npuscope.sample_traces.generate import Form, write_job
from tests.conftest import AGREEING

pytestmark = pytest.mark.slow

TWINS: tuple[tuple[Form, Form], ...] = (("ms_text", "text"), ("ms_db", "db"))

# Columns that a form of MindSpore does not carry: metadata of the job, the autograd sequence, and
# in databases steps and the framework's operators.
NOT_CARRIED: dict[Form, dict[str, set[str]]] = {
    "ms_text": {
        "ranks": {"framework", "framework_version", "environment", "model_config"},
        "host_ops": {"sequence_number", "forward_thread_id"},
        "memory": {"component"},
    },
    "ms_db": {
        "ranks": {"framework", "framework_version", "source_format", "environment", "model_config"},
        "kernels": {"step"},
        "comm_ops": {"step"},
        "comm_times": {"step"},
        "comm_links": {"step"},
        "launches": {"operator_name", "operator_thread_id", "operator_start_ns"},
    },
}
# Rows that a form has none of.
WITHOUT: dict[Form, dict[str, str]] = {
    "ms_text": {"host_ops": "kind not in ('enqueue', 'dequeue')"},
    "ms_db": {
        "host_ops": "kind = 'api'",
        "memory": "source = 'module'",
        "operator_memory": "false",
        "steps": "false",
        "marks": "false",
        "profiler_steps": "false",
        # Of single operations here; torch_npu keeps the best, the worst and the sum.
        "comm_matrix": "false",
    },
}
SIZES = {f"{kind}_size" for kind in ("tp", "pp", "dp", "cp", "ep")}
PLACES = {f"{kind}_rank" for kind in ("cp",)}


@pytest.fixture(scope="module")
def stores(
    agreeing_stores: Callable[[Form], Path],
) -> Iterator[dict[Form, duckdb.DuckDBPyConnection]]:
    cons = {form: store.open(agreeing_stores(form)) for twins in TWINS for form in twins}
    yield cons
    for con in cons.values():
        con.close()


def rows(
    con: duckdb.DuckDBPyConnection, table: str, form: Form, *, of_torch: bool
) -> list[tuple[Any, ...]]:
    left_out = NOT_CARRIED[form].get(table, set())
    if table == "ranks":
        left_out = left_out | SIZES | PLACES
    columns = ", ".join(
        f'"{column.name}"'
        for column in schema.tables()[table].columns
        if column.name not in left_out
    )
    where = WITHOUT[form].get(table, "true") if of_torch else "true"
    return con.execute(f"select rank, {columns} from {table} where {where} order by all").fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(schema.tables()))
@pytest.mark.parametrize("twins", TWINS, ids=lambda pair: pair[0])
def test_same_rows(
    stores: dict[Form, duckdb.DuckDBPyConnection], twins: tuple[Form, Form], table: str
) -> None:
    form, torch = twins
    ours = rows(stores[form], table, form, of_torch=False)
    if form == "ms_db" and table == "comm_matrix":
        assert {row[4] for row in ours} == {"op"}
        return

    theirs = rows(stores[torch], table, form, of_torch=True)

    differing = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    assert not differing[:3]


@pytest.mark.slow
def test_what_is_known_of_ranks(stores: dict[Form, duckdb.DuckDBPyConnection]) -> None:
    for form, _ in TWINS:
        found = stores[form].execute(
            "select distinct framework, framework_version, cann_version, profiler_level, clock,"
            " world_size, tp_size, ep_size from ranks"
        )
        assert found.fetchall() == [
            ("mindspore", FRAMEWORK_VERSION, "8.3.RC1", "Level1", "epoch", 4, 1, 2)
        ]


def test_figures_of_steps(stores: dict[Form, duckdb.DuckDBPyConnection]) -> None:
    """The same from text; from a database all steps together, as nothing tells them apart."""
    assert query.steps(stores["ms_text"]).equals(query.steps(stores["text"]))
    found = query.steps(stores["ms_db"])
    assert found["step"].to_list() == [None] * AGREEING.world_size
    for table, figure in (("comm_ops", "communication_ns"), ("kernels", "computing_ns")):
        where = "" if table == "comm_ops" else "where is_compute"
        spans = (
            stores["db"].execute(f"select rank, start_ns, dur_ns from {table} {where}").fetchall()
        )
        for row in found.to_dicts():
            mine = [(start, start + dur) for rank, start, dur in spans if rank == row["rank"]]
            assert row[figure] == sum(end - start for start, end in union_of(mine))


def test_matrix_of_single_operations_adds_up(
    stores: dict[Form, duckdb.DuckDBPyConnection],
) -> None:
    asked = """
        select rank, group_hash, src_rank, dst_rank, link, sum(size_bytes)::bigint
        from comm_matrix where variant = ? group by all order by all"""
    ours = stores["ms_db"].execute(asked, ["op"]).fetchall()
    assert ours and ours == stores["db"].execute(asked, ["total"]).fetchall()


def test_memory_has_other_names_and_the_same_bytes(
    stores: dict[Form, duckdb.DuckDBPyConnection],
) -> None:
    asked = "select component, count(*), sum(reserved_bytes) from memory group by 1"
    ours = {name: told for name, *told in stores["ms_text"].execute(asked).fetchall()}
    theirs = {name: told for name, *told in stores["text"].execute(asked).fetchall()}
    assert ours == {COMPONENTS.get(name, name): told for name, told in theirs.items()}
    assert "MindSpore+GE" in ours


def test_scopes_are_neither_kernels_nor_host_calls(
    stores: dict[Form, duckdb.DuckDBPyConnection],
) -> None:
    for table in ("kernels", "host_ops", "marks"):
        found = stores["ms_text"].execute(f"select count(*) from {table} where name = 'Default'")
        assert found.fetchall() == [(0,)]


def test_a_stack_is_no_part_of_a_kernels_name(tmp_path: Path) -> None:
    seen = captures(AGREEING)[0]
    write_mindspore(seen, tmp_path / "plain", "text")
    write_mindspore(seen, tmp_path / "stacked", "text", stacks=True)
    told = []
    for name in ("plain", "stacked"):
        assert ingest(tmp_path / name, tmp_path / f"{name}-store", run="one").is_complete
        with closing(store.open(tmp_path / f"{name}-store")) as con:
            tables = ("kernels", "comm_ops", "launches")
            told.append([con.execute(f"from {t} order by all").fetchall() for t in tables])
    assert "in construct" in next((tmp_path / "stacked").rglob("kernel_details.csv")).read_text()
    assert told[0] == told[1]


def test_text_beside_a_database_has_the_steps_and_the_allocator(tmp_path: Path) -> None:
    seen = captures(AGREEING)[0]
    for run in ("text", "both"):
        write_mindspore(seen, tmp_path / run, "text")
    write_mindspore(seen, tmp_path / "both", "db")
    told = []
    for run in ("text", "both"):
        assert ingest(tmp_path / run, tmp_path / f"{run}-store").is_complete
        with closing(store.open(tmp_path / f"{run}-store")) as con:
            asked = (
                "select * exclude (run, capture) from steps",
                "select step, count(*), sum(dur_ns) from kernels group by all",
                "select kind, name, count(*), sum(dur_ns) from host_ops group by all",
                "select source, component, count(*), sum(reserved_bytes), sum(allocated_bytes)"
                " from memory group by all",
            )
            told.append([con.execute(f"{one} order by all").fetchall() for one in asked])
    assert told[0] == told[1]
    assert len(told[0][0]) == len(seen.steps)
    assert "MindSpore+GE" in {row[1] for row in told[0][-1]}


def test_folders_of_ranks_and_what_lies_beside(tmp_path: Path) -> None:
    write_job(AGREEING, tmp_path / "job", forms=("ms_text",))

    found = discover(tmp_path / "job")

    assert [(s.rank, s.framework, Path(s.root).parent.name) for s in found.ranks] == [
        (rank, "mindspore", f"rank_{rank}") for rank in range(4)
    ]
    read = [file.path for s in found.ranks for group in s.files.values() for file in group]
    beside = {one.what: one.why for one in unread(tmp_path / "job", read)}
    assert beside["dataset.csv"].startswith("MindData's pipeline")


def test_whoever_relies_on_it_is_told(stores: dict[Form, Any], tmp_path: Path) -> None:
    write_mindspore(captures(AGREEING)[0], tmp_path / "job", "text")
    ingest(tmp_path / "job", tmp_path / "store")

    (manifest,) = manifests(tmp_path / "store")

    assert {"mindspore", "memory_components"} <= set(manifest.unverified or ())
