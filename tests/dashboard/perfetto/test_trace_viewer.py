"""The viewer's server gives its own files to its own visitors, and nothing else."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from npuscope.dashboard.perfetto.trace_viewer import KEPT_TRACES, TraceViewer


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewer")
    ui = folder / "ui"
    (ui / "inner").mkdir(parents=True)
    (ui / "index.html").write_text("the viewer")
    (ui / "inner" / "code.wasm").write_text("code")
    (folder / "secret.txt").write_text("secret")
    (ui / "out").symlink_to(folder / "secret.txt")
    return ui


@pytest.fixture(scope="module")
def viewer(ui: Path) -> Iterator[TraceViewer]:
    with TraceViewer(ui) as opened:
        yield opened


def asked(
    viewer: TraceViewer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{viewer.port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_the_ui_and_a_trace_are_served(viewer: TraceViewer) -> None:
    assert asked(viewer, "/ui/")[:2] == (200, "the viewer")
    status, body, headers = asked(viewer, "/ui/inner/code.wasm")
    assert (status, body, headers["Content-Type"]) == (200, "code", "application/wasm")
    trace = viewer.new_file()
    trace.write_text('{"traceEvents":[]}')
    address = viewer.add(trace)
    origin, _, inside = unquote(address).partition("/ui/index.html#!/?url=")
    assert origin == f"http://127.0.0.1:{viewer.port}" and inside.startswith(origin)
    path = inside.removeprefix(origin)
    assert len(path.rpartition("/")[2]) >= 43
    status, body, headers = asked(viewer, path)
    assert (status, body) == (200, '{"traceEvents":[]}')
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    assert asked(viewer, path, method="HEAD")[:2] == (200, "")


@pytest.mark.parametrize(
    "path",
    [
        "/", "/ui/inner", "/ui/inner/", "/ui/../secret.txt", "/ui/%2e%2e/secret.txt",
        "/ui/..%2fsecret.txt", "/ui//etc/passwd", "/ui/%2fetc/passwd", "/ui/out", "/ui/a%00b",
        "/trace/", "/trace/guess", "/secret.txt", "/ui/" + "x" * 5_000,
    ],
)  # fmt: skip
def test_nothing_else_is_served(viewer: TraceViewer, path: str) -> None:
    assert asked(viewer, path)[:2] == (404, "")


def test_other_names_of_this_address_are_refused(viewer: TraceViewer) -> None:
    for host in ("evil.example", f"evil.example:{viewer.port}", "127.0.0.1", "127.0.0.1:1"):
        assert asked(viewer, "/ui/", host=host)[:2] == (421, "")
    assert asked(viewer, "/ui/", host=f"localhost:{viewer.port}")[0] == 200
    assert asked(viewer, "/ui/", method="POST")[0] == 501


def test_old_traces_go(ui: Path) -> None:
    viewer = TraceViewer(ui)
    written = []
    for number in range(KEPT_TRACES + 1):
        trace = viewer.new_file()
        trace.write_text(str(number))
        address = viewer.add(trace)
        assert viewer.serves(address)
        written.append((trace, unquote(address).rpartition("/")[2]))
    assert [viewer.serves(f"http://127.0.0.1/trace/{token}") for _, token in written[:2]] == [
        False,
        True,
    ]
    assert not written[0][0].exists() and written[1][0].exists()
    assert asked(viewer, f"/trace/{written[0][1]}")[0] == 404
    assert asked(viewer, f"/trace/{written[-1][1]}")[:2] == (200, str(KEPT_TRACES))
    folder = written[-1][0].parent
    viewer.close()
    assert not folder.exists()
