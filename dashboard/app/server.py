"""The process that serves the pages: Streamlit, kept from asking the outside for anything."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from npuscope.collector.store.store import remove_spilled
from npuscope.dashboard.perfetto.trace_viewer import remove_traces

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from streamlit.components.v2.manifest_scanner import ComponentManifest
    from streamlit.web.server import Server

_ENDS_WITHIN_S = 5.0
_Handler = Callable[[int, FrameType | None], Any] | int | None  # as `signal` has them


def _unknown_address() -> str | None:
    return None


def _no_components(max_workers: int | None = None) -> list[tuple[ComponentManifest, Path]]:
    return []


def _no_routes(runtime: object, base_url: str | None) -> list[BaseRoute]:
    return []


def _end(code: int) -> None:
    """End now. Threads that compute are not waited for: what they publish, they publish whole.

    Nothing is flushed: who read it may have left, or not read for long. Both streams write each
    line when it is whole, see `main`.
    """
    remove_traces()
    remove_spilled()
    os._exit(code)


def _timed(handler: _Handler) -> _Handler:
    """A signal's handler that has some seconds to end the process."""

    def handled(number: int, frame: FrameType | None) -> None:
        last = threading.Timer(_ENDS_WITHIN_S, _end, (0,))
        last.daemon = True
        last.start()
        if callable(handler):
            handler(number, frame)

    return handled


def main() -> None:
    """Serve MAIN.py with the options of sys.argv, until told to end."""
    try:
        _serve()
    except KeyboardInterrupt:  # before there is a server that could be stopped
        _end(128 + signal.SIGINT)


def _serve() -> None:
    """Run Streamlit's own command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    # Before there are threads: half imported, its classes can make Python take every tuple for a
    # Mapping, for good, in whatever thread asks just then.
    import_module("pyarrow")
    from streamlit import net_util
    from streamlit.components.v2 import manifest_scanner
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.web import bootstrap, cli
    from streamlit.web.server.starlette import starlette_app

    from .warm_up import begin

    # A page elsewhere that tries to connect would make the server ask a site on the internet for
    # its own address, to compare: it never serves by that one.
    net_util.get_external_ip = _unknown_address
    # Streamlit would run scripts of a folder `pages` by themselves, without main.py and its menu,
    # until somebody has opened main.py: a link to a page is often the first visit.
    PagesManager.uses_pages_directory = False
    # Streamlit would read what every installed package says of itself, in search of components:
    # these pages use none.
    manifest_scanner.scan_component_manifests = _no_components
    # Its own metrics name our functions and count who is there, to anybody who asks.
    starlette_app.__dict__["create_metrics_routes"] = _no_routes
    # Neither visitors nor a fault keep it from ending when told to.
    set_up = bootstrap._set_up_signal_handler

    def set_up_both(server: Server) -> None:
        set_up(server)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _timed(signal.getsignal(number)))

    bootstrap._set_up_signal_handler = set_up_both
    begin()
    try:
        cli.main(["run", *sys.argv[1:]], prog_name="npuscope dashboard")
    except SystemExit as ending:
        _end(ending.code if isinstance(ending.code, int) else 0)
