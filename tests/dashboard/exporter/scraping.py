"""A real Prometheus, and the exporter as the process that it scrapes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
_LISTENING = re.compile(r"listening on (https?)://\S+:(\d+)/metrics")


def require_prometheus() -> None:
    """Skip where Debian's package `prometheus` is not installed."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt install prometheus)")


def promtool(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run promtool."""
    return subprocess.run(["promtool", *words], input=given, capture_output=True, check=False)


def wait_for(found: Callable[[], T | None], what: str, seconds: float = 120) -> T:
    """What `found` returns when it returns something."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        told = found()
        if told:
            return told
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


@dataclass
class Started:
    """A process with what it says on stderr; for the exporter its port."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    port: int = 0


@contextlib.contextmanager
def start(command: Sequence[str], cwd: Path) -> Iterator[Started]:
    """A process of ours, ended by SIGTERM to it alone."""
    process = subprocess.Popen(
        command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    found = Started(process)
    assert process.stderr is not None
    lines = process.stderr
    listener = threading.Thread(target=_collect, args=(lines, found.said), daemon=True)
    listener.start()
    try:
        yield found
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join(5)
        lines.close()


def _collect(lines: Any, said: list[str]) -> None:
    said.extend(lines)  # one after the other, as they come


@contextlib.contextmanager
def export(store: Path, *words: str) -> Iterator[Started]:
    """`npuscope exporter` on a free port, listening."""
    command = [sys.executable, "-m", "npuscope", "exporter", str(store), "--port", "0", *words]
    with start(command, store.parent) as found:

        def listening() -> re.Match[str] | None:
            assert found.process.poll() is None, found.said
            return _LISTENING.search("".join(found.said))

        found.port = int(wait_for(listening, "the exporter listens")[2])
        yield found


def page(port: int) -> str:
    """What a scrape gets."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@dataclass(frozen=True)
class Prometheus:
    """A server that is ready."""

    port: int

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series at this moment."""
        asked = urllib.parse.urlencode({"query": expr})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{asked}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from error
        return [(one["metric"], float(one["value"][1])) for one in told["data"]["result"]]


@contextlib.contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, int], rules: Path | None = None, more: str = ""
) -> Iterator[Prometheus]:
    """Prometheus that scrapes ports of this machine, by instance, every second."""
    port = free_port()
    jobs = "".join(
        f"""
      - targets: ["127.0.0.1:{target}"]
        labels: {{instance: {name}}}"""
        for name, target in targets.items()
    )
    (folder / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{json.dumps(str(rules)) if rules else ""}]
scrape_configs:
  - job_name: npuscope
    scrape_interval: 2s
    scrape_timeout: 2s
    {more}
    static_configs:{jobs}
"""
    )
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with start(command, folder) as process:

        def ready() -> bool:
            assert process.process.poll() is None, process.said
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()  # an answer with an open socket: that it is not ready
                return False
            except OSError:
                return False
            return True

        wait_for(ready, "Prometheus is ready")
        yield Prometheus(port)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
