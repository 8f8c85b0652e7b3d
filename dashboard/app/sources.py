"""The stores behind the pages: what can be chosen in them, and their frames, kept in memory.

The server is told its stores once, through the environment; visitors can never name one. What is
kept belongs to one version of a store: where anything new is published, it is read anew.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.memo import question_of, remember
from npuscope.analysis.scope import PLACE, Scope
from npuscope.analysis.strategy.results import SearchResult, read_found
from npuscope.analysis.views import has_view
from npuscope.collector.store import store
from npuscope.collector.store.compact_files import torn
from npuscope.collector.store.manifest import DROPPED_FILE, INDEX, MANIFEST, is_store, manifests
from npuscope.errors import NpuscopeError, UsageError
from npuscope.messages import Message
from npuscope.profile import OpenTables, compare_ranks, reading_warnings, summary_versions

from .served_stores import ENVIRONMENT, Place, ServedStores
from .state import Choices, KnownCapture

_IDLE = 4  # connections kept ready, per store
_POLL_S = 2.0
_LAYOUT = ("world_size", "tp_size", "pp_size", "dp_size", "cp_size", "ep_size")
_SPINNER = "…"  # what turns while something is computed: the same in every language


@dataclass(frozen=True)
class Tables:
    """An opened version of one store; `is_across`: whether results over all ranks are there;
    `warnings`: what comparing them lacked; `left_out`: what to tell of captures whose files are
    torn."""

    path: Path
    con: duckdb.DuckDBPyConnection
    is_across: bool
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]
    views: tuple[str, ...]
    idle: queue.LifoQueue[duckdb.DuckDBPyConnection] = field(
        default_factory=lambda: queue.LifoQueue(_IDLE)
    )

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own with all views; statements of several do not wait for another."""
        with contextlib.suppress(queue.Empty):
            return self.idle.get_nowait()
        cursor = self.con.cursor()
        for view in self.views:
            cursor.execute(view)
        return cursor

    @contextlib.contextmanager
    def borrow(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor that others get afterwards."""
        cursor = self.cursor()
        try:
            yield cursor
        finally:
            with contextlib.suppress(queue.Full):
                self.idle.put_nowait(cursor)

    def answer(self, fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What a function of a connection returns; what its parts take long for is kept in the
        store, where commands find it, too."""
        with self.borrow() as con, question_of(self.con, con):
            return fn(con, **arguments)


def what_is_served() -> ServedStores:
    """What this server was told to show."""
    text = os.environ.get(ENVIRONMENT, "")
    return msgspec.json.decode(text, type=ServedStores) if text else ServedStores([])


def strategies() -> SearchResult | None:
    """The search that this server was told to show, as its file now is. Raises UsageError."""
    path = what_is_served().strategies
    if path is None:
        return None
    with contextlib.suppress(OSError):
        return _search_at(path, Path(path).stat().st_mtime_ns)
    raise UsageError(Message("the file of strategies is gone: start the dashboard anew"))


@st.cache_resource(max_entries=2, show_spinner=_SPINNER)
def _search_at(path: str, changed_ns: int) -> SearchResult:
    return read_found(Path(path))


@st.cache_data(ttl=_POLL_S, max_entries=64, show_spinner=False)
def version_of(path: str) -> str:
    """Changes with what is published in the store. Costs a look at three files per capture."""
    return _state(Path(path))


def versions() -> tuple[str, ...]:
    """The version of every store served."""
    return tuple(version_of(place.path) for place in what_is_served().places)


def _state(path: Path) -> str:
    """Of a store: its captures' indexes, which ingests rewrite last of all, so that a capture that
    is being written is read once and not with every rank; of a file: its time and size."""
    if not is_store(path):
        return _stamp(path)
    stamps = []
    for run in _children(path, "run="):
        for capture in _children(run, "capture="):
            index = _stamp(capture / INDEX)
            entries = (
                [index]
                if index
                else [_stamp(one / MANIFEST) for one in _children(capture, "rank=")]
            )
            entries += [_stamp(capture / name) for name in ("compacted.json", DROPPED_FILE)]
            stamps.append(f"{run.name}/{capture.name} {entries}")
    return "\n".join(stamps)


def _stamp(path: Path) -> str:
    """What a file's replacement changes; nothing where there is none."""
    try:
        state = path.stat()
    except OSError:
        return ""
    return f"{state.st_ino}.{state.st_size}.{state.st_mtime_ns}"


def _children(folder: Path, prefix: str) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder / name for name in os.listdir(folder) if name.startswith(prefix))
    return []


def _release(tables: Tables) -> None:
    # Cursors still in use keep the database; the rest of it goes with the last of them.
    with contextlib.suppress(queue.Empty):
        while True:
            tables.idle.get_nowait().close()


@st.cache_resource(max_entries=8, show_spinner=_SPINNER, on_release=_release)
def open_tables(path: str, version: str) -> Tables:
    """The tables of a store as they are in this version, compared across ranks where memory lets.

    Raises NpuscopeError.
    """
    target = Path(path)
    con = store.open(target, summaries=summary_versions())
    left_out = tuple(store.left_out(con).values())
    remember(con, target if is_store(target) and not left_out else None)
    query.open_views(con)
    data = OpenTables(con, target, memory_bytes=what_is_served().memory_bytes)
    is_across = True
    try:
        compare_ranks(data, is_needed=False)
    except NpuscopeError as error:
        data.warnings.append(str(error))
        is_across = False
    is_across = is_across and has_view(con, "rank_blame")
    return Tables(target, con, is_across, tuple(data.warnings), left_out, _views(con))


@st.cache_data(max_entries=64, show_spinner=False)
def warnings(path: str, version: str, run: str, capture: str) -> tuple[str, ...]:
    """What was lost or guessed when ranks of a capture were read, and when all were compared."""
    tables = open_tables(path, version)
    return (*reading_warnings(tables.path, tables.con, Scope(run, capture)), *tables.warnings)


def _views(con: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    """Statements that make the temporary views of `con` on another cursor, in an order that works:
    a view that was made anew later may be what an earlier one reads."""
    views = con.execute(
        "select sql from duckdb_views() where not internal and temporary order by view_oid"
    ).fetchall()
    waiting = [sql for (sql,) in views]
    ordered: list[str] = []
    trial = con.cursor()
    while waiting:
        postponed = []
        for sql in waiting:
            try:
                trial.execute(sql)
            except duckdb.CatalogException:
                postponed.append(sql)
            else:
                ordered.append(sql)
        if len(postponed) == len(waiting):
            trial.execute(waiting[0])  # fails, and says why
        waiting = postponed
    trial.close()
    return tuple(ordered)


@st.cache_data(max_entries=64, show_spinner=_SPINNER)
def _captures(path: str, title: str, version: str) -> tuple[KnownCapture, ...]:
    with open_tables(path, version).borrow() as con:
        facts = query.capture_facts(con).to_dicts()
    return tuple(
        KnownCapture(
            store=title,
            run=one["run"],
            capture=one["capture"],
            ranks=tuple(one["ranks"] or ()),
            steps=tuple(one["steps"] or ()),
            start_ns=one["window_start_ns"],
            end_ns=one["window_end_ns"],
            layout=tuple(one[name] for name in _LAYOUT),
        )
        for one in facts
    )


def left_out() -> tuple[str, ...]:
    """What to tell of captures that no page shows, as a file of them is torn."""
    return tuple(
        Message("left out: {told}", told=one)
        for place in what_is_served().places
        for one in open_tables(place.path, version_of(place.path)).left_out
    )


def look_again() -> bool:
    """After a query failed: whether a file was torn since its store was opened, which the next look
    leaves out. Whatever was kept of that store is computed anew."""
    is_torn = False
    for place in what_is_served().places:
        version = version_of(place.path)
        con = open_tables(place.path, version).con
        if is_store(path := Path(place.path)) and torn(path, store.opened_over(con, path)):
            open_tables.clear(place.path, version)
            is_torn = True
    if is_torn:
        _captures.clear()
        _compute.clear()
    return is_torn


def choices() -> Choices:
    """Everything that can be chosen, the newest capture first."""
    stores = what_is_served()
    known_stores = [
        one
        for place in stores.places
        for one in _captures(place.path, place.title, version_of(place.path))
    ]
    known_stores.sort(key=lambda one: (-(one.start_ns or 0), one.store, one.run, one.capture))
    return Choices(tuple(known_stores), stores.lang, stores.run)


def place_named(title: str) -> Place:
    """The store with this title. Raises KeyError."""
    return {place.title: place for place in what_is_served().places}[title]


def without_paths(message: str) -> str:
    """What an error says, for a browser: stores by their titles."""
    for place in what_is_served().places:
        message = message.replace(place.path, place.title)
    return message


@st.cache_data(max_entries=64, show_spinner=False)
def published_at(path: str, version: str, run: str, capture: str) -> str | None:
    """When the newest rank of a capture was published (ISO, UTC); None where nothing tells."""
    if not is_store(Path(path)):
        return None
    times = [one.published_at for one in manifests(Path(path), run=run, capture=capture)]
    return max(times, default=None)


@st.cache_data(max_entries=256, show_spinner=_SPINNER)
def _compute(
    path: str, version: str, name: str, arguments: tuple[tuple[str, Any], ...], _fn: Any
) -> Any:
    try:
        return open_tables(path, version).answer(_fn, dict(arguments))
    except duckdb.IOException:
        # A superseded file outlived its grace period: look again, once.
        open_tables.clear(path, version)
        return open_tables(path, version).answer(_fn, dict(arguments))


def answer_of(path: str, version: str, fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What `fn(con, **arguments)` returns, computed once per version of the store.

    `fn` is a plain function: what it depends on is its arguments alone.
    """
    plain = inspect.unwrap(fn)  # below what keeps frames of a connection
    code = plain.__code__
    if plain.__closure__:
        raise TypeError(f"{fn.__qualname__}: takes values from around it: give them as arguments")
    name = f"{code.co_filename}:{code.co_firstlineno}:{fn.__qualname__}"
    return _compute(path, version, name, tuple(sorted(arguments.items())), fn)


def arguments_of(fn: Callable[..., Any], scope: Scope, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a function gets: its scope, or those columns of it that it takes, changed where the
    arguments name one of them; and the other arguments."""
    takes = inspect.signature(fn).parameters
    if "scope" not in takes:
        return {name: value for name, value in asdict(scope).items() if name in takes} | arguments
    changes = {name: value for name, value in arguments.items() if name in PLACE}
    others = {name: value for name, value in arguments.items() if name not in PLACE}
    return {"scope": replace(scope, **changes), **others}
