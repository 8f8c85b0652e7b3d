"""`.duckdb` files that somebody else made: nothing in them runs, only our own tables are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.summaries import summaries, summarise
from npuscope.analysis.views import has_view
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.literals import sql_literal
from npuscope.collector.store import store
from npuscope.collector.store.export import export
from npuscope.errors import NpuscopeError, StoreError, UsageError
from npuscope.selects import lock_down, run_select
from tests.prove.hardening.captures import write_light
from tests.prove.hardening.cases import run_here

VERSIONS = {one.name: one.version for one in summaries()}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    write_light(folder / "source")
    ingest(folder / "source", folder / "store", run="job", summarise=summarise, jobs=1)
    out = folder / "x.duckdb"
    assert (
        run_here(["export", "duckdb", str(folder / "store"), "-o", str(out)], {}, folder).code == 0
    )
    return out


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("the secret")
    return path


@pytest.fixture
def spoilt(honest: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the export on which some statements were run."""

    def spoil(*statements: str) -> Path:
        path = Path(shutil.copy(honest, tmp_path / "evil.duckdb"))
        with duckdb.connect(str(path)) as con:
            for statement in statements:
                con.execute(statement)
        return path

    return spoil


def rows(con: duckdb.DuckDBPyConnection, name: str) -> int:
    ((count,),) = con.execute(f'select count(*) from "{name}"').fetchall()
    return int(count)


def show(path: Path) -> set[str]:
    """Views that an export opens with."""
    with store.open(path, summaries=VERSIONS) as con:
        found = con.execute(
            "select view_name from duckdb_views()"
            " where not internal and database_name = current_database()"
        ).fetchall()
    return {name for (name,) in found}


@pytest.mark.parametrize("version", ["null", "''", "'1'"])
@pytest.mark.parametrize("asked", [VERSIONS, None])
def test_sql_in_a_name_does_not_run(
    spoilt: Callable[..., Path], tmp_path: Path, version: str, asked: dict[str, str] | None
) -> None:
    written = tmp_path / "written.csv"
    name = f"x\" as select 1; copy (select 42) to '{written}'; --"
    quoted = '"' + name.replace('"', '""') + '"'
    path = spoilt(
        f"create table {quoted} (a integer)",
        f"insert into summary_versions values ({sql_literal(name)}, {version})",
    )
    with store.open(path, summaries=asked) as con:
        assert rows(con, "ranks") == 2
        found = con.execute("select view_name from duckdb_views() where not internal").fetchall()
    assert not written.exists()
    assert not {(name,), ("x",)} & set(found)


def test_a_summary_without_a_version_is_not_taken(spoilt: Callable[..., Path]) -> None:
    name = next(iter(VERSIONS))
    assert "ranks" in show(spoilt("create table aside (a integer)"))
    assert name not in show(
        spoilt(f"update summary_versions set version = null where name = '{name}'")
    )
    both = spoilt(
        "create table aside (a integer)", "insert into summary_versions values ('aside', null)"
    )
    assert "aside" not in show(both)


def test_a_view_stands_for_no_table(spoilt: Callable[..., Path], secret: Path) -> None:
    """Not for one that every export has, for none that may be absent, and for no summary."""
    reading = f"as select *, content as run, '' as capture, 0 as rank from read_text('{secret}')"
    with pytest.raises(StoreError, match="not one that npuscope exported"):
        store.open(spoilt("drop table ranks", f"create view ranks {reading}"))
    path = spoilt(
        "drop table kernels", f"create view kernels {reading}",
        "drop table step_summary", f"create view step_summary {reading}",
        "drop table summary_versions",
        "create view summary_versions as select 'step_summary' as name, "
        f"'{VERSIONS['step_summary']}' as version, * from read_text('{secret}')",
    )  # fmt: skip
    with store.open(path, summaries=VERSIONS) as con:
        assert rows(con, "ranks") == 2 and rows(con, "kernels") == 0
    assert "step_summary" not in show(path)
    done = run_here(["steps", str(path), "--json"], {}, path.parent)
    assert done.code == 0 and secret.read_text() not in done.out


@pytest.mark.parametrize("name", ["arrivals", "clocks", "rank_blame", "comm_waits"])
def test_a_table_in_the_file_is_no_result_of_ours(spoilt: Callable[..., Path], name: str) -> None:
    """Whoever asks whether ranks were compared is not told yes by the file."""
    with store.open(spoilt(f"create table {name} (a integer)"), summaries=VERSIONS) as con:
        assert not has_view(con, name)
        con.execute(f"create temp view {name} as select 1 as a")
        assert has_view(con, name)


def test_a_table_of_another_schema_is_none_of_ours(spoilt: Callable[..., Path]) -> None:
    path = spoilt(
        "create schema other", "create table other.ranks as from ranks", "drop table ranks"
    )
    with pytest.raises(StoreError, match="not one that npuscope exported"):
        store.open(path)


def test_a_computed_column_is_not_computed(spoilt: Callable[..., Path]) -> None:
    path = spoilt(
        "drop table kernels",
        "create table kernels (run varchar, capture varchar, rank integer,"
        " name varchar generated always as ('it ran'))",
        "insert into kernels (run, capture, rank) values ('job', 'c', 0)",
    )
    with store.open(path, summaries=VERSIONS) as con:
        assert con.execute("from kernels").fetchall() == []


def test_columns_that_no_table_of_ours_has_are_left_out(spoilt: Callable[..., Path]) -> None:
    path = spoilt(
        'alter table ranks add column "a"" b" integer', "alter table ranks drop column host_name"
    )
    with store.open(path, summaries=VERSIONS) as con:
        columns = [row[0] for row in con.execute("describe ranks").fetchall()]
        assert 'a" b' not in columns and columns[:3] == ["run", "capture", "rank"]
        assert con.execute("select distinct host_name from ranks").fetchall() == [(None,)]


def test_an_open_export_reaches_no_other_file(
    spoilt: Callable[..., Path], secret: Path, tmp_path: Path
) -> None:
    """Neither through what is stored in it, nor by a statement of anybody."""
    path = spoilt(
        f"create view peep as select * from read_text('{secret}')",
        f"create macro peeping() as table select * from read_text('{secret}')",
    )
    out = tmp_path / "out.csv"
    with store.open(path, summaries=VERSIONS) as con:
        for statement in (
            "from exported.peep",
            "from exported.peeping()",
            f"from read_text('{secret}')",
            f"copy ranks to '{out}'",
            f"attach '{tmp_path / 'new.duckdb'}'",
            "set enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error, match=r"disabled|external access"):
                con.execute(statement).fetchall()
        lock_down(con, path)
        with pytest.raises(UsageError):
            run_select(con, "from exported.peep").read_all()
    assert not out.exists()
    for statement in ("from peep", "from exported.peep", "from exported.main.peeping()"):
        done = run_here(["sql", str(path), statement], {}, tmp_path)
        assert done.code == 2 and "the secret" not in done.out + done.errors


@pytest.mark.parametrize("name", ["md:x.duckdb", "sqlite:x.duckdb", "a'b.duckdb", "x?y=1.duckdb"])
def test_a_name_that_means_something_to_the_engine(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copy(honest, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with store.open(name, summaries=VERSIONS) as con:
        assert rows(con, "ranks") == 2


def test_an_unfinished_log_beside_the_file_runs_nothing(
    honest: Path, secret: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(honest, tmp_path / "evil.duckdb"))
    with duckdb.connect(str(path)) as con:
        con.execute("set checkpoint_threshold = '1GB'")
        con.execute("drop table kernels")
        con.execute(f"create view kernels as select * from read_text('{secret}')")
        for suffix in ("", ".wal"):
            shutil.copy(f"{path}{suffix}", f"{tmp_path}/copy.duckdb{suffix}")
    assert (tmp_path / "copy.duckdb.wal").stat().st_size > 0
    try:
        with store.open(tmp_path / "copy.duckdb", summaries=VERSIONS) as con:
            assert rows(con, "kernels") == 0
    except StoreError:
        pass  # the engine may refuse it


def test_a_great_many_tables_are_passed_over(spoilt: Callable[..., Path]) -> None:
    usual = show(spoilt())
    path = spoilt("begin", *(f"create table t{n} (a integer)" for n in range(2000)), "commit")
    assert show(path) == usual


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"SQLite format 3\0" + bytes(500), bytes(5000), b"x" * 4096):
        path = tmp_path / "x.duckdb"
        path.write_bytes(content)
        with pytest.raises(StoreError, match=str(path)):
            store.open(path)


@pytest.mark.parametrize("form", ["duckdb", "parquet", "csv"])
def test_an_export_is_exported_again(honest: Path, tmp_path: Path, form: str) -> None:
    done = run_here(["export", form, str(honest), "-o", str(tmp_path / "out.duckdb")], {}, tmp_path)
    assert done.code == 0, done.errors
    again = run_here(
        ["export", form, str(honest), "-o", str(tmp_path / "out.duckdb")], {}, tmp_path
    )
    assert again.code == 0, again.errors
    if form == "duckdb":
        with store.open(tmp_path / "out.duckdb", summaries=VERSIONS) as con:
            assert rows(con, "ranks") == 2 and rows(con, "step_summary") > 0


def test_a_hostile_file_in_the_place_of_an_export_is_not_replaced(
    spoilt: Callable[..., Path], honest: Path, secret: Path
) -> None:
    path = spoilt("drop table ranks", f"create view ranks as select * from read_text('{secret}')")
    before = path.read_bytes()
    with store.open(honest, summaries=VERSIONS, writable=path.parent) as con:
        with pytest.raises(UsageError, match="no earlier duckdb export"):
            export(con, "duckdb", path, summaries=VERSIONS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_folder_of_somebody_elses_files_is_not_replaced(
    honest: Path, tmp_path: Path, form: str
) -> None:
    """Though all of them end as those of an export do; nor one that is reached through a link."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / f"my_results.{form}").write_text("precious")
    earlier = tmp_path / "earlier"
    with store.open(honest, summaries=VERSIONS, writable=tmp_path) as con:
        export(con, form, earlier, summaries=VERSIONS)
        (tmp_path / "link").symlink_to(earlier)
        (tmp_path / "nested").mkdir()
        (tmp_path / "nested" / f"kernels.{form}").mkdir()
        for out in (mine, tmp_path / "link", tmp_path / "nested"):
            with pytest.raises(NpuscopeError):
                export(con, form, out, summaries=VERSIONS)
    assert (mine / f"my_results.{form}").read_text() == "precious"
    assert (earlier / f"ranks.{form}").exists()
