"""What took long is kept in the store: for this version of it alone, and never trusted blindly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pytest

from npuscope.analysis import memo, rules
from npuscope.analysis.memo import forget, memoize, question_of, remember
from npuscope.analysis.scope import ALL, Scope
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import answers, store
from npuscope.collector.store.answers import ANSWERS, Answers, keep_answer, read_answer
from npuscope.collector.store.compact import compact
from npuscope.collector.store.export import export
from npuscope.collector.store.sweep import sweep
from npuscope.profile import Source, open_tables
from tests.conftest import WriteProfile

ASKED: list[object] = []


@memoize
def _count(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    ASKED.append(scope)
    return store.frame(con.sql("select count(*) as kernels, count(distinct rank) as ranks"
                               " from kernels"))  # fmt: skip


@memoize
def _strange(con: duckdb.DuckDBPyConnection) -> object:
    ASKED.append(None)
    return con


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memo, "WORTH_S", 0.0)
    ASKED.clear()
    yield


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for rank in range(3):
        write_profile(folder / "source" / f"r{rank}_ascend_pt", rank)
    ingest(folder / "source", folder / "store", run="job", jobs=1)
    return folder


@pytest.fixture
def target(read: Path, tmp_path: Path) -> Path:
    """A store of this test's own, beside its source."""
    shutil.copytree(read / "source", tmp_path / "source")
    return shutil.copytree(read / "store", tmp_path / "store")


def ask(target: Path, scope: Scope = ALL) -> tuple[int, int]:
    """What a command is told: kernels and ranks."""
    with open_tables(Source(target)) as data:
        told: tuple[int, int] = _count(data.con, scope).row(0)
        return told


def files(target: Path) -> list[Path]:
    return sorted((target / ANSWERS).glob("*/*"))


def test_an_answer_is_computed_once_for_all_commands(target: Path) -> None:
    first = ask(target)
    assert first[1] == 3
    assert ask(target) == first and len(ASKED) == 1
    assert len(files(target)) == 1
    ask(target, Scope("job"))
    ask(target, Scope("job", rank=1))
    assert len(ASKED) == 3 and len(files(target)) == 3
    with open_tables(Source(target)) as data:
        cursor = data.con.cursor()
        with question_of(data.con, cursor):
            assert _count(cursor).row(0) == first and len(ASKED) == 3
        _count(cursor)  # the question was answered: from here on it remembers nothing
        assert len(ASKED) == 4
        forget(data.con, views="others")
        _count(data.con)
    assert len(ASKED) == 5


def test_what_is_quick_is_not_kept(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "WORTH_S", 60.0)
    ask(target)
    ask(target)
    assert len(ASKED) == 2 and not (target / ANSWERS).exists()


def test_another_version_of_the_store_has_answers_of_its_own(
    target: Path, write_profile: WriteProfile
) -> None:
    source = target.parent / "source"
    first = ask(target)
    old = files(target)
    write_profile(source / "r3_ascend_pt", 3, [(7, "Add", "1736412474000007.250", "10.500")])
    ingest(source, target, run="job", jobs=1)
    assert ask(target) == (first[0] + 1, 4)
    assert not set(old) & set(files(target)) and len(files(target)) == 1
    shutil.rmtree(source / "r0_ascend_pt")
    ingest(source, target, run="job", jobs=1)
    assert ask(target)[1] == 3
    known = len(ASKED)
    ingest(source, target, run="job", jobs=1)  # nothing new
    ask(target)
    assert len(ASKED) == known == 3


def test_what_is_merged_and_other_rules_are_other_versions(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(target)
    monkeypatch.setattr(rules, "version_of_all", lambda: "0123456789ab")
    assert ask(target) == first and len(ASKED) == 2
    assert len(list((target / ANSWERS).iterdir())) == 1  # those of other rules went
    monkeypatch.undo()
    monkeypatch.setattr(memo, "WORTH_S", 0.0)
    ask(target)
    compact(target)
    assert ask(target) == first


def test_sweeping_leaves_this_version_alone(target: Path) -> None:
    ask(target)
    (mine,) = files(target)
    for name in (f"{'0' * 16}-{'1' * 12}", "photos"):
        (target / ANSWERS / name).mkdir()
        (target / ANSWERS / name / "one.answer").write_bytes(b"x" * 100)
    assert sweep(target) >= 100
    assert sorted(one.name for one in (target / ANSWERS).iterdir()) == sorted(
        [mine.parent.name, "photos"]
    )
    assert mine.exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "moved", "link", "folder", "huge"])
def test_a_damaged_answer_is_computed_again(
    target: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(target)
    (file,) = files(target)
    whole = file.read_bytes()
    if damage == "moved":  # another question's answer
        ask(target, Scope("job", rank=1))
        (other,) = set(files(target)) - {file}
        shutil.copy(other, file)
    elif damage == "link":
        shutil.copy(file, target / "elsewhere")
        file.unlink()
        file.symlink_to(target / "elsewhere")
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    elif damage == "huge":
        monkeypatch.setattr(answers, "ONE_BYTES", 10)
    else:
        cut = whole[: len(whole) // 2]
        bit = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        file.write_bytes({"empty": b"", "cut": cut, "bit": bit}[damage])
    known = len(ASKED)
    assert ask(target) == first and len(ASKED) == known + 1
    if damage not in ("folder", "huge"):
        assert ask(target) == first and len(ASKED) == known + 1  # and kept anew


def test_what_somebody_else_wrote_is_computed_again(target: Path) -> None:
    first = ask(target)
    (file,) = files(target)
    ranks, made = file.parent.name.split("-")
    question = "\0" + repr(
        (_count.__module__, _count.__qualname__, (Scope, *((type(None), None),) * 4))
    )
    of = Answers(target, ranks, made)
    assert read_answer(of, question) is not None
    assert keep_answer(of, question, b"no answer at all")
    assert ask(target) == first and len(ASKED) == 2
    assert ask(target) == first and len(ASKED) == 2


def test_a_store_that_cannot_be_written_is_only_read(target: Path) -> None:
    (target / ANSWERS).write_bytes(b"")  # as on a disk that is read only, no folder can be made
    assert ask(target) == ask(target) and len(ASKED) == 2
    (target / ANSWERS).unlink()
    (target.parent / "aside").mkdir()
    (target / ANSWERS).symlink_to(target.parent / "aside")
    ask(target)
    assert not os.listdir(target.parent / "aside")


def test_exports_and_connections_of_others_keep_nothing(target: Path) -> None:
    with closing(store.open(target, writable=target.parent)) as con:
        export(con, "duckdb", target.parent / "whole.duckdb", summaries={})
    before = sorted(target.parent.iterdir())
    first = ask(target.parent / "whole.duckdb")
    assert ask(target.parent / "whole.duckdb") == first and len(ASKED) == 2
    with open_tables(Source(target), is_command=False) as data:
        _count(data.con)
    with closing(store.open(target)) as con:
        remember(con)
        _count(con)
        _count(con)
    assert len(ASKED) == 4
    assert sorted(target.parent.iterdir()) == before and not (target / ANSWERS).exists()


def test_what_no_file_holds_is_told_all_the_same(target: Path) -> None:
    with open_tables(Source(target)) as data:
        assert _strange(data.con) is data.con
    assert not files(target)


def test_room_is_limited_the_oldest_go_first(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Answers(target, "a" * 16, "b" * 12)
    monkeypatch.setattr(answers, "MOST_FILES", 3)
    for number in range(5):
        assert keep_answer(of, str(number), b"x" * 100)
        for age, file in enumerate(reversed(files(target))):
            assert age < 3 and file.stat().st_size == 132
        (newest,) = (one for one in files(target) if one.name == answers._file(str(number)))
        os.utime(newest, (number, number))
    assert [read_answer(of, str(n)) is not None for n in range(5)] == [False] * 2 + [True] * 3
    monkeypatch.setattr(answers, "ALL_BYTES", 250)
    assert keep_answer(of, "5", b"y" * 100)
    assert [read_answer(of, str(n)) is not None for n in (2, 3, 4, 5)] == [False, False, True, True]
    monkeypatch.setattr(answers, "ONE_BYTES", 99)
    assert not keep_answer(of, "6", b"z" * 100)
    left = files(target)[0].parent / ".tmp-host-1-0123456789ab"
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    monkeypatch.undo()
    assert keep_answer(of, "7", b"") and not left.exists()


def test_versions_follow_every_rule_and_only_rules(tmp_path: Path) -> None:
    first = rules.version_of_all()
    assert first == rules.version_of_all() and len(first) == 12
    listed = {*rules._places(rules.PACKAGE).values()}
    assert {
        "analysis/memo.py",
        "analysis/sql/steps/job_steps.sql",
        "collector/store/store.py",
    } <= listed
    assert not any("__pycache__" in one for one in listed)
