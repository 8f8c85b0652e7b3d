"""The server as the command line starts it: where it listens, whom it answers, what it tells."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npuscope.cli import app
from npuscope.dashboard.app import launch
from npuscope.dashboard.app.served_stores import _titles
from npuscope.errors import UsageError
from tests.dashboard.app.started_server import ask, is_up, start

SAMPLE = Path(__file__).resolve().parents[3] / "sample_traces" / "moe_8_ranks"


def test_a_taken_port_is_told_with_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} .*: --port \d+ is free"):
            launch.chosen_port("127.0.0.1", port)
    assert launch.chosen_port("127.0.0.1", port) == port
    with pytest.raises(UsageError, match=r"cannot listen on 203\.0\.113\.9"):
        launch.chosen_port("203.0.113.9", None)


def test_only_this_machine_is_answered_unless_asked_otherwise() -> None:
    options = launch.options("127.0.0.1", 8501)
    assert options["server.allowedHosts"] == ["localhost", "127.0.0.1", "::1"]
    assert options["server.address"] == "127.0.0.1"
    assert (options["browser.gatherUsageStats"], options["client.showErrorDetails"]) == (
        False,
        "none",
    )
    assert options["server.fileWatcherType"] == "none"
    shared = launch.options("0.0.0.0", 8501)["server.allowedHosts"]
    assert socket.gethostname() in shared and "*" not in shared
    assert [launch.is_loopback(one) for one in ("127.0.0.2", "::1", "localhost")] == [True] * 3
    assert [launch.is_loopback(one) for one in ("0.0.0.0", "10.1.2.3", "evil")] == [False] * 3


def test_behind_a_proxy_its_name_and_path_are_known() -> None:
    options = launch.options("127.0.0.1", 8501, "https://tools.example/npuscope/")
    assert options["server.baseUrlPath"] == "npuscope"
    assert "tools.example" in options["server.allowedHosts"]
    assert options["server.corsAllowedOrigins"] == ["https://tools.example"]
    with pytest.raises(UsageError, match=r"--public-url tools\.example"):
        launch.options("127.0.0.1", 8501, "tools.example")


def test_stores_of_one_name_get_titles_of_their_own() -> None:
    places = [Path("/a/monday/store"), Path("/a/tuesday/store"), Path("/b/other")]
    assert _titles(places) == ["monday/store", "tuesday/store", "other"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no profile given"),
        (["x", "--lang", "fr"], "--lang fr"),
        (["x", "--port", "0"], "--port"),
        (["x", "y", "--store", "z"], "takes one profile folder, not 2"),
    ],
)
def test_misuse_is_told(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["dashboard", *arguments])
    assert done.exit_code != 0
    assert told in done.output + str(done.exception)


# Says of every thread that is started whether pyarrow was there. While it is imported, another
# thread that asks whether a tuple is a Mapping may get a wrong answer that Python then keeps.
_STARTED = """
import sys, threading
from streamlit.starlette import App

start = threading.Thread.start
def started(thread):
    print("pyarrow.lib" in sys.modules, flush=True)
    start(thread)

def run(app, config):
    threading.Thread(target=str).start()
    sys.exit(3)

threading.Thread.start, App.run = started, run
from npuscope.dashboard.app import server
sys.argv.append('{"server.allowedHosts": []}')
server.main()
"""


@pytest.mark.slow
def test_pyarrow_is_there_before_any_thread() -> None:
    asked_for = [sys.executable, "-c", _STARTED]
    done = subprocess.run(asked_for, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert set(done.stdout.split()) == {"True"}


_VISITED = """
import runpy, sys
import streamlit

def at_first(**options):
    print(hasattr(sys.modules.get("pandas"), "Series"))
    sys.exit(3)

streamlit.set_page_config = at_first
runpy.run_path(sys.argv[1])
"""


@pytest.mark.slow
def test_pandas_is_there_before_anything_is_drawn() -> None:
    main = Path(launch.__file__).parent / "pages" / "main.py"
    asked_for = [sys.executable, "-c", _VISITED, str(main)]
    done = subprocess.run(asked_for, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "True\n"), done.stderr


@pytest.mark.slow
def test_it_ends_though_nobody_reads_what_it_says(tmp_path: Path, sample_store: Path) -> None:
    unbuffered = "PYTHONUNBUFFERED"
    environment = {name: value for name, value in os.environ.items() if name != unbuffered}
    command = [sys.executable, "-m", "npuscope", "dashboard", str(sample_store)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=tmp_path, env=environment | {"HOME": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)\b", told)):
            told += process.stdout.readline() or pytest.fail(told)
        assert found, told
        process.stdout.close()
        until = time.monotonic() + 120
        while not is_up(int(found[1])):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


@pytest.mark.slow
def test_told_to_end_it_ends_though_it_computes(tmp_path: Path, sample_store: Path) -> None:
    with start([sample_store], tmp_path) as running:
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 30, running.log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of a server over the sample, started as users do, and its messages."""
    pytest.importorskip("streamlit")
    folder = tmp_path_factory.mktemp("server")
    # Settings of a user's own do not undo ours.
    settings = {"STREAMLIT_SERVER_ADDRESS": "0.0.0.0"}
    with start([SAMPLE], folder, "--store", str(folder / "store"), settings=settings) as running:
        yield running.port, running.log


def _upgrade(port: int, host: str, origin: str) -> int:
    """Status of the answer to a browser that opens the connection all data goes through."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = (
        f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(asked.encode())
        return int(connection.recv(64).split()[1])


@pytest.mark.slow
def test_it_says_where_it_is_in_one_line(server: tuple[int, Path]) -> None:
    port, log = server
    said = log.read_text()
    assert "WARNING" not in said and "INFO" not in said
    assert [line for line in said.splitlines() if "http" in line] == [
        f"dashboard: http://127.0.0.1:{port}  (Ctrl-C ends it)"
    ]


@pytest.mark.slow
def test_it_listens_on_this_machine_only(server: tuple[int, Path]) -> None:
    port, _ = server
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    ours = [line.split()[1] for line in listening.splitlines() if f":{port:04X} " in line]
    assert {address.split(":")[0] for address in ours} == {"0100007F"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}", 101),
        ("localhost:{port}", "http://localhost:{port}", 101),
        # By whichever of its addresses a machine is reached: a foreign page has a name.
        ("10.1.2.3:{port}", "http://10.1.2.3:{port}", 101),
        ("10.1.2.3:{port}", "http://evil.example", 403),
        ("evil.example:{port}", "http://evil.example:{port}", 403),
        ("evil.example", "http://127.0.0.1:{port}", 403),
        ("127.0.0.1:{port}", "http://evil.example", 403),
    ],
)
def test_data_goes_to_pages_of_ours_only(
    server: tuple[int, Path], host: str, origin: str, status: int
) -> None:
    port, _ = server
    assert _upgrade(port, host.format(port=port), origin.format(port=port)) == status


@pytest.mark.slow
def test_names_of_others_get_neither_pages_nor_raw_events(server: tuple[int, Path]) -> None:
    port, _ = server
    for path in ("/", "/_stcore/health", "/perfetto/ui/index.html", "/perfetto/trace/x"):
        for host in ("evil.example", f"evil.example:{port}", "[::1", "@localhost@evil"):
            assert ask(port, path, host) == (403, b""), (path, host)
    assert b"<title>Perfetto" in ask(port, "/perfetto/ui/", f"localhost:{port}")[1]
    assert ask(port, "/perfetto/trace/guess/title") == (404, b"")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_well_when_told_to(
    tmp_path: Path, sample_store: Path, number: signal.Signals
) -> None:
    with start([sample_store], tmp_path, ends_by=number) as running:
        pass
    assert running.process.returncode == 0


@pytest.mark.slow
def test_pages_are_whole_and_nobody_is_told_of_visits(server: tuple[int, Path]) -> None:
    port, _ = server
    status, page = ask(port, "/")
    assert status == 200 and b"<title>" in page
    assert b"root:" not in ask(port, "/../../../../etc/passwd")[1]
    # Streamlit's own metrics name our functions.
    assert [ask(port, f"/_stcore/metrics{end}") for end in ("", "/")] == [(404, b"")] * 2
    settings = json.loads(ask(port, "/_stcore/host-config")[1])
    assert settings["allowedOrigins"] == [f"http://127.0.0.1:{port}"]
    assert (settings["metricsUrl"], settings["enableCustomParentMessages"]) == ("", False)
