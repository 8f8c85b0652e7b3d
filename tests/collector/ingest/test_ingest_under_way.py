"""An ingest under way: read by others meanwhile, killed, spread over processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.store import folder_handles, manifest, store
from npuscope.collector.store import sweep as sweeping
from npuscope.collector.store.sweep import sweep

WriteProfile = Callable[..., Path]


def read(source: Path, into: Path, **options: Any) -> IngestResult:
    return ingest(source, into, run="job", summarise=summarise, **options)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store"


def kernels_by_rank(path: Path) -> dict[int, int]:
    rows = store.query(path, "select rank, count(*) as n from kernels group by rank order by rank")
    return dict(rows.iter_rows())


@pytest.mark.slow
def test_processes_give_the_same_store_as_one(
    tmp_path: Path, target: Path, write_profile: WriteProfile
) -> None:
    for rank in range(3):
        write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank)
    read(tmp_path / "source", target, jobs=1)

    result = read(tmp_path / "source", tmp_path / "together", jobs=2)

    assert len(result.publications) == 3
    question = "select * exclude (run) from kernels order by rank, start_ns"
    alone = store.query(target, question)
    assert alone.equals(store.query(tmp_path / "together", question))


@pytest.mark.slow
def test_a_reader_sees_each_rank_whole_or_not_at_all(
    tmp_path: Path, target: Path, write_profile: WriteProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_batch, "MOST_RANKS", 3)
    manifest.create_store(target)
    done = threading.Event()
    torn: list[object] = []
    seen: list[int] = []

    def poll() -> None:
        question = """
            select k.rank, k.n, s.computing_ns from
                (select rank, count(*) as n from kernels group by rank) k
                full join step_summary s using (rank)
        """
        while not done.is_set():
            try:
                with store.open(target) as con:
                    rows = con.execute(question).fetchall()
            except duckdb.CatalogException:
                continue  # no rank yet, so no summary
            seen.append(len(rows))
            torn.extend(row for row in rows if row[1:] != (20, 20 * 10_500))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        # The kernels overlap: 10.5 us each, one starting every 1 us.
        for rank in range(16):
            rows = [(7, "k", f"1736412474{n:06}.250", "10.500") for n in range(0, 2000, 100)]
            write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank, rows)
        read(tmp_path / "source", target)
    finally:
        done.set()
        reader.join()

    assert not torn
    assert kernels_by_rank(target) == dict.fromkeys(range(16), 20)
    assert len(set(seen)) > 2, f"the reader met the ingest under way: {seen}"


_INGEST = """
import sys
from pathlib import Path
from npuscope.collector.ingest.ingest import ingest

if __name__ == "__main__":
    ingest(Path(sys.argv[1]), Path(sys.argv[2]), run="job", jobs=int(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_loses_nothing_published_and_the_next_ingest_goes_on(
    tmp_path: Path, target: Path, write_profile: WriteProfile, jobs: int
) -> None:
    rows = [(7, "k", f"1736412474{n:06}.250", "10.500") for n in range(0, 200_000, 40)]
    for rank in range(6):
        write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank, rows)
    script = tmp_path / "run.py"
    script.write_text(_INGEST)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "source"), str(target), str(jobs)]
    )
    deadline = time.monotonic() + 60
    while not list(target.rglob("manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()

    published = {m.rank for m in manifest.manifests(target)}
    assert published
    assert set(kernels_by_rank(target)) >= published
    # Workers of a killed parent end by themselves; one between two ranks owns no folder just now,
    # and one that was done with some publishes them before it ends.
    _, outlived = psutil.wait_procs(workers, timeout=30)
    assert not [one for one in outlived if one.status() != psutil.STATUS_ZOMBIE]
    published = {m.rank for m in manifest.manifests(target)}
    assert set(kernels_by_rank(target)) == published

    result = read(tmp_path / "source", target)

    assert {o.rank for o in result.publications} == set(range(6)) - {
        m.rank for m in result.unchanged
    }
    assert {m.rank for m in result.unchanged} >= published
    assert kernels_by_rank(target) == dict.fromkeys(range(6), 5000)
    assert not list(target.rglob(".tmp-*")), "the dead process's folders are swept"


def test_what_a_process_left_is_swept_though_nobody_took_note_of_its_end(
    target: Path, write_profile: WriteProfile, tmp_path: Path
) -> None:
    write_profile(tmp_path / "source" / "h_ascend_pt", 0)
    read(tmp_path / "source", target)
    [capture] = target.glob("run=*/capture=*")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        state = Path(f"/proc/{ended.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        left = capture / f".tmp-{folder_handles.process_space()}-{ended.pid}-0123456789ab"
        left.mkdir()
        works = capture / f".tmp-{folder_handles.process_space()}-{os.getpid()}-0123456789ab"
        works.mkdir()
        sweep(target)
        assert not left.exists() and works.exists()


def test_two_that_sweep_at_once_do_not_stop_each_other(
    target: Path, tmp_path: Path, write_profile: WriteProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(tmp_path / "source" / "h_ascend_pt", 0)
    read(tmp_path / "source", target)
    [capture] = target.glob("run=*/capture=*")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left = capture / f".tmp-{folder_handles.process_space()}-{ended.pid}-0123456789ab"
    left.mkdir()

    def swept_by_another(path: Path) -> int:
        path.rmdir()
        return path.stat().st_size

    monkeypatch.setattr(sweeping, "size_bytes", swept_by_another)
    sweep(target)
    assert not left.exists()
