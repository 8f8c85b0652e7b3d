"""Ranks found and read on an existing Ray cluster, each where its files lie.

Every node tells what it sees below the path. A rank that all see is read anywhere, one that lies
on some nodes' own disks is read there. Only paths, tasks and outcomes travel: the nodes open the
profiles and publish into the store themselves.

Ray is an extra and takes a second to load, so it is imported at use, and here only.

Some paths are mounted by every machine, some are on each machine's own disk under the same name:
what the nodes see of one path becomes one picture.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import npuscope
from npuscope.errors import StoreError, TraceNotFound, UsageError

from .. import schema
from ..discover.search import Discovery, Findings, Problem, Profile, job_name, number_ranks, search
from ..ingest.read_batch import in_batches, size_bytes
from ..ingest.read_rank import RankOutcome, RankTask
from ..readers.trust import Advance
from ..store.folder_handles import staging_name
from ..store.space import file_system_of
from .engine import Engine, GoOn, Read, lost_rank

# A task that is lost with its process or node is tried again this often: by Ray, and by us where
# it may run on certain nodes only.
_RETRIES = 3
_CONNECT_S = 10.0


# File systems that several machines mount: one of them looks for all.
_SHARED_KINDS = frozenset(
    "nfs nfs4 lustre gpfs ceph fuse.ceph cifs smb3 beegfs glusterfs fuse.glusterfs fuse.juicefs "
    "wekafs pvfs2 panfs afs dpc".split()
)
# A new file may take this long to show on a machine that looked for it before.
_SHOWS_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """One node's npuscope, and what tells the folder it sees from other nodes' folders.

    `folder` is None where the node has no such path.
    """

    version: str
    folder: tuple[object, ...] | None


def view(path: Path) -> View:
    """What the machine that runs this sees."""
    try:
        state = path.stat()
    except OSError:
        return View(version(), None)
    _, kind = file_system_of(path)
    if kind in _SHARED_KINDS:
        return View(version(), (kind, state.st_ino, state.st_mtime_ns))
    return View(version(), (uuid.uuid4().hex,))


def version() -> str:
    """Of npuscope and of its reading rules: with other rules a rank would be read again."""
    return f"{npuscope.__version__}-{schema.reading_digest()}"


def _search(path: Path) -> Findings | str:
    """What this machine finds below a path, or why it finds nothing."""
    try:
        return search(path)
    except TraceNotFound as error:
        return str(error)


def sees(store: Path, token: str) -> bool:
    """Whether this machine may write to the store in which another one made the file `token`."""
    ends = time.monotonic() + _SHOWS_AFTER_S
    while not (is_there := (store / token).is_file()) and time.monotonic() < ends:
        time.sleep(0.5)
    return is_there and os.access(store, os.W_OK)


def one_picture(
    path: Path, looks: Mapping[tuple[str, ...], Findings | str], names: Mapping[str, str]
) -> Discovery:
    """Ranks of all nodes, each with the nodes that see it, and problems with where they are.

    `looks`: nodes that see one folder -> what is in it; `names`: how people call a node. Raises
    TraceNotFound where no node sees anything.
    """
    readable = {nodes: f for nodes, f in looks.items() if isinstance(f, Findings)}
    if not readable:
        reasons = [reason for reason in looks.values() if isinstance(reason, str)]
        reason = reasons[0] if reasons else f"{path}: no such file or folder"
        raise TraceNotFound(f"{reason} (so on each of {len(names)} nodes)")
    profiles: dict[object, Profile] = {}
    problems: dict[Problem, tuple[str, ...]] = {}
    for nodes, findings in readable.items():
        for profile in findings.profiles:
            place = (profile.folder, profile.device_id, profile.identity.rank)
            key = (place, tuple(sorted(profile.files.items())))
            profile_here = profiles.setdefault(key, profile)
            profiles[key] = replace(profile_here, nodes=(*profile_here.nodes, *nodes))
        for problem in findings.problems:
            problems[problem] = (*problems.get(problem, ()), *nodes)
    everywhere = set(names)
    problems_here = tuple(
        replace(p, nodes=() if set(p.nodes) == everywhere else tuple(sorted(p.nodes)))
        for p in profiles.values()
    )
    problems_of_nodes = tuple(
        problem
        if set(nodes) == everywhere
        else replace(problem, path=f"{', '.join(names[node] for node in nodes)}: {problem.path}")
        for problem, nodes in problems.items()
    )
    return number_ranks(Findings(problems_here, problems_of_nodes))


def by_folder(views: Mapping[str, View]) -> list[tuple[str, ...]]:
    """Nodes grouped by the folder they see; those that see none are left out."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for node, view in views.items():
        if view.folder is not None:
            groups.setdefault(view.folder, []).append(node)
    return [tuple(nodes) for nodes in groups.values()]


def strangers(views: Mapping[str, View]) -> Sequence[str]:
    """Nodes that run another npuscope than this one."""
    return [node for node, view in views.items() if view.version != version()]


@dataclass(frozen=True, slots=True)
class _Node:
    """A living node of the cluster, what people call it, and how many ranks it reads at once."""

    id: str
    name: str
    cpus: int


@contextlib.contextmanager
def open_cluster(address: str | None, jobs: int | None) -> Iterator[Engine]:
    """The Ray cluster at `address` (`host:port`), or the one this machine belongs to.

    `jobs` limits the ranks that are read at once. Raises UsageError where Ray or the cluster is
    not there; `look` does where a node cannot run this npuscope.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray: pip install 'npuscope[cluster]'") from None
    ours = not ray.is_initialized()
    if ours:
        _connect(address)
    try:
        yield Engine(
            look=_look,
            reach=_reach,
            map=partial(_map, jobs=jobs),
            sharing=lambda n_ranks: max(1, min(n_ranks, jobs or n_ranks, max(_cpus(_nodes())))),
            sees_all=False,  # the disk of a node that is away may hold more
        )
    finally:
        if ours:
            ray.shutdown()


def spread(
    function: Callable[[Any], Any], tasks: Sequence[Any], *, address: str | None
) -> Iterator[Any]:
    """Results of a function of npuscope's for tasks, in their order, as `map` gives them: each
    task on any node of the cluster at `address`. Raises UsageError as `open_cluster` does."""
    with open_cluster(address, None):
        import ray

        names = {node.id: node.name for node in _nodes()}
        versions, _ = _on_each(names, version)
        if others := [names[node] for node, one in versions.items() if one != version()]:
            raise UsageError(f"npuscope here is {version()}, on {', '.join(others)} another")
        work = _remote(_call, None, num_cpus=1, max_retries=_RETRIES)
        shared = ray.put(function)
        futures = [work.remote(shared, task) for task in tasks]
        for ref in futures:
            yield ray.get(ref)


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    return function(task)


def _connect(address: str | None) -> None:
    import ray

    host, _, port = (address or "").rpartition(":")
    if address and port.isdecimal() and "://" not in address:
        # Ray itself would try for a minute.
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except OSError as error:
            raise UsageError(f"--address {address}: nothing answers there ({error})") from None
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"--engine ray: {str(error).splitlines()[0]} Start a cluster with `ray start --head`, "
            "or give --address HOST:PORT of one"
        ) from error


def _nodes() -> list[_Node]:
    import ray

    return [
        _Node(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"]["CPU"]))
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]


def _cpus(nodes: Sequence[_Node]) -> list[int]:
    return [node.cpus for node in nodes]


def _remote(function: Callable[..., Any], node: str | None, **options: object) -> Any:
    """A function that Ray runs on one node, or on one after the other."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False) if node else "SPREAD"
    return ray.remote(function).options(scheduling_strategy=strategy, **options)


def _on_each(
    names: Mapping[str, str], function: Callable[..., Any], *arguments: object
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Run a function on nodes (id -> name): results by id, and nodes that left meanwhile.

    Raises UsageError where a node cannot run our code.
    """
    import ray

    futures = {
        node: _remote(function, node, num_cpus=0, max_retries=0).remote(*arguments)
        for node in names
    }
    results: dict[str, Any] = {}
    gone: list[Problem] = []
    for node, ref in futures.items():
        try:
            results[node] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UsageError(
                f"node {names[node]} cannot run npuscope ({reason}): install npuscope "
                f"{npuscope.__version__} where Ray runs, on every node"
            ) from error
        except ray.exceptions.RayError:
            gone.append(Problem(names[node], "left the cluster: ranks on its disk are not read"))
    return results, tuple(gone)


def _look(path: Path) -> tuple[Discovery, str | None]:
    names = {node.id: node.name for node in _nodes()}
    if not names:
        raise UsageError("the Ray cluster has no node with a CPU to read with")
    views, gone = _on_each(names, view, path)
    names = {node: names[node] for node in views}
    if others := strangers(views):
        words = ", ".join(f"{names[node]} has {views[node].version}" for node in others)
        raise UsageError(f"npuscope here is {version()}, node {words}: install one")
    groups = {nodes[0]: nodes for nodes in by_folder(views)}
    findings, lost_since = _on_each({node: names[node] for node in groups}, _search, path)
    picture = one_picture(path, {groups[node]: f for node, f in findings.items()}, names)
    first = picture.ranks[:1]
    job = None
    for source in first:
        place = next(iter(source.nodes or names))
        told_names, _ = _on_each({place: names[place]}, job_name, source)
        job = told_names.get(place)
    return replace(picture, problems=(*picture.problems, *gone, *lost_since)), job


def _reach(store: Path) -> None:
    token = store / staging_name()
    token.touch()
    try:
        names = {node.id: node.name for node in _nodes()}
        answers_of, _ = _on_each(names, sees, store, token.name)
    finally:
        token.unlink(missing_ok=True)
    blind = ", ".join(names[node] for node, sees in answers_of.items() if not sees)
    if blind:
        raise StoreError(
            f"{store}: not there or not writable on {blind}: with --engine ray give --store a "
            "folder on storage that every node mounts"
        )


@dataclass(frozen=True, slots=True)
class _Try:
    """A batch under way, on a certain node or (None) where Ray likes."""

    batch: tuple[RankTask, ...]
    node: str | None


def _map(
    function: Read,
    tasks: Sequence[RankTask],
    advance: Advance,
    go_on: GoOn,
    *,
    jobs: int | None,
) -> Iterator[RankOutcome]:
    """Keep the cluster's CPUs busy; progress is told per rank. See `Map`."""
    import ray

    # By the nodes that see them, so that each is the next of those a free node may read.
    waiting: dict[tuple[str, ...], deque[tuple[RankTask, ...]]] = {}
    workers = max(1, min(sum(_cpus(_nodes())), jobs or len(tasks)))
    for batch in in_batches(tasks, workers):
        waiting.setdefault(batch[0].source.nodes, deque()).append(batch)
    losses: Counter[tuple[str, int]] = Counter()
    running: dict[Any, _Try] = {}
    try:
        while True:
            nodes = _nodes()
            for batch in _take_stranded(waiting, nodes):
                for task in batch:
                    yield lost_rank(task, "no node that sees its files is left in the cluster")
            limit = min(sum(_cpus(nodes)), jobs or len(tasks))
            while len(running) < limit and go_on() and (attempt := _next(waiting, nodes, running)):
                running[_start(function, attempt)] = attempt
            if not running:
                return
            [ref], _ = ray.wait(list(running))
            batch, node = running[ref].batch, running[ref].node
            del running[ref]
            try:
                outcomes: Sequence[RankOutcome] = ray.get(ref)
            except ray.exceptions.RayTaskError:
                raise  # a bug: its traceback is what we need
            except ray.exceptions.RayError as error:
                task = batch[0]
                key = (task.capture, task.source.rank)
                losses[key] += 1
                if node is not None and losses[key] <= _RETRIES:
                    waiting[task.source.nodes].appendleft(batch)
                    continue
                if len(batch) > 1:  # one by one, only who is to blame is lost
                    del losses[key]
                    waiting[task.source.nodes].extendleft((one,) for one in reversed(batch))
                    continue
                outcomes = [lost_rank(task, _reason(error))]
            advance(size_bytes(batch))
            yield from outcomes
    finally:
        for ref in running:
            ray.cancel(ref, force=True)


def _take_stranded(
    waiting: Mapping[tuple[str, ...], deque[tuple[RankTask, ...]]], nodes: Sequence[_Node]
) -> Iterator[tuple[RankTask, ...]]:
    """Take out batches that no living node can read."""
    living = {node.id for node in nodes}
    for places, queue in waiting.items():
        if living.isdisjoint(places or living):
            while queue:
                yield queue.popleft()


def _next(
    waiting: Mapping[tuple[str, ...], deque[tuple[RankTask, ...]]],
    nodes: Sequence[_Node],
    running: Mapping[Any, _Try],
) -> _Try | None:
    """Take out the largest batch that a node has a CPU for."""
    load = Counter(under_way.node for under_way in running.values())
    filled = [(places, queue) for places, queue in waiting.items() if queue]
    for places, queue in sorted(filled, key=lambda f: -size_bytes(f[1][0])):
        if not places:
            return _Try(queue.popleft(), None)
        free = [node for node in nodes if node.id in places and load[node.id] < node.cpus]
        if free:
            place = min(free, key=lambda node: load[node.id] / node.cpus)
            return _Try(queue.popleft(), place.id)
    return None


def _start(function: Read, attempt: _Try) -> Any:
    name = f"npuscope rank {attempt.batch[0].source.rank}"
    work = _remote(_work, attempt.node, num_cpus=1, max_retries=_RETRIES, name=name)
    return work.remote(function, attempt.batch)


def _work(function: Read, batch: Sequence[RankTask]) -> Sequence[RankOutcome]:
    return function(batch, lambda n_bytes: None)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return (
        f"its reading process was lost, {_RETRIES} more tries too ({type(error).__name__}: "
        f"{lines[0]}): out of memory? Give less --jobs or --memory"
    )
