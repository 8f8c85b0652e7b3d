"""A trainer's log in the store: kept with one rank, replaced when it changed, never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.doctor.doctor import Overhead, examine
from npuscope.analysis.summaries import summarise
from npuscope.collector.discover import train_logs
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.manifest import manifests
from npuscope.errors import TraceFormatError, TraceNotFound, UsageError
from npuscope.sample_traces.generate import small, write_job

ROWS = "select rank, step, elapsed_s from train_log order by all"


def line(step: int, ms: float) -> str:
    return (
        f" iteration {step:8d}/     100 | elapsed time per iteration (ms): {ms:.1f} |"
        f" global batch size:     8 | lm loss: 2.000000E+00 |\n"
    )


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks 0 and 1, steps 12 and 13."""
    folder = tmp_path_factory.mktemp("logged") / "job"
    write_job(small(), folder, forms=("text",))
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Steps of 2 s; 12 and 13 take 3 s, the warm-up 9 s and the writing one 50 s."""
    path = tmp_path / "train.log"
    seconds = dict.fromkeys(range(1, 31), 2.0) | {11: 9.0, 12: 3.0, 13: 3.0, 14: 50.0}
    path.write_text("".join(line(step, 1000 * taken) for step, taken in seconds.items()))
    return path


@pytest.fixture
def read(profiles: Path, tmp_path: Path) -> Any:
    def run(train_log: Path | None = None, **options: Any) -> IngestResult:
        selection = parse_selection(**options.pop("selected", {}))
        return ingest(
            profiles, tmp_path / "store", jobs=1, summarise=summarise, train_log=train_log,
            selection=selection, **options,
        )  # fmt: skip

    return run


def rows(tmp_path: Path) -> list[tuple[Any, ...]]:
    return store.query(tmp_path / "store", ROWS).rows()


@pytest.mark.slow
def test_the_lowest_rank_of_the_capture_holds_it(read: Any, log: Path, tmp_path: Path) -> None:
    result = read(log)
    assert result.is_complete and len(result.publications) == 2
    found = rows(tmp_path)
    assert [(rank, step) for rank, step, _ in found] == [(0, step) for step in range(1, 31)]
    assert found[13] == (0, 14, 50.0)
    holder, other = manifests(tmp_path / "store")
    assert holder.rules["train_log"] == str(log)
    assert train_logs.logged_facts(holder.rules) == LogFacts(global_batch_size=8)
    assert train_logs.logged_facts(other.rules) == LogFacts()
    contents = "select rank, count from rank_contents where content = 'train_log'"
    with_rows = store.query(tmp_path / "store", f"{contents} and count > 0").rows()
    assert with_rows == [(0, 30)]
    con = store.open(tmp_path / "store")
    (report,) = examine(con, manifests(tmp_path / "store"))
    con.close()
    assert report.overhead == Overhead(0.5, 3.0, 2.0, 2, 20)


@pytest.mark.slow
def test_it_is_read_anew_when_it_changed_and_kept_when_it_is_not_named(
    read: Any, log: Path, tmp_path: Path
) -> None:
    read(log)
    assert [len(part) for part in (read(log).publications, read().publications)] == [0, 0]
    log.write_text(log.read_text() + line(31, 700.0))
    # A running job logs on: that alone is no reason to read the rank again.
    assert read().publications == () and len(rows(tmp_path)) == 30
    result = read(log)
    assert [outcome.rank for outcome in result.publications] == [0]
    assert rows(tmp_path)[-1] == (0, 31, 0.7)
    log.write_text(line(5, 1.0))
    read(log)
    assert rows(tmp_path) == [(0, 5, 0.001)]
    # Another file, and compacted before: the merged rows of the old one do not come back.
    compact(tmp_path / "store")
    other = tmp_path / "other.log"
    other.write_text(line(6, 2.0))
    read(other)
    assert rows(tmp_path) == [(0, 6, 0.002)]
    # Read again for another reason, it is there again, as it is now.
    other.write_text(line(7, 2.0))
    read(force=True)
    assert rows(tmp_path) == [(0, 7, 0.002)]


@pytest.mark.slow
def test_what_was_read_of_a_log_that_is_gone_stays(read: Any, log: Path, tmp_path: Path) -> None:
    read(log)
    log.unlink()
    result = read()
    assert result.is_complete and result.publications == () and len(rows(tmp_path)) == 30
    # More is asked of the ranks than they have: rank 0 cannot be read as well as it was.
    result = read(selected={"stacks": True})
    assert [outcome.rank for outcome in result.failures] == [0] and len(rows(tmp_path)) == 30
    assert log.name in result.failures[0].error and "--force" in result.failures[0].error
    assert read(force=True).is_complete and rows(tmp_path) == []
    assert read().publications == ()


@pytest.mark.slow
def test_a_log_that_cannot_be_read_spoils_nothing(read: Any, log: Path, tmp_path: Path) -> None:
    read(log)
    wrong = tmp_path / "wrong.log"
    wrong.write_text("nothing of use\n")
    with pytest.raises(TraceFormatError, match="no logged step"):
        read(wrong)
    with pytest.raises(TraceNotFound, match="no training log here"):
        read(tmp_path / "missing.log")
    assert len(rows(tmp_path)) == 30


@pytest.mark.slow
def test_with_a_selection(read: Any, log: Path, tmp_path: Path) -> None:
    read(log, selected={"ranks": "1", "steps": "12", "tables": "kernels"})
    assert {(rank, step) for rank, step, _ in rows(tmp_path)} == {(1, s) for s in range(1, 31)}
    # The rank that has it keeps it: nobody gets a second copy.
    with pytest.raises(UsageError, match=r"rank 1 .*--ranks"):
        read(log, selected={"ranks": "0"})
    read(log)
    assert {rank for rank, _, _ in rows(tmp_path)} == {1}


@pytest.mark.slow
def test_a_light_reading_has_it_once(read: Any, log: Path, tmp_path: Path) -> None:
    result = read(log, selected={"light": True})
    assert result.is_complete and {rank for rank, _, _ in rows(tmp_path)} == {0}
    assert len(rows(tmp_path)) == 30


@pytest.mark.slow
def test_a_log_grows_while_it_is_read(
    read: Any, log: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    found = train_logs._source_file
    steps = iter(range(90, 100))

    def then_grown(path: Path) -> Any:
        state = found(path)
        with path.open("a") as file:
            file.write(line(next(steps), 1.0))
        return state

    monkeypatch.setattr(train_logs, "_source_file", then_grown)
    assert read(log).is_complete
    late = next(steps) - 1  # written after the last look at the file
    assert late not in [step for _, step, _ in rows(tmp_path)]
    assert len(rows(tmp_path)) >= 30
