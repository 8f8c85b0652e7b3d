"""Answers that take long, computed beside the pages, which show what they have meanwhile.

One after the other, by a thread that begins a moment later, so that a page is drawn before its
browser, where that is on this machine, has to share the processors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import duckdb
import streamlit as st

from npuscope.analysis.views import has_view

from ..locale.language import Say
from . import sources
from .plain_text import plain

# From so many operations on, what compares them all takes longer than a page may.
MANY_OPERATIONS = 500_000
HEAD_START_S = 3.0
_POLL_S = 1.0
_MEMORY = 64

Key = tuple[str, str, str, tuple[tuple[str, Any], ...]]
_requests: dict[Key, Future[None]] = {}
_guard = threading.Lock()
_worker = ThreadPoolExecutor(1, thread_name_prefix="aside")


def is_large(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether a store has so many operations of all ranks that comparing them takes seconds."""
    if not has_view(con, "arrivals"):
        return False
    ((count,),) = con.execute("select count(*) from arrivals").fetchall()
    return bool(count >= MANY_OPERATIONS)


def is_computed(path: str, version: str, fn: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    """Whether `sources.answer_of` has the answer; where not, it is asked for, beside the page.

    Of an answer that failed, too, so that who asks `answer_of` meets the error. What was asked of
    an earlier version and is not begun is given up: its pages start anew.
    """
    key = (path, version, f"{fn.__module__}.{fn.__qualname__}", tuple(sorted(arguments.items())))
    with _guard:
        if key not in _requests:
            for (of, read, *_), answer in _requests.items():
                if of == path and read != version:
                    answer.cancel()
            for old in [one for one, answer in _requests.items() if answer.done()][:-_MEMORY]:
                del _requests[old]
            begin_s = time.monotonic() + HEAD_START_S
            _requests[key] = _worker.submit(_compute, begin_s, path, version, fn, arguments)
        return _requests[key].done()


def _compute(
    begin_s: float, path: str, version: str, fn: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    time.sleep(max(begin_s - time.monotonic(), 0.0))
    sources.answer_of(path, version, fn, arguments)


def wait(say: Say, is_ready: Callable[[], bool]) -> None:
    """Say that something is being computed; starts the page anew when it is there."""

    @st.fragment(run_every=_POLL_S)
    def poll() -> None:
        if is_ready():
            st.rerun()
        st.info(plain(say("Being computed: it will appear here in a moment.")))

    poll()
