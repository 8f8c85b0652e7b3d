"""One round of a watcher: look, read what is finished, compare, follow logs, drop, say so.

Everything that must outlive the process stands in the store, published by whoever read it. What is
kept here only spares looking twice, and is found again after a restart.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..engines.engine import lost_rank
from ..engines.processes import LostWorker, Processes
from ..ingest.read_rank import RankOutcome, RankTask
from ..readers.metadata.profiler_metadata import read_metadata
from ..store.derived_tier import derived_folder, read_derived
from ..store.manifest import create_store, is_store, rank_folder, write_index
from ..store.mirror import url_behind
from ..store.retention import StoredCapture, drop_capture
from ..store.space import advice
from ..store.sweep import sweep
from .capture_spans import Key, StoreSpans
from .folders import FinishedProfile, Folder, Folders, look_around
from .options import Hooks, Options
from .plan_ranks import make_plan
from .watch_state import QuarantinedProfile, Waiting, WatchState, write_watch_state
from .work import CompareTask, Contents, LookTask, Outcome, ReadTask, Result, Task, why_lost

# While many ranks are read, what is done so far is shown as often.
_SHOW_EACH_S = 2.0
_SWEEP_EACH_S = 3600.0
_LONGEST_PAUSE_S = 300.0
# Processes that had nothing to do for so long give their memory back.
_IDLE_S = 120.0
# So long nothing else is done while ranks are read.
_PATIENCE_S = 10.0


@dataclass(slots=True)
class Arrival:
    """A capture whose ranks are to be compared: when the last one came (monotonic seconds), and
    how many the job has, where its files tell."""

    last_s: float
    world_size: int | None


@dataclass(slots=True)
class Watch:
    """A watcher at work. `go_on` says no when it is told to stop."""

    options: Options
    hooks: Hooks
    go_on: Callable[[], bool]
    state: WatchState
    spans: StoreSpans
    processes: Processes[Task, Result]
    folders: Folders = field(default_factory=Folders)
    arrivals: dict[Key, Arrival] = field(default_factory=dict)
    to_index: set[Key] = field(default_factory=set)
    shown_s: float = 0.0
    swept_s: float | None = None
    busy_s: float = 0.0
    tries: int = 0
    try_again_s: float = 0.0
    has_told_unwritable: bool = False
    refusal: str = ""

    def ends(self) -> bool:
        return not self.go_on()

    @property
    def is_full(self) -> bool:
        return self.state.is_disk_full

    @property
    def is_kept_waiting(self) -> bool:
        """Whether the store took nothing when it was last tried."""
        return self.is_full or bool(self.refusal)

    def say(self, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)


def begin(watch: Watch) -> None:
    """Take up what an earlier watcher left: what it refused, and captures it did not compare."""
    now_s = time.monotonic()
    for one in watch.state.quarantined:
        watch.folders.profiles[one.path] = Folder(
            one.fingerprint, now_s, (0, 0), one.fingerprint, is_refused=True, reason=one.reason
        )
    watch.spans.refresh()
    captures = watch.spans.captures()
    newest = list(captures)[-3:]
    for key, held in captures.items():
        is_compared = read_derived(derived_folder(watch.options.store, *key)) is not None
        if held.rank_count > 1 and (key in newest or not is_compared):
            watch.arrivals[key] = Arrival(now_s, None)


def ingest_round(watch: Watch) -> None:
    """Look at the watched folders and read what is finished."""
    options = watch.options
    if not is_store(options.store):
        create_store(options.store)
        watch.hooks.tell(f"{options.store} was deleted: rebuilding it")
        watch.folders = Folders()
    sweep_now_and_then(watch)
    watch.spans.refresh()
    look = look_around(
        watch.folders,
        options.roots,
        quiet_s=options.quiet_s,
        once=options.once,
        tell=watch.hooks.tell,
    )
    _release(watch, {*look.removals, *(one.look.path for one in look.profiles), *look.waits})
    for place, (reason, fingerprint) in look.failures.items():
        refuse(watch, place, reason, fingerprint)
    _tell_waiting(watch, look.waits)
    if look.profiles and time.monotonic() >= watch.try_again_s:
        _read(watch, look.profiles)
    collect(watch, None if options.once else _PATIENCE_S)
    drop_oldest(watch)


def _read(watch: Watch, profiles: list[FinishedProfile]) -> None:
    options, fingerprints = watch.options, {f.look.path: f.look.fingerprint for f in profiles}
    reading = [task.rank for task in watch.processes.pending if isinstance(task, ReadTask)]
    places = {task.source.root for task in reading}
    profiles = [one for one in profiles if one.look.path not in places]
    plan = make_plan(
        profiles,
        _look_into(watch, profiles),
        watch.spans,
        reading=reading,
        run=options.run,
        memory_bytes=_each_bytes(watch, len(profiles)),
        keep_captures=options.keep_captures,
    )
    for place, reason in plan.refusals.items():
        refuse(watch, place, reason, fingerprints.get(place, ""))
    for place, reason in plan.passed_over.items():
        watch.folders.settle(place, fingerprints.get(place, ""))
        watch.hooks.tell(f"skipped {place}: {reason}")
    for place in plan.unchanged:
        watch.folders.settle(place, fingerprints.get(place, ""))
    # Ranks of one capture come one after the other, so that its readers see it whole soon.
    tasks = sorted(plan.tasks, key=lambda t: (t.source.window_start_ns or 0, t.capture))
    watch.processes.add([ReadTask(one, fingerprints.get(one.source.root, "")) for one in tasks])


def _look_into(watch: Watch, profiles: list[FinishedProfile]) -> dict[str, Contents]:
    """What finished profiles hold: found out in other processes, which have so much time."""
    looked: dict[str, Contents] = {}
    tasks = [LookTask(one.look.path) for one in profiles]
    for task, looks in watch.processes.map(tasks, watch.go_on, watch.ends):
        assert isinstance(task, LookTask)
        if isinstance(looks, LostWorker):
            looks = Contents(None, f"cannot be read: {why_lost(looks)}")
        if isinstance(looks, Contents):
            looked[task.path] = looks
    return looked


def collect(watch: Watch, patience_s: float | None) -> None:
    """Take up what became of ranks; those that take long are left to the next round."""

    def go_on() -> bool:
        return watch.go_on() and time.monotonic() >= watch.try_again_s

    for task, outcome in watch.processes.results(go_on, watch.ends, patience_s):
        assert isinstance(task, ReadTask)
        if isinstance(outcome, LostWorker):
            watch.swept_s = None  # it left its files
            # Who stops us may have ended it, too, and a full disk may have: then nothing is known
            # of the profile.
            if not go_on():
                continue
            outcome = lost_rank(task.rank, why_lost(outcome))
        if isinstance(outcome, RankOutcome):
            _take(watch, task.rank, outcome, task.fingerprint)
        if time.monotonic() - watch.shown_s > _SHOW_EACH_S:
            drop_oldest(watch)
            show(watch)
        watch.busy_s = time.monotonic()


def _take(watch: Watch, task: RankTask, outcome: RankOutcome, fingerprint: str) -> None:
    """Count what became of a rank, and tell it."""
    place, state = task.source.root, watch.state
    if outcome.out_of_space:
        disk_is_full(watch)
        return
    if outcome.refused_by_store:  # no fault of the profile
        store_refuses(watch, outcome.error or "")
        return
    if outcome.error is not None:
        if not Path(place).is_dir():
            watch.hooks.tell(f"{place} was removed while being read")
            return
        watch.say(errors_total=state.errors_total + 1)
        refuse(watch, place, outcome.error, fingerprint)
        return
    disk_has_room(watch)
    key = (task.run, task.capture)
    is_new = watch.spans.spans.get(key) is None
    watch.spans.again(key)
    watch.to_index.add(key)
    size_bytes = task.source.size_bytes
    watch.say(
        captures_ingested_total=state.captures_ingested_total + is_new,
        ranks_ingested_total=state.ranks_ingested_total + 1,
        read_bytes_total=state.read_bytes_total + size_bytes,
        last_ingest_ns=time.time_ns(),
    )
    metadata = task.source.path("profiler_metadata")
    world_size = read_metadata(metadata).world_size if metadata else None
    watch.arrivals[key] = Arrival(time.monotonic(), world_size)
    watch.hooks.tell(
        f"read rank {outcome.rank} of {outcome.capture} (run {outcome.run}):"
        f" {size_bytes / 1e6:.1f} MB, {outcome.row_count} rows, {outcome.seconds:.1f} s"
    )
    watch.folders.settle(place, fingerprint)
    if outcome.failed_files:
        watch.say(errors_total=watch.state.errors_total + 1)
        reasons = "; ".join(f"{Path(path).name}: {why}" for path, why in outcome.failed_files)
        refuse(watch, place, f"read in part: {reasons}", fingerprint)


def compare_round(watch: Watch) -> None:
    """Compare the ranks of captures that are complete, or that none joined for long enough."""
    now_s, options = time.monotonic(), watch.options
    due: list[CompareTask] = []
    for key, folder in list(watch.arrivals.items()):
        held = watch.spans.spans.get(key)
        if held is None or held.rank_count < 2:
            if now_s - folder.last_s >= options.quiet_s:
                del watch.arrivals[key]
            continue
        is_complete = folder.world_size is not None and held.rank_count >= folder.world_size
        if is_complete or options.once or now_s - folder.last_s >= options.quiet_s:
            due.append(CompareTask(str(options.store), *key, held.rank_count))
    if not due or watch.hooks.compare is None or now_s < watch.try_again_s:
        return
    for task, done in watch.processes.map(due, watch.go_on, watch.ends):
        assert isinstance(task, CompareTask)
        key = (task.run, task.capture)
        if isinstance(done, Outcome) and done.out_of_space:
            disk_is_full(watch)
            continue
        watch.arrivals.pop(key, None)
        error = why_lost(done) if isinstance(done, LostWorker) else None
        error = done.error if isinstance(done, Outcome) else error
        if error is None:
            disk_has_room(watch)
            assert isinstance(done, Outcome)
            watch.hooks.tell(
                f"compared the ranks of {task.capture} (run {task.run}): {done.seconds:.1f} s"
            )
        else:
            watch.say(errors_total=watch.state.errors_total + 1)
            watch.hooks.tell(f"cannot compare the ranks of {task.capture}: {error}")
    watch.busy_s = time.monotonic()


def refuse(watch: Watch, place: str, reason: str, fingerprint: str) -> None:
    """Quarantine a profile until it changes."""
    reason = reason.removeprefix(f"{place}: ")  # which is told with it
    watch.folders.settle(place, fingerprint, refusal=reason)
    others = tuple(one for one in watch.state.quarantined if one.path != place)
    since_ns = next(
        (one.since_ns for one in watch.state.quarantined if one.path == place), time.time_ns()
    )
    watch.say(quarantined=(*others, QuarantinedProfile(place, reason, fingerprint, since_ns)))
    watch.hooks.tell(f"cannot use {place}: {reason}; retrying when its files change")


def _release(watch: Watch, places: set[str]) -> None:
    """Out of quarantine: profiles that changed or are gone."""
    rest = tuple(one for one in watch.state.quarantined if one.path not in places)
    if len(rest) != len(watch.state.quarantined):
        watch.say(quarantined=rest)


def _tell_waiting(watch: Watch, waiting: dict[str, str]) -> None:
    former = {one.path: one.reason for one in watch.state.waiting}
    for place, reason in waiting.items():
        if former.get(place) != reason:
            watch.hooks.tell(f"waiting for {place}: {reason}")
    watch.say(waiting=tuple(Waiting(place, reason) for place, reason in waiting.items()))


def drop_oldest(watch: Watch) -> None:
    """Drop captures beyond those to keep, the oldest first."""
    keep = watch.options.keep_captures
    if keep is None:
        return
    captures = watch.spans.captures()
    for key in list(captures)[: max(0, len(captures) - keep)]:
        held, folder = captures[key], rank_folder(watch.options.store, *key, 0).parent
        try:
            drop_capture(StoredCapture(*key, str(folder), held.recorded_ns, held.rank_count, 0))
        except OSError as error:
            watch.hooks.tell(f"cannot drop {key[1]}: {error.strerror}")
            return
        watch.spans.again(key)
        watch.arrivals.pop(key, None)
        watch.to_index.discard(key)
        watch.say(captures_dropped_total=watch.state.captures_dropped_total + 1)
        watch.hooks.tell(f"dropped {key[1]} (run {key[0]}): {keep} captures are kept")


def sweep_now_and_then(watch: Watch) -> None:
    """Free what was dropped or superseded a day ago, and what killed processes left."""
    now_s = time.monotonic()
    if watch.swept_s is None or now_s - watch.swept_s > _SWEEP_EACH_S:
        watch.swept_s = now_s
        freed_bytes = sweep(watch.options.store)
        if freed_bytes:
            watch.hooks.tell(f"freed {freed_bytes / 1e6:.1f} MB of unused files")


def show(watch: Watch) -> None:
    """Bring indexes and the state file up to date."""
    watch.shown_s = time.monotonic()
    for key in list(watch.to_index):
        with contextlib.suppress(OSError):  # a cache
            write_index(rank_folder(watch.options.store, *key, 0).parent)
        watch.to_index.discard(key)
    watch.say(last_poll_ns=time.time_ns())
    try:
        write_watch_state(watch.options.store, watch.state)
        watch.has_told_unwritable = False
    except OSError as error:
        if not watch.has_told_unwritable:
            watch.hooks.tell(f"cannot write into {watch.options.store}: {error.strerror}")
        watch.has_told_unwritable = True


def disk_is_full(watch: Watch) -> None:
    """Pause, longer each time; said once."""
    _pause(watch)
    if not watch.is_full:
        watch.say(is_disk_full=True)
        again = "" if watch.options.once else "; retrying until then"
        watch.hooks.tell(f"{advice(watch.options.store)}{again}")


def store_refuses(watch: Watch, why: str) -> None:
    """Pause, longer each time, where the store takes nothing for another reason; said once."""
    _pause(watch)
    if not watch.refusal:
        watch.say(errors_total=watch.state.errors_total + 1)
        again = "" if watch.options.once else "; retrying until it can be written"
        watch.hooks.tell(f"{why}{again}")
    watch.refusal = why


def _pause(watch: Watch) -> None:
    """Once for all ranks of a round that met it."""
    if time.monotonic() < watch.try_again_s:
        return
    pause_s = min(watch.options.poll_s * 2**watch.tries, _LONGEST_PAUSE_S)
    watch.try_again_s = time.monotonic() + pause_s
    watch.tries = min(watch.tries + 1, 30)


def end_pause(watch: Watch, retried_s: float | None) -> None:
    """A round has ended that tried all again that the store kept waiting, after a pause until
    `retried_s` (None: it did not). There may be nothing left of it: profiles were deleted."""
    if watch.is_kept_waiting and watch.try_again_s == retried_s and not watch.processes.pending:
        disk_has_room(watch)


def disk_has_room(watch: Watch) -> None:
    """End the pause. In one round alone nothing is tried again, whatever was taken meanwhile."""
    if watch.options.once:
        return
    watch.tries, watch.try_again_s = 0, 0.0
    if watch.is_full:
        watch.say(is_disk_full=False)
        watch.hooks.tell(f"{watch.options.store}: space is available again, resuming")
    if watch.refusal:
        watch.refusal = ""
        named = url_behind(watch.options.store) or watch.options.store
        watch.hooks.tell(f"{named}: can be written again, resuming")


def release_idle(watch: Watch) -> None:
    """Give the memory of idle processes back."""
    if not watch.processes.pending and time.monotonic() - watch.busy_s > _IDLE_S:
        watch.processes.close()


def _each_bytes(watch: Watch, n_profiles: int) -> int | None:
    whole_bytes = watch.options.memory_bytes
    if whole_bytes is None:
        return None
    return whole_bytes // max(1, min(watch.processes.width, n_profiles))
