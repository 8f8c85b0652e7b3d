"""What the first visitor would wait for, computed while the server starts.

A thread opens the newest capture and asks what the pages ask first when nothing is chosen. Who
comes meanwhile waits for the rest of it: nothing is computed twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import duckdb

from npuscope.errors import NpuscopeError

from .state import KnownCapture, view_of

_PATIENCE_S = 60.0
Question = tuple[Callable[..., Any], dict[str, Any]]


def begin() -> None:
    """Start computing; errors are left to the pages, which meet and tell them."""
    threading.Thread(target=_warm, name="warming", daemon=True).start()


def _warm() -> None:
    from streamlit import runtime

    import_module("plotly.graph_objects")  # takes longer than most questions
    until = time.monotonic() + _PATIENCE_S
    while not runtime.exists():  # what is kept belongs to it
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    from . import aside, sources

    with contextlib.suppress(NpuscopeError, duckdb.Error, OSError):
        known = sources.known()
        view = view_of({}, known)
        capture = known.chosen(view)
        if capture is None:
            return
        path = sources.place_named(capture.store).path
        version = sources.version_of(path)
        filters = {"run": view.run, "capture": view.capture, "rank": None, "step": None}
        for fn, arguments in _first_questions():
            sources.kept(path, version, fn, sources.accepted(fn, filters) | arguments)
        time.sleep(aside.HEAD_START_S)  # a first visitor's overview is being drawn
        for fn, arguments in _questions_of_others():
            sources.kept(path, version, fn, sources.accepted(fn, filters) | arguments)
        is_large = sources.kept(path, version, aside.is_large, {})
        for fn in _long_questions():
            given = sources.accepted(fn, filters)
            if is_large:
                aside.computed(path, version, fn, given)
            else:
                sources.kept(path, version, fn, given)
        for fn, arguments in _of_timeline(path, version, capture):
            sources.kept(path, version, fn, arguments)


def _first_questions() -> Iterator[Question]:
    """In the order in which the overview asks them."""
    from npuscope.analysis import means, query
    from npuscope.dashboard.app.answers import overview_answers as overview

    yield query.steps, {}
    yield means.mean_steps, {}
    yield means.mean_step_bars, {}
    yield overview.job_use, {}
    yield query.notes, {}
    yield query.limits, {}


def _questions_of_others() -> Iterator[Question]:
    """What other pages wait for."""
    from npuscope.analysis import means, query
    from npuscope.analysis.communication import volume

    from .answers import expert_answers

    yield query.comm, {"by": "kind"}
    yield means.mean_comm, {"by": "kind"}
    yield volume.matrix, {}
    yield expert_answers.loads, {}


def _long_questions() -> Iterator[Callable[..., Any]]:
    """What takes longest, where there are many operations: computed beside then."""
    from npuscope.dashboard.app.answers import overview_answers as overview

    from .answers import expert_answers

    yield overview.found_here
    yield expert_answers.costs


def _of_timeline(path: str, version: str, capture: KnownCapture) -> Iterator[Question]:
    """All ranks from first to last."""
    from npuscope.analysis.timeline import extent, overview, step_borders

    from . import sources

    place = {"run": capture.run, "capture": capture.capture}
    at = sources.kept(path, version, extent, place)
    if at.window_ns is not None:
        yield step_borders, place | {"at": at}
        yield overview, {"at": at, "ranks": tuple(at.ranks["rank"]), "window_ns": at.window_ns}
