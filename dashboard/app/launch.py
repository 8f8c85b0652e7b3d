"""How the server is started: its options, all safe unless asked otherwise, and its address.

Nothing here imports Streamlit: that is loaded by the process that becomes the server.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from npuscope.dashboard.theme import streamlit_options
from npuscope.errors import UsageError

DEFAULT_PORT = 8501
_PORTS_TRIED = 50
# The server finds modules where this process does: `-m` would look into the current folder first.
_START = """\
import os, sys
sys.path[:] = sys.argv.pop(1).split(os.pathsep)
from npuscope.dashboard.app.server import main
main()
"""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_installed() -> None:
    """Raises UsageError where Streamlit, which is an extra, is missing."""
    if find_spec("streamlit") is None:
        raise UsageError(
            "the dashboard needs Streamlit, which is not installed: pip install"
            " 'npuscope[dashboard]'"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def chosen_port(host: str, port: int | None) -> int:
    """The port asked for, or the first free one from 8501 on. Raises UsageError."""
    if port is not None:
        if error := _refused(host, port):
            free = next(_free(host, port + 1), None)
            hint = f"--port {free} is free" if free else "give another --port"
            raise UsageError(f"cannot listen on {host}, port {port} ({error}): {hint}")
        return port
    free = next(_free(host, DEFAULT_PORT), None)
    if free is None:
        error = _refused(host, DEFAULT_PORT) or "taken"
        raise UsageError(f"cannot listen on {host} ({error}): give --host or --port")
    return free


def _free(host: str, first: int) -> Iterator[int]:
    last = min(first + _PORTS_TRIED, 65536)
    return (port for port in range(first, last) if not _refused(host, port))


def _refused(host: str, port: int) -> str:
    """Why nobody can listen there, or nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def url_of(host: str, port: int) -> str:
    """What to open in a browser on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def options(host: str, port: int, public_url: str | None = None) -> dict[str, str | list[str]]:
    """Options of the server by name.

    `public_url` is where a reverse proxy shows it: its name and path become known to the server.
    Raises UsageError.
    """
    chosen: dict[str, str | list[str]] = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.allowedHosts": allowed_hosts(host, public_url),
        "server.enableXsrfProtection": "true",
        "server.enableCORS": "true",
        "server.fileWatcherType": "none",
        "server.runOnSave": "false",
        "server.enableStaticServing": "false",
        "server.showEmailPrompt": "false",
        "server.maxUploadSize": "1",
        "browser.gatherUsageStats": "false",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
        "client.toolbarMode": "minimal",
        # A table's own button writes cells that a spreadsheet would run: ours, above it, does not.
        "client.disableDataExport": "true",
        # Pages that frame ours could steer it: by default some of Streamlit's maker.
        "client.allowedOrigins": [url_of(host, port)],
        "runner.magicEnabled": "false",
        "logger.hideWelcomeMessage": "true",
        "logger.level": "error",
        **streamlit_options(),
    }
    if public_url is not None:
        parts = urlsplit(public_url)
        chosen["browser.serverAddress"] = parts.hostname or ""
        chosen["server.corsAllowedOrigins"] = [f"{parts.scheme}://{parts.netloc}"]
        if parts.path.strip("/"):
            chosen["server.baseUrlPath"] = parts.path.strip("/")
    return chosen


def allowed_hosts(host: str, public_url: str | None = None) -> list[str]:
    """Names by which browsers may ask: any other is how a foreign page would get at the data."""
    names = [*_LOOPBACK]
    if host in ("0.0.0.0", "::"):
        names += [socket.gethostname(), socket.getfqdn(), *_own_addresses()]
    elif host not in names:
        names.append(host)
    if public_url is not None:
        parts = urlsplit(public_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--public-url {public_url}: give the full URL, as https://host/path")
        names.append(parts.hostname)
    return list(dict.fromkeys(names))


def _own_addresses() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return []
    return sorted({str(address[0]) for *_, address in found})


def serve(chosen: Mapping[str, str | Sequence[str]], environment: Mapping[str, str]) -> NoReturn:
    """Become the server: this process ends with it, and Ctrl-C reaches it."""
    flags: list[str] = []
    for name, value in chosen.items():
        for one in [value] if isinstance(value, str) else value:
            flags += [f"--{name}", one]
    main = Path(__file__).with_name("main.py")
    modules = os.pathsep.join(sys.path)
    arguments = [sys.executable, "-c", _START, modules, str(main), *flags]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, {**os.environ, **environment})
