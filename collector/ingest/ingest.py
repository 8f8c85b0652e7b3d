"""Plan, read ranks in parallel, publish each as it is done.

    discover -> plan -> [read_batch, wherever the engine runs it] x ranks -> manifests -> index

Everything a rank needs is in its task, so ranks fail, finish and resume one by one: what was
published before a kill stays, and the next ingest reads only the rest.

Files that many ranks share are taken apart once, before these are read one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from npuscope.errors import StoreError, TraceNotFound, UsageError

from ..buckets import require_writable, url_of
from ..discover import cluster_outputs
from ..discover.expert_folders import require_loads
from ..discover.search import OUTPUT_FOLDER, Discovery, Problem
from ..engines import local, ray_cluster
from ..engines.engine import Engine, lost_rank
from ..model import storable
from ..readers.trust import Advance
from ..selection import Selection, Spans, spans_of, spans_text, without
from ..staging import PROCESS_BYTES, database_bytes
from ..store import mirror, space
from ..store.folder_handles import make_staging
from ..store.manifest import Manifest, create_store, manifests, rank_folder, write_index
from ..store.segments import Summarise, rebuild_summaries, with_stale_summaries
from ..store.store import drop
from ..store.sweep import sweep
from .plan import Plan, make_plan, remember
from .read_batch import read_batch
from .read_rank import RankOutcome, RankTask
from .representatives import Representative, representatives
from .shards import Shard

ENGINES = ("local", "ray")
_SUMMARY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did. `failures`: ranks that are not (newly) published; `drops`: those that are
    gone from the source; `representatives` of a light one were read in full; `absent` ranks were
    asked for and are not there."""

    store: str
    run: str
    publications: tuple[RankOutcome, ...]
    failures: tuple[RankOutcome, ...]
    unchanged: tuple[Manifest, ...]
    drops: tuple[Manifest, ...]
    problems: tuple[Problem, ...]
    representatives: tuple[Representative, ...] = ()
    absent: Spans = ()

    @property
    def unread_files(self) -> tuple[tuple[int, str, str], ...]:
        """Rank, file and reason of what is missing from ranks that are published, old and new."""
        triples = [(o.rank, *pair) for o in self.publications for pair in o.failed_files]
        triples += [(m.rank, *pair) for m in self.unchanged for pair in m.failed_files.items()]
        return tuple(triples)

    @property
    def is_complete(self) -> bool:
        """Whether everything found was read."""
        return not (self.failures or self.unread_files or self.problems)


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks of an ingest, in the calling process: the plan, bytes consumed, a rank done."""

    plan: Callable[[Plan], None] = lambda plan: None
    advance: Callable[[int], None] = lambda n_bytes: None
    finish: Callable[[RankOutcome], None] = lambda outcome: None


def ingest(
    path: Path,
    store: Path,
    *,
    run: str | None = None,
    summarise: Summarise | None = None,
    jobs: int | None = None,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    force: bool = False,
    shard: Shard | None = None,
    engine: str = "local",
    address: str | None = None,
    selection: Selection | None = None,
    train_log: Path | None = None,
    expert_load: Path | None = None,
) -> IngestResult:
    """Bring `store` up to date with the profiles at or below `path`.

    `run` is the job's name: by default the one in its metadata, else the folder's.
    `jobs` processes (default: one per CPU, none extra for small profiles) share `memory_bytes`
    (default: 400 MiB for each, 800 for databases, doubled for a rank that needs it).
    `shard` reads its share of the ranks only. The engine `ray` reads on the Ray cluster at
    `address` (default: the one this machine belongs to), where `memory_bytes` is for each machine
    and `jobs` for all. Ranks that vanished from the source are dropped by a local ingest of all
    shards only. When the store's disk is full the ranks that are left are not tried.
    `selection` is what to read; ranks that lack it are completed. None asks for tables that are up
    to date: whatever was selected before. A light one reads small files of every rank, then, as
    soon as all are there, those ranks in full that stand for the others.
    `train_log` is what the run's trainer printed: kept with one rank of each capture, and from
    then on without being named. So is the folder `expert_load` of counts of tokens per expert, by
    default one that is found at `path`.

    A rank that cannot be read spoils nothing else. Raises TraceNotFound where nothing was found
    or nothing could be read and nothing is published; StoreError for an unusable store;
    UsageError for an engine that is not there; TraceFormatError for a log that logs no step.
    """
    progress = progress or Progress()
    if url_of(store) and engine != "local":
        raise UsageError(f"--engine {engine}: give --store DIR on storage that all of them share")
    require_writable(mirror.url_behind(store) or store)
    path, store = path.absolute(), mirror.local(store).absolute()
    if train_log is not None:
        from ..readers.train_log.train_log import require_logged  # here: it loads frames

        train_log = train_log.absolute()
        require_logged(train_log)
    if expert_load is not None:
        expert_load = expert_load.absolute()
        require_loads(expert_load)
    with space.explain_full_disk(store), _open_engine(engine, address, jobs) as ready:
        discovery, job = ready.look(path)
        run = storable(run or job or _folder_name(path))
        # Before the store is made: what is refused leaves nothing behind.
        absent = _absent(discovery, selection, path) if selection else ()
        create_store(store)
        ready.reach(store)
        sweep(store)
        each_bytes = None
        if memory_bytes is not None:
            each_bytes = memory_bytes // ready.sharing(len(discovery.ranks) or 1)
        if selection:
            remember(store, run, path, selection)
        planned = partial(
            make_plan, discovery, store, path=path, run=run, memory_bytes=each_bytes, force=force
        )
        plan = planned(
            selection=selection, shard=shard, train_log=train_log, expert_load=expert_load
        )
        progress.plan(plan)
        if summarise is not None:
            for manifest in with_stale_summaries(plan.unchanged, summarise):
                rebuild_summaries(store, manifest, summarise, memory_bytes or _SUMMARY_BYTES)
        outcomes, full = _read_all(ready, plan.tasks, summarise, progress)
        representatives: tuple[Representative, ...] = ()
        if selection and selection.light and not full:
            representatives, tasks = _representatives(
                store, plan, planned, selection, is_shared=shard is not None
            )
            progress.plan(dataclasses.replace(plan, tasks=(*plan.tasks, *tasks)))
            more, full = _read_all(ready, tasks, summarise, progress)
            again = {(o.capture, o.rank) for o in more}
            outcomes = [o for o in outcomes if (o.capture, o.rank) not in again] + more
        may_drop = ready.sees_all and shard is None
        vanished = tuple(
            m for m in plan.removals if may_drop and not _is_unread(m, outcomes, discovery)
        )
        for manifest in vanished:
            drop(store, manifest)
    published = tuple(o for o in outcomes if o.error is None)
    failed = tuple(o for o in outcomes if o.error is not None)
    for capture in {(t.run, t.capture) for t in plan.tasks}:
        folder = rank_folder(store, *capture, 0).parent
        # The index is a cache: a full disk does not make it worth failing.
        with contextlib.suppress(OSError):
            if folder.is_dir():
                write_index(folder)
    problems = (*plan.problems, *full)
    read = {(outcome.capture, outcome.rank) for outcome in outcomes}
    unchanged = tuple(m for m in plan.unchanged if (m.capture, m.rank) not in read)
    result = IngestResult(
        str(store), run, published, failed, unchanged, vanished, problems, representatives, absent
    )
    is_empty_share = shard is not None and not plan.tasks and not problems
    nothing_new = not published and not plan.unchanged and not is_empty_share
    if nothing_new and not manifests(store, run=run):
        if full:
            raise StoreError(f"{store}: {full[0].message}")
        raise TraceNotFound(_nothing_readable(path, result))
    return result


def _absent(discovery: Discovery, selection: Selection, path: Path) -> Spans:
    """Ranks asked for that are not there. A choice that names none of those here is a slip, not an
    empty answer: raises UsageError."""
    ranks = {source.rank for source in discovery.ranks}
    if not ranks or selection.ranks is None:
        return ()
    if not any(map(selection.has_rank, ranks)):
        raise UsageError(
            f"--ranks {spans_text(selection.ranks)}: none of them is below {path}, which has"
            f" {spans_text(spans_of(ranks))}"
        )
    return without(selection.ranks, ranks)


def _representatives(
    store: Path,
    plan: Plan,
    planned: Callable[..., Plan],
    selection: Selection,
    *,
    is_shared: bool,
) -> tuple[tuple[Representative, ...], tuple[RankTask, ...]]:
    """Ranks that stand for the others of their capture, and what of them is still to be read.

    None of a capture of which ranks are still missing: of several shards the last one chooses.
    """
    result: list[Representative] = []
    tasks: list[RankTask] = []
    for capture, ranks in plan.captures.items():
        there = {m.rank for m in manifests(store, run=plan.run, capture=capture)}
        if not ranks & there or (is_shared and ranks - there):
            continue
        witnesses = representatives(store, plan.run, capture, ranks)
        named = dataclasses.replace(selection.in_full(), ranks=spans_of(r.rank for r in witnesses))
        result += witnesses
        tasks += [task for task in planned(selection=named).tasks if task.capture == capture]
    return tuple(result), tuple(tasks)


def _open_engine(
    engine: str, address: str | None, jobs: int | None
) -> contextlib.AbstractContextManager[Engine]:
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: one of {', '.join(ENGINES)}")
    if engine == "ray":
        return ray_cluster.open_cluster(address, jobs)
    if address is not None:
        raise UsageError("--address is for --engine ray")
    return contextlib.nullcontext(local.local_engine(jobs))


def _read_all(
    engine: Engine, tasks: Sequence[RankTask], summarise: Summarise | None, progress: Progress
) -> tuple[list[RankOutcome], list[Problem]]:
    """Read ranks until all are read or the store's disk is full; then says what to do about it."""
    outcomes: list[RankOutcome] = []

    def go_on() -> bool:
        return not any(outcome.out_of_space for outcome in outcomes)

    read = partial(_read, summarise=summarise)
    with _taken_apart(tasks) as ready:
        for outcome in engine.map(read, ready, progress.advance, go_on):
            outcomes.append(outcome)
            progress.finish(outcome)
    if go_on():
        return outcomes, []
    done_ranks = {(outcome.capture, outcome.rank) for outcome in outcomes}
    untold = [task for task in tasks if (task.capture, task.source.rank) not in done_ranks]
    outcomes += [
        lost_rank(task, "not tried: no space left on the disk of the store") for task in untold
    ]
    failed = {(o.capture, o.rank) for o in outcomes if o.error is not None}
    left = [task.source for task in tasks if (task.capture, task.source.rank) in failed]
    store = Path(tasks[0].store)
    message = space.advice(store, left, manifests(store, run=tasks[0].run))
    return outcomes, [Problem(str(store), message)]


def _read(
    tasks: Sequence[RankTask], advance: Advance, summarise: Summarise | None
) -> Sequence[RankOutcome]:
    return read_batch(tasks, summarise, advance)


def _is_unread(manifest: Manifest, outcomes: list[RankOutcome], discovery: Discovery) -> bool:
    """Whether a rank's folder is still there but could not be read: then what is published stays.

    Its files may have been the only ones to tell its rank, which seems gone then.
    """
    root = Path(manifest.source_root)
    if any(o.error is not None and Path(storable(o.root)) == root for o in outcomes):
        return True
    places = [Path(storable(problem.path)) for problem in discovery.problems]
    return any(root.is_relative_to(p) or p.is_relative_to(root) for p in places)


def _folder_name(path: Path) -> str:
    real = path.resolve()
    real = real if real.is_dir() else real.parent
    is_inside = real.name in (OUTPUT_FOLDER, cluster_outputs.FOLDER)
    return (real.parent if is_inside else real).name or "root"


def _nothing_readable(path: Path, result: IngestResult) -> str:
    reasons = [f"{o.root}: {o.error}" for o in result.failures]
    reasons += [f"{p.path}: {p.message}" for p in result.problems]
    names = "\n  ".join(reasons[:10])
    more = f"\n  ... and {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return f"{path}: nothing here could be read:\n  {names}{more}"


@contextlib.contextmanager
def _taken_apart(tasks: Sequence[RankTask]) -> Iterator[Sequence[RankTask]]:
    """The tasks with the parts of the files they share; these are gone afterwards.

    They lie in the store, where every machine that reads ranks finds them, and are swept like any
    staging folder if this process dies. Where files are not seen from here, their ranks' readings
    take them apart themselves.
    """
    folders: dict[tuple[str, str], Path] = {}
    ready: list[RankTask] = []
    try:
        for task in tasks:
            source = task.source
            shared = source.path("cluster_output")
            if shared is not None and source.shared_by > 1 and Path(shared).exists():
                key = (task.capture, source.root)
                if key not in folders:
                    folders[key] = _take_apart(
                        task, [t for t in tasks if t.source.root == source.root]
                    )
                source = replace(source, parts=str(folders[key]))
            ready.append(replace(task, source=source))
        yield ready
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def _take_apart(task: RankTask, sharing: Sequence[RankTask]) -> Path:
    from ..readers.cluster.cluster_parts import split_by_rank  # here: it loads frames

    capture = rank_folder(Path(task.store), task.run, task.capture, 0).parent
    folder = make_staging(capture)
    ranks = frozenset(one.source.rank for one in sharing)
    # A selection of ranks makes no strangers of the others.
    is_whole = len(ranks) == task.source.shared_by
    split_by_rank(
        task.source.files["cluster_output"],
        ranks if is_whole else None,
        folder,
        database_bytes(task.memory_bytes or PROCESS_BYTES),
    )
    return folder
