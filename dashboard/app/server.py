"""The process that serves the pages: Streamlit and, beside its pages, raw events in Perfetto."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb

from npuscope.collector.store.store import remove_spilled
from npuscope.errors import NpuscopeError

from .launch import is_known_host
from .state import KnownCapture, view_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send
    from streamlit.starlette import App

MAIN = Path(__file__).parent / "pages" / "main.py"
_LOOPBACK = ("localhost", "127.0.0.1")
Question = tuple[Callable[..., Any], dict[str, Any]]


def _end(number: int = 0, frame: FrameType | None = None) -> None:
    """End now. Threads that compute are not waited for: what they publish, they publish whole.

    Nothing is flushed: who read it may have left, or not read for long. Both streams write each
    line when it is whole, see `main`.
    """
    from .perfetto_viewer import remove_traces

    remove_traces()
    remove_spilled()
    os._exit(0)


def _end_when_told() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, _end)


def main() -> None:
    """Serve the pages with the options, JSON, in sys.argv, until told to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    options: dict[str, Any] = json.loads(sys.argv.pop())
    # Before there are threads: half imported, its classes can make Python take every tuple for a
    # Mapping, for good, in whatever thread asks just then.
    import_module("pyarrow")
    from starlette.middleware import Middleware
    from streamlit.starlette import App

    from . import perfetto_viewer

    hosts = options.pop("server.allowedHosts")  # ours to check: Streamlit knows no addresses
    origins = {*_LOOPBACK, options.get("browser.serverAddress", "localhost")}
    base = options.get("server.baseUrlPath", "")
    # The server's own greeting names no address that is told outside.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno >= logging.WARNING)
    below = f"/{base}" if base else ""
    app = App(
        MAIN,
        routes=[*perfetto_viewer.routes(below), *_timeline_routes(below)],
        middleware=[Middleware(OwnVisitors, hosts=hosts, origins=origins)],
        lifespan=_start,
    )
    _end_when_told()
    app.run(config=options)
    _end()


def _timeline_routes(base: str) -> list[BaseRoute]:
    """What the timeline asks for, below the path `base`.

    TileSource when it is asked: what it keeps needs a server that runs.
    """
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route

    from .secure_answers import SecureAnswers

    def answer(request: Request) -> Response:
        from . import timeline_tiles

        return timeline_tiles.answer(request.path_params["name"], request)

    inner = [Route("/{name}", answer)]
    return [Mount(f"{base}/timeline-data", routes=inner, middleware=[Middleware(SecureAnswers)])]


class OwnVisitors:
    """An application for those who ask for it by one of `hosts` or an address, from pages of its
    own or of `origins`; others get 403.

    Nobody gets Streamlit's metrics, which name our functions and count who is there. Streamlit
    never has to compare an origin with this machine's address, which it would ask the internet for.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        from starlette.datastructures import Headers
        from starlette.responses import Response
        from starlette.websockets import WebSocketClose

        refused = None
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            if not self._is_ours(headers.get("host", ""), headers.get("origin")):
                refused = 403
            elif scope["path"].rstrip("/").endswith("/_stcore/metrics"):
                refused = 404
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)  # which answers 403
        else:
            await Response(status_code=refused)(scope, receive, send)

    def _is_ours(self, host: str, origin: str | None) -> bool:
        with contextlib.suppress(ValueError):
            page = urlsplit(origin or "")
            is_own = origin is None or page.netloc == host or page.hostname in self._origins
            return is_own and is_known_host(host, self._hosts)
        return False


@contextlib.asynccontextmanager
async def _start(app: App) -> AsyncIterator[None]:
    """Neither visitors nor a fault keep the server from ending when told to; what its first visitor
    would wait for is computed meanwhile, and nothing twice: who comes waits for the rest of it."""
    _end_when_told()  # the server took the signals
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    yield


def _warm_up() -> None:
    """Ask of the newest capture what the pages ask first when nothing is chosen. Errors are left to
    the pages, which meet and tell them."""
    import_module("plotly.graph_objects")  # takes longer than most questions
    from . import aside, sources

    with contextlib.suppress(NpuscopeError, duckdb.Error, OSError):
        choices = sources.choices()
        view = view_of({}, choices)
        capture = choices.capture(view)
        if capture is None:
            return
        path = sources.place_named(capture.store).path
        version = sources.version_of(path)
        scope = view.scope.job
        for fn, arguments in _first_questions():
            sources.answer_of(path, version, fn, sources.arguments_of(fn, scope, arguments))
        time.sleep(aside.HEAD_START_S)  # a first visitor's overview is being drawn
        for fn, arguments in _questions_of_others():
            sources.answer_of(path, version, fn, sources.arguments_of(fn, scope, arguments))
        is_large = sources.answer_of(path, version, aside.is_large, {})
        for fn in _long_questions():
            call_arguments = sources.arguments_of(fn, scope, {})
            if is_large:
                aside.is_computed(path, version, fn, call_arguments)
            else:
                sources.answer_of(path, version, fn, call_arguments)
        for fn, arguments in _of_timeline(path, version, capture):
            sources.answer_of(path, version, fn, arguments)


def _first_questions() -> Iterator[Question]:
    """In the order in which the overview asks them."""
    from npuscope.analysis import means, query

    from ..answers import overview_answers as overview
    from ..answers import rank_answers

    yield query.steps, {}
    yield means.mean_steps, {}
    yield means.mean_steps, {"by": "stage"}
    yield means.mean_step_bars, {}
    yield overview.stage_of_ranks, {}
    yield rank_answers.silent, {}
    yield overview.job_use, {}
    yield query.notes, {}
    yield query.limits, {}


def _questions_of_others() -> Iterator[Question]:
    """What other pages wait for."""
    from npuscope.analysis import means, query
    from npuscope.analysis.communication import volume

    from ..answers import expert_answers

    yield query.comm, {"by": "kind"}
    yield means.mean_comm, {"by": "kind"}
    yield volume.matrix, {}
    yield expert_answers.loads, {}


def _long_questions() -> Iterator[Callable[..., Any]]:
    """What takes longest, where there are many operations: computed beside then."""
    from ..answers import expert_answers
    from ..answers import overview_answers as overview

    yield overview.found_here
    yield expert_answers.costs


def _of_timeline(path: str, version: str, capture: KnownCapture) -> Iterator[Question]:
    """All ranks from first to last."""
    from npuscope.analysis.timeline.bins import overview
    from npuscope.analysis.timeline.shared_axis import extent, step_borders

    from . import sources
    from .timeline_tiles import MAP_COLUMNS

    place = {"run": capture.run, "capture": capture.capture}
    at = sources.answer_of(path, version, extent, place)
    if at.window_ns is not None:
        yield step_borders, place | {"at": at}
        yield overview, {"at": at, "window_ns": at.window_ns, "columns": MAP_COLUMNS}
