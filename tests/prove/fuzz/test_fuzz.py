"""Mutants of every kind of file; what a misreading looks like to the judge, so that it would be
seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.text import kernel_details
from npuscope.errors import TraceFormatError
from tests.prove.fuzz import judging, misbehaving, run, workers
from tests.prove.fuzz.inputs import READERS, Input, Reader, mutate, write

Read = Callable[[duckdb.DuckDBPyConnection, ReadLog], None]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[Reader, list[Input]]:
    return write(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def kernels(seeds: dict[Reader, list[Input]]) -> Input:
    [whole, *_] = [given for given in seeds["csv"] if given.name == "kernel_details.csv"]
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_readers_stand_500_mutants(reader: Reader, tmp_path: Path) -> None:
    assert run.fuzz(reader, range(500), jobs=1, out=tmp_path) == 0


@pytest.mark.slow
def test_whole_inputs_are_read_without_a_word(
    seeds: dict[Reader, list[Input]], tmp_path: Path
) -> None:
    for reader in READERS:
        for number, given in enumerate(seeds[reader]):
            judged = judging.judge(given, tmp_path / f"{reader}-{number}")
            assert (judged.told, judged.wrong) == ((), ()), given.name
            assert judged.rows, given.name


def test_a_seed_gives_one_mutant(seeds: dict[Reader, list[Input]]) -> None:
    for reader in READERS:
        first = [mutate(seeds, reader, seed) for seed in range(20)]
        assert first == [mutate(seeds, reader, seed) for seed in range(20)]
        assert len({given.data for given in first}) > 15, "mutants are not all alike"


def _insert(start_ns: int, dur_ns: int, more: str = "") -> Read:
    def read(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
        con.execute(f"insert into kernels (start_ns, dur_ns) values ({start_ns}, {dur_ns})")
        if more:
            con.execute(f"update kernels set {more}")

    return read


def _raise(error: Exception) -> Read:
    def read(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
        raise error

    return read


def _many(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    con.execute("insert into kernels (start_ns, dur_ns) select 1, 1 from range(100)")


def _says_so(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    log.warn("23 rows left out")
    _insert(1, 1)(con, log)


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (_raise(ValueError("x")), "raised builtins.ValueError"),
        (_raise(duckdb.OutOfRangeException("x")), "OutOfRangeException"),
        (_raise(TraceFormatError("elsewhere.csv", "row 1", "x")), "names no file"),
        (_insert(1, 1), "1 rows, 24 in the file, and no word of it"),
        (_many, "100 rows of a file that can hold"),
        (_insert(1, -1), "dur_ns is negative"),
        (_insert(2**62, 2**62), "beyond 64 bits"),
        (_insert(1, 1, "aic_time_ns = 'nan'"), "aic_time_ns is no number"),
        (_insert(1, 1, "pmu = map {'a': 'inf'::double}"), "pmu has no number"),
        (_insert(1, 1, "name = 'N/A'"), "name is text for unknown"),
    ],
)
def test_misreadings_are_seen(
    kernels: Input, read: Read, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(con: Any, source: Any, log: ReadLog, wanted: Any, advance: Any) -> None:
        read(con, log)

    monkeypatch.setitem(judging.READS, "kernels", SimpleNamespace(read=reader))
    assert wrong in "; ".join(judging.judge(kernels, tmp_path / "a").wrong)


def test_a_wrong_sum_is_seen_and_a_loss_that_is_told_is_none(
    kernels: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(con: Any, source: Any, log: Any, wanted: Any, advance: Any) -> None:
        kernel_details.read(con, source, log, wanted, advance)
        con.execute("update kernels set start_ns = start_ns + 1")

    def lossy(con: Any, source: Any, log: ReadLog, wanted: Any, advance: Any) -> None:
        _says_so(con, log)

    monkeypatch.setitem(judging.READS, "kernels", SimpleNamespace(read=late))
    [wrong] = judging.judge(kernels, tmp_path / "late").wrong
    assert wrong.startswith("kernels.start_ns adds up to")
    monkeypatch.setitem(judging.READS, "kernels", SimpleNamespace(read=lossy))
    assert judging.judge(kernels, tmp_path / "lossy").wrong == ()


def test_rows_that_a_damaged_page_hides_are_missed(
    seeds: dict[Reader, list[Input]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(con: Any, source: Any, log: Any, wanted: Any, advance: Any) -> None:
        pass

    [given, *_] = [one for one in seeds["sqlite"] if one.role == "analysis_db"]
    whole = judging.judge(given, tmp_path / "whole")
    torn = bytearray(given.data)
    pages = range(1024, len(torn), 1024)
    leaf = next(at for at in pages if torn[at] == 13 and b"hcom_" in torn[at : at + 1024])
    torn[leaf + 3 : leaf + 5] = b"\0\x01"  # a page of rows says that it has one
    damaged = replace(given, data=bytes(torn))
    seen = judging.judge(damaged, tmp_path / "seen", whole)
    assert (seen.wrong, len(seen.told)) == ((), 2)
    monkeypatch.setitem(judging.READS, "analysis_db", SimpleNamespace(read=silent))
    wrong = judging.judge(damaged, tmp_path / "silent", whole).wrong
    assert "comm_times: 0 rows of a damaged file, 13 before, and no word of it" in wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judged_by", "wrong", "bound_s"),
    [
        (misbehaving.hangs, "no answer in time", 1.0),  # several times that is waited for
        (misbehaving.spins, "no answer in time", 1.0),
        (misbehaving.dies, "the process died: SIGSEGV", 3.0),
        (misbehaving.takes_memory, "MiB more", 3.0),
    ],
)
def test_processes_that_misbehave_are_seen_and_replaced(
    judged_by: workers.Judging, wrong: str, bound_s: float, tmp_path: Path
) -> None:
    tasks: list[tuple[Reader, int]] = [("csv", 0), ("csv", 1)]
    found = list(workers.outcomes(
        tasks, tmp_path / "work", processes=1, judging=judged_by, bound_s=bound_s
    ))  # fmt: skip
    assert [outcome.seed for outcome in found] == [0, 1]
    for outcome in found:
        assert wrong in "; ".join(outcome.judged.wrong)
