"""Results of msprof-analyze as an input: ranks come from their rows, figures keep their digits."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.collector import schema
from npuscope.collector.discover.cluster_outputs import FOLDER, look_at
from npuscope.collector.discover.search import discover
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.errors import TraceNotFound
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.cluster import write_cluster_output
from npuscope.sample_traces.generate import Job, write_job
from tests.conftest import WriteProfile

JOB = Job(name="results", layers=2, dp=2, pp=2, ep=2, seed=21, ranks_per_host=2)
COMPARED = ("profiler_steps", "comm_times", "comm_links", "comm_matrix", "groups")
# What results over all ranks do not carry: devices of the producer's table (text exports have
# them), and what only the profile itself says of a rank.
NOT_CARRIED = {"profiler_steps": {"device_id"}}
Form = Literal["text", "db"]


def rows(
    con: duckdb.DuckDBPyConnection, table: str, leave_out: frozenset[str] = frozenset()
) -> list[tuple[Any, ...]]:
    columns = ", ".join(
        f'"{column.name}"' for column in schema.tables()[table].columns
        if column.name not in NOT_CARRIED.get(table, set()) | leave_out
    )  # fmt: skip
    return con.execute(f"select rank, {columns} from {table} order by all").fetchall()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's own profiles, one folder of stores per form."""
    folder = tmp_path_factory.mktemp("profiles")
    for form in ("text", "db"):
        write_job(JOB, folder / form, forms=(form,))
        ingest(folder / form, folder / f"{form}-store")
    return folder


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    seen = captures(JOB)
    for form in ("text", "db"):
        for old in (False, True):
            out = folder / f"{form}{'-old' if old else ''}"
            write_cluster_output(seen, out, form, old=old)
    return folder


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Any]:
    opened: list[duckdb.DuckDBPyConnection] = []

    def run(path: Path) -> tuple[duckdb.DuckDBPyConnection, IngestResult]:
        target = tmp_path / f"store-{len(opened)}"
        result = ingest(path, target)
        opened.append(store.open(target))
        return opened[-1], result

    yield run
    for con in opened:
        con.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_rows_are_those_of_the_profiles(
    profiles: Path, outputs: Path, read: Any, form: Form
) -> None:
    con, result = read(outputs / form)

    assert result.is_complete and len(result.publications) == JOB.world_size
    with closing(store.open(profiles / f"{form}-store")) as own:
        for table in COMPARED:
            mine, theirs = rows(con, table), rows(own, table)
            if table == "groups":  # those that never communicated are in no result
                used = {row[1] for row in mine}
                theirs = [row for row in theirs if row[1] in used]
                assert len(used) > 4
            assert mine and mine == theirs, table


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_older_forms_lack_names_and_places_only(outputs: Path, read: Any, form: Form) -> None:
    new, _ = read(outputs / form)
    old, result = read(outputs / f"{form}-old")

    assert result.is_complete
    lacking = frozenset({"preparing_ns"} if form == "text" else ())
    assert rows(old, "profiler_steps", lacking) == rows(new, "profiler_steps", lacking)
    for table in ("comm_times", "comm_links"):
        assert rows(old, table) == rows(new, table)
    unplaced = frozenset(() if form == "db" else ("src_group_rank", "dst_group_rank"))
    assert rows(old, "comm_matrix", unplaced) == rows(new, "comm_matrix", unplaced)
    members = "select rank, group_hash, global_ranks from groups order by all"
    assert old.execute(members).fetchall() == new.execute(members).fetchall()
    told = "select distinct pp_rank, pp_size from ranks order by all"
    if form == "text":
        assert old.execute("select distinct group_rank, parallel_kind from groups").fetchall() == [
            (None, "unknown")
        ]
        assert old.execute(told).fetchall() == [(None, None)]
        assert new.execute(told).fetchall() == [(0, 2), (1, 2)]
    else:  # zeros that stand for "not told" are no places, but groups tell some
        assert old.execute(told).fetchall() == [(0, 2), (1, 2)]


def test_what_a_database_says_of_ranks(outputs: Path, read: Any) -> None:
    con, _ = read(outputs / "db" / FOLDER / "cluster_analysis.db")

    found = con.execute(
        "select rank, device_id, host_name, framework, source_format, clock, world_size, tp_rank,"
        " pp_rank, dp_rank, ep_size, window_start_ns from ranks order by rank"
    ).fetchall()
    assert found == [
        (0, 0, "node00", "pytorch", "cluster", "epoch", 4, 0, 0, 0, 2, None),
        (1, 1, "node00", "pytorch", "cluster", "epoch", 4, 0, 0, 1, 2, None),
        (2, 0, "node01", "pytorch", "cluster", "epoch", 4, 0, 1, 0, 2, None),
        (3, 1, "node01", "pytorch", "cluster", "epoch", 4, 0, 1, 1, 2, None),
    ]


def test_a_path_may_be_the_folder_its_parent_or_one_file(outputs: Path, tmp_path: Path) -> None:
    folder = outputs / "text" / FOLDER
    moved = tmp_path / "renamed"
    shutil.copytree(folder, moved)

    for path in (folder, folder.parent, outputs / "text", folder / "cluster_communication.json"):
        assert [source.rank for source in discover(path).ranks] == [0, 1, 2, 3]
    assert [source.rank for source in discover(moved).ranks] == [0, 1, 2, 3]
    result = ingest(folder, tmp_path / "store")
    assert (result.run, len(result.publications)) == ("text", 4)


def test_profiles_beside_them_win(
    outputs: Path, tmp_path: Path, write_profile: WriteProfile
) -> None:
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / "job" / FOLDER)
    assert {source.framework for source in discover(tmp_path / "job").ranks} == {"msprof_analyze"}

    write_profile(tmp_path / "job" / "rank7_ascend_pt", 7)

    (source,) = discover(tmp_path / "job").ranks
    assert (source.rank, source.framework) == (7, "pytorch")


def test_ranks_without_a_table_of_steps(outputs: Path, tmp_path: Path, read: Any) -> None:
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / FOLDER)
    (tmp_path / FOLDER / "cluster_step_trace_time.csv").unlink()

    con, _ = read(tmp_path)

    assert con.execute("select distinct rank from comm_times order by 1").fetchall() == [
        (0,), (1,), (2,), (3,)
    ]  # fmt: skip
    assert rows(con, "profiler_steps") == []


def test_ranks_beside_the_table_of_steps_are_told(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / FOLDER)
    table = tmp_path / FOLDER / "cluster_step_trace_time.csv"
    kept = [line for line in table.read_text().splitlines() if ",rank,3," not in line]
    table.write_text("\n".join(kept) + "\n")

    result = ingest(tmp_path, tmp_path / "store")

    assert [outcome.rank for outcome in result.publications] == [0, 1, 2]
    told = "figures of ranks without a row in the table of steps are left out: 3"
    assert all(told in outcome.warnings for outcome in result.publications)
    # A choice of ranks makes no strangers of the others.
    chosen = ingest(tmp_path, tmp_path / "other", selection=parse_selection(ranks="1"))
    assert [outcome.warnings for outcome in chosen.publications] == [()]


def test_groups_alone_are_no_input(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    shutil.copy(outputs / "text" / FOLDER / "communication_group.json", tmp_path / FOLDER)

    with pytest.raises(TraceNotFound, match="was analyse"):
        discover(tmp_path)


def test_a_table_without_ranks_is_told(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "cluster_step_trace_time.csv").write_text("Step,Computing\n1,2\n")

    (problem,) = discover(tmp_path).problems

    assert "cluster_step_trace_time.csv has no columns Type and Index" in problem.message
    assert problem.path == str(tmp_path / FOLDER)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_file_cut_short_gives_what_stands_before(
    outputs: Path, tmp_path: Path, read: Any, part: float
) -> None:
    whole, _ = read(outputs / "text")
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / FOLDER)
    path = tmp_path / FOLDER / "cluster_communication.json"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])

    con, result = read(tmp_path)

    there, all_rows = rows(con, "comm_times"), set(rows(whole, "comm_times"))
    assert set(there) < all_rows
    assert len(there) > part * 0.7 * len(all_rows)
    assert {Path(file).name for _, file, _ in result.unread_files} == {path.name}


def test_figures_of_one_rank_that_are_no_numbers_cost_that_rank(
    outputs: Path, tmp_path: Path, read: Any
) -> None:
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / FOLDER)
    path = tmp_path / FOLDER / "cluster_communication.json"
    content = json.loads(path.read_text())
    steps = content["(0, 1, 2, 3)"]
    step, operations = next(iter(steps.items()))
    name = next(iter(operations))
    operations[name]["2"]["Communication Time Info"] = "lost"
    path.write_text(json.dumps(content))
    # In the matrix, which has no ranks of its own, such a figure costs itself alone.
    links = tmp_path / FOLDER / "cluster_communication_matrix.json"
    text, count = re.subn(r'("Bandwidth\(GB/s\)": )[\d.e+-]+', r"\1NaN", links.read_text())
    assert count
    links.write_text(text)

    con, result = read(tmp_path)

    whole, _ = read(outputs / "text")
    sizes = "select rank, src_rank, dst_rank, size_bytes, time_ns from comm_matrix order by all"
    assert con.execute(sizes).fetchall() == whole.execute(sizes).fetchall() != []
    known = con.execute("select count(bandwidth_bytes_per_s) from comm_matrix").fetchone()
    assert known == (0,)

    asked = "select rank from comm_times where name = ? and step = ? order by 1"
    found = con.execute(asked, [name.split("@")[0], int(step.removeprefix("step"))]).fetchall()
    assert found == [(0,), (1,), (3,)]
    assert not result.is_complete


@pytest.mark.slow
def test_an_unchanged_folder_is_not_read_again(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "text" / FOLDER, tmp_path / FOLDER)
    ingest(tmp_path, tmp_path / "store")
    path = tmp_path / FOLDER / "cluster_communication.json"
    path.touch()  # another time, the same content

    again = ingest(tmp_path, tmp_path / "store")
    assert (len(again.publications), len(again.unchanged)) == (0, 4)

    path.write_text(path.read_text().replace("0.0056", "0.0057"))
    assert len(ingest(tmp_path, tmp_path / "store").publications) == 4
    assert not list((tmp_path / "store").glob("run=*/capture=*/.tmp-*"))
    assert {len(m.sources) for m in manifests(tmp_path / "store")} == {4}


def test_two_times_are_two_captures(tmp_path: Path) -> None:
    for name, start_ns in (("first", JOB.start_ns), ("second", JOB.start_ns + 10**12)):
        later = Job(name=name, layers=1, pp=1, dp=2, ep=2, experts=4, start_ns=start_ns)
        write_cluster_output(captures(later), tmp_path / name, "text")

    ingest(tmp_path, tmp_path / "store")

    found = {(m.capture, m.rank) for m in manifests(tmp_path / "store")}
    assert len(found) == 4 and len({capture for capture, _ in found}) == 2


def test_a_rank_reads_alone_what_nobody_took_apart(
    outputs: Path, staging: duckdb.DuckDBPyConnection, read: Any
) -> None:
    """As a rank does on a machine whose driver does not see its files."""
    from npuscope.collector.model import ReadLog
    from npuscope.collector.readers.cluster import cluster_output

    con, _ = read(outputs / "text")
    (source,) = [one for one in discover(outputs / "text").ranks if one.rank == 2]
    cluster_output.read(
        staging, source, ReadLog(), frozenset(schema.tables()), lambda n_bytes: None
    )

    asked = "select name, start_ns, elapse_ns from comm_times {} order by all"
    alone = staging.execute(asked.format("")).fetchall()
    assert alone == con.execute(asked.format("where rank = 2")).fetchall()


@pytest.fixture(scope="module")
def cluster16(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    target = tmp_path_factory.mktemp("cluster16")
    result = ingest(real_data / "cluster16_pp2", target)
    assert result.is_complete
    con = store.open(target)
    yield con
    con.close()


GOLDEN_COLUMNS = {
    "Computing": "computing_ns", "Communication": "communication_ns", "Free": "free_ns",
    "Communication(Not Overlapped)": "communication_not_overlapped_ns",
    "Overlapped": "overlapped_ns", "Stage": "stage_ns", "Bubble": "bubble_ns",
    "Communication(Not Overlapped and Exclude Receive)":
        "communication_not_overlapped_and_exclude_receive_ns",
}  # fmt: skip


def test_the_producers_digits_are_kept(cluster16: Any, goldens: Mapping[str, Any]) -> None:
    golden = goldens["cluster16_pp2"]["2"]

    found = cluster16.sql("select * from profiler_steps order by rank").pl().to_dicts()

    assert [row["rank"] for row in found] == list(range(16)) == sorted(map(int, golden))
    for row in found:
        assert row["step"] == 2 and row["preparing_ns"] is None
        for theirs, ours in GOLDEN_COLUMNS.items():
            # The same decimal digits: three places to the left, nothing else.
            assert row[ours] == pytest.approx(golden[str(row["rank"])][theirs] * 1000, rel=1e-15)


def test_steps_have_bubbles_and_say_whose_figures_they_are(
    cluster16: Any, goldens: Mapping[str, Any]
) -> None:
    golden = goldens["cluster16_pp2"]["2"]

    found = query.steps(cluster16)
    assert found.height == 16
    for row in found.to_dicts():
        told = golden[str(row["rank"])]
        assert (row["basis"], row["step"]) == ("profiler_table", 2)
        assert row["profiler_bubble_ns"] == round(told["Bubble"] * 1000)
        assert (row["profiler_bubble_ns"] > 0) == (row["rank"] >= 8)
        assert row["stage_ns"] == round(told["Stage"] * 1000)
        assert row["masking_ratio"] == pytest.approx(told["masking_ratio"], abs=1e-6)
        assert row["bubble_ns"] is row["start_ns"] is None


def test_links_between_global_ranks(cluster16: Any) -> None:
    (sent,) = cluster16.execute(
        "select rank, op_type, category, variant, link, size_bytes, time_ns from comm_matrix"
        " where src_rank = 0 and dst_rank = 8"
    ).fetchall()
    assert sent == (0, "send", "p2p", "op", "RDMA", 20_971_520, 863_815.40625)
    assert cluster16.execute(
        "select start_ns, elapse_ns from comm_times where rank = 0 and op_type = 'send'"
    ).fetchall() == [(1_695_115_378_810_042_500, 896_486.91015625)]
    (members,) = cluster16.execute(
        "select distinct global_ranks from groups where group_hash = '9350434047717501483'"
    ).fetchall()
    assert members == (list(range(8)),)


def test_a_damaged_database_is_told(outputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    shutil.copytree(outputs / "text" / FOLDER, folder)
    with closing(sqlite3.connect(folder / "cluster_analysis.db")) as db:
        db.execute("create table SlowRank (rank integer)")
        db.commit()
    data = bytearray((folder / "cluster_analysis.db").read_bytes())
    data[:16] = b"no such database"
    (folder / "cluster_analysis.db").write_bytes(bytes(data))

    result = ingest(tmp_path, tmp_path / "store")

    assert len(result.publications) == 4 and not result.is_complete
    assert {Path(file).name for _, file, _ in result.unread_files} == {"cluster_analysis.db"}
    assert look_at(folder).ranks == (0, 1, 2, 3)
