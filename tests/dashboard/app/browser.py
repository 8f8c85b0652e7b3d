"""A browser that shows pages of a folder, offline, and answers questions about them.

It is driven through DevTools over a pipe, so nothing but the browser itself has to be installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.server
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1800,1300",
)  # fmt: skip


class Page:
    """A page of an open browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser, self._from_browser = to_browser, from_browser
        self._answers = b""
        self._calls = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """A DevTools command and its answer."""
        self._calls += 1
        message: dict[str, object] = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._answers:
                received = os.read(self._from_browser, 1 << 20)
                assert received, f"the browser ended at {method}"
                self._answers += received
            one, _, self._answers = self._answers.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def value(self, script: str) -> Any:
        """What a script evaluates to, once it is known."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 120) -> None:
        """Until a condition, which must not throw, holds."""
        until = time.monotonic() + timeout_s
        while not self.value(condition):
            assert time.monotonic() < until, f"{condition} does not hold after {timeout_s} s"
            threading.Event().wait(0.1)


@contextlib.contextmanager
def shown(folder: Path, profile: Path, more: Mapping[str, Path]) -> Iterator[tuple[Page, str]]:
    """A page, empty as yet, and the address at which it finds a folder's files and `more`."""
    handler = functools.partial(_Files, more=more, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with _opened(profile) as page:
            yield page, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Files(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, more: Mapping[str, Path], **options: Any) -> None:
        self._more = more
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        found = self._more.get(path.partition("?")[0])
        return str(found) if found else super().translate_path(path)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # a page that is left wants no more
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def _opened(profile: Path) -> Iterator[Page]:
    assert BROWSER, "Chromium is not installed: .ci/run does that"
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    # It reads from 3 and writes to 4: neither may stand in the way of the other.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pid = os.posix_spawn(
        BROWSER,
        [BROWSER, *_OPTIONS, f"--user-data-dir={profile}"],
        os.environ,
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, null, standard) for standard in (0, 1, 2)),
            *((os.POSIX_SPAWN_DUP2, end, wanted) for end, wanted in zip(ends, (3, 4), strict=True)),
        ],
    )
    for end in (commands, answers, *ends, null):
        os.close(end)
    try:
        yield Page(to_browser, from_browser)
    finally:
        os.close(to_browser)  # which ends it
        if not _ended(pid, timeout_s=20):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(from_browser)


def _ended(pid: int, timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        threading.Event().wait(0.05)
    return False
