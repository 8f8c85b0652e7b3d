"""What the machines of a cluster see of one path, and one picture made from it.

Some paths are mounted by every machine, some are on each machine's own disk under the same name.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import npuscope
from npuscope.errors import TraceNotFound

from .. import schema
from ..discover.search import Discovery, Findings, Problem, Profile, numbered, search
from ..store.space import file_system_of

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


def searched(path: Path) -> Findings | str:
    """What this machine finds below a path, or why it finds nothing."""
    try:
        return search(path)
    except TraceNotFound as error:
        return str(error)


def sees(store: Path, token: str) -> bool:
    """Whether this machine may write to the store in which another one made the file `token`."""
    ends = time.monotonic() + _SHOWS_AFTER_S
    while not (found := (store / token).is_file()) and time.monotonic() < ends:
        time.sleep(0.5)
    return found and os.access(store, os.W_OK)


def one_picture(
    path: Path, found: Mapping[tuple[str, ...], Findings | str], names: Mapping[str, str]
) -> Discovery:
    """Ranks of all nodes, each with the nodes that see it, and problems with where they are.

    `found`: nodes that see one folder -> what is in it; `names`: how people call a node. Raises
    TraceNotFound where no node sees anything.
    """
    readable = {nodes: f for nodes, f in found.items() if isinstance(f, Findings)}
    if not readable:
        reasons = [reason for reason in found.values() if isinstance(reason, str)]
        reason = reasons[0] if reasons else f"{path}: no such file or folder"
        raise TraceNotFound(f"{reason} (so on each of {len(names)} nodes)")
    profiles: dict[object, Profile] = {}
    problems: dict[Problem, tuple[str, ...]] = {}
    for nodes, findings in readable.items():
        for profile in findings.profiles:
            place = (profile.folder, profile.device_id, profile.identity.rank)
            key = (place, tuple(sorted(profile.files.items())))
            known = profiles.setdefault(key, profile)
            profiles[key] = replace(known, nodes=(*known.nodes, *nodes))
        for problem in findings.problems:
            problems[problem] = (*problems.get(problem, ()), *nodes)
    everywhere = set(names)
    placed = tuple(
        replace(p, nodes=() if set(p.nodes) == everywhere else tuple(sorted(p.nodes)))
        for p in profiles.values()
    )
    told = tuple(
        problem
        if set(nodes) == everywhere
        else replace(problem, path=f"{', '.join(names[node] for node in nodes)}: {problem.path}")
        for problem, nodes in problems.items()
    )
    return numbered(Findings(placed, told))


def by_folder(views: Mapping[str, View]) -> list[tuple[str, ...]]:
    """Nodes grouped by the folder they see; those that see none are left out."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for node, seen in views.items():
        if seen.folder is not None:
            groups.setdefault(seen.folder, []).append(node)
    return [tuple(nodes) for nodes in groups.values()]


def strangers(views: Mapping[str, View]) -> Sequence[str]:
    """Nodes that run another npuscope than this one."""
    return [node for node, seen in views.items() if seen.version != version()]
