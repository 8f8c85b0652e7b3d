"""Watchers that are killed, that race, that find their disk full, that run for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.engines.processes import STOPS_WITHIN_S
from npuscope.collector.ingest.deadline import ENVIRONMENT, Deadline, time_limit_s
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.segments import Summary
from npuscope.collector.store.sweep import sweep
from npuscope.collector.watch.options import Hooks, Options
from npuscope.collector.watch.watch import watch
from npuscope.collector.watch.watch_state import WatchState, read_watch_state
from npuscope.errors import UsageError
from tests.collector.watch.watched_folders import (
    N_KERNELS,
    OUTPUT,
    generations,
    kernel_text,
    kernels,
    ranks_in,
    run_watch,
    write_capture,
)
from tests.private_mounts import in_private_mounts

Watcher = subprocess.Popen[bytes]


@contextmanager
def watch_folder(root: Path, target: Path, log: Path) -> Iterator[Watcher]:
    asked = [sys.executable, "-m", "npuscope", "watch", str(root), "--store", str(target)]
    asked += ["--poll", "0.1", "--quiet-after", "0.3", "--jobs", "2"]
    with log.open("ab") as err, subprocess.Popen(asked, stderr=err) as one:
        try:
            yield one
        finally:
            one.kill()


def wait_for(what: Callable[[], object], log: Path, *, every_s: float = 0.1) -> None:
    end_s = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(every_s)


def _ranks_told(target: Path) -> int:
    state = read_watch_state(target)
    return state.ranks_ingested_total if state else 0


def _has_more(target: Path, before: int) -> bool:
    return len(ranks_in(target)) > before


@pytest.mark.slow
def test_killed_again_and_again_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    root, target, log = tmp_path / "job", tmp_path / "store", tmp_path / "log"
    everything = [(number, rank) for number in range(5) for rank in range(2)]
    for number, rank in everything:
        write_capture(root / f"h_{number}_{rank}_ascend_pt", rank, number)
    counts: list[int] = []
    for delay_s in (0.0, 0.4):
        with watch_folder(root, target, log) as one:
            before = len(ranks_in(target))
            wait_for(partial(_has_more, target, before), log, every_s=0.01)
            time.sleep(delay_s)
            one.send_signal(signal.SIGKILL)
            one.wait()
        there = ranks_in(target)
        assert len(there) >= max(counts, default=0)
        counts.append(len(there))
        assert set(kernels(target).values()) == {N_KERNELS}
    assert counts[0] < len(everything)
    with watch_folder(root, target, log) as one:
        wait_for(lambda: len(ranks_in(target)) == len(everything), log)
        one.send_signal(signal.SIGTERM)
        assert one.wait(60) == 0
    # Others write there, too: what Python tells of killed processes' semaphores.
    own = [line for line in log.read_text().splitlines() if line.startswith("20")]
    assert own[-1].endswith("stopped"), log.read_text()
    ingest(root, tmp_path / "other", run="job", summarise=summarise, jobs=1)
    question = "select * from kernels order by capture, rank, start_ns"
    assert store.query(target, question).equals(store.query(tmp_path / "other", question))
    sweep(target)
    assert not list(target.rglob(".tmp-*"))


@pytest.mark.slow
def test_of_two_watchers_one_works_and_the_other_takes_over(tmp_path: Path) -> None:
    root, target, log = tmp_path / "job", tmp_path / "store", tmp_path / "log"
    root.mkdir()
    with watch_folder(root, target, log) as one, watch_folder(root, target, log) as other:
        for number in range(4):
            write_capture(root / f"h_{number}_ascend_pt", 0, number)
            time.sleep(0.2)
        wait_for(lambda: len(ranks_in(target)) == 4, log)
        wait_for(lambda: "standby" in log.read_text(), log)
        assert generations(target) == 4
        wait_for(lambda: _ranks_told(target) == 4, log)
        state = read_watch_state(target)
        assert state is not None
        [first] = [watcher for watcher in (one, other) if watcher.pid == state.pid]
        first.kill()
        for number in range(4, 6):
            write_capture(root / f"h_{number}_ascend_pt", 0, number)
        wait_for(lambda: len(ranks_in(target)) == 6, log)
        assert generations(target) == 6


# A watcher that finds an almost empty disk at $1, which grows when it has said that it is full.
FULL_THEN_ROOM = """
mount -t tmpfs -o size=200k none "$1"; small=$1; log=$2; shift 3
"$@" 2>"$log" & watcher=$!
for i in $(seq 900); do grep -q "no space left" "$log" && break; sleep 0.1; done
sleep 3
mount -o remount,size=64m "$small"
for i in $(seq 900); do [ "$(grep -c "read rank" "$log")" = 6 ] && break; sleep 0.1; done
sleep 1
cp "$small/store/watch-state.json" "$log.state"
kill -TERM $watcher; wait $watcher
"""


def watched_on_a_full_disk(tmp_path: Path, script: str) -> tuple[str, WatchState]:
    """What a watcher of six ranks told while the script ran, and its last state."""
    root, small, log = tmp_path / "job", tmp_path / "small", tmp_path / "log"
    small.mkdir()
    for rank in range(6):
        write_capture(root / f"h_{rank}_ascend_pt", rank)
    watch = [sys.executable, "-m", "npuscope", "watch", str(root), "--store", f"{small}/store"]
    watch += ["--poll", "0.2", "--jobs", "1"]
    asked = in_private_mounts(script, str(small), str(log), str(root), *watch)

    done = subprocess.run(asked, capture_output=True, text=True, timeout=240, check=False)

    told = log.read_text()
    assert done.returncode == 0, done.stderr + told
    (tmp_path / "log.state").rename(tmp_path / "watch-state.json")
    state = read_watch_state(tmp_path)
    assert state is not None
    return told, state


@pytest.mark.slow
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    told, state = watched_on_a_full_disk(tmp_path, FULL_THEN_ROOM)
    assert told.count("no space left") == 1 and "Traceback" not in told
    assert told.index("no space left") < told.index("space is available again")
    ranks = sorted(line.split("read rank ")[1][0] for line in told.splitlines() if "read r" in line)
    assert ranks == list("012345")
    assert not state.is_disk_full and state.ranks_ingested_total == 6
    assert state.quarantined == () and state.errors_total == 0


# One round, and a disk that has no room for all.
FULL_IN_ITS_ROUND = """
mount -t tmpfs -o size=200k none "$1"; small=$1; log=$2; shift 3
code=0; "$@" --once 2>"$log" || code=$?
cp "$small/store/watch-state.json" "$log.state"
[ $code = 3 ]
"""


@pytest.mark.slow
def test_one_round_tells_that_a_full_disk_left_ranks_out(tmp_path: Path) -> None:
    told, state = watched_on_a_full_disk(tmp_path, FULL_IN_ITS_ROUND)
    assert state.ranks_ingested_total < 6 and state.is_disk_full and state.quarantined == ()
    assert "retrying" not in told and "resuming" not in told
    assert "could not take all: what is missing is read when the command is repeated" in told


# The same, but what it waited to read is deleted before there is room.
FULL_THEN_NOTHING = """
mount -t tmpfs -o size=200k none "$1"; small=$1; log=$2; root=$3; shift 3
"$@" 2>"$log" & watcher=$!
for i in $(seq 900); do grep -q "no space left" "$log" && break; sleep 0.1; done
rm -r "$root"/*
mount -o remount,size=64m "$small"
for i in $(seq 900); do grep -q "space is available again" "$log" && break; sleep 0.1; done
sleep 1
cp "$small/store/watch-state.json" "$log.state"
kill -TERM $watcher; wait $watcher
"""


@pytest.mark.slow
def test_a_disk_is_full_only_until_there_is_room(tmp_path: Path) -> None:
    told, state = watched_on_a_full_disk(tmp_path, FULL_THEN_NOTHING)
    assert told.count("no space left") == 1 and told.count("space is available again") == 1
    assert not state.is_disk_full and state.errors_total == 0


@pytest.mark.slow
def test_memory_stays_the_same_however_many_captures_come(tmp_path: Path) -> None:
    root, few, many = tmp_path / "job", 10, 40
    asked = Options((root,), tmp_path / "store", poll_s=0.1, jobs=1)
    resident: list[int] = []
    with run_watch(asked) as one:
        for n_captures in (few, many):
            for number in range(n_captures):
                write_capture(root / f"h_{number}_ascend_pt", 0, number)
            one.wait_for(partial(_has_more, asked.store, n_captures - 1), 240)
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]))
    assert resident[1] - resident[0] < (8 << 20) // 4096
    assert generations(asked.store) == many


def kills_at_rank_one(con: duckdb.DuckDBPyConnection | None) -> Iterable[Summary]:
    """Kills the process that reads rank 1, while others are read."""
    if con and con.execute("select any_value(rank) from kernels").fetchone() == (1,):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    return ()


@pytest.mark.slow
def test_a_profile_that_kills_its_reader_is_set_aside_until_it_changes(tmp_path: Path) -> None:
    root, told = tmp_path / "job", list[str]()
    bad = [write_capture(root / f"h_{rank}_ascend_pt", rank) for rank in range(4)][1]
    asked = Options((root,), tmp_path / "store", poll_s=0.05, jobs=2)
    handed = Hooks(kills_at_rank_one, tell=told.append)
    with run_watch(asked, handed) as one:
        one.wait_for(lambda: one.has_told("cannot use"))
        state = read_watch_state(asked.store)
        n_polls = state.polls_total if state else 0
        one.wait_for(
            lambda: (read_watch_state(asked.store) or WatchState()).polls_total > n_polls + 5
        )
    [state] = one.states
    assert [rank for _, rank in ranks_in(asked.store)] == [0, 2, 3]
    [refused] = state.quarantined
    assert refused.path == str(bad) and "its reading process died" in refused.reason
    assert state.errors_total == 1 and sum("cannot use" in message for message in one.told) == 1
    state = watch(replace(asked, once=True), handed)  # as little does the next watcher
    assert (
        state.quarantined == (refused,)
        and state.errors_total == 1
        and generations(asked.store) == 3
    )

    (bad / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, 3))
    state = watch(replace(asked, once=True))
    assert len(ranks_in(asked.store)) == 4 and state.quarantined == ()


def kills_when_told(folder: Path, con: duckdb.DuckDBPyConnection | None) -> Iterable[Summary]:
    """Kills its process; where it is tried again, when it is told to."""
    if (folder / "tried").exists():
        (folder / "alone").touch()
        while not (folder / "told").exists():
            time.sleep(0.05)
    (folder / "tried").touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return ()


@pytest.mark.slow
def test_a_reader_that_dies_while_all_is_stopped_sets_nothing_aside(tmp_path: Path) -> None:
    root = tmp_path / "job"
    write_capture(root / "h_0_ascend_pt", 0)
    asked = Options((root,), tmp_path / "store", poll_s=0.05, jobs=1)
    with run_watch(asked, Hooks(partial(kills_when_told, tmp_path))) as one:
        one.wait_for((tmp_path / "alone").exists)
        one.stop.set()
        (tmp_path / "told").touch()
    [state] = one.states
    assert state.quarantined == () and state.errors_total == 0
    watch(replace(asked, once=True))
    assert len(ranks_in(asked.store)) == 1


# A watcher whose readers do not come to an end.
HELD = """
from npuscope.analysis import summaries
from npuscope.cli import main
from tests.collector.watch import test_watch_faults
summaries.summarise = test_watch_faults.holds
main()
"""


def holds(con: duckdb.DuckDBPyConnection | None) -> Iterable[Summary]:
    """Says who reads, and goes on for long."""
    Path(os.environ["HELD"], str(os.getpid())).touch()
    time.sleep(600)
    return ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGINT, signal.SIGTERM, 143),
        (signal.SIGTERM, None, 0),
    ],
)
def test_it_leaves_within_seconds_and_told_twice_at_once(
    tmp_path: Path, first: signal.Signals, second: signal.Signals | None, code: int
) -> None:
    root, target, held, log = (tmp_path / name for name in ("job", "store", "held", "log"))
    held.mkdir()
    for rank in range(2):
        write_capture(root / f"h_{rank}_ascend_pt", rank)
    asked = [str(root), "--store", str(target), "--jobs", "2"]
    with log.open("ab") as err, subprocess.Popen(
        [sys.executable, "-c", HELD, "watch", *asked],
        stderr=err, env={**os.environ, "HELD": str(held)}, cwd=Path(__file__).parents[3],
    ) as one:  # fmt: skip
        try:
            wait_for(lambda: len(list(held.iterdir())) == 2, log)
            one.send_signal(first)
            wait_for(lambda: "press Ctrl-C again to exit now" in log.read_text(), log)
            with pytest.raises(subprocess.TimeoutExpired):
                one.wait(1)
            if second is not None:
                one.send_signal(second)
            assert one.wait(STOPS_WITHIN_S + 10) == code, log.read_text()
        finally:
            one.kill()
    readers = [Path("/proc", name.name) for name in held.iterdir()]
    wait_for(lambda: not any(reader.exists() for reader in readers), log)
    assert "Traceback" not in log.read_text() and not ranks_in(target)
    again = [sys.executable, "-m", "npuscope", "watch", *asked, "--once"]
    subprocess.run(again, check=True, capture_output=True, timeout=120)
    assert [rank for _, rank in ranks_in(target)] == [0, 1]
    assert set(kernels(target).values()) == {N_KERNELS}


# A watcher that waits in its file system for what never comes.
HANGS = """
import os, sys
from npuscope.commands.store import watch as watch_command
from npuscope.cli import main
from npuscope.collector.watch import folders
watch_command._ENDS_WITHIN_S = 1.0
folders.profile_folders = lambda *told: os.open(os.environ["PIPE"], os.O_RDONLY)
main()
"""


@pytest.mark.slow
def test_it_ends_when_told_to_also_where_it_hangs(tmp_path: Path) -> None:
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    os.mkfifo(pipe)
    (tmp_path / "job").mkdir()
    asked = [sys.executable, "-c", HANGS, "watch", str(tmp_path / "job"), "--store"]
    with log.open("ab") as err, subprocess.Popen(
        [*asked, str(tmp_path / "store")], stderr=err, env={**os.environ, "PIPE": str(pipe)},
        cwd=Path(__file__).parents[3],
    ) as one:  # fmt: skip
        try:
            wait_for(lambda: "watching" in log.read_text(), log)
            time.sleep(0.5)
            one.send_signal(signal.SIGTERM)
            assert one.wait(20) == 143, log.read_text()
        finally:
            one.kill()


def holds_rank_one(con: duckdb.DuckDBPyConnection | None) -> Iterable[Summary]:
    """Never comes to an end with rank 1."""
    if con and con.execute("select any_value(rank) from kernels").fetchone() == (1,):
        time.sleep(600)
    return ()


@pytest.mark.slow
def test_a_profile_that_takes_for_ever_is_set_aside_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "job"
    bad = [write_capture(root / f"h_{rank}_ascend_pt", rank) for rank in range(3)][1]
    monkeypatch.setenv(ENVIRONMENT, "6")
    monkeypatch.setattr("npuscope.collector.engines.processes._MORE_S", 1.0)
    monkeypatch.setattr("npuscope.collector.watch.rounds._PATIENCE_S", 0.2)
    asked = Options((root,), tmp_path / "store", poll_s=0.05, jobs=1)
    with run_watch(asked, Hooks(holds_rank_one)) as one:
        one.wait_for(lambda: len(ranks_in(asked.store)) >= 1)
        later = write_capture(root / "h_3_ascend_pt", 3)  # while rank 1 is held
        one.wait_for(lambda: len(ranks_in(asked.store)) == 3)
        one.wait_for(lambda: one.has_told("cannot use"))
    [state] = one.states
    [refused] = state.quarantined
    assert refused.path == str(bad) != str(later)
    assert refused.reason.startswith("not read in 6 s, which is long for its size")
    assert [rank for _, rank in ranks_in(asked.store)] == [0, 2, 3]


def test_an_ingest_sets_aside_what_takes_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        write_capture(tmp_path / "job" / f"h_{rank}_ascend_pt", rank)
    limit_of = "npuscope.collector.ingest.read_rank.limit_of"
    monkeypatch.setattr(limit_of, lambda task: 0.0 if task.source.rank else None)
    result = ingest(tmp_path / "job", tmp_path / "store", summarise=summarise, jobs=1)
    [failed] = result.failures
    assert failed.rank == 1 and str(failed.error).startswith("not read in 0 s, which is long")
    assert [rank for _, rank in ranks_in(tmp_path / "store")] == [0]
    assert not list((tmp_path / "store").rglob(".tmp-*"))


def test_a_ranks_time_grows_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (time_limit_s(0), time_limit_s(5_000_000_000)) == (60.0, 5060.0)
    monkeypatch.setenv(ENVIRONMENT, "7")
    assert time_limit_s(5_000_000_000) == 7
    monkeypatch.setenv(ENVIRONMENT, "0")
    assert time_limit_s(1) is None
    for text in ("soon", "nan", "-1", "inf"):
        monkeypatch.setenv(ENVIRONMENT, text)
        with pytest.raises(UsageError, match=ENVIRONMENT):
            time_limit_s(1)


def test_a_statement_ends_with_its_ranks_time() -> None:
    began_s = time.monotonic()
    with duckdb.connect() as con, Deadline(0.2).interrupts(con):
        with pytest.raises(duckdb.InterruptException):
            con.execute("select sum(a.range * b.range) from range(1e7::int) a, range(1e6::int) b")
    assert time.monotonic() - began_s < 10
