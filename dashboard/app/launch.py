"""How the server is started: its options, all safe unless asked otherwise, and its address.

Nothing here imports Streamlit: that is loaded by the process that becomes the server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NoReturn
from urllib.parse import urlsplit

from npuscope.collector.store.folder_handles import home_folder
from npuscope.errors import UsageError

from ..theme import streamlit_options

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
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def chosen_port(host: str, port: int | None) -> int:
    """The port asked for, or the first free one from 8501 on. Raises UsageError."""
    if port is not None:
        if error := _refusal(host, port):
            free = next(_free(host, port + 1), None)
            hint = f"--port {free} is free" if free else "give another --port"
            raise UsageError(f"cannot listen on {host}, port {port} ({error}): {hint}")
        return port
    free = next(_free(host, DEFAULT_PORT), None)
    if free is None:
        error = _refusal(host, DEFAULT_PORT) or "taken"
        raise UsageError(f"cannot listen on {host} ({error}): give --host or --port")
    return free


def _free(host: str, first: int) -> Iterator[int]:
    last = min(first + _PORTS_TRIED, 65536)
    return (port for port in range(first, last) if not _refusal(host, port))


def _refusal(host: str, port: int) -> str:
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
    address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        host, f"[{host}]" if ":" in host else host
    )
    return f"http://{address}:{port}"


def options(host: str, port: int, public_url: str | None = None) -> dict[str, Any]:
    """Options of the server by name.

    `public_url` is where a reverse proxy shows it: its name and path become known to the server.
    Raises UsageError.
    """
    settings: dict[str, Any] = {
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.allowedHosts": allowed_hosts(host, public_url),
        "server.enableXsrfProtection": True,
        "server.enableCORS": True,
        "server.fileWatcherType": "none",
        "server.runOnSave": False,
        "server.enableStaticServing": False,
        "server.showEmailPrompt": False,
        "server.maxUploadSize": 1,
        "browser.gatherUsageStats": False,
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "client.toolbarMode": "minimal",
        # A table's own button writes cells that a spreadsheet would run: ours, above it, does not.
        "client.disableDataExport": True,
        # Pages that frame ours could steer it: by default some of Streamlit's maker.
        "client.allowedOrigins": [url_of(host, port)],
        "runner.magicEnabled": False,
        "logger.hideWelcomeMessage": True,
        "logger.level": "error",
        **streamlit_options(),
    }
    if public_url is not None:
        parts = urlsplit(public_url)
        settings["browser.serverAddress"] = parts.hostname or ""
        settings["server.corsAllowedOrigins"] = [f"{parts.scheme}://{parts.netloc}"]
        if parts.path.strip("/"):
            settings["server.baseUrlPath"] = parts.path.strip("/")
    return settings


def allowed_hosts(host: str, public_url: str | None = None) -> list[str]:
    """Names, beside addresses, by which browsers may ask: see `is_known_host`."""
    names = [*_LOOPBACK]
    if host in ("0.0.0.0", "::"):
        names += [socket.gethostname(), socket.getfqdn()]
    elif host not in names:
        names.append(host)
    if public_url is not None:
        parts = urlsplit(public_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--public-url {public_url}: give the full URL, as https://host/path")
        names.append(parts.hostname)
    return list(dict.fromkeys(names))


def is_known_host(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header, which no browser leaves out, has one of these names, or an address.

    A page from elsewhere can make a browser ask by a name of its own, which then points here (DNS
    rebinding), and read what comes: but it cannot choose an address that is not its own.
    """
    if not host:
        return True
    with contextlib.suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name in {one.lower() for one in names} or _is_address(name)
    return False


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


def serve(settings: Mapping[str, Any], environment: Mapping[str, str]) -> NoReturn:
    """Become the server: this process ends with it, and Ctrl-C reaches it."""
    modules = os.pathsep.join(sys.path)
    arguments = [sys.executable, "-c", _START, modules, json.dumps(settings)]
    sys.stdout.flush()
    sys.stderr.flush()
    home = {"HOME": str(home_folder())}  # Streamlit looks for settings there, and ends without one
    os.execve(sys.executable, arguments, {**home, **os.environ, **environment})
