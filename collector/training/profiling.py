"""Profile windows of a training run.

    with profile_session("/data/profiles", every=200, ranks="0,8-15", run="pretrain") as session:
        for batch in loader:  # session.data(loader) where it is not PyTorch's
            train(batch)
            session.step()

Each window is a capture of its own below the folder, with READY.json as its last file.

Which steps of a run are profiled.

    every=200, active=2, warmup=1       ... 198  [199]  [200  201]  202 ...   [399]  [400  401]
                                              warm-up    recorded              again

Windows begin at multiples of `every`, so that all ranks and a run that starts again agree on them.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from . import torch_profiler
from .guard import is_chosen, is_killed, rank_here, warn, whole
from .ready_marker import write_ready
from .thread_nodes import ThreadNodes, thread_nodes_here
from .torch_profiler import CollectionOptions, Window

# How often an analysis beside training is asked whether it is done, and how long at the end.
_ASK_SECONDS = 1.0
_WAIT_SECONDS = 10.0
# A step that begins a window waits so long for a disk at most.
_DISK_SECONDS = 0.5
# As PyTorch's own loaders call theirs, by which a wait for data is known.
_DATA_WAIT = "enumerate(DataLoader)#profile_session.data"

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Job:
    """What captures are told of the job; see `torch_profiler.entries`."""

    run: str | None = None
    parallel: object = None
    groups: Mapping[str, object] | None = None
    model: object = None


class _Free:
    """How many bytes are free below a folder, which is made: asked in a thread, as a file system
    that hangs never answers."""

    def __init__(self, folder: Path) -> None:
        self.n_bytes = 0
        self.error: Exception | None = None
        self._folder, self._is_told = folder, threading.Event()
        threading.Thread(target=self._ask, name="npuscope-disk", daemon=True).start()

    @property
    def is_told(self) -> bool:
        return self._is_told.is_set()

    def has_told(self, seconds: float) -> bool:
        return self._is_told.wait(seconds)

    def _ask(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.n_bytes = shutil.disk_usage(self._folder).free
        except Exception as error:
            self.error = error
        self._is_told.set()


@dataclass(frozen=True, slots=True)
class _PendingAnalysis:
    """A capture whose analysis may still be under way."""

    folder: Path
    first_step: int
    last_step: int


def profile_session(
    dir: str | os.PathLike[str],
    every: int = 200,
    active: int = 2,
    warmup: int = 1,
    ranks: str | int | Iterable[int] | None = None,
    level: int | str = 1,
    export: str = "db",
    analyse: str = "offline",
    *,
    run: str | None = None,
    parallel: object = None,
    groups: Mapping[str, object] | None = None,
    model: object = None,
    start_step: int = 0,
    captures: int | None = None,
    rank: int | None = None,
    free_bytes: int = 2 << 30,
    aic_metrics: str | None = None,
    mstx: bool = False,
    record_shapes: bool = False,
    profile_memory: bool = False,
    with_stack: bool = False,
    with_flops: bool = False,
    with_modules: bool = False,
    thread_nodes: bool = True,
    gc_detect_threshold: float | None = 1.0,
) -> ProfileSession:
    """Profile `active` steps from each multiple of `every`, on `ranks` ("0,8-15", list, all).

    A context manager; call `step()` after each training step. `start_step` is the number of the
    first step (of a run that starts again: the iteration it goes on with), `captures` how many
    windows at most. `level` 0, 1, 2 or "none"; `export` db, text or both; `analyse` offline (later,
    on any host with CANN), inline (training waits) or async (in a process beside it). A window is
    left out while less than `free_bytes` are free below `dir`. `thread_nodes`: on hosts of several
    NUMA nodes note where threads ran, which the profiler does not. Collections of Python's garbage
    of more than `gc_detect_threshold` ms are recorded where torch_npu can.

    Never raises: with wrong arguments, without torch_npu, or when anything fails, it warns once and
    does nothing more. NPUSCOPE=0 switches it off.
    """
    session = ProfileSession()
    if is_killed():
        return session
    try:
        here = rank_here() if rank is None else whole("rank", rank)
        start_step = whole("start_step", start_step)
        windows = Windows(
            whole("every", every, 1), whole("active", active, 1), whole("warmup", warmup, 0)
        )
        collected = CollectionOptions(
            level, export, analyse, aic_metrics, mstx, record_shapes, profile_memory, with_stack,
            with_flops, with_modules, thread_nodes, gc_detect_threshold,
        )  # fmt: skip
        job = Job(run, parallel, groups, model)
        if not is_chosen(here, ranks):
            return session
        if importlib.util.find_spec("torch_npu") is None:
            raise ModuleNotFoundError("torch_npu is not installed")
        root = Path(dir).absolute()  # wherever training goes
        session.arm(root, windows, collected, job, here, start_step, captures, free_bytes)
    except Exception as error:
        session.disable(error)
    return session


class ProfileSession:
    """What `profile_session` returns: `step()`, and `start`/`close` where `with` does not fit."""

    def __init__(self) -> None:
        self.published = 0  # captures that got their marker
        self.is_active = False
        self._window: Window | None = None
        self._nodes: ThreadNodes | None = None
        self._waiting: list[_PendingAnalysis] = []
        self._is_started = False
        self._stepping = threading.RLock()  # a window must not miss its end
        self._at_exit: Callable[[], None] | None = None

    def arm(
        self,
        root: Path,
        windows: Windows,
        options: CollectionOptions,
        job: Job,
        rank: int,
        start_step: int,
        captures: int | None,
        free_bytes: int,
    ) -> None:
        """Make it do something: `profile_session` does so where this rank is to be profiled."""
        self._windows, self._collection, self._job, self._rank = windows, options, job, rank
        self._root, self._free_bytes, self._rest = root, free_bytes, captures
        self._step, self._first = start_step, windows.next_after(start_step)
        self._process, self._asked_s = os.getpid(), 0.0
        self._has_warned_of_space = self._has_warned_of_length = False
        self._free: _Free | None = None
        self.is_active = True
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    def __enter__(self) -> ProfileSession:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_exit = isinstance(error, SystemExit) and not error.code  # sys.exit() ends well
        self.end(is_clean=kind is None or is_exit)

    def start(self) -> None:
        """Begin with the first step; `with` does so, and so does the first `step()`."""
        if not self.is_active or self._is_started:
            return
        self._is_started = True
        try:
            self._begin_if_due()
        except Exception as error:
            self.disable(error)

    def step(self) -> None:
        """A training step has ended, the next one begins."""
        if not self.is_active:
            return
        try:
            if os.getpid() != self._process:  # a worker that was forked out of training
                self.is_active = False
                return
            with self._stepping:
                self.start()
                self._advance()
        except Exception as error:
            self.disable(error)

    def data(self, loader: Iterable[Item]) -> Iterator[Item]:
        """What `loader` gives; the wait for each of it is recorded as one for data.

        The profiler itself does so of `torch.utils.data.DataLoader`, of no other.
        """
        items = iter(loader)
        while True:
            with self._data_wait():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _data_wait(self) -> AbstractContextManager[object]:
        record = getattr(
            getattr(sys.modules.get("torch"), "profiler", None), "record_function", None
        )
        if self._window is None or record is None:
            return nullcontext()
        waiting: AbstractContextManager[object] = record(_DATA_WAIT)
        return waiting

    def close(self) -> None:
        """End profiling. A window that is under way is published as far as its steps ended."""
        self.end(is_clean=True)

    def disable(self, error: BaseException) -> None:
        """Warn, and do nothing any more; a window that is open is stopped."""
        self.is_active = False
        self._forget_exit()
        warn(f"profiling is switched off: {str(error) or type(error).__name__}")
        window, self._window = self._window, None
        self._stop_nodes()
        if window is not None:
            try:
                window.stop()
            except Exception:  # it has been told once
                return

    def _advance(self) -> None:
        self._step += 1
        if self._window is not None:
            if self._nodes is not None and self._step == self._first + self._windows.active:
                self._describe(self._window, self._step - 1)  # it ends with this step
            self._window.step()
            if self._step == self._first + self._windows.active:
                self._finish(self._window)
                self._first = self._windows.next_after(self._step)
        elif self._waiting and time.monotonic() - self._asked_s > _ASK_SECONDS:
            self._publish_analysed()
        self._begin_if_due()

    def _begin_if_due(self) -> None:
        begins = self._first - self._windows.warmup
        if self._window is None and self._step == begins - 1:
            self._ask_for_room()
        if self._window is not None or self._step != begins:
            return
        if self._rest is not None and self._rest <= 0:
            return
        why = self._no_room()
        if why:
            if not self._has_warned_of_space:
                self._has_warned_of_space = True
                warn(why)
            self._first = self._windows.next_after(self._first + 1)
            return
        self._window = Window(
            self._root,
            self._collection,
            warmup=self._windows.warmup,
            active=self._windows.active,
            first_step=self._first,
        )
        self._describe(self._window, self._first + self._windows.active - 1)
        if self._collection.thread_nodes:
            self._nodes = thread_nodes_here()
        if self._rest is not None:
            self._rest -= 1

    def _ask_for_room(self) -> None:
        """Ask how much is free, unless a file system still owes an answer."""
        if self._free is None or self._free.is_told:
            self._free = _Free(self._root)

    def _no_room(self) -> str:
        """Why no window can begin now; '' where one can. Training never waits for a disk."""
        if self._free is None:
            self._ask_for_room()
        free = self._free
        assert free is not None
        if not free.has_told(_DISK_SECONDS):
            return f"{self._root} does not respond: no profiles until it does"
        if free.error is not None:
            raise free.error
        self._free = None
        if free.n_bytes < self._free_bytes:
            return f"{self._root} is nearly full: no profiles until there is space (free_bytes=N)"
        return ""

    def _describe(self, window: Window, last_step: int) -> None:
        job = self._job
        entries, too_long = torch_profiler.entries(
            run=job.run, rank=self._rank, first_step=self._first, last_step=last_step,
            parallel=job.parallel, groups=job.groups, model=job.model,
            threads=None if self._nodes is None else self._nodes.report(),
        )  # fmt: skip
        window.describe(entries)
        if too_long and not self._has_warned_of_length:
            self._has_warned_of_length = True
            warn(f"too long for the profiler's metadata, left out: {', '.join(too_long)}")

    def _finish(self, window: Window) -> None:
        self._window = None
        self._stop_nodes()
        window.stop()
        if window.folder is None:
            raise RuntimeError(
                f"torch_npu left no capture below {self._root}: see what it printed (is CANN's"
                " environment set?)"
            )
        done = _PendingAnalysis(window.folder, self._first, self._step - 1)
        if self._collection.analyse == "async":
            self._waiting.append(done)
        else:
            self._publish(done)

    def _publish(self, done: _PendingAnalysis) -> None:
        write_ready(
            done.folder,
            run=self._job.run,
            rank=self._rank,
            first_step=done.first_step,
            last_step=done.last_step,
        )
        self.published += 1

    def _publish_analysed(self) -> None:
        self._asked_s = time.monotonic()
        for done in list(self._waiting):
            if (done.folder / "ASCEND_PROFILER_OUTPUT" / "analyse.done").exists():
                self._waiting.remove(done)
                self._publish(done)

    def end(self, *, is_clean: bool) -> None:
        """`close()`; of training that failed the window that is under way is not published."""
        if not self.is_active:
            return
        try:
            self._forget_exit()
            if os.getpid() == self._process:
                self._end_window(is_clean=is_clean)
                until = time.monotonic() + _WAIT_SECONDS
                while self._waiting and is_clean and time.monotonic() < until:
                    self._publish_analysed()
                    if self._waiting:
                        time.sleep(0.1)
            self.is_active = False
        except Exception as error:
            self.disable(error)

    def _end_window(self, *, is_clean: bool) -> None:
        window = self._window
        if window is None:
            return
        if is_clean and self._step > self._first:
            self._describe(window, self._step - 1)
            self._finish(window)
            return
        # No step was recorded whole, or training failed within: nothing that tells of the run.
        self._window = None
        self._stop_nodes()
        window.stop()

    def _stop_nodes(self) -> None:
        if self._nodes is not None:
            self._nodes.stop()
            self._nodes = None

    def _forget_exit(self) -> None:
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
            self._at_exit = None


def _close_at_exit(reference: weakref.ref[ProfileSession]) -> None:
    session = reference()
    if session is not None:
        # Python keeps the exception that it ended by.
        session.end(is_clean=getattr(sys, "last_value", None) is None)


@dataclass(frozen=True, slots=True)
class Windows:
    """`active` steps from each multiple of `every`, with `warmup` steps before them."""

    every: int
    active: int
    warmup: int

    def __post_init__(self) -> None:
        if self.warmup + self.active > self.every:
            raise ValueError(
                f"warmup={self.warmup} and active={self.active} do not fit into every={self.every}"
            )

    def next_after(self, step: int) -> int:
        """First recorded step of the next window that can still be entered at the start of `step`.

        The job's very first step is not profiled: it compiles and allocates.
        """
        soonest = max(step + self.warmup, 1)
        return -(-soonest // self.every) * self.every
