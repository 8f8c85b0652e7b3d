"""A watcher over profiles that land, join, change, are torn, vanish or cannot be read."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npuscope.analysis.ranks.derive import compare_capture
from npuscope.analysis.summaries import summarise
from npuscope.cli import app
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store.derived_tier import derived_folder, read_derived
from npuscope.collector.store.manifest import create_store, manifests
from npuscope.collector.watch.options import Hooks, Options
from npuscope.collector.watch.watch import turn, watch
from npuscope.collector.watch.watch_state import (
    WATCH_STATE,
    WatchState,
    read_watch_state,
    write_watch_state,
)
from npuscope.errors import StoreError, TraceNotFound
from tests.collector.watch.watched_folders import (
    EACH_S,
    N_KERNELS,
    OUTPUT,
    START_S,
    generations,
    kernel_text,
    kernels,
    ranks_in,
    run_watch,
    write_capture,
    write_ready,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


@pytest.fixture
def options(root: Path, tmp_path: Path) -> Options:
    return Options((root,), tmp_path / "store", quiet_s=0.5, poll_s=0.05, jobs=1)


def state_of(asked: Options) -> WatchState:
    state = read_watch_state(asked.store)
    assert state is not None
    return state


def test_what_is_finished_is_ingested_once(root: Path, options: Options) -> None:
    write_capture(root / "h_0_ascend_pt", 0, 0)
    write_capture(root / "h_1_ascend_pt", 1, 0, mark=None)
    (root / "h_1_ascend_pt" / "READY.json").write_text("{")
    told: list[str] = []
    once = replace(options, once=True, quiet_s=3600)
    state = watch(once, Hooks(tell=told.append))
    assert [rank for _, rank in ranks_in(options.store)] == [0]
    assert {m.run for m in manifests(options.store)} == {"job"}
    assert [one.path for one in state.waiting] == [str(root / "h_1_ascend_pt")]
    assert (state.captures_ingested_total, state.ranks_ingested_total) == (1, 1)
    assert state.read_bytes_total > 0 and state.last_ingest_ns and not state.is_running


@pytest.mark.slow
def test_the_next_watcher_finds_what_is_done(root: Path, options: Options) -> None:
    write_capture(root / "h_0_ascend_pt", 0, 0)
    write_capture(root / "h_1_ascend_pt", 1, 0, mark=None)
    told: list[str] = []
    once = replace(options, once=True, quiet_s=3600)
    watch(once, Hooks(tell=told.append))
    write_ready(root / "h_1_ascend_pt", 1, run="job")
    state = watch(once, Hooks(tell=told.append))
    [(first, zero), (second, one)] = ranks_in(options.store)
    assert (first, zero, one) == (second, 0, 1)
    assert (state.captures_ingested_total, state.ranks_ingested_total) == (1, 2)
    assert generations(options.store) == 2 and state.quarantined == () and state.errors_total == 0


def test_the_state_is_read_tolerantly(tmp_path: Path) -> None:
    assert read_watch_state(tmp_path) is None
    create_store(tmp_path / "store")
    write_watch_state(tmp_path / "store", WatchState(ranks_ingested_total=3))
    assert read_watch_state(tmp_path / "store") == WatchState(ranks_ingested_total=3)
    file = tmp_path / "store" / WATCH_STATE
    file.write_text('{"ranks_ingested_total": 4, "of_tomorrow": []}')
    assert read_watch_state(tmp_path / "store") == WatchState(ranks_ingested_total=4)
    file.write_text('{"ranks_ing')
    assert read_watch_state(tmp_path / "store") is None


def test_one_watcher_at_a_time(root: Path, options: Options) -> None:
    create_store(options.store)
    with turn(options.store) as is_ours:
        assert is_ours
        with run_watch(options) as second:
            second.wait_for(lambda: second.has_told("standby"))
        with pytest.raises(StoreError, match="watches it already"):
            watch(replace(options, once=True))
    with pytest.raises(TraceNotFound, match="no such folder"):
        watch(replace(options, once=True, roots=(root / "absent",)))


@pytest.mark.slow
def test_ranks_join_their_capture_whenever_they_come(
    root: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise KeyError("nobody foresaw this")

    # Nor does what goes wrong beside it keep ranks from being compared.
    monkeypatch.setattr("npuscope.collector.watch.watch.follow", fail)
    handed = Hooks(summarise, compare_capture)
    with run_watch(options, handed) as one:
        write_capture(root / "h_2_ascend_pt", 2)
        one.wait_for(lambda: len(ranks_in(options.store)) == 1)
        write_capture(root / "h_0_ascend_pt", 0)
        one.wait_for(lambda: one.has_told("compared"))
        assert one.has_told("this poll failed: an error of npuscope itself")
        [capture] = {capture for capture, _ in ranks_in(options.store)}
        tier = derived_folder(options.store, "job", capture)
        first = read_derived(tier)
        assert first is not None
        write_capture(root / "late" / "h_1_ascend_pt", 1)
        write_capture(root / "h_0b_ascend_pt", 0, 1)  # the next capture
        one.wait_for(lambda: read_derived(tier) not in (None, first))
        one.wait_for(lambda: len(ranks_in(options.store)) == 4)
    ranks = [rank for name, rank in ranks_in(options.store) if name == capture]
    assert ranks == [0, 1, 2]
    assert set(kernels(options.store).values()) == {N_KERNELS}
    result = ingest(root, options.store, run="job", summarise=summarise)
    assert not result.publications and len(result.unchanged) == 4
    assert state_of(options).captures_ingested_total == 2


@pytest.mark.slow
def test_a_growing_profile_is_read_when_it_is_whole(root: Path, options: Options) -> None:
    folder = root / "h_0_ascend_pt"
    with run_watch(options) as one:
        write_capture(folder, 0, mark=None)
        for n_kernels in range(2, 40, 2):
            (folder / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, n_kernels))
            time.sleep(0.1)
            assert not ranks_in(options.store)
        one.wait_for(lambda: ranks_in(options.store))
        assert list(kernels(options.store).values()) == [38]
        # Analysed again: the old results stay until the new ones are whole.
        (folder / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, 3))
        (folder / OUTPUT / "analyse.done").touch()
        one.wait_for(lambda: generations(options.store) == 2)
        assert list(kernels(options.store).values()) == [3]
    assert state_of(options).errors_total == 0


@pytest.mark.slow
def test_what_cannot_be_read_is_set_aside_until_it_changes(root: Path, options: Options) -> None:
    bad = root / "h_1_ascend_pt"
    write_capture(bad, 1)
    (bad / OUTPUT / "kernel_details.csv").write_bytes(b"\0\xff" * 50)
    write_capture(root / "h_0_ascend_pt", 0)
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    with run_watch(options) as one:
        one.wait_for(lambda: one.has_told("cannot use") and ranks_in(options.store))
        time.sleep(0.5)
    with run_watch(options) as again:  # the next watcher knows it
        time.sleep(1)
        assert not again.has_told("cannot use")
        [refused] = state_of(options).quarantined
        assert refused.path == str(bad) and "kernel_details.csv" in refused.reason
        assert not refused.reason.startswith(str(bad))  # it is told with its path
        assert state_of(options).errors_total == 1
        assert before == {p: p.stat().st_mtime_ns for p in root.rglob("*")}
        (bad / OUTPUT / "kernel_details.csv").write_text(kernel_text(0))
        again.wait_for(lambda: len(ranks_in(options.store)) == 2)
        again.wait_for(lambda: not state_of(options).quarantined)
        bad.rename(root / "h_1b_ascend_pt")
        (root / "h_1b_ascend_pt" / OUTPUT / "kernel_details.csv").write_text("x")
        again.wait_for(lambda: again.has_told("h_1b_ascend_pt"))
        shutil.rmtree(root / "h_1b_ascend_pt")
        again.wait_for(lambda: not state_of(options).quarantined)
    assert [rank for _, rank in ranks_in(options.store)] == [0, 1]


@pytest.mark.slow
def test_of_two_profiles_of_one_rank_and_time_one_is_taken(root: Path, options: Options) -> None:
    write_capture(root / "h_0_ascend_pt", 0)
    told: list[str] = []
    once = replace(options, once=True)
    watch(once)
    write_capture(root / "copied_ascend_pt", 0)  # comes later
    write_capture(root / "other_ascend_pt", 0, 5)
    watch(once, Hooks(tell=told.append))
    nobody = write_capture(root / "nobody_ascend_pt", 0)
    (nobody / "profiler_info_0.json").unlink()
    with run_watch(replace(options, roots=(nobody,), run="job")):
        time.sleep(1)
    state = state_of(options)
    assert len(ranks_in(options.store)) == 2 and generations(options.store) == 3
    [passed] = [message for message in told if "skipped" in message]
    assert f"skipped {root / 'h_0_ascend_pt'}" in passed and "ended last" in passed
    [refused] = state.quarantined
    assert refused.path == str(nobody) and "no file records the rank" in refused.reason
    shutil.rmtree(nobody)
    shutil.rmtree(root / "copied_ascend_pt")
    state = watch(once)
    assert generations(options.store) == 4 and len(ranks_in(options.store)) == 2
    assert state.quarantined == ()


@pytest.mark.slow
def test_a_rank_that_no_file_tells_keeps_its_number(root: Path, options: Options) -> None:
    alone = write_capture(root / "z_ascend_pt", 0)
    (alone / "profiler_info_0.json").unlink()
    once = replace(options, once=True, run="night")
    watch(once)
    assert [rank for _, rank in ranks_in(options.store)] == [0]
    write_capture(root / "a_ascend_pt", 5)
    (alone / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, 3))
    watch(replace(once, quiet_s=0))
    assert [rank for _, rank in ranks_in(options.store)] == [0, 5]
    assert list(kernels(options.store).values()) == [3, N_KERNELS]


@pytest.mark.slow
def test_only_so_many_captures_stay(root: Path, options: Options) -> None:
    for number in (3, 1, 0, 2):
        write_capture(root / f"h_{number}_ascend_pt", 0, number)
    few = replace(options, keep_captures=2)
    with run_watch(few) as one:
        one.wait_for(lambda: len(ranks_in(options.store)) == 2)
        first = ranks_in(options.store)
        write_capture(root / "h_4_ascend_pt", 0, 4)
        one.wait_for(lambda: one.has_told("dropped"))
    kept = ranks_in(options.store)
    assert len(kept) == 2 and kept[0] == first[1]
    with run_watch(few) as again:  # what was dropped stays away, although its profiles lie there
        again.wait_for(lambda: state_of(options).is_running and state_of(options).polls_total > 20)
    assert ranks_in(options.store) == kept
    assert state_of(options).ranks_ingested_total == 3
    assert state_of(options).captures_dropped_total == 1


def test_a_clock_that_is_years_ahead_keeps_no_capture_out(root: Path, options: Options) -> None:
    one, of_now = replace(options, once=True, keep_captures=1), int(time.time() - START_S) // EACH_S
    write_capture(root / "h_0_ascend_pt", 0, 2 * of_now)
    watch(one)
    [ahead] = ranks_in(options.store)
    write_capture(root / "h_1_ascend_pt", 0, of_now + 360)
    watch(one)
    [(kept, _)] = ranks_in(options.store)
    assert kept != ahead[0]


@pytest.mark.slow
def test_what_compact_dropped_does_not_come_back(root: Path, options: Options) -> None:
    once = replace(options, once=True)
    for number in range(3):
        write_capture(root / f"h_{number}_ascend_pt", 0, number)
    watch(once)
    everything = ranks_in(options.store)
    age_days = (time.time() - START_S - 1.5 * EACH_S) / 86_400  # between the second and the third
    done = CliRunner().invoke(app, ["compact", str(options.store), "--keep-days", str(age_days)])
    assert done.exit_code == 0 and ranks_in(options.store) == everything[2:], done.output
    told: list[str] = []
    write_capture(root / "h_1b_ascend_pt", 1, 1)  # late, of a capture that is gone
    write_capture(root / "h_2b_ascend_pt", 1, 2)
    state = watch(once, Hooks(tell=told.append))
    assert ranks_in(options.store) == [*everything[2:], (everything[2][0], 1)]
    assert sum("dropped by `npuscope compact`" in message for message in told) == 3
    assert state.quarantined == () and state.errors_total == 0
    ingest(root, options.store, run="job")
    assert len(ranks_in(options.store)) == 5


@pytest.mark.slow
def test_a_clock_that_was_set_back_harms_nothing(root: Path, options: Options) -> None:
    later_ns = time.time_ns() + 10**9 * 86_400 * 365
    create_store(options.store)
    write_watch_state(
        options.store, WatchState(7, 7, 7, last_poll_ns=later_ns, last_ingest_ns=later_ns)
    )
    folder = write_capture(root / "h_0_ascend_pt", 0, mark=None)
    for path in [*folder.rglob("*"), folder, options.store]:
        os.utime(path, ns=(later_ns, later_ns))
    with run_watch(options) as one:
        one.wait_for(lambda: ranks_in(options.store))
        (folder / OUTPUT / "kernel_details.csv").write_text(
            kernel_text(0, 3)
        )  # "older" than before
        one.wait_for(lambda: generations(options.store) == 2)
    state = state_of(options)
    assert state.ranks_ingested_total == 9
    assert state.last_poll_ns is not None and state.last_poll_ns < later_ns
    assert list(kernels(options.store).values()) == [3]
