"""Beside its pages the server gives the Perfetto UI and traces, and nothing else."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest

pytest.importorskip("streamlit")

import uvicorn
from starlette.applications import Starlette

from npuscope.dashboard.app import perfetto_viewer

Answer = tuple[int, bytes, http.client.HTTPMessage]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server with a viewer of ours."""
    folder = tmp_path_factory.mktemp("viewer")
    (folder / "ui" / "inner").mkdir(parents=True)
    (folder / "ui" / "index.html").write_text("the viewer")
    (folder / "ui" / "inner" / "code.wasm").write_text("code")
    (folder / "secret.txt").write_text("secret")
    (folder / "ui" / "out").symlink_to(folder / "secret.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perfetto_viewer, "viewer_folder", lambda: folder / "ui")
        app = Starlette(routes=perfetto_viewer.routes("/tools"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def ask(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def write(content: bytes) -> tuple[Path, str]:
    trace = perfetto_viewer.new_file()
    trace.write_bytes(content)
    return trace, perfetto_viewer.add_trace(trace)


def test_the_ui_and_a_trace_are_served(port: int) -> None:
    assert ask(port, "/tools/perfetto/ui/")[:2] == (200, b"the viewer")
    status, body, headers = ask(port, "/tools/perfetto/ui/inner/code.wasm")
    assert (status, body, headers["Content-Type"]) == (200, b"code", "application/wasm")
    _, token = write(b"packed")
    assert len(token) >= 43
    page = f"http://127.0.0.1:{port}/tools/timeline?rank=3"
    opening = perfetto_viewer.Opening("a/b <run>&visEnd=1 rank 4", 500, 1_500)
    address = perfetto_viewer.address_of(token, page, "tools", opening)
    origin, _, inside = address.partition("/tools/perfetto/ui/index.html#!/?")
    asks = {name: one for name, (one,) in parse_qs(inside, strict_parsing=True).items()}
    assert origin == f"http://127.0.0.1:{port}" and asks["url"].startswith(origin)
    assert asks["url"].endswith("/a_b _run_visEnd_1 rank 4")
    assert (asks["hideSidebar"], asks["visStart"], asks["visEnd"]) == ("true", "500", "1500")
    path = quote(asks["url"].removeprefix(origin))
    status, body, headers = ask(port, path)
    assert (status, body, headers["Content-Type"]) == (200, b"packed", "application/gzip")
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    assert ask(port, path, "HEAD")[:2] == (200, b"")
    assert ask(port, path, "POST")[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/", "/ui/inner", "/ui/inner/", "/ui/../secret.txt", "/ui/%2e%2e/secret.txt",
        "/ui/..%2fsecret.txt", "/ui//etc/passwd", "/ui/%2fetc/passwd", "/ui/out", "/ui/a%00b",
        "/trace/", "/trace/guess", "/trace/guess/title", "/secret.txt", "/ui/" + "x" * 5_000,
    ],
)  # fmt: skip
def test_nothing_else_is_served(port: int, path: str) -> None:
    status, body, _ = ask(port, "/tools/perfetto" + path)
    assert status == 404 and body in (b"", b"Not Found")


def test_the_window_is_what_has_events() -> None:
    around = perfetto_viewer.around
    assert around((100, 200), (0, 1_000)) == ((50, 250), (100, 200))
    assert around((100, 200), (120, 180)) == ((50, 250), (120, 180))
    assert around((100, 200), (300, 400)) == ((50, 250), (100, 200))


def test_old_traces_go(port: int) -> None:
    traces = [write(str(number).encode()) for number in range(perfetto_viewer.KEPT_TRACES + 1)]
    (first, gone), (second, kept) = traces[:2]
    assert not first.exists() and second.exists()
    assert ask(port, f"/tools/perfetto/trace/{gone}/x")[0] == 404
    assert ask(port, f"/tools/perfetto/trace/{kept}/x")[:2] == (200, b"1")
    perfetto_viewer.remove_traces()
    assert not first.parent.exists()
    perfetto_viewer._folder.cache_clear()
