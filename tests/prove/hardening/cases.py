"""One damaged profile read by the real command, and everything that must hold whatever the damage.

copy of a capture --damage--> npuscope ingest --> code, messages, store, what changed elsewhere
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npuscope import cli
from npuscope.analysis import query
from npuscope.collector import schema
from npuscope.collector.store import store
from npuscope.collector.store.manifest import is_store, manifests

# No command on a small profile may take longer, whatever is wrong with it, on a machine of its own.
BOUND_S = 30.0

Rows = list[tuple[Any, ...]]
Listing = dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Rank:
    """What a store tells of one rank: its answers, rows per table, and what it says is missing."""

    answers: dict[str, Rows]
    row_counts: dict[str, int]
    failed_files: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    errors: str


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a command; `notes` stand beside every answer, `changed` names what it wrote
    where it must not."""

    code: int
    errors: str
    seconds: float
    ranks: dict[int, Rank] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def link_tree(source: Path, target: Path) -> Path:
    """A copy whose files are links: to be replaced, never to be written to."""
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            link_file(Path(folder, name), into / name)
    return target


def link_file(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or files of another user
        target.write_bytes(source.read_bytes())


def replace_file(path: Path, content: bytes) -> None:
    """Other content under the name; the file that was linked there stays as it is."""
    path.unlink()
    path.write_bytes(content)


def listing(folder: Path) -> Listing:
    """Size, time and number of everything below a folder, without following links."""
    found: Listing = {}
    for path in [folder, *folder.rglob("*")]:
        state = path.lstat()
        told = (0, 0) if path.is_dir() else (state.st_size, state.st_mtime_ns)
        found[str(path)] = (*told, state.st_ino)
    return found


def run_ingest(
    source: Path, work: Path, *options: str, apart: bool = False, target: Path | None = None
) -> Told:
    """`npuscope ingest SOURCE --store WORK/store`, in this process or in one `apart`.

    It runs with a home, a cache, a folder for temporary files and a working folder of its own, all
    of which must be empty afterwards, as the source must be untouched.
    """
    target = target or work / "store"
    arguments = ["ingest", str(source), "--store", str(target), "--jobs", "1", *options]
    places = [work / name for name in ("home", "cache", "temporary", "here")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    environment = {
        "HOME": str(places[0]), "XDG_CACHE_HOME": str(places[1]), "TMPDIR": str(places[2])
    }  # fmt: skip
    before = [listing(source), *map(listing, places)]
    began = time.monotonic()
    done = (_apart if apart else run_here)(arguments, environment, places[3])
    seconds = time.monotonic() - began
    after = [listing(source), *map(listing, places)]
    differing = [old.items() ^ new.items() for old, new in zip(before, after, strict=True)]
    changed = {name for items in differing for name, _ in items}
    ranks, notes = what_it_tells(target) if is_store(target) else ({}, ())
    return Told(done.code, done.errors, seconds, ranks, notes, tuple(sorted(changed)))


def _apart(arguments: Sequence[str], environment: dict[str, str], here: Path) -> Done:
    repository = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-m", "npuscope", *arguments],
        cwd=here, env={**os.environ, "PYTHONPATH": repository, **environment},
        capture_output=True, timeout=4 * BOUND_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def run_here(arguments: Sequence[str], environment: dict[str, str], here: Path) -> Done:
    """The command within this process: an exception that reaches the user is a failed test."""
    out, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with (
        _as_command(arguments, environment, here),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors),
    ):  # fmt: skip
        try:
            cli.main()
        except SystemExit as left:
            out.flush()
            out.seek(0)
            return Done(int(left.code or 0), out.read(), errors.getvalue())
    raise AssertionError("main always leaves")


@contextlib.contextmanager
def _as_command(
    arguments: Sequence[str], environment: dict[str, str], here: Path
) -> Iterator[None]:
    kept = (sys.argv, dict(os.environ), Path.cwd(), tempfile.tempdir)
    sys.argv = ["npuscope", *arguments]
    os.environ.update(environment)
    os.chdir(here)
    tempfile.tempdir = None
    faulthandler.dump_traceback_later(4 * BOUND_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.argv, tempfile.tempdir = kept[0], kept[3]
        os.environ.clear()
        os.environ.update(kept[1])
        os.chdir(kept[2])


def what_it_tells(target: Path) -> tuple[dict[int, Rank], tuple[str, ...]]:
    """Answers per rank, without the names of run and capture, which come from other files too;
    and the notes of every answer."""
    found: dict[int, Rank] = {}
    with contextlib.closing(store.open(target)) as con:
        notes = query.notes(con)
        frames = {
            "steps": query.steps(con), "kernels": query.kernels(con, by="name"),
            "comm": query.comm(con, by="op"),
        }  # fmt: skip
        counts: dict[int, dict[str, int]] = {}
        for table in schema.tables():
            question = f'select rank, count(*) from "{table}" group by 1'
            for rank, n in con.execute(question).fetchall():
                counts.setdefault(rank, {})[table] = n
    for manifest in manifests(target):
        answers = {
            name: frame.filter(frame["rank"] == manifest.rank).drop("run", "capture").rows()
            for name, frame in frames.items()
        }
        found[manifest.rank] = Rank(
            answers, counts.get(manifest.rank, {}), manifest.failed_files, tuple(manifest.warnings)
        )
    return found, tuple(notes)


def complaints(
    told: Told,
    truth: dict[int, Rank],
    damaged: int,
    path: Path | None = None,
    *,
    looks_whole: bool = False,
) -> list[str]:
    """What is wrong with how a damaged profile was read; nothing, if all is as it must be.

    truth: what the whole profile tells; path: the file of rank `damaged` that was damaged;
    looks_whole: nothing in the file itself tells that rows are missing.
    """
    found = []
    if told.seconds > BOUND_S * _crowding():
        found.append(f"took {told.seconds:.0f} s")
    if "Traceback" in told.errors or "error of npuscope itself" in told.errors:
        found.append("a bug")
    if told.changed:
        found.append(f"written outside the store: {told.changed}")
    for rank, whole in truth.items():
        if rank != damaged and told.ranks.get(rank) != whole:
            found.append(f"rank {rank} is not what it was")
    found += _of_the_damaged(told, truth[damaged], damaged, path, looks_whole=looks_whole)
    return found


def _crowding() -> float:
    """How many processes want each CPU."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _of_the_damaged(
    told: Told, whole: Rank, rank: int, path: Path | None, *, looks_whole: bool
) -> Iterator[str]:
    now = told.ranks.get(rank)
    named = path is None or path.name in told.errors
    if told.code not in (0, 3, 4):
        yield f"exit code {told.code}"
    if told.code in (3, 4) and not named:
        yield "the file is not named"
    if (told.code == 3) != (not told.ranks):
        yield f"exit code {told.code} with {len(told.ranks)} rank(s)"
    if now is None:
        if told.code == 0:
            yield "the rank is missing, and nothing is said"
        return
    if told.code == 0 and now.row_counts != whole.row_counts and not looks_whole:
        lost = {
            table: (now.row_counts.get(table), n)
            for table, n in whole.row_counts.items()
            if now.row_counts.get(table) != n
        }
        yield f"rows are missing, and the command is content: {lost}"
    if not now.warnings and not now.failed_files and now.answers != whole.answers:
        names = [name for name in whole.answers if now.answers[name] != whole.answers[name]]
        yield f"other figures without a word: {names}"
