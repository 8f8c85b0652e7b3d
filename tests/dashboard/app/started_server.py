"""The dashboard as users have it: the command started as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A running dashboard: its address, what it writes to its terminal, and its process."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serve(places: Sequence[Path], folder: Path, *more: str) -> Iterator[str]:
    """The address of a dashboard over stores and profiles; Ctrl-C ends it without a traceback."""
    with start(places, folder, *more) as server:
        yield server.address


@contextlib.contextmanager
def start(
    places: Sequence[Path],
    folder: Path,
    *more: str,
    settings: Mapping[str, str] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "npuscope"),
    ends_by: signal.Signals = signal.SIGINT,
) -> Iterator[Server]:
    """As `served`, with all that is known of the server; `settings` of its user's environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [*command, "dashboard", *map(str, places), "--port", str(port), "--jobs", "1", *more]
    log = folder / f"dashboard-{port}.log"
    environment = {**os.environ, "HOME": str(folder), **(settings or {})}
    with log.open("wb") as messages:
        process = subprocess.Popen(
            command, cwd=folder, stdout=messages, stderr=messages, env=environment
        )
    try:
        until = time.monotonic() + 300
        while not is_up(port):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield Server(port, log, process)
        process.send_signal(ends_by)
        process.wait(timeout=60)
        assert "Traceback" not in log.read_text(), log.read_text()
        assert not (folder / ".streamlit").exists(), "nothing is written into users' folders"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ask(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    """Status and body of an answer of this machine."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def is_up(port: int) -> bool:
    """Whether a server there says that it is well."""
    with socket.socket() as probe:  # urllib leaves the sockets of refused requests open
        if probe.connect_ex(("127.0.0.1", port)):
            return False
    try:
        return ask(port, "/_stcore/health")[0] == 200
    except OSError:
        return False
