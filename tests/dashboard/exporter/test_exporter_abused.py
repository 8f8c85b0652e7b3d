"""The exporter among clients that mean no good, or are too many."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from npuscope.dashboard.exporter import exporter
from npuscope.dashboard.exporter.exporter import Options, Protection, server


@contextmanager
def serve(store: Path, *names: str) -> Iterator[int]:
    """A server in a thread; its port."""
    told: list[str] = []
    options = Options(store)
    with server(
        options, Protection(), host="127.0.0.1", port=0, say=told.append, names=names
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


def status(port: int, host: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("GET", "/metrics", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_answers_to_its_own_names_only(tmp_path: Path) -> None:
    """A page from elsewhere gets a browser to ask by a name of its own."""
    with serve(tmp_path / "store", "npuscope.example.org") as port:
        known = ("localhost", "LOCALHOST.", f"127.0.0.1:{port}", f"[::1]:{port}", "10.1.2.3", None)
        for host in (*known, "npuscope.example.org:80"):
            assert status(port, host)[0] == 200, host
        for host in ("evil.example.com", f"evil.example.com:{port}", "localhost.evil.com", "[::1",
                     "127.0.0.1.evil.com", "@localhost@evil"):  # fmt: skip
            code, text = status(port, host)
            assert code == 421 and "npuscope_" not in text and "--allowed-host" in text, host


def test_clients_beyond_those_it_has_room_for_are_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_MOST_CLIENTS", 2)
    with serve(tmp_path / "store") as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        time.sleep(0.3)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as third:
            assert third.recv(1) == b""
        for one in silent:
            one.close()
        time.sleep(0.3)
        assert status(port, "localhost")[0] == 200


def test_without_descriptors_it_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, asked = socketserver.TCPServer.get_request, list[float]()

    def counted(server: socketserver.TCPServer) -> object:
        asked.append(time.monotonic())
        return accept(server)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", counted)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serve(tmp_path / "store") as port, ExitStack() as opened:
        client = opened.enter_context(socket.socket())
        client.settimeout(20)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            fillers = []
            while True:
                try:
                    fillers.append(os.dup(0))
                except OSError:
                    break
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            time.sleep(1.0)
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)  # nobody has taken it
            tries = len(asked)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for one in fillers:
                os.close(one)
        assert 0 < tries < 10
        client.settimeout(20)
        assert client.recv(12) == b"HTTP/1.0 200"
