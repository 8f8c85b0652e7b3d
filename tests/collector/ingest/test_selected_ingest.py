"""What an ingest with a selection reads, keeps, says, and completes later."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from npuscope.analysis import query
from npuscope.analysis.scope import ALL, RANK
from npuscope.analysis.summaries import summaries, summarise
from npuscope.analysis.views import select
from npuscope.collector import schema
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.ingest.shards import Shard
from npuscope.collector.selection import Selection, parse_selection
from npuscope.collector.store import store
from npuscope.collector.store.export import export
from npuscope.collector.store.manifest import manifests, rank_folder
from npuscope.errors import UsageError
from npuscope.sample_traces.generate import Form, small, write_job
from tests.collector.readers.trace_view import written_traces

# A database, a text export, both, and one more of which nothing is asked.
FORMS: dict[int, tuple[Form, ...]] = {0: ("db",), 1: ("text",), 2: ("db", "text"), 3: ("text",)}
VERSIONS = {summary.name: summary.version for summary in summaries()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 12 to 14; in each an operation starts that ends under the next one's kernels."""
    folder = tmp_path_factory.mktemp("job")
    write_job(small(dp=4, steps=3), folder / "source", forms=FORMS)
    return folder / "source"


@pytest.fixture(scope="module")
def whole(source: Path) -> Path:
    with pytest.MonkeyPatch.context() as patched:  # each rank has files of its own
        patched.setattr(read_batch, "MOST_RANKS", 1)
        read(source, source.parent / "whole", Selection(stacks=True))
    return source.parent / "whole"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store"


def read(source: Path, into: Path, selection: Selection | None, **options: Any) -> IngestResult:
    return ingest(source, into, run="job", summarise=summarise, selection=selection, **options)


@pytest.fixture
def fresh(source: Path, target: Path) -> Iterator[Any]:
    """Reads the source with options as typed, and opens what is there then."""
    opened: list[duckdb.DuckDBPyConnection] = []

    def run(*, with_summaries: bool = True, **options: Any) -> duckdb.DuckDBPyConnection:
        result = read(source, target, parse_selection(**options))
        assert result.is_complete
        opened.append(store.open(target, summaries=VERSIONS if with_summaries else {}))
        return opened[-1]

    yield run
    for con in opened:
        con.close()


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return con.execute(sql).fetchall()


def count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    [(found,)] = con.execute(f"select count(*) from {table}").fetchall()
    return int(found)


def answers(con: duckdb.DuckDBPyConnection, steps: list[int] | None = None) -> list[Any]:
    """Every figure by step, of the ranks and steps asked for."""
    found = []
    for by in ("type", "name", "core", "shape"):
        found += query.kernels(con, by=by).rename({by: "key"}).to_dicts()
    found += query.steps(con).to_dicts() + query.comm(con).to_dicts()
    return [row for row in found if steps is None or row["step"] in steps]


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["13", "12,14", "0-12"])
def test_figures_of_selected_steps_are_those_of_all(whole: Path, fresh: Any, steps: str) -> None:
    chosen = {"13": [13], "12,14": [12, 14], "0-12": [12]}[steps]
    with store.open(whole, summaries=VERSIONS) as full:
        expected = answers(full, chosen)
        tables = ("kernels", "host_ops", "launches", "memory", "comm_tasks")
        every = {table: count(full, table) for table in tables}
    for with_summaries in (True, False):  # what is there already is not read again
        con = fresh(steps=steps, with_summaries=with_summaries)
        assert answers(con) == expected
        for table in tables:
            assert 0 < count(con, table) < every[table], table
        assert {row["step"] for row in query.steps(con).to_dicts()} == set(chosen)
        assert any("only steps" in note for note in query.notes(con))
        assert select(con, "outside_steps", ALL, of=RANK).is_empty()


@pytest.mark.slow
def test_kernels_of_neighbours_stay_for_coverage_only(whole: Path, fresh: Any) -> None:
    con = fresh(steps="12")

    neighbours = rows(con, "select distinct step from kernels where step <> 12")
    assert neighbours == [(13,)], "the crossing operation is hidden by kernels of 13"
    assert rows(con, "select distinct step from kernel_summary") == [(12,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables", ["kernels", "comm_ops", "kernels,comm_ops", "memory", "launches", "comm_tasks"]
)
def test_selected_tables_are_those_of_a_whole_reading(whole: Path, fresh: Any, tables: str) -> None:
    con = fresh(tables=tables)

    with store.open(whole) as full:
        for table in tables.split(","):
            # Which call launched a kernel stands in the trace, that kernels alone do not need.
            without = "exclude (pmu, connection_id)" if table == "kernels" else ""
            every = f"select * {without} from {table} order by all"
            assert rows(con, every) == rows(full, every), table
    assert rows(con, "select count(*) from host_ops") == [(0,)]
    left_out = rows(con, "select distinct unnest(left_out_tables) from ranks")
    assert ("host_ops",) in left_out
    assert not {(name,) for name in tables.split(",")} & set(left_out)


@pytest.mark.slow
def test_without_kernels_nothing_looks_like_no_computing(whole: Path, fresh: Any) -> None:
    con = fresh(tables="comm_ops")

    assert query.kernels(con).is_empty()
    for row in query.steps(con).to_dicts():
        if row["basis"] == "events":
            assert row["computing_ns"] is row["exposed_communication_ns"] is row["free_ns"] is None
        else:
            assert row["computing_ns"] > 0
    assert query.comm(con)["masked_ns"].null_count() == query.comm(con).height > 0
    notes = query.notes(con)
    assert any("kernels" in note and "were not selected" in note for note in notes)
    assert not any("was recorded" in note for note in notes + query.limits(con))
    assert "--tables kernels" in query.no_kernels(con)


@pytest.mark.slow
def test_without_operations_nothing_looks_like_no_communication(whole: Path, fresh: Any) -> None:
    con = fresh(tables="kernels")

    with store.open(whole, summaries=VERSIONS) as full:
        for by in ("type", "name", "core", "shape"):
            assert query.kernels(con, by=by).equals(query.kernels(full, by=by))
        computing = {
            (r["rank"], r["step"]): r["computing_ns"] for r in query.steps(full).to_dicts()
        }
    for row in query.steps(con).to_dicts():
        assert row["basis"] == "events"
        assert row["computing_ns"] == computing[row["rank"], row["step"]]
        for name in ("communication_ns", "overlapped_ns", "exposed_communication_ns", "free_ns",
                     "stage_ns", "bubble_ns", "profiler_bubble_ns", "masking_ratio"):  # fmt: skip
            assert row[name] is None, name
    for row in select(con, "outside_steps", ALL, of=RANK).to_dicts():
        assert row["op_count"] is row["communication_ns"] is None


def test_stacks_are_kept_when_asked_for_only(tmp_path: Path, target: Path) -> None:
    output = tmp_path / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    written_traces.write(output / "trace_view.json", written_traces.TRACE)
    stacks = "select count(*) - count(call_stack), count(call_stack) from host_ops"

    read(tmp_path, target, Selection())
    ((n_ops, n_stacks),) = store.query(target, stacks).rows()
    assert (n_ops > 0, n_stacks) == (True, 0)

    assert len(read(tmp_path, target, Selection(stacks=True)).publications) == 1
    ((_, n_stacks),) = store.query(target, stacks).rows()
    assert n_stacks > 0
    assert not read(tmp_path, target, Selection()).publications, "what is there is not taken away"


@pytest.mark.slow
def test_ranks_are_read_one_after_the_other(source: Path, target: Path) -> None:
    one = read(source, target, parse_selection(ranks="1"))
    assert [o.rank for o in one.publications] == [1]

    with pytest.raises(UsageError, match=r"--ranks 9: none of them is below .*, which has 0-3"):
        read(source, target, parse_selection(ranks="9"))
    more = read(source, target, parse_selection(ranks="0-1,3-7"))
    assert [o.rank for o in more.publications] == [0, 3]
    assert more.absent == ((4, 7),)
    assert not more.drops

    on_the_way = read(source, target, None)
    assert not on_the_way.publications, "a report undoes no choice"
    assert [m.rank for m in on_the_way.unchanged] == [0, 1, 3]

    rest = read(source, target, Selection())
    assert [o.rank for o in rest.publications] == [2]


@pytest.mark.slow
def test_ranks_outside_the_choice_are_not_gone(source: Path, target: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    read(copy, target, parse_selection(tables="memory"))
    for folder in copy.glob("*_ascend_pt"):
        if (folder / "profiler_info_3.json").exists():
            shutil.rmtree(folder)

    assert not read(copy, target, parse_selection(ranks="0", tables="memory")).drops
    assert [m.rank for m in read(copy, target, None).drops] == [3]


@pytest.mark.slow
def test_a_verb_on_the_way_completes_nothing(source: Path, target: Path) -> None:
    chosen = parse_selection(tables="memory", steps="12")
    read(source, target, chosen)

    assert not read(source, target, None).publications
    assert {m.selection for m in manifests(target)} == {chosen}
    assert len(read(source, target, Selection()).publications) == 4, "an explicit ingest does"
    assert {m.selection for m in manifests(target)} == {Selection()}


@pytest.mark.slow
def test_selections_add_up(source: Path, whole: Path, target: Path) -> None:
    read(source, target, parse_selection(tables="kernels", steps="12"))
    read(source, target, parse_selection(tables="comm_ops", steps="13"))

    with store.open(target, summaries=VERSIONS) as con, store.open(whole) as full:
        steps = query.steps(con).to_dicts()
        figures = [(r["rank"], r["step"], r["computing_ns"], r["exposed_communication_ns"])
                   for r in steps]  # fmt: skip
        assert figures == [
            (r["rank"], r["step"], r["computing_ns"], r["exposed_communication_ns"])
            for r in query.steps(full).to_dicts() if r["step"] < 14
        ]  # fmt: skip

    read(source, target, parse_selection(tables="memory"), force=True)
    assert {m.selection for m in manifests(target)} == {parse_selection(tables="memory")}


def test_a_changed_rank_is_read_as_it_was_selected(
    source: Path, target: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    read(copy, target, parse_selection(tables="memory"))
    changed = next(copy.rglob("memory_record.csv"))
    changed.write_text(changed.read_text() + "\n")

    result = read(copy, target, None)

    assert len(result.publications) == 1
    assert store.query(target, "select count(*) from kernels").item() == 0


@pytest.mark.slow
def test_light_reads_small_files_and_then_whom_it_needs(source: Path, target: Path) -> None:
    result = read(source, target, parse_selection(light=True))

    full = {one.rank for one in result.representatives}
    assert {m.rank for m in manifests(target) if not m.selection.light} == full
    assert 0 < len(full) < 4
    with store.open(target, summaries=VERSIONS) as con:
        by_rank = {row["rank"]: row["basis"] for row in query.steps(con).to_dicts()}
        assert by_rank == {r: "events" if r in full else "profiler_table" for r in range(4)}
        assert {r for (r,) in rows(con, "select distinct rank from kernels")} == full
        assert {r for (r,) in rows(con, "select distinct rank from groups")} == set(range(4))
        notes = query.notes(con)
        assert any("read lightly" in n and f"{len(full)} of 4 ranks in full" in n for n in notes)
        assert not query.limits(con) or all("rank" in limit for limit in query.limits(con))

    again = read(source, target, parse_selection(light=True))
    assert not again.publications
    assert again.representatives == result.representatives
    assert not read(source, target, None).publications
    assert len(read(source, target, Selection()).publications) == 4 - len(full)


@pytest.mark.slow
def test_a_light_reading_does_not_look_into_large_files(
    source: Path, target: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    for name in ("trace_view.json", "kernel_details.csv", "memory_record.csv"):
        for file in copy.rglob(name):
            file.write_bytes(b"\x00 broken")

    read(copy, target, parse_selection(light=True))

    light = [m for m in manifests(target) if m.selection.light]
    assert light
    for manifest in light:
        assert not manifest.failed_files
        looked = {Path(s.path).name.partition("_")[0] for s in manifest.sources if s.digest}
        assert looked <= {"analysis.db", "profiler", "step", "communication.json", "communication"}


@pytest.mark.slow
def test_summaries_of_a_selection_are_kept_and_trusted(source: Path, target: Path) -> None:
    read(source, target, parse_selection(steps="13"))

    with store.open(target, summaries=VERSIONS) as con:
        views = {name for (name,) in rows(con, "select view_name from duckdb_views()")}
    assert "step_summary" in views
    assert set(schema.tables()) <= views


@pytest.mark.slow
def test_the_last_of_several_shards_reads_the_representatives(source: Path, target: Path) -> None:
    light = parse_selection(light=True)
    alone = read(source, target.parent / "alone", light)

    first = read(source, target, light, shard=Shard(0, 2))
    assert not first.representatives
    assert all(m.selection.light for m in manifests(target))
    last = read(source, target, light, shard=Shard(1, 2))

    assert last.representatives == alone.representatives
    assert [m.selection for m in manifests(target)] == [
        m.selection for m in manifests(target.parent / "alone")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet_ddp_db_level1", "qwen3_pp2_dp2_text_level2"])
def test_a_selected_step_of_a_real_profile_is_exact(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    read(real_data / name, tmp_path / "whole", Selection())
    with store.open(tmp_path / "whole", summaries=VERSIONS) as full:
        (step,) = set(query.steps(full)["step"])
        expected = answers(full, [step])
    for selection in (
        parse_selection(steps=f"{step}"),
        parse_selection(steps=f"{step}", tables="kernels,comm_ops,steps,comm_times,launches"),
    ):
        read(real_data / name, tmp_path / "some", selection, force=True)
        with store.open(tmp_path / "some", summaries=VERSIONS) as some:
            assert answers(some) == expected


@pytest.mark.slow
def test_stores_and_exports_from_before_selections_still_open(whole: Path, tmp_path: Path) -> None:
    older = shutil.copytree(whole, tmp_path / "older")
    with store.open(whole) as con:
        expected = query.steps(con)
        export(con, "duckdb", tmp_path / "older.duckdb", summaries={})
    without = "* exclude (left_out_tables, kept_steps)"
    for one in manifests(older):
        folder = rank_folder(older, one.run, one.capture, one.rank)
        path = folder / one.tables["ranks"].file
        duckdb.sql(f"copy (select {without} from '{path}') to '{path}.new' (format parquet)")
        Path(f"{path}.new").replace(path)
        ranks = msgspec.structs.replace(one.tables["ranks"], size_bytes=path.stat().st_size)
        store.replace_manifest(
            older,
            msgspec.structs.replace(
                one, schema_digest="older", tables={**one.tables, "ranks": ranks}
            ),
        )
    with duckdb.connect(str(tmp_path / "older.duckdb")) as con:
        con.execute("alter table ranks drop column left_out_tables")
        con.execute("alter table ranks drop column kept_steps")

    for path in (older, tmp_path / "older.duckdb"):
        with store.open(path, summaries={}) as con:
            assert query.steps(con).equals(expected)
            assert rows(con, "select distinct kept_steps from ranks") == [(None,)]
            assert not any("selected" in note for note in query.notes(con))
